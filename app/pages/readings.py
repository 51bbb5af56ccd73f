"""A reading: its page, JSON, and what one may do with it; app/pages/export.py has what one may take away.

    GET  /models/{slug}/readings/{digest}?position=&target=&contrast=&relative_to=&component=
    GET  …/{digest}.json
    POST …/{digest}/delete, …/{digest}/collect, /models/{slug}/readings (a new one)

A stored reading needs no worker. One that is not stored yet is submitted once and shows its state until it is; then the
address is made explicit. Finished pages are kept as bytes: rows never change, and a deletion is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor

from app.errors import wants_json
from app.jobs import Job
from app.names_index import stamp_of
from app.pages.asking import (
    Prompt,
    PromptForm,
    find_prompt,
    only_of,
    prompt_form,
    read_form,
    read_key,
    submit_reading,
)
from app.pages.causal import checks_mark, checks_of
from app.pages.compare_form import compare_form, slugs
from app.pages.detail import panel_for
from app.pages.embed import embedded, parts_of
from app.pages.forms import form_of, one_of
from app.pages.mistyped import Mistyped, mistyped, spelled
from app.pages.named import names_of
from app.pages.panel import Panel
from app.pages.people import said_of
from app.pages.reading_view import Chosen, ReadingPage, reading_page
from app.pages.renamed import renamed
from app.pages.revisions import job_of_revision, revised, revisions_json
from app.pages.view import html, twin
from app.pages.waiting import unfinished, waiting_page
from app.services import Services, services
from app.store import StoredReading
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.memory import ByteCache
from legible_core.reading import ReadingRequest
from legible_core.registry import Checkpoint

router = APIRouter(prefix="/models/{slug}/readings", default_response_class=HTMLResponse)

PAGES_BYTES = 32 << 20
TRUST_SECONDS = 1.0
collect_form = form_of("What is collected", ("on",), optional=True)


class Asked(BaseModel):
    """The query of a reading's address; None where it leaves the choice open."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    position: int | None = Field(default=None, ge=0, description="0-based; the token after it is read")
    target: int | None = Field(default=None, ge=0, description="id of the token that is read")
    contrast: int | None = Field(default=None, ge=0, description="id of the token it is compared with")
    relative_to: Literal["nothing", "mean", "contrast"] | None = None
    component: str | None = Field(default=None, max_length=40, description="the head or unit shown: L5.h2, L5.u263")
    revision: int | None = Field(default=None, ge=1, description="1 for the first result; the newest when left out")
    checks: bool = Field(default=False, description="check each contribution by removing it, if that is not done yet")
    target_text: str = Field(default="", max_length=1000, description="a token by its text; its id takes its place")
    contrast_text: str = Field(default="", max_length=1000)

    @classmethod
    def of(cls, request: Request) -> Asked:
        """The query of this request; a bad value is the same error as everywhere."""
        try:
            return cls.model_validate(dict(request.query_params))
        except ValidationError as error:
            found = [{**e, "loc": ("query", *e["loc"])} for e in error.errors(include_url=False)]
            raise RequestValidationError(found) from None

    def explicit(self) -> dict[str, Any]:
        """What an address names, without the texts that were typed."""
        return {
            "position": self.position,
            "target": self.target,
            "contrast": self.contrast,
            "relative_to": self.relative_to,
            "component": self.component or None,
            "revision": self.revision,
        }


@dataclass(slots=True)
class Kept:
    """A finished page, what it was made of (revision, collected, notes, checks), and when that was last looked up."""

    body: bytes
    mark: tuple[object, ...]
    seen: float


class _Digest(Convertor[str]):
    """64 hexadecimal digits in a path."""

    regex = "[0-9a-f]{64}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def setup(app: FastAPI) -> None:
    """Keep finished pages in memory, and put the route that is asked for most before all others.

    It is a plain route: half the time of a kept page was the way to it.
    """
    app.state.reading_pages = ByteCache(PAGES_BYTES)
    register_url_convertor("digest", _Digest())
    app.router.add_route("/models/{slug}/readings/{digest:digest}", reading, methods=["GET"], include_in_schema=False)


def _kept_pages(request: Request) -> ByteCache[tuple[str, ...], Kept]:
    pages: ByteCache[tuple[str, ...], Kept] = request.app.state.reading_pages
    return pages


@router.post("")
def new(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[PromptForm, Depends(prompt_form)],
) -> Response:
    """Read the last prediction of a prompt; answers with the reading's address."""
    checkpoint = services.catalogue.get(slug)
    address = read_form(services, urls_for(request), checkpoint, only_of(checkpoint, form, services))
    return RedirectResponse(address, status_code=303)


@router.get("/{digest}.json")
def reading_json(
    slug: str, digest: str, asked: Annotated[Asked, Query()], services: Annotated[Services, Depends(services)]
) -> Response:
    """The complete reading (docs/reading-schema.md), or 202 and the job while it is not stored yet."""
    prompt = find_prompt(services, digest)
    asked = spelled(services, prompt, asked)
    stored = find_stored(services, digest, asked)
    if stored is not None:
        reading, checkpoint = stored.reading(), checkpoint_of(services, stored.checkpoint_hash)
        count = renamed(reading.summary, None if checkpoint is None else names_of(checkpoint)[0])
        return twin(reading.to_json() | {"stored": {**revisions_json(services, stored), "renamed": count}})
    _, job = _submitted(services, prompt, asked)
    return unfinished(services, job)


@router.post("/{digest}/delete")
def delete(slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Forget the prompt and all its readings."""
    services.store.delete(digest)
    # Its pages leave the browser's cache as well, where the way back would show them again.
    return RedirectResponse(urls_for(request).home(), status_code=303, headers={"clear-site-data": '"cache"'})


@router.post("/{digest}/collect")
def collect(
    slug: str, digest: str, request: Request, asked: Annotated[Asked, Query()],
    services: Annotated[Services, Depends(services)], form: Annotated[dict[str, str], Depends(collect_form)],
) -> Response:  # fmt: skip
    """Put this reading into the collection on the home page, or take it out."""
    on = one_of("on", form.get("on", ""), {"": True, "1": True, "0": False})
    stored = find_stored(services, digest, asked)
    if stored is None:
        raise NotFound(f"The reading {digest[:12]} is not stored, so it cannot be collected.")
    services.store.collect(
        digest, position=stored.position, target=stored.target, contrast=stored.contrast,
        relative_to=stored.relative_to, on=on,
    )  # fmt: skip
    return RedirectResponse(urls_for(request).reading(slug, digest, **_explicit(stored, asked).query()), 303)


@router.get("/{digest}")
async def reading(request: Request) -> Response:
    """The page that everything serves; its query is the one of the .json twin, and `component`."""
    # Nothing is injected here: a page that is kept is answered without a thread.
    slug, digest = request.path_params["slug"], request.path_params["digest"]
    if "embed" in request.query_params:
        return await run_in_threadpool(_embedded, request, slug, digest)
    key = (str(request.base_url), slug, digest, request.url.query)
    kept = _kept_pages(request).get(key)
    if kept is not None and time.monotonic() - kept.seen < TRUST_SECONDS:
        return HTMLResponse(kept.body)
    return await run_in_threadpool(_open, request, slug, digest, key, kept)


def _embedded(request: Request, slug: str, digest: str) -> Response:
    """Parts of a stored reading for another page; one that is not stored is not begun from there."""
    services: Services = request.app.state.services
    asked, parts = Asked.of(request), parts_of(request.query_params["embed"])
    stored = find_stored(services, digest, asked)
    if stored is None:
        message = f"The reading {digest[:12]} is not stored, so nothing of it can be embedded; open its page first."
        raise NotFound(message)
    made = page_of(slug, request, stored, asked, services)
    if "panel" in parts:
        checkpoint = checkpoint_of(services, stored.checkpoint_hash)
        text, chosen = _text_of(services, stored), _explicit(stored, asked)
        found = panel_for(
            services, urls_for(request), stored.reading(), chosen, checkpoint, slug=slug, text=text, ask=False
        )
        made = replace(made, panel=with_people(services, urls_for(request), checkpoint, found.panel))
    return embedded(request, made, parts, services.settings)


def _open(request: Request, slug: str, digest: str, key: tuple[str, ...], kept: Kept | None) -> Response:
    services: Services = request.app.state.services
    asked = Asked.of(request)
    urls = urls_for(request)
    if kept is None:
        prompt = find_prompt(services, digest)
        if slug != prompt.slug and not services.catalogue.names(slug, prompt.checkpoint_hash):
            # The slug moved to other weights: this reading stays under the name that it was made with.
            return RedirectResponse(urls.reading(prompt.slug, digest, **asked.explicit()), status_code=307)
        try:
            found = spelled(services, prompt, asked)
        except LegibleError as error:
            return _refused(request, slug, digest, services, asked, error)
        if found != asked:
            return RedirectResponse(urls.reading(slug, digest, **found.explicit()), status_code=303)
    stored = find_stored(services, digest, asked)
    if stored is None:
        _kept_pages(request).drop(key)
        prompt = find_prompt(services, digest)
        checkpoint, job = _submitted(services, prompt, asked)
        answered = _answered(asked, job)
        if job.state == "done" and answered != asked:
            return RedirectResponse(urls.reading(slug, digest, **answered.explicit()), status_code=303)
        poll = urls.reading(slug, digest, **asked.explicit())
        context = waiting_page(services, prompt, checkpoint, job, slug, poll)
        return HTMLResponse(html(request, "reading_waiting.html", context))
    chosen = _explicit(stored, asked)
    explicit = urls.reading(slug, digest, **chosen.query())
    waited = request.headers.get("hx-request") == "true"
    if (asked.position is None or asked.target is None) and not waited:
        return RedirectResponse(explicit, status_code=303)
    headers = {"hx-replace-url": explicit} if waited and (asked.position is None or asked.target is None) else {}
    present = checkpoint_of(services, stored.checkpoint_hash)
    mark = (
        stored.revision_id, stored.collected, None if present is None else stamp_of(present.path),
        services.notes.mark(stored.checkpoint_hash), checks_mark(services, stored),
    )  # fmt: skip
    if kept is not None and kept.mark == mark:
        kept.seen = time.monotonic()
        return HTMLResponse(kept.body)
    body, final = _render(slug, request, stored, chosen, services, asked.checks)
    if final and not headers and asked.revision is None:  # what is newest is no part of an old revision's mark
        _kept_pages(request).put(key, Kept(body, mark, time.monotonic()), len(body))
    return HTMLResponse(body, headers=headers)


def _refused(
    request: Request, slug: str, digest: str, services: Services, asked: Asked, error: LegibleError
) -> Response:
    """The reading that was on the screen, with what was typed and why it is no token; the error where there is none."""
    before, typed = mistyped(asked, error)
    stored = find_stored(services, digest, before)
    if stored is None or wants_json(request.scope):
        raise error
    body, _ = _render(slug, request, stored, _explicit(stored, before), services, False, typed)
    return HTMLResponse(body, status_code=error.status)


def _render(
    slug: str, request: Request, stored: StoredReading, chosen: Chosen, services: Services, asks: bool,
    typed: Mistyped | None = None,
) -> tuple[bytes, bool]:  # fmt: skip
    """The page's bytes, and whether they are final (a panel may still wait for the worker)."""
    checkpoint = checkpoint_of(services, stored.checkpoint_hash)
    text = _text_of(services, stored)
    panel = panel_for(services, urls_for(request), stored.reading(), chosen, checkpoint, slug=slug, text=text)
    shown = with_people(services, urls_for(request), checkpoint, panel.panel)
    context = _context(slug, request, stored, chosen, checkpoint, text, shown, panel.shades)
    form = compare_form(urls_for(request), context.summary, chosen, slug=slug, text=text, checkpoints=slugs(services))
    checks = checks_of(services, urls_for(request), slug, stored, checkpoint, asks)
    context = replace(
        context, compare=form, revised=revised(services, urls_for(request), slug, stored, chosen), checks=checks,
        mistyped=typed,
    )  # fmt: skip
    final = panel.final and (checks is None or not checks.poll)
    return html(request, "reading.html", context).encode(), final


def with_people(services: Services, urls: Urls, checkpoint: Checkpoint | None, panel: Panel | None) -> Panel | None:
    """The panel with what people say of its component and operands."""
    if panel is None or checkpoint is None:
        return panel
    said = said_of(services, urls, checkpoint, [panel.id, *(operand.id for operand in panel.operands)])
    return replace(panel, people=said, notes=urls.notes(checkpoint.slug, panel.id))


def page_of(slug: str, request: Request, stored: StoredReading, asked: Asked, services: Services) -> ReadingPage:
    """What the page of a stored reading shows, without a panel: no worker is asked for anything."""
    checkpoint = checkpoint_of(services, stored.checkpoint_hash)
    text = _text_of(services, stored)
    chosen = _explicit(stored, asked)
    found = _context(slug, request, stored, chosen, checkpoint, text, None, ())
    return replace(found, revised=revised(services, urls_for(request), slug, stored, chosen))


def _context(
    slug: str, request: Request, stored: StoredReading, chosen: Chosen, checkpoint: Checkpoint | None, text: str,
    panel: Panel | None, shades: Sequence[int],
) -> ReadingPage:  # fmt: skip
    return reading_page(
        stored,
        None if checkpoint is None else checkpoint.config,
        urls_for(request),
        chosen,
        slug=slug,
        text=text,
        origin=f"{request.url.scheme}://{request.url.netloc}",
        panel=panel,
        shades=shades,
        names=None if checkpoint is None else names_of(checkpoint)[0],
    )


def _text_of(services: Services, stored: StoredReading) -> str:
    prompt = services.store.prompt(stored.digest)
    return prompt.text if prompt is not None else ""


def find_stored(services: Services, digest: str, asked: Asked) -> StoredReading | None:
    return services.store.find(
        digest, position=asked.position, target=asked.target, contrast=asked.contrast, relative_to=asked.relative_to,
        revision=asked.revision,
    )  # fmt: skip


def _explicit(stored: StoredReading, asked: Asked) -> Chosen:
    component = asked.component or None
    return Chosen(stored.position, stored.target, stored.contrast, stored.relative_to, component, asked.revision)


def _submitted(services: Services, prompt: Prompt, asked: Asked) -> tuple[Checkpoint, Job]:
    """The job of a reading that is not stored: the newest one, unless it ended well and its result is gone."""
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    request = request_of(prompt, asked)
    request.check(checkpoint.config)
    job = services.queue.find(read_key(request))
    if asked.revision is not None:
        newest = find_stored(services, prompt.digest, asked.model_copy(update={"revision": None}))
        return checkpoint, job_of_revision(job, newest, prompt.digest, asked.revision)
    if job is None or (job.state == "done" and find_stored(services, prompt.digest, _answered(asked, job)) is None):
        job = submit_reading(services, request, slug=prompt.slug, text=prompt.text)
    return checkpoint, job


def request_of(prompt: Prompt, asked: Asked) -> ReadingRequest:
    """What an address of a stored or submitted prompt asks of a worker."""
    position = len(prompt.ids) - 1 if asked.position is None else asked.position
    dtype: Any = prompt.dtype
    return ReadingRequest(
        prompt.checkpoint_hash,
        prompt.ids,
        position,
        asked.target,
        asked.contrast,
        asked.relative_to,
        dtype,
        prompt.edits,
    )


def _answered(asked: Asked, job: Job) -> Asked:
    """The same question with the target that the job found to be the most probable."""
    return asked.model_copy(update={"target": (job.result or {}).get("target", asked.target)})


def checkpoint_of(services: Services, checkpoint_hash: str) -> Checkpoint | None:
    """The checkpoint behind a stored reading; None when it is gone, which does not stop the reading from opening."""
    try:
        return services.catalogue.get(checkpoint_hash)
    except LegibleError:
        return None
