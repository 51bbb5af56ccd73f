"""What holds of a unit by construction, at one prediction of a stored prompt.

    GET /models/{slug}/readings/{digest}/bounds/{unit}?position=&target=&contrast=&relative_to=&radius=    …/{unit}.json

`radius` propagates a box around the layer's normed input. A worker computes the bounds once; the proofs are in
docs/bounds.md. app/pages/limits.py says some of it in a reading's panel, with no worker at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from app.jobs import Job
from app.pages.asking import Prompt, find_prompt
from app.pages.detail import state_of
from app.pages.formula import Piece
from app.pages.limits import between
from app.pages.named import component_of, names_of, pieces_of
from app.pages.panel import KIND_NAMES
from app.pages.view import page, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.intervals import Interval
from legible_core.interventions import Edit
from legible_core.interventions_text import number
from legible_core.reading import ReadingRequest
from legible_core.reads import check_component
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, GLYPHS, Unit, parse

router = APIRouter(prefix="/models/{slug}/readings/{digest}/bounds", default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class AskedBounds:
    """The query: None takes the prompt's last position and its most probable token."""

    position: int | None
    target: int | None
    contrast: int | None
    relative_to: Literal["nothing", "mean", "contrast"] | None
    radius: float | None

    def query(self) -> dict[str, Any]:
        return {
            "position": self.position, "target": self.target, "contrast": self.contrast,
            "relative_to": self.relative_to, "radius": self.radius,
        }  # fmt: skip


def asked_bounds(
    position: Annotated[int | None, Query(ge=0, description="0-based; the token after it is read")] = None,
    target: Annotated[int | None, Query(ge=0, description="id of the token written to")] = None,
    contrast: Annotated[int | None, Query(ge=0, description="id of the token it is compared with")] = None,
    relative_to: Literal["nothing", "mean", "contrast"] | None = None,
    radius: Annotated[str, Query(max_length=20, description="half the side of a box of normed inputs")] = "",
) -> AskedBounds:
    try:
        half = number(radius) if radius.strip() else None
    except ValueError:
        raise LegibleError(f"The radius {radius[:20]!r} is no number; give one from 0.", code="bad_interval") from None
    if half is not None:
        Interval.around([0.0], half)
    return AskedBounds(position, target, contrast, relative_to, half)


@dataclass(frozen=True, slots=True)
class BoundsPage:
    """`found` is the worker's document (docs/bounds.md), None while it has not been here."""

    title: str
    slug: str
    digest: str
    id: str
    glyph: str
    kind_name: str
    formula: tuple[Piece, ...]
    unit_href: str
    reading_href: str
    json_href: str
    fields: tuple[tuple[str, str], ...]
    radius: float | None
    message: str
    fault: bool
    poll: str
    retry: str
    against: str
    write: str
    pair: str
    box: str
    found: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Subject:
    """A unit at a prediction of a stored prompt, all of it checked."""

    prompt: Prompt
    checkpoint: Checkpoint
    unit: Unit
    request: ReadingRequest
    radius: float | None


@router.get("/{unit}.json")
def bounds_json(
    digest: str,
    unit: str,
    asked: Annotated[AskedBounds, Depends(asked_bounds)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The document of docs/bounds.md, or 202 and the job while it is not made yet."""
    job = _job(services, _subject(services, digest, unit, asked))
    if job.state != "done" or job.result is None:
        return unfinished(services, job)
    return twin(job.result)


@router.get("/{unit}")
def bounds(
    slug: str,
    digest: str,
    unit: str,
    request: Request,
    asked: Annotated[AskedBounds, Depends(asked_bounds)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """Every bound of one unit at one prediction."""
    subject = _subject(services, digest, unit, asked)
    return page(request, "bounds.html", _page(services, urls_for(request), slug, subject, asked))


def _subject(services: Services, digest: str, text: str, asked: AskedBounds) -> Subject:
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    unit = parse(text)
    if not isinstance(unit, Unit):
        raise LegibleError(f"{text[:40]} is no unit; a unit is written like L0.u0.", code="bad_component", status=404)
    check_component(checkpoint.config, unit)
    kind = checkpoint.config.feed_forward.kind(unit.unit)
    if kind not in BOUNDED:
        raise LegibleError(
            f"{unit} is a {kind} unit and has no rails, so nothing bounds what it writes; choose a set operator, a "
            "quantifier or a sigmoid unit.",
            code="unbounded",
            status=404,
        )
    stored = services.store.prompt(digest)
    edits = () if stored is None else tuple(Edit.from_json(edit) for edit in stored.edits)
    dtype: Any = prompt.dtype
    request = ReadingRequest(
        prompt.checkpoint_hash, prompt.ids, asked.position, asked.target, asked.contrast, asked.relative_to, dtype,
        edits=edits,
    )  # fmt: skip
    request.check(checkpoint.config)
    return Subject(prompt, checkpoint, unit, request, asked.radius)


def _job(services: Services, subject: Subject) -> Job:
    """The job that computes the bounds; submitted once, and again when its result was forgotten."""
    request = subject.request
    parts = (request.position, request.target, request.contrast, request.relative_to, subject.unit, subject.radius)
    key = ":".join(["bounds", subject.prompt.digest, *("-" if part is None else str(part) for part in parts)])
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {
            "request": request.to_json(), "slug": subject.prompt.slug, "unit": str(subject.unit),
            "radius": subject.radius, "text": subject.prompt.text,
        }  # fmt: skip
        job = services.queue.submit("bounds", key, payload, subject=subject.prompt.digest)
    return job


def _page(services: Services, urls: Urls, slug: str, subject: Subject, asked: AskedBounds) -> BoundsPage:
    unit, digest = subject.unit, subject.prompt.digest
    kind = subject.checkpoint.config.feed_forward.kind(unit.unit)
    names = names_of(subject.checkpoint)[0]
    name = component_of(names, unit)
    job = _job(services, subject)
    found = job.result if job.state == "done" else None
    failed = job.state in ("failed", "cancelled")
    here = urls.bounds(slug, digest, unit, **asked.query())
    place = {key: value for key, value in asked.query().items() if key != "radius"}
    return BoundsPage(
        title=f"Bounds of {unit} · {slug}",
        slug=slug,
        digest=digest,
        id=str(unit),
        glyph=GLYPHS[kind],
        kind_name=KIND_NAMES[kind],
        formula=pieces_of(names, name) if names is not None and name is not None else (),
        unit_href=urls.unit(slug, unit),
        reading_href=urls.reading(slug, digest, **place, component=unit),
        json_href=urls.json(here),
        fields=tuple((key, str(value)) for key, value in place.items() if value is not None),
        radius=subject.radius,
        message="" if found is not None else _reason(job) if failed else state_of(services, job),
        fault=failed,
        poll="" if found is not None or failed else here,
        retry=urls.job_part(job.id, "retry") if failed else "",
        against="" if found is None else _against(found),
        write="" if found is None else between(found["write"]),
        pair="" if found is None or found["pair"] is None else between(found["pair"]),
        box="" if found is None or found["box"] is None else between(found["box"]["write"]),
        found=found,
    )


def _against(found: dict[str, Any]) -> str:
    if found["contrast"] is not None:
        return f" less {found['contrast']['display']}"
    return " less the vocabulary's mean" if found["relative_to"] == "mean" else ""


def _reason(job: Job) -> str:
    return str((job.error or {}).get("message", "It was cancelled."))
