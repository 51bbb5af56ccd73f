"""The search over all checkpoints: one box with the syntax of `app.search_query`; groups with ranks and weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from app.indexing import Pending, Searchable, look
from app.names_index import NamesIndex
from app.pages.formula import GUESS, Piece, tokens
from app.pages.kept import asked, kept
from app.pages.named import notes_of
from app.pages.parts import is_embed
from app.pages.people import Said, said
from app.pages.view import clipped, html, page, twin
from app.search import MAX_PAGE, PAGE, ComponentHit, Group, GroupName, NamesSearch, OperandHit, groups_of
from app.search_query import FIELDS, MAX_CHARACTERS, Side, parse_query
from app.search_query import Query as Search
from app.search_text import fold_label
from app.services import Services, services
from app.services import services as services_of
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.legibility import Legibility
from legible_core.naming.records import mostly_on
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, GLYPHS, PLAIN_NAMES, Channel, Head, Unit, parse

router = APIRouter(default_response_class=HTMLResponse)

EXAMPLES = (
    'promotes:" worst"', 'detects:" not"', "negation", "determiner ∖ *", "* → comparative", "∃ * half-life:<5", "L4.u7",
)  # fmt: skip
SUGGESTED = 12


class Asked(BaseModel):
    """The query of the page's address."""

    model_config = ConfigDict(frozen=True)

    q: str = ""
    side: Side | None = Field(default=None, description="promote or detect; both when left out")
    page: int = Field(default=1, ge=1, le=MAX_PAGE)


@dataclass(frozen=True, slots=True)
class Hit:
    """A row: what it is, where its page is, and by which token it was found."""

    slug: str
    id: str
    href: str
    glyph: str
    kind: str
    formula: tuple[Piece, ...]
    cls: str | None
    agreement: float | None
    half_life: float | None
    token: str | None
    rank: int | None
    weight: float | None
    rare: bool
    hits: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """`all` leads to the whole group where only its first rows are shown."""

    name: GroupName
    title: str
    said: str
    rows: tuple[Hit, ...]
    more: bool
    all: str | None
    by: str


@dataclass(frozen=True, slots=True)
class PeopleHit:
    """A component that people named or noted with the words that were typed."""

    slug: str
    href: str
    said: Said


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    href: str
    current: bool
    count: int | None = None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """`error` is what is wrong with the search itself; `pending` what it does not cover yet."""

    hidden = ("examples", "fields", "sides", "models", "poll")

    title: str
    q: str
    error: str | None
    hint: str | None
    said: str
    groups: tuple[GroupView, ...]
    people: tuple[PeopleHit, ...]
    labels: tuple[Choice, ...]
    pending: tuple[Pending, ...]
    unnamed: tuple[str, ...]
    sides: tuple[Choice, ...]
    models: tuple[Choice, ...]
    examples: tuple[Choice, ...]
    fields: tuple[tuple[str, str, str], ...]
    before: str | None
    after: str | None
    poll: bool


def setup(app: FastAPI) -> None:
    """A plain route before all others: for a page that is kept, the way to it was half of its time."""
    app.router.add_route("/search", search, methods=["GET"], include_in_schema=False)


@router.get("/search.json")
def search_json(
    described: Annotated[Asked, Query()], request: Request, services: Annotated[Services, Depends(services)]
) -> Response:
    """The JSON twin: the same groups in the same order."""
    asked = asked_for(request)  # as the page does: an unknown filter is named, not ignored
    state = _state(services)
    parsed = parse_query(asked.q, asked.side)
    return twin(_page(services, urls_for(request), asked, state, parsed, None))


@router.get("/search")
async def search(request: Request) -> Response:
    """What was found, by group, and what is not indexed yet."""
    services = services_of(request)
    found: list[Searchable] = []

    def mark() -> Any:
        found.append(_state(services))
        return (tuple(found[0].searched), found[0].pending, found[0].unnamed, services.notes.mark())

    def make() -> bytes | Response:
        chosen, state = asked_for(request), found[0]
        parsed, error = Search(), None
        try:
            parsed = parse_query(chosen.q, chosen.side)
            context = _page(services, urls_for(request), chosen, state, parsed, None)
        except LegibleError as wrong:  # the box stays, so that the search can be mended
            error = wrong
            typed = chosen.q if len(chosen.q) <= MAX_CHARACTERS else ""
            empty = _page(services, urls_for(request), Asked(), state, Search(), error)
            context = replace(empty, q=typed, labels=())
        if is_embed(request) and error is None:
            return page(request, "search.html", context)
        body = html(request, "search.html", context)
        if error is None and not context.poll:
            return body.encode()
        return HTMLResponse(body, status_code=200 if error is None else error.status)

    return await kept(request, mark, make)


def asked_for(request: Request) -> Asked:
    return asked(Asked, request)


def _state(services: Services) -> Searchable:
    return look(services.queue, NamesIndex(services.store.database), services.catalogue.checkpoints())


def _page(
    services: Services, urls: Urls, asked: Asked, state: Searchable, query: Search, error: LegibleError | None
) -> SearchPage:
    searched = {index: checkpoint for index, checkpoint in state.searched.items() if _wanted(checkpoint, query.model)}
    if query.model is not None:
        known = services.catalogue.checkpoints()
        if not any(_wanted(checkpoint, query.model) for checkpoint in known):
            slugs = ", ".join(checkpoint.slug for checkpoint in known) or "none yet"
            raise NotFound(f"There is no checkpoint {query.model[:80]!r}; there are: {slugs}.")
    groups: tuple[GroupView, ...] = ()
    if not query.empty:
        of = {index: checkpoint.hash for index, checkpoint in searched.items()}
        by_hash = {checkpoint.hash: checkpoint for checkpoint in searched.values()}
        found = NamesSearch(services.store.database).run(query, of, asked.page)
        groups = tuple(_group(urls, asked, query, group, by_hash) for group in found if group.rows)
        if query.id is not None and not groups:
            groups = _heads(urls, services.catalogue.checkpoints(), query.id)
    people = _people(services, urls, query) if asked.page == 1 else ()
    single = len(groups_of(query)) == 1
    more = single and any(group.more for group in groups)
    active = any(not pending.failed for pending in state.pending)
    return SearchPage(
        title=f"Search: {clipped(asked.q, 60)}" if asked.q.strip() else "Search",
        q=asked.q,
        error=None if error is None else error.message,
        hint=None if error is None else error.hint,
        said=_said(query, bool(groups or people), searched, state, asked.page),
        groups=groups,
        people=people,
        labels=_labels(urls, query, state),
        pending=state.pending,
        unnamed=state.unnamed,
        sides=tuple(
            Choice(name, urls.search(q=asked.q, side=side), asked.side == side)
            for name, side in (("both sides", None), ("promote", "promote"), ("detect", "detect"))
        ) if query.token or query.label or query.words else (),
        models=_models(urls, asked, query, list(state.searched.values())),
        examples=tuple(Choice(text, urls.search(q=text), text == asked.q) for text in EXAMPLES),
        fields=tuple((name, *said) for name, said in FIELDS.items()),
        before=_paged(urls, asked, asked.page - 1) if single and asked.page > 1 else None,
        after=_paged(urls, asked, asked.page + 1) if more and asked.page < MAX_PAGE else None,
        poll=active,
    )  # fmt: skip


def _people(services: Services, urls: Urls, query: Search) -> tuple[PeopleHit, ...]:
    """What people call by the words that were typed; a checkpoint need not be scanned for it."""
    words = query.words or ""
    wanted = {c.hash: c for c in services.catalogue.checkpoints() if _wanted(c, query.model)} if words else {}
    hits = []
    for checkpoint_hash, note in services.notes.search(words, list(wanted)):
        slug, component = wanted[checkpoint_hash].slug, parse(note.component)
        page = isinstance(component, Unit | Head)
        href = _address(urls, slug, note.component) if page else urls.notes(slug, component)
        hits.append(PeopleHit(slug, href, said(urls, slug, note)))
    return tuple(hits)


def _wanted(checkpoint: Checkpoint, model: str | None) -> bool:
    return model is None or model in (checkpoint.slug, checkpoint.hash)


def _paged(urls: Urls, asked: Asked, page: int) -> str:
    return urls.search(q=asked.q, side=asked.side, page=page if page > 1 else None)


def _said(query: Search, found: bool, searched: dict[int, Checkpoint], state: Searchable, page: int) -> str:
    """What was searched, and that nothing was found."""
    if query.empty:
        return ""
    where = ", ".join(checkpoint.slug for checkpoint in searched.values()) or "no checkpoint"
    if found:
        return f"Searched: {where}."
    if not searched and any(not pending.failed for pending in state.pending):
        return "Nothing can be searched yet."
    if page > 1:
        return f"There is nothing on page {page} of what was found in {where}; go back to the first."
    return f"Nothing was found in {where}."


def _group(urls: Urls, asked: Asked, query: Search, group: Group, by_hash: dict[str, Checkpoint]) -> GroupView:
    what = query.token.text if query.token else query.words or ""
    label = query.label or fold_label(query.words or "")
    shown = _chip(what)
    title, said, by = {
        "promote": (f"Promote {shown}", "read off the weights; best rank first", "weight"),
        "detect": (f"Fire on {shown}", "measured on data; best rank first", "lift"),
        "label-promote": (f"Promote {label}", "components whose promote list has this label", ""),
        "label-detect": (f"Detect {label}", "operands with this label, best agreement first", ""),
        "formula": ("Formula", "units and channels of bounded heads", ""),
        "id": ("Component", "", ""),
        "id-operand": ("Operand", "", ""),
    }[group.name]
    rows = tuple(_hit(urls, row, by_hash[row.checkpoint_hash]) for row in group.rows)
    whole = _whole(urls, asked, query, group.name, label) if group.more and len(groups_of(query)) > 1 else None
    return GroupView(group.name, title, said, rows, group.more, whole, by)


def _whole(urls: Urls, asked: Asked, query: Search, name: GroupName, label: str) -> str:
    """The address of one group of several, on its own."""
    side = "detect" if name.endswith("detect") else "promote"
    if query.words is None:
        return urls.search(q=asked.q, side=side)
    filters = [part for part in re.split(r"\s+", asked.q) if re.match(r"(model|layer|class|kind|in|half-life):", part)]
    if name.startswith("label"):
        said = f'label:"{label}"'
    else:
        plain = re.fullmatch(r"[^\s\"']+", query.words)
        mark = "'" if '"' in query.words else '"'
        said = f"{side}s:{query.words}" if plain else f"{side}s:{mark}{query.words}{mark}"
    return urls.search(q=" ".join([said, *filters]), side=side if name.startswith("label") else None)


def _hit(urls: Urls, row: ComponentHit | OperandHit, checkpoint: Checkpoint) -> Hit:
    slug, match = checkpoint.slug, row.match
    found = (
        (match.token, match.rank, match.weight, match.rare, match.hits) if match else (None, None, None, False, None)
    )
    if isinstance(row, OperandHit):
        # An ordinary unit's share is of tokens on which it is above 0, and it has no class.
        note = mostly_on(row.on, constant=row.cls == Legibility.CONSTANT) if row.cls else None
        named = Piece(row.shown, measured=row.shown != row.operand, note=note)
        href = _address(urls, slug, row.page)
        # An ordinary unit stands among the operands as its own, and has no class.
        return Hit(slug, row.operand, href, "", "operand", (named,), row.cls or None, row.agreement, None, *found)
    notes = () if row.a is None else notes_of(checkpoint, row.component)
    return Hit(
        slug, row.component, _address(urls, slug, row.component), GLYPHS.get(row.kind, ""), row.kind,
        pieces(row, notes), row.cls, row.agreement, row.half_life, *found,
    )  # fmt: skip


def pieces(row: ComponentHit, notes: Sequence[str | None] = ()) -> tuple[Piece, ...]:
    """The formula of a component: what was measured is italic, what was read off the weights upright.

    notes: of its operands, in their order, what must be seen beside their names.
    """
    glyph = Piece(GLYPHS.get(row.kind, ""), operator=True)
    of_a, of_b = (*notes, None, None)[:2]
    a = Piece(row.a or "?", measured=True, note=of_a)
    found: tuple[Piece, ...]
    if row.kind in ("intersection", "difference"):
        found = (a, glyph, Piece(row.b or "?", measured=True, note=of_b))
    elif row.kind in ("existential", "proportion"):
        found = (glyph, a) if row.half_life is None else (glyph, a, Piece(f"({tokens(row.half_life)})"))
    elif row.a is not None and row.kind in PLAIN_NAMES and row.kind not in BOUNDED:
        found = (GUESS, a)  # an ordinary unit: what it is most active on
    elif row.a is not None:
        found = (glyph, a) if row.kind == "sigmoid" else (a,)
    else:
        found = (Piece(PLAIN_NAMES.get(row.kind, row.kind)),)
    return (*found, Piece("→", operator=True), Piece(row.promotes)) if row.promotes else found


def _address(urls: Urls, slug: str, component: str) -> str:
    """The page of a unit or head; a channel stands on its head's."""
    found = parse(component)
    if isinstance(found, Channel):
        found = Head(found.layer, found.head)
    return urls.head(slug, found) if isinstance(found, Head) else urls.unit(slug, found)


def _heads(urls: Urls, checkpoints: list[Checkpoint], id: str) -> tuple[GroupView, ...]:
    """A head has no name, and a unit of a checkpoint that was never scanned has none yet: their pages by their ids."""
    component = parse(id)
    rows = []
    for checkpoint in checkpoints:
        config = checkpoint.config
        if isinstance(component, Head) and component.head < config.n_heads and component.layer < config.n_layers:
            kind = "head"
        elif isinstance(component, Unit) and component.unit < config.feed_forward.d_ff:
            kind = config.feed_forward.kind(component.unit)
        else:
            continue
        if component.layer < config.n_layers:
            href = _address(urls, checkpoint.slug, id)
            name = (Piece("attention head" if kind == "head" else kind),)
            nothing = (None, None, None, None, None, None, False, None)
            rows.append(Hit(checkpoint.slug, id, href, GLYPHS[kind], kind, name, *nothing))
    return (GroupView("id", "Component", "", tuple(rows), False, None, ""),) if rows else ()


def _chip(text: str) -> str:
    """A token in a heading, its spaces in sight."""
    return "“" + text.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")[:60] + "”"


def _labels(urls: Urls, query: Search, state: Searchable) -> tuple[Choice, ...]:
    """Labels that hold the words, or all of them on the empty page, with how often they occur."""
    counts: dict[str, int] = {}
    for index in state.indexes:
        for label, (operands, components) in index.labels.items():
            counts[label] = counts.get(label, 0) + operands + components
    wanted = fold_label(query.words or query.label or "")
    if not query.empty and not wanted:
        return ()
    found = [label for label in counts if wanted in label and label != wanted and not label.startswith("constant ")]
    found.sort(key=lambda label: (-counts[label], label))
    return tuple(
        Choice(label, urls.search(q=f'label:"{label}"'), False, counts[label])
        for label in found[: SUGGESTED if wanted else 3 * SUGGESTED]
    )


def _models(urls: Urls, asked: Asked, query: Search, checkpoints: list[Checkpoint]) -> tuple[Choice, ...]:
    """One checkpoint or all, where there are several."""
    if len(checkpoints) < 2 or query.empty:
        return ()
    rest = re.sub(r"(?<!\S)model:\S+", "", asked.q).strip()
    links = [Choice("all checkpoints", urls.search(q=rest, side=asked.side), query.model is None)]
    for checkpoint in checkpoints:
        href = urls.search(q=f"{rest} model:{checkpoint.slug}", side=asked.side)
        links.append(Choice(checkpoint.slug, href, query.model == checkpoint.slug))
    return tuple(links)


__all__ = ["PAGE", "Asked", "SearchPage", "router", "search"]
