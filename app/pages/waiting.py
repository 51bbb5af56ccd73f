"""While a reading is made: load, run and store are states of their own, with the place in the line before them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from app.jobs import Job
from app.pages.asking import Prompt
from app.pages.view import twin
from app.services import Services
from legible_core.errors import LegibleError
from legible_core.registry import Checkpoint

ENDED = frozenset({"failed", "cancelled"})  # without a result
STEPS = (("load", "load the checkpoint"), ("run", "run the model"), ("store", "store the reading"))


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    done: bool
    current: bool


@dataclass(frozen=True, slots=True)
class WaitingPage:
    title: str
    slug: str
    digest: str
    tokens: tuple[str, ...]
    poll: str
    active: bool
    job: Job
    steps: tuple[Step, ...]
    said: str
    elapsed: float
    reason: str
    hint: str | None


def waiting_page(
    services: Services, prompt: Prompt, checkpoint: Checkpoint, job: Job, slug: str, poll: str
) -> WaitingPage:
    """The context of reading_waiting.html, also for a job that failed or was cancelled."""
    try:
        rows = services.tokenizers.call("describe", checkpoint.tokenizer_path, list(prompt.ids))
        tokens = tuple(str(row["display"]) for row in rows)
    except LegibleError:
        tokens = (prompt.text,)
    state = {"failed": "failed", "cancelled": "cancelled"}.get(job.state, "reading…")
    error = job.error or {}
    return WaitingPage(
        title=f"{state} · {slug}",
        slug=slug,
        digest=prompt.digest,
        tokens=tokens,
        poll=poll,
        active=job.active or job.state == "done",
        job=job,
        steps=steps(job),
        said=said(services, job),
        elapsed=max(0.0, time.time() - job.created_at),
        reason=str(error.get("message", "The reading failed.")),
        hint=error.get("hint"),
    )


def job_facts(services: Services, job: Job) -> dict[str, Any]:
    """What the JSON twin of a page says of the job that it waits for."""
    return {
        "id": job.id,
        "state": job.state,
        "stage": job.stage,
        "place": services.queue.place(job),
        "error": job.error,
    }


def unfinished(services: Services, job: Job, more: Mapping[str, Any] | None = None) -> Response:
    """The JSON of what is not made yet: 202 and the job; 422 and the error body beside it where nothing will come."""
    data = {**(more or {}), "job": job_facts(services, job)}
    if job.state not in ENDED:
        return twin(data, status=202)
    error = LegibleError(f"Job {job.id} was {job.state}.", code=job.state, hint="Open the page to try again.")
    return twin({**data, **({"error": job.error} if job.error else error.body())}, status=422)


def steps(job: Job) -> tuple[Step, ...]:
    """Wait, load, run, store; what is behind is marked as done."""
    order = [name for name, _ in STEPS]
    at = -1 if job.state == "waiting" else order.index(job.stage) if job.stage in order else 0
    if job.state == "done":
        at = len(order)
    first = Step("wait for a worker", at >= 0, at < 0)
    return (first, *(Step(text, index < at, index == at) for index, (_, text) in enumerate(STEPS)))


def said(services: Services, job: Job) -> str:
    """One sentence: the place in the line, or that nobody works."""
    if job.state == "waiting":
        if not any(worker.alive for worker in services.queue.workers()):
            return "No worker is alive yet; the reading starts as soon as one is."
        place = services.queue.place(job)
        return f"Place {place} in the line." if place else "Next."
    return "The first reading of a checkpoint loads its weights." if job.stage == "load" else "Working."
