"""Stored readings: unique, immutable, found by what an address says, and gone when they are deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from app_samples import HASH, TEXT, reading, request
from sqlalchemy import func, select

from app.database import Database
from app.jobs import Queue
from app.settings import Settings
from app.store import Store, pack_ids, unpack_ids
from app.tables import JobEventRow, JobRow, PromptRow, ReadingRow, RevisionRow
from legible_core.errors import Conflict, Corrupt, NotFound
from legible_core.reading import ReadingRequest


def put(store: Store, asked: ReadingRequest | None = None, text: str = TEXT) -> int:
    asked = asked or request()
    return store.put_reading(asked, reading(asked), slug="tiny", text=text)


def count(database: Database, table: type) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


@pytest.mark.parametrize("large", [2**31, 2**63, 10**40])
def test_numbers_that_no_column_holds_are_not_found(store: Store, queue: Queue, large: int) -> None:
    put(store)
    digest = request().digest
    assert store.find(digest, position=large) is None
    assert store.find(digest, position=2, target=large) is None
    assert store.find(digest, position=2, target=3, contrast=large) is None
    assert store.predicted(digest, large) is None
    for look in (queue.get, queue.cancel, queue.retry):
        with pytest.raises(NotFound, match=f"There is no job {large}"):
            look(large)


def test_a_stored_reading_is_read_back_exactly(store: Store) -> None:
    asked = request()
    revision = put(store, asked)
    found = store.find(asked.digest, position=2, target=3)
    assert found is not None
    assert (found.revision_id, found.slug, found.checkpoint_hash, found.contrast) == (revision, "tiny", HASH, None)
    assert found.summary == reading(asked).summary_json()
    assert found.terms == reading(asked).pack()
    assert found.reading().units.tolist() == reading(asked).units.tolist()
    assert found.json()["value"] == 34.0
    prompt = store.prompt(asked.digest)
    assert prompt is not None
    assert (prompt.ids, prompt.text, prompt.dtype) == ((5, 6, 7), TEXT, "float32")


def test_defaults_are_the_last_position_and_the_most_probable_token(store: Store) -> None:
    asked = request()
    assert store.find(asked.digest) is None
    put(store, request(target=9))
    assert store.predicted(asked.digest) == 3
    assert store.find(asked.digest) is None  # token 3 is known to be the most probable, and not read yet
    put(store)
    put(store, request(position=0))
    found = store.find(asked.digest)
    assert found is not None
    assert (found.position, found.target) == (2, 3)
    assert store.revision_id(asked.digest) == found.revision_id


def test_position_target_contrast_and_base_are_readings_of_their_own(store: Store, database: Database) -> None:
    asked = [request(), request(position=1), request(target=4), request(contrast=8), request(relative_to="mean")]
    ids = [put(store, one) for one in asked]
    assert len(set(ids)) == 5
    assert count(database, PromptRow) == 1
    contrast = store.find(asked[0].digest, position=2, target=3, contrast=8)
    assert contrast is not None
    assert (contrast.revision_id, contrast.relative_to) == (ids[3], "contrast")
    mean = store.find(asked[0].digest, position=2, target=3, relative_to="mean")
    assert mean is not None
    assert mean.revision_id == ids[4]


def test_the_same_reading_from_the_same_code_is_one_row(store: Store, database: Database) -> None:
    with ThreadPoolExecutor(6) as pool:
        ids = set(pool.map(lambda _: put(store), range(12)))
    assert len(ids) == 1
    assert [count(database, table) for table in (PromptRow, ReadingRow, RevisionRow)] == [1, 1, 1]


def test_newer_code_adds_a_revision_and_keeps_the_old_one(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(store)
    monkeypatch.setattr("app.store.__version__", "99")
    second = put(store)
    assert second != first
    found = store.find(request().digest)
    assert found is not None
    assert (found.revision_id, found.revision, found.code_version) == (second, 2, "99")
    assert count(database, RevisionRow) == 2


def test_a_deleted_reading_takes_everything_of_its_prompt_along(store: Store, queue: Queue, database: Database) -> None:
    asked = request()
    job = queue.submit("read", "k", {"text": TEXT}, subject=asked.digest)
    claimed = queue.claim("w", ["read"])
    assert claimed is not None
    put(store, asked)
    put(store, request(position=1))
    kept = request(ids=(1, 2))
    put(store, request(ids=(1, 2), position=1), text="another")
    store.delete(asked.digest)

    assert store.find(asked.digest) is None
    assert store.prompt(asked.digest) is None
    assert store.find(kept.digest) is not None
    with pytest.raises(NotFound):
        queue.get(job.id)
    assert count(database, JobRow) == count(database, JobEventRow) == 0
    # The worker that was computing it comes back too late to store it again.
    assert not queue.finish(claimed, {}, lambda connection: put(store, asked) and None)
    assert store.prompt(asked.digest) is None
    with pytest.raises(NotFound, match="deleted already"):
        store.delete(asked.digest)


def test_a_deleted_text_is_in_no_file_any_more(sqlite_settings: Settings, tmp_path: Path) -> None:
    database = Database.open(sqlite_settings, migrate=True)
    store, queue = Store(database), Queue(database)
    put(store)
    queue.submit("read", "k", {"text": TEXT}, subject=request().digest)
    backup = sqlite_settings.data_dir / "backups" / "legible-0001.sqlite"
    backup.parent.mkdir()
    backup.write_bytes(TEXT.encode())

    def held() -> list[str]:
        files = [path for path in sqlite_settings.data_dir.rglob("*") if path.is_file()]
        return [path.name for path in files if TEXT.encode() in path.read_bytes()]

    assert len(held()) >= 2
    store.delete(request().digest)
    assert held() == []
    database.close()


def test_any_text_survives(store: Store) -> None:
    for number, text in enumerate(["", "\x00 NUL", "\ud800 lone", "🙂 emoji", "שלום", "a\r\nb", "x" * 1_000_000]):
        asked = request(ids=(number, 1))
        store.put_reading(asked, reading(request(ids=(number, 1), position=1)), slug="tiny", text=text)
        prompt = store.prompt(asked.digest)
        assert prompt is not None
        assert prompt.text == text


def test_lists_are_newest_first_and_page_on(store: Store) -> None:
    for position in range(3):
        put(store, request(position=position))
    cards = store.readings(limit=2)
    assert [card.position for card in cards] == [2, 1]
    assert (cards[0].text, cards[0].n_tokens, cards[0].target_display, cards[0].probability) == (TEXT, 3, "·w3", 0.5)
    assert [card.position for card in store.readings(before=cards[-1].created_at)] == [0]
    assert store.readings(checkpoint_hash="other") == []


def test_collecting(store: Store) -> None:
    asked = request()
    put(store, asked)
    assert store.readings(collected=True) == []
    store.collect(asked.digest, position=2, target=3)
    assert [card.collected for card in store.readings(collected=True)] == [True]
    store.collect(asked.digest, position=2, target=3, on=False)
    assert store.readings(collected=True) == []
    with pytest.raises(NotFound):
        store.collect(asked.digest, position=0, target=3)


def test_a_slug_moves_only_when_told_to(store: Store) -> None:
    store.add_checkpoint("mine", "a" * 64, "/a")
    store.add_checkpoint("mine", "a" * 64, "/moved")
    with pytest.raises(Conflict, match="already names another"):
        store.add_checkpoint("mine", "b" * 64, "/b")
    store.add_checkpoint("mine", "b" * 64, "/b", move=True)
    assert [(row.slug, row.hash, row.path) for row in store.checkpoints()] == [("mine", "b" * 64, "/b")]
    store.remove_checkpoint("mine")
    with pytest.raises(NotFound):
        store.remove_checkpoint("mine")


def test_a_damaged_row_says_so(store: Store) -> None:
    put(store)
    found = store.find(request().digest)
    assert found is not None
    with pytest.raises(Corrupt):
        type(found)(**{**{name: getattr(found, name) for name in found.__slots__}, "terms": b"zz"}).reading()


def test_ids_are_packed_as_little_endian_int32() -> None:
    assert pack_ids([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert unpack_ids(pack_ids([0, 50256])) == (0, 50256)
