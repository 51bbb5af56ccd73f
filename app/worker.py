"""The worker process: claims jobs, runs their handlers, and keeps their leases alive meanwhile.

    python -m app.worker                 # on the settings of LEGIBLE_* variables; `legible worker` is the same

A handler is `handle(context) -> Outcome`. A long one calls `context.between_batches(done, total)` after each batch:
there a request to cancel ends it, and a waiting reading is run at once, so that readings wait for one batch at most.
Handlers import torch themselves; this module does not.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from sqlalchemy import Connection

from app.database import Database
from app.jobs import INTERACTIVE, Job, Queue
from app.settings import Settings
from app.store import Store
from app.supervisor import PARENT
from app.wake import Waker
from legible_core import __version__
from legible_core.errors import LegibleError

log = logging.getLogger("legible.worker")

PROGRESS_SECONDS = 0.5
ORPHAN_SECONDS = 3.0
STALLED = 70  # exit status of a worker that gave a stuck job up


class Cancelled(Exception):
    """Raised inside a handler: someone asked for the job to stop, or it is no longer this attempt's."""


class Stopping(Exception):
    """Raised inside a handler: the worker ends, and the job goes back in line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler leaves: a small JSON result, and what to write in the transaction that ends the job."""

    result: dict[str, Any] = field(default_factory=dict)
    write: Callable[[Connection], None] | None = None


Handler = Callable[["Context"], Outcome]


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may use: its job's payload, the settings and the store, and word of its progress."""

    job: Job
    settings: Settings
    store: Store
    worker: Worker

    @property
    def payload(self) -> dict[str, Any]:
        return self.job.payload

    def stage(self, name: str, done: float | None = None, total: float | None = None) -> None:
        """Say what is being done now, load, run, store or a stage of its own, and how much of it is done."""
        self.worker.report(self.job, stage=name, done=done, total=total)

    def computes_on(self, device: str) -> None:
        """Say which device is in use, once `auto` has been resolved, so that people can see it."""
        self.worker.use(device)

    def between_batches(self, done: float | None = None, total: float | None = None) -> None:
        """Call after each batch. Raises Cancelled or Stopping; runs more urgent jobs first and then returns."""
        self.worker.between_batches(self.job, done, total)

    def so_far(self, result: dict[str, Any], done: float, total: float) -> None:
        """Store what there is so far, at most twice a second; `job.result` of the next attempt if this one is lost."""
        self.worker.so_far(self.job, result, done, total)


class Worker:
    """One thread that works, one that keeps leases and notices when the work is stuck or the parent gone."""

    def __init__(self, settings: Settings, database: Database, handlers: Mapping[str, Handler], id: str) -> None:
        self.settings = settings
        self.database = database
        self.handlers = dict(handlers)
        self.id = id
        self.store = Store(database)
        self.queue = Queue(database, lease_seconds=settings.lease_seconds, max_attempts=settings.max_attempts)
        self.device = settings.device  # what was asked for, until a handler says what is in use
        self.stopping = threading.Event()
        self._waker: Waker | None = None
        self._jobs: list[Job] = []  # the running one last; those before it are paused
        self._lock = threading.Lock()
        self._sign_of_life = self._reported = time.monotonic()
        self._parent = int(os.environ.get(PARENT, "0"))

    def run(self) -> None:
        """Work until told to stop."""
        keeper = threading.Thread(target=self._keep, name="leases", daemon=True)
        keeper.start()
        with Waker(self.database) as waker:
            self._waker = waker
            while not self.stopping.is_set():
                try:
                    worked = self.work_once()
                except LegibleError as error:  # the database is away for a while
                    log.warning("%s", error)
                    self.stopping.wait(self.settings.poll_seconds)
                    continue
                if not worked and not self.stopping.is_set():
                    waker.wait(self.settings.poll_seconds)
        with contextlib.suppress(LegibleError):
            self.queue.goodbye(self.id)

    def work_once(self, *, at_least: int | None = None) -> bool:
        """Claim and run one job; False when there was none."""
        job = self.queue.claim(self.id, list(self.handlers), at_least=at_least)
        if job is None:
            return False
        self._push(job)
        try:
            self._run(job)
        finally:
            self._pop()
        return True

    @property
    def running(self) -> frozenset[int]:
        """The ids of the job that runs and of those that are paused for it."""
        with self._lock:
            return frozenset(job.id for job in self._jobs)

    def stop(self) -> None:
        """Finish no more than the current batch, then end."""
        self.stopping.set()
        if self._waker is not None:
            self._waker.interrupt()

    def use(self, device: str) -> None:
        """Remember the device in use, and say so at once."""
        if device != self.device:
            self.device = device
            self._hello()

    def report(
        self, job: Job, *, stage: str | None = None, done: float | None = None, total: float | None = None,
        result: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Store progress, which is a sign of life; raises Cancelled when the job is no longer this attempt's."""
        self._sign_of_life = self._reported = time.monotonic()
        if not self.queue.progress(job, stage=stage, done=done, total=total, result=result):
            raise Cancelled

    def so_far(self, job: Job, result: dict[str, Any], done: float, total: float) -> None:
        if time.monotonic() - self._reported > PROGRESS_SECONDS:
            self.report(job, done=done, total=total, result=result)

    def between_batches(self, job: Job, done: float | None, total: float | None) -> None:
        self._sign_of_life = time.monotonic()
        if self.stopping.is_set():
            raise Stopping
        if self.queue.cancelled(job):
            raise Cancelled
        if time.monotonic() - self._reported > PROGRESS_SECONDS:
            self.report(job, done=done, total=total)
        above = job.priority + 1  # strictly: jobs that wait inside each other are as many as there are priorities
        if job.priority < INTERACTIVE and self.queue.waiting(list(self.handlers), at_least=above):
            self.queue.progress(job, done=done, total=total, paused=True)
            while not self.stopping.is_set() and self.work_once(at_least=above):
                pass
            self.report(job, done=done, total=total)

    # -- details -----------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        """One attempt, whatever becomes of it."""
        log.info("job %s (%s), attempt %s", job.id, job.kind, job.attempt)
        context = Context(job, self.settings, self.store, self)
        try:
            outcome = self.handlers[job.kind](context)
            if not self.queue.finish(job, outcome.result, outcome.write):
                log.warning("job %s: the result of attempt %s was not accepted", job.id, job.attempt)
        except Stopping:
            self.queue.release(job)
        except Cancelled:
            self.queue.stop(job)
        except LegibleError as error:
            self._fail(job, error)
        except MemoryError:
            hint = "A shorter prompt or a smaller checkpoint needs less."
            self._fail(job, LegibleError("The worker ran out of memory.", code="out_of_memory", hint=hint, status=503))
        except Exception as error:
            log.exception("job %s failed", job.id)
            memory = "out of memory" in str(error).lower()
            message = "The worker ran out of memory." if memory else f"The worker failed ({type(error).__name__})."
            code = "out_of_memory" if memory else "internal"
            self._fail(job, LegibleError(message, code=code, hint="The reason is in its log.", status=500))

    def _fail(self, job: Job, error: LegibleError) -> None:
        """Say why the job failed; where even that cannot be stored, its lease runs out and it is tried again."""
        try:
            self.queue.fail(job, error)
        except LegibleError as unstored:
            log.error("job %s failed (%s), which could not be stored: %s", job.id, error, unstored)

    def _push(self, job: Job) -> None:
        self._sign_of_life = self._reported = time.monotonic()
        with self._lock:
            self._jobs.append(job)

    def _pop(self) -> None:
        self._sign_of_life = time.monotonic()
        with self._lock:
            self._jobs.pop()

    def _keep(self) -> None:
        """The second thread: heartbeats, the stall limit, and the parent."""
        pause = min(1.0, self.settings.lease_seconds / 4)
        beat, leave_by = float("-inf"), float("inf")
        while True:
            if self._parent and os.getppid() != self._parent:
                self.stop()
                self._parent, leave_by = 0, time.monotonic() + ORPHAN_SECONDS
            if time.monotonic() > leave_by:
                with contextlib.suppress(LegibleError):
                    self.queue.abandon(self.id, blame=False)
                os._exit(0)
            if time.monotonic() - beat > self.settings.lease_seconds / 4:
                beat = time.monotonic()
                try:
                    self._beat()
                except Exception as error:  # without this thread no lease would hold
                    log.warning("no heartbeat: %s", error)
            time.sleep(pause)

    def _beat(self) -> None:
        with self._lock:
            jobs = list(self._jobs)
        if jobs and time.monotonic() - self._sign_of_life > self.settings.stall_seconds:
            log.error(
                "job %s shows no progress for %.0f s; the worker gives it up", jobs[-1].id, self.settings.stall_seconds
            )
            for job in jobs[:-1]:
                self.queue.release(job)
            os._exit(STALLED)
        for job in jobs:
            self.queue.heartbeat(job)
        self._hello()

    def _hello(self) -> None:
        self.queue.hello(
            self.id, host=socket.gethostname(), pid=os.getpid(), version=__version__, device=self.device[:64]
        )


def die_with_parent() -> None:
    """Ask Linux to send SIGTERM when the parent ends; elsewhere the second thread notices within a second."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m app.worker", description="A worker of the Legible workbench.")
    parser.add_argument("--id", default=None, help="the worker's id; made up when left out")
    parser.add_argument("--handlers", default="app.handlers", help="the module whose `handlers(settings)` it runs")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if PARENT in os.environ:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which ends us in good order
    settings = Settings.load()
    try:
        database = _open_when_ready(settings)
    except LegibleError as error:
        sys.exit(f"legible worker: {error}")
    # Handlers load torch only when the first job needs it: a server is up at once.
    handlers: Mapping[str, Handler] = importlib.import_module(options.handlers).handlers(settings)
    worker = Worker(settings, database, handlers, options.id or uuid.uuid4().hex)

    def terminate(number: int, frame: FrameType | None) -> None:
        worker.stop()

    signal.signal(signal.SIGTERM, terminate)
    try:
        worker.run()
    finally:
        database.close()


def _open_when_ready(settings: Settings, patience: float = 60.0) -> Database:
    """The database, once the server beside us has set it up."""
    until = time.monotonic() + patience
    while True:
        try:
            return Database.open(settings, migrate=False)
        except LegibleError as error:
            if time.monotonic() > until or error.code not in ("not_migrated", "no_database", "busy"):
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    main()
