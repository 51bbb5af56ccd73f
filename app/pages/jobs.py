"""Jobs: what runs, what waits and at which place, elapsed and left; a failure says why and can be tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.job_types import Begun
from app.jobs import Job, WorkerInfo
from app.pages.forms import form_of
from app.pages.kept import EVERYWHERE
from app.pages.view import clipped, parted, twin
from app.pages.view import page as answer
from app.services import Services, services
from app.tables import MAX_INTEGER
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError

router = APIRouter(prefix="/jobs", default_response_class=HTMLResponse)

LISTED = 100
Back = Annotated[dict[str, str], Depends(form_of("What is done to a job", ("back",), optional=True))]
Number = Annotated[int, Query(ge=1, le=MAX_INTEGER)]


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as a person needs it; `reason` is why it failed, `model` the slug that it was asked of.

    `done` of `total` is how far it was when it last said so; None once it is done, since that was before the end.
    """

    id: int
    what: str
    model: str | None
    href: str | None
    state: str
    stage: str | None
    place: int | None
    done: float | None
    total: float | None
    elapsed: float | None
    left: float | None
    attempt: int
    lost: int
    reason: str | None
    hint: str | None
    can_cancel: bool
    can_retry: bool


@dataclass(frozen=True, slots=True)
class JobsPage:
    """`page` of `pages`: running jobs come first, then those that wait, then what ended; the counts are of all jobs."""

    title: str
    said: str
    total: int
    running: int
    waiting: int
    page: int
    pages: int
    before: str | None
    after: str | None
    jobs: tuple[JobLine, ...]
    workers: tuple[WorkerInfo, ...]


@dataclass(frozen=True, slots=True)
class Event:
    after: float
    event: str
    attempt: int
    note: str | None


@dataclass(frozen=True, slots=True)
class JobPage:
    title: str
    job: JobLine
    events: tuple[Event, ...]


@router.get("")
def jobs(request: Request, services: Annotated[Services, Depends(services)], page: Number = 1) -> Response:
    """All that runs and waits, and what ended lately."""
    _no_filter(request)
    return answer(request, "jobs.html", _jobs(services, urls_for(request), page))


@router.get(".json")
def jobs_json(request: Request, services: Annotated[Services, Depends(services)], page: Number = 1) -> Response:
    """Its JSON twin."""
    _no_filter(request)
    return twin(_jobs(services, urls_for(request), page))


@router.get("/{job_id}.json")
def job_json(job_id: int, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The JSON twin of a job's page."""
    return twin(_job(services, urls_for(request), job_id))


@router.get("/{job_id}")
def job(job_id: int, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """One job with what happened to it."""
    return answer(request, "job.html", _job(services, urls_for(request), job_id))


@router.post("/{job_id}/cancel")
def cancel(job_id: int, request: Request, services: Annotated[Services, Depends(services)], form: Back) -> Response:
    """Cancel now, or at the next batch when it runs already."""
    services.queue.cancel(job_id)
    return _back(request, form.get("back", ""))


@router.post("/{job_id}/retry")
def retry(job_id: int, request: Request, services: Annotated[Services, Depends(services)], form: Back) -> Response:
    """Submit a failed or cancelled job again."""
    services.queue.retry(job_id)
    return _back(request, form.get("back", ""))


def _no_filter(request: Request) -> None:
    """Refuse a query: a list that looks filtered and is not would mislead."""
    for name in request.query_params:
        if name not in EVERYWHERE | {"page"}:
            raise LegibleError(
                f"The list of jobs has no filter {name[:40]!r}; it takes only page, a number from 1, and shows "
                f"{LISTED} jobs on each: what runs, what waits, then what ended last.",
                code="unknown_filter", status=422,
            )  # fmt: skip


def _back(request: Request, back: str) -> Response:
    """To the page that asked, which must be one of ours: a path, and no address of another site."""
    urls = urls_for(request)
    path = back.startswith(f"{urls.root_path}/") and not back.startswith("//")
    ours = path and "\\" not in back and back.isprintable()
    return RedirectResponse(back if ours else urls.jobs(), status_code=303)


def _jobs(services: Services, urls: Urls, page: int) -> JobsPage:
    counts = services.queue.counts()
    total, running, waiting = sum(counts.values()), counts.get("running", 0), counts.get("waiting", 0)
    pages = max(1, -(-total // LISTED))
    page = min(page, pages)  # jobs end and are forgotten while someone looks at the last page
    start = (page - 1) * LISTED
    found = services.queue.list(limit=LISTED, start=start)
    # Waiting jobs are listed behind the running ones in the order of their turn: a place needs no query of its own.
    begun = services.queue.begun(found)
    lines = tuple(
        _line(urls, job, max(1, start + number - running) if job.state == "waiting" else None, begun.get(job.id))
        for number, job in enumerate(found, 1)
    )
    said = f"{running} running, {waiting} waiting."
    if pages > 1:
        said += f" Jobs {start + 1:,} to {start + len(found):,} of {total:,}: those that run, wait, then ended last."
    return JobsPage(
        title="Jobs", said=said, total=total, running=running, waiting=waiting, page=page, pages=pages,
        before=urls.jobs(page=page - 1) if page > 1 else None, after=urls.jobs(page=page + 1) if page < pages else None,
        jobs=lines, workers=tuple(worker for worker in services.queue.workers() if worker.alive),
    )  # fmt: skip


def _job(services: Services, urls: Urls, job_id: int) -> JobPage:
    job = services.queue.get(job_id)
    line = _line(urls, job, services.queue.place(job), services.queue.begun([job]).get(job_id))
    events = tuple(
        Event(max(0.0, event.at - job.created_at), event.event, event.attempt, event.note)
        for event in services.queue.events(job_id)
    )
    return JobPage(f"Job {job_id}: {line.what}", line, events)


def _line(urls: Urls, job: Job, place: int | None, begun: Begun | None) -> JobLine:
    now = time.time()
    end = job.finished_at if job.finished_at is not None else now
    begin = job.started_at if job.started_at is not None else job.created_at
    elapsed = max(0.0, end - begin)
    left = None if begun is None else begun.left(job, now)
    error = job.error or {}
    what, href = _subject(urls, job)
    done, total = (None, None) if job.state == "done" else (job.done, job.total)
    return JobLine(
        id=job.id, what=what, model=str(job.payload.get("slug") or "") or None, href=href,
        state=job.state, stage=job.stage, place=place,
        done=done, total=total, elapsed=elapsed, left=left, attempt=job.attempt, lost=job.lost,
        reason=error.get("message"), hint=error.get("hint"), can_cancel=job.active and not job.cancel_requested,
        can_retry=job.state in ("failed", "cancelled"),
    )  # fmt: skip


def _subject(urls: Urls, job: Job) -> tuple[str, str | None]:
    """What a job is about, in words, and the page that it makes."""
    payload: dict[str, Any] = job.payload
    slug = str(payload.get("slug", ""))
    asked = payload.get("request")
    if job.kind == "why" and job.subject and isinstance(asked, dict):
        operand, at = str(payload["operand"]), asked.get("position")
        return f"why {operand} at token {at}", urls.why(slug, job.subject, operand, at=at)
    if job.kind == "values" and job.subject:
        components = ",".join(payload["components"])
        return f"values of {components}", urls.values(slug, job.subject, components=components)
    if job.kind == "generate" and job.subject:
        settings = {name: payload[name] for name in ("tokens", "temperature", "seed")}
        return f"go on with “{clipped(str(payload['text']), 48)}”", urls.generate(slug, job.subject, **settings)
    if job.kind == "watch":
        href = urls.monitors(payload["monitor"], "streams", payload["stream"])
        return f"watch stream {payload['stream']} under “{payload['name']}”", href
    if job.kind == "pair":
        good, bad = str(payload["good"]), str(payload["bad"])
        shown, other = parted(good, bad, 30)
        return f"pair “{shown}”, “{other}”", urls.pairs(slug, good=good, bad=bad)
    if job.kind in ("check", "necessity", "sufficiency", "path", "sources") and job.subject and isinstance(asked, dict):
        where = {name: asked.get(name) for name in ("position", "target", "contrast")}
        more = {name: payload[name] for name in ("first", "second", "operand") if name in payload}
        view = None if job.kind == "check" else job.kind
        href = urls.reading_part(slug, job.subject, "causal", **where, view=view, **more)
        said = " ".join([{"check": "checks"}.get(job.kind, job.kind), *more.values()])
        return f"causal {said} of “{clipped(str(payload.get('text', '')), 48)}”", href
    if job.kind in ("account", "bounds", "tune") and job.subject and isinstance(asked, dict):
        where = {name: asked.get(name) for name in ("position", "target")}
        text = clipped(str(payload.get("text", "")), 48)
        of = f"of “{text}”" if text else f"with {slug}"
        if job.kind == "bounds":
            where |= {"contrast": asked.get("contrast"), "radius": payload.get("radius")}
            return f"bounds of {payload['unit']} {of}", urls.bounds(slug, job.subject, payload["unit"], **where)
        said = "accounting" if job.kind == "account" else "sliders"
        return f"{said} {of}", urls.reading_part(slug, job.subject, job.kind, **where)
    if isinstance(asked, dict) and job.subject and slug:
        text = clipped(str(payload.get("text", "")), 48)
        component = payload.get("component")
        href = urls.reading(
            slug, job.subject, position=asked.get("position"), target=asked.get("target"),
            contrast=asked.get("contrast"), component=component,
        )  # fmt: skip
        return (f"{component} of “{text}”" if component else f"read “{text}”"), href
    return (f"{job.kind} {slug}".strip(), urls.model(slug) if slug else None)
