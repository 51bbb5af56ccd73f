"""Edits as short text, for the command line and for addresses; imports no torch.

    L5.u263:scale=0.5        L5.u263:zero            L5.p3.A:flip          L5.u3:clamp=0,0.2@3,5
    L5.residual:add=2~AACAPw==@3      (after ~ a vector: base64 of little-endian float32)
    L2.h1:mean~AACAPw==

`component:operation=value,upper~vector@positions`; what an operation does not have is left out. `edit_text` and
`parse_edit` are inverse to each other, to the last bit of every number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.units import parse_place

# Numbers as JSON and every editor of tables write them; `float` would take 1_000 and the digits of other scripts too.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_FORM = re.compile(
    r"(?P<component>[^:=~@]+):(?P<operation>[a-z_]+)(?:=(?P<numbers>[^~@]*))?(?:~(?P<vector>[^@]*))?(?:@(?P<at>.*))?"
)


def edit_text(edit: Edit) -> str:
    """The edit in the short form that `parse_edit` reads."""
    numbers = [value for value in (edit.value, edit.upper) if value is not None]
    text = f"{edit.component}:{edit.operation}"
    if numbers:
        text += "=" + ",".join(_shown(value) for value in numbers)
    if edit.vector is not None:
        text += "~" + edit.vector.base64()
    if edit.positions is not None:
        text += "@" + ",".join(str(position) for position in sorted(set(edit.positions)))
    return text


def parse_edit(text: str) -> Edit:
    """Read the short form; raises `LegibleError` in one sentence, with examples, for what is none."""
    match = _FORM.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        numbers = [] if match["numbers"] is None else [number(part) for part in match["numbers"].split(",")]
        at = None if match["at"] is None else tuple(_position(part) for part in match["at"].split(","))
        if len(numbers) > 2:
            raise ValueError
    except ValueError:
        raise LegibleError(
            f"{text[:80]!r} is no edit; write it as L5.u263:scale=0.5, L5.u263:zero, L5.p3.A:flip or "
            "L5.u3:clamp=0,0.2@3,5 (after @ the positions).",
            code="bad_edit",
        ) from None
    value, upper = [*numbers, None, None][:2]
    vector = None if match["vector"] is None else Vector.from_base64(match["vector"])
    component: Any = parse_place(match["component"])
    operation: Any = match["operation"]
    return Edit(component, operation, value, at, upper=upper, vector=vector)


def edits_from_json(text: str) -> tuple[Edit, ...]:
    """Edits of a JSON file: a list whose items are objects (see `Edit.from_json`) or short texts."""
    asked = 'edits in JSON are a list of edits, such as ["L5.u263:zero"]'
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"The edits are no JSON that can be read (line {error.lineno}, column {error.colno})"
        raise LegibleError(f"{reason}; {asked}.", code="bad_edit") from None
    except ValueError:  # an integer of more digits than Python reads
        raise LegibleError(
            "A number in the edits has thousands of digits; give one within the range of float64, such as 0.5 or 1e3.",
            code="bad_edit",
        ) from None
    except RecursionError:
        raise LegibleError(f"The edits are nested too deeply; {asked}.", code="bad_edit") from None
    if isinstance(data, dict):
        raise LegibleError(f"The edits are a single object; put it into a list: {asked}.", code="bad_edit")
    if not isinstance(data, list):
        raise LegibleError(f"{asked[0].upper()}{asked[1:]}.", code="bad_edit")
    return tuple(parse_edit(item) if isinstance(item, str) else Edit.from_json(item) for item in data)


def as_edits(edits: Iterable[Edit | str]) -> tuple[Edit, ...]:
    """Edits given as such or in their short form."""
    return tuple(parse_edit(edit) if isinstance(edit, str) else edit for edit in edits)


def edits_of_field(text: str) -> tuple[Edit, ...]:
    """Edits typed into one field: JSON, or short texts one a line (or parted by blanks)."""
    # No short text begins with a brace: an object alone is JSON too, and its error says what is missing.
    return edits_from_json(text) if text.lstrip().startswith(("[", "{")) else as_edits(text.split())


def number(text: str) -> float:
    """A number as it is typed, in ASCII digits without separators; raises `ValueError` for anything else.

    "nan" and "inf" are read, so that `Edit` can say what is wrong with them.
    """
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError("no number")
    return float(text)


def _shown(value: float) -> str:
    text = repr(float(value))
    return text.removesuffix(".0")


def _position(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,7}\s*", text):
        raise ValueError("no position")
    return int(text)
