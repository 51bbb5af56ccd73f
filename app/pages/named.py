"""The names of a checkpoint as pages use them: loaded once, turned into rows and formula pieces; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.pages.formula import GUESS, Piece, active_piece, evidence, formula, operand_piece, promote_piece
from legible_core.errors import LegibleError, NotFound
from legible_core.legibility import Legibility
from legible_core.naming.names import ARRAYS, JSON, ComponentName, Names, OperandName
from legible_core.registry import Checkpoint
from legible_core.units import GLYPHS, Channel, Component, Unit, parse

UNSCANNED = "No scan has named this checkpoint yet; `legible scan {slug} --corpus FILE` does."
ORDINARY = (
    "No scan has looked at this model's units yet; `legible scan {slug} --corpus FILE` does. "
    "Until then what they promote is guessed in each reading, marked ≈."
)
HALF = (
    "Half of a scan's result lies in this model's folder, {there} without {missing}, so no names are used; "
    "put the other file back, or `legible scan {slug} --corpus FILE` makes both."
)
STALE = (
    "The names in this model's folder belong to other weights, so they are not used; "
    "`legible scan {slug} --corpus FILE` makes its own."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A unit or channel in a table. `crisp` is the least of its operands', `on` its own; None where undefined.

    mean, most, above: of an ordinary model's unit, mean, maximum, and the share of tokens on which it is above 0.
    """

    id: str
    index: int
    kind: str
    glyph: str
    formula: tuple[Piece, ...]
    label: str | None
    cls: str | None
    crisp: float | None
    on: float | None
    agreement: float | None
    half_life: float | None
    nameable: bool
    mean: float | None = None
    most: float | None = None
    above: float | None = None


def names_of(checkpoint: Checkpoint) -> tuple[Names | None, str | None]:
    """The names beside a checkpoint, or the sentence that says why there are none."""
    try:
        stamps = tuple((checkpoint.path / name).stat().st_mtime_ns for name in (JSON, ARRAYS))
    except OSError:
        return None, _missing(checkpoint)
    try:
        names = _load(checkpoint.path, checkpoint.hash, stamps)
    except LegibleError as error:
        return None, f"The names of this checkpoint cannot be used: {error.message.rstrip('.')}."
    return names, None if names is not None else STALE.format(slug=checkpoint.slug)


def _missing(checkpoint: Checkpoint) -> str:
    if (state := checkpoint.names_state) in (JSON, ARRAYS):
        return HALF.format(slug=checkpoint.slug, there=state, missing=ARRAYS if state == JSON else JSON)
    return (ORDINARY if checkpoint.ordinary else UNSCANNED).format(slug=checkpoint.slug)


@lru_cache(maxsize=4)
def _load(path: Path, checkpoint_hash: str, _stamps: tuple[int, ...]) -> Names | None:
    return Names.load(path, checkpoint_hash=checkpoint_hash)


@lru_cache(maxsize=64)
def unit_rows(names: Names, layer: int) -> tuple[Row, ...]:
    """Every unit of a layer."""
    return tuple(_row(names, component, i) for i, component in enumerate(names.units(layer)))


@lru_cache(maxsize=64)
def channel_rows(names: Names, layer: int, head: int) -> tuple[Row, ...]:
    """Every channel of a bounded head; nothing for a linear one."""
    return tuple(_row(names, component, i) for i, component in enumerate(names.channels(layer, head)))


def component_of(names: Names | None, component: Unit | Channel) -> ComponentName | None:
    """The name of a unit or channel, None where there is none."""
    if names is None:
        return None
    try:
        return names.component(component)
    except NotFound:
        return None


def operands_of(names: Names, component: ComponentName, shown: int = 24) -> tuple[OperandName, ...]:
    """The names of a component's operands, in the order of its formula."""
    return tuple(names.operand(parse(operand), shown) for operand in component.operands)


def notes_of(checkpoint: Checkpoint, component: str) -> tuple[str | None, ...]:
    """What must be seen beside the names of a component's operands: that one is ON at most tokens; () without names."""
    names, _ = names_of(checkpoint)
    found = parse(component)
    name = component_of(names, found) if isinstance(found, Unit | Channel) else None
    if names is None or name is None or names.plain is not None:
        return ()
    return tuple(operand.mostly_on for operand in operands_of(names, name, 0))


def pieces_of(names: Names, component: ComponentName, shown: int = 5) -> tuple[Piece, ...]:
    """A component's formula with the evidence of each piece; an ordinary unit's name, marked as a guess."""
    if names.plain is not None:
        found = guess_of(names, component)
        return () if found is None else found
    operands = operands_of(names, component, shown)
    return formula(component.kind, operands, component.promotes, component.label, component.half_life)


def guess_of(names: Names, component: ComponentName) -> tuple[Piece, ...] | None:
    """What an ordinary unit is most active on, and what it promotes; None for what has no values."""
    unit = parse(component.id)
    if names.plain is None or not isinstance(unit, Unit):
        return None
    detects, promotes = active_piece(names.plain.unit(unit, 5)), promote_piece(component.promotes, component.label)
    after = () if promotes is None else (Piece("→", operator=True), promotes)
    return (GUESS, detects, *after)


def channel_piece(names: Names | None, channel: str) -> Piece:
    """A channel in few words: its operands' labels around its operation, or its number where no scan named it."""
    number = Piece(channel.rpartition(".")[2], token=True)
    component = parse(channel)
    name = component_of(names, component) if isinstance(component, Channel) else None
    if names is None or name is None:
        return number
    glyph = GLYPHS.get(name.kind, "")
    operands = operands_of(names, name, 5)
    words = [_short_label(operand) for operand in operands]
    said = "; ".join(evidence(operand) for operand in operands)
    return Piece(f" {glyph} ".join(words), measured=True, evidence=f"{channel}: {said}")


def pair_piece(names: Names | None, pair: str) -> Piece:
    """A Boolean head's pair such as L5.h2.p3: the labels of its A and B, or their places where no scan named them."""
    if names is None:
        return Piece("A, B", token=True)
    operands = [names.operand(parse(f"{pair}.{side}"), 5) for side in "AB"]
    said = "; ".join(evidence(operand) for operand in operands)
    return Piece(", ".join(_short_label(operand) for operand in operands), measured=True, evidence=said)


def operand_word(names: Names | None, operand: Component) -> Piece | None:
    """The label of one operand with its evidence; None where no scan named it."""
    try:
        return None if names is None else operand_piece(names.operand(operand, 5))
    except NotFound:
        return None


def _short_label(operand: OperandName) -> str:
    if operand.label is not None and operand.label.kind != "tokens":
        word = operand.label.text
    elif operand.detect:
        word = f"“{operand.detect[0].display}”"
    else:
        return operand.id.rpartition(".h")[2].partition(".")[2]
    return f"{word} ({operand.mostly_on})" if operand.mostly_on else word


def _row(names: Names, component: ComponentName, index: int) -> Row:
    operands = operands_of(names, component, 3)
    agreements = [o.agreement for o in operands if o.agreement is not None]
    crisp = min((o.crisp for o in operands), default=None)
    agreement = min(agreements) if operands and len(agreements) == len(operands) else None
    alive = bool(operands) and all(o.cls != Legibility.CONSTANT and 0.005 <= o.on <= 0.2 for o in operands)
    return Row(
        id=component.id,
        index=index,
        kind=component.kind,
        glyph=GLYPHS.get(component.kind, "h"),
        formula=formula(component.kind, operands, component.promotes, component.label, component.half_life),
        label=component.label.text if component.label is not None else None,
        cls=str(component.cls) if component.cls is not None else None,
        crisp=crisp,
        on=component.on,
        agreement=agreement,
        half_life=component.half_life,
        nameable=alive and agreement is not None and agreement >= 0.8,
    )
