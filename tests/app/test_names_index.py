"""The index of the search: it holds what the names hold, is replaced at once, and every search is answered from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from app.database import Database
from app.handlers import handlers
from app.indexing import look, spelled
from app.jobs import Queue
from app.names_index import LEADING, NamesIndex, source_of
from app.search import MAX_PAGE, ComponentHit, NamesSearch, OperandHit, groups_of, statement_of
from app.search_query import parse_query
from app.search_text import fold_token
from app.settings import Settings
from app.store import Store
from app.tables import NameComponentRow, NameEntryRow, NameOperandRow, NamesIndexRow, NameTokenRow
from app.worker import Worker
from benchmarks import synthetic
from legible_core.errors import Conflict, LegibleError
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.units import parse

TINY = synthetic.config_of(2, 16, 2, vocabulary=60)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return synthetic.make_checkpoint(tmp_path_factory.mktemp("names"), "made-up", TINY)


@pytest.fixture
def built(database: Database, checkpoint: Checkpoint) -> dict[int, str]:
    return build(database, checkpoint)


def texts(names: Names) -> dict[int, tuple[str, str]]:
    return {token: (synthetic.token_text(token), names.display(token)) for token in range(names.config.vocab_size)}


def build(database: Database, checkpoint: Checkpoint) -> dict[int, str]:
    names, source = named(checkpoint), source_of(checkpoint.path)
    assert source is not None
    return {NamesIndex(database).build(checkpoint.hash, names, source, texts(names)): checkpoint.hash}


def named(checkpoint: Checkpoint) -> Names:
    names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    assert names is not None
    return names


def hits(database: Database, query: str, built: dict[int, str]) -> list[ComponentHit | OperandHit]:
    """All rows of a query's groups, page by page where there is one group."""
    found: list[ComponentHit | OperandHit] = []
    for page in range(1, MAX_PAGE):
        groups = NamesSearch(database).run(parse_query(query), built, page)
        found += [row for group in groups for row in group.rows]
        if len(groups) != 1 or not groups[0].more:
            return found
    raise AssertionError("there is no end to it")


def every(names: Names) -> Iterator[object]:
    for layer in range(names.config.n_layers):
        for head in range(names.config.n_heads):
            yield from names.channels(layer, head)
        yield from names.units(layer)


def test_a_search_finds_what_the_names_hold(database: Database, built: dict[int, str], checkpoint: Checkpoint) -> None:
    names = named(checkpoint)
    components = list(every(names))
    for token in (0, 1, 3, 17):
        said = synthetic.token_text(token)
        expected = sorted(
            (side, rank, -promotion.weight, component.id)  # type: ignore[attr-defined]
            for component in components
            for side, listed in enumerate((component.promotes, component.rare))  # type: ignore[attr-defined]
            for rank, promotion in enumerate(listed, 1)
            if promotion.id == token
        )
        found = hits(database, f'promotes:"{said}"', built)
        got = [(int(hit.match.rare), hit.match.rank, -hit.match.weight, hit.component) for hit in found]  # type: ignore[union-attr]
        assert [row[:3] for row in got] == [pytest.approx(row[:3]) for row in expected], "best rank first"
        assert {row[3] for row in got} == {row[3] for row in expected}
        detected = hits(database, f'detects:"{said}"', built)
        assert detected
        for hit in detected:
            assert isinstance(hit, OperandHit)
            assert hit.match is not None
            evidence = names.operand(parse(hit.operand), LEADING).detect[hit.match.rank - 1]
            assert (evidence.id, evidence.count) == (token, hit.match.hits)
            assert evidence.lift == pytest.approx(hit.match.weight)
    assert hits(database, "detects:WORST", built) == hits(database, 'detects:" worst"', built), "bare: without case"
    assert hits(database, 'detects:"worst"', built) == [], "quoted: space by space"


def test_formulas_labels_and_ids(database: Database, built: dict[int, str], checkpoint: Checkpoint) -> None:
    names = named(checkpoint)
    components = {component.id: component for component in every(names)}  # type: ignore[attr-defined]
    label = next(c.label.text for c in components.values() if c.label and c.label.kind == "class")
    assert {h.component for h in hits(database, f"* → {label}", built)} == {  # type: ignore[union-attr]
        c.id for c in components.values() if c.label and c.label.text == label
    }
    first = next(c for c in components.values() if c.kind == "difference" and c.operand_labels[0].kind == "class")
    asked = f"{first.operand_labels[0].text} ∖ *"
    found = {h.component for h in hits(database, asked, built)}  # type: ignore[union-attr]
    assert first.id in found
    assert all(components[id].formula.startswith(asked[:-1]) for id in found)
    short = hits(database, "∃ * half-life:<3", built)
    assert [h.half_life for h in short] == sorted(h.half_life for h in short)  # type: ignore[union-attr,type-var]
    assert {h.component for h in short} == {  # type: ignore[union-attr]
        c.id for c in components.values() if c.kind == "existential" and c.half_life < 3
    }
    assert len(hits(database, "% * with half-life over 3", built)) + len(hits(database, "% * half-life:<3", built)) == (
        sum(c.kind == "proportion" for c in components.values())
    )
    [unit] = hits(database, "l1.U3".replace("U", "u"), built)
    assert isinstance(unit, ComponentHit)
    assert (unit.component, unit.cls) == ("L1.u3", str(components["L1.u3"].cls))
    [operand] = hits(database, "L1.p2.B", built)
    assert isinstance(operand, OperandHit)
    assert operand.page == "L1.u2"
    both = NamesSearch(database).run(parse_query(f"label:{label}"), built)
    assert [group.name for group in both] == ["label-promote", "label-detect"]
    agreements = [row.agreement or -1 for row in hits(database, "label:never", built)]
    assert agreements == sorted(agreements, reverse=True)
    ready = NamesIndex(database).ready()[checkpoint.hash]
    assert ready.labels[label][1] == sum(1 for c in components.values() if c.label and c.label.text == label)


def test_new_names_take_the_place_of_old_ones_at_once(settings: Settings, database: Database, tmp_path: Path) -> None:
    own = synthetic.make_checkpoint(tmp_path, "own", TINY)
    Store(database).add_checkpoint("own", own.hash, str(own.path))
    queue, index = Queue(database), NamesIndex(database)
    worker = Worker(settings, database, {"index": handlers(settings)["index"]}, "w")
    state = look(queue, index, [own])
    assert not state.searched
    assert "is being indexed" in state.pending[0].said
    assert look(queue, index, [own]).pending[0].job == state.pending[0].job, "one job for the same files"
    assert worker.work_once()
    state = look(queue, index, [own])
    assert not state.pending
    [(first, found)] = state.searched.items()
    assert found is own
    assert len(hits(database, "L0.u1", {first: own.hash})) == 1

    (own.path / "names.json").write_bytes((own.path / "names.json").read_bytes())
    assert look(queue, index, [own]).searched == {first: own}
    assert worker.work_once()
    assert index.ready()[own.hash].id == first, "the same content is not indexed again"
    assert not look(queue, index, [own]).pending

    synthetic.write_names(own.path, TINY, own.hash, seed=5)
    state = look(queue, index, [own])
    assert state.searched == {first: own}
    assert "its old names are searched" in state.pending[0].said
    assert worker.work_once()
    [second] = look(queue, index, [own]).searched
    assert second != first
    assert counts(database, first) == [0] * 5, "what was replaced is deleted"
    assert all(counts(database, second))

    synthetic.write_names(own.path, TINY, "0" * 64)
    look(queue, index, [own])
    assert worker.work_once()
    said = look(queue, index, [own]).pending[0].said
    assert said == "cannot be searched: the names beside own belong to other weights."


def counts(database: Database, index: int) -> list[int]:
    rows = (NameTokenRow, NameEntryRow, NameComponentRow, NameOperandRow)
    with database.read() as connection:
        found = [
            connection.execute(select(func.count()).select_from(row).where(row.index_id == index)).scalar_one()
            for row in rows
        ]
        own = select(func.count()).select_from(NamesIndexRow).where(NamesIndexRow.id == index)
        return [*found, connection.execute(own).scalar_one()]


def test_a_build_that_is_given_up_is_never_searched(
    database: Database, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.names_index.CHUNK", 50)
    index, names, source = NamesIndex(database), named(checkpoint), source_of(checkpoint.path)
    assert source is not None
    seen: list[float] = []

    def stop(done: float, total: float) -> None:
        seen.append(done / total)
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.build(checkpoint.hash, names, source, texts(names), between=stop)
    assert seen == sorted(seen)
    assert index.ready() == {}

    def overtaken(done: float, total: float) -> None:
        if done < total / 2:
            index.build(checkpoint.hash, names, source, texts(names))

    with pytest.raises(Conflict, match="another attempt"):
        index.build(checkpoint.hash, names, source, texts(names), between=overtaken)
    [ready] = index.ready().values()
    assert all(counts(database, ready.id))
    assert index.sweep({checkpoint.hash}) >= 2
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(NamesIndexRow)).scalar() == 1
        kept = connection.execute(select(NameEntryRow.index_id).distinct()).scalars().all()
    assert kept == [ready.id]
    assert index.sweep(set()) == 1, "a checkpoint that is here no more takes its index along"
    assert index.ready() == {}


SEARCHES = (
    'promotes:" worst"', 'detects:" not"', "worst", '" the"', "promotes:the kind:existential", "label:negation",
    "label:never", "determiner ∖ *", "never ∖ *", "* ∩ never", "* → superlative", "∃ * half-life:<3", "half-life:1-3",
    "kind:intersection", "* ∖ *", "negation ∩ negation → negation", '∃ * → " the"', "L4.u7", "L4.p3.A", "L4.h0.c3",
    'detects:" not" layer:2 class:FUZZY', "* → negation in:heads", "g → *",
)  # fmt: skip


@pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
def test_every_search_is_answered_from_an_index(database: Database, tmp_path: Path) -> None:
    """Over the names of a 12-layer model; very small tables are always scanned."""
    large = synthetic.make_checkpoint(tmp_path, "large", synthetic.SMALL)
    built = {**build(database, large), 10_000: "0" * 64}
    for query in SEARCHES:
        asked = parse_query(query)
        for group in groups_of(asked):
            for offset in (0, 500):
                statement = statement_of(asked, group, list(built), limit=51, offset=offset)
                plan = explained(database, statement)
                assert "INDEX" in plan.upper() or "PRIMARY KEY" in plan, (query, group, plan)
                scanned = re.findall(r"(?:Seq Scan on|SCAN) (\w+)", plan)
                assert set(scanned) <= {"entries"}, (query, group, plan)
                # On SQLite, which knows no statistics, a key of the index's id alone would be a walk through all rows.
                # Postgres walks in the order asked for where it knows that a frequent label fills the page soon.
                assert "(index_id=?)" not in plan


def explained(database: Database, statement: object) -> str:
    with database.read() as connection:
        compiled = statement.compile(connection, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
        sql = str(compiled).replace(":", "\\:")
        words = "EXPLAIN QUERY PLAN" if database.sqlite else "EXPLAIN"
        rows = connection.execute(text(f"{words} {sql}")).all()
    return "\n".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize(
    "asked",
    ["'; DROP TABLE name_tokens; --", "%", "_", "%worst%", "* OR 1=1", "wor?t", "[a-z]*", "\\", '"', "\x00", "\x1b[31m",
     "‮worst‬", "שלום", "🙂", "\ud800", "L99.u99999", 'promotes:"' + "x" * 900 + '"', "label:%", "% ∖ _"],
)  # fmt: skip
def test_hostile_text_is_only_text(database: Database, built: dict[int, str], asked: str) -> None:
    refused: LegibleError | None = None
    try:
        found = hits(database, asked, built)
    except LegibleError as error:
        found, refused = [], error
    assert found == []
    assert refused is None or (refused.status == 422 and "\n" not in refused.message)


def test_chips_are_understood_as_the_tokens_they_show() -> None:
    assert [spelled(chip) for chip in ("·worst", "↵", "⇥", "worst", "·")] == [" worst", "\n", "\t", "worst", "·"]
    assert fold_token("  ") == "  "
