"""The queue's promises, on both databases: one job per key, one claim per attempt, nothing counted twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select, update

from app.database import Database
from app.jobs import BACKGROUND, INTERACTIVE, Job, Queue
from app.tables import CheckpointRow, JobEventRow, JobRow
from legible_core.errors import Conflict, LegibleError, NotFound, TooLarge

KINDS = ["read", "scan"]


def submit(queue: Queue, key: str = "k", **more: object) -> Job:
    return queue.submit("read", key, {"n": 1}, **more)  # type: ignore[arg-type]


def claim(queue: Queue, worker: str = "w") -> Job:
    job = queue.claim(worker, KINDS)
    assert job is not None
    return job


def lose(queue: Queue, worker: str = "w") -> None:
    """The worker dies, as its supervisor sees it."""
    queue.abandon(worker)


def names(queue: Queue, job: Job) -> list[str]:
    return [event.event for event in queue.events(job.id)]


def test_the_same_request_is_one_job_until_it_ends(queue: Queue) -> None:
    first = submit(queue)
    assert submit(queue).id == first.id
    running = claim(queue)
    assert submit(queue).id == first.id == running.id
    assert queue.finish(running)
    assert submit(queue).id != first.id


def test_many_threads_submitting_one_key_make_one_job(queue: Queue, database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {job.id for job in pool.map(lambda _: submit(queue), range(40))}
    assert len(ids) == 1
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(JobRow)).scalar() == 1


def test_many_workers_claim_each_job_once(database: Database) -> None:
    queue = Queue(database, lease_seconds=300)  # six threads on one SQLite file wait long for their turn
    expected = {submit(queue, f"k{number}").id for number in range(30)}
    claimed: list[int] = []

    def work(name: str) -> None:
        while (job := queue.claim(name, KINDS)) is not None:
            claimed.append(job.id)
            assert queue.finish(job)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(expected)


def test_more_urgent_jobs_first_then_older_ones(queue: Queue) -> None:
    scan = queue.submit("scan", "s", {}, priority=BACKGROUND)
    first, second = submit(queue, "a"), submit(queue, "b")
    assert [queue.place(job) for job in (scan, first, second)] == [3, 1, 2]
    assert [job.id for job in queue.list()] == [first.id, second.id, scan.id]
    assert [job.id for job in queue.list(start=1, limit=1)] == [second.id]
    assert queue.counts() == {"waiting": 3}
    assert [claim(queue).id for _ in range(3)] == [first.id, second.id, scan.id]
    assert queue.claim("w", KINDS) is None
    assert queue.place(queue.get(first.id)) is None


def test_asking_again_with_more_urgency_moves_a_waiting_job_forward(queue: Queue) -> None:
    submit(queue, "slow", priority=BACKGROUND)
    submit(queue, "other", priority=INTERACTIVE)
    submit(queue, "slow", priority=INTERACTIVE)
    assert claim(queue).key == "slow"


def test_a_worker_takes_only_kinds_it_knows_and_priorities_it_asks_for(queue: Queue) -> None:
    queue.submit("scan", "s", {}, priority=BACKGROUND)
    assert queue.claim("w", ["read"]) is None
    assert queue.claim("w", KINDS, at_least=INTERACTIVE) is None
    assert not queue.waiting(KINDS, at_least=INTERACTIVE)
    assert queue.waiting(KINDS, at_least=BACKGROUND)


def test_an_expired_lease_is_claimed_again_and_the_late_result_is_refused(queue: Queue, database: Database) -> None:
    submit(queue)
    late = claim(queue, "stalled")
    time.sleep(queue.lease_seconds + 0.1)
    current = claim(queue, "other")
    assert (current.id, current.attempt, current.lost) == (late.id, 2, 1)

    def write(connection: object) -> None:
        raise AssertionError("a refused result must write nothing")

    assert not queue.heartbeat(late)
    assert not queue.progress(late, done=1, total=2)
    assert queue.cancelled(late)
    assert not queue.finish(late, {"from": "late"}, write)
    assert not queue.fail(late, LegibleError("late"))
    assert not queue.release(late)
    assert queue.finish(current, {"from": "current"})
    assert not queue.finish(late, {"from": "late"}, write)
    assert queue.get(late.id).result == {"from": "current"}
    assert names(queue, late) == ["submitted", "claimed", "lost", "claimed", "refused", "refused", "done", "refused"]


def test_a_heartbeat_keeps_the_lease(queue: Queue) -> None:
    submit(queue)
    job = claim(queue)
    for _ in range(6):
        time.sleep(queue.lease_seconds / 5)
        assert queue.heartbeat(job)
    assert queue.claim("other", KINDS) is None


def test_a_job_that_kills_every_worker_fails_with_the_reason(queue: Queue) -> None:
    job = submit(queue)
    for attempt in range(1, queue.max_attempts + 1):
        assert claim(queue, f"w{attempt}").attempt == attempt
        lose(queue, f"w{attempt}")
    assert queue.claim("w", KINDS) is None
    ended = queue.get(job.id)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "worker_lost"
    assert "3 times" in ended.error["message"]
    assert names(queue, job).count("claimed") == queue.max_attempts
    assert queue.retry(job.id).id != job.id


def test_a_paused_or_released_job_is_not_blamed(queue: Queue) -> None:
    submit(queue)
    for _ in range(queue.max_attempts + 2):
        job = claim(queue)
        assert queue.progress(job, paused=True)
        lose(queue)
        assert queue.release(claim(queue))
    assert queue.get(job.id).lost == 0


def test_a_worker_told_to_end_is_not_held_against_its_job(queue: Queue) -> None:
    submit(queue)
    claim(queue)
    assert queue.abandon("w", blame=False) == 1
    assert claim(queue).lost == 0


def test_cancel(queue: Queue) -> None:
    waiting = submit(queue, "waiting")
    assert queue.cancel(waiting.id).state == "cancelled"
    assert queue.claim("w", KINDS) is None
    with pytest.raises(Conflict):
        queue.cancel(waiting.id)

    submit(queue, "running")
    running = claim(queue)
    assert not queue.cancelled(running)
    assert queue.cancel(running.id).cancel_requested
    assert queue.cancelled(running)
    assert not queue.finish(running, {"too": "late"}, lambda connection: pytest.fail("wrote after a cancel"))
    assert queue.get(running.id).state == "cancelled"
    assert queue.get(running.id).result is None


def test_a_cancelled_job_whose_worker_dies_is_not_run_again(queue: Queue) -> None:
    submit(queue)
    job = claim(queue)
    queue.cancel(job.id)
    lose(queue)
    assert queue.claim("other", KINDS) is None
    assert queue.get(job.id).state == "cancelled"


def test_result_and_end_of_job_happen_together_or_not_at_all(queue: Queue, database: Database) -> None:
    submit(queue)
    job = claim(queue)
    row = {"slug": "s", "hash": "h", "path": "p", "added_at": 0.0}

    def breaks(connection) -> None:  # type: ignore[no-untyped-def]
        connection.execute(insert(CheckpointRow).values(row))
        raise RuntimeError("after half of the writing")

    with pytest.raises(RuntimeError):
        queue.finish(job, {}, breaks)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(CheckpointRow)).scalar() == 0
    assert queue.get(job.id).state == "running"
    assert queue.finish(job, {}, lambda connection: connection.execute(insert(CheckpointRow).values(row)) and None)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(CheckpointRow)).scalar() == 1


def test_progress_and_failure_are_stored(queue: Queue) -> None:
    submit(queue)
    job = claim(queue)
    assert job.stage == "load"
    queue.progress(job, stage="run", done=3, total=12)
    seen = queue.get(job.id)
    assert (seen.stage, seen.share) == ("run", 0.25)
    queue.fail(job, LegibleError("Too long.", code="too_long", hint="Shorten it."))
    assert queue.get(job.id).error == {"code": "too_long", "message": "Too long.", "hint": "Shorten it."}
    with pytest.raises(NotFound):
        queue.get(job.id + 100)


def test_the_time_left_counts_from_where_the_work_begins(queue: Queue, database: Database) -> None:
    """An hour of loading is no slow work: the pace is that since the attempt began to count, and of this stage."""
    submit(queue)
    job = claim(queue)
    assert queue.begun([queue.get(job.id)]) == {}

    def hours_ago(hours: float) -> None:
        """Everything so far happened that much earlier."""
        with database.write() as connection:
            connection.execute(update(JobRow).values(started_at=JobRow.started_at - 3600 * hours))
            connection.execute(update(JobEventRow).values(at=JobEventRow.at - 3600 * hours))

    def left() -> float | None:
        seen = queue.get(job.id)
        found = queue.begun([seen])[job.id].left(seen, time.time())
        return None if found is None else found / 3600

    hours_ago(1)
    queue.progress(job, stage="run", done=10, total=100)
    assert left() is None, "nothing was done since"
    hours_ago(0.1)
    queue.progress(job, done=40, total=100)
    assert left() == pytest.approx(0.2, rel=0.01)
    queue.progress(job, done=0, total=100)  # it sampled a text and now reads it
    hours_ago(0.5)
    queue.progress(job, done=50, total=100)
    assert left() == pytest.approx(0.5, rel=0.01)
    assert [event.note for event in queue.events(job.id) if event.event == "under way"] == ["10 of 100", "0 of 100"]
    lose(queue)
    again = claim(queue)
    queue.progress(again, done=1, total=100)
    assert left() is None, "another attempt has a pace of its own"


def test_a_deleted_job_id_is_never_used_again(queue: Queue, database: Database) -> None:
    """Else the late result of a deleted job would end a stranger's."""
    late = submit(queue, subject="d" * 64)
    claimed = claim(queue)
    with database.write() as connection:
        connection.execute(JobRow.__table__.delete())
    assert submit(queue, "other").id > late.id
    claim(queue)
    assert not queue.finish(claimed)


def test_old_finished_jobs_are_forgotten_and_active_ones_never(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.KEPT_FINISHED", 3)
    waiting = queue.submit("other", "waiting", {})
    for number in range(8):
        submit(queue, f"k{number}")
        queue.finish(claim(queue))
    left = queue.list()
    assert waiting.id in [job.id for job in left]
    assert len(left) <= 1 + 4
    assert left[1].key == "k7"


def test_close_ups_are_bounded_in_size_and_number(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.KEPT_CLOSE_UPS", 2)
    monkeypatch.setattr("app.jobs.MAX_RESULT_BYTES", 100)
    jobs = []
    for number in range(5):
        submit(queue, f"read {number}")
        assert queue.finish(claim(queue), {"position": number})
        queue.submit("component", f"close-up {number}", {})
        job = queue.claim("w", ["component"])
        assert job is not None
        assert queue.finish(job, {"values": [number]})
        jobs.append(job)
    queue.submit("component", "long", {})
    kept = [queue.get(job.id).result for job in jobs]
    assert kept == [None, None, None, {"values": [3]}, {"values": [4]}]
    assert all(job.result for job in queue.list() if job.kind == "read"), "what a reading became is no close-up"
    job = queue.claim("w", ["component"])
    assert job is not None
    with pytest.raises(TooLarge, match="111 bytes long; the limit is 100 bytes"):
        queue.finish(job, {"values": "x" * 98})
    assert queue.get(job.id).state == "running", "the worker stores the reason, as for any failure"


def test_moves_of_sliders_leave_few_rows_behind(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.KEPT_PASSING", 2)
    submit(queue, "first")
    queue.finish(claim(queue))
    for number in range(6):
        queue.submit("tune", f"move {number}", {})
        job = queue.claim("w", ["tune"])
        assert job is not None
        queue.finish(job, {"position": number})
    waiting = queue.submit("tune", "move 6", {})
    assert [job.key for job in queue.list() if job.kind == "tune"][1:] == ["move 5", "move 4"]
    assert waiting.id in [job.id for job in queue.list()]
    assert any(job.key == "first" for job in queue.list())


def test_any_text_can_be_submitted(queue: Queue) -> None:
    text = "\x00 \ud800 🙂 שלום \r\n"
    assert queue.get(queue.submit("read", "k", {"text": text}).id).payload == {"text": text}
    job = claim(queue)
    assert queue.finish(job, {"text": text})
    assert queue.get(job.id).result == {"text": text}


def test_workers_are_listed_while_they_are_alive(queue: Queue) -> None:
    queue.hello("w", host="here", pid=1, version="0", device="cpu")
    queue.hello("w", host="here", pid=1, version="0", device="cpu")
    [worker] = queue.workers()
    assert (worker.id, worker.alive) == ("w", True)
    queue.goodbye("w")
    assert queue.workers() == []
