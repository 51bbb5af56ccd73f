"""A stored reading taken away: every term as CSV, the page as one HTML file that opens offline, and its citation.

    GET  /models/{slug}/readings/{digest}/csv, …/html, …/cite        with the query of the reading's address

The JSON twin is the reading itself (docs/reading-schema.md). None of these asks a worker.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.figures import heads_grid, unit_strips
from app.pages.formula import plain
from app.pages.reading_view import ReadingPage, contributor_formula
from app.pages.readings import Asked, checkpoint_of, find_stored, page_of
from app.pages.view import html, twin
from app.paths import static_dir
from app.services import Services, services
from app.store_types import StoredReading
from legible_core.errors import NotFound
from legible_core.reading import Reading
from legible_core.units import GLYPHS

router = APIRouter(prefix="/models/{slug}/readings", default_response_class=HTMLResponse)

# A spreadsheet takes a cell that begins with one of these for a formula; Excel the full-width signs as well.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True, slots=True)
class OfflinePage:
    """A reading in one file: the page's own facts, the style, and the whole reading as JSON."""

    title: str
    page: ReadingPage
    style: Markup
    data: str
    origin: str
    stored: StoredReading
    heads: tuple[tuple[str, float], ...]


@router.get("/{digest}/csv")
def reading_csv(
    slug: str, digest: str, asked: Annotated[Asked, Query()], services: Annotated[Services, Depends(services)]
) -> Response:
    """Every term of the sum as a table: component, kind, term, name."""
    stored = _stored(services, digest, asked, "table")
    text = terms_csv(stored.reading(), _config_of(services, stored))
    return _file(text, "text/csv", _name(stored, "csv"))


@router.get("/{digest}/html")
def reading_html(
    slug: str, digest: str, request: Request, asked: Annotated[Asked, Query()],
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """The reading as one file: figure, strongest contributors, every head, the sum, and the JSON; asks for nothing."""
    stored = _stored(services, digest, asked, "file")
    made = page_of(slug, request, stored, asked, services)
    offline = _offline(made, stored, _config_of(services, stored), f"{request.url.scheme}://{request.url.netloc}")
    return _file(html(request, "offline.html", offline), "text/html", _name(stored, "html"))


@router.get("/{digest}/cite")
def reading_citation(
    slug: str, digest: str, request: Request, asked: Annotated[Asked, Query()],
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """The reading's BibTeX entry, on one line."""
    stored = _stored(services, digest, asked, "citation")
    made = page_of(slug, request, stored, asked, services)
    return _file(made.citation + "\n", "text/plain", _name(stored, "bib"))


def terms_csv(reading: Reading, config: Any) -> str:
    """One row a term: floor, heads, units, in their order; the terms are the stored float32 numbers."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["component", "kind", "term", "name"])
    names = {c.id: plain(contributor_formula(c)) for c in reading.summary.top}
    for term in reading.summary.floor:
        writer.writerow([term.id, "floor", repr(term.value), ""])
    for layer, row in enumerate(reading.heads):
        for head, value in enumerate(row):
            name = f"L{layer}.h{head}"
            writer.writerow([name, "head", str(value), inert(names.get(name, ""))])
    for layer, row in enumerate(reading.units):
        for unit, value in enumerate(row):
            name = f"L{layer}.u{unit}"
            kind = config.feed_forward.kind(unit) if config is not None else ""
            writer.writerow([name, kind, str(value), inert(names.get(name, ""))])
    return out.getvalue()


def inert(text: str) -> str:
    """A text that no spreadsheet runs: a quote in front of what it would take for a formula, spaces before it or not.

    NUL, which ends the text for some readers of CSV, is shown as U+FFFD.
    """
    text = text.replace("\x00", "\ufffd")
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def _offline(page: ReadingPage, stored: StoredReading, config: Any, origin: str) -> OfflinePage:
    """The same page with a figure whose marks lead to the rows of the file itself."""
    reading = stored.reading()
    listed = {row.id for row in page.rows}

    def anchor(name: str) -> str:
        return f"#{name}" if name in listed or ".h" in name else "#terms"

    def glyph(unit: int) -> str:
        return GLYPHS[config.feed_forward.kind(unit)] if config is not None else ""

    units = [row.id for row in page.rows if ".u" in row.id]
    drawn = replace(
        page,
        heads_svg=heads_grid(reading.heads, anchor),
        strips_svg=unit_strips(reading.units, anchor, glyph, None, units),
    )
    rest = tuple(
        (f"L{layer}.h{head}", float(value))
        for layer, row in enumerate(reading.heads)
        for head, value in enumerate(row)
        if f"L{layer}.h{head}" not in listed
    )
    style = Markup((static_dir() / "legible.css").read_text(encoding="utf-8"))
    data = bytes(twin(reading.to_json()).body).decode()
    return OfflinePage(page.title, drawn, style, data, origin, stored, rest)


def _config_of(services: Services, stored: StoredReading) -> Any:
    checkpoint = checkpoint_of(services, stored.checkpoint_hash)
    return None if checkpoint is None else checkpoint.config


def _stored(services: Services, digest: str, asked: Asked, what: str) -> StoredReading:
    stored = find_stored(services, digest, asked)
    if stored is None:
        message = f"The reading {digest[:12]} is not stored yet, so there is no {what} of it; open its page first."
        raise NotFound(message)
    return stored


def _name(stored: StoredReading, ending: str) -> str:
    return f"reading-{stored.digest[:12]}-{stored.position}-{stored.target}.{ending}"


def _file(text: str, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=f"{kind}; charset=utf-8", headers=headers)
