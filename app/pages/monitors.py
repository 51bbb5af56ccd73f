"""Monitors: named sets of components with conditions, what they flagged, and how their rates moved.

    GET  /monitors, /monitors.json                   all of them, and a form for a new one
    POST /monitors                                   model, name, conditions (one a line), gate, edits; or `definition`
    GET  /monitors/{id}[.json], POST /monitors/{id}  the page, and an edit made from `revision`
    GET  /monitors/{id}/edit, POST /monitors/{id}/delete

The streams below a monitor are in `monitor_streams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from app.errors import wants_json
from app.monitor_figures import Bucket
from app.monitors import StoredMonitor
from app.pages.forms import form_of, revision_of
from app.pages.home import most_nameable
from app.pages.monitor_view import (
    RULE,
    ConditionView,
    DriftView,
    Span,
    StreamLine,
    checkpoint_of,
    conditions_of,
    date,
    drift_of,
    gate_said,
    line_of,
    rates_of,
    said_of,
    spans_of,
)
from app.pages.view import page, twin
from app.services import Services, services
from app.texts import newest_jobs
from app.urls import urls_for
from app.watching import key
from legible_core.errors import LegibleError
from legible_core.interventions_text import parse_edit
from legible_core.monitor import MAX_NAME, Condition, Gate, Monitor, parse_monitors
from legible_core.registry import Checkpoint
from legible_core.sampling import MAX_TOKENS

router = APIRouter(prefix="/monitors", default_response_class=HTMLResponse)

STREAMS = 20
NEWEST_HITS = 120
NEWEST_SPANS = 16


@dataclass(frozen=True, slots=True)
class MonitorLine:
    """A monitor in the list; `rate` is hits per token, None before anything was read."""

    id: int
    href: str
    name: str
    slug: str
    conditions: tuple[str, ...]
    gate: str
    streams: int
    tokens: int
    hits: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class MonitorForm:
    """The form, with what was typed and, after a refusal, the sentence that says why."""

    title: str
    action: str
    id: int | None
    revision: int
    name: str
    model: str
    models: tuple[str, ...]
    conditions: str
    gate: str
    edits: str
    error: str
    hint: str
    lines: tuple[MonitorLine, ...]
    max_name: int


@dataclass(frozen=True, slots=True)
class MonitorPage:
    """Counts over all streams; rates, drift and spans over `streams`, the newest ones."""

    hidden = ("figure", "poll", "max_tokens")

    title: str
    id: int
    slug: str
    name: str
    revision: int
    date: str
    definition: dict[str, Any]
    conditions: tuple[ConditionView, ...]
    gate: str
    rule: str
    tokens: int
    hits: int
    kept: int
    rate: float | None
    streams_in_all: int
    buckets: tuple[Bucket, ...]
    figure: Markup
    drift: tuple[DriftView, ...]
    spans: tuple[Span, ...]
    streams: tuple[StreamLine, ...]
    max_tokens: int
    poll: str


_PARTS = ("name", "conditions", "gate", "edits")
monitor_form = form_of(
    "A monitor", ("revision", "model", *_PARTS, "definition"), "the fields name, model and conditions"
)
Form = Annotated[dict[str, str], Depends(monitor_form)]
Given = Annotated[Services, Depends(services)]


@router.get(".json")
def all_json(request: Request, services: Given) -> Response:
    """The list as JSON."""
    return twin({"monitors": _lines(services, request)})


@router.get("")
def monitors(
    request: Request, services: Given, model: Annotated[str, Query(max_length=100)] = "",
    conditions: Annotated[str, Query(max_length=8000)] = "",
) -> Response:  # fmt: skip
    """All monitors, and the form for a new one, filled in with what the address names."""
    return page(request, "monitors.html", _form(services, request, model=model, conditions=conditions))


@router.post("")
def begin(request: Request, services: Given, form: Form) -> Response:
    """Store a new monitor."""
    return _save(services, request, None, form)


@router.get("/{id}.json")
def one_json(id: int, request: Request, services: Given) -> Response:
    """A monitor: its definition, exact counts, rates, drift, and the newest spans."""
    return twin(_page(services, request, services.monitors.get(id)))


@router.get("/{id}")
def one(id: int, request: Request, services: Given) -> Response:
    """The monitor's page."""
    return page(request, "monitor.html", _page(services, request, services.monitors.get(id)))


@router.get("/{id}/edit")
def edit(id: int, request: Request, services: Given) -> Response:
    """The form with what stands."""
    return page(request, "monitors.html", _form(services, request, found=services.monitors.get(id)))


@router.post("/{id}")
def save(id: int, request: Request, services: Given, form: Form) -> Response:
    """Store an edit made from the form's `revision`; streams that run go on under the old definition."""
    return _save(services, request, services.monitors.get(id), form)


@router.post("/{id}/delete")
def forget(id: int, request: Request, services: Given) -> Response:
    """Delete a monitor with its streams, their texts and hits."""
    services.monitors.delete(id)
    return RedirectResponse(urls_for(request).monitors(), status_code=303)


def _save(services: Services, request: Request, found: StoredMonitor | None, form: dict[str, str]) -> Response:
    try:
        base = revision_of(form, "The monitor", None if found is None else found.revision)
        checkpoint = _checkpoint(services, found, form)
        monitor = _monitor(form)
        _fits(monitor, checkpoint)
        made = services.monitors.save(
            None if found is None else found.id, base=base, checkpoint_hash=checkpoint.hash, slug=checkpoint.slug,
            monitor=monitor,
        )  # fmt: skip
    except LegibleError as error:
        if "definition" in form or wants_json(request.scope):  # a program's: the shared body
            raise
        return page(
            request, "monitors.html", _form(services, request, found=found, typed=form, error=error), error.status
        )
    return RedirectResponse(urls_for(request).monitors(made.id), status_code=303)


def _checkpoint(services: Services, found: StoredMonitor | None, form: dict[str, str]) -> Checkpoint:
    if found is not None:
        checkpoint, model = checkpoint_of(services, found), form.get("model")
        if model and services.catalogue.get(model).hash != checkpoint.hash:
            raise LegibleError(
                f"The field model names {model[:40]!r}, but this monitor is of {checkpoint.slug}; leave the field out, "
                "or make another monitor.",
                code="bad_field", status=422,
            )  # fmt: skip
        return checkpoint
    if not form.get("model"):
        raise LegibleError("Say which checkpoint the monitor is for, in the field model.", code="no_model", status=422)
    return services.catalogue.get(form["model"])


def _fits(monitor: Monitor, checkpoint: Checkpoint) -> None:
    """Raise what the monitor raises for this checkpoint, with the checkpoint's name: it was one of a list."""
    try:
        monitor.check(checkpoint.config)
    except LegibleError as error:
        said = f"{checkpoint.slug}: {error.message}"
        raise LegibleError(said, code=error.code, hint=error.hint, status=error.status) from None


def _monitor(form: dict[str, str]) -> Monitor:
    """The monitor of a form: its fields, or one whole definition as JSON."""
    if "definition" in form:
        if doubled := [name for name in _PARTS if name in form]:
            raise LegibleError(
                f"A monitor is one whole definition or its parts, not both; leave out definition or "
                f"{' and '.join(doubled)}.",
                code="bad_field", status=422,
            )  # fmt: skip
        found = parse_monitors(form["definition"])
        if len(found) != 1:
            raise LegibleError("Send one monitor at a time.", code="bad_monitor", status=422)
        return found[0]
    conditions = tuple(Condition.parse_line(line) for line in form.get("conditions", "").splitlines() if line.strip())
    gate = form.get("gate", "none")
    made = None
    if gate == "stop":
        made = Gate(stop=True)
    elif gate == "edit":
        made = Gate(edits=tuple(parse_edit(line) for line in form.get("edits", "").splitlines() if line.strip()))
    elif gate != "none":
        raise LegibleError(f"There is no gate {gate[:20]!r}; use none, stop or edit.", code="bad_monitor", status=422)
    return Monitor(" ".join(form.get("name", "").split()), conditions, made)


def _form(
    services: Services, request: Request, *, found: StoredMonitor | None = None, model: str = "", conditions: str = "",
    typed: dict[str, str] | None = None, error: LegibleError | None = None,
) -> MonitorForm:  # fmt: skip
    typed = typed or {}
    checkpoints = [each for each in services.catalogue.checkpoints() if not each.ordinary]
    # One that the form's own examples fit, which name an operand of a pair.
    usual = most_nameable([each for each in checkpoints if each.config.feed_forward.n_pairs])
    monitor = None if found is None else found.monitor
    lines = "" if monitor is None else "\n".join(str(condition) for condition in monitor.conditions)
    gate = "none" if monitor is None or monitor.gate is None else "stop" if monitor.gate.stop else "edit"
    edits = "" if monitor is None or gate != "edit" else "\n".join(monitor.to_json()["gate"]["edits"])
    return MonitorForm(
        title="Monitors" if found is None else f"Edit the monitor {found.monitor.name}",
        action=urls_for(request).monitors(None if found is None else found.id),
        id=None if found is None else found.id,
        revision=0 if found is None else found.revision,
        name=typed.get("name", "" if monitor is None else monitor.name),
        model=typed.get("model", model or (usual.slug if usual else "") if found is None else found.slug),
        models=tuple(checkpoint.slug for checkpoint in checkpoints),
        conditions=typed.get("conditions", conditions or lines),
        gate=typed.get("gate", gate),
        edits=typed.get("edits", edits),
        error="" if error is None else error.message,
        hint="" if error is None else error.hint or "",
        lines=() if found is not None else _lines(services, request),
        max_name=MAX_NAME,
    )


def _lines(services: Services, request: Request) -> tuple[MonitorLine, ...]:
    urls, totals = urls_for(request), services.monitors.totals()
    made = []
    for found in services.monitors.all():
        streams, tokens, hits, _ = totals.get(found.id, (0, 0, 0, 0))
        conditions = tuple(f"{c.component} {said_of(c)}".strip() for c in found.monitor.conditions)
        made.append(
            MonitorLine(
                found.id, urls.monitors(found.id), found.monitor.name, found.slug, conditions, gate_said(found.monitor),
                streams, tokens, hits, hits / tokens if tokens else None,
            )
        )  # fmt: skip
    return tuple(made)


def _page(services: Services, request: Request, found: StoredMonitor) -> MonitorPage:
    urls, monitors = urls_for(request), services.monitors
    checkpoint = checkpoint_of(services, found)
    streams = monitors.streams(found.id, limit=STREAMS)
    blocks = monitors.blocks([stream.id for stream in streams])
    buckets, figure = rates_of(blocks)
    by_id = {stream.id: stream for stream in streams}
    hits = [(by_id[id], hit) for id, hit in monitors.newest_hits(list(by_id), NEWEST_HITS)]
    jobs = newest_jobs(services.store.database, [key(stream) for stream in streams])
    lines = tuple(line_of(urls, stream, jobs.get(key(stream))) for stream in streams)
    busy = any(line.state in ("being read", "waiting for a worker") for line in lines)
    in_all, tokens, count, kept = monitors.totals(found.id).get(found.id, (0, 0, 0, 0))
    return MonitorPage(
        title=f"{found.monitor.name} · monitor of {found.slug}",
        id=found.id,
        slug=found.slug,
        name=found.monitor.name,
        revision=found.revision,
        date=date(found.updated_at),
        definition=found.monitor.to_json(),
        conditions=tuple(conditions_of(services, urls, checkpoint, found.monitor)),
        gate=gate_said(found.monitor),
        rule=RULE,
        tokens=tokens,
        hits=count,
        kept=kept,
        rate=count / tokens if tokens else None,
        streams_in_all=in_all,
        buckets=buckets,
        figure=figure,
        drift=tuple(drift_of(checkpoint, found.monitor, streams, blocks)),
        spans=tuple(spans_of(services, urls, checkpoint, found.monitor, hits, NEWEST_SPANS)),
        streams=lines,
        max_tokens=MAX_TOKENS,
        poll=urls.monitors(found.id) if busy else "",
    )
