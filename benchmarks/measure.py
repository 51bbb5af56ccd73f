"""What a row is, and how two things are timed against each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

THREADS = 2


@dataclass(frozen=True)
class Row:
    """One claim. `ratio` is ours / baseline; it holds when it is at most (or at least) `bound`.

    A row without a bound claims nothing: it is there so that a reader can judge the others.
    """

    name: str
    what: str
    ours: float
    baseline: float
    unit: str
    bound: float | None = None
    direction: Literal["at most", "at least"] = "at most"
    ratio: float = field(default=float("nan"))
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        if self.bound is None:
            return None
        return self.ratio <= self.bound if self.direction == "at most" else self.ratio >= self.bound

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Timing:
    """Seconds of each run, ours and baseline in pairs that ran one after the other."""

    ours: list[float]
    baseline: list[float]

    def row(
        self,
        name: str,
        what: str,
        bound: float | None,
        *,
        per: float | None = None,
        unit: str = "ms",
        direction: Literal["at most", "at least"] = "at most",
        note: str = "",
    ) -> Row:
        """The row of these times. With `per`, ours and baseline are `per` / time, such as tokens per second."""

        def value(seconds: list[float]) -> float:
            middle = statistics.median(seconds)
            return middle * 1e3 if per is None else per / middle

        pairs = [a / b if per is None else b / a for a, b in zip(self.ours, self.baseline, strict=True)]
        ours, baseline = value(self.ours), value(self.baseline)
        # The middle of the pairs' own ratios: a disturbance that falls on a few runs does not move it.
        ratio, spread = statistics.median(pairs), (min(pairs), max(pairs))
        return Row(name, what, ours, baseline, unit, bound, direction, ratio, spread, note)


def against(
    ours: Callable[[Any], Any], baseline: Callable[[Any], Any], inputs: Iterator[Any], repetitions: int, warm: int = 1
) -> Timing:
    """Time both on the same input, alternately and in alternating order; `warm` rounds are not counted."""
    found = Timing([], [])
    for index in range(warm + repetitions):
        given = next(inputs)
        pair: dict[str, float] = {}
        sides = [("ours", ours), ("baseline", baseline)]
        for side, call in sides if index % 2 else reversed(sides):
            started = time.perf_counter()
            call(given)
            pair[side] = time.perf_counter() - started
        if index >= warm:
            found.ours.append(pair["ours"])
            found.baseline.append(pair["baseline"])
    return found
