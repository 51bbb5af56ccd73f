"""Names, notes and votes of people: the form and the history of a component's, a checkpoint's as a file and back.

GET  /models/{slug}/notes, …/notes.json                     all of a checkpoint; the JSON is the file to import
POST /models/{slug}/notes/import                            a file, or the JSON itself as the body
GET  /models/{slug}/notes/{component}[.json]                the form and every earlier state
POST /models/{slug}/notes/{component}                       revision, name, text, author
POST /models/{slug}/notes/{component}/votes                 cast ("right L5.p39.A determiner"), author
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.errors import wants_json
from app.notes import Collision, Note
from app.notes_file import export_notes, import_notes
from app.pages.forms import FORM_TYPES, content_type, form_file, form_of, revision_of
from app.pages.named import names_of
from app.pages.people import People, Said, author_of, labels_of, people_of, remember, said
from app.pages.view import page, twin
from app.people import MAX_AUTHOR, MAX_NAME, MAX_NOTE
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import Conflict, LegibleError
from legible_core.reads import check_component
from legible_core.registry import Checkpoint
from legible_core.units import Component, Head, Unit, parse

router = APIRouter(prefix="/models/{slug}", default_response_class=HTMLResponse)

LISTED = 500
NoteForm = Annotated[
    dict[str, str], Depends(form_of("A note", ("revision", "name", "text", "author"), "the fields name and author"))
]
VoteForm = Annotated[dict[str, str], Depends(form_of("A vote", ("cast", "author"), "the fields cast and author"))]


@dataclass(frozen=True, slots=True)
class NotesPage:
    """Everything that people say of a checkpoint's components, the newest first; at most `LISTED`."""

    title: str
    slug: str
    listed: tuple[Said, ...]
    total: int
    action: str
    told: str


@dataclass(frozen=True, slots=True)
class NotePage:
    """The form, filled with what stands or with what collided; `there` is what somebody else wrote meanwhile."""

    title: str
    slug: str
    id: str
    href: str | None
    machine: tuple[tuple[str, str], ...]
    revision: int
    name: str
    text: str
    author: str
    error: str
    hint: str
    there: Said | None
    history: tuple[Said, ...]
    people: People
    max_name: int
    max_text: int
    max_author: int


@router.get("/notes.json")
def notes_json(slug: str, services: Annotated[Services, Depends(services)]) -> Response:
    """The file of notes, as docs/sharing.md says."""
    checkpoint = services.catalogue.get(slug)
    return twin(export_notes(services.notes, checkpoint.hash, checkpoint.slug))


@router.get("/notes")
def notes(slug: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """What people say of this checkpoint, and the form that imports a file."""
    return page(request, "notes.html", _list(services, urls_for(request), services.catalogue.get(slug), ""))


@router.post("/notes/import")
async def take_in(slug: str, request: Request) -> Response:
    """Import a file of notes (a form with `file`, or the JSON as the body); all of it or nothing."""
    services: Services = request.app.state.services
    text = await form_file(request, "A file of notes", "file")

    def work() -> Response:
        checkpoint = services.catalogue.get(slug)
        done = import_notes(services.notes, checkpoint.config, checkpoint.hash, text)
        if content_type(request) != FORM_TYPES[1]:
            return twin(done)
        return page(request, "notes.html", _list(services, urls_for(request), checkpoint, done.said()))

    return await run_in_threadpool(work)


@router.get("/notes/{component}.json")
def note_json(slug: str, component: str, services: Annotated[Services, Depends(services)]) -> Response:
    """Every state of what people say of a component, newest first."""
    checkpoint, found = _find(services, slug, component)
    history = services.notes.history(checkpoint.hash, str(found))
    return twin({"component": str(found), "checkpoint": checkpoint.hash, "revisions": history})


@router.get("/notes/{component}")
def note(slug: str, component: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The form for a component, and the history of what was said."""
    checkpoint, found = _find(services, slug, component)
    current = services.notes.current(checkpoint.hash, str(found))
    return page(request, "note.html", _page(services, request, checkpoint, found, current))


@router.post("/notes/{component}")
def save(
    slug: str, component: str, request: Request, services: Annotated[Services, Depends(services)], form: NoteForm
) -> Response:
    """Store an edit made from `revision`; what cannot be stored stays in the form, with the reason."""
    checkpoint, found = _find(services, slug, component)
    name, text, author = (form.get(field, "") for field in ("name", "text", "author"))
    revision = revision_of(form, "The note")
    typed = Note(str(found), revision, name, text, author, 0.0)
    try:
        services.notes.save(checkpoint.hash, str(found), base=revision, name=name, text=text, author=author)
    except LegibleError as error:
        if wants_json(request.scope):  # a program's: the shared body
            raise
        there = error.there if isinstance(error, Collision) else None
        made = _page(services, request, checkpoint, found, typed, error, there)
        return page(request, "note.html", made, status=error.status)
    answer = RedirectResponse(_home(urls_for(request), checkpoint.slug, found), status_code=303)
    remember(answer, request, author)
    return answer


@router.post("/notes/{component}/votes")
def vote(
    slug: str, component: str, request: Request, services: Annotated[Services, Depends(services)], form: VoteForm
) -> Response:
    """Vote on a label of the machine's: `cast` is the vote, the component and the label as it is shown."""
    checkpoint, found = _find(services, slug, component)
    author = form.get("author", "")
    chosen, _, rest = form.get("cast", "").partition(" ")
    part, _, label = rest.partition(" ")
    if (part, label) not in labels_of(names_of(checkpoint)[0], found):
        raise Conflict(
            f"{part[:40] or found} has no label {label[:60]!r} now, so there is nothing to vote on.",
            hint="A scan may have named it anew; open its page again.",
        )
    services.notes.vote(checkpoint.hash, part, label=label, author=author, vote=chosen)
    answer = RedirectResponse(_home(urls_for(request), checkpoint.slug, found), status_code=303)
    remember(answer, request, author)
    return answer


def _find(services: Services, slug: str, text: str) -> tuple[Checkpoint, Component]:
    checkpoint = services.catalogue.get(slug)
    component = parse(text)
    check_component(checkpoint.config, component)
    return checkpoint, component


def _page(
    services: Services, request: Request, checkpoint: Checkpoint, component: Component, form: Note | None,
    error: LegibleError | None = None, there: Note | None = None,
) -> NotePage:  # fmt: skip
    urls, id = urls_for(request), str(component)
    people = people_of(services, urls, request, checkpoint, component)
    return NotePage(
        title=f"Names and notes of {id} · {checkpoint.slug}",
        slug=checkpoint.slug,
        id=id,
        href=_home(urls, checkpoint.slug, component) if isinstance(component, Head | Unit) else None,
        machine=tuple(labels_of(names_of(checkpoint)[0], component)),
        revision=there.revision if there is not None else form.revision if form is not None else 0,
        name=form.name if form is not None else "",
        text=form.text if form is not None else "",
        author=(form.author if form is not None and error is not None else "") or author_of(request),
        error=error.message if error is not None else "",
        hint=(error.hint or "") if error is not None else "",
        there=said(urls, checkpoint.slug, there) if there is not None else None,
        history=tuple(said(urls, checkpoint.slug, n) for n in services.notes.history(checkpoint.hash, id)),
        people=people,
        max_name=MAX_NAME,
        max_text=MAX_NOTE,
        max_author=MAX_AUTHOR,
    )


def _list(services: Services, urls: Urls, checkpoint: Checkpoint, told: str) -> NotesPage:
    rows = services.notes.newest(checkpoint.hash, LISTED)
    return NotesPage(
        title=f"Names and notes · {checkpoint.slug}",
        slug=checkpoint.slug,
        listed=tuple(said(urls, checkpoint.slug, row) for row in rows),
        total=len(rows),
        action=urls.notes(checkpoint.slug, "import"),
        told=told,
    )


def _home(urls: Urls, slug: str, component: Component) -> str:
    """Where a component's names and notes are shown: its own page, or the form's for an operand or channel."""
    if isinstance(component, Unit):
        return urls.unit(slug, component) + "#people"
    if isinstance(component, Head):
        return urls.head(slug, component) + "#people"
    return urls.notes(slug, component)
