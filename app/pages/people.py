"""What people say of a component, as pages show it: beside what the machine says, never instead of it.

people_of(services, urls, request, checkpoint, component)     # names, notes and votes on it and its operands
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from fastapi import Request, Response

from app.notes import MAX_LABEL, VOTES, Note
from app.pages.formula import operand_piece, promote_piece
from app.pages.named import component_of, names_of, operands_of
from app.people import MAX_AUTHOR, clean_author
from app.search_text import storable
from app.services import Services
from app.urls import Urls
from legible_core.errors import LegibleError
from legible_core.naming.names import Names
from legible_core.reads import opens
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

COOKIE = "legible_author"
YEAR = 365 * 86400


@dataclass(frozen=True, slots=True)
class Said:
    """A person's name and note for a component; `edits` leads to its history and the form."""

    component: str
    name: str
    text: str
    author: str
    date: str
    revision: int
    edits: str


@dataclass(frozen=True, slots=True)
class Ballot:
    """A label that the machine gave, and how many find it right, wrong or unclear."""

    component: str
    label: str
    votes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class People:
    hidden = ("edits", "vote", "author")

    said: tuple[Said, ...]
    ballots: tuple[Ballot, ...]
    edits: str
    vote: str
    author: str


def people_of(services: Services, urls: Urls, request: Request, checkpoint: Checkpoint, component: Component) -> People:
    """What is said of a component and of its operands, and the votes on its labels."""
    names, _ = names_of(checkpoint)
    labels = labels_of(names, component)
    parts = [str(component), *(() if isinstance(component, Head) else map(str, opens(checkpoint.config, component)))]
    counts = services.notes.votes(checkpoint.hash, [part for part, _ in labels])
    return People(
        said=said_of(services, urls, checkpoint, parts),
        ballots=tuple(
            Ballot(part, label, tuple((vote, counts.get((part, label), Counter[str]())[vote]) for vote in VOTES))
            for part, label in labels
        ),
        edits=urls.notes(checkpoint.slug, component),
        vote=urls.notes(checkpoint.slug, component, "votes"),
        author=author_of(request),
    )


def said_of(services: Services, urls: Urls, checkpoint: Checkpoint, components: Sequence[str]) -> tuple[Said, ...]:
    """What is said of some components now, in their order."""
    found = services.notes.of(checkpoint.hash, components)
    return tuple(said(urls, checkpoint.slug, found[part]) for part in dict.fromkeys(components) if part in found)


def said(urls: Urls, slug: str, note: Note) -> Said:
    date = f"{datetime.fromtimestamp(note.at, UTC):%Y-%m-%d}"
    return Said(
        note.component, note.name, note.text, note.author, date, note.revision, urls.notes(slug, note.component)
    )  # fmt: skip


def labels_of(names: Names | None, component: Component) -> list[tuple[str, str]]:
    """(component id, label) of everything that the machine calls this component and its operands."""
    if names is None:
        return []
    found: list[tuple[str, str]] = []
    if isinstance(component, Operand | HeadOperand | QuantifierOperand):
        found = [(str(component), operand_piece(names.operand(component, 5)).text)]
    elif isinstance(component, Unit | Channel):
        name = component_of(names, component)
        if name is not None:
            found = [(o.id, operand_piece(o).text) for o in operands_of(names, name, 5)]
            promoted = promote_piece(name.promotes, name.label)
            found += [(str(component), promoted.text)] if promoted is not None else []
    return [(part, storable(label, MAX_LABEL)) for part, label in found]


def author_of(request: Request) -> str:
    """The name that this browser last wrote under; "" when it never did."""
    try:
        return clean_author(unquote(request.cookies.get(COOKIE, "")[: 12 * MAX_AUTHOR]))
    except LegibleError:
        return ""


def remember(response: Response, request: Request, author: str) -> None:
    """Fill in the name the next time."""
    path = str(request.scope.get("root_path", "")).rstrip("/") or "/"
    response.set_cookie(
        COOKIE, quote(clean_author(author)), max_age=YEAR, path=path, httponly=True, samesite="lax"
    )  # fmt: skip
