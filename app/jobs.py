"""The job queue: states in SQL, claimed by compare-and-set, so that any number of processes may submit and work.

    waiting ──claim──► running ──finish──► done | failed | cancelled
       ▲                  │
       └──lease lost, or released by a worker that stops

- A key is unique while its job waits or runs: the same request twice is one job.
- A claim raises `attempt`, the fencing number. Progress and results are accepted only with the current one, so a worker
  that stalled past its lease and then finishes changes nothing.
- A lease that runs out (the database's clock) puts the job back; after `max_attempts` losses it fails with the reason.
- A result is stored in the same transaction that ends the job: both happen, once, or neither.

Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, exc, func, insert, null, or_, select, update

from app import wake
from app.database import Database
from app.job_queries import JobQueries, current
from app.job_types import (
    ACTIVE,
    BACKGROUND,
    COLUMNS,
    INTERACTIVE,
    SEEN_SECONDS,
    UNDER_WAY,
    Job,
    JobEvent,
    WorkerInfo,
    job_of,
)
from app.tables import JobEventRow, JobRow, WorkerRow, clock
from legible_core.errors import Conflict, LegibleError, TooLarge

__all__ = [
    "ACTIVE", "BACKGROUND", "INTERACTIVE", "KEPT_CLOSE_UPS", "KEPT_FINISHED", "LOST", "MAX_RESULT_BYTES",
    "SEEN_SECONDS", "Job", "JobEvent", "Queue", "WorkerInfo",
]  # fmt: skip

KEPT_FINISHED = 1000
# A close-up (one head or unit over a prompt) is as long as its prompt, and made again when someone looks again: the
# newest ones are kept, so that all of them together stay under KEPT_CLOSE_UPS * MAX_RESULT_BYTES.
KEPT_CLOSE_UPS = 64
MAX_RESULT_BYTES = 4 << 20
# A slider that moves makes a job a move, and none of them says anything later: of these the rows go too, so that they
# crowd out no other job's. As many are kept as may still be asked for by pages that watch them.
PASSING, KEPT_PASSING = ("tune",), 16
LASTING = ("read", "scan", "index", "values", "similar", "generate", "pair", "check", "necessity", "sufficiency")

LOST = "The worker stopped while it ran this job"


class Queue(JobQueries):
    """Operations on jobs. Safe from many threads and many processes.

    `lease_seconds` is how long a claim holds without a heartbeat, `max_attempts` how many lost workers a job may cost.
    """

    def __init__(self, database: Database, *, lease_seconds: float = 30.0, max_attempts: int = 3) -> None:
        super().__init__(database)
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts

    # -- for pages and commands --------------------------------------------------------------------------------------

    def submit(
        self, kind: str, key: str, payload: dict[str, Any], *, priority: int = INTERACTIVE, subject: str | None = None
    ) -> Job:
        """The job for `key`: the one that waits or runs already, else a new one, committed before this returns.

        `subject` is the digest whose deletion takes the job along. A waiting job is raised to the higher priority.
        """
        for _ in range(5):
            with self.database.write() as connection:
                found = self._active(connection, key)
                if found is not None:
                    if found.priority < priority:
                        connection.execute(update(JobRow).where(JobRow.id == found.id).values(priority=priority))
                    return found
                try:
                    with connection.begin_nested():
                        job = self._insert(connection, kind, key, payload, priority, subject)
                except exc.IntegrityError:
                    continue  # Postgres: another process inserted the same key meanwhile; look again
                self._forget_old(connection)
                wake.within(connection)
            wake.after(self.database)
            return job
        raise Conflict("The same job is being submitted by others; try again.", code="busy")

    def cancel(self, job_id: int) -> Job:
        """Cancel a waiting job now; ask a running one to stop at its next batch. Conflict when it has ended already."""
        self.get(job_id)
        with self.database.write() as connection:
            waiting = connection.execute(
                update(JobRow)
                .where(JobRow.id == job_id, JobRow.state == "waiting")
                .values(state="cancelled", finished_at=clock(), cancel_requested=True)
            ).rowcount
            running = 0
            if waiting:
                self._event(connection, job_id, "cancelled")
            else:
                running = connection.execute(
                    update(JobRow).where(JobRow.id == job_id, JobRow.state == "running").values(cancel_requested=True)
                ).rowcount
        job = self.get(job_id)
        if not waiting and not running:
            raise Conflict(f"Job {job_id} is {job.state} already.", code="job_ended")
        return job

    def retry(self, job_id: int) -> Job:
        """Submit a failed or cancelled job again; Conflict while it is active or when it is done."""
        job = self.get(job_id)
        if job.state not in ("failed", "cancelled"):
            raise Conflict(f"Job {job_id} is {job.state}; only a failed or cancelled job can be tried again.")
        return self.submit(job.kind, job.key, job.payload, priority=job.priority, subject=job.subject)

    # -- for workers -------------------------------------------------------------------------------------------------

    def claim(self, worker: str, kinds: Sequence[str], *, at_least: int | None = None) -> Job | None:
        """The next job for `worker`, now running with a fresh lease and attempt number; None when there is none.

        `at_least` looks only at jobs of that priority or more: what a long job lets pass between its batches.
        """
        if not self._work_to_do():
            return None  # idle workers look often, and a look takes no lock
        with self.database.write() as connection:
            self._expire(connection)
            query = (
                select(JobRow.id, JobRow.attempt)
                .where(JobRow.state == "waiting", JobRow.kind.in_(kinds))
                .order_by(JobRow.priority.desc(), JobRow.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            if at_least is not None:
                query = query.where(JobRow.priority >= at_least)
            row = connection.execute(query).first()
            if row is None:
                return None
            claimed = connection.execute(
                update(JobRow)
                .where(JobRow.id == row.id, JobRow.attempt == row.attempt, JobRow.state == "waiting")
                .values(
                    state="running", stage="load", done=None, total=None, paused=False, attempt=row.attempt + 1,
                    worker=worker, lease_until=clock() + self.lease_seconds,
                    started_at=func.coalesce(JobRow.started_at, clock()),
                )
                .returning(*COLUMNS)
            ).first()  # fmt: skip
            if claimed is None:
                return None
            self._event(connection, row.id, "claimed", attempt=row.attempt + 1, worker=worker)
        return job_of(claimed)

    def heartbeat(self, job: Job) -> bool:
        """Extend the lease; False when the job is no longer this attempt's."""
        with self.database.write() as connection:
            return self._update(connection, job, lease_until=clock() + self.lease_seconds)

    def progress(
        self, job: Job, *, stage: str | None = None, done: float | None = None, total: float | None = None,
        result: dict[str, Any] | None = None, paused: bool = False,
    ) -> bool:  # fmt: skip
        """Say how far the attempt is, extending its lease; False when the job is no longer this attempt's.

        `result` is what there is so far: pages show it, and the next attempt goes on from it if this one is lost.

        While `paused` (the worker runs something more urgent) the loss of the worker is not this job's fault.

        Where an attempt begins to count, or to count anew (another stage, or fewer done than before), is noted as an
        event: the time left is reckoned from there, so that loading is not taken for slow work.
        """
        values = {"stage": stage, "done": done, "total": total, "result": result}
        changes: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        with self.database.write() as connection:
            before = None
            if done is not None and total is not None:
                query = select(JobRow.stage, JobRow.done).where(*current(job))
                before = connection.execute(query.with_for_update()).first()
            taken = self._update(connection, job, **changes, paused=paused, lease_until=clock() + self.lease_seconds)
            anew = before is not None and (
                before.done is None or (stage is not None and stage != before.stage) or (done or 0) < before.done
            )
            if taken and anew:
                note = f"{done:.15g} of {total:.15g}"
                self._event(connection, job.id, UNDER_WAY, attempt=job.attempt, worker=job.worker, note=note)
        return taken

    def finish(
        self, job: Job, result: dict[str, Any] | None = None, write: Callable[[Connection], None] | None = None
    ) -> bool:
        """End the attempt as done, running `write` in the same transaction; False when the result is not accepted.

        It is accepted from the current attempt only, and not after a request to cancel, which then ends the job.
        Raises TooLarge for a result over `MAX_RESULT_BYTES` of JSON.
        """
        size = len(json.dumps(result, separators=(",", ":")))
        if size > MAX_RESULT_BYTES:
            raise TooLarge(
                f"The result is {size:,} bytes long; the limit is {MAX_RESULT_BYTES:,} bytes.",
                hint="A shorter prompt, or an earlier position in it, gives a shorter one.",
            )
        with self.database.write() as connection:
            row = connection.execute(
                select(JobRow.cancel_requested).where(*current(job)).with_for_update()
            ).first()  # fmt: skip
            if row is None:
                self._refused(connection, job)
                return False
            if row.cancel_requested:
                self._end(connection, job, "cancelled")
                return False
            if write is not None:
                write(connection)
            self._end(connection, job, "done", result=result)
        return True

    def fail(self, job: Job, error: LegibleError) -> bool:
        """End the attempt as failed with the reason; False when the job is no longer this attempt's."""
        with self.database.write() as connection:
            return self._end(connection, job, "failed", error=error.body()["error"], note=error.message)

    def stop(self, job: Job) -> bool:
        """End the attempt as cancelled."""
        with self.database.write() as connection:
            return self._end(connection, job, "cancelled")

    def release(self, job: Job) -> bool:
        """Put the job back in line, because the worker stops in good order; not counted as a loss."""
        with self.database.write() as connection:
            released = self._update(connection, job, state="waiting", stage=None, worker=None, lease_until=None)
            if released:
                self._event(connection, job.id, "released", attempt=job.attempt, worker=job.worker)
                wake.within(connection)
        if released:
            wake.after(self.database)
        return released

    def abandon(self, worker: str, *, blame: bool = True) -> int:
        """End the leases of a worker that is known to be dead, so that nobody waits for them to run out.

        Without `blame` (the worker was told to end) that is not held against its jobs.
        """
        with self.database.write() as connection:
            held = and_(JobRow.worker == worker, JobRow.state == "running")
            changes: dict[str, Any] = {"lease_until": 0.0} if blame else {"lease_until": 0.0, "paused": True}
            count = connection.execute(update(JobRow).where(held).values(changes)).rowcount
            connection.execute(delete(WorkerRow).where(WorkerRow.id == worker))
            if count:
                self._expire(connection)
                wake.within(connection)
        if count:
            wake.after(self.database)
        return count

    def hello(self, worker: str, *, host: str, pid: int, version: str, device: str | None = None) -> None:
        """A worker's own heartbeat: insert or refresh its row."""
        with self.database.write() as connection:
            changed = connection.execute(
                update(WorkerRow).where(WorkerRow.id == worker).values(seen_at=clock(), device=device)
            ).rowcount
            if not changed:
                values = {"id": worker, "host": host, "pid": pid, "version": version, "device": device}
                connection.execute(insert(WorkerRow).values(**values, started_at=clock(), seen_at=clock()))

    def goodbye(self, worker: str) -> None:
        """Forget a worker that ends in good order."""
        with self.database.write() as connection:
            connection.execute(delete(WorkerRow).where(WorkerRow.id == worker))

    # -- details -----------------------------------------------------------------------------------------------------

    def _work_to_do(self) -> bool:
        """Whether anything waits or has lost its worker."""
        lost = and_(JobRow.state == "running", JobRow.lease_until < clock())
        with self.database.read() as connection:
            return (
                connection.execute(select(JobRow.id).where(or_(JobRow.state == "waiting", lost)).limit(1)).first()
                is not None
            )

    @staticmethod
    def _active(connection: Connection, key: str) -> Job | None:
        row = connection.execute(select(*COLUMNS).where(JobRow.key == key, JobRow.state.in_(ACTIVE))).first()
        return None if row is None else job_of(row)

    def _insert(
        self, connection: Connection, kind: str, key: str, payload: dict[str, Any], priority: int, subject: str | None
    ) -> Job:
        values = {
            "kind": kind, "key": key, "subject": subject, "payload": payload, "priority": priority, "state": "waiting",
            "attempt": 0, "lost": 0, "max_attempts": self.max_attempts, "paused": False, "cancel_requested": False,
            "created_at": clock(),
        }  # fmt: skip
        job = job_of(connection.execute(insert(JobRow).values(values).returning(*COLUMNS)).one())
        self._event(connection, job.id, "submitted")
        return job

    def _expire(self, connection: Connection) -> None:
        """Take running jobs whose lease ran out: cancelled if asked, failed at the cap, else back in line."""
        query = (
            select(*COLUMNS, JobRow.paused)
            .where(JobRow.state == "running", JobRow.lease_until < clock())
            .with_for_update(skip_locked=True)
        )
        for row in connection.execute(query).all():
            lost = row.lost + (0 if row.paused else 1)
            self._event(connection, row.id, "lost", attempt=row.attempt, worker=row.worker)
            job = job_of(row)
            if row.cancel_requested:
                self._end(connection, job, "cancelled", lost=lost)
            elif lost >= row.max_attempts:
                times = "once" if lost == 1 else f"{lost} times"
                reason = f"{LOST} ({times}), so it is not tried again."
                error = {"code": "worker_lost", "message": reason, "hint": "It may need more memory than there is."}
                self._end(connection, job, "failed", lost=lost, error=error, note=reason)
            else:
                self._update(connection, job, state="waiting", stage=None, worker=None, lease_until=None, lost=lost)

    @staticmethod
    def _update(connection: Connection, job: Job, **values: Any) -> bool:
        return bool(connection.execute(update(JobRow).where(*current(job)).values(values)).rowcount)

    def _end(self, connection: Connection, job: Job, state: str, *, note: str | None = None, **values: Any) -> bool:
        ended = self._update(connection, job, state=state, stage=None, lease_until=None, finished_at=clock(), **values)
        if ended:
            self._event(connection, job.id, state, attempt=job.attempt, worker=job.worker, note=note)
        else:
            self._refused(connection, job)
        return ended

    def _refused(self, connection: Connection, job: Job) -> None:
        """Remember that a late attempt came back, where its job still exists."""
        if connection.execute(select(JobRow.id).where(JobRow.id == job.id)).first() is not None:
            self._event(connection, job.id, "refused", attempt=job.attempt, worker=job.worker)

    @staticmethod
    def _event(
        connection: Connection, job_id: int, event: str, *, attempt: int = 0, worker: str | None = None,
        note: str | None = None,
    ) -> None:  # fmt: skip
        values = {"job_id": job_id, "event": event, "attempt": attempt, "worker": worker, "note": note}
        connection.execute(insert(JobEventRow).values(**values, at=clock()))

    @staticmethod
    def _forget_old(connection: Connection) -> None:
        """Keep the newest finished jobs only, and the newest close-ups, so that the table does not grow for ever."""
        ended = JobRow.state.not_in(ACTIVE)
        edge = select(JobRow.id).where(ended).order_by(JobRow.id.desc()).offset(KEPT_FINISHED).limit(1)
        oldest = connection.execute(edge).scalar()
        if oldest is not None:
            connection.execute(delete(JobRow).where(ended, JobRow.id <= oldest))
        passing = and_(ended, JobRow.kind.in_(PASSING))
        edge = select(JobRow.id).where(passing).order_by(JobRow.id.desc()).offset(KEPT_PASSING).limit(1)
        oldest = connection.execute(edge).scalar()
        if oldest is not None:
            connection.execute(delete(JobRow).where(passing, JobRow.id <= oldest))
        close_up = and_(JobRow.state == "done", JobRow.kind.not_in(LASTING), JobRow.result.is_not(None))
        edge = select(JobRow.id).where(close_up).order_by(JobRow.id.desc()).offset(KEPT_CLOSE_UPS).limit(1)
        oldest = connection.execute(edge).scalar()
        if oldest is not None:
            connection.execute(update(JobRow).where(close_up, JobRow.id <= oldest).values(result=null()))
