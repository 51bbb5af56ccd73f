"""Stored readings and added checkpoints: what survives a restart.

    stored = store.find(digest, position=11, target=1234)      # None: not read yet, submit a job
    stored.summary                                             # the reading's JSON text, schema 1
    store.delete(digest)                                       # its prompt, readings and jobs are gone

A prompt (one digest) has readings (position, target, contrast, relative_to), each with revisions; rows never change.
Imports no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, func, insert, select, tuple_, update

from app.database import Database, insert_ignore
from app.leading import put_leading
from app.store_types import (
    NO_CONTRAST,
    AddedCheckpoint,
    ReadingCard,
    Revision,
    StoredPrompt,
    StoredReading,
    card_of,
    pack_ids,
    prompt_of,
    stored_of,
    unpack_ids,
)
from app.tables import MAX_INTEGER, CheckpointRow, JobRow, PromptRow, ReadingRow, RevisionRow, clock
from legible_core import __version__
from legible_core.errors import NotFound
from legible_core.registry import slug_conflict

if TYPE_CHECKING:
    from legible_core.reading import Reading, ReadingRequest

__all__ = [
    "NO_CONTRAST", "AddedCheckpoint", "ReadingCard", "Revision", "Store", "StoredPrompt", "StoredReading", "pack_ids",
    "unpack_ids",
]  # fmt: skip

_THIS_READING = (
    ReadingRow.digest == bindparam("digest"),
    ReadingRow.position == bindparam("position"),
    ReadingRow.target == bindparam("target"),
    ReadingRow.contrast == bindparam("contrast"),
    ReadingRow.relative_to == bindparam("relative_to"),
)
_ITS_REVISIONS = select(RevisionRow.id).join(ReadingRow, ReadingRow.id == RevisionRow.reading_id).where(*_THIS_READING)
_NEWEST = _ITS_REVISIONS.order_by(RevisionRow.revision.desc()).limit(1)
_NUMBERED = _ITS_REVISIONS.where(RevisionRow.revision == bindparam("revision"))
_STORED = (
    select(
        ReadingRow.digest, ReadingRow.position, ReadingRow.target, ReadingRow.contrast, ReadingRow.relative_to,
        PromptRow.slug, PromptRow.checkpoint_hash, RevisionRow.id.label("revision_id"), RevisionRow.revision,
        RevisionRow.code_version, ReadingRow.collected_at, ReadingRow.created_at, RevisionRow.summary,
        RevisionRow.terms,
    )
    .join(PromptRow, PromptRow.digest == ReadingRow.digest)
    .join(RevisionRow, RevisionRow.reading_id == ReadingRow.id)
)  # fmt: skip


class Store:
    """Readings and checkpoints in SQL. Safe from many threads and many processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- readings ----------------------------------------------------------------------------------------------------

    def find(
        self,
        digest: str,
        *,
        position: int | None = None,
        target: int | None = None,
        contrast: int | None = None,
        relative_to: str | None = None,
        revision: int | None = None,
    ) -> StoredReading | None:
        """A revision of a reading, the newest one by default, or None when it is not stored.

        What is None takes its default: the prompt's last position, the most probable token there, no contrast.
        """
        with self.database.read() as connection:
            found = self._locate(connection, digest, position, target, contrast, relative_to, revision)
            if found is None:
                return None
            row = connection.execute(_STORED.where(RevisionRow.id == found)).one()
        return stored_of(row)

    def revisions(self, stored: StoredReading) -> list[Revision]:
        """Every revision of a stored reading, the oldest first."""
        query = (
            select(RevisionRow.revision, RevisionRow.code_version, RevisionRow.created_at)
            .join(ReadingRow, ReadingRow.id == RevisionRow.reading_id)
            .where(*_THIS_READING)
            .order_by(RevisionRow.revision)
        )
        key = {
            "digest": stored.digest,
            "position": stored.position,
            "target": stored.target,
            "contrast": NO_CONTRAST if stored.contrast is None else stored.contrast,
            "relative_to": stored.relative_to,
        }
        with self.database.read() as connection:
            return [Revision(*row) for row in connection.execute(query, key)]

    def revision_id(
        self,
        digest: str,
        *,
        position: int | None = None,
        target: int | None = None,
        contrast: int | None = None,
        relative_to: str | None = None,
    ) -> int | None:
        """`find(...).revision_id` without fetching the row: a page's ETag costs one look at an index."""
        with self.database.read() as connection:
            return self._locate(connection, digest, position, target, contrast, relative_to)

    def predicted(self, digest: str, position: int | None = None) -> int | None:
        """The most probable token at a position (None: the last), when any reading there is stored."""
        with self.database.read() as connection:
            resolved = self._resolve(connection, digest, position, None)
        return None if resolved is None else resolved[1]

    def shown(self, places: Collection[tuple[str, int, int]]) -> dict[tuple[str, int, int], tuple[str, str]]:
        """The text and the shown target of readings by digest, position and target, in one query.

        What is not stored is left out.
        """
        if not places:
            return {}
        where = (ReadingRow.digest, ReadingRow.position, ReadingRow.target)
        query = (
            select(*where, PromptRow.text, ReadingRow.target_display)
            .join(PromptRow, PromptRow.digest == ReadingRow.digest)
            .where(tuple_(*where).in_(list(places)))
        )
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return {(d, p, t): (text.decode("utf-8", "surrogatepass"), display) for d, p, t, text, display in rows}

    def prompt(self, digest: str) -> StoredPrompt | None:
        """The prompt behind a digest; None when nothing of it is stored."""
        with self.database.read() as connection:
            row = connection.execute(select(*PromptRow.__table__.c).where(PromptRow.digest == digest)).first()
        return None if row is None else prompt_of(row)

    def put_reading(
        self, request: ReadingRequest, reading: Reading, *, slug: str, text: str, connection: Connection | None = None
    ) -> int:
        """Store a finished reading and return its revision id; the same bytes from the same code are stored once.

        With `connection`, in that transaction: a worker stores a result together with the end of its job.
        """
        with self._transaction(connection) as using:
            self._put_prompt(using, request, reading, slug, text)
            reading_id = self._put_row(using, reading)
            summary = reading.summary_json()
            newest = using.execute(
                select(RevisionRow.id, RevisionRow.revision, RevisionRow.code_version)
                .where(RevisionRow.reading_id == reading_id)
                .order_by(RevisionRow.revision.desc())
                .limit(1)
            ).first()
            if newest is not None and newest.code_version == __version__:
                return int(newest.id)
            put_leading(using, reading_id, request.checkpoint, reading)
            values = {
                "reading_id": reading_id,
                "revision": 1 if newest is None else newest.revision + 1,
                "code_version": __version__,
                "summary": summary,
                "terms": reading.pack(),
                "created_at": clock(),
            }
            return int(using.execute(insert(RevisionRow).values(values).returning(RevisionRow.id)).scalar_one())

    def delete(self, digest: str) -> None:
        """Forget a prompt: its text, its readings, and the jobs that carry it. NotFound when there is none.

        A job that still computes it can no longer store its result. Copies made before a migration go as well, because
        they hold the text too; the freed pages of the database are overwritten.
        """
        with self.database.write() as connection:
            prompts = connection.execute(delete(PromptRow).where(PromptRow.digest == digest)).rowcount
            jobs = connection.execute(delete(JobRow).where(JobRow.subject == digest)).rowcount
        if prompts + jobs == 0:
            raise NotFound(f"There is no stored reading {digest[:12]}; it may have been deleted already.")
        if self.database.path is not None:
            shutil.rmtree(self.database.path.parent / "backups", ignore_errors=True)
            self.database.forget_log()

    def collect(self, digest: str, *, position: int, target: int, contrast: int | None = None,
                relative_to: str | None = None, on: bool = True) -> None:  # fmt: skip
        """Put a reading into the collection, or take it out. NotFound when it is not stored."""
        with self.database.write() as connection:
            changed = connection.execute(
                update(ReadingRow)
                .where(
                    ReadingRow.digest == digest,
                    ReadingRow.position == position,
                    ReadingRow.target == target,
                    ReadingRow.contrast == (NO_CONTRAST if contrast is None else contrast),
                    ReadingRow.relative_to == _relative_to(relative_to, contrast),
                )
                .values(collected_at=clock() if on else None)
            ).rowcount
        if not changed:
            raise NotFound(f"There is no stored reading {digest[:12]} at position {position} for token {target}.")

    def readings(
        self,
        *,
        checkpoint_hash: str | None = None,
        collected: bool = False,
        limit: int = 20,
        before: float | None = None,
    ) -> list[ReadingCard]:
        """The newest readings, newest first; page on with `before=cards[-1].created_at`."""
        query = (
            select(
                *ReadingRow.__table__.c,
                PromptRow.slug,
                PromptRow.checkpoint_hash,
                PromptRow.text,
                func.length(PromptRow.token_ids).label("size"),
            )
            .join(PromptRow, PromptRow.digest == ReadingRow.digest)
            .order_by(ReadingRow.created_at.desc(), ReadingRow.id.desc())
            .limit(limit)
        )
        if checkpoint_hash is not None:
            query = query.where(PromptRow.checkpoint_hash == checkpoint_hash)
        if collected:
            query = query.where(ReadingRow.collected_at.is_not(None))
        if before is not None:
            query = query.where(ReadingRow.created_at < before)
        with self.database.read() as connection:
            return [card_of(row) for row in connection.execute(query)]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def add_checkpoint(self, slug: str, hash: str, path: str, *, move: bool = False) -> None:
        """Remember a folder under a slug. A slug that names another hash moves only with `move`, else Conflict."""
        with self.database.write() as connection:
            there = connection.execute(select(CheckpointRow.hash).where(CheckpointRow.slug == slug)).scalar()
            if there is not None and there != hash and not move:
                raise slug_conflict(slug, there)
            connection.execute(delete(CheckpointRow).where(CheckpointRow.slug == slug))
            connection.execute(insert(CheckpointRow).values(slug=slug, hash=hash, path=path, added_at=clock()))

    def remove_checkpoint(self, slug: str) -> None:
        """Forget a slug; the folder and the stored readings stay. NotFound when there is none."""
        with self.database.write() as connection:
            if not connection.execute(delete(CheckpointRow).where(CheckpointRow.slug == slug)).rowcount:
                raise NotFound(f"No checkpoint was added as {slug!r}.")

    def checkpoints(self) -> list[AddedCheckpoint]:
        """The added checkpoints, by slug."""
        with self.database.read() as connection:
            rows = connection.execute(select(*CheckpointRow.__table__.c).order_by(CheckpointRow.slug)).all()
        return [AddedCheckpoint(row.slug, row.hash, row.path, row.added_at) for row in rows]

    def slug_of(self, checkpoint_hash: str) -> str | None:
        """The slug under which these weights were added, else the one that they were last read under."""
        added = select(CheckpointRow.slug).where(CheckpointRow.hash == checkpoint_hash)
        read = select(PromptRow.slug).where(PromptRow.checkpoint_hash == checkpoint_hash)
        with self.database.read() as connection:
            found = connection.scalar(added.order_by(CheckpointRow.added_at.desc()).limit(1))
            return found or connection.scalar(read.order_by(PromptRow.created_at.desc()).limit(1))

    # -- details -----------------------------------------------------------------------------------------------------

    def _transaction(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self.database.write() if connection is None else nullcontext(connection)

    def _locate(
        self,
        connection: Connection,
        digest: str,
        position: int | None,
        target: int | None,
        contrast: int | None,
        relative_to: str | None,
        revision: int | None = None,
    ) -> int | None:
        """The id of a revision of a reading, the newest one by default."""
        resolved = self._resolve(connection, digest, position, target)
        if resolved is None or max(contrast or 0, revision or 0) > MAX_INTEGER:
            return None
        numbered = {} if revision is None else {"revision": revision}
        found = connection.execute(
            _NEWEST if revision is None else _NUMBERED,
            numbered
            | {
                "digest": digest,
                "position": resolved[0],
                "target": resolved[1],
                "contrast": NO_CONTRAST if contrast is None else contrast,
                "relative_to": _relative_to(relative_to, contrast),
            },
        ).scalar()
        return None if found is None else int(found)

    @staticmethod
    def _resolve(
        connection: Connection, digest: str, position: int | None, target: int | None
    ) -> tuple[int, int] | None:
        """The explicit (position, target) of a request; None when they cannot be known from what is stored."""
        if (position or 0) > MAX_INTEGER or (target or 0) > MAX_INTEGER:
            return None  # no column holds it, so nothing with it is stored
        if position is None:
            size = connection.execute(
                select(func.length(PromptRow.token_ids)).where(PromptRow.digest == digest)
            ).scalar()
            if size is None:
                return None
            position = size // 4 - 1
        if target is None:
            target = connection.execute(
                select(ReadingRow.predicted)
                .where(ReadingRow.digest == digest, ReadingRow.position == position)
                .limit(1)
            ).scalar()
        return None if target is None else (position, target)

    @staticmethod
    def _put_prompt(using: Connection, request: ReadingRequest, reading: Reading, slug: str, text: str) -> None:
        insert_ignore(
            using,
            PromptRow,
            {
                "digest": reading.digest,
                "checkpoint_hash": request.checkpoint,
                "slug": slug,
                "token_ids": pack_ids(request.ids),
                "text": text.encode("utf-8", "surrogatepass"),
                "edits": request.to_json()["edits"],
                "dtype": request.dtype,
                "schema": reading.summary.schema_version,
                "created_at": clock(),
            },
        )

    @staticmethod
    def _put_row(using: Connection, reading: Reading) -> int:
        key = {
            "digest": reading.digest,
            "position": reading.position,
            "target": reading.target.id,
            "contrast": NO_CONTRAST if reading.contrast is None else reading.contrast.id,
            "relative_to": reading.relative_to,
        }
        more = {
            "predicted": reading.predictions[0].id,
            "target_display": reading.target.display,
            "probability": reading.target.probability,
            "created_at": clock(),
        }
        insert_ignore(using, ReadingRow, {**key, **more})
        where = [getattr(ReadingRow, name) == value for name, value in key.items()]
        return int(using.execute(select(ReadingRow.id).where(*where)).scalar_one())


def _relative_to(relative_to: str | None, contrast: int | None) -> str:
    return relative_to or ("nothing" if contrast is None else "contrast")
