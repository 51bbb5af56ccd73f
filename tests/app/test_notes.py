"""Names, notes and votes: every edit is kept, a second one is told, searches use an index, files come and go."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql, sqlite

from app.database import Database
from app.notes import Collision, Note, Notes, holding, of_layer, words_of
from app.notes_file import export_notes, import_notes
from app.people import MAX_NAME
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import Conflict, LegibleError, TooLarge

HASH, OTHER = "c" * 64, "d" * 64
UNIT, OPERAND = "L1.u3", "L0.p1.A"
CONFIG = ModelConfig(2, 16, 2, 8, 30, Attention("boolean", (1, 1)), FeedForward(16, 0.5, 0.25))


@pytest.fixture
def notes(database: Database) -> Notes:
    return Notes(database)


def put(notes: Notes, component: str = UNIT, base: int = 0, name: str = "age nouns", **more: Any) -> Note:
    return notes.save(HASH, component, base=base, **{"name": name, "text": "", "author": "Ada", **more})


def test_every_edit_is_kept(notes: Notes) -> None:
    first = put(notes, text="after of")
    second = put(notes, base=1, name="nouns of time", author="Bob")
    assert (first.revision, second.revision) == (1, 2)
    assert second.at >= first.at > 1e9
    assert notes.of(HASH, [UNIT, "L0.u0"]) == {UNIT: second}
    assert [(n.revision, n.name, n.text, n.author) for n in notes.history(HASH, UNIT)] == [
        (2, "nouns of time", "", "Bob"), (1, "age nouns", "after of", "Ada"),
    ]  # fmt: skip
    assert notes.of(OTHER, [UNIT]) == {}, "notes belong to weights"


def test_a_note_taken_back_says_nothing_and_stays_in_the_history(notes: Notes) -> None:
    put(notes)
    put(notes, base=1, name="")
    assert notes.of(HASH, [UNIT]) == {}
    assert notes.layer(HASH, 1) == {}
    assert notes.search("nouns", [HASH]) == []
    assert len(notes.history(HASH, UNIT)) == 2
    assert put(notes, base=2).revision == 3


def test_the_second_of_two_edits_is_told_and_nothing_is_lost(notes: Notes) -> None:
    put(notes)
    put(notes, base=1, name="Bob's", author="Bob")
    with pytest.raises(Collision, match=r"Bob changed .* \(revision 2\)") as caught:
        put(notes, base=1, name="Ada's")
    assert caught.value.there.name == "Bob's"
    assert caught.value.status == 409
    assert put(notes, base=2, name="Ada's").revision == 3
    assert put(notes, base=1, name="Ada's").revision == 3, "the same words do not collide"


def test_of_many_edits_at_once_one_is_taken(notes: Notes) -> None:
    put(notes)
    results: list[str] = []

    def edit(number: int) -> None:
        try:
            put(notes, base=1, name=f"name {number}")
            results.append("taken")
        except Collision:
            results.append("told")

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["taken"] + ["told"] * 5
    assert len(notes.history(HASH, UNIT)) == 2


def test_first_notes_at_once_do_not_both_stand(notes: Notes) -> None:
    put(notes)
    with pytest.raises(Collision):
        put(notes, name="another")
    with pytest.raises(Conflict, match="no revision 4"):
        put(notes, component=OPERAND, base=4)


def test_bounds(notes: Notes) -> None:
    with pytest.raises(TooLarge, match="at most 120"):
        put(notes, name="x" * (MAX_NAME + 1))
    with pytest.raises(TooLarge, match="at most 8,000"):
        put(notes, text="x" * 8001)
    with pytest.raises(LegibleError, match="both are empty"):
        put(notes, name=" \u202e ")
    assert notes.history(HASH, UNIT) == []


def test_search_finds_all_words_wherever_they_stand(notes: Notes) -> None:
    put(notes, name="Ages & nouns", text="fires on ' OLD'")
    put(notes, component=OPERAND, name="old things")
    found = notes.search("old NOUNS", [HASH, OTHER])
    assert [(h, n.component) for h, n in found] == [(HASH, UNIT)]
    assert {n.component for _, n in notes.search("old", [HASH])} == {UNIT, OPERAND}
    assert notes.search("ol", [HASH]) == []
    assert notes.search("%", [HASH]) == []
    assert notes.search("old", [OTHER]) == []


def test_statements_are_answered_from_indexes(notes: Notes, database: Database) -> None:
    put(notes)
    dialect = sqlite.dialect() if database.sqlite else postgresql.dialect()
    for query in (holding(words_of("old nouns"), [HASH], 50), of_layer(HASH, 1)):
        said = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        with database.write() as connection:
            if database.sqlite:
                plan = [row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {said}"))]
                assert not [line for line in plan if line.startswith("SCAN")], plan
            else:
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                plan = [row[0] for row in connection.execute(text(f"EXPLAIN {said}"))]
                assert not [line for line in plan if "Seq Scan" in line], plan


def test_votes_are_one_a_person(notes: Notes) -> None:
    for author, vote in (("Ada", "wrong"), ("Ada", "right"), ("Bob", "right"), ("Cy", "unclear")):
        notes.vote(HASH, UNIT, label="age", author=author, vote=vote)
    notes.vote(HASH, UNIT, label="another label", author="Ada", vote="wrong")
    assert notes.votes(HASH, [UNIT]) == {
        (UNIT, "age"): {"right": 2, "unclear": 1}, (UNIT, "another label"): {"wrong": 1},
    }  # fmt: skip
    with pytest.raises(LegibleError, match="right, wrong or unclear"):
        notes.vote(HASH, UNIT, label="age", author="Ada", vote="maybe")
    with pytest.raises(Conflict, match="looks like 'Ada'"):
        notes.vote(HASH, UNIT, label="age", author="ada", vote="wrong")


@pytest.fixture
def document(notes: Notes) -> dict[str, Any]:
    put(notes, text="<script>alert(1)</script>")
    put(notes, base=1, name="nouns of time", author="Bob")
    put(notes, component=OPERAND)
    notes.vote(HASH, UNIT, label="age", author="Ada", vote="wrong")
    return export_notes(notes, HASH, "tiny")


def empty(database: Database) -> None:
    with database.write() as connection:
        for table in ("notes", "note_revisions", "note_words", "votes", "authors"):
            connection.execute(text(f"DELETE FROM {table}"))


def test_what_is_exported_can_be_imported(notes: Notes, document: dict[str, Any], database: Database) -> None:
    again = import_notes(notes, CONFIG, HASH, json.dumps(document))
    assert (again.added, again.updated, again.kept, again.known, again.votes) == (0, 0, (), 2, 0)
    empty(database)
    first = import_notes(notes, CONFIG, HASH, json.dumps(document))
    assert (first.added, first.known, first.votes) == (2, 0, 1)
    assert export_notes(notes, HASH, "tiny") == document


def test_an_import_brings_up_to_date_and_overwrites_nothing(notes: Notes, document: dict[str, Any]) -> None:
    ahead = copy.deepcopy(document)
    ahead["notes"][1]["revisions"].append({"name": "later", "text": "", "author": "Cy", "at": 2e9})
    found = import_notes(notes, CONFIG, HASH, json.dumps(ahead))
    assert found.updated == 1
    assert notes.of(HASH, [ahead["notes"][1]["component"]])[ahead["notes"][1]["component"]].name == "later"

    aside = copy.deepcopy(document)
    aside["notes"] = [{"component": OPERAND, "revisions": [{"name": "theirs", "text": "", "author": "Di", "at": 1.0}]}]
    found = import_notes(notes, CONFIG, HASH, json.dumps(aside))
    assert found.kept == (OPERAND,)
    assert notes.of(HASH, [OPERAND])[OPERAND].name == "age nouns"
    assert [n.name for n in notes.history(HASH, OPERAND)] == ["age nouns", "theirs", "age nouns"]


def test_a_name_that_looks_like_one_here_comes_marked(notes: Notes, document: dict[str, Any]) -> None:
    document["notes"] = [{"component": "L0.u0", "revisions": [{"name": "x", "text": "", "author": "ADA", "at": 1.0}]}]
    import_notes(notes, CONFIG, HASH, json.dumps(document))
    assert notes.of(HASH, ["L0.u0"])["L0.u0"].author == "ADA (imported)"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "written in version 2; this Legible reads version 1"),
    ({"version": None}, "written in version None"),
    ({"format": "other"}, "no file of notes"),
    ({"checkpoint": OTHER}, "about other weights"),
    ({"checkpoint": "x"}, "wrong at checkpoint"),
    ({"more": 1}, "wrong at more"),
    ({"notes": [{"component": "L9.u0", "revisions": [{"name": "x", "text": "", "author": "A", "at": 1.0}]}]},
     "no layer 9"),
    ({"notes": [{"component": "L0.u999", "revisions": [{"name": "x", "text": "", "author": "A", "at": 1.0}]}]},
     "999"),
    ({"notes": [{"component": "norm.bias", "revisions": [{"name": "x", "text": "", "author": "A", "at": 1.0}]}]},
     "part of the floor"),
    ({"notes": [{"component": "L0.u0", "revisions": []}]}, "wrong at notes.0.revisions"),
    ({"notes": [{"component": "L0.u0", "revisions": [{"name": "x" * 121, "text": "", "author": "A", "at": 1.0}]}]},
     "wrong at notes.0.revisions.0.name"),
    ({"votes": [{"component": "L0.u0", "label": "l", "author": "A", "vote": "no", "at": 1.0}]}, "wrong at votes.0"),
]  # fmt: skip


def test_what_is_wrong_is_said_and_nothing_is_imported(notes: Notes, document: dict[str, Any]) -> None:
    before = notes.everything(HASH)
    for change, said in WRONG:
        with pytest.raises(LegibleError, match=said):
            import_notes(notes, CONFIG, HASH, json.dumps({**document, **change}))
    assert notes.everything(HASH) == before


def test_what_is_no_document(notes: Notes) -> None:
    for typed in ("", "no json", "[" * 100_000, "[]", "null", '{"a":1}'):
        with pytest.raises(LegibleError, match=r"no JSON document|no file of notes"):
            import_notes(notes, CONFIG, HASH, typed)
