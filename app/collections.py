"""Collections: readings and components in an order, with a title and a text; each is a page with its own address.

    collections.save(None, base=0, title="Two nots", text="…", author="Ada", items=[Item(...), ...])    # a new one
    collections.get(7), collections.newest(12)

An edit names the revision that it was made from, as a note's does. Items hold no text of a prompt: what is deleted is
gone from here too. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from app.database import Database
from app.people import claim_author, clean_author, clean_line, clean_text
from app.tables import MAX_INTEGER, CollectionItemRow, CollectionRow, clock
from legible_core.errors import Conflict, LegibleError, NotFound, TooLarge

MAX_TITLE = 200
MAX_TEXT = 100_000
MAX_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Item:
    """A reading (with `digest`), or a component of a checkpoint (without)."""

    slug: str
    digest: str | None = None
    position: int | None = None
    target: int | None = None
    contrast: int | None = None
    relative_to: str | None = None
    component: str | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    id: int
    revision: int
    title: str
    text: str
    author: str
    created_at: float
    updated_at: float
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class CollectionCard:
    """A line in a list of collections."""

    id: int
    title: str
    author: str
    updated_at: float
    count: int


class Edited(Conflict):
    """Someone else changed the collection after it was opened for this edit; `there` is what they wrote."""

    code = "edited_meanwhile"

    def __init__(self, there: Collection) -> None:
        super().__init__(
            f"{there.author} changed this collection (revision {there.revision}) while you wrote; nothing of yours or "
            "theirs is lost.",
            hint="Look at both, and save yours again if it should stand.",
        )
        self.there = there


class Collections:
    """Collections in SQL. Safe from many threads and many processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def save(
        self, id: int | None, *, base: int, title: str, text: str, author: str, items: Sequence[Item]
    ) -> Collection:
        """Store a new collection (None) or an edit made from revision `base`; Edited unless that is still the newest.

        Raises LegibleError over the limits: 200 characters of title, 100,000 of text, 200 items.
        """
        author, title = clean_author(author), clean_line(title, MAX_TITLE, "title")
        text = clean_text(text, MAX_TEXT, "text of a collection")
        if not title:
            raise LegibleError("Give the collection a title.", code="no_title", status=422)
        if len(items) > MAX_ITEMS:
            raise TooLarge(f"A collection may have at most {MAX_ITEMS} items; this one has {len(items)}.")
        state = {"title": title, "text": text, "author": author, "updated_at": clock()}
        with self.database.write() as connection:
            claim_author(connection, author)
            if id is None:
                made = insert(CollectionRow).values(**state, revision=1, created_at=clock()).returning(CollectionRow.id)
                id = int(connection.execute(made).scalar_one())
            else:
                changed = connection.execute(
                    update(CollectionRow)
                    .where(CollectionRow.id == id, CollectionRow.revision == base)
                    .values(**state, revision=base + 1)
                ).rowcount
                if not changed:
                    raise Edited(_get(connection, id))
                connection.execute(delete(CollectionItemRow).where(CollectionItemRow.collection_id == id))
            rows = [{"collection_id": id, "place": place, **_columns(item)} for place, item in enumerate(items)]
            if rows:
                connection.execute(insert(CollectionItemRow), rows)
            return _get(connection, id)

    def get(self, id: int) -> Collection:
        """One collection; NotFound when there is none."""
        with self.database.read() as connection:
            return _get(connection, id)

    def newest(self, limit: int) -> list[CollectionCard]:
        """The collections, the last changed first."""
        count = select(func.count()).where(CollectionItemRow.collection_id == CollectionRow.id).scalar_subquery()
        query = (
            select(CollectionRow.id, CollectionRow.title, CollectionRow.author, CollectionRow.updated_at, count)
            .order_by(CollectionRow.updated_at.desc(), CollectionRow.id.desc())
            .limit(limit)
        )
        with self.database.read() as connection:
            return [CollectionCard(*row) for row in connection.execute(query)]

    def delete(self, id: int) -> None:
        """Forget a collection; its readings stay. NotFound when there is none."""
        with self.database.write() as connection:
            if id > MAX_INTEGER or not connection.execute(delete(CollectionRow).where(CollectionRow.id == id)).rowcount:
                raise _missing(id)


def _get(connection: Connection, id: int) -> Collection:
    row = None
    if 0 < id <= MAX_INTEGER:
        row = connection.execute(select(*CollectionRow.__table__.c).where(CollectionRow.id == id)).first()
    if row is None:
        raise _missing(id)
    query = (
        select(*CollectionItemRow.__table__.c)
        .where(CollectionItemRow.collection_id == id)
        .order_by(CollectionItemRow.place)
    )
    items = tuple(_item(found) for found in connection.execute(query))
    return Collection(row.id, row.revision, row.title, row.text, row.author, row.created_at, row.updated_at, items)


def _missing(id: int) -> NotFound:
    return NotFound(f"There is no collection {id}; the home page lists those that there are.")


_FIELDS = ("slug", "digest", "position", "target", "contrast", "relative_to", "component")


def _columns(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in _FIELDS}


def _item(row: Any) -> Item:
    return Item(*(getattr(row, name) for name in _FIELDS))
