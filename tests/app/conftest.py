"""Storage and job tests run on SQLite and on a real Postgres, which starts here where it is installed."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.database import Database
from app.jobs import Queue
from app.paths import migrations_dir
from app.settings import Settings
from app.store import Store
from app.tables import Base


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a Postgres server on 127.0.0.1, without a database name."""
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("Postgres (initdb, pg_ctl) is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    # A folder that the user `postgres` may enter; pytest's own is for root alone.
    folder = Path(tempfile.mkdtemp(prefix="legible-postgres-", dir="/tmp"))
    as_postgres: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        as_postgres = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=100"
    try:
        _run(*as_postgres, f"{programs}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "legible", "-E", "UTF8")
        control = [*as_postgres, f"{programs}/pg_ctl", "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
        _run(*control, "-o", options, "start")
        try:
            yield f"postgresql://legible@127.0.0.1:{port}"
        finally:
            _run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings on an empty database of either sort, with leases short enough to wait for."""
    address = None
    if request.param == "postgres":
        import psycopg

        address = f"{request.getfixturevalue('postgres')}/postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            # One database emptied again costs a tenth of a new one; what an earlier test left connected is cut off.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid != pg_backend_pid() AND datname = current_database()"
            )
            if "from_nothing" in request.fixturenames or not _emptied(connection):
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
    return make_settings(tmp_path, database_url=address)


def _emptied(connection: Any) -> bool:
    """Empty the tables that an earlier test left; False where they are not all there, or not the newest."""
    found = {row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    if found != {*Base.metadata.tables, "alembic_version"}:
        return False
    newest = sorted(path.name.partition("_")[0] for path in (migrations_dir() / "versions").glob("[0-9]*.py"))[-1]
    if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(newest,)]:
        return False
    connection.execute(f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY")
    return True


@pytest.fixture
def sqlite_settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


def make_settings(folder: Path, **more: object) -> Settings:
    return Settings.load(data_dir=folder / "data", workers=0, lease_seconds=2.0, poll_seconds=0.2, **more)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    opened = Database.open(settings, migrate=True)
    yield opened
    opened.close()


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
def queue(database: Database, settings: Settings) -> Queue:
    return Queue(database, lease_seconds=settings.lease_seconds, max_attempts=settings.max_attempts)


def _postgres_programs() -> str | None:
    """The folder of Postgres' own programs, the newest version's; None where there is none."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    for folder in [*reversed(found), os.path.dirname(shutil.which("initdb") or "")]:
        if folder and os.path.exists(f"{folder}/initdb") and os.path.exists(f"{folder}/pg_ctl"):
            return folder
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/")
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr}")
