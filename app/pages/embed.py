"""Parts of a page inside another page: `?embed=figure,table` shows those parts alone, for an <iframe>.

    of a reading: prompt, figure, table, sum, and panel (the component that the address names)
    of a model:   figure, table; `figure=selective,half-lives` names which figures, all when left out
    of any page:  the parts that its template marks (`app.pages.parts`); view.page answers with them

An embed has links but no form and no button that changes anything here, so there is nothing in it that a click could be
tricked into (clickjacking). It is the only page that may be framed at all, by whom the setting `embed_from` says; it
asks for no work, so a foreign page cannot make this server compute. What Plotly draws is drawn by this server's own
scripts; other parts need none, and get none.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from app.pages.model_figures import Figure, beside, figures_of
from app.pages.named import names_of
from app.pages.parts import Part, Parts, listed
from app.pages.reading_view import ReadingPage
from app.pages.view import Context, html
from app.reading_only import NOT_BEGUN
from app.services import Services
from app.settings import Settings
from app.urls import urls_for
from legible_core.errors import LegibleError, NotFound

PARTS = ("prompt", "figure", "table", "sum", "panel")
FIGURE_PARTS = ("figure", "table")


@dataclass(frozen=True, slots=True)
class EmbedPage:
    title: str
    page: ReadingPage
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EmbedFigures:
    """Figures of a checkpoint, with the quality that stands beside each; `href` is the model's page."""

    title: str
    href: str
    parts: tuple[str, ...]
    figures: tuple[Figure, ...]
    beside: str


@dataclass(frozen=True, slots=True)
class EmbedParts:
    """Parts of any page; `beside` is the quality of its checkpoint, `drawn` whether scripts draw one of them."""

    title: str
    href: str
    parts: tuple[Part, ...]
    beside: str
    drawn: bool


def parts_of(asked: str, parts: tuple[str, ...] = PARTS, what: str = "reading") -> tuple[str, ...]:
    """The parts that an address names, in its order; LegibleError naming those that there are."""
    found = listed(asked)
    wrong = next((part for part in found if part not in parts), None)
    if wrong is not None or not found:
        raise LegibleError(
            f"A {what} has no part {(wrong or asked)[:40]!r} to embed; its parts are {', '.join(parts)}.",
            code="bad_embed",
            status=422,
        )
    return found


def embedded(request: Request, page: ReadingPage, parts: tuple[str, ...], settings: Settings) -> HTMLResponse:
    """The parts as a document that may be framed."""
    body = html(request, "embed.html", EmbedPage(page.title, page, parts))
    return HTMLResponse(body, headers={"content-security-policy": policy(settings)})


def embedded_figures(request: Request, slug: str, services: Services) -> HTMLResponse:
    """Figures of a model, as a document that may be framed. NotFound naming the figures that there are."""
    parts = parts_of(request.query_params["embed"], FIGURE_PARTS, "model's figure")
    checkpoint = services.catalogue.get(slug)
    urls, (names, missing) = urls_for(request), names_of(checkpoint)
    if names is None:
        raise NotFound(missing or f"{slug} has no figures yet.")
    there = {figure.id: figure for figure in figures_of(checkpoint, names, urls)}
    asked = listed(request.query_params.get("figure", "")) or tuple(there)
    wrong = next((name for name in asked if name not in there), None)
    if wrong is not None:
        raise NotFound(f"{slug} has no figure {wrong[:40]!r}; it has {', '.join(there)}.")
    figures = tuple(there[name] for name in asked)
    title = f"{figures[0].caption} · {slug}" if len(figures) == 1 else f"{slug}: figures"
    context = EmbedFigures(title, urls.model(slug), parts, figures, beside(names))
    body = html(request, "embed_figures.html", context)
    return HTMLResponse(body, headers={"content-security-policy": policy(services.settings, drawn="figure" in parts)})


def embedded_parts(request: Request, parts: Parts, context: Context) -> HTMLResponse:
    """Parts of the page that was just made, as a document that may be framed.

    Raises LegibleError that names the page's parts, and NotFound where nothing of it was made yet.
    """
    services: Services = request.app.state.services
    found = parts.chosen(request.query_params["embed"])
    if not parts.found and getattr(getattr(request.state, "queue", None), "refused", False):
        raise NotFound(NOT_BEGUN)
    drawn = any("data-plotly" in part.body for part in found)
    made = EmbedParts(context.title, parts.here, found, _beside(services, getattr(context, "slug", None)), drawn)
    body = html(request, "embed_parts.html", made)
    return HTMLResponse(body, headers={"content-security-policy": policy(services.settings, drawn=drawn)})


def _beside(services: Services, slug: object) -> str:
    """The quality of the page's checkpoint; no figure of legibility goes without it."""
    if not isinstance(slug, str):
        return ""
    try:
        names = names_of(services.catalogue.get(slug))[0]
    except LegibleError:
        return ""  # a reading outlives its checkpoint
    return "" if names is None else beside(names)


def policy(settings: Settings, *, drawn: bool = False) -> str:
    """Style from here (and scripts, where a figure is drawn by one), and nothing else; framed by whom we say."""
    framed = "'none'" if settings.embed_from == "none" else settings.embed_from
    # Plotly draws a heatmap as an image that it makes itself.
    drawing = "script-src 'self'; img-src data:; " if drawn else ""
    rest = f"style-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors {framed}"
    return f"default-src 'none'; {drawing}{rest}"
