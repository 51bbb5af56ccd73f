"""What a name says: labels, evidence, and the formula of a component; imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from legible_core.legibility import Legibility
from legible_core.units import GLYPHS

UNNAMED = "?"
# What stands before the name of a part of an ordinary model.
GUESS = "≈"
# ON at more of the tokens than this, an operand is no detector of what its list holds (docs/names.md).
MOSTLY, NEARLY_ALWAYS = 0.5, 0.9


@dataclass(frozen=True)
class Label:
    """A short label with its evidence.

    kind "class": `n` of the list's `of` leading tokens, carrying `share` of their weight, are in the class; a
    frequency-matched draw has as many with an adjusted p-value of `q`.
    kind "tokens": no class passed; the three leading tokens, quoted, and nothing is claimed.
    kind "state": the operand is CONSTANT, so it is not a detector: "always" or "never" or a level.
    """

    text: str
    kind: str
    q: float | None = None
    n: int | None = None
    of: int | None = None
    share: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TokenEvidence:
    """A token of a detect list: ON at `count` of its occurrences, a `share` of them, `lift` times the base rate."""

    id: int
    display: str
    lift: float
    count: int
    share: float


@dataclass(frozen=True)
class Promotion:
    """A token of a promote list: `weight` is the centred logit that one unit of activation adds, before 1/std(x)."""

    id: int
    display: str
    weight: float


@dataclass(frozen=True)
class OperandName:
    """The detect side of an operand. Shares are of the scanned tokens; `agreement` is of text the list never saw.

    length: how many tokens the whole list holds; `detect` shows the leading ones. agreement: None when undefined.
    """

    id: str
    label: Label | None
    detect: tuple[TokenEvidence, ...]
    length: int
    agreement: float | None
    mean: float
    variance: float
    crisp: float
    on: float
    cls: Legibility
    histogram: tuple[float, ...]

    @property
    def mostly_on(self) -> str | None:
        """What stands beside the name of an operand that is ON at more than half of the tokens, else None."""
        return mostly_on(self.on, constant=self.cls == Legibility.CONSTANT)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"mostly_on": self.mostly_on}


@dataclass(frozen=True)
class ComponentName:
    """The name of a unit or of a bounded head's channel.

    label: of its promote list. formula: `operand op operand → promotes`. operands: ids, in the order of the formula.
    cls: a channel's own class; a unit's after its operands (SELECTIVE or CONSTANT when all of them are, else FUZZY).
    The statistics are of the component's own value; all of them, and cls, are None for units without rails.
    """

    id: str
    kind: str
    formula: str
    label: Label | None
    operands: tuple[str, ...]
    operand_labels: tuple[Label | None, ...]
    promotes: tuple[Promotion, ...]
    rare: tuple[Promotion, ...]
    cls: Legibility | None
    mean: float | None
    variance: float | None
    crisp: float | None
    on: float | None
    decay: float | None = None
    half_life: float | None = None

    @property
    def promote(self) -> list[tuple[int, float]]:
        """The promote list as (token id, weight) pairs."""
        return [(token.id, token.weight) for token in self.promotes]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def mostly_on(on: float | None, *, constant: bool = False) -> str | None:
    """`mostly ON, 62 %` of a share over ½ and `nearly always ON, 93 %` of one over 0.9; None of others.

    None too of a `constant` operand, which claims no tokens: its name is `always`, `never` or a level. A share under 1
    is never rounded up to it.
    """
    if on is None or constant or not on > MOSTLY:
        return None
    words = "nearly always" if on > NEARLY_ALWAYS else "mostly"
    return f"{words} ON, {min(round(100 * on), 99) if on < 1 else 100} %"


def formula_of(kind: str, operands: tuple[Label | None, ...], half_life: float | None, promotes: Label | None) -> str:
    """`determiner ∖ determiner → superlative`; `∃ comparative (1.5 tok) → than`; `h` and `g` read no two operands."""
    names = [UNNAMED if label is None else label.text for label in operands]
    after = UNNAMED if promotes is None else promotes.text
    if kind in ("intersection", "difference"):
        before = f"{names[0]} {GLYPHS[kind]} {names[1]}"
    elif half_life is not None:
        before = f"{GLYPHS[kind]} {names[0]} ({tokens_text(half_life)})"
    else:
        before = names[0] if names else GLYPHS.get(kind, kind)
        before = f"{GLYPHS[kind]} {before}" if kind == "sigmoid" else before
    return f"{before} → {after}"


def tokens_text(half_life: float) -> str:
    """A half-life for people: `1.5 tok`, `34 tok`, `∞ tok`."""
    if math.isinf(half_life):
        return "∞ tok"
    return f"{half_life:.1f} tok" if half_life < 10 else f"{half_life:.0f} tok"
