"""Real worker processes: killed, stopped, poisoned, cancelled, orphaned; each job ends once, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from app_samples import eventually

from app.job_types import UNDER_WAY
from app.jobs import BACKGROUND, Job, Queue
from app.settings import Settings
from app.supervisor import PARENT, Supervisor

HERE = str(Path(__file__).parent)
Start = Callable[..., "subprocess.Popen[bytes]"]
# What does not touch the database in a way of its own is tried on one of the two, because processes start slowly.
on_sqlite = pytest.mark.parametrize("settings", ["sqlite"], indirect=True)


def environment(settings: Settings) -> dict[str, str]:
    return {**os.environ, **settings.environment(), "PYTHONPATH": os.pathsep.join([HERE, *sys.path])}


@pytest.fixture
def start(settings: Settings, queue: Queue) -> Iterator[Start]:
    """Start a worker process with the handlers of job_kinds.py; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "app.worker", "--handlers", "job_kinds", "--id", f"w{len(started)}"]
        process = subprocess.Popen(command, env={**environment(settings), **more}, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("")
    return path


def submit(queue: Queue, kind: str, log: Path, key: str = "k", **more: object) -> Job:
    priority = BACKGROUND if kind == "slow" else 100
    return queue.submit(kind, key, {"log": str(log), **more}, priority=priority)


def state(queue: Queue, job: Job) -> str:
    return queue.get(job.id).state


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


def test_an_idle_worker_is_woken_at_once(queue: Queue, start: Start, log: Path) -> None:
    start(LEGIBLE_POLL_SECONDS="60")
    eventually(lambda: queue.workers(), 60)
    time.sleep(0.5)  # it has looked once and waits now
    before = time.monotonic()
    job = submit(queue, "quick", log)
    eventually(lambda: state(queue, job) == "done", 60)
    assert time.monotonic() - before < 30


def test_a_job_survives_kill_9_and_is_done_once(queue: Queue, start: Start, log: Path) -> None:
    job = submit(queue, "slow", log, batches=8)
    first = start()
    eventually(lambda: len(lines(log)) >= 3, 60)
    first.kill()
    start()
    eventually(lambda: state(queue, job) == "done", 60)
    done = queue.get(job.id)
    assert done.attempt == 2
    assert done.result is not None
    assert done.result["attempt"] == 2
    events = queue.events(job.id)
    # An attempt that counts for long enough to tell is under way, once.
    begun = [event.attempt for event in events if event.event == UNDER_WAY]
    assert begun in ([], [1], [2], [1, 2])
    assert [event.event for event in events if event.event != UNDER_WAY] == [
        "submitted", "claimed", "lost", "claimed", "done",
    ]  # fmt: skip


def test_a_worker_that_stalls_past_its_lease_and_then_finishes_is_not_counted(
    queue: Queue, start: Start, log: Path, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    job = submit(queue, "stall", log, go_on=str(go_on))
    stalled = start()
    eventually(lambda: lines(log), 60)
    stop(stalled.pid, queue)
    start()
    eventually(lambda: state(queue, job) == "done", 60)
    go_on.touch()
    os.kill(stalled.pid, signal.SIGCONT)
    eventually(lambda: [event.event for event in queue.events(job.id)][-1] == "refused", 60)
    done = queue.get(job.id)
    assert (done.state, done.attempt, done.result) == ("done", 2, {"attempt": 2})
    assert [event.event for event in queue.events(job.id)].count("done") == 1


def stop(pid: int, queue: Queue) -> None:
    """Stop a process where it does not hold SQLite's write lock, which would stop everybody."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        if queue.database.path is None:
            return
        with contextlib.closing(sqlite3.connect(queue.database.path, timeout=0.1)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.02)


@on_sqlite
def test_a_job_that_is_stuck_in_a_living_worker_is_given_up(queue: Queue, start: Start, log: Path) -> None:
    job = submit(queue, "stuck", log)
    first = start(LEGIBLE_STALL_SECONDS="1")
    assert first.wait(60) == 70
    start()
    eventually(lambda: state(queue, job) == "done", 60)
    assert queue.get(job.id).attempt == 2


@on_sqlite
def test_cancel_ends_a_running_job_after_its_batch(queue: Queue, start: Start, log: Path) -> None:
    job = submit(queue, "slow", log, batches=1000)
    start()
    eventually(lambda: len(lines(log)) >= 2, 60)
    eventually(lambda: (queue.get(job.id).share or 0) > 0)
    queue.cancel(job.id)
    eventually(lambda: state(queue, job) == "cancelled", 60)
    ran = len(lines(log))
    after = submit(queue, "quick", log, "after")
    eventually(lambda: state(queue, after) == "done", 60)
    assert len(lines(log)) == ran + 1


def test_a_reading_waits_for_one_batch_of_a_scan_at_most(queue: Queue, start: Start, log: Path) -> None:
    scan = submit(queue, "slow", log, "scan", batches=20)
    start()
    eventually(lambda: len(lines(log)) >= 3, 60)
    before = len(lines(log))
    reading = submit(queue, "quick", log, "reading")
    eventually(lambda: state(queue, reading) == "done", 60)
    assert state(queue, scan) == "running"
    words = [line.split()[0] for line in lines(log)]
    assert words.index("quick") - before <= 1
    # So does whatever else a page waits for, though it is less urgent than a reading: a text that goes on.
    longer = queue.submit("quick", "longer", {"log": str(log)}, priority=50)
    eventually(lambda: state(queue, longer) == "done", 60)
    assert state(queue, scan) == "running"
    eventually(lambda: state(queue, scan) == "done", 60)
    assert [line.split()[0] for line in lines(log)].count("batch") == 20
    assert queue.get(scan.id).attempt == 1


@on_sqlite
def test_a_worker_told_to_end_puts_its_job_back(queue: Queue, start: Start, log: Path) -> None:
    job = submit(queue, "slow", log, batches=1000)
    process = start()
    eventually(lambda: lines(log), 60)
    process.terminate()
    assert process.wait(60) == 0
    found = queue.get(job.id)
    assert (found.state, found.lost) == ("waiting", 0)
    assert queue.workers() == []


@on_sqlite
def test_failures_are_sentences_and_keep_details_in_the_log(queue: Queue, start: Start, log: Path) -> None:
    refused, broken = submit(queue, "refuse", log, "a"), submit(queue, "bug", log, "b")
    start()
    eventually(lambda: state(queue, broken) == "failed", 60)
    error, internal = queue.get(refused.id).error, queue.get(broken.id).error
    assert error == {"code": "cannot", "message": "It cannot be done.", "hint": None}
    assert internal is not None
    assert internal["code"] == "internal"
    assert "secret" not in str(internal)


def test_a_worker_ends_when_its_parent_dies(sqlite_settings: Settings, tmp_path: Path) -> None:
    from app.database import Database

    queue = Queue(Database.open(sqlite_settings, migrate=True))
    log = tmp_path / "log"
    job = submit(queue, "slow", log, batches=1000)
    program = (
        "import os, subprocess, sys, time\n"
        f"os.environ[{PARENT!r}] = str(os.getpid())\n"
        "print(subprocess.Popen([sys.executable, '-m', 'app.worker', '--handlers', 'job_kinds']).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(sqlite_settings), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    eventually(lambda: log.exists(), 60)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not alive(worker), 60)
    assert queue.get(job.id).state == "waiting"
    queue.database.close()


def alive(pid: int) -> bool:
    """Whether it runs; a dead child that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestSupervisor(Supervisor):
    """The real one, on the handlers of job_kinds.py."""

    __test__ = False

    def command(self, worker: str) -> list[str]:
        return [*super().command(worker), "--handlers", "job_kinds"]


@pytest.fixture
def supervised(settings: Settings, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestSupervisor]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *sys.path]))
    # A long lease: whatever is quick here is so because the supervisor saw the worker die.
    settings = settings.model_copy(update={"workers": 1, "lease_seconds": 300.0})
    with TestSupervisor(settings, Queue(queue.database, lease_seconds=300.0)) as supervisor:
        yield supervisor


@on_sqlite
def test_a_killed_worker_is_replaced_and_its_job_finishes_once(
    queue: Queue, supervised: TestSupervisor, log: Path
) -> None:
    job = submit(queue, "slow", log, batches=10)
    eventually(lambda: len(lines(log)) >= 2, 60)
    os.kill(supervised.pids[0], signal.SIGKILL)
    eventually(lambda: state(queue, job) == "done", 60)
    assert len({line.split()[2] for line in lines(log)}) == 2
    assert [event.event for event in queue.events(job.id)].count("done") == 1


@on_sqlite
def test_a_job_that_kills_every_worker_fails_and_others_go_on(
    queue: Queue, supervised: TestSupervisor, log: Path
) -> None:
    poison = submit(queue, "poison", log, "poison")
    eventually(lambda: state(queue, poison) == "failed", 60)
    error = queue.get(poison.id).error
    assert error is not None
    assert error["message"] == "The worker stopped while it ran this job (3 times), so it is not tried again."
    assert len(lines(log)) == 3
    after = submit(queue, "quick", log, "after")
    eventually(lambda: state(queue, after) == "done", 60)


@on_sqlite
def test_the_supervisor_takes_its_workers_along(
    settings: Settings, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *sys.path]))
    with TestSupervisor(settings.model_copy(update={"workers": 2}), queue) as supervisor:
        eventually(lambda: len(queue.workers()) == 2, 60)
        pids = supervisor.pids
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert queue.workers() == []


def test_jobs_of_an_earlier_server_that_died_are_let_go(sqlite_settings: Settings) -> None:
    import socket

    from app.database import Database

    queue = Queue(Database.open(sqlite_settings, migrate=True), lease_seconds=300)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    queue.submit("quick", "k", {})
    queue.hello("dead", host=socket.gethostname(), pid=gone.pid, version="0")
    queue.hello("elsewhere", host="another", pid=gone.pid, version="0")
    assert queue.claim("dead", ["quick"]) is not None
    with Supervisor(sqlite_settings, queue):
        job = queue.claim("new", ["quick"])
    assert job is not None
    assert (job.attempt, job.lost) == (2, 0)
    assert [worker.id for worker in queue.workers()] == ["elsewhere"]
    queue.database.close()
