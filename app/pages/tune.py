"""Tuning a reading: sliders for its leading units, heads and channels, the prediction before and after side by side.

    GET  /models/{slug}/readings/{digest}/tune?position=&target=      …/tune.json
    POST …/tune            the form: reads the prompt under its edits and leads to that reading's own page of sliders
    POST …/tune/redraw     the same fields → the new numbers as JSON, or 202 and the job; nothing is stored

An edited reading's page of sliders stands at its own digest, so its address restores every slider. docs/edits.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app import tuning
from app.jobs import Job
from app.pages.asking import Prompt, find_prompt, read_key, submit_reading
from app.pages.detail import state_of
from app.pages.forms import form_fields
from app.pages.tune_form import CHOICES, SLIDER_MAX, controls_of, edits_of_form
from app.pages.tune_rows import Row, rows_of
from app.pages.view import chance, clipped, page, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.store import StoredReading
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.interventions_text import edit_text
from legible_core.reading import ReadingRequest
from legible_core.registry import Checkpoint

router = APIRouter(prefix="/models/{slug}/readings/{digest}", default_response_class=HTMLResponse)

# Steps of the continuation: one while a slider moves, all when it rests and on the page itself.
MOVING, RESTING = 1, 8
MAX_FIELDS = 400


@dataclass(frozen=True, slots=True)
class AskedTune:
    """The query: None takes the last position, and the most probable token of the unedited prompt there."""

    position: int | None
    target: int | None


def asked_tune(
    position: Annotated[int | None, Query(ge=0, description="0-based; the last one when left out")] = None,
    target: Annotated[int | None, Query(ge=0, description="token id; the most probable one when left out")] = None,
) -> AskedTune:
    return AskedTune(position, target)


@dataclass(frozen=True, slots=True)
class Chance:
    display: str
    before: float | None
    after: float | None
    said_before: str
    said_after: str
    bar_before: float
    bar_after: float
    target: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One side as text: the target's place, and how the text goes on."""

    probability: str
    logit: float
    rank: int
    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class TunePage:
    """`rows` are empty while the worker has not been here; then `message` says where it is, `poll` where to ask."""

    title: str
    slug: str
    digest: str
    edits: tuple[str, ...]
    read: str
    target: str
    reading_href: str
    plain_href: str
    compare_href: str
    json_href: str
    redraw: str
    message: str
    fault: bool
    poll: str
    retry: str
    position: int
    target_id: int | None
    here_only: bool
    rest: tuple[str, ...]
    rows: tuple[Row, ...]
    chances: tuple[Chance, ...]
    before: Side | None
    after: Side | None
    choices: tuple[str, ...] = CHOICES
    slider_max: float = SLIDER_MAX


@dataclass(frozen=True, slots=True)
class Subject:
    """What an address names: the prompt with its edits, and the same prompt's unedited reading where it is stored."""

    prompt: Prompt
    checkpoint: Checkpoint
    request: ReadingRequest
    plain: StoredReading | None


@router.get("/tune.json")
def tune_json(
    slug: str,
    digest: str,
    asked: Annotated[AskedTune, Depends(asked_tune)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """Before and after, or 202 and the job while the worker has not been there."""
    subject = _subject(services, digest, asked)
    job = _tune_job(services, subject, RESTING) if subject.plain is not None else _plain_job(services, subject)
    if subject.plain is None or job.state != "done" or job.result is None:
        return unfinished(services, job)
    return twin(job.result)


@router.get("/tune")
def tune(
    slug: str,
    digest: str,
    request: Request,
    asked: Annotated[AskedTune, Depends(asked_tune)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The sliders."""
    urls = urls_for(request)
    subject = _subject(services, digest, asked)
    if not services.catalogue.names(slug, subject.checkpoint.hash):
        address = urls.reading_part(subject.prompt.slug, digest, "tune", position=asked.position, target=asked.target)
        return RedirectResponse(address, status_code=303)
    where = _where(subject)
    explicit = (subject.request.position, subject.request.target) == (asked.position, asked.target)
    if subject.plain is not None and not explicit and request.headers.get("hx-request") != "true":
        return RedirectResponse(urls.reading_part(slug, digest, "tune", **where), status_code=303)
    job = _plain_job(services, subject) if subject.plain is None else _tune_job(services, subject, RESTING)
    return page(request, "tune.html", _page(services, urls, slug, subject, job))


async def tune_fields(request: Request) -> dict[str, str]:
    """The fields of the sliders' form."""
    return await form_fields(request, "Tuning", "the sliders' fields", limit=MAX_FIELDS)


Fields = Annotated[dict[str, str], Depends(tune_fields)]


@router.post("/tune")
def share(
    slug: str, digest: str, request: Request, fields: Fields, services: Annotated[Services, Depends(services)]
) -> Response:
    """Read the prompt under the form's edits; leads to the permalink of these sliders."""
    subject = _posted(services, digest, fields)
    wanted = subject.request
    if services.store.find(wanted.digest, position=wanted.position, target=wanted.target) is None:
        job = services.queue.find(read_key(wanted))
        if job is None or not job.active:
            submit_reading(services, wanted, slug=subject.prompt.slug, text=subject.prompt.text)
    address = urls_for(request).reading_part(slug, wanted.digest, "tune", **_where(subject))
    return RedirectResponse(address, status_code=303)


@router.post("/tune/redraw")
def redraw(slug: str, digest: str, fields: Fields, services: Annotated[Services, Depends(services)]) -> Response:
    """The numbers under the form's edits: 200 with them, or 202 with the job; the same request asks again."""
    subject = _posted(services, digest, fields)
    job = _tune_job(services, subject, RESTING if fields.get("resting") else MOVING)
    if job.state == "done" and job.result is not None:
        chances, before, after = _drawn(job.result)
        return twin({**job.result, "chances": chances, "said": {"before": before, "after": after}})
    return unfinished(services, job, {"said": state_of(services, job)})


def _posted(services: Services, digest: str, fields: dict[str, str]) -> Subject:
    """The prompt and place that a form names, under the form's edits and no others."""
    place, target = (_whole(fields.get(name, ""), name) for name in ("position", "target"))
    subject = _subject(services, digest, AskedTune(place, target))
    position = subject.request.position
    assert position is not None
    request = replace(subject.request, edits=edits_of_form(fields, position))
    request.check(subject.checkpoint.config)
    return replace(subject, request=request)


def _subject(services: Services, digest: str, asked: AskedTune) -> Subject:
    """Find and check what an address names; the target is made explicit where the unedited reading is stored."""
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    position = len(prompt.ids) - 1 if asked.position is None else asked.position
    dtype: Any = prompt.dtype
    request = ReadingRequest(
        prompt.checkpoint_hash, prompt.ids, position, asked.target, dtype=dtype, edits=prompt.edits
    )
    request.check(checkpoint.config)
    plain = services.store.find(_plain(request).digest, position=position, target=asked.target)
    if plain is not None:
        request = replace(request, target=plain.target)
    return Subject(prompt, checkpoint, request, plain)


def _plain(request: ReadingRequest) -> ReadingRequest:
    return replace(request, edits=())


def _where(subject: Subject) -> dict[str, Any]:
    return {"position": subject.request.position, "target": subject.request.target}


def _plain_job(services: Services, subject: Subject) -> Job:
    """The job that reads the prompt without edits, from which the sliders take their components."""
    request = _plain(subject.request)
    job = services.queue.find(read_key(request))
    if job is None or job.state == "done":
        job = submit_reading(services, request, slug=subject.prompt.slug, text=subject.prompt.text)
    return job


def _tune_job(services: Services, subject: Subject, steps: int) -> Job:
    """The job of these numbers; submitted once, and again when its result was forgotten."""
    request = subject.request
    key = f"{tuning.KIND}:{request.digest}:{request.position}:{request.target}:{steps}"
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {
            "request": request.to_json(), "slug": subject.prompt.slug, "text": subject.prompt.text, "steps": steps
        }  # fmt: skip
        job = services.queue.submit(tuning.KIND, key, payload, subject=_plain(request).digest)
    return job


def _whole(typed: str, name: str) -> int | None:
    if not typed.strip():
        return None
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 10):
        raise LegibleError(f"The {name} {typed[:20]!r} is no whole number from 0.", code=f"bad_{name}")
    return int(typed)


# ---- what the page shows ---------------------------------------------------------------------------------------------


def _page(services: Services, urls: Urls, slug: str, subject: Subject, job: Job) -> TunePage:
    request, where = subject.request, _where(subject)
    result = job.result if subject.plain is not None and job.state == "done" else None
    failed = job.state in ("failed", "cancelled")
    here = urls.reading_part(slug, request.digest, "tune", **where)
    controls = controls_of(request.edits, request.position or 0)
    rows: tuple[Row, ...] = ()
    chances: tuple[Chance, ...] = ()
    before = after = None
    plain_href = urls.reading(slug, _plain(request).digest, **where)
    edited_href = urls.reading(slug, request.digest, **where)
    read, target = clipped(subject.prompt.text, 120), ""
    if result is not None and subject.plain is not None:
        summary = subject.plain.reading().summary
        digest = _plain(request).digest
        rows = rows_of(
            summary.top,
            controls,
            subject.checkpoint.config,
            lambda id: urls.reading(slug, digest, **where, component=id),
        )
        chances, before, after = _drawn(result)
        target = summary.target.display
        whole = b"".join(bytes.fromhex(token.bytes) for token in summary.tokens[: summary.position + 1])
        read = clipped(whole.decode("utf-8", "replace"), 120)
    return TunePage(
        title=f"Tune “{clipped(subject.prompt.text, 40)}” · {slug}",
        slug=slug,
        digest=request.digest,
        edits=tuple(edit_text(edit) for edit in request.edits),
        read=read,
        target=target,
        reading_href=edited_href,
        plain_href=plain_href,
        compare_href=urls.compare(left=plain_href, right=edited_href) if request.edits else "",
        json_href=urls.json(here),
        redraw=urls.reading_part(slug, request.digest, "tune") + "/redraw",
        message="" if result is not None else _reason(job) if failed else state_of(services, job),
        fault=failed,
        poll="" if result is not None or failed else here,
        retry=urls.job_part(job.id, "retry") if failed else "",
        position=request.position or 0,
        target_id=request.target,
        here_only=controls.here,
        rest=controls.rest,
        rows=rows,
        chances=chances,
        before=before,
        after=after,
    )


def _reason(job: Job) -> str:
    return str((job.error or {}).get("message", "It was cancelled."))


def _drawn(result: dict[str, Any]) -> tuple[tuple[Chance, ...], Side, Side]:
    """The leading tokens of both sides with their probabilities, the most probable first, and each side as text."""
    found: dict[int, list[Any]] = {}
    for place, name in enumerate(("before", "after")):
        for token in [*result[name]["predictions"], result[name]["target"]]:
            found.setdefault(token["id"], [token["display"], None, None])[1 + place] = token["probability"]
    target = result["before"]["target"]["id"]
    most = max(chance or 0.0 for _, *both in found.values() for chance in both) or 1.0

    def bar(probability: float | None) -> float:
        return round(100 * (probability or 0.0) / most, 1)

    chances = [
        Chance(display, before, after, _said(before), _said(after), bar(before), bar(after), index == target)
        for index, (display, before, after) in found.items()
    ]
    chances.sort(key=lambda row: -max(row.before or 0.0, row.after or 0.0))
    return tuple(chances), _side(result["before"]), _side(result["after"])


def _said(probability: float | None) -> str:
    return "not among the leading ten" if probability is None else chance(probability)


def _side(state: dict[str, Any]) -> Side:
    text = " ".join(token["display"] for token in state["continuation"])
    target = state["target"]
    return Side(chance(target["probability"]), target["logit"], target["rank"], text, state["complete"])
