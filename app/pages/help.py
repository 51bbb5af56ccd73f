"""The glossary as a page of the workbench: what the words of the other pages mean, without a network."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.pages.view import page, twin
from app.pages.words import Entry, entries

router = APIRouter(default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class HelpPage:
    title: str
    intro: str
    entries: tuple[Entry, ...]


@router.get("/help")
def help_page(request: Request) -> Response:
    """Every word of the pages."""
    return page(request, "help.html", _page())


@router.get("/help.json")
def help_json() -> Response:
    """The same as JSON."""
    return twin(_page())


def _page() -> HelpPage:
    intro = "What the pages' words mean. The ? beside a word leads here."
    return HelpPage("Words", intro, tuple(entries().values()))
