"""Monitors: named sets of components with conditions, checked against a checkpoint before anything runs; no torch.

    monitor = Monitor.from_json({"name": "negation", "conditions": [
        {"component": "L5.p3.A", "above": 0.9, "for": 2},          # more than 0.9 on two tokens in a row, and
        {"component": "L2.h1", "below": 0.5},                      # the norm of the head's write under 0.5
        {"component": "L5.u263"}]})                                # only looked at: its value stands with every hit
    monitor.check(config)                                          # refuses conditions that can never hold together

A token is a hit where all conditions hold. What a component's value at a token is, `reads.measure` says: a unit's
hidden activation, an operand's membership, a channel's value before attention gathers it, the norm of a head's write. A
gate acts on a hit while text is generated: it stops, or applies edits at the hit's position.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text, parse_edit
from legible_core.reads import check_component, measure, opens
from legible_core.units import Channel, Component, HeadOperand, Operand, QuantifierOperand, Unit, parse

MAX_NAME = 80
MAX_CONDITIONS = 64
MAX_RUN = 10_000
MAX_EDITS = 32
MAX_JSON_BYTES = 1 << 20
# The least value of GELU(x) = x Φ(x), a little below, so that no value of it is called impossible.
GELU_LEAST = -0.1701
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_LINE = re.compile(
    rf"(?P<component>\S+)(?:\s+(?:above|>)\s*(?P<above>{_NUMBER}))?(?:\s+(?:below|<)\s*(?P<below>{_NUMBER}))?"
    r"(?:\s+for\s+(?P<run>[0-9]{1,6})(?:\s+tokens?)?)?"
)


@dataclass(frozen=True)
class Condition:
    """A component's value is more than `above` and less than `below` on each of the last `run` tokens.

    Without either it is only watched: its value is reported, and nothing is required of it.
    """

    component: Component
    above: float | None = None
    below: float | None = None
    run: int = 1

    def __post_init__(self) -> None:
        for name, value in (("above", self.above), ("below", self.below)):
            if value is not None and not math.isfinite(value):
                raise _bad(f"{name} of {self.component} is {value!r}, which is no finite number")
        if not 1 <= self.run <= MAX_RUN:
            raise _bad(f"{self.component} is to hold for {str(self.run)[:20]} tokens; 1 to {MAX_RUN:,} are possible")
        if not self.requires and self.run > 1:
            raise _bad(f"{self.component} is to hold for {self.run} tokens but has neither above nor below")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise _never([self])

    @property
    def requires(self) -> bool:
        """Whether it says more than that the component is to be looked at."""
        return self.above is not None or self.below is not None

    def __str__(self) -> str:
        """`L5.p3.A above 0.9 for 2`, which `parse_line` reads back."""
        parts = [str(self.component)]
        parts += [f"above {self.above!r}"] if self.above is not None else []
        parts += [f"below {self.below!r}"] if self.below is not None else []
        return " ".join(parts + ([f"for {self.run}"] if self.run > 1 else []))

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads back; what is not set is left out."""
        found = {"component": str(self.component), "above": self.above, "below": self.below}
        found |= {"for": self.run} if self.run > 1 else {}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Condition:
        """Read `{"component", "above"?, "below"?, "for"?}`; raises `LegibleError` saying what is wrong."""
        _fields(data, ("component", "above", "below", "for"), "A condition")
        numbers = {name: data.get(name) for name in ("above", "below")}
        for name, value in numbers.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise _bad(f"{name} is {str(value)[:40]!r}; it must be a number")
        run = data.get("for", 1)
        if type(run) is not int:
            raise _bad(f"for is {str(run)[:40]!r}; it must be a whole number of tokens")
        return cls(parse(str(data.get("component", ""))), _float(numbers["above"]), _float(numbers["below"]), run)

    @classmethod
    def parse_line(cls, line: str) -> Condition:
        """Read `L5.p3.A above 0.9 below 0.99 for 2` (or > and <); everything after the component may be left out."""
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise _bad(
                f"{line.strip()[:80]!r} is no condition; write one such as `L5.p3.A above 0.9`, "
                "`L2.h1 below 0.5 for 3`, or a component alone, which is only watched"
            )
        above, below, run = found["above"], found["below"], found["run"]
        return cls(parse(found["component"]), _float(above), _float(below), 1 if run is None else int(run))


@dataclass(frozen=True)
class Gate:
    """What happens on a hit while text is generated: `stop`, or `edits` at the hit's position alone.

    A token is read without the edits, and once more with them where it is a hit; the next token is chosen from the
    second pass. So the text is the one that a model with these edits at the hits' positions writes.
    """

    stop: bool = False
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        if self.stop == bool(self.edits):
            raise _bad('its gate must either stop ({"stop": true}) or edit ({"edits": [...]})')
        if len(self.edits) > MAX_EDITS:
            raise _bad(f"its gate has {len(self.edits)} edits; {MAX_EDITS} are possible")
        if any(edit.positions is not None for edit in self.edits):
            raise _bad("an edit of its gate names positions; a gate applies it where the hit is")

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads back."""
        return {"stop": True} if self.stop else {"edits": [edit_text(edit) for edit in self.edits]}

    @classmethod
    def from_json(cls, data: Any) -> Gate:
        """Read `{"stop": true}` or `{"edits": [...]}`: each edit as text (`L5.u263:zero`) or as an object."""
        _fields(data, ("stop", "edits"), "A gate")
        edits, stop = data.get("edits", []), data.get("stop", False)
        if not isinstance(edits, list) or not isinstance(stop, bool):
            raise _bad("stop of its gate must be true, and edits a list of edits")
        made = (parse_edit(edit) if isinstance(edit, str) else Edit.from_json(edit) for edit in edits[: MAX_EDITS + 1])
        return cls(stop, tuple(made))


@dataclass(frozen=True)
class Monitor:
    """A name, conditions that must all hold at once, and what to do on a hit beside reporting it."""

    name: str
    conditions: tuple[Condition, ...]
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > MAX_NAME or any(ord(c) < 32 for c in self.name):
            raise _bad(f"its name must be one line of 1 to {MAX_NAME} characters")
        if any("\ud800" <= c <= "\udfff" for c in self.name):  # JSON can write one; UTF-8 and so SQL cannot
            raise _bad("its name holds half of a surrogate pair, which is no text")
        if not any(condition.requires for condition in self.conditions):
            raise _bad("it needs at least one condition with above or below; without, every token would be a hit")
        if len(self.conditions) > MAX_CONDITIONS:
            raise _bad(f"it has {len(self.conditions)} conditions; {MAX_CONDITIONS} are possible")

    @property
    def components(self) -> tuple[Component, ...]:
        """What is watched, each once, in the order of the conditions."""
        return tuple(dict.fromkeys(condition.component for condition in self.conditions))

    @property
    def required(self) -> tuple[Condition, ...]:
        """The conditions that decide whether a token is a hit."""
        return tuple(condition for condition in self.conditions if condition.requires)

    def check(self, config: ModelConfig) -> None:
        """Raise `LegibleError` for components that the checkpoint lacks and for conditions that never hold together.

        Contradictions are found between conditions on one component, with the range that its values have, within a
        pair (A⊙B + A⊙(1-B) = A, and no product exceeds its factors), and between an existential and its membership
        (e ≥ m). The sentence names a smallest set of conditions that contradict each other. An ordinary model is
        refused: nothing reads its values token by token.
        """
        if config.ordinary:
            raise LegibleError(
                "A monitor needs a checkpoint that is legible by construction; this one is an ordinary model.",
                code="ordinary", status=422,
            )  # fmt: skip
        for component in self.components:
            check_component(config, component)
        required = list(self.required)
        for edit in self.gate.edits if self.gate is not None else ():
            edit.check(config, config.context)
        if not _possible(config, required):
            for condition in list(required):
                rest = [other for other in required if other is not condition]
                if rest and not _possible(config, rest):
                    required = rest
            raise _never(required)

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads back."""
        found: dict[str, Any] = {"name": self.name, "conditions": [c.to_json() for c in self.conditions]}
        return found if self.gate is None else {**found, "gate": self.gate.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Monitor:
        """Read one monitor; raises `LegibleError` in one sentence for anything else."""
        _fields(data, ("name", "conditions", "gate"), "A monitor")
        name, conditions, gate = data.get("name"), data.get("conditions"), data.get("gate")
        if not isinstance(name, str):
            raise _bad("it has no name")
        if not isinstance(conditions, list):
            raise _bad('it has no list of "conditions"')
        found = tuple(Condition.from_json(condition) for condition in conditions[: MAX_CONDITIONS + 1])
        return cls(name, found, None if gate is None else Gate.from_json(gate))


def parse_monitors(text: str) -> tuple[Monitor, ...]:
    """The monitors of a JSON file: one object, or a list of them with different names."""
    if len(text) > MAX_JSON_BYTES:
        raise _bad(f"the file is over the limit of {MAX_JSON_BYTES:,} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(f"the file is no JSON ({str(error)[:80]})") from None
    rows = data if isinstance(data, list) else [data]
    if not 1 <= len(rows) <= MAX_CONDITIONS:
        raise _bad(f"the file holds {len(rows)} monitors; 1 to {MAX_CONDITIONS} are possible")
    found = tuple(Monitor.from_json(row) for row in rows)
    for index, monitor in enumerate(found):
        if monitor.name in (other.name for other in found[:index]):
            raise _bad(f"two monitors are called {monitor.name!r}")
    return found


# ---- what can never hold ---------------------------------------------------------------------------------------------


def _possible(config: ModelConfig, conditions: Sequence[Condition]) -> bool:
    """Whether some values satisfy all conditions, as far as intervals tell: False is certain, True is not.

    All conditions hold at the hit's own token, whatever their `run`, so that token's values decide.
    """
    bounds: dict[Component, list[float]] = {}
    for condition in conditions:
        low, high = bounds.setdefault(condition.component, list(_range(config, condition.component)))
        low = low if condition.above is None else max(low, condition.above)
        high = high if condition.below is None else min(high, condition.below)
        bounds[condition.component] = [low, high]
    groups = {opens(config, component) or (component,) for component in bounds}
    for operands in groups:
        whole = [c for c in bounds if (opens(config, c) or (c,)) == operands]
        if len(operands) == 2:
            first, second = _operations(config, operands)
            sides = [bounds.get(part, [0.0, 1.0]) for part in (*operands, first, second)]
            _narrow_pair(*sides)
            if any(low >= high for low, high in sides):
                return False
        elif len(operands) == 1 and _is_existential(config, operands):
            unit = next((c for c in whole if isinstance(c, Unit)), None)
            m, e = bounds.get(operands[0]), None if unit is None else bounds.get(unit)
            if m is not None and e is not None:
                e[0], m[1] = max(e[0], m[0]), min(m[1], e[1])
    return all(low < high for low, high in bounds.values())


def _range(config: ModelConfig, component: Component) -> tuple[float, float]:
    """The values that a component can have at all."""
    found = measure(config, component)
    if found.bounded:
        return 0.0, 1.0
    if isinstance(component, Unit) and config.feed_forward.kind(component.unit) == "gelu":
        return GELU_LEAST, math.inf
    return (-math.inf if found.signed else 0.0), math.inf


def _operations(config: ModelConfig, operands: tuple[Component, ...]) -> tuple[Component, Component]:
    """The intersection and the difference that two operands feed."""
    first = operands[0]
    if isinstance(first, HeadOperand):
        half = config.d_head // 2
        return Channel(first.layer, first.head, first.pair), Channel(first.layer, first.head, first.pair + half)
    assert isinstance(first, Operand)
    return Unit(first.layer, first.pair), Unit(first.layer, first.pair + config.feed_forward.n_pairs)


def _is_existential(config: ModelConfig, operands: tuple[Component, ...]) -> bool:
    component, where = operands[0], config.feed_forward.existentials
    return isinstance(component, QuantifierOperand) and where.start <= component.unit < where.stop


def _narrow_pair(a: list[float], b: list[float], both: list[float], rest: list[float]) -> None:
    """Narrow the ranges of A, B, A⊙B and A⊙(1-B) by one another, in place, until one is empty or little changes."""
    for _ in range(4):
        if any(low >= high for low, high in (a, b, both, rest)):
            return
        a[0] = max(a[0], both[0] + rest[0], _least(both[0], b[1]), _least(rest[0], 1.0 - b[0]))
        a[1] = min(a[1], both[1] + rest[1], _most(both[1], b[0]), _most(rest[1], 1.0 - b[1]))
        b[0] = max(b[0], _least(both[0], a[1]), 1.0 - _most(rest[1], a[0]))
        b[1] = min(b[1], _most(both[1], a[0]), 1.0 - _least(rest[0], a[1]))
        both[0], both[1] = max(both[0], a[0] * b[0]), min(both[1], a[1] * b[1])
        rest[0], rest[1] = max(rest[0], a[0] * (1.0 - b[1])), min(rest[1], a[1] * (1.0 - b[0]))


def _least(low: float, high: float) -> float:
    """What x / y is at least, for x ≥ low and 0 ≤ y ≤ high."""
    if low <= 0.0:
        return 0.0
    return low / high if high > 0.0 else math.inf


def _most(high: float, low: float) -> float:
    """What x / y is at most, for x ≤ high and y ≥ low."""
    return high / low if low > 0.0 else math.inf


# ---- small parts -----------------------------------------------------------------------------------------------------


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:
        raise _bad(f"{str(value)[:20]}… is too large a number") from None


def _fields(data: Any, known: Iterable[str], what: str) -> None:
    known = tuple(known)
    if not isinstance(data, dict):
        raise _bad(f"{what[0].lower()}{what[1:]} must be an object with {', '.join(known)}")
    unknown = [key for key in data if key not in known]
    if unknown:
        raise _bad(f"{what[0].lower()}{what[1:]} has {str(unknown[0])[:40]!r}; it may have {', '.join(known)}")


def _never(conditions: Sequence[Condition]) -> LegibleError:
    said = " and ".join(f"`{condition}`" for condition in conditions)
    if len(conditions) == 1:
        return LegibleError(
            f"The monitor can never hit: no value satisfies {said}.", code="contradiction", status=422,
            hint="Memberships and bounded units lie between 0 and 1, norms are not negative, and above must be less "
            "than below.",
        )  # fmt: skip
    return LegibleError(
        f"The monitor can never hit: {said} contradict each other.", code="contradiction", status=422,
        hint="Change or remove one of them; for either of two things to be found, make two monitors.",
    )  # fmt: skip


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The monitor is not usable: {reason}.", code="bad_monitor", status=422)
