"""Monitors and the streams under them, in SQL: accepted texts, exact counts, kept hits, and what a worker goes on from.

    monitors.save(None, base=0, checkpoint_hash=…, slug=…, monitor=Monitor(...))          # a new one
    stream = monitors.open_stream(monitor, dtype="float32")                               # a text to read
    monitors.add_piece(stream.id, b"...")                                                 # stored before it is accepted
    monitors.commit(stream, Progress(...))                                                # a worker's part of it, once

Hits and the state after them are written in one transaction that only the holder of the stream's `version` can make, so
that a worker that dies, or two that read the same stream, leave every hit there once. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, exc, func, insert, select, update

from app.database import Database
from app.store_types import pack_ids, unpack_ids
from app.tables import (
    MAX_INTEGER,
    MonitorBlockRow,
    MonitorHitRow,
    MonitorPieceRow,
    MonitorRow,
    MonitorStreamRow,
    clock,
)
from legible_core.errors import Conflict, LegibleError, NotFound, TooLarge
from legible_core.hits import Block, Hit
from legible_core.monitor import Monitor

MAX_PIECE_BYTES = 1 << 20
MAX_WAITING_BYTES = 16 << 20
MAX_STREAM_BYTES = 1 << 30
KEPT_STREAMS = 200


class Moved(Exception):
    """Another worker went on with the stream meanwhile; what this one has is told by that one too."""


@dataclass(frozen=True, slots=True)
class StoredMonitor:
    id: int
    checkpoint_hash: str
    slug: str
    revision: int
    monitor: Monitor
    updated_at: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A text under a monitor, `kind` read or generate. The counts are exact; `kept` hits have their context."""

    id: int
    monitor_id: int
    kind: str
    definition: dict[str, Any]
    revision: int
    dtype: str
    settings: dict[str, Any]
    version: int
    state: dict[str, Any] | None
    pieces: int
    consumed: int
    received: int
    closed: bool
    ended: bool
    tokens: int
    hits: int
    kept: int
    summary: dict[str, Any] | None
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class StoredHit:
    token: int
    offset: int
    id: int
    values: dict[str, float]
    context: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredBlock:
    block: int
    tokens: int
    hits: int
    kept: int
    on: dict[str, int]
    at: float


@dataclass(slots=True)
class Progress:
    """What a worker did since its last commit, and the state after it."""

    state: dict[str, Any]
    consumed: int
    tokens: int
    hits: list[Hit] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    ended: bool = False
    summary: dict[str, Any] | None = None


class Monitors:
    """Monitors in SQL. Safe from many threads and many processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- monitors ----------------------------------------------------------------------------------------------------

    def save(self, id: int | None, *, base: int, checkpoint_hash: str, slug: str, monitor: Monitor) -> StoredMonitor:
        """Store a new monitor (None) or an edit made from revision `base`; streams that run keep the old definition.

        Raises Conflict for a name that another monitor of the checkpoint has, or when someone else edited it meanwhile.
        """
        state = {"name": monitor.name, "definition": monitor.to_json(), "updated_at": clock()}
        try:
            with self.database.write() as connection:
                if id is None:
                    made = insert(MonitorRow).values(
                        **state, checkpoint_hash=checkpoint_hash, slug=slug, revision=1, created_at=clock()
                    )
                    id = int(connection.execute(made.returning(MonitorRow.id)).scalar_one())
                else:
                    found = _monitor(connection, id)
                    changed = connection.execute(
                        update(MonitorRow)
                        .where(MonitorRow.id == id, MonitorRow.revision == base)
                        .values(**state, revision=base + 1)
                    ).rowcount
                    if not changed:
                        raise Conflict(
                            f"Someone changed this monitor (revision {found.revision}) while you wrote.",
                            code="edited_meanwhile",
                            hint="Look at what stands there now, and save yours again if it should stand.",
                        )
                return _monitor(connection, id)
        except exc.IntegrityError:
            raise Conflict(
                f"This checkpoint has a monitor called {monitor.name!r} already; choose another name.",
                code="name_taken",
            ) from None

    def get(self, id: int) -> StoredMonitor:
        """One monitor; NotFound when there is none."""
        with self.database.read() as connection:
            return _monitor(connection, id)

    def all(self, limit: int = 200) -> list[StoredMonitor]:
        """The monitors, the last changed first."""
        query = select(*MonitorRow.__table__.c).order_by(MonitorRow.updated_at.desc(), MonitorRow.id.desc())
        with self.database.read() as connection:
            return [_monitor_of(row) for row in connection.execute(query.limit(limit))]

    def totals(self, monitor: int | None = None) -> dict[int, tuple[int, int, int, int]]:
        """For each monitor that has any (or for that one alone): streams, tokens, hits, kept hits."""
        row = MonitorStreamRow
        sums = (func.sum(row.tokens), func.sum(row.hits), func.sum(row.kept))
        query = select(row.monitor_id, func.count(), *sums).group_by(row.monitor_id)
        if monitor is not None:
            query = query.where(row.monitor_id == monitor)
        with self.database.read() as connection:
            return {id: (int(n), int(t), int(h), int(k)) for id, n, t, h, k in connection.execute(query)}

    def delete(self, id: int) -> None:
        """Forget a monitor with all its streams and hits; NotFound when there is none."""
        with self.database.write() as connection:
            _monitor(connection, id)
            connection.execute(delete(MonitorRow).where(MonitorRow.id == id))

    # -- streams -----------------------------------------------------------------------------------------------------

    def open_stream(
        self, monitor: StoredMonitor, *, dtype: str, kind: str = "read", settings: dict[str, Any] | None = None,
        text: bytes = b"", closed: bool = False,
    ) -> Stream:  # fmt: skip
        """A new stream, with its first text; of over `KEPT_STREAMS` of a monitor the oldest that ended are forgotten.

        Raises TooLarge (429) where too few have ended: no text that was accepted is dropped before it was read.
        """
        _check_size(text)
        values = {
            "monitor_id": monitor.id, "kind": kind, "definition": monitor.monitor.to_json(), "dtype": dtype,
            "revision": monitor.revision, "settings": settings or {}, "version": 0, "state": None,
            "pieces": 1 if text else 0, "consumed": 0, "received": len(text), "closed": closed, "ended": False,
            "tokens": 0, "hits": 0, "kept": 0, "summary": None, "created_at": clock(), "updated_at": clock(),
        }  # fmt: skip
        with self.database.write() as connection:
            _monitor(connection, monitor.id)
            _make_room(connection, monitor.id)
            made = insert(MonitorStreamRow).values(values).returning(MonitorStreamRow.id)
            id = int(connection.execute(made).scalar_one())
            if text:
                connection.execute(insert(MonitorPieceRow).values(stream_id=id, place=0, data=text))
            return _stream(connection, id)

    def add_piece(self, id: int, data: bytes, *, last: bool = False) -> Stream:
        """Store more of a stream's text; with `last` it is closed.

        Raises TooLarge for a piece over 1 MiB or a backlog over 16 MiB, Conflict for a stream that is closed.
        """
        _check_size(data)
        with self.database.write() as connection:
            found = _stream(connection, id)
            if found.closed or found.ended or found.kind != "read":
                raise Conflict("This stream is closed and takes no more text; open another.", code="stream_closed")
            waiting = select(func.coalesce(func.sum(func.length(MonitorPieceRow.data)), 0))
            behind = int(connection.execute(waiting.where(MonitorPieceRow.stream_id == id)).scalar_one())
            if behind + len(data) > MAX_WAITING_BYTES or found.received + len(data) > MAX_STREAM_BYTES:
                raise TooLarge(
                    f"The stream has {behind:,} bytes that were not read yet, of {found.received:,}; at most "
                    f"{MAX_WAITING_BYTES:,} may wait and {MAX_STREAM_BYTES:,} be sent in all.",
                    code="backlog",
                    hint="Wait until the worker has caught up, and send the piece again.",
                    status=429,
                )
            place = found.pieces
            if data:
                connection.execute(insert(MonitorPieceRow).values(stream_id=id, place=place, data=data))
            connection.execute(
                update(MonitorStreamRow)
                .where(MonitorStreamRow.id == id)
                .values(
                    pieces=place + (1 if data else 0), received=found.received + len(data), closed=last,
                    updated_at=clock(),
                )
            )  # fmt: skip
            return _stream(connection, id)

    def stream(self, id: int, monitor: int | None = None) -> Stream:
        """One stream (of that monitor); NotFound when there is none."""
        with self.database.read() as connection:
            found = _stream(connection, id)
        if monitor is not None and found.monitor_id != monitor:
            raise _no_stream(id)
        return found

    def streams(self, monitor: int, limit: int = 50) -> list[Stream]:
        """A monitor's streams, the newest first."""
        row = MonitorStreamRow
        query = select(*row.__table__.c).where(row.monitor_id == monitor).order_by(row.id.desc()).limit(limit)
        with self.database.read() as connection:
            return [Stream(**found._mapping) for found in connection.execute(query)]

    def delete_stream(self, id: int) -> None:
        """Forget a stream, its text and its hits."""
        with self.database.write() as connection:
            connection.execute(delete(MonitorStreamRow).where(MonitorStreamRow.id == id))

    def piece(self, id: int, place: int) -> bytes | None:
        """A piece that waits to be read."""
        query = select(MonitorPieceRow.data).where(MonitorPieceRow.stream_id == id, MonitorPieceRow.place == place)
        with self.database.read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else bytes(found)

    def hits(self, id: int, *, after: int = -1, limit: int = 500) -> list[StoredHit]:
        """The kept hits after a token, in order."""
        row = MonitorHitRow
        query = select(row.token, row.offset, row.token_id, row.watched, row.context).where(
            row.stream_id == id, row.token > after
        )
        with self.database.read() as connection:
            found = connection.execute(query.order_by(row.token).limit(limit)).all()
        return [StoredHit(t, offset, token, dict(values), unpack_ids(ids)) for t, offset, token, values, ids in found]

    def newest_hits(self, streams: Sequence[int], limit: int) -> list[tuple[int, StoredHit]]:
        """The first kept hits of several streams with the id of each one's stream, the newest stream first."""
        row = MonitorHitRow
        query = select(row.stream_id, row.token, row.offset, row.token_id, row.watched, row.context).where(
            row.stream_id.in_(streams)
        )
        with self.database.read() as connection:
            found = connection.execute(query.order_by(row.stream_id.desc(), row.token).limit(limit)).all()
        return [(id, StoredHit(t, at, token, dict(seen), unpack_ids(ids))) for id, t, at, token, seen, ids in found]

    def blocks(self, streams: Sequence[int]) -> dict[int, list[StoredBlock]]:
        """The counts by block of several streams, in order."""
        row = MonitorBlockRow
        query = select(row.stream_id, row.block, row.tokens, row.hits, row.kept, row.on_counts, row.at)
        made: dict[int, list[StoredBlock]] = {id: [] for id in streams}
        with self.database.read() as connection:
            for id, *rest in connection.execute(query.where(row.stream_id.in_(streams)).order_by(row.block)):
                made[id].append(StoredBlock(*rest))
        return made

    # -- for workers -------------------------------------------------------------------------------------------------

    def commit(self, stream: Stream, progress: Progress) -> Stream:
        """Store hits, counts and the state after them; raises `Moved` where another worker was there first."""
        row = MonitorStreamRow
        values: dict[str, Any] = {
            "version": stream.version + 1, "state": progress.state, "consumed": progress.consumed,
            "tokens": progress.tokens, "ended": progress.ended, "updated_at": clock(),
        }  # fmt: skip
        if progress.summary is not None:
            values["summary"] = progress.summary
        with self.database.write() as connection:
            current = (row.id == stream.id, row.version == stream.version)
            if not connection.execute(update(row).where(*current).values(values)).rowcount:
                raise Moved
            if progress.hits:
                connection.execute(insert(MonitorHitRow), [_hit_row(stream.id, hit) for hit in progress.hits])
            if progress.blocks:
                block = MonitorBlockRow
                where = (block.stream_id == stream.id, block.block.in_(list(progress.blocks)))
                connection.execute(delete(block).where(*where))
                rows = [_block_row(stream.id, number, found) for number, found in progress.blocks.items()]
                connection.execute(insert(block).values(at=clock()), rows)
            sums = select(
                func.coalesce(func.sum(MonitorBlockRow.hits), 0), func.coalesce(func.sum(MonitorBlockRow.kept), 0)
            )
            hits, kept = connection.execute(sums.where(MonitorBlockRow.stream_id == stream.id)).one()
            connection.execute(update(row).where(row.id == stream.id).values(hits=int(hits), kept=int(kept)))
            piece = MonitorPieceRow
            connection.execute(delete(piece).where(piece.stream_id == stream.id, piece.place < progress.consumed))
            return _stream(connection, stream.id)


def _hit_row(stream: int, hit: Hit) -> dict[str, Any]:
    return {
        "stream_id": stream, "token": hit.token, "offset": hit.offset, "token_id": hit.id, "watched": hit.values,
        "context": pack_ids(hit.context),
    }  # fmt: skip


def _block_row(stream: int, number: int, block: Block) -> dict[str, Any]:
    return {
        "stream_id": stream, "block": number, "tokens": block.tokens, "hits": block.hits, "kept": block.kept,
        "on_counts": block.on,
    }  # fmt: skip


def _check_size(data: bytes) -> None:
    if len(data) > MAX_PIECE_BYTES:
        raise TooLarge(
            f"The piece is {len(data):,} bytes long; one may hold {MAX_PIECE_BYTES:,}, so send it in several."
        )


def _make_room(connection: Connection, monitor: int) -> None:
    """Forget a monitor's oldest ended streams, so that one more is not over the limit."""
    row = MonitorStreamRow
    count = connection.execute(select(func.count()).where(row.monitor_id == monitor)).scalar_one()
    over = int(count) + 1 - KEPT_STREAMS
    if over <= 0:
        return
    ended = select(row.id).where(row.monitor_id == monitor, row.ended.is_(True)).order_by(row.id).limit(over)
    old = list(connection.execute(ended).scalars())
    if len(old) < over:
        raise TooLarge(
            f"The monitor has {count:,} streams that have not ended; at most {KEPT_STREAMS:,} are kept at a time.",
            code="too_many_streams",
            hint="Close or delete one, or wait until one was read to its end.",
            status=429,
        )
    connection.execute(delete(row).where(row.id.in_(old)))


def _monitor(connection: Connection, id: int) -> StoredMonitor:
    row = None
    if 0 < id <= MAX_INTEGER:
        row = connection.execute(select(*MonitorRow.__table__.c).where(MonitorRow.id == id)).first()
    if row is None:
        raise NotFound(f"There is no monitor {id}; the page of monitors lists those that there are.")
    return _monitor_of(row)


def _monitor_of(row: Any) -> StoredMonitor:
    try:
        monitor = Monitor.from_json(row.definition)
    except LegibleError as error:
        raise NotFound(f"Monitor {row.id} cannot be read by this version: {error.message}") from None
    return StoredMonitor(row.id, row.checkpoint_hash, row.slug, row.revision, monitor, row.updated_at)


def _stream(connection: Connection, id: int) -> Stream:
    row = None
    if 0 < id <= MAX_INTEGER:
        query = select(*MonitorStreamRow.__table__.c).where(MonitorStreamRow.id == id)
        row = connection.execute(query).first()
    if row is None:
        raise _no_stream(id)
    return Stream(**row._mapping)


def _no_stream(id: int) -> NotFound:
    return NotFound(f"There is no stream {id}; it was deleted, or its monitor was.")
