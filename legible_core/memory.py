"""A least-recently-used cache bounded in bytes, for what is large and can be made again; imports no torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteCache(Generic[Key, Value]):
    """Keeps the most recently used values whose sizes sum to at most `limit` bytes.

    A value larger than the limit is not kept at all, and drives nothing else out. Safe to share between threads.
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a cache limit of {limit} bytes is negative")
        self.limit = limit
        self.used = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """The value kept under `key`, which becomes the most recent one; None when there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep `value`, of `size` bytes, and drop the least recently used ones that no longer fit beside it."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.used -= old[1]
            if size > self.limit:
                return
            self._entries[key] = (value, size)
            self.used += size
            while self.used > self.limit:
                _, (_, dropped) = self._entries.popitem(last=False)
                self.used -= dropped

    def get_or_make(self, key: Key, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """`get`, or else `make()` kept under `key`. Two threads that miss at once both make it; the last is kept."""
        kept = self.get(key)
        if kept is not None:
            return kept
        made = make()
        self.put(key, made, size(made))
        return made

    def drop(self, key: Key) -> None:
        """Forget `key`; nothing happens when it is not kept."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.used -= entry[1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.used = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries
