"""The panel beside the figure: one head or unit of a reading, from what the reading itself says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.pages.formula import Piece, formula, operand_piece
from app.pages.people import Said
from legible_core.reading import Contributor, DetectToken, Promoted

Why = Callable[[str, int], str]  # the address that says why an operand was on at a position

KIND_NAMES = {
    "intersection": "intersection, A ∩ B = A·B",
    "difference": "difference, A ∖ B = A·(1 − B)",
    "existential": "existential, e = 1 − (1 − m)(1 − λe)",
    "proportion": "proportion, decayed share of the prefix",
    "gelu": "GELU, unbounded: no operands to name",
    "sigmoid": "sigmoid, a membership: its own operand",
    "softplus": "softplus, unbounded above: no operands to name",
    "relu": "ReLU, off at 0 and unbounded above: no operands to name",
    "silu": "SiLU, unbounded above: no operands to name",
    "swiglu": "SwiGLU, SiLU(gate)·up, unbounded: no operands to name",
    "geglu": "GeGLU, GELU(gate)·up, unbounded: no operands to name",
    "head": "attention head",
}


@dataclass(frozen=True, slots=True)
class PanelOperand:
    id: str
    name: Piece
    value: float
    term: float | None
    detect: tuple[DetectToken, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Gathering:
    """What a bounded head finds at one attended token, in one pair: A, B, A∧B and A∧¬B; of a membership `a` alone.

    `a_why` and `b_why` say why the operand was on there. `names` are the operands' labels.
    """

    id: str
    names: Piece
    a: float
    b: float | None
    a_why: str
    b_why: str

    @property
    def both(self) -> float | None:
        return None if self.b is None else self.a * self.b

    @property
    def without(self) -> float | None:
        return None if self.b is None else self.a * (1 - self.b)


@dataclass(frozen=True, slots=True)
class Look:
    """One attended token: where a head looks, and what it finds there, kept apart; `opened` has every number."""

    position: int
    display: str
    weight: float
    term: float
    found: str
    opened: tuple[Gathering, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds of the unit by construction: its range of writes, its order, a quantifier's reach; and their page."""

    write: str
    token: str
    order: str
    reach: str
    href: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`message` says what is missing and why; with `poll` it will come, with `retry` it failed.

    Both are addresses: one to ask again, one to post to.
    """

    id: str
    kind: str
    href: str
    message: str = ""
    fault: bool = False
    retry: str = ""
    poll: str = ""
    glyph: str = ""
    kind_name: str = ""
    value: float = 0.0
    formula: tuple[Piece, ...] = ()
    activation: float | None = None
    decay: float | None = None
    half_life: float | None = None
    cls: str | None = None
    target_rank: int | None = None
    operands_title: str = ""
    operands: tuple[PanelOperand, ...] = ()
    with_terms: bool = False
    promotes: tuple[Promoted, ...] = ()
    looks: tuple[Look, ...] = ()
    gathers: bool = False
    why: str = ""
    limits: Limits | None = None
    people: tuple[Said, ...] = ()
    notes: str = ""


def component_panel(
    c: Contributor,
    href: str,
    *,
    looks: Sequence[Look] = (),
    pieces: tuple[Piece, ...] | None = None,
    why: Callable[[str], str] | None = None,
) -> Panel:
    """The panel of a contributor; `looks` are the attended tokens when it is a head whose pattern is known.

    `why` gives the address that says why one of its operands (or a unit without operands) was on here.
    """
    asked = why if c.kind != "head" else None
    if pieces is None:
        pieces = formula(c.kind, c.operands, c.promotes, c.label, c.half_life)
    return Panel(
        id=c.id,
        kind=c.kind,
        href=href,
        glyph=c.glyph,
        kind_name=KIND_NAMES.get(c.kind, c.kind),
        value=c.value,
        formula=pieces,
        activation=c.activation,
        decay=c.decay,
        half_life=c.half_life,
        cls=c.cls,
        target_rank=c.target_rank,
        operands_title="Strongest channels" if c.kind == "head" else "Operands here",
        operands=tuple(
            PanelOperand(o.id, operand_piece(o), o.value, o.term, _detect(o), asked(o.id) if asked else "")
            for o in c.operands
        ),
        with_terms=any(o.term is not None for o in c.operands),
        promotes=promoted(c.promotes),
        looks=tuple(looks),
        gathers=any(look.found for look in looks),
        why=asked(c.id) if asked and not c.operands else "",
    )


def promoted(tokens: Sequence[Promoted]) -> tuple[Promoted, ...]:
    """The first ten that are raised at all: in a small vocabulary the list may run on into tokens that are lowered."""
    return tuple(token for token in tokens if token.weight > 0)[:10]


def _detect(operand: Any) -> tuple[DetectToken, ...]:
    # Where there is no label the leading tokens are the name already.
    return tuple(operand.detect[:6]) if operand.label is not None else tuple(operand.detect[3:8])
