"""A reading inside another page: `?embed=figure,table` shows those parts alone, for an <iframe>.

An embed has links but no form, no button and no script, so there is nothing in it that a click could be tricked into
(clickjacking). It is the only page that may be framed at all, by whom the setting `embed_from` says; it asks for no
work, so a foreign page cannot make this server compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from app.pages.reading_view import ReadingPage
from app.pages.view import html
from app.settings import Settings
from legible_core.errors import LegibleError

PARTS = ("prompt", "figure", "table", "sum")


@dataclass(frozen=True, slots=True)
class EmbedPage:
    title: str
    page: ReadingPage
    parts: tuple[str, ...]


def parts_of(asked: str) -> tuple[str, ...]:
    """The parts that an address names, in its order; LegibleError naming those that there are."""
    found = tuple(dict.fromkeys(part.strip() for part in asked.split(",") if part.strip()))
    wrong = next((part for part in found if part not in PARTS), None)
    if wrong is not None or not found:
        raise LegibleError(
            f"A reading has no part {(wrong or asked)[:40]!r} to embed; its parts are {', '.join(PARTS)}.",
            code="bad_embed",
            status=422,
        )
    return found


def embedded(request: Request, page: ReadingPage, parts: tuple[str, ...], settings: Settings) -> HTMLResponse:
    """The parts as a document that may be framed."""
    body = html(request, "embed.html", EmbedPage(page.title, page, parts))
    return HTMLResponse(body, headers={"content-security-policy": policy(settings)})


def policy(settings: Settings) -> str:
    """Style from here, and nothing else at all; framed by whom the setting says."""
    framed = "'none'" if settings.embed_from == "none" else settings.embed_from
    return (
        "default-src 'none'; style-src 'self'; form-action 'none'; base-uri 'none'; "
        f"frame-ancestors {framed}"
    )
