"""The rows of the page of sliders: the unedited reading's leading contributors, and what else the edits name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.pages.formula import Piece
from app.pages.reading_view import contributor_formula
from app.pages.tune_form import Controls, OperandControl, typed
from legible_core.config import ModelConfig
from legible_core.reading import Contributor, OperandValue
from legible_core.units import GLYPHS, Channel, Head, HeadOperand, Operand, QuantifierOperand, Unit, parse

ROWS = 12


@dataclass(frozen=True, slots=True)
class ChannelControl:
    """A head's channel with its slider; `value` is what it gathered in the unedited reading, `term` its own term."""

    id: str
    label: str
    value: float
    term: float | None
    scale: float

    @property
    def typed(self) -> str:
        return typed(self.scale)


@dataclass(frozen=True, slots=True)
class Row:
    """A unit, head or channel with its slider; `value` is its term in the unedited reading."""

    id: str
    glyph: str
    value: float | None
    formula: tuple[Piece, ...]
    href: str
    scale: float
    operands: tuple[OperandControl, ...] = ()
    channels: tuple[ChannelControl, ...] = ()

    @property
    def typed(self) -> str:
        return typed(self.scale)


def rows_of(
    top: Sequence[Contributor], controls: Controls, config: ModelConfig, href: Callable[[str], str]
) -> tuple[Row, ...]:
    """The leading contributors, a head with its leading channels, and after them what else the edits name.

    href: the close-up of a unit or head.
    """
    made: list[Row] = []
    shown: set[str] = set()
    for c in top[:ROWS]:
        channels = tuple(_channel(o, controls) for o in c.operands if isinstance(parse(o.id), Channel))
        operands = tuple(
            _operand(o.id, _label(o), o.value, controls)
            for o in c.operands
            if isinstance(parse(o.id), Operand | QuantifierOperand)
        )
        shown |= {c.id, *(o.id for o in operands), *(o.id for o in channels)}
        scale = controls.scales.get(c.id, 1.0)
        made.append(Row(c.id, c.glyph, c.value, contributor_formula(c), href(c.id), scale, operands, channels))
    for id in [*controls.scales, *controls.operands]:
        if id not in shown:
            made.append(_named(id, controls, config, href))
    return tuple(made)


def _named(id: str, controls: Controls, config: ModelConfig, href: Callable[[str], str]) -> Row:
    """The row of a component that only the edits name."""
    match parse(id):
        case Unit(_, unit):
            kind = config.feed_forward.kind(unit)
            return Row(id, GLYPHS[kind], None, (Piece(kind),), href(id), controls.scales[id])
        case Head():
            return Row(id, GLYPHS["head"], None, (Piece("head"),), href(id), controls.scales[id])
        case Channel(layer, head, _):
            return Row(id, GLYPHS["head"], None, (Piece("channel"),), href(str(Head(layer, head))), controls.scales[id])
        case Operand() | HeadOperand() | QuantifierOperand():
            return Row(id, "", None, (Piece("operand"),), "", 1.0, (_operand(id, "", None, controls),))
        case other:
            raise AssertionError(f"no control says {other}")


def _channel(o: OperandValue, controls: Controls) -> ChannelControl:
    return ChannelControl(o.id, _label(o), o.value, o.term, controls.scales.get(o.id, 1.0))


def _operand(id: str, label: str, value: float | None, controls: Controls) -> OperandControl:
    choice, low, high = controls.operands.get(id, ("as read", "", ""))
    return OperandControl(id, label, 0.0 if value is None else value, choice, low, high)


def _label(o: OperandValue) -> str:
    return "" if o.label is None else o.label.text
