"""The SQL schema, typed. Migrations create it; a test fails when the two drift apart.

Times are seconds since 1970 by the database's clock (`tables_base.clock`): hosts with different clocks agree on leases.
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
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.tables_base import ACTIVE, MAX_INTEGER, NEVER_REUSE, NO_ROWID, READY, Base, clock
from app.tables_monitors import MonitorBlockRow, MonitorHitRow, MonitorPieceRow, MonitorRow, MonitorStreamRow
from app.tables_names import NameComponentRow, NameEntryRow, NameOperandRow, NamesIndexRow, NameTokenRow
from app.tables_people import (
    AuthorRow,
    CollectionItemRow,
    CollectionRow,
    NoteRevisionRow,
    NoteRow,
    NoteWordRow,
    VoteRow,
)

__all__ = [
    "ACTIVE",
    "MAX_INTEGER",
    "READY",
    "AuthorRow",
    "Base",
    "CheckpointRow",
    "CollectionItemRow",
    "CollectionRow",
    "JobEventRow",
    "JobRow",
    "LeadingRow",
    "MonitorBlockRow",
    "MonitorHitRow",
    "MonitorPieceRow",
    "MonitorRow",
    "MonitorStreamRow",
    "NameComponentRow",
    "NameEntryRow",
    "NameOperandRow",
    "NameTokenRow",
    "NamesIndexRow",
    "NoteRevisionRow",
    "NoteRow",
    "NoteWordRow",
    "PromptRow",
    "ReadingRow",
    "RevisionRow",
    "VoteRow",
    "WorkerRow",
    "clock",
]


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
        NEVER_REUSE,
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
    __table_args__ = (UniqueConstraint("reading_id", "revision"), NEVER_REUSE)

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
        NEVER_REUSE,
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
    """What happened to a job, in order: submitted, claimed, lost, released, done, failed, cancelled, refused.

    And `under way`: an attempt began to count what it does; the note says from how many of how many.
    """

    __tablename__ = "job_events"
    __table_args__ = (NEVER_REUSE,)

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


class LeadingRow(Base):
    """A component among the strongest contributors of a reading: its `place` there (from 1) and its term in logits."""

    __tablename__ = "leading_contributors"
    __table_args__ = (Index("ix_leading_contributors_reading_id", "reading_id"), NO_ROWID)

    checkpoint_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    component: Mapped[str] = mapped_column(String(40), primary_key=True)
    reading_id: Mapped[int] = mapped_column(
        ForeignKey("readings.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    place: Mapped[int] = mapped_column(SmallInteger)
    term: Mapped[float] = mapped_column(Double)
    target_rank: Mapped[int | None] = mapped_column(Integer)
