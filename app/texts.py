"""Texts that components are seen over: stored as prompts are, as token ids and bytes, under the same digest.

A text may be longer than a checkpoint's context. It shares its row with the prompt of a reading where both are the same
computation; `Store.delete` forgets either with everything that hangs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

from sqlalchemy import Connection, select

from app.database import Database
from app.job_types import COLUMNS, Job, job_of
from app.store_types import pack_ids
from app.tables import JobRow, PromptRow, clock
from legible_core.reading import SCHEMA, digest


def put_text(
    database: Database,
    checkpoint_hash: str,
    ids: Sequence[int],
    text: str,
    *,
    slug: str,
    dtype: Literal["float32", "bfloat16"],
    connection: Connection | None = None,
) -> str:
    """Store a text, once, and return its digest; with `connection`, in that transaction."""
    made = digest(checkpoint_hash, ids, (), dtype)
    values: dict[str, Any] = {
        "digest": made,
        "checkpoint_hash": checkpoint_hash,
        "slug": slug,
        "token_ids": pack_ids(ids),
        "text": text.encode("utf-8", "surrogatepass"),
        "edits": [],
        "dtype": dtype,
        "schema": SCHEMA,
        "created_at": clock(),
    }
    with database.write() if connection is None else nullcontext(connection) as using:
        if using.dialect.name == "sqlite":
            from sqlalchemy.dialects.sqlite import insert as insert_sqlite

            using.execute(insert_sqlite(PromptRow).values(values).on_conflict_do_nothing())
        else:
            from sqlalchemy.dialects.postgresql import insert as insert_postgres

            using.execute(insert_postgres(PromptRow).values(values).on_conflict_do_nothing())
    return made


def newest_jobs(database: Database, keys: Sequence[str]) -> dict[str, Job]:
    """The newest job of each key, whatever its state; one query, however long the text is."""
    query = select(*COLUMNS).where(JobRow.key.in_(keys)).order_by(JobRow.id)
    with database.read() as connection:
        return {row.key: job_of(row) for row in connection.execute(query)}
