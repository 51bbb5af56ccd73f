"""What stands above an edited reading: its edits, each linked to what it names, and the way to the unedited reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.urls import Urls
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.reading import Summary, digest
from legible_core.units import Channel, Down, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit

LISTED = 40
LONGEST = 60


@dataclass(frozen=True, slots=True)
class EditLink:
    """An edit in its short form, and the panel of the unit or head that it names, where there is one."""

    text: str
    href: str | None


@dataclass(frozen=True, slots=True)
class Edited:
    """The banner of an edited reading; `more` edits are not listed."""

    edits: tuple[EditLink, ...]
    more: int
    plain: str
    compare: str


def edited_of(urls: Urls, slug: str, summary: Summary, query: dict[str, Any]) -> Edited | None:
    """The banner of a reading at this address; None for an unedited one."""
    if not summary.edits:
        return None
    edits = [Edit.from_json(edit) for edit in summary.edits]
    where = {name: value for name, value in query.items() if name not in ("component", "revision")}
    plain = digest(summary.checkpoint.hash, [token.id for token in summary.tokens], (), summary.dtype)
    unedited = urls.reading(slug, plain, **where)
    links = tuple(EditLink(_short(edit), _panel(urls, slug, summary.digest, where, edit)) for edit in edits[:LISTED])
    compare = urls.compare(left=unedited, right=urls.reading(slug, summary.digest, **where))
    return Edited(links, len(edits) - len(links), unedited, compare)


def _panel(urls: Urls, slug: str, edited: str, where: dict[str, Any], edit: Edit) -> str | None:
    match edit.component:
        case Unit() | Head():
            shown = str(edit.component)
        case Channel(layer, head, _) | HeadOperand(layer, head, _, _):
            shown = str(Head(layer, head))
        case Operand(layer, pair, _):
            shown = str(Unit(layer, pair))
        case QuantifierOperand(layer, unit):
            shown = str(Unit(layer, unit))
        case Residual() | Down():
            return None
    return urls.reading(slug, edited, **where, component=shown)


def _short(edit: Edit) -> str:
    text = edit_text(edit)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
