"""Names as formulas: the pieces of `determiner ∖ determiner → superlative`, each with its evidence.

What is read off the weights is upright; what was measured on data is italic and carries its evidence as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legible_core.naming.records import mostly_on
from legible_core.units import GLYPHS, PLAIN_NAMES


@dataclass(frozen=True, slots=True)
class Piece:
    """A word of a formula. `evidence` is what hovering or focusing says; `operator` pieces are glyphs and arrows.

    note: what must be seen beside the word, so that it claims no more than it may: `nearly always ON, 93 %`.
    """

    text: str
    measured: bool = False
    evidence: str | None = None
    operator: bool = False
    token: bool = False
    note: str | None = None


# What stands before the name of a part of an ordinary model.
GUESS = Piece("≈", evidence="a guess: nothing makes a part of an ordinary model mean this", operator=True)


def formula(
    kind: str, operands: Sequence[Any], promotes: Sequence[Any], label: Any = None, half_life: float | None = None
) -> tuple[Piece, ...]:
    """The formula of a component of this kind.

    `operands` have `id`, `label` and `detect`, `promotes` have `display` and `weight`, as in a reading's JSON.
    """
    pieces: list[Piece] = []
    glyph = GLYPHS.get(kind, "")
    if kind in ("intersection", "difference") and len(operands) == 2:
        pieces += [operand_piece(operands[0]), Piece(glyph, operator=True), operand_piece(operands[1])]
    elif kind in ("existential", "proportion") and operands:
        pieces += [Piece(glyph, operator=True), operand_piece(operands[0])]
        if half_life is not None:
            pieces.append(Piece(f"({tokens(half_life)})"))
    elif operands:
        pieces += [Piece(glyph, operator=True)] if kind == "sigmoid" else []
        pieces.append(operand_piece(operands[0]))
    else:
        pieces.append(Piece(PLAIN_NAMES.get(kind, kind)))
    promoted = promote_piece(promotes, label)
    if promoted is not None:
        pieces += [Piece("→", operator=True), promoted]
    return tuple(pieces)


def plain(pieces: Sequence[Piece]) -> str:
    """The formula as text, for titles, CSV and tables that name nothing else."""
    return " ".join(piece.text + (f" ({piece.note})" if piece.note else "") for piece in pieces)


def operand_piece(operand: Any) -> Piece:
    """The name of an operand: its label, else its leading tokens in quotes, else its id."""
    label, detect, note = operand.label, operand.detect, note_of(operand)
    if label is not None:
        return Piece(label.text, measured=True, evidence=evidence(operand), note=note)
    if detect:
        return Piece(quoted(detect[:3]), measured=True, evidence=evidence(operand), token=True, note=note)
    return Piece(operand.id, token=True, evidence=None)


def note_of(operand: Any) -> str | None:
    """That an operand is ON at most tokens, where it is: its leading tokens are then not what it detects."""
    label = operand.label
    return mostly_on(getattr(operand, "on", None), constant=label is not None and label.kind == "state")


def active_piece(values: Any) -> Piece:
    """What an ordinary unit is most active on: the label of its detect list, else its leading tokens, else “?”."""
    if not values.detect:
        return Piece("?", measured=True, evidence="measured on data; no token stands out among its strongest positions")
    listed = ", ".join(f"{d.display} (lift {d.lift:.1f}, n {d.count})" for d in values.detect[:5])
    parts = [f"measured on data; strongest at {listed}"]
    if values.agreement is not None:
        parts.append(f"agreement {values.agreement:.2f} on unseen text")
    label = values.label
    if label is not None and label.q is not None:
        parts.insert(1, f"q = {label.q:.1g} over {label.n} tokens")
        return Piece(label.text, measured=True, evidence="; ".join(parts))
    return Piece(quoted(values.detect[:3]), measured=True, evidence="; ".join(parts), token=True)


def promote_piece(promotes: Sequence[Any], label: Any) -> Piece | None:
    """The name of a write column: its label, else its leading tokens in quotes."""
    shown = ", ".join(f"{p.display} {p.weight:+.2f}".replace("-", "−") for p in promotes[:10])
    said = f"read off the weights; promotes {shown}" if shown else None
    if label is not None:
        return Piece(label.text, evidence=_with_label(said, label))
    return Piece(quoted(promotes[:3]), evidence=said, token=True) if promotes else None


def evidence(operand: Any) -> str:
    """Why an operand has its name: class test, agreement on unseen text, and the tokens it is decisively ON at."""
    label = operand.label
    parts = [f"measured on data; {operand.id}"]
    agreement = getattr(label, "agreement", None) if label is not None else None
    if agreement is None:
        agreement = getattr(operand, "agreement", None)
    if label is not None and label.q is not None:
        parts.append(f"q = {label.q:.1g}" + (f" over {label.n} tokens" if label.n is not None else ""))
    if agreement is not None:
        parts.append(f"agreement {agreement:.2f} on unseen text")
    note = note_of(operand)
    if note is not None:
        parts.append(f"{note} of all tokens: no detector of those of its list")
    if operand.detect:
        listed = ", ".join(f"{d.display} (lift {d.lift:.1f}, n {d.count})" for d in operand.detect[:5])
        parts.append(f"ON at {listed}")
    return "; ".join(parts)


def quoted(items: Sequence[Any]) -> str:
    """The three leading tokens, quoted: what stands for a label where no class passes the test."""
    return " ".join(f"“{item.display}”" for item in items)


def tokens(half_life: float) -> str:
    """A half-life: 1.5 tok, 34 tok, ∞ tok."""
    if half_life > 99_999:
        return "∞ tok"
    return f"{half_life:.1f} tok" if half_life < 10 else f"{half_life:.0f} tok"


def _with_label(said: str | None, label: Any) -> str | None:
    if label.q is None:
        return said
    test = f"label: q = {label.q:.1g}" + (f" over {label.n} tokens" if label.n is not None else "")
    return f"{said}; {test}" if said else test
