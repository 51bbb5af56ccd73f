"""Tables of the names that can be searched, one row a token, label, component or operand (app/names_index.py)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Double, Index, Integer, SmallInteger, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from app.tables_base import NEVER_REUSE, NO_ROWID, READY, Base


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
        NEVER_REUSE,
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
    __table_args__ = (Index("ix_name_tokens_fold", "fold", "index_id"), NO_ROWID)

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
    __table_args__ = (NO_ROWID,)

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
        NO_ROWID,
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
        NO_ROWID,
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
