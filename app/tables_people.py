"""Tables of what people say: authors, notes with their history and words, votes, collections."""

from __future__ import annotations

from sqlalchemy import Double, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables_base import NEVER_REUSE, NO_ROWID, Base


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
        NEVER_REUSE,
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
    __table_args__ = (Index("ix_note_words_component", "checkpoint_hash", "component"), NO_ROWID)

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
    __table_args__ = (Index("ix_collections_updated_at", "updated_at"), NEVER_REUSE)

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
    __table_args__ = (NO_ROWID,)

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
