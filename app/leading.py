"""Which readings a component led: written with each reading, looked up by an index.

put_leading(connection, reading_id, checkpoint_hash, reading)
readings_led_by(database, checkpoint_hash, "L5.u263")          # newest first, with its term and the target's rank
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, delete, func, insert, select

from app.database import Database
from app.store_types import ReadingCard, card_of
from app.tables import LeadingRow, PromptRow, ReadingRow

if TYPE_CHECKING:
    from legible_core.reading import Reading


@dataclass(frozen=True, slots=True)
class Led:
    """A reading among whose strongest contributors a component was, in its `place` from 1."""

    card: ReadingCard
    place: int
    term: float
    target_rank: int | None


def put_leading(connection: Connection, reading_id: int, checkpoint_hash: str, reading: Reading) -> None:
    """Write the strongest contributors of a reading, in place of those of an earlier revision."""
    connection.execute(delete(LeadingRow).where(LeadingRow.reading_id == reading_id))
    rows = [
        {
            "checkpoint_hash": checkpoint_hash,
            "component": found.id,
            "reading_id": reading_id,
            "place": place,
            "term": found.value,
            "target_rank": found.target_rank,
        }
        for place, found in enumerate(reading.summary.top, 1)
    ]
    if rows:
        connection.execute(insert(LeadingRow), rows)


def readings_led_by(database: Database, checkpoint_hash: str, component: str, limit: int = 8) -> list[Led]:
    """The newest readings that a component led, newest first."""
    with database.read() as connection:
        rows = connection.execute(led_by(checkpoint_hash, component, limit)).all()
    return [Led(card_of(row), row.place, row.term, row.target_rank) for row in rows]


def led_by(checkpoint_hash: str, component: str, limit: int) -> Select[tuple[object, ...]]:
    """The query: ids grow with time, so the primary key's order is the order of the page."""
    return (
        select(
            *ReadingRow.__table__.c,
            PromptRow.slug,
            PromptRow.checkpoint_hash,
            PromptRow.text,
            func.length(PromptRow.token_ids).label("size"),
            LeadingRow.place,
            LeadingRow.term,
            LeadingRow.target_rank,
        )
        .select_from(LeadingRow)
        .join(ReadingRow, ReadingRow.id == LeadingRow.reading_id)
        .join(PromptRow, PromptRow.digest == ReadingRow.digest)
        .where(LeadingRow.checkpoint_hash == checkpoint_hash, LeadingRow.component == component)
        .order_by(LeadingRow.reading_id.desc())
        .limit(limit)
    )
