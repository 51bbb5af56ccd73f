"""Put a finished file or folder in the place of another in one step; imports no torch.

Linux and macOS can exchange two names atomically, so a process killed at any moment leaves the old folder or the new
one, whole. Where a file system cannot, the old folder steps aside first, and there is a moment in which neither has
the name; the old one then still lies beside it as `.<name>.replaced-…`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

_AT_FDCWD = -100
_EXCHANGE = 2
# What a disk that does not take a file raises: safetensors words the system's error its own way.
WRITE_ERRORS = (OSError, SafetensorError)


def write_reason(error: BaseException) -> str:
    """The system's words for why a file was not written, out of one of `WRITE_ERRORS`: "No space left on device"."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    found = re.search(r"I/O error: (.+?) \(os error \d+\)", str(error))
    return found[1] if found else str(error)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file whole or not at all, as readable as the file it replaces or the folder's config.json.

    Raises one of `WRITE_ERRORS`; what was there before is then untouched.
    """
    draft = path.parent / f".{path.name}.saving-{secrets.token_hex(6)}"
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, draft, metadata=dict(metadata))
        # safetensors keeps its files to their owner.
        pattern = next((file for file in (path, path.parent / "config.json") if file.is_file()), None)
        if pattern is not None:
            shutil.copymode(pattern, draft)
        sync(draft)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_folder(draft: Path, folder: Path) -> None:
    """Rename `draft` to `folder`, on the same file system; what had that name is removed. Raises `OSError`."""
    if not os.path.lexists(folder):
        os.rename(draft, folder)
        sync(folder.parent)
        return
    aside = folder.parent / f".{folder.name}.replaced-{secrets.token_hex(6)}"
    if exchange(draft, folder):
        os.rename(draft, aside)
    else:
        os.rename(folder, aside)
        try:
            os.rename(draft, folder)
        except OSError:
            os.rename(aside, folder)
            raise
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically; False when this system or file system cannot."""
    library: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    a, b = os.fsencode(first), os.fsencode(second)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        return bool(library.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _EXCHANGE) == 0)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return bool(library.renamex_np(a, b, _EXCHANGE) == 0)
    return False


def sync(path: Path) -> None:
    """Have the disk take what was written to a file, or the names in a folder."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
