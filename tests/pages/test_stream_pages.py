"""Streams through SQL and a worker: accepted first, flagged once, whatever happens to the worker."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from page_samples import SLUG, Site, sample_text
from sqlalchemy import select

from app import watching
from app.jobs import Job
from app.monitors import MAX_PIECE_BYTES, Monitors, Moved, Progress, StoredMonitor, Stream
from app.tables import MonitorBlockRow, MonitorHitRow, MonitorPieceRow, MonitorStreamRow
from app.worker import Worker
from legible_core.checkpoint import load
from legible_core.errors import LegibleError, NotFound
from legible_core.hits import BLOCK, KEPT
from legible_core.monitor import Condition, Gate, Monitor
from legible_core.text_stream import TextStream
from legible_core.tokens import Tokenizer
from legible_core.watching import Watch

TEXT = sample_text(3, 260)
CONDITIONS = ("L1.p2.A above 0.35", "L0.u3")


def stored(site: Site, name: str = "one", *lines: str, gate: Gate | None = None) -> StoredMonitor:
    conditions = tuple(Condition.parse_line(line) for line in lines or CONDITIONS)
    return site.services.monitors.save(
        None, base=0, checkpoint_hash=site.checkpoint.hash, slug=SLUG, monitor=Monitor(name, conditions, gate)
    )


def submit(site: Site, stream: Stream) -> None:
    site.services.queue.submit(watching.KIND, watching.key(stream), {"stream": stream.id}, priority=watching.PRIORITY)


def expected(site: Site, monitor: Monitor, text: str) -> tuple[list[int], list[int], np.ndarray]:
    """(ids, offsets, flags) of the whole text in one go."""
    stream = TextStream(Tokenizer.load(site.checkpoint.tokenizer_path))
    tokens = [*stream.feed(text.encode()), *stream.end()]
    watch = Watch(load(site.checkpoint), [monitor])
    flags = np.concatenate([seen.hits[:, 0] for seen in watch.read([token.id for token in tokens])])
    return [token.id for token in tokens], [token.offset for token in tokens], flags


def check(site: Site, stream: Stream, monitor: Monitor, text: str) -> None:
    """Everything that is stored of a stream against the whole text read in one go."""
    monitors = site.services.monitors
    ids, offsets, flags = expected(site, monitor, text)
    found = monitors.stream(stream.id)
    assert (found.ended, found.tokens, found.hits) == (True, len(ids), int(flags.sum()))
    blocks = monitors.blocks([stream.id])[stream.id]
    assert [block.hits for block in blocks] == [
        int(flags[i * BLOCK : (i + 1) * BLOCK].sum()) for i in range(len(blocks))
    ]
    first = []
    for start in range(0, len(ids), BLOCK):
        first += (np.flatnonzero(flags[start : start + BLOCK])[:KEPT] + start).tolist()
    hits = monitors.hits(stream.id, limit=10_000)
    assert [hit.token for hit in hits] == first
    assert found.kept == len(hits)
    assert [(hit.id, hit.offset) for hit in hits] == [(ids[t], offsets[t]) for t in first]
    assert all(hit.context == tuple(ids[max(0, hit.token - 16) : hit.token + 1]) for hit in hits)
    assert all(set(hit.values) == {str(c) for c in monitor.components} for hit in hits)


def test_pieces_cut_anywhere_are_flagged_as_the_whole_text_and_no_text_stays(site: Site) -> None:
    monitor = stored(site)
    monitors = site.services.monitors
    stream = monitors.open_stream(monitor, dtype="float32")
    text = TEXT + " été 🙂 " + TEXT[:200]
    data = text.encode()
    cut = [0, 5, 700, len(TEXT.encode()) + 2, len(TEXT.encode()) + 9, len(data)]
    for number, (start, stop) in enumerate(pairwise(cut)):
        stream = monitors.add_piece(stream.id, data[start:stop], last=stop == len(data))
        submit(site, stream)
        if number in (0, 2):
            site.work()
            assert not monitors.stream(stream.id).ended
    site.work()
    check(site, stream, monitor.monitor, text)
    with site.services.store.database.read() as connection:
        assert connection.execute(select(MonitorPieceRow.place)).all() == []
    assert [job.state for job in site.services.queue.list()] == ["done"] * 5
    with pytest.raises(LegibleError, match="takes no more text"):
        monitors.add_piece(stream.id, b"more")


def test_a_killed_worker_leaves_every_hit_there_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "COMMIT_SECONDS", -1.0)
    monkeypatch.setattr(watching, "SLICE", 100)
    monitor = stored(site)
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=TEXT.encode(), closed=True)
    submit(site, stream)

    class Killed(BaseException):
        pass

    real, calls = Worker.between_batches, []

    def dies(self: Worker, job: Job, *given: Any) -> None:
        if job.kind == watching.KIND:  # names are indexed beside it
            calls.append(1)
            if len(calls) in (2, 5):
                raise Killed
        real(self, job, *given)

    monkeypatch.setattr(Worker, "between_batches", dies)
    for _ in range(2):
        with pytest.raises(Killed):
            site.work()
        now = site.services.monitors.stream(stream.id)
        assert now.tokens > 0
        assert not now.ended
        site.services.queue.abandon(site.worker.id)
    site.work()
    check(site, stream, monitor.monitor, TEXT)


def test_two_workers_on_one_stream_do_it_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = stored(site)
    monitors = site.services.monitors
    stream = monitors.open_stream(monitor, dtype="float32", text=TEXT.encode(), closed=True)
    submit(site, stream)
    real, moved = Monitors.commit, []

    def beaten(self: Monitors, before: Stream, progress: Progress) -> Stream:
        if not moved:  # the other one was quicker, to the same place
            real(self, before, progress)
            moved.append(1)
        return real(self, before, progress)

    monkeypatch.setattr(Monitors, "commit", beaten)
    site.work()
    check(site, stream, monitor.monitor, TEXT)
    with pytest.raises(Moved):
        real(monitors, stream, Progress({}, 0, 0))


@pytest.mark.parametrize("ending", [b"\xc3", b"\xff and more"])
def test_a_stream_that_is_no_text_says_where_and_keeps_what_stands_before(site: Site, ending: bytes) -> None:
    monitor = stored(site)
    text = TEXT[:120]
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=text.encode() + ending, closed=True)
    submit(site, stream)
    site.work()
    check(site, stream, monitor.monitor, text)
    summary = site.services.monitors.stream(stream.id).summary
    assert summary is not None
    if ending == b"\xc3":
        assert (summary["unfinished"], summary["error"]) == ("c3", None)
    else:
        assert "byte 120 (ff)" in summary["error"]["message"]


def test_a_gate_that_stops_ends_the_stream_at_its_first_hit(site: Site) -> None:
    monitor = stored(site, "stops", gate=Gate(stop=True))
    _, _, flags = expected(site, Monitor("free", monitor.monitor.conditions), TEXT)
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=TEXT.encode())
    submit(site, stream)
    site.work()
    found = site.services.monitors.stream(stream.id)
    assert found.ended
    assert (found.tokens, found.hits) == (int(np.flatnonzero(flags)[0]) + 1, 1)
    assert found.summary is not None
    assert found.summary["stopped"] is True


def test_a_generated_text_is_flagged_and_gone_on_with(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "COMMIT_SECONDS", -1.0)
    monitor = stored(site, "gate", "L1.h1 above 0.0", gate=Gate(edits=(_edit(),)))
    ids = site.services.tokenizers.call("encode", site.checkpoint.tokenizer_path, "it was the best")
    settings = {"ids": ids, "tokens": 9, "temperature": 0.8, "seed": 3}
    results = []
    for killed in (False, True):
        stream = site.services.monitors.open_stream(monitor, dtype="float32", kind="generate", settings=settings)
        submit(site, stream)
        if killed:
            with monkeypatch.context() as patch:
                real = Worker.between_batches

                def dies(self: Worker, job: Any, done: Any, total: Any, real: Any = real) -> None:
                    if done == 4:
                        raise KeyboardInterrupt
                    real(self, job, done, total)

                patch.setattr(Worker, "between_batches", dies)
                with pytest.raises(KeyboardInterrupt):
                    site.work()
            site.services.queue.abandon(site.worker.id)
        site.work()
        found = site.services.monitors.stream(stream.id)
        assert found.ended
        assert found.summary is not None
        assert found.tokens == len(ids) + len(found.summary["written"]) == found.hits
        assert found.summary["edited"] == list(range(len(ids) - 1, found.tokens - 1))
        hits = site.services.monitors.hits(stream.id)
        results.append((found.summary["written"], [(hit.token, hit.offset, hit.values) for hit in hits]))
    assert results[0][0] == results[1][0]
    assert [hit[:2] for hit in results[0][1]] == [hit[:2] for hit in results[1][1]]


def _edit() -> Any:
    from legible_core.interventions_text import parse_edit

    return parse_edit("L1.u3:scale=-4")


def test_thousands_of_hits_are_counted_and_their_contexts_thinned(site: Site) -> None:
    monitor = stored(site, "all", "L1.h0 above 0")
    text = TEXT * 4
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=text.encode(), closed=True)
    submit(site, stream)
    site.work()
    found = site.services.monitors.stream(stream.id)
    assert found.hits == found.tokens > 1000
    assert found.kept == -(-found.tokens // BLOCK) * KEPT


def test_deleting_a_monitor_forgets_all_of_it_and_its_job_says_so(site: Site) -> None:
    monitor = stored(site)
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=TEXT.encode(), closed=True)
    submit(site, stream)
    site.work()
    later = site.services.monitors.open_stream(monitor, dtype="float32", text=b"it was", closed=True)
    submit(site, later)
    site.services.monitors.delete(monitor.id)
    site.work()
    assert site.services.queue.list()[0].state == "failed"
    with site.services.store.database.read() as connection:
        for table in (MonitorStreamRow, MonitorHitRow, MonitorBlockRow, MonitorPieceRow):
            assert connection.execute(select(table)).all() == []
    with pytest.raises(NotFound):
        site.services.monitors.get(monitor.id)


def test_limits_and_conflicts_are_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monitors = site.services.monitors
    monitor = stored(site)
    with pytest.raises(LegibleError, match="already"):
        stored(site)
    edit = {"checkpoint_hash": site.checkpoint.hash, "slug": SLUG, "monitor": monitor.monitor}
    assert monitors.save(monitor.id, base=1, **edit).revision == 2
    with pytest.raises(LegibleError, match="revision 2"):
        monitors.save(monitor.id, base=1, **edit)
    stream = monitors.open_stream(monitor, dtype="float32")
    with pytest.raises(LegibleError, match="send it in several"):
        monitors.add_piece(stream.id, b"x" * (MAX_PIECE_BYTES + 1))
    monkeypatch.setattr("app.monitors.MAX_WAITING_BYTES", 10)
    monitors.add_piece(stream.id, b"x" * 8)
    with pytest.raises(LegibleError, match="8 bytes that were not read yet") as error:
        monitors.add_piece(stream.id, b"x" * 8)
    assert error.value.status == 429
    monkeypatch.setattr("app.monitors.KEPT_STREAMS", 2)
    second = monitors.open_stream(monitor, dtype="float32", text=b"it was", closed=True)
    with pytest.raises(LegibleError, match="2 streams that have not ended") as error:
        monitors.open_stream(monitor, dtype="float32")
    assert error.value.status == 429
    assert monitors.piece(stream.id, 0) == b"x" * 8, "what waits to be read is kept"
    submit(site, second)
    site.work()
    third = monitors.open_stream(monitor, dtype="float32")
    assert [kept.id for kept in monitors.streams(monitor.id)] == [third.id, stream.id], "only the ended one is gone"


def test_a_cancelled_stream_goes_on_when_it_is_tried_again(site: Site) -> None:
    monitor = stored(site)
    stream = site.services.monitors.open_stream(monitor, dtype="float32", text=TEXT.encode(), closed=True)
    submit(site, stream)
    job = site.services.queue.list()[0]
    site.services.queue.cancel(job.id)
    site.work()
    assert site.services.monitors.stream(stream.id).tokens == 0
    site.services.queue.retry(job.id)
    site.work()
    check(site, stream, monitor.monitor, TEXT)
    assert time.time() - site.services.monitors.stream(stream.id).updated_at < 600
