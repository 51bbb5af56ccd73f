"""Component ids: one place that parses, formats and orders them.

Every page, JSON document, name and edit refers to a part of a model by one of these values. `str(component)` and
`parse(text)` are inverse to each other.

    L6.h4          head              L6.h4.c48     channel (one coordinate of the head's value)
    L11.u39        unit              L11.p39.A     operand of a feed-forward pair
    L6.h4.p3.B     operand of a Boolean head's pair
    L3.u900.m      operand of a quantifier
    embed.token    a part of the floor (embeddings and biases)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from legible_core.errors import LegibleError

# A plain unit is one activation of one read row, and its kind is the activation's name.
Activation: TypeAlias = Literal["gelu", "sigmoid", "softplus", "relu"]
ACTIVATIONS: tuple[Activation, ...] = ("gelu", "sigmoid", "softplus", "relu")
# What only ordinary models have; a gated unit is act(gate)·up, one number with one write column like any other.
Ordinary: TypeAlias = Literal["silu", "swiglu", "geglu"]
ORDINARY: tuple[Ordinary, ...] = ("silu", "swiglu", "geglu")
Kind: TypeAlias = Literal["intersection", "difference", "existential", "proportion"] | Activation | Ordinary
KINDS: tuple[Kind, ...] = ("intersection", "difference", "existential", "proportion", *ACTIVATIONS, *ORDINARY)
PLAIN_NAMES: dict[str, str] = {
    "gelu": "GELU", "sigmoid": "sigmoid", "softplus": "softplus", "relu": "ReLU", "silu": "SiLU", "swiglu": "SwiGLU",
    "geglu": "GeGLU",
}  # fmt: skip
# Kinds whose value has rails, so that it can be ON, crisp, SELECTIVE; of the others all that is undefined.
BOUNDED: frozenset[str] = frozenset(KINDS) - {"gelu", "softplus", "relu", *ORDINARY}
GLYPHS: dict[str, str] = {
    "intersection": "∩",
    "difference": "∖",
    "existential": "∃",
    "proportion": "%",
    "gelu": "g",
    "sigmoid": "σ",
    "softplus": "s",
    "relu": "r",
    "silu": "i",
    "swiglu": "w",
    "geglu": "e",
    "head": "h",
}
Side: TypeAlias = Literal["A", "B"]


@dataclass(frozen=True)
class Head:
    """Attention head `L<layer>.h<head>`."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}.h{self.head}"


@dataclass(frozen=True)
class Channel:
    """One coordinate of a head's value, `L<layer>.h<head>.c<channel>`."""

    layer: int
    head: int
    channel: int

    def __str__(self) -> str:
        return f"L{self.layer}.h{self.head}.c{self.channel}"


@dataclass(frozen=True)
class Unit:
    """One coordinate of the feed-forward hidden vector, `L<layer>.u<unit>`."""

    layer: int
    unit: int

    def __str__(self) -> str:
        return f"L{self.layer}.u{self.unit}"


@dataclass(frozen=True)
class Operand:
    """Operand A or B of a feed-forward pair, `L<layer>.p<pair>.<side>`."""

    layer: int
    pair: int
    side: Side

    def __str__(self) -> str:
        return f"L{self.layer}.p{self.pair}.{self.side}"


@dataclass(frozen=True)
class HeadOperand:
    """Operand A or B of a pair inside a Boolean head, `L<layer>.h<head>.p<pair>.<side>`."""

    layer: int
    head: int
    pair: int
    side: Side

    def __str__(self) -> str:
        return f"L{self.layer}.h{self.head}.p{self.pair}.{self.side}"


@dataclass(frozen=True)
class QuantifierOperand:
    """The membership m that a quantifier gathers, `L<layer>.u<unit>.m`; the number is the unit's."""

    layer: int
    unit: int

    def __str__(self) -> str:
        return f"L{self.layer}.u{self.unit}.m"


@dataclass(frozen=True)
class Floor:
    """A part of the floor: `embed.token`, `embed.position`, `L<n>.attention.bias`, `norm.bias`, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Residual:
    """The residual stream entering a layer, `L<layer>.residual`; the last number is the stream before the final norm.

    Nothing with a term of its own, so no `Component`: a place where an edit adds a direction.
    """

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}.residual"


@dataclass(frozen=True)
class Down:
    """A layer's down-projection as a whole, `L<layer>.down`: where an edit adds a matrix of rank one."""

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}.down"


Component: TypeAlias = Head | Channel | Unit | Operand | HeadOperand | QuantifierOperand | Floor

# No leading zeros: an id has one spelling, because it is part of addresses and digests.
_N = r"(0|[1-9][0-9]{0,5})"


def _side(text: str) -> Side:
    return "A" if text == "A" else "B"


_FORMS: tuple[tuple[re.Pattern[str], Callable[..., Component]], ...] = (
    (re.compile(rf"L{_N}\.h{_N}"), lambda a, b: Head(int(a), int(b))),
    (re.compile(rf"L{_N}\.h{_N}\.c{_N}"), lambda a, b, c: Channel(int(a), int(b), int(c))),
    (re.compile(rf"L{_N}\.u{_N}"), lambda a, b: Unit(int(a), int(b))),
    (re.compile(rf"L{_N}\.p{_N}\.([AB])"), lambda a, b, s: Operand(int(a), int(b), _side(s))),
    (
        re.compile(rf"L{_N}\.h{_N}\.p{_N}\.([AB])"),
        lambda a, b, c, s: HeadOperand(int(a), int(b), int(c), _side(s)),
    ),
    (re.compile(rf"L{_N}\.u{_N}\.m"), lambda a, b: QuantifierOperand(int(a), int(b))),
)
_FLOOR = re.compile(rf"embed\.(?:token|position)|norm\.bias|unembedding\.bias|L{_N}\.(?:attention|feed_forward)\.bias")


def parse(text: str) -> Component:
    """Read an id; raises `LegibleError` naming the forms that exist when it is none of them."""
    for pattern, make in _FORMS:
        match = pattern.fullmatch(text)
        if match:
            return make(*match.groups())
    if _FLOOR.fullmatch(text):
        return Floor(text)
    raise LegibleError(
        f"{text[:80]!r} is no component id; the forms are L6.h4 (head), L6.h4.c48 (channel), L11.u39 (unit), "
        "L11.p39.A (operand), L6.h4.p3.B (operand of a head), L3.u900.m (operand of a quantifier).",
        code="bad_component",
    )


_PLACES: tuple[tuple[re.Pattern[str], type[Residual] | type[Down]], ...] = (
    (re.compile(rf"L{_N}\.residual"), Residual),
    (re.compile(rf"L{_N}\.down"), Down),
)


def parse_place(text: str) -> Component | Residual | Down:
    """As `parse`, and also `L5.residual` and `L5.down`, which only edits name."""
    for pattern, make in _PLACES:
        match = pattern.fullmatch(text)
        if match:
            return make(int(match[1]))
    return parse(text)


def sort_key(component: Component) -> tuple[int, int, tuple[int, ...], str]:
    """Order of reading: floor, then by layer; within a layer heads, channels, head operands, units, operands."""
    match component:
        case Floor(name):
            return (-1, 0, (), name)
        case Head(layer, head):
            return (layer, 0, (head,), "")
        case Channel(layer, head, channel):
            return (layer, 1, (head, channel), "")
        case HeadOperand(layer, head, pair, side):
            return (layer, 2, (head, pair), side)
        case Unit(layer, unit):
            return (layer, 3, (unit,), "")
        case Operand(layer, pair, side):
            return (layer, 4, (pair,), side)
        case QuantifierOperand(layer, unit):
            return (layer, 5, (unit,), "m")
