"""Every item's scores as they come, one JSON line each, so that an interrupted evaluation goes on; imports no torch.

The first line says what the file belongs to; then come lines such as `{"part": "wh_island", "item": 12, "scores":
[[-41.2, false], [-43.9, false]]}`, in the order in which items were finished. A process that was killed leaves at most
one line half written, which the next one cuts off. Each item stands in the file once.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from legible_core.errors import Conflict, Unavailable

JOURNAL = 1
SYNC_SECONDS = 5.0

Key = tuple[str, int]
Scores = list[tuple[float, bool]]


class Journal:
    """The per-item scores of one task, one checkpoint and one set of questions; one process writes at a time."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        """Open or begin it. What belongs to another `identity` or cannot be read is not taken up, but begun anew.

        Raises `Conflict` while another process writes it, `Unavailable` when the disk does not take it.
        """
        self.path = path
        self.done: dict[Key, Scores] = {}
        self._synced = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that nothing is written at another moment than the one that asks for it.
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise self._unavailable(error) from None
        self._lock()
        try:
            self._end = self._take_up(identity)
        except OSError as error:
            self._file.close()
            raise self._unavailable(error) from None

    def add(self, finished: Iterable[tuple[Key, Scores]]) -> None:
        """Write finished items; raises `Unavailable` when the disk is full, and keeps what was written before."""
        lines = []
        for key, scores in finished:
            if key in self.done:
                raise ValueError(f"the item {key} is already there")
            self.done[key] = scores
            lines.append(json.dumps({"part": key[0], "item": key[1], "scores": scores}) + "\n")
        data = "".join(lines).encode()
        try:
            self._write(data)
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise self._unavailable(error) from None

    def close(self) -> None:
        """Have the disk take everything."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unavailable(error) from None
        finally:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    # ---- the file --------------------------------------------------------------------------------------------------

    def _take_up(self, identity: dict[str, Any]) -> int:
        """Read what is whole, cut off what is not; the length of the file then."""
        head = (json.dumps({"journal": JOURNAL, **identity}, sort_keys=True) + "\n").encode()
        first, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if first != head:
            self._file.truncate(0)
            self._end = 0
            self._write(head)
            return self._end
        end = len(head)
        for line in lines:
            try:
                entry = json.loads(line)
                key = (str(entry["part"]), int(entry["item"]))
                scores = [(float(log), bool(hit)) for log, hit in entry["scores"]]
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                break
            if not line.endswith(b"\n") or key in self.done:
                break
            self.done[key] = scores
            end += len(line)
        self._file.truncate(end)
        return end

    def _write(self, data: bytes) -> None:
        """Append all of it, or leave the file as it was."""
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(data)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows opens a second writer's file all the same; there it is left to people
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise Conflict(
                f"Another process evaluates the same checkpoint on the same task (it writes {self.path}); "
                "wait for it or stop it."
            ) from None

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"The scores cannot be written to {self.path}: {error.strerror or error}.",
            code="cannot_write",
            hint="What was scored before is kept; make room, or choose another --data-dir, and run it again.",
        )
