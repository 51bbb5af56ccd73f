"""The checkpoints that this installation can open: the shipped ones and the added ones, by slug or by hash.

Looks at the folders themselves, not at a copy in SQL: a folder that was moved or changed says so when it is opened.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from app.paths import models_dir
from app.store import Store
from legible_core.errors import LegibleError, NotFound
from legible_core.registry import Checkpoint, Entry, resolve, survey

FRESH_SECONDS = 5.0
_HASH = re.compile("[0-9a-f]{64}")


class Catalogue:
    """A survey of all checkpoint folders, at most `FRESH_SECONDS` old. Safe from many threads."""

    def __init__(self, store: Store, roots: tuple[Path, ...] | None = None) -> None:
        self.store = store
        self._roots = roots
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._at = float("-inf")

    def entries(self) -> list[Entry]:
        """Every folder with its checkpoint, or with the error that refuses it."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                added = [(row.slug, Path(row.path)) for row in self.store.checkpoints()]
                self._entries = survey(self._shipped(), added)
                self._at = time.monotonic()
            return list(self._entries)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that can be opened."""
        return [entry.checkpoint for entry in self.entries() if entry.checkpoint is not None]

    def get(self, slug: str) -> Checkpoint:
        """The checkpoint with this slug or hash; NotFound, or the reason why it is refused.

        A hash whose weights are not here any more is named by the slug that it had.
        """
        entries = self.entries()
        try:
            return resolve(slug, entries)
        except NotFound:
            known = self.store.slug_of(slug) if _HASH.fullmatch(slug) else None
            if known is None:
                raise
            raise _gone(known, slug, entries) from None

    def names(self, slug: str, checkpoint_hash: str) -> bool:
        """Whether the slug (or hash) leads to these weights at present; False for one that leads nowhere."""
        try:
            return self.get(slug).hash == checkpoint_hash
        except LegibleError:
            return False

    def refresh(self) -> None:
        """Look again at the next question, because a checkpoint was just added or removed."""
        with self._lock:
            self._at = float("-inf")

    def _shipped(self) -> tuple[Path, ...]:
        if self._roots is not None:
            return self._roots
        try:
            return (models_dir(),)
        except NotFound:
            return ()


def _gone(slug: str, checkpoint_hash: str, entries: list[Entry]) -> NotFound:
    """Why the weights that had this slug cannot be opened: forgotten, moved, changed, or others under their name."""
    said, hint = f"The checkpoint {slug} ({checkpoint_hash[:12]}) is not here any more", "`legible add FOLDER` adds it."
    for entry in entries:
        if entry.slug == slug and entry.error is not None:
            reason = entry.error.message
            return NotFound(f"{said}: {reason[:1].lower()}{reason[1:]}", hint=hint)
        if entry.slug == slug:
            return NotFound(f"{said}: {slug} now names other weights, in {entry.path}.", hint=hint)
    return NotFound(f"{said}; it was forgotten.", hint=hint)
