"""Findings: collections of readings, units and heads in an order, with a text; each has its own address.

GET  /findings, /findings.json                              all, the last changed first, and a form for a new one
POST /findings                                              title, text, items (one address a line), author
GET  /findings/{id}[.json], POST /findings/{id}             the page, and an edit made from `revision`
GET  /findings/{id}/edit, POST /findings/{id}/delete
GET  /findings/add?item=, POST /findings/{id}/add           put something shown elsewhere at the end of one
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from app.collections import MAX_ITEMS, MAX_TEXT, MAX_TITLE, Collection, CollectionCard, Edited, Item
from app.errors import wants_json
from app.markdown import rendered
from app.pages.compare_sides import permalink
from app.pages.forms import form_of, revision_of
from app.pages.formula import Piece
from app.pages.named import component_of, names_of, pieces_of
from app.pages.people import author_of, remember
from app.pages.reading_view import Chosen
from app.pages.view import clipped, page, twin
from app.people import MAX_AUTHOR, clean_line
from app.services import Services, services
from app.tables import MAX_INTEGER
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.reads import check_component
from legible_core.units import Head, Unit, parse

router = APIRouter(default_response_class=HTMLResponse)

LISTED = 200
MAX_ADDRESS = 700
CollectionForm = Annotated[
    dict[str, str],
    Depends(form_of("A collection", ("revision", "title", "text", "items", "author"), "the fields title and author")),
]
ItemForm = Annotated[dict[str, str], Depends(form_of("An item", ("item", "author"), "the field item"))]
_COMPONENT = re.compile(r"/models/(?P<slug>[A-Za-z0-9_.-]{1,100})/(?:units|heads)/(?P<id>L[0-9]+\.[uh][0-9]+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """An item as a link: a reading by the end of its prompt and its target, a component by its formula."""

    href: str
    slug: str
    id: str
    text: str
    target: str
    formula: tuple[Piece, ...]
    gone: str


@dataclass(frozen=True, slots=True)
class FindingsPage:
    title: str
    id: int
    revision: int
    heading: str
    text: Markup
    author: str
    date: str
    items: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class FormPage:
    """The form; `there` is what somebody else saved meanwhile, `cards` the collections that `item` may be added to."""

    title: str
    action: str
    id: int | None
    revision: int
    heading: str
    text: str
    items: str
    author: str
    error: str
    hint: str
    there: FindingsPage | None
    there_text: str
    item: str
    cards: tuple[CollectionCard, ...]
    max_title: int
    max_text: int
    max_items: int
    max_author: int


@router.get("/findings.json")
def all_json(services: Annotated[Services, Depends(services)]) -> Response:
    """The list as JSON."""
    return twin({"findings": services.collections.newest(LISTED)})


@router.get("/findings")
def findings(request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """All collections, and the form for a new one."""
    return page(request, "findings_edit.html", _form(request, services, None))


@router.get("/findings/add")
def add_form(
    request: Request, services: Annotated[Services, Depends(services)],
    item: Annotated[str, Query(max_length=MAX_ADDRESS)],
) -> Response:  # fmt: skip
    """Choose a collection for something, or begin one with it."""
    parsed = item_of(services, request, item)
    form = _form(request, services, None, items=address_of(urls_for(request), parsed))
    return page(request, "findings_edit.html", form)


@router.post("/findings")
def begin(request: Request, services: Annotated[Services, Depends(services)], form: CollectionForm) -> Response:
    """Store a new collection."""
    return _save(request, services, None, form)


@router.get("/findings/{id}.json")
def one_json(id: int, services: Annotated[Services, Depends(services)]) -> Response:
    """A collection as it is stored; its text is Markdown."""
    return twin(services.collections.get(id))


@router.get("/findings/{id}")
def one(id: int, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The findings page."""
    return page(request, "findings.html", _shown(services, urls_for(request), services.collections.get(id)))


@router.get("/findings/{id}/edit")
def edit(id: int, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The form with what stands."""
    return page(request, "findings_edit.html", _form(request, services, services.collections.get(id)))


@router.post("/findings/{id}")
def save(id: int, request: Request, services: Annotated[Services, Depends(services)], form: CollectionForm) -> Response:
    """Store an edit made from `revision`."""
    return _save(request, services, services.collections.get(id), form)


@router.post("/findings/{id}/add")
def add(id: int, request: Request, services: Annotated[Services, Depends(services)], form: ItemForm) -> Response:
    """Put an item at the end; one that is in it already stays where it is."""
    there, new = services.collections.get(id), item_of(services, request, form.get("item", ""))
    author = form.get("author", "")
    items = there.items if new in there.items else (*there.items, new)
    services.collections.save(
        id, base=there.revision, title=there.title, text=there.text, author=author or there.author, items=items
    )
    answer = RedirectResponse(urls_for(request).findings(id), status_code=303)
    if author:
        remember(answer, request, author)
    return answer


@router.post("/findings/{id}/delete")
def forget(id: int, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Delete a collection; what it held stays."""
    services.collections.delete(id)
    return RedirectResponse(urls_for(request).findings(), status_code=303)


def item_of(services: Services, request: Request, address: str) -> Item:
    """What an address of this server names: a reading, a unit or a head. LegibleError for anything else."""
    urls = urls_for(request)
    address = address.strip().removeprefix(f"{request.url.scheme}://{request.url.netloc}")
    path = address.partition("?")[0].partition("#")[0]
    path = path.removeprefix(urls.root_path) if path.startswith(f"{urls.root_path}/") else ""
    found = _COMPONENT.fullmatch(path)
    if found is not None and len(address) <= MAX_ADDRESS:
        component, checkpoint = parse(found["id"]), services.catalogue.get(found["slug"])
        check_component(checkpoint.config, component)
        return Item(checkpoint.slug, component=str(component))
    if "/readings/" not in path:
        raise LegibleError(
            f"{address[:80]!r} is no reading, unit or head of this server; copy the address of its page.",
            code="bad_address",
            status=422,
        )
    slug, digest, asked = permalink(urls, "item's", address)
    stored = services.store.find(
        digest, position=asked.position, target=asked.target, contrast=asked.contrast, relative_to=asked.relative_to
    )
    if stored is not None:
        chosen = Chosen(stored.position, stored.target, stored.contrast, stored.relative_to, asked.component or None)
    elif (
        asked.position is not None
        and asked.target is not None
        and max(asked.position, asked.target, asked.contrast or 0) <= MAX_INTEGER
    ):
        relative = asked.relative_to or ("nothing" if asked.contrast is None else "contrast")
        chosen = Chosen(asked.position, asked.target, asked.contrast, relative, asked.component or None)
    else:
        message = f"The reading {digest[:12]} is not stored here, so it cannot be collected; open its page first."
        raise LegibleError(message, code="not_found", status=404)
    return Item(slug, digest, chosen.position, chosen.target, chosen.contrast, chosen.relative_to, chosen.component)


def address_of(urls: Urls, item: Item) -> str:
    """The address of an item's page."""
    if item.digest is None:
        component = parse(item.component or "")
        return urls.head(item.slug, component) if isinstance(component, Head) else urls.unit(item.slug, component)
    assert item.position is not None
    assert item.target is not None
    chosen = Chosen(item.position, item.target, item.contrast, item.relative_to or "nothing", item.component)
    return urls.reading(item.slug, item.digest, **chosen.query())


def _save(request: Request, services: Services, found: Collection | None, sent: dict[str, str]) -> Response:
    id = None if found is None else found.id
    title, text, items, author = (sent.get(field, "") for field in ("title", "text", "items", "author"))
    revision = revision_of(sent, "The collection", None if found is None else found.revision)
    try:
        lines = [line for line in items.splitlines() if line.strip()]
        if len(lines) > MAX_ITEMS:
            raise LegibleError(f"A collection may have at most {MAX_ITEMS} items; this one has {len(lines)}.")
        parsed = [item_of(services, request, line) for line in lines]
        made = services.collections.save(id, base=revision, title=title, text=text, author=author, items=parsed)
    except LegibleError as error:
        if wants_json(request.scope):  # a program's: the shared body
            raise
        there = error.there if isinstance(error, Edited) else None
        now = there.revision if there is not None else revision
        form = _form(
            request, services, None, id=id, revision=now, heading=title, text=text, items=items, author=author,
            error=error, there=there,
        )  # fmt: skip
        return page(request, "findings_edit.html", form, status=error.status)
    answer = RedirectResponse(urls_for(request).findings(made.id), status_code=303)
    remember(answer, request, author)
    return answer


def _form(
    request: Request, services: Services, found: Collection | None, *, id: int | None = None, revision: int = 0,
    heading: str = "", text: str = "", items: str = "", author: str = "", error: LegibleError | None = None,
    there: Collection | None = None,
) -> FormPage:  # fmt: skip
    urls = urls_for(request)
    if found is not None:
        id, revision, heading, text = found.id, found.revision, found.title, found.text
        items = "\n".join(address_of(urls, item) for item in found.items)
    return FormPage(
        title="Findings" if id is None else f"Edit: {clipped(heading, 60)}",
        action=urls.findings(id),
        id=id,
        revision=revision,
        heading=heading,
        text=text,
        items=items,
        author=author or author_of(request),
        error=error.message if error is not None else "",
        hint=(error.hint or "") if error is not None else "",
        there=_shown(services, urls, there) if there is not None else None,
        there_text=there.text if there is not None else "",
        item=items if id is None and error is None else "",
        cards=tuple(services.collections.newest(LISTED)) if id is None else (),
        max_title=MAX_TITLE,
        max_text=MAX_TEXT,
        max_items=MAX_ITEMS,
        max_author=MAX_AUTHOR,
    )


def _shown(services: Services, urls: Urls, found: Collection) -> FindingsPage:
    stored = services.store.shown({place for item in found.items if (place := _place(item)) is not None})
    return FindingsPage(
        title=clean_line(found.title, MAX_TITLE, "title"),
        id=found.id,
        revision=found.revision,
        heading=found.title,
        text=rendered(found.text),
        author=found.author,
        date=f"{datetime.fromtimestamp(found.updated_at, UTC):%Y-%m-%d}",
        items=tuple(_item(services, urls, item, stored) for item in found.items),
    )


def _place(item: Item) -> tuple[str, int, int] | None:
    """Which reading an item is, where it is one."""
    if item.digest is None or item.position is None or item.target is None:
        return None
    return item.digest, item.position, item.target


def _item(services: Services, urls: Urls, item: Item, stored: Mapping[Any, tuple[str, str]]) -> Shown:
    href = address_of(urls, item)
    if item.digest is not None:
        text, target = stored.get(_place(item), ("", ""))
        if not target:
            gone = "This reading was deleted, or not made here; its prompt is not kept."
            return Shown(href, item.slug, item.component or "", "", "", (), gone)
        return Shown(href, item.slug, item.component or "", clipped(text), target, (), "")
    component = parse(item.component or "")
    try:
        checkpoint = services.catalogue.get(item.slug)
    except LegibleError as error:
        return Shown(href, item.slug, str(component), "", "", (), error.message)
    names, _ = names_of(checkpoint)
    name = component_of(names, component) if isinstance(component, Unit) else None
    pieces = pieces_of(names, name) if names is not None and name is not None else ()
    return Shown(href, item.slug, str(component), "", "", pieces, "")
