"""A lock on a folder or a file between one machine's processes; it is let go when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

LOCK = "scan.lock"
TRIES = 10


def lock_folder(folder: Path) -> Callable[[], None] | None:
    """Make the folder and lock it. Gives what lets it go again, and removes it if it is empty; None if another has it.

    Where the system or the file system has no such locks the folder is only made. Raises `OSError` where it cannot be.
    """
    return _lock(folder / LOCK)


def lock_file(file: Path) -> Callable[[], None] | None:
    """The same for one file, there or not, beside others that another process may have: a lock stands beside it."""
    return _lock(file.with_name(f"{file.name}.lock"))


def _lock(path: Path) -> Callable[[], None] | None:
    for _ in range(TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:  # Windows; there it is left to people
            return partial(_let_go, None, path)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # its last holder has just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without locks
            return partial(_let_go, handle, path)
        # Its last holder may have removed this very file between the two calls; then another can lock a new one.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return partial(_let_go, handle, path)
        os.close(handle)
    return None


def _let_go(handle: int | None, path: Path) -> None:
    """Remove the lock's file while it is still held, so that nobody's else is removed."""
    with contextlib.suppress(OSError):
        if handle is not None:
            path.unlink(missing_ok=True)
        path.parent.rmdir()
    if handle is not None:
        os.close(handle)
