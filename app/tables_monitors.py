"""Tables of monitors: their definitions, the texts under them, and what they found there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Double, ForeignKey, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables_base import NEVER_REUSE, NO_ROWID, Base


class MonitorRow(Base):
    """A monitor of a checkpoint: its definition as `legible_core.monitor` writes it; `revision` counts its edits."""

    __tablename__ = "monitors"
    __table_args__ = (UniqueConstraint("checkpoint_hash", "name"), NEVER_REUSE)

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
    __table_args__ = (NEVER_REUSE,)

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
    __table_args__ = (NO_ROWID,)

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("monitor_streams.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class MonitorHitRow(Base):
    """A hit that kept its context: the token's place, the watched values, and the ids of what stands before it."""

    __tablename__ = "monitor_hits"
    __table_args__ = (NO_ROWID,)

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
    __table_args__ = (NO_ROWID,)

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("monitor_streams.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    block: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tokens: Mapped[int] = mapped_column(Integer)
    hits: Mapped[int] = mapped_column(Integer)
    kept: Mapped[int] = mapped_column(Integer)
    on_counts: Mapped[dict[str, Any]] = mapped_column(JSON)
    at: Mapped[float] = mapped_column(Double)
