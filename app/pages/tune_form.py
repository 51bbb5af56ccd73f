"""Edits as controls of a form, and its fields as edits: sliders for units, heads and channels, choices for operands.

What no control can say (a replaced row, an added direction, an edit of other positions) is carried along as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.pages.forms import known_fields, one_of
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text, edits_of_field, number, parse_edit
from legible_core.units import Channel, Head, HeadOperand, Operand, QuantifierOperand, Unit

CHOICES = ("as read", "flip", "set", "clamp")
SLIDER_MAX = 4.0
# Beside the controls: where the sliders stand, what they hold for, and whether they rest.
FIELDS = ("position", "target", "scope", "rest", "resting")
_ID = re.compile(r"(scale|choice|low|high):(L[0-9.a-zA-Z]{1,30})")


@dataclass(frozen=True, slots=True)
class OperandControl:
    """An operand with its value in the unedited reading and what the edits do to it."""

    id: str
    label: str
    value: float
    choice: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Controls:
    """What the edits say of the page's components; `rest` are those that no control shows."""

    scales: dict[str, float]
    operands: dict[str, tuple[str, str, str]]
    here: bool
    rest: tuple[str, ...]


def controls_of(edits: Sequence[Edit], position: int) -> Controls:
    """The controls that stand for `edits`; those of one scope (everywhere, or the read position) share the form."""
    scopes = [edit.positions for edit in edits if _simple(edit) and edit.positions in (None, (position,))]
    here = bool(scopes) and scopes[0] is not None
    scope = (position,) if here else None
    scales: dict[str, float] = {}
    operands: dict[str, tuple[str, str, str]] = {}
    rest: list[str] = []
    for edit in edits:
        id = str(edit.component)
        if not _simple(edit) or edit.positions != scope or id in scales or id in operands:
            rest.append(edit_text(edit))
        elif isinstance(edit.component, Unit | Head | Channel):
            scales[id] = 0.0 if edit.value is None else edit.value
        else:
            operands[id] = (edit.operation, typed(edit.value), typed(edit.upper))
    return Controls(scales, operands, here, tuple(rest))


def edits_of_form(fields: Mapping[str, str], position: int) -> tuple[Edit, ...]:
    """The edits that a filled-in form means; raises `LegibleError` naming the control whose value is unusable."""
    scope = one_of("scope", fields.get("scope", ""), {"": None, "all": None, "here": (position,)})
    one_of("resting", fields.get("resting", ""), dict.fromkeys(("", "1")))
    edits = list(edits_of_field(fields.get("rest", "")))
    for name, text in fields.items():
        found = _ID.fullmatch(name)
        if found is None:
            known_fields("Tuning", [name], (*FIELDS, "scale:ID", "choice:ID", "low:ID", "high:ID"))
            continue
        sort, id = found.groups()
        if sort == "choice":
            one_of(name, text, dict.fromkeys(("", *CHOICES)))
        if sort == "scale" and text.strip() and _number(text, id) != 1.0:
            edits.append(_edit(id, f"scale={_number(text, id)!r}", scope))
        elif sort == "choice" and text == "flip":
            edits.append(_edit(id, "flip", scope))
        elif sort == "choice" and text == "set":
            edits.append(_edit(id, f"set={_number(fields.get(f'low:{id}', ''), id)!r}", scope))
        elif sort == "choice" and text == "clamp":
            low, high = (_number(fields.get(f"{end}:{id}", ""), id) for end in ("low", "high"))
            edits.append(_edit(id, f"clamp={low!r},{high!r}", scope))
    return tuple(edits)


def _simple(edit: Edit) -> bool:
    """Whether a control can say it."""
    if isinstance(edit.component, Unit | Head | Channel):
        return edit.operation == "scale"
    operand = isinstance(edit.component, Operand | HeadOperand | QuantifierOperand)
    return operand and edit.operation in ("flip", "set", "clamp")


def _edit(id: str, operation: str, scope: tuple[int, ...] | None) -> Edit:
    return parse_edit(f"{id}:{operation}" + ("" if scope is None else f"@{scope[0]}"))


def _number(text: str, id: str) -> float:
    try:
        return number(text)
    except ValueError:
        raise LegibleError(
            f"The number {text[:20]!r} for {id} is no number; give one such as 0.5 or 1e3, in the digits 0 to 9.",
            code="bad_edit",
        ) from None


def typed(value: float | None) -> str:
    """A number as a field holds it: to the last bit, so that what is shared again is the same edit."""
    return "" if value is None else repr(value).removesuffix(".0")
