"""Monitors in SQL, on SQLite and on Postgres: a commit is whole and made once, and a deletion leaves nothing."""

from __future__ import annotations

import pytest
from app_samples import HASH
from sqlalchemy import select

from app.database import Database
from app.monitors import Monitors, Moved, Progress
from app.tables import MonitorBlockRow, MonitorHitRow, MonitorPieceRow, MonitorStreamRow
from legible_core.errors import Conflict, NotFound
from legible_core.hits import Block, Hit
from legible_core.monitor import Condition, Monitor

MONITOR = Monitor("one", (Condition.parse_line("L0.u1 above 0.5"),))


def test_a_commit_is_made_once_and_a_deletion_leaves_nothing(database: Database) -> None:
    monitors = Monitors(database)
    stored = monitors.save(None, base=0, checkpoint_hash=HASH, slug="tiny", monitor=MONITOR)
    with pytest.raises(Conflict):
        monitors.save(None, base=0, checkpoint_hash=HASH, slug="tiny", monitor=MONITOR)
    stream = monitors.open_stream(stored, dtype="float32", text=b"it was ")
    stream = monitors.add_piece(stream.id, b"\xff\x00", last=True)
    assert (stream.pieces, stream.received, monitors.piece(stream.id, 1)) == (2, 9, b"\xff\x00")
    hits = [Hit(0, token, 3 * token, 7, {"L0.u1": 0.75}, (5, 6, 7)) for token in (2, 4)]
    made = monitors.commit(stream, Progress({"a": 1}, 1, 5, hits, {0: Block(5, 3, 2, {"L0.u1": 1})}))
    assert (made.version, made.tokens, made.hits, made.kept, made.state) == (1, 5, 3, 2, {"a": 1})
    assert monitors.piece(stream.id, 0) is None
    with pytest.raises(Moved):
        monitors.commit(stream, Progress({}, 2, 9, [Hit(0, 6, 18, 7, {}, ())]))
    last = Progress({}, 2, 6, [], {0: Block(6, 4, 2, {"L0.u1": 2})}, ended=True, summary={"error": None})
    made = monitors.commit(made, last)
    assert (made.ended, made.hits, made.summary) == (True, 4, {"error": None})
    found = monitors.hits(stream.id)
    assert [(hit.token, hit.offset, hit.id, hit.values, hit.context) for hit in found] == [
        (token, 3 * token, 7, {"L0.u1": 0.75}, (5, 6, 7)) for token in (2, 4)
    ]
    [block] = monitors.blocks([stream.id])[stream.id]
    assert (block.tokens, block.hits, block.kept, block.on) == (6, 4, 2, {"L0.u1": 2})
    assert block.at > 1e9
    assert monitors.totals() == {stored.id: (1, 6, 4, 2)}
    assert monitors.totals(stored.id + 1) == {}
    monitors.delete(stored.id)
    with database.read() as connection:
        for table in (MonitorStreamRow, MonitorHitRow, MonitorBlockRow, MonitorPieceRow):
            assert connection.execute(select(table)).all() == []
    with pytest.raises(NotFound):
        monitors.stream(stream.id)
