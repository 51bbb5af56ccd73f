"""Frozen edits: values passed into a forward pass, never hooks left behind; imports no torch.

An edit names a component, an operation and where it applies. Edits are part of a reading's digest, so their
canonical form writes numbers as float64 hex.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.units import Channel, Head, Unit, parse

Operation: TypeAlias = Literal["scale", "set"]


@dataclass(frozen=True)
class Edit:
    """`scale` multiplies a component's activation by `value`, `set` replaces it.

    component: `Unit` (the hidden activation), `Channel` (one coordinate of z), or `Head` (all of its z).
    positions: 0-based token positions, or None for every position.
    Raises `LegibleError` when the component cannot be edited or the value is not finite.
    """

    component: Unit | Channel | Head
    operation: Operation
    value: float
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.component, Unit | Channel | Head):
            raise _bad(f"{self.component} cannot be edited; units, channels and heads can")
        if self.operation not in get_args(Operation):
            raise _bad(f"operation {self.operation!r} does not exist; use scale or set")
        if not math.isfinite(self.value):
            raise _bad(f"value {self.value!r} is not a finite number")
        if self.positions is not None and (not self.positions or min(self.positions) < 0):
            raise _bad("positions must be a non-empty list of whole numbers from 0, or absent for every position")

    def check(self, config: ModelConfig, n_tokens: int) -> None:
        """Raise `LegibleError` when the component or a position is out of range for this model and prompt."""
        component = self.component
        limits = [("layer", component.layer, config.n_layers)]
        if isinstance(component, Unit):
            limits.append(("unit", component.unit, config.feed_forward.d_ff))
        else:
            limits.append(("head", component.head, config.n_heads))
        if isinstance(component, Channel):
            limits.append(("channel", component.channel, config.d_head))
        limits += [("position", position, n_tokens) for position in self.positions or ()]
        for name, value, limit in limits:
            if not 0 <= value < limit:
                raise _bad(f"{name} {value} of edit {component} does not exist; use 0 to {limit - 1}")

    def canonical(self) -> dict[str, Any]:
        """The form that a digest hashes: numbers as float64 hex, positions sorted and unique."""
        return {
            "component": str(self.component),
            "operation": self.operation,
            "value": float(self.value).hex(),
            "positions": None if self.positions is None else sorted(set(self.positions)),
        }

    @classmethod
    def from_json(cls, data: Any) -> Edit:
        """Read `{"component", "operation", "value", "positions"?}`; `value` is a number or float64 hex."""
        try:
            component = parse(str(data["component"]))
            value = data["value"]
            number = float.fromhex(value) if isinstance(value, str) else float(value)
            positions = data.get("positions")
            where = None if positions is None else tuple(int(position) for position in positions)
            operation = data["operation"]
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            raise _bad("it needs component, operation and value (a number), and may have positions") from None
        if not isinstance(component, Unit | Channel | Head):
            raise _bad(f"{component} cannot be edited; units, channels and heads can")
        return cls(component, operation, number, where)


def canonical_edits(edits: Iterable[Edit]) -> list[dict[str, Any]]:
    """Edits in the order in which they apply, each in canonical form (order matters: set then scale differs)."""
    return [edit.canonical() for edit in edits]


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The edit is not usable: {reason}.", code="bad_edit")
