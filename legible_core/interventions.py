"""Frozen edits: values passed into a forward pass, never hooks left behind; imports no torch.

    Edit(Unit(5, 263), "scale", 0.5)                 half of what the unit does, at every position
    Edit(Operand(5, 3, "A"), "flip", positions=(7,)) A → 1 - A at one token: moves both operations of the pair
    Edit(Residual(3), "add", 2.0, vector=direction)  a direction added before layer 3

An edit names a component, an operation and where it applies; docs/edits.md lists what each operation means on each
sort of component ("Legible-by-Construction" section 6: edit and steer). Edits are part of a reading's digest, so their
canonical form writes numbers as float64 hex and vectors as base64 of little-endian float32.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.units import (
    BOUNDED,
    Channel,
    Down,
    Head,
    HeadOperand,
    Operand,
    QuantifierOperand,
    Residual,
    Unit,
    parse_place,
)

Operation: TypeAlias = Literal[
    "scale",
    "set",
    "clamp",
    "zero",
    "mean",
    "flip",
    "flip_a",
    "flip_b",
    "decay",
    "state",
    "add",
    "row",
    "column",
    "rank_one",
]
Edited: TypeAlias = Unit | Channel | Head | Operand | HeadOperand | QuantifierOperand | Residual | Down
# The most numbers in a vector of an edit: two of the widest sides that a config may have would be far more.
MAX_VECTOR = 1 << 20

_VALUES = (Unit, Channel, Head, Operand, HeadOperand, QuantifierOperand)
# What each operation can be done to; `check` knows the model and refuses the rest.
_ON: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("scale", "set", "clamp", "zero", "mean"), _VALUES),
    "flip": (Operand, HeadOperand, QuantifierOperand, Channel, Unit),
    **dict.fromkeys(("flip_a", "flip_b", "decay", "state"), (Unit,)),
    "add": (Residual,),
    "row": (Operand, QuantifierOperand, HeadOperand, Unit, Channel),
    "column": (Unit, Channel),
    "rank_one": (Down,),
}
# Whether an operation takes a number: a word for what it is, None for none.
_NUMBER: dict[str, str | None] = {
    "scale": "the factor",
    "set": "the value",
    "clamp": "the lower bound",
    "zero": None,
    "mean": "the measured mean",
    "flip": None,
    "flip_a": None,
    "flip_b": None,
    "decay": "λ",
    "state": "the state carried before the position",
    "add": "how much of the direction",
    "row": "the bias",
    "column": None,
    "rank_one": "the factor",
}
_VECTOR_NEEDED = ("add", "row", "column", "rank_one")
# Operations on weights: they apply inside the pass like the others, and they can be written into a child checkpoint.
WEIGHTS = ("row", "column", "rank_one")


@dataclass(frozen=True)
class Vector:
    """Frozen float32 numbers of an edit: equal and hashed by their bytes (little-endian)."""

    data: bytes = field(repr=False)

    @classmethod
    def of(cls, numbers: Any) -> Vector:
        """From a sequence, an array or a tensor on the CPU; raises `LegibleError` for what is no finite vector."""
        if isinstance(numbers, Vector):
            return numbers
        try:
            with np.errstate(over="ignore"):  # what overflows is refused below
                array = np.asarray(numbers, dtype="<f4")
        except (TypeError, ValueError, OverflowError):
            raise _bad("its vector must be a list of numbers") from None
        if array.ndim != 1 or not 1 <= array.size <= MAX_VECTOR:
            raise _bad(f"its vector has shape {array.shape}; it must be a list of 1 to {MAX_VECTOR} numbers")
        if not np.isfinite(array).all():
            raise _bad("its vector holds a number that is not finite, or too large for float32")
        return cls(np.ascontiguousarray(array).tobytes())

    @classmethod
    def from_base64(cls, text: str) -> Vector:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b"?"
        if len(raw) % 4 or not raw:
            raise _bad("its vector must be a list of numbers, or base64 of little-endian float32")
        return cls.of(np.frombuffer(raw, dtype="<f4"))

    @property
    def array(self) -> np.ndarray:
        """The numbers, float32, read-only."""
        return np.frombuffer(self.data, dtype="<f4")

    def base64(self) -> str:
        return base64.b64encode(self.data).decode("ascii")

    def __len__(self) -> int:
        return len(self.data) // 4

    def __iter__(self) -> Iterator[float]:
        return iter(self.array.tolist())


@dataclass(frozen=True)
class Edit:
    """One operation on one component.

    component: `Unit` (the hidden activation), `Channel` (one coordinate of z), `Head` (all of its z), an operand (the
    membership, before the operation that reads it), `Residual` or `Down`.
    value: α of scale, what set and mean put there, the lower bound of clamp, λ, the state, how much of a vector; a read
    row's bias. positions: 0-based token positions, or None for every position. upper: the upper bound of clamp.
    vector: of add, row, column and rank_one (u, then v); of set and mean on a head, its z.
    Raises `LegibleError` when the operation cannot be done to the component or a number is not usable.
    """

    component: Edited
    operation: Operation
    value: float | None = None
    positions: tuple[int, ...] | None = None
    upper: float | None = field(default=None, kw_only=True)
    vector: Vector | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.component, get_args(Edited)):
            raise _bad(f"{self.component} cannot be edited; units, channels, heads, operands, residual and down can")
        if self.operation not in get_args(Operation):
            raise _bad(f"operation {str(self.operation)[:40]!r} does not exist; use one of {', '.join(_ON)}")
        if not isinstance(self.component, _ON[self.operation]):
            raise _bad(f"{self.operation} cannot be done to {self.component}; it can to {_said(_ON[self.operation])}")
        if self.vector is not None:
            object.__setattr__(self, "vector", Vector.of(self.vector))
        self._check_numbers()
        if self.positions is not None:
            try:
                where = tuple(operator.index(position) for position in self.positions)
            except TypeError:
                where = ()
            object.__setattr__(self, "positions", where)
            if not where or min(where) < 0:
                raise _bad("positions must be a non-empty list of whole numbers from 0, or absent for every position")

    def _check_numbers(self) -> None:
        takes, vector = _NUMBER[self.operation], self.vector
        for name, value in (("value", self.value), ("upper", self.upper)):
            if value is not None:
                number = _float(value)
                if number is None:
                    raise _bad(f"{name} {str(value)[:40]} is not a finite number")
                object.__setattr__(self, name, number)
        whole_head = isinstance(self.component, Head) and self.operation in ("set", "mean")
        if vector is not None and self.operation not in _VECTOR_NEEDED and not whole_head:
            raise _bad(f"{self.operation} of {self.component} takes no vector")
        if vector is None and self.operation in _VECTOR_NEEDED:
            raise _bad(f"{self.operation} of {self.component} needs a vector")
        if takes is None and self.value is not None:
            raise _bad(f"{self.operation} takes no value")
        if whole_head and (vector is None) == (self.value is None):
            raise _bad(
                f"{self.operation} of head {self.component} needs a value for all its channels or a vector of them"
            )
        if takes is not None and self.value is None and vector is None:
            raise _bad(f"{self.operation} needs a value ({takes})")
        if self.operation == "clamp" and self.upper is None:
            raise _bad("clamp needs a lower and an upper bound")
        if self.operation != "clamp" and self.upper is not None:
            raise _bad(f"only clamp has an upper bound, not {self.operation}")
        if self.upper is not None and self.value is not None and self.value > self.upper:
            raise _bad(f"the lower bound {self.value:g} of clamp is above the upper one, {self.upper:g}")
        if isinstance(self.component, Operand | HeadOperand | QuantifierOperand):
            self._check_membership("an operand")
            if self.operation == "scale" and self.value is not None and self.value < 0:
                raise _bad(f"{self.component} is a membership and cannot be negative; scale it by 0 or more")
        if self.operation in ("decay", "state") and self.value is not None and not 0.0 <= self.value <= 1.0:
            raise _bad(f"{self.operation} {self.value:g} of {self.component} must lie between 0 and 1")

    def _check_membership(self, what: str) -> None:
        if self.operation not in ("set", "mean", "clamp"):
            return
        for value in (self.value, self.upper):
            if value is not None and not 0.0 <= value <= 1.0:
                raise _bad(
                    f"{self.component} is {what}, a membership between 0 and 1, so {self.operation} cannot use "
                    f"{value:g}"
                )

    def check(self, config: ModelConfig, n_tokens: int) -> None:
        """Raise `LegibleError` when this model lacks the component, it does not fit, or a position is past the end."""
        component, layout, kind = self.component, config.feed_forward, ""
        limits = [("layer", component.layer, config.n_layers + isinstance(component, Residual))]
        match component:
            case Unit(_, unit):
                limits.append(("unit", unit, layout.d_ff))
                kind = layout.kind(unit) if 0 <= unit < layout.d_ff else ""
            case Operand(_, pair, _):
                limits.append(("pair", pair, layout.n_pairs))
            case QuantifierOperand(_, unit):
                limits.append(("unit", unit, layout.d_ff))
            case Head(_, head) | Channel(_, head, _) | HeadOperand(_, head, _, _):
                limits.append(("head", head, config.n_heads))
        if isinstance(component, Channel):
            limits.append(("channel", component.channel, config.d_head))
        if isinstance(component, HeadOperand):
            limits.append(("pair", component.pair, config.d_head // 2))
        for name, value, limit in limits:
            if not 0 <= value < limit:
                exist = f"use 0 to {limit - 1}" if limit else f"this checkpoint has no {name}s"
                raise _bad(f"{name} {value} of edit {component} does not exist; {exist}")
        for position in self.positions or ():
            if position >= n_tokens:
                raise _bad(
                    f"position {str(position)[:20]} of edit {component} lies past the prompt, whose tokens have "
                    f"positions 0 to {n_tokens - 1}"
                )
        self._check_kind(config, kind)
        self._check_width(config)

    def _check_kind(self, config: ModelConfig, kind: str) -> None:
        """What depends on the kind of a unit or of a head's value."""
        component, operation = self.component, self.operation
        if isinstance(component, QuantifierOperand):
            quantifiers = config.feed_forward.quantifiers
            if not quantifiers.start <= component.unit < quantifiers.stop:
                raise _bad(f"{component} does not exist, because L{component.layer}.u{component.unit} is no quantifier")
        if isinstance(component, HeadOperand) and not (
            config.attention.value == "boolean" and config.is_bounded(component.layer, component.head)
        ):
            raise _bad(f"{component} does not exist, because that head has no Boolean value")
        if isinstance(component, Unit):
            if operation == "clamp" and kind in BOUNDED:
                self._check_membership(f"of kind {kind}")
            if operation in ("flip_a", "flip_b") and kind not in ("intersection", "difference"):
                raise _bad(f"{component} is of kind {kind} and has no operands A and B, so {operation} means nothing")
            if operation in ("decay", "state") and kind not in ("existential", "proportion"):
                raise _bad(f"{component} is of kind {kind} and remembers nothing, so it has no {operation}")
            if operation == "state" and kind == "proportion" and 0 in (self.positions or ()):
                raise _bad(f"{component} is a proportion, which has counted nothing before position 0; use 1 or later")
            if operation == "flip" and kind != "sigmoid":
                raise _bad(f"{component} is no membership of its own; flip an operand, or use flip_a or flip_b")
            if operation == "row" and kind in BOUNDED - {"sigmoid"}:
                raise _bad(f"{component} is of kind {kind} and has no read row of its own; name its operand")
        if isinstance(component, Channel):
            bounded = config.is_bounded(component.layer, component.head)
            if operation == "clamp" and bounded:
                self._check_membership(f"a channel of a {config.attention.value} head")
            if operation == "flip" and not (bounded and config.attention.value == "membership"):
                raise _bad(f"{component} is no membership of its own, so it cannot be flipped")
            if operation == "row" and bounded and config.attention.value == "boolean":
                raise _bad(f"{component} is made of two operands and has no read row of its own; name one of them")

    def _check_width(self, config: ModelConfig) -> None:
        if self.vector is None:
            return
        d, f = config.d_model, config.feed_forward.d_ff
        width = config.d_head if isinstance(self.component, Head) else d + f if self.operation == "rank_one" else d
        if len(self.vector) != width:
            said = f"{d} numbers of u and {f} of v" if self.operation == "rank_one" else f"{width} numbers"
            raise _bad(f"{self.operation} of {self.component} needs {said}; its vector has {len(self.vector)}")

    def canonical(self) -> dict[str, Any]:
        """The form that a digest hashes: numbers as float64 hex, positions sorted and unique, vectors as base64.

        Only what an operation has is written, so `scale` and `set` stand as they did before there were others.
        """
        found: dict[str, Any] = {"component": str(self.component), "operation": self.operation}
        if self.value is not None:
            found["value"] = float(self.value).hex()
        if self.upper is not None:
            found["upper"] = float(self.upper).hex()
        if self.vector is not None:
            found["vector"] = self.vector.base64()
        found["positions"] = None if self.positions is None else sorted(set(self.positions))
        return found

    @classmethod
    def from_json(cls, data: Any) -> Edit:
        """Read `{"component", "operation", "value"?, "upper"?, "positions"?, "vector"?}`.

        `value` and `upper` are numbers or float64 hex ("0x1.8p+1"), `positions` a list of integers, `vector` a list of
        numbers or base64 (see `Vector`).
        """
        needs = "it needs component and operation, and may have value, upper (numbers), positions and vector"
        if not isinstance(data, dict) or not {"component", "operation"} <= data.keys():
            raise _bad(needs)
        unknown = data.keys() - {"component", "operation", "value", "upper", "positions", "vector"}
        if unknown:
            raise _bad(f"{needs}, but not {str(min(unknown, key=str))[:40]!r}")
        value, upper = (_number(name, data.get(name)) for name in ("value", "upper"))
        where = _whole(data.get("positions"))
        vector = data.get("vector")
        if vector is not None:
            vector = Vector.from_base64(vector) if isinstance(vector, str) else Vector.of(vector)
        component = parse_place(str(data["component"]))
        return cls(component, data["operation"], value, where, upper=upper, vector=vector)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it, numbers as JSON numbers: for people and other programs, not for digests."""
        found = self.canonical()
        for name in ("value", "upper"):
            if name in found:
                found[name] = getattr(self, name)
        if self.positions is None:
            del found["positions"]
        return found


def canonical_edits(edits: Iterable[Edit]) -> list[dict[str, Any]]:
    """Edits in the order in which they apply, each in canonical form (order matters: set then scale differs)."""
    return [edit.canonical() for edit in edits]


def _float(value: Any) -> float | None:
    """The finite float64 that a number is; None for what is none."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _number(name: str, value: Any) -> float | None:
    """A number of JSON; as text only in hex, since "10" in decimal digits would be read as 16."""
    if value is None:
        return None
    try:
        if isinstance(value, str) and "0x" in value.lower():
            return float.fromhex(value)
        if not isinstance(value, str | bool):
            return float(value)
    except OverflowError:
        raise _bad(f"{name} is beyond the range of float64") from None
    except (TypeError, ValueError):
        pass
    raise _bad(f"{name} must be a number such as 0.5, not {json.dumps(value, default=str)[:40]}")


def _whole(positions: Any) -> tuple[int, ...] | None:
    if positions is None:
        return None
    if not isinstance(positions, list | tuple) or any(type(position) is not int for position in positions):
        raise _bad("positions must be a list of whole numbers, such as [0, 3], and not of 3.0, 1e3 or text")
    return tuple(positions)


def _said(sorts: tuple[type, ...]) -> str:
    words = {
        Unit: "units",
        Channel: "channels",
        Head: "heads",
        Operand: "operands",
        HeadOperand: "operands of heads",
        QuantifierOperand: "operands of quantifiers",
        Residual: "the residual stream (L5.residual)",
        Down: "a down-projection (L5.down)",
    }
    return ", ".join(words[sort] for sort in sorts)


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The edit is not usable: {reason}.", code="bad_edit")
