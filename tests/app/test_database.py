"""Opening, migrating and failing: the schema is the tables', and whatever goes wrong is one clear sentence."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from app_samples import reading, request
from conftest import make_settings
from sqlalchemy import text

from app import database as databases
from app.database import Database
from app.filesystem import FileLock, filesystem_kind
from app.jobs import Queue
from app.settings import Settings
from app.store import Store
from app.tables import Base
from legible_core.errors import Conflict, LegibleError, Unavailable


@pytest.fixture(autouse=True)
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every database begins without tables and is really migrated; elsewhere one serves as the copy for all."""
    monkeypatch.setattr(Database, "migrate", Database.migrate.__wrapped__)  # type: ignore[attr-defined]


def test_migrations_make_exactly_the_tables(database: Database) -> None:
    with database.write() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_newest_schema_is_not_migrated_again(settings: Settings, database: Database) -> None:
    again = Database.open(settings, migrate=True)
    assert again.revision() == database.revision()
    assert not (settings.data_dir / "backups").exists()
    again.close()


def test_a_worker_waits_for_the_server_to_set_up_the_database(settings: Settings) -> None:
    with pytest.raises(Unavailable, match="not set up yet"):
        Database.open(settings, migrate=False)


def test_several_servers_may_start_on_an_empty_database_at_once(settings: Settings) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: Database.open(settings, migrate=True), range(4)))
    assert len({database.revision() for database in opened}) == 1
    for database in opened:
        database.close()


def test_a_newer_schema_is_refused(settings: Settings, database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for migrate in (True, False):
        with pytest.raises(Conflict, match="newer Legible") as caught:
            Database.open(settings, migrate=migrate)
        assert caught.value.code == "newer_schema"


def test_an_older_schema_is_copied_before_it_is_migrated(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database = Database.open(sqlite_settings, migrate=True)
    Store(database).put_reading(request(), reading(request()), slug="tiny", text="kept")
    newest = database.revision()
    database.close()
    migrations = tmp_path / "migrations"
    shutil.copytree(databases.migrations_dir(), migrations)
    (migrations / "versions" / "0009_more.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n\n"
        f"revision = '0009'\ndown_revision = '{newest}'\n\n\n"
        "def upgrade():\n    op.add_column('prompts', sa.Column('more', sa.Integer()))\n"
    )
    monkeypatch.setattr(databases, "migrations_dir", lambda: migrations)

    migrated = Database.open(sqlite_settings, migrate=True)
    assert migrated.revision() == "0009"
    with migrated.read() as connection:
        assert connection.execute(text("SELECT text, more FROM prompts")).all() == [(b"kept", None)]
    migrated.close()
    [copy] = (sqlite_settings.data_dir / "backups").iterdir()
    with sqlite3.connect(copy) as old:
        assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [(newest,)]
        assert old.execute("SELECT text FROM prompts").fetchall() == [(b"kept",)]
    old.close()


def test_migrations_lead_back_and_forth(database: Database) -> None:
    """The oldest schema, with what was stored, from the newest one and to it again."""
    from alembic import command

    Store(database).put_reading(request(), reading(request()), slug="tiny", text="kept")
    for step, revision in ((command.downgrade, "0001"), (command.upgrade, "head")):
        with database.write() as connection:
            config = databases.alembic_config()
            config.attributes["connection"] = connection
            step(config, revision)
    with database.write() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    assert Store(database).prompt(request().digest) is not None


def test_a_migration_that_fails_leaves_the_old_schema(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database = Database.open(sqlite_settings, migrate=True)
    newest = database.revision()
    database.close()
    migrations = tmp_path / "migrations"
    shutil.copytree(databases.migrations_dir(), migrations)
    (migrations / "versions" / "0009_bad.py").write_text(
        f"from alembic import op\n\nrevision = '0009'\ndown_revision = '{newest}'\n\n\n"
        "def upgrade():\n    op.execute('CREATE TABLE half (x INTEGER)')\n    raise RuntimeError('broken')\n"
    )
    original = databases.migrations_dir
    monkeypatch.setattr(databases, "migrations_dir", lambda: migrations)
    with pytest.raises(RuntimeError, match="broken"):
        Database.open(sqlite_settings, migrate=True)
    monkeypatch.setattr(databases, "migrations_dir", original)
    database = Database.open(sqlite_settings, migrate=False)
    with database.read() as connection:
        assert connection.execute(text("SELECT name FROM sqlite_master WHERE name = 'half'")).all() == []
    database.close()


def test_sqlite_is_durable_and_reads_beside_a_writer(sqlite_settings: Settings) -> None:
    database = Database.open(sqlite_settings, migrate=True)
    with database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    with database.write() as writer:
        writer.execute(text("DELETE FROM jobs"))
        assert Store(database).readings() == []  # does not wait for the writer
    database.close()


def test_a_network_filesystem_is_refused(sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.filesystem._mounts", lambda: [("/", "ext4"), (str(sqlite_settings.data_dir), "nfs4")])
    with pytest.raises(Unavailable, match="network filesystem") as caught:
        Database.open(sqlite_settings, migrate=True)
    assert caught.value.code == "network_filesystem"
    assert not (sqlite_settings.data_dir / "legible.sqlite").exists()


def test_the_innermost_mount_decides(tmp_path: Path) -> None:
    mounts = [("/", "nfs"), (str(tmp_path), "ext4"), (str(tmp_path) + "/x", "cifs")]
    assert filesystem_kind(tmp_path / "y", mounts) == "ext4"
    assert filesystem_kind(tmp_path / "x" / "z", mounts) == "cifs"
    assert filesystem_kind(tmp_path / "xy", mounts) == "ext4"


def test_a_full_disk_stores_nothing_and_says_so(sqlite_settings: Settings) -> None:
    database = Database.open(sqlite_settings, migrate=True)
    store, queue = Store(database), Queue(database)
    job = queue.submit("read", "k", {})
    claimed = queue.claim("w", ["read"])
    assert claimed is not None
    database.engine.dispose()

    @databases.event.listens_for(database.engine, "connect")
    def limit(connection: sqlite3.Connection, record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    long = "x" * 500_000
    with pytest.raises(Unavailable, match="full; nothing was stored"):
        queue.submit("read", "other", {"text": long})
    asked = request()
    with pytest.raises(Unavailable, match="full") as caught:
        queue.finish(
            claimed, {}, lambda c: store.put_reading(asked, reading(asked), slug="s", text=long, connection=c) and None
        )
    assert caught.value.code == "disk_full"
    assert store.prompt(asked.digest) is None
    assert queue.get(job.id).state == "running"  # its lease will end, and it is tried again
    database.close()


WITHOUT_OVERRIDE = """
import ctypes, os, sys
if os.geteuid() == 0:  # root may write to anything, until it gives that capability up (CAP_DAC_OVERRIDE, bit 1)
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~2
    assert libc.capset(header, sets) == 0
from pathlib import Path
from app.database import Database
from app.jobs import Queue
from app.settings import Settings
from legible_core.errors import LegibleError
try:
    Queue(Database.open(Settings.load(data_dir=Path(sys.argv[1])), migrate=True)).submit("read", "k", {})
except LegibleError as error:
    print(error.code, "|", error.message)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_a_read_only_database_says_so(tmp_path: Path) -> None:
    folder = make_settings(tmp_path).data_dir
    Database.open(make_settings(tmp_path), migrate=True).close()
    (folder / "legible.sqlite").chmod(0o444)
    folder.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_OVERRIDE, str(folder)], capture_output=True, text=True, timeout=60
        )
    finally:
        folder.chmod(0o755)
    assert done.stdout.startswith("read_only | "), done.stdout + done.stderr
    assert done.stdout.count(".") == 1


def test_a_read_only_transaction_says_so_on_both(settings: Settings, database: Database) -> None:
    switch = "PRAGMA query_only = ON" if database.sqlite else "SET default_transaction_read_only = on"
    databases.event.listen(database.engine, "connect", lambda c, _: c.execute(switch) and getattr(c, "commit", id)())
    database.engine.dispose()
    with pytest.raises(Unavailable, match="read-only; nothing was stored"):
        Queue(database).submit("read", "k", {})


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
def test_a_postgres_that_restarts_is_found_again(settings: Settings, database: Database) -> None:
    queue = Queue(database)
    queue.submit("read", "before", {})
    import psycopg

    with psycopg.connect(settings.database_url or "") as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid != pg_backend_pid() AND datname = current_database()"
        )
    assert queue.submit("read", "after", {}).state == "waiting"


@pytest.mark.parametrize("content", [b"no database, but long enough for a header" * 20, b"SQLite format 3\x00junk"])
def test_a_file_that_is_no_database_says_so(sqlite_settings: Settings, content: bytes) -> None:
    sqlite_settings.data_dir.mkdir(parents=True)
    (sqlite_settings.data_dir / "legible.sqlite").write_bytes(content)
    with pytest.raises(Unavailable, match=r"not a SQLite database|damaged"):
        Database.open(sqlite_settings, migrate=True)
    assert (sqlite_settings.data_dir / "legible.sqlite").read_bytes() == content


def test_a_data_folder_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(Unavailable, match="cannot be made"):
        Database.open(make_settings(tmp_path), migrate=True)


def test_an_unreachable_or_unknown_server_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pytest.importorskip("psycopg")
    for address in (f"postgresql://legible@127.0.0.1:{port}/none", "nonsense://x", "not an address"):
        with pytest.raises(LegibleError) as caught:
            Database.open(make_settings(tmp_path, database_url=address), migrate=True)
        assert "\n" not in caught.value.message


def test_two_servers_on_one_sqlite_file_lose_nothing(sqlite_settings: Settings) -> None:
    """Two processes' worth of engines: each submits, works and reads what the other did."""
    first, second = (Database.open(sqlite_settings, migrate=True) for _ in range(2))
    queues = [Queue(first), Queue(second)]

    def submit(number: int) -> int:
        return queues[number % 2].submit("read", f"k{number // 2}", {}).id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(submit, range(60)))
    assert len(set(ids)) == 30

    def work(number: int) -> list[int]:
        done = []
        while (job := queues[number].claim(f"w{number}", ["read"])) is not None:
            assert queues[number].finish(job)
            done.append(job.id)
        return done

    with ThreadPoolExecutor(2) as pool:
        worked = [job for done in pool.map(work, range(2)) for job in done]
    assert sorted(worked) == sorted(set(ids))
    assert {job.state for job in queues[0].list()} == {"done"}
    first.close()
    second.close()


def test_a_lock_holds_until_it_is_let_go(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    program = (
        "import sys, pathlib; from app.filesystem import FileLock\n"
        "with FileLock(pathlib.Path(sys.argv[1])): print('in')"
    )
    with FileLock(lock):
        other = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=10)[0] == "in\n"
