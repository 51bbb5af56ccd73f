"""Collections keep their order, tell the second of two editors, and hold no text of prompts."""

from __future__ import annotations

import pytest

from app.collections import MAX_ITEMS, MAX_TEXT, Collection, Collections, Edited, Item
from app.database import Database
from legible_core.errors import LegibleError, NotFound, TooLarge

READING = Item("tiny", "a" * 64, 2, 3, None, "nothing", "L0.u1")
UNIT = Item("tiny", component="L0.u1")


@pytest.fixture
def collections(database: Database) -> Collections:
    return Collections(database)


def put(collections: Collections, id: int | None = None, base: int = 0, **more: object) -> Collection:
    given = {"title": "Two nots", "text": "*text*", "author": "Ada", "items": [READING, UNIT], **more}
    return collections.save(id, base=base, **given)  # type: ignore[arg-type]


def test_a_collection_keeps_its_items_in_their_order(collections: Collections) -> None:
    made = put(collections)
    assert made.items == (READING, UNIT)
    assert made == collections.get(made.id)
    turned = put(collections, made.id, 1, items=[UNIT, READING, UNIT], title="Turned")
    assert turned.items == (UNIT, READING, UNIT)
    assert turned.revision == 2
    other = put(collections, title="Other", items=[])
    assert [(card.id, card.title, card.count) for card in collections.newest(5)] == [
        (other.id, "Other", 0), (made.id, "Turned", 3),
    ]  # fmt: skip
    collections.delete(made.id)
    with pytest.raises(NotFound, match=f"no collection {made.id}"):
        collections.get(made.id)
    with pytest.raises(NotFound):
        collections.delete(2**40)


def test_the_second_of_two_edits_is_told(collections: Collections) -> None:
    made = put(collections)
    put(collections, made.id, 1, title="Bob's", author="Bob")
    with pytest.raises(Edited, match=r"Bob changed this collection \(revision 2\)") as caught:
        put(collections, made.id, 1, title="Ada's")
    assert caught.value.there.title == "Bob's"
    assert collections.get(made.id).items == (READING, UNIT)


def test_bounds(collections: Collections) -> None:
    for change, error, said in (
        ({"title": " "}, LegibleError, "a title"),
        ({"title": "x" * 201}, TooLarge, "at most 200"),
        ({"text": "x" * (MAX_TEXT + 1)}, TooLarge, "at most 100,000"),
        ({"items": [UNIT] * (MAX_ITEMS + 1)}, TooLarge, "at most 200 items"),
        ({"author": ""}, LegibleError, "Say who"),
    ):
        with pytest.raises(error, match=said):
            put(collections, **change)
    assert collections.newest(5) == []
