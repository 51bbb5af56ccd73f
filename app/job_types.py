"""What a job is: its row, its events, the workers, and the states and priorities they know; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from app.tables import JobRow

INTERACTIVE = 100
BACKGROUND = 0
ACTIVE = ("waiting", "running")
SEEN_SECONDS = 30.0
# The event of an attempt that began to count what it does; its note says from how many of how many.
UNDER_WAY = "under way"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as stored. Times are seconds since 1970; `place` counts the jobs before a waiting one, itself included.

    `stage` says what a running job does now (load, run, store); `error` is the inner object of the shared error body.
    """

    id: int
    kind: str
    key: str
    subject: str | None
    payload: dict[str, Any]
    priority: int
    state: str
    stage: str | None
    done: float | None
    total: float | None
    attempt: int
    lost: int
    max_attempts: int
    cancel_requested: bool
    worker: str | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None while that is unknown."""
        return None if not self.total or self.done is None else min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Begun:
    """When a running attempt began to count, and how much was done by then."""

    at: float
    done: float

    def left(self, job: Job, now: float) -> float | None:
        """Seconds until the job is done at the pace since; None before there is a pace."""
        if job.total is None or job.done is None or job.done <= self.done or now <= self.at:
            return None
        return max(0.0, job.total - job.done) * (now - self.at) / (job.done - self.done)


@dataclass(frozen=True, slots=True)
class JobEvent:
    at: float
    event: str
    attempt: int
    worker: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker process; `alive` while its heartbeat is recent."""

    id: str
    host: str
    pid: int
    device: str | None
    version: str
    started_at: float
    seen_at: float
    alive: bool


COLUMNS = [getattr(JobRow, field.name) for field in fields(Job)]


def job_of(row: Any) -> Job:
    """A job from a row that has `COLUMNS`."""
    return Job(**{field.name: row._mapping[field.name] for field in fields(Job)})
