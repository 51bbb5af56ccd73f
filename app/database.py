"""One database: a SQLite file on this machine, or Postgres. Opens it, migrates it, and words its failures.

SQLite runs in WAL with synchronous=FULL; a write transaction begins IMMEDIATE, so it can never fail halfway for want of
a lock, and a read transaction never waits for a writer.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.engine import ExceptionContext

from app.filesystem import FileLock, network_filesystem
from app.paths import migrations_dir
from app.settings import Settings
from legible_core.errors import Conflict, LegibleError, Unavailable
from legible_core.extras import how_to_install

KEPT_BACKUPS = 3
BUSY_SECONDS = 15
_MIGRATION_LOCK = 0x1E61B1E


class Database:
    """An engine and its two sorts of transaction.

    >>> with database.read() as connection: ...    # a snapshot; never waits
    >>> with database.write() as connection: ...   # commits at the end of the block, or not at all
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sqlite = engine.dialect.name == "sqlite"

    @classmethod
    def open(cls, settings: Settings, *, migrate: bool) -> Database:
        """Open, and migrate or only check, the database that the settings name.

        Raises Unavailable (no such server, read-only, network filesystem, not migrated yet) or Conflict (newer schema).
        """
        database = cls(open_engine(settings))
        try:
            if migrate:
                database.migrate(settings.data_dir)
            else:
                database.require_current()
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(legible_read=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    def forget_log(self) -> None:
        """Empty SQLite's write-ahead log into the database file, as far as no reader still needs it."""
        pooled = self.engine.raw_connection()  # a checkpoint cannot run inside a transaction, where others all are
        try:
            pooled.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        finally:
            pooled.close()

    @property
    def path(self) -> Path | None:
        """The SQLite file; None on Postgres."""
        return Path(self.engine.url.database) if self.sqlite and self.engine.url.database else None

    def revision(self) -> str | None:
        """The schema revision that the database is at; None for an empty one."""
        with self.read() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return None if found is None else str(found)

    def require_current(self) -> None:
        """Raise unless the schema is the one that this code knows."""
        current, known = self.revision(), _revisions()
        _refuse_newer(current, known)
        if current != known[-1]:
            raise Unavailable(
                "The database is not set up yet; start `legible serve`, which does it.", code="not_migrated"
            )

    def migrate(self, data_dir: Path) -> None:
        """Bring the schema up to date; a SQLite file that holds something is copied to `backups/` first."""
        from alembic import command

        current, known = self.revision(), _revisions()
        _refuse_newer(current, known)
        if current == known[-1]:
            return
        with self._migrating(data_dir):
            current = self.revision()  # another process may have been quicker
            if current == known[-1]:
                return
            if current is not None and self.path is not None:
                _back_up(self.path, data_dir / "backups", current)
            with self.write() as connection:
                config = alembic_config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")

    @contextmanager
    def _migrating(self, data_dir: Path) -> Iterator[None]:
        """One migration at a time, whoever runs it."""
        if self.sqlite:
            with FileLock(data_dir / "migrate.lock"):
                yield
            return
        with self.engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})


def insert_ignore(using: Connection, table: type[Any], values: dict[str, Any]) -> None:
    """Insert a row unless its unique key is there already."""
    if using.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_sqlite

        using.execute(insert_sqlite(table).values(values).on_conflict_do_nothing())
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_postgres

        using.execute(insert_postgres(table).values(values).on_conflict_do_nothing())


def alembic_config() -> Any:
    """Alembic's configuration, from wherever the migrations are installed."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    return config


def _revisions() -> list[str]:
    """Every revision this code knows, oldest first: the numbers that the files start with.

    Read off the names, because loading Alembic would double the time that a worker takes to start.
    """
    return sorted(path.name.partition("_")[0] for path in (migrations_dir() / "versions").glob("[0-9]*.py"))


def _refuse_newer(current: str | None, known: list[str]) -> None:
    if current is not None and current not in known:
        raise Conflict(
            f"The database was written by a newer Legible (schema {current}; this version knows up to {known[-1]}).",
            code="newer_schema",
            hint="Install the newer version again, or choose another folder with --data-dir.",
        )


def _back_up(path: Path, folder: Path, revision: str) -> None:
    """Copy a live SQLite file consistently, then forget all but the newest copies."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}-{revision}-{time.strftime('%Y%m%d-%H%M%S')}.sqlite"
    partial = target.with_suffix(".partial")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(partial)) as copy:
        source.backup(copy)
    partial.replace(target)
    for old in sorted(folder.glob("*.sqlite"), key=lambda file: file.stat().st_mtime)[:-KEPT_BACKUPS]:
        old.unlink()


def open_engine(settings: Settings) -> Engine:
    """An engine with this program's transactions and wording of failures; connects to nothing yet."""
    url = settings.url
    if not url.startswith("sqlite"):
        try:
            engine = create_engine(url, pool_pre_ping=True, pool_size=10)
        except (exc.ArgumentError, exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise Unavailable(
                f"The database address cannot be used: {error}.",
                hint=f"Give postgresql://user:password@host/name. For Postgres, {how_to_install('postgres')}.",
            ) from None
        event.listen(engine, "handle_error", _translate)
        return engine
    path = Path(url.removeprefix("sqlite:///"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts are private
    except OSError as error:
        message = f"The data folder {path.parent} cannot be made: {error.strerror}."
        raise Unavailable(message, code="read_only") from None
    if kind := network_filesystem(path.parent):
        raise Unavailable(
            f"The data folder {path.parent} is on a network filesystem ({kind}), where SQLite can lose data.",
            code="network_filesystem",
            hint="Choose a local folder with --data-dir, or a Postgres database with --database-url.",
        )
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, pool_size=20, max_overflow=40)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    event.listen(engine, "handle_error", _translate)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions begin where _on_sqlite_begin says, not where the driver guesses
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _on_sqlite_begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get("legible_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


_ELSEWHERE = "Make its file and folder writable, or choose another --data-dir."

# What SQLite says → code, sentence, what to do.
_SQLITE_FAILURES = {
    "disk is full": (
        "disk_full",
        "The disk that holds the database is full; nothing was stored.",
        "Free some space and try again.",
    ),
    "readonly database": ("read_only", "The database is read-only; nothing was stored.", _ELSEWHERE),
    "unable to open database": ("read_only", "The database file cannot be opened for writing.", _ELSEWHERE),
    "database is locked": (
        "busy",
        "The database is busy with other writers; nothing was stored.",
        "Try again in a moment.",
    ),
    "malformed": (
        "corrupt_database",
        "The database file is damaged.",
        "Restore the newest copy from the folder `backups`.",
    ),
    "not a database": (
        "corrupt_database",
        "The database file is not a SQLite database.",
        "Choose another --data-dir.",
    ),
    "disk i/o error": ("disk_error", "The disk that holds the database failed; nothing was stored.", None),
}


def _translate(context: ExceptionContext) -> None:
    """Raise the one clear sentence in place of the driver's words, where there is one."""
    if context.is_pre_ping:
        return  # the pool tries a stale connection before it hands it out, and makes another
    error = context.original_exception
    words = str(error).lower()
    if isinstance(error, sqlite3.Error):
        for needle, (code, sentence, hint) in _SQLITE_FAILURES.items():
            if needle in words:
                raise Unavailable(sentence, code=code, hint=hint) from error
    elif isinstance(context.sqlalchemy_exception, exc.OperationalError | exc.InternalError | exc.InterfaceError):
        raise _postgres_failure(words) from error


def _postgres_failure(words: str) -> LegibleError:
    if "no space left" in words or "disk full" in words:
        return Unavailable("The disk of the Postgres server is full; nothing was stored.", code="disk_full")
    if "read-only transaction" in words:
        return Unavailable("The Postgres database is read-only; nothing was stored.", code="read_only")
    first = words.strip().splitlines()[0] if words.strip() else "no reason given"
    return Unavailable(f"The Postgres database cannot be used: {first}.", code="no_database")
