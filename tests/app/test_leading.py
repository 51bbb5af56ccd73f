"""The readings that a component led: written with each reading, found by an index, gone with the prompt."""

from __future__ import annotations

import pytest
from app_samples import HASH, TEXT, reading, request
from sqlalchemy import delete, insert, select, text

from app import database as databases
from app import store as stores
from app.database import Database
from app.leading import led_by, readings_led_by
from app.store import Store
from app.tables import LeadingRow, PromptRow
from legible_core.reading import Contributor, Reading, ReadingRequest


def led(asked: ReadingRequest, *top: tuple[str, float, int | None]) -> Reading:
    made = reading(asked)
    found = tuple(
        Contributor(id=id, kind="gelu", glyph="g", value=value, target_rank=rank) for id, value, rank in top
    )  # fmt: skip
    return Reading(made.summary.model_copy(update={"top": found}), made.heads, made.units)


def put(store: Store, ids: tuple[int, ...], *top: tuple[str, float, int | None], checkpoint: str = HASH) -> str:
    asked = request(ids=ids, position=len(ids) - 1, checkpoint=checkpoint)
    store.put_reading(asked, led(asked, *top), slug="tiny", text=TEXT)
    return asked.digest


def test_the_newest_first_with_term_place_and_rank(store: Store) -> None:
    first = put(store, (5, 6), ("L0.u1", 2.5, 9), ("L0.h0", -1.0, None))
    second = put(store, (5, 6, 7), ("L0.h0", 3.0, 40), ("L0.u1", -0.5, 7), ("L0.u12", 0.25, 1))
    put(store, (5, 6, 8), ("L0.u11", 1.0, 2))
    found = readings_led_by(store.database, HASH, "L0.u1")
    assert [(row.card.digest, row.place, row.term, row.target_rank) for row in found] == [
        (second, 2, -0.5, 7),
        (first, 1, 2.5, 9),
    ]
    assert found[0].card.text == TEXT
    assert len(readings_led_by(store.database, HASH, "L0.u1", limit=1)) == 1
    assert readings_led_by(store.database, HASH, "L0.h0")[1].target_rank is None
    assert readings_led_by(store.database, HASH, "L0.u_") == []
    assert readings_led_by(store.database, "d" * 64, "L0.u1") == []


def test_deleting_the_prompt_forgets_them(store: Store) -> None:
    digest = put(store, (5, 6), ("L0.u1", 2.5, 9))
    put(store, (5, 6, 7), ("L0.u1", 1.0, 9))
    store.delete(digest)
    assert len(readings_led_by(store.database, HASH, "L0.u1")) == 1
    with store.database.write() as connection:
        connection.execute(delete(PromptRow))
        assert connection.execute(select(LeadingRow.component)).all() == []


def test_a_new_revision_takes_the_place_of_the_old_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, (5, 6), ("L0.u1", 2.5, 9))
    put(store, (5, 6), ("L0.u3", 9.0, 1))
    assert readings_led_by(store.database, HASH, "L0.u3") == [], "the same code adds no revision"
    monkeypatch.setattr(stores, "__version__", "9.9")
    put(store, (5, 6), ("L0.u2", 1.5, 3))
    assert readings_led_by(store.database, HASH, "L0.u1") == []
    [row] = readings_led_by(store.database, HASH, "L0.u2")
    assert row.term == 1.5


def test_the_query_is_answered_from_the_primary_key(store: Store) -> None:
    """Whatever else is stored: 3,000 readings are not looked through to find one unit's."""
    for number in range(30):
        put(store, (5, number), *((f"L0.u{number * 20 + i}", 1.0, None) for i in range(20)))
    with store.database.write() as connection:
        known = connection.execute(select(LeadingRow.reading_id).limit(1)).scalar_one()
        rows = [
            {"checkpoint_hash": f"{n % 50:064d}", "component": f"L1.u{n}", "reading_id": known, "place": 1, "term": 1.0}
            for n in range(3000)
        ]
        connection.execute(insert(LeadingRow), rows)
    if not store.database.sqlite:
        with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))
    words = "EXPLAIN QUERY PLAN" if store.database.sqlite else "EXPLAIN"
    dialect = store.database.engine.dialect
    query = led_by(HASH, "L0.u7", 8).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    with store.database.read() as connection:
        plan = " ".join(str(row) for row in connection.execute(text(f"{words} {query}".replace(":", "\\:"))))
    if store.database.sqlite:
        assert "SEARCH leading_contributors USING PRIMARY KEY (checkpoint_hash=? AND component=?)" in plan
        assert "SCAN" not in plan
        assert "TEMP B-TREE" not in plan
    else:
        assert "pk_leading_contributors" in plan
        assert "Seq Scan on leading_contributors" not in plan


def test_readings_stored_before_the_table_existed_are_filled_in(database: Database) -> None:
    from alembic import command

    store = Store(database)
    put(store, (5, 6), ("L0.u1", 2.5, 9), ("L0.h0", -1.0, None))
    put(store, (5, 7))
    for step, revision in ((command.downgrade, "0002"), (command.upgrade, "0003")):
        with database.write() as connection:
            config = databases.alembic_config()
            config.attributes["connection"] = connection
            step(config, revision)
    [row] = readings_led_by(database, HASH, "L0.h0")
    assert (row.place, row.term, row.target_rank) == (2, -1.0, None)
    assert len(readings_led_by(database, HASH, "L0.u1")) == 1
