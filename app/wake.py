"""Wakes idle workers the moment a job is there: NOTIFY on Postgres, a local datagram socket per worker beside SQLite.

Only a hint: whoever misses it finds the job at the next poll, so every failure here is let pass in silence.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, exc

from app.database import Database
from legible_core.errors import LegibleError

CHANNEL = "legible_jobs"


def within(connection: Connection) -> None:
    """In the submitting transaction: Postgres delivers at its commit."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"NOTIFY {CHANNEL}")


def after(database: Database) -> None:
    """After the commit: a byte to every socket of this SQLite file's workers; dead workers' sockets are removed."""
    folder = _folder(database)
    if folder is None:
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
        sender.setblocking(False)
        for path in folder.glob("*.sock"):
            try:
                sender.sendto(b"!", str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                path.unlink(missing_ok=True)
            except OSError:
                pass  # its buffer is full: it has been woken already


class Waker:
    """What a worker waits on.

    >>> with Waker(database) as waker:
    ...     waker.wait(1.0)    # returns at once when a job was submitted, else after the second
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._listener: Any = None

    def __enter__(self) -> Waker:
        folder = _folder(self.database)
        if folder is not None:
            with contextlib.suppress(OSError):
                self._path = folder / f"{os.getpid()}-{time.monotonic_ns()}.sock"
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._socket.bind(str(self._path))
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._listener is not None:
            self._listener.close()

    def interrupt(self) -> None:
        """End this process's own wait at once, where it waits on a socket; safe in a signal handler."""
        if self._socket is not None and self._path is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(b"!", str(self._path))

    def wait(self, seconds: float) -> bool:
        """Wait at most that long; True when woken."""
        if self._socket is not None:
            ready, _, _ = select.select([self._socket], [], [], seconds)
            if ready:
                with contextlib.suppress(BlockingIOError):
                    while self._socket.recv(64):
                        pass
            return bool(ready)
        if not self.database.sqlite:
            return self._wait_postgres(seconds)
        time.sleep(seconds)
        return False

    def _wait_postgres(self, seconds: float) -> bool:
        import psycopg

        started = time.monotonic()
        try:
            if self._listener is None:
                self._listener = _listen(self.database)
                return True  # what was submitted before we listened is found by looking once
            return any(True for _ in self._listener.notifies(timeout=seconds, stop_after=1))
        except (psycopg.Error, exc.SQLAlchemyError, LegibleError):
            self._listener = None
            time.sleep(max(0.0, seconds - (time.monotonic() - started)))
            return False


def _listen(database: Database) -> Any:
    """A Postgres connection of its own, taken out of the pool, that hears the channel."""
    pooled = database.engine.raw_connection()
    connection: Any = pooled.driver_connection
    pooled.detach()
    connection.autocommit = True
    connection.execute(f"LISTEN {CHANNEL}")
    return connection


def _folder(database: Database) -> Path | None:
    """The private folder of this database's sockets: short enough for a socket's address, and ours alone."""
    if database.path is None or sys.platform == "win32":
        return None
    name = hashlib.sha256(os.fsencode(os.path.realpath(database.path))).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"legible-{os.getuid()}-{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if ours else None
