"""Questions about jobs and workers that change nothing; `app.jobs.Queue` has them all. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, case, func, or_, select

from app.database import Database
from app.job_types import ACTIVE, COLUMNS, SEEN_SECONDS, UNDER_WAY, Begun, Job, JobEvent, WorkerInfo, job_of
from app.tables import MAX_INTEGER, JobEventRow, JobRow, WorkerRow, clock
from legible_core.errors import NotFound


class JobQueries:
    """Read-only operations on jobs. Each is one statement in a transaction of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, job_id: int) -> Job:
        """One job; NotFound when there is none, for instance because its reading was deleted."""
        row = None
        if 0 < job_id <= MAX_INTEGER:
            with self.database.read() as connection:
                row = connection.execute(select(*COLUMNS).where(JobRow.id == job_id)).first()
        if row is None:
            raise NotFound(f"There is no job {job_id}; finished jobs are forgotten after a while.")
        return job_of(row)

    def find(self, key: str) -> Job | None:
        """The newest job with this key, whatever its state."""
        query = select(*COLUMNS).where(JobRow.key == key).order_by(JobRow.id.desc()).limit(1)
        with self.database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else job_of(row)

    def about(self, subject: str, kind: str | None = None) -> Sequence[Job]:
        """The jobs that carry a digest, the newest first."""
        query = select(*COLUMNS).where(JobRow.subject == subject).order_by(JobRow.id.desc())
        if kind is not None:
            query = query.where(JobRow.kind == kind)
        with self.database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state that any has."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self.database.read() as connection:
            return {str(state): int(number) for state, number in connection.execute(query)}

    def list(self, *, states: Sequence[str] | None = None, limit: int = 100, start: int = 0) -> Sequence[Job]:
        """Running jobs, then waiting ones in the order of their turn, then finished ones, the newest first.

        `start` leaves out that many of the first.
        """
        rank = case((JobRow.state == "running", 0), (JobRow.state == "waiting", 1), else_=2)
        turn = case((JobRow.state == "waiting", -JobRow.priority), else_=0)
        order = case((JobRow.state.in_(ACTIVE), JobRow.id), else_=-JobRow.id)
        query = select(*COLUMNS).order_by(rank, turn, order).offset(start).limit(limit)
        if states is not None:
            query = query.where(JobRow.state.in_(states))
        with self.database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def place(self, job: Job) -> int | None:
        """The place of a waiting job in the line, 1 for the next; None once it does not wait."""
        ahead = or_(JobRow.priority > job.priority, and_(JobRow.priority == job.priority, JobRow.id <= job.id))
        query = select(func.count()).select_from(JobRow).where(JobRow.state == "waiting", ahead)
        with self.database.read() as connection:
            return int(connection.execute(query).scalar_one()) if job.state == "waiting" else None

    def events(self, job_id: int) -> Sequence[JobEvent]:
        """What happened to a job, in order."""
        query = select(*JobEventRow.__table__.c).where(JobEventRow.job_id == job_id).order_by(JobEventRow.id)
        with self.database.read() as connection:
            return [JobEvent(row.at, row.event, row.attempt, row.worker, row.note) for row in connection.execute(query)]

    def begun(self, jobs: Sequence[Job]) -> dict[int, Begun]:
        """By id, where the running ones of these jobs began to count what they do; no query where none runs."""
        attempts = {job.id: job.attempt for job in jobs if job.state == "running" and job.done is not None}
        if not attempts:
            return {}
        row = JobEventRow
        query = select(row.job_id, row.attempt, row.at, row.note).where(
            row.job_id.in_(attempts), row.event == UNDER_WAY
        )  # fmt: skip
        with self.database.read() as connection:
            found = connection.execute(query.order_by(row.id)).all()
        return {
            event.job_id: Begun(event.at, float(event.note.partition(" of ")[0]))
            for event in found
            if event.attempt == attempts[event.job_id]
        }

    def waiting(self, kinds: Sequence[str], *, at_least: int) -> bool:
        """Whether a job of that priority or more waits; cheap enough to ask between batches."""
        query = select(JobRow.id).where(
            JobRow.state == "waiting", JobRow.priority >= at_least, JobRow.kind.in_(kinds)
        )  # fmt: skip
        with self.database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def cancelled(self, job: Job) -> bool:
        """Whether this attempt should stop: someone asked, or the job is another attempt's or gone."""
        query = select(JobRow.cancel_requested).where(*current(job))
        with self.database.read() as connection:
            asked = connection.execute(query).scalar()
        return asked is None or bool(asked)

    def workers(self) -> Sequence[WorkerInfo]:
        """The worker processes seen in the last day, the newest first."""
        age = clock() - WorkerRow.seen_at
        query = (
            select(*WorkerRow.__table__.c, (age < SEEN_SECONDS).label("alive"))
            .where(age < 86400)
            .order_by(WorkerRow.started_at.desc())
        )
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return [
            WorkerInfo(row.id, row.host, row.pid, row.device, row.version, row.started_at, row.seen_at, bool(row.alive))
            for row in rows
        ]


def current(job: Job) -> tuple[Any, ...]:
    """Compare-and-set: the row is still this attempt's."""
    return (JobRow.id == job.id, JobRow.attempt == job.attempt, JobRow.state == "running")
