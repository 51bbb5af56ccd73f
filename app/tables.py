"""The SQL schema, typed. Migrations create it; a test fails when the two drift apart.

Times are seconds since 1970 by the database's clock (`clock()` below): hosts with different clocks agree on leases.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.functions import GenericFunction

# A deleted row's id never names another row: a late attempt of a deleted job must find nothing.
_NEVER_REUSE = {"sqlite_autoincrement": True}
# Many small rows that are only looked up by their key are stored in its order on SQLite.
_NO_ROWID = {"sqlite_with_rowid": False}
ACTIVE = "state IN ('waiting', 'running')"
READY = "state = 'ready'"
MAX_INTEGER = 2**31 - 1  # what an Integer column holds on Postgres


class clock(GenericFunction[float]):
    """The database's clock as seconds since 1970, at this moment (not at the transaction's start)."""

    type = Double()
    inherit_cache = True


@compiles(clock, "sqlite")
def _clock_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(clock, "postgresql")
def _clock_postgres(element: Any, compiler: Any, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class CheckpointRow(Base):
    """A checkpoint that someone added: the slug is an alias that may move to another hash."""

    __tablename__ = "checkpoints"

    slug: Mapped[str] = mapped_column(String(100), primary_key=True)
    hash: Mapped[str] = mapped_column(String(64), index=True)
    path: Mapped[str] = mapped_column(Text)
    added_at: Mapped[float] = mapped_column(Double)


class PromptRow(Base):
    """What a digest stands for: checkpoint, token ids, edits, compute type, schema; all its readings hang on it."""

    __tablename__ = "prompts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    checkpoint_hash: Mapped[str] = mapped_column(String(64), index=True)
    slug: Mapped[str] = mapped_column(String(100))
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
    text: Mapped[bytes] = mapped_column(LargeBinary)
    edits: Mapped[list[Any]] = mapped_column(JSON)
    dtype: Mapped[str] = mapped_column(String(16))
    schema: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Double)


class ReadingRow(Base):
    """One prediction of a prompt. `contrast` is −1 where there is none, so that the unique key holds."""

    __tablename__ = "readings"
    __table_args__ = (
        UniqueConstraint("digest", "position", "target", "contrast", "relative_to"),
        Index("ix_readings_created_at", "created_at"),
        _NEVER_REUSE,
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("prompts.digest", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(Integer)
    target: Mapped[int] = mapped_column(Integer)
    contrast: Mapped[int] = mapped_column(Integer)
    relative_to: Mapped[str] = mapped_column(String(16))
    predicted: Mapped[int] = mapped_column(Integer)
    target_display: Mapped[str] = mapped_column(Text)
    probability: Mapped[float] = mapped_column(Double)
    collected_at: Mapped[float | None] = mapped_column(Double)
    created_at: Mapped[float] = mapped_column(Double)


class RevisionRow(Base):
    """The immutable result of one code version: a JSON summary and one compressed float32 array of all terms."""

    __tablename__ = "revisions"
    __table_args__ = (UniqueConstraint("reading_id", "revision"), _NEVER_REUSE)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    reading_id: Mapped[int] = mapped_column(ForeignKey("readings.id", ondelete="CASCADE"))
    revision: Mapped[int] = mapped_column(Integer)
    code_version: Mapped[str] = mapped_column(String(40))
    summary: Mapped[str] = mapped_column(Text)
    terms: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[float] = mapped_column(Double)


class JobRow(Base):
    """A unit of work. `attempt` is the fencing number that a result must carry, `lost` counts dead workers."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("uq_jobs_active_key", "key", unique=True, sqlite_where=text(ACTIVE), postgresql_where=text(ACTIVE)),
        Index("ix_jobs_queue", "state", "priority", "id"),
        _NEVER_REUSE,
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(Text, index=True)
    subject: Mapped[str | None] = mapped_column(String(64), index=True)
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    priority: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str | None] = mapped_column(String(32))
    done: Mapped[float | None] = mapped_column(Double)
    total: Mapped[float | None] = mapped_column(Double)
    attempt: Mapped[int] = mapped_column(Integer)
    lost: Mapped[int] = mapped_column(Integer)
    max_attempts: Mapped[int] = mapped_column(Integer)
    paused: Mapped[bool] = mapped_column(Boolean)
    cancel_requested: Mapped[bool] = mapped_column(Boolean)
    worker: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[float | None] = mapped_column(Double)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[float] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)


class JobEventRow(Base):
    """What happened to a job, in order: submitted, claimed, lost, released, done, failed, cancelled, refused."""

    __tablename__ = "job_events"
    __table_args__ = (_NEVER_REUSE,)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    at: Mapped[float] = mapped_column(Double)
    event: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str | None] = mapped_column(String(64))
    note: Mapped[str | None] = mapped_column(Text)


class WorkerRow(Base):
    """A worker process that is or was alive; `seen_at` is its heartbeat."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int] = mapped_column(Integer)
    device: Mapped[str | None] = mapped_column(String(64))
    version: Mapped[str] = mapped_column(String(40))
    started_at: Mapped[float] = mapped_column(Double)
    seen_at: Mapped[float] = mapped_column(Double)


class NamesIndexRow(Base):
    """One checkpoint's names as rows to search. Only a `ready` one is searched; a newer one takes its place at once.

    `names_hash` is the SHA-256 of names.json and names.safetensors; `stamp` their sizes and times, so that most looks
    need not hash them. `labels` counts, for each label, the operands and the components that have it.
    """

    __tablename__ = "names_indexes"
    __table_args__ = (
        Index(
            "uq_names_indexes_ready", "checkpoint_hash", unique=True, sqlite_where=text(READY),
            postgresql_where=text(READY),
        ),
        _NEVER_REUSE,
    )  # fmt: skip

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    checkpoint_hash: Mapped[str] = mapped_column(String(64), index=True)
    names_hash: Mapped[str] = mapped_column(String(64))
    stamp: Mapped[str] = mapped_column(String(120))
    state: Mapped[str] = mapped_column(String(16))
    labels: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Double)


class NameTokenRow(Base):
    """A token that stands in some list: its exact text, and the same folded (no outer spaces, no case)."""

    __tablename__ = "name_tokens"
    __table_args__ = (Index("ix_name_tokens_fold", "fold", "index_id"), _NO_ROWID)

    index_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    token_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    fold: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    display: Mapped[str] = mapped_column(Text)


class NameEntryRow(Base):
    """A place in a token list. Side 0 promotes, 1 promotes a rare token (both of components), 2 detects (operands).

    `weight` is the promotion or the lift, `hits` how often a detector was ON there.
    """

    __tablename__ = "name_entries"
    __table_args__ = (_NO_ROWID,)

    index_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    side: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    token_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    rank: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    weight: Mapped[float] = mapped_column(Double)
    hits: Mapped[int | None] = mapped_column(Integer)


class NameComponentRow(Base):
    """A unit, or a channel of a bounded head, by its formula. The labels a, b, promotes are keys; None: no class."""

    __tablename__ = "name_components"
    __table_args__ = (
        Index("ix_name_components_component", "component", "index_id", "place"),
        Index("ix_name_components_a", "a", "index_id", "place"),
        Index("ix_name_components_b", "b", "index_id", "place"),
        Index("ix_name_components_promotes", "promotes", "index_id", "place"),
        Index("ix_name_components_kind", "kind", "half_life", "index_id", "place"),
        _NO_ROWID,
    )

    index_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    layer: Mapped[int] = mapped_column(Integer)
    component: Mapped[str] = mapped_column(String(40))
    unit: Mapped[bool] = mapped_column(Boolean)
    kind: Mapped[str] = mapped_column(String(16))
    a: Mapped[str | None] = mapped_column(String(100))
    b: Mapped[str | None] = mapped_column(String(100))
    promotes: Mapped[str | None] = mapped_column(String(100))
    a_shown: Mapped[str | None] = mapped_column(Text)
    b_shown: Mapped[str | None] = mapped_column(Text)
    promotes_shown: Mapped[str] = mapped_column(Text)
    cls: Mapped[str | None] = mapped_column(String(12))
    on_share: Mapped[float | None] = mapped_column(Double)
    agreement: Mapped[float | None] = mapped_column(Double)
    half_life: Mapped[float | None] = mapped_column(Double)


class NameOperandRow(Base):
    """An operand by its label; `page` is the unit or head that it belongs to, `score` its agreement, −1: undefined."""

    __tablename__ = "name_operands"
    __table_args__ = (
        Index("ix_name_operands_operand", "operand", "index_id", "place"),
        Index("ix_name_operands_label", "label", "score", "index_id", "place"),
        _NO_ROWID,
    )

    index_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    layer: Mapped[int] = mapped_column(Integer)
    operand: Mapped[str] = mapped_column(String(40))
    page: Mapped[str] = mapped_column(String(40))
    label: Mapped[str | None] = mapped_column(String(100))
    shown: Mapped[str] = mapped_column(Text)
    cls: Mapped[str] = mapped_column(String(12))
    on_share: Mapped[float] = mapped_column(Double)
    score: Mapped[float] = mapped_column(Double)


class LeadingRow(Base):
    """A component among the strongest contributors of a reading: its `place` there (from 1) and its term in logits."""

    __tablename__ = "leading_contributors"
    __table_args__ = (Index("ix_leading_contributors_reading_id", "reading_id"), _NO_ROWID)

    checkpoint_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    component: Mapped[str] = mapped_column(String(40), primary_key=True)
    reading_id: Mapped[int] = mapped_column(
        ForeignKey("readings.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    place: Mapped[int] = mapped_column(SmallInteger)
    term: Mapped[float] = mapped_column(Double)
    target_rank: Mapped[int | None] = mapped_column(Integer)


class AuthorRow(Base):
    """A name that someone wrote under; `skeleton` is what of it meets the eye, so that no second one looks like it."""

    __tablename__ = "authors"

    skeleton: Mapped[str] = mapped_column(String(200), primary_key=True)
    author: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[float] = mapped_column(Double)


class NoteRow(Base):
    """What people now say of a component: a name and a note; `revision` is what an edit must have been made from."""

    __tablename__ = "notes"
    __table_args__ = (Index("ix_notes_layer", "checkpoint_hash", "layer"),)

    checkpoint_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    component: Mapped[str] = mapped_column(String(40), primary_key=True)
    layer: Mapped[int] = mapped_column(Integer)
    revision: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    author: Mapped[str] = mapped_column(String(100))
    updated_at: Mapped[float] = mapped_column(Double)


class NoteRevisionRow(Base):
    """Every state that a note ever had; ids grow with every edit, so the largest one tells whether anything changed."""

    __tablename__ = "note_revisions"
    __table_args__ = (
        UniqueConstraint("checkpoint_hash", "component", "revision"),
        Index("ix_note_revisions_checkpoint_hash_id", "checkpoint_hash", "id"),
        _NEVER_REUSE,
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    checkpoint_hash: Mapped[str] = mapped_column(String(64))
    component: Mapped[str] = mapped_column(String(40))
    revision: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    author: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[float] = mapped_column(Double)


class NoteWordRow(Base):
    """A word of a note as it now is, folded: what the search looks up."""

    __tablename__ = "note_words"
    __table_args__ = (Index("ix_note_words_component", "checkpoint_hash", "component"), _NO_ROWID)

    word: Mapped[str] = mapped_column(String(64), primary_key=True)
    checkpoint_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    component: Mapped[str] = mapped_column(String(40), primary_key=True)


class VoteRow(Base):
    """What a person thinks of a label that the machine gave; one vote a person, component and label."""

    __tablename__ = "votes"

    checkpoint_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    component: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(200), primary_key=True)
    author: Mapped[str] = mapped_column(String(100), primary_key=True)
    vote: Mapped[str] = mapped_column(String(8))
    voted_at: Mapped[float] = mapped_column(Double)


class CollectionRow(Base):
    """A findings page: a title, a text in Markdown, and items in order."""

    __tablename__ = "collections"
    __table_args__ = (Index("ix_collections_updated_at", "updated_at"), _NEVER_REUSE)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer)
    title: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    author: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[float] = mapped_column(Double)
    updated_at: Mapped[float] = mapped_column(Double)


class CollectionItemRow(Base):
    """A reading (with a digest) or a component of a checkpoint; no text of a prompt, which may be deleted."""

    __tablename__ = "collection_items"
    __table_args__ = (_NO_ROWID,)

    collection_id: Mapped[int] = mapped_column(
        ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    slug: Mapped[str] = mapped_column(String(100))
    digest: Mapped[str | None] = mapped_column(String(64))
    position: Mapped[int | None] = mapped_column(Integer)
    target: Mapped[int | None] = mapped_column(Integer)
    contrast: Mapped[int | None] = mapped_column(Integer)
    relative_to: Mapped[str | None] = mapped_column(String(16))
    component: Mapped[str | None] = mapped_column(String(40))


class MonitorRow(Base):
    """A monitor of a checkpoint: its definition as `legible_core.monitor` writes it; `revision` counts its edits."""

    __tablename__ = "monitors"
    __table_args__ = (UniqueConstraint("checkpoint_hash", "name"), _NEVER_REUSE)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    checkpoint_hash: Mapped[str] = mapped_column(String(64))
    slug: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(100))
    revision: Mapped[int] = mapped_column(Integer)
    definition: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Double)
    updated_at: Mapped[float] = mapped_column(Double)


class MonitorStreamRow(Base):
    """A text under a monitor, read or generated. `version` is the fencing number that a worker's commit must carry.

    `state` is what the next worker goes on from, written in the transaction that stores the hits up to it.
    """

    __tablename__ = "monitor_streams"
    __table_args__ = (_NEVER_REUSE,)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    monitor_id: Mapped[int] = mapped_column(ForeignKey("monitors.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    definition: Mapped[dict[str, Any]] = mapped_column(JSON)
    revision: Mapped[int] = mapped_column(Integer)
    dtype: Mapped[str] = mapped_column(String(16))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    version: Mapped[int] = mapped_column(Integer)
    state: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    pieces: Mapped[int] = mapped_column(Integer)
    consumed: Mapped[int] = mapped_column(Integer)
    received: Mapped[int] = mapped_column(Integer)
    closed: Mapped[bool] = mapped_column(Boolean)
    ended: Mapped[bool] = mapped_column(Boolean)
    tokens: Mapped[int] = mapped_column(Integer)
    hits: Mapped[int] = mapped_column(Integer)
    kept: Mapped[int] = mapped_column(Integer)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[float] = mapped_column(Double)
    updated_at: Mapped[float] = mapped_column(Double)


class MonitorPieceRow(Base):
    """Bytes that were sent to a stream and not read yet."""

    __tablename__ = "monitor_pieces"
    __table_args__ = (_NO_ROWID,)

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("monitor_streams.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class MonitorHitRow(Base):
    """A hit that kept its context: the token's place, the watched values, and the ids of what stands before it."""

    __tablename__ = "monitor_hits"
    __table_args__ = (_NO_ROWID,)

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("monitor_streams.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    token: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    offset: Mapped[int] = mapped_column(Integer)
    token_id: Mapped[int] = mapped_column(Integer)
    watched: Mapped[dict[str, Any]] = mapped_column(JSON)
    context: Mapped[bytes] = mapped_column(LargeBinary)


class MonitorBlockRow(Base):
    """Exact counts over a block of a stream's tokens; `on_counts`: how many of them each component was ON at."""

    __tablename__ = "monitor_blocks"
    __table_args__ = (_NO_ROWID,)

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("monitor_streams.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    block: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tokens: Mapped[int] = mapped_column(Integer)
    hits: Mapped[int] = mapped_column(Integer)
    kept: Mapped[int] = mapped_column(Integer)
    on_counts: Mapped[dict[str, Any]] = mapped_column(JSON)
    at: Mapped[float] = mapped_column(Double)
