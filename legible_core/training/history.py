"""What a run has written so far, read from its folder as it grows; imports no torch.

    history = History(folder)
    history.refresh()        # reads only what was added since; a log that was cut is read anew
    history.log.loss         # columns, one entry a step
    history.readings         # telemetry: `number` and, by layer and figure, a column
    history.events           # spikes, revivals, sittings, the divergence
    history.held_out         # the loss on the held-out slice, measured where training ended

A folder from elsewhere may hold anything: a line that is not what a run writes is passed over, a number that no run
has (`number_of`) is NaN, half a surrogate pair is replaced (`text_of`), and a file over `MAX_BYTES` is refused.
"""

from __future__ import annotations

import json
import math
import re
import stat
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from legible_core.errors import NotFound, TooLarge

MAX_BYTES = 512 << 20
MAX_LINE = 1 << 20
MAX_LAYERS = 256
MAX_HEADS = 256
MAX_EVENTS = 20_000
# A float holds every whole number up to this one; a larger one is no count of a run.
MAX_WHOLE = 1 << 53
# What training measures is a float32 or the mean of some: a larger number is none of a run's.
MAX_NUMBER = 3.4028234663852886e38
# Counts, seconds and nats stay below that by far, and a page has no room for more digits.
NARROW = ("number", "tokens", "loss", "seconds")
MAX_DEPTH = 20
_SURROGATE = re.compile("[\ud800-\udfff]")
# What is kept of a log's line and of a layer's reading.
COLUMNS = ("number", "tokens", "loss", "pressure", "gradient_norm", "factor", "perplexity", "seconds")
SURFACE = ("saturated", "crisp", "on", "constant")
HELD_OUT = "held_out.jsonl"
# What training writes before its first step and after each.
WRITTEN = ("log.jsonl", "sittings.jsonl")
HALF_LIFE = ("median", "min", "max", "latches")


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: `spike`, `diverged`, `revived` or `sitting` (a process took the run up)."""

    number: int
    event: str
    text: str


@dataclass(frozen=True)
class HeldOut:
    """The loss on the held-out slice after step `number`: mean and standard error in nats, over `tokens` tokens."""

    number: int
    loss: float
    se: float
    tokens: int


@dataclass
class Log:
    """log.jsonl by column; a value that is no number is NaN."""

    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in COLUMNS})
    last: int = 0

    def __len__(self) -> int:
        return len(self.columns["number"])

    def __getitem__(self, name: str) -> array[float]:
        return self.columns[name]

    def take(self, line: dict[str, Any]) -> None:
        if not is_whole(line.get("number")) or not isinstance(line.get("loss"), int | float):
            return
        for name, column in self.columns.items():
            column.append(number_of(line.get(name), MAX_WHOLE if name in NARROW else MAX_NUMBER))
        if is_whole(line.get("last")):
            self.last = line["last"]


@dataclass
class Readings:
    """telemetry.jsonl by column: `number`, `residual_rms`, `gain_norm`, and per layer (layer, figure).

    Figures of a layer: attention.saturated, …, feed_forward.constant, write.bounded, write.conventional (means over
    heads), write.largest and write.largest_head (`largest_head`), write.h0, write.h1, …, write_ratio, the same of
    columns, bounded_heads, half_life.median, …. NaN is "none".
    """

    number: array[float] = field(default_factory=lambda: array("d"))
    model: dict[str, array[float]] = field(
        default_factory=lambda: {"residual_rms": array("d"), "gain_norm": array("d"), "tokens": array("d")}
    )
    layers: list[dict[str, array[float]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.number)

    def take(self, line: dict[str, Any]) -> None:
        layers = line.get("layers")
        if not is_whole(line.get("number")) or not isinstance(layers, list) or len(layers) > MAX_LAYERS:
            return
        found = [layer_figures(layer) for layer in layers if isinstance(layer, dict)]
        if not self.layers:
            self.layers = [{name: array("d") for name in each} for each in found]
        if not found or len(found) != len(self.layers):
            return
        self.number.append(line["number"])
        for name, column in self.model.items():
            column.append(number_of(line.get(name), MAX_WHOLE if name in NARROW else MAX_NUMBER))
        for columns, each in zip(self.layers, found, strict=True):
            for name, column in columns.items():
                column.append(each.get(name, math.nan))

    def has(self, name: str) -> bool:
        """Whether any layer has a number for this figure."""
        return any(not math.isnan(value) for layer in self.layers for value in layer[name])


def layer_figures(layer: dict[str, Any]) -> dict[str, float]:
    """The figures of one layer of a reading by their dotted names; NaN where it has none."""
    found: dict[str, float] = {}
    for surface in ("attention", "feed_forward"):
        each = _object(layer.get(surface))
        found |= {f"{surface}.{name}": number_of(each.get(name)) for name in SURFACE}
    lives = _object(layer.get("half_life"))
    found |= {f"half_life.{name}": number_of(lives.get(name)) for name in HALF_LIFE}
    bounded = layer.get("bounded_heads")
    found["bounded_heads"] = float(bounded) if is_whole(bounded) else math.nan
    for name in ("write", "columns"):
        heads = layer.get(name)
        values = [number_of(value) for value in heads[:MAX_HEADS]] if isinstance(heads, list) else []
        split = bounded if isinstance(bounded, int) and 0 <= bounded <= len(values) else len(values)
        found[f"{name}.bounded"], found[f"{name}.conventional"] = _mean(values[:split]), _mean(values[split:])
        found[f"{name}.largest_head"], found[f"{name}.largest"] = largest_head(values) or (math.nan, math.nan)
        found |= {f"{name}.h{head}": value for head, value in enumerate(values)}
        found[f"{name}_ratio"] = number_of(layer.get(f"{name}_ratio"))
    return found


def largest_head(values: Sequence[float | None]) -> tuple[int, float] | None:
    """Which head has the largest figure, and the figure; None without heads.

    A head whose figure is not finite (None or NaN) comes first, as NaN: no number is larger than what has left them.
    """
    known = [math.nan if value is None else value for value in values]
    lost = next((head for head, value in enumerate(known) if not math.isfinite(value)), None)
    if lost is not None:
        return lost, math.nan
    return max(enumerate(known), key=lambda pair: pair[1], default=None)


class Follower:
    """Reads a file of JSON lines as it grows and gives each new one to `take`; `reset` forgets what was given."""

    def __init__(self, path: Path, take: Callable[[dict[str, Any]], None], reset: Callable[[], None]) -> None:
        self.path, self.take, self.reset = path, take, reset
        self.offset = 0
        self.tail = b""  # the last bytes read: where others stand there now, the file was cut and written on
        self.mark = (0, 0)  # its size and the time of its last change

    def refresh(self) -> None:
        """Raises `TooLarge` for a file that no run of sensible length writes."""
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise OSError  # a pipe or a device would never end
            if (status.st_size, status.st_mtime_ns) == self.mark:
                return
            if status.st_size > MAX_BYTES:
                raise TooLarge(
                    f"{self.path.name} has {status.st_size:,} bytes; a run's page reads at most {MAX_BYTES:,}."
                )
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self.tail))
                if status.st_size < self.offset or file.read(len(self.tail)) != self.tail:
                    self._again(file)
                self._read(file)
            self.mark = (status.st_size, status.st_mtime_ns)
        except OSError:  # not there, or not any more
            if self.offset or self.mark != (0, 0):
                self.offset, self.tail, self.mark = 0, b"", (0, 0)
                self.reset()

    def _again(self, file: Any) -> None:
        self.offset, self.tail = 0, b""
        self.reset()
        file.seek(0)

    def _read(self, file: Any) -> None:
        while True:
            line = file.readline(MAX_LINE + 1)
            if not line.endswith(b"\n"):
                if len(line) <= MAX_LINE:
                    return  # what is being written now is read next time
                continue  # no line of a run is so long
            self.offset = file.tell()
            self.tail = line[-64:]
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict):
                self.take(data)


class History:
    """One folder's log, telemetry and events. Not safe to refresh from two threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, self.readings = Log(), Readings()
        self.held_out: HeldOut | None = None
        self._events: dict[str, list[Event]] = {"events": [], "revived": [], "sittings": []}
        self._followers = [
            Follower(folder / "log.jsonl", lambda line: self.log.take(line), self._forget_log),
            Follower(folder / "telemetry.jsonl", lambda line: self.readings.take(line), self._forget_readings),
            *(self._of_events(name) for name in self._events),
            Follower(folder / HELD_OUT, self._take_held_out, self._forget_held_out),
        ]

    @property
    def events(self) -> list[Event]:
        """In the order of their steps."""
        return sorted((event for kind in self._events.values() for event in kind), key=lambda event: event.number)

    @property
    def marks(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever a file did: size and time of each."""
        return tuple(follower.mark for follower in self._followers)

    def refresh(self) -> None:
        for follower in self._followers:
            follower.refresh()

    @property
    def changed_at(self) -> float | None:
        """When the log's last line was written, in seconds since 1970; None before the first."""
        return self._followers[0].mark[1] / 1e9 if len(self.log) else None

    @property
    def touched_at(self) -> float | None:
        """When a line or the beginning of a sitting was last written; None before the first."""
        times = [each.mark[1] / 1e9 for each in self._followers if each.path.name in WRITTEN and any(each.mark)]
        return max(times, default=None)

    def _forget_log(self) -> None:
        self.log = Log()

    def _forget_readings(self) -> None:
        self.readings = Readings()

    def _take_held_out(self, line: dict[str, Any]) -> None:
        number, tokens = line.get("number"), line.get("tokens")
        loss, se = (number_of(line.get(name), MAX_WHOLE) for name in ("loss", "se"))
        if is_whole(number) and is_whole(tokens) and math.isfinite(loss) and math.isfinite(se):
            self.held_out = HeldOut(number, loss, se, tokens)

    def _forget_held_out(self) -> None:
        self.held_out = None

    def _of_events(self, name: str) -> Follower:
        found = self._events[name]

        def take(line: dict[str, Any]) -> None:
            event = _EVENTS[name](line) if is_whole(line.get("number")) else None
            if event is not None and len(found) < MAX_EVENTS:
                found.append(event)

        return Follower(self.folder / f"{name}.jsonl", take, found.clear)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it counts something: a whole number of either sign that a float holds exactly."""
    return type(value) is int and abs(value) <= MAX_WHOLE


def read_recipe(folder: Path) -> dict[str, Any]:
    """A run's recipe.json as it stands there; raises `NotFound` when the folder holds no run."""
    path = folder / "recipe.json"
    try:
        if not path.is_file() or path.stat().st_size > MAX_LINE:  # a pipe or a device would never end
            raise ValueError
        data = _sound(json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(data["model"], dict) or not isinstance(data["schedule"], dict):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise NotFound(
            f"There is no run in {folder}: it has no recipe.json that `legible train` wrote, or is gone.",
            code="no_run",
        ) from None
    found: dict[str, Any] = data
    return found


def _noted(line: dict[str, Any]) -> Event | None:
    kind, text = line.get("event"), line.get("text")
    if kind not in ("spike", "diverged") or not isinstance(text, str):
        return None
    return Event(line["number"], kind, text_of(text, 1000))


def _revived(line: dict[str, Any]) -> Event | None:
    counts = _object(line.get("revived"))
    named = [(text_of(name, 40).replace("_", "-"), n) for name, n in counts.items() if is_whole(n)]
    parts = [f"{n} of the {name}" for name, n in named[:4]]
    return Event(line["number"], "revived", f"new start for operands: {', '.join(parts)}") if parts else None


def _sitting(line: dict[str, Any]) -> Event | None:
    words = [text_of(line[key], 40) for key in ("device", "precision", "time") if isinstance(line.get(key), str)]
    return Event(line["number"], "sitting", f"taken up on {', '.join(words)}" if words else "taken up")


_EVENTS: dict[str, Callable[[dict[str, Any]], Event | None]] = {
    "events": _noted, "revived": _revived, "sittings": _sitting,
}  # fmt: skip


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def number_of(value: Any, most: float = MAX_NUMBER) -> float:
    """A number that was written, as a float; NaN for what is none, is not finite, or is larger than `most`."""
    return float(value) if isinstance(value, int | float) and abs(value) <= most else math.nan


def text_of(value: str, most: int) -> str:
    """The first `most` characters of a text; for each half of a surrogate pair, which UTF-8 lacks, a �."""
    return _SURROGATE.sub("\ufffd", value[:most])


def _sound(value: Any, depth: int = 0) -> Any:
    """What JSON gave, each text as `text_of`; raises `ValueError` below `MAX_DEPTH` levels."""
    if depth > MAX_DEPTH:
        raise ValueError
    if isinstance(value, dict):
        return {text_of(key, MAX_LINE): _sound(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_sound(each, depth + 1) for each in value]
    return text_of(value, MAX_LINE) if isinstance(value, str) else value


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
