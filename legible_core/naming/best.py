"""The best positions of many components at once, with what stands around them; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
# Tokens shown before and after the chosen one.
BEFORE, AFTER = 17, 6
WIDTH = BEFORE + 1 + AFTER


@dataclass
class Candidates:
    """Positions that may enter: rows of components, scores to rank by, places in the text, and what stands around."""

    rows: Ints
    score: NDArray[np.float32]
    position: Ints
    left: NDArray[np.uint8]
    right: NDArray[np.uint8]
    values: NDArray[np.float16]

    def of(self, chosen: NDArray[Any]) -> Candidates:
        return Candidates(*(getattr(self, name)[chosen] for name in Candidates.__dataclass_fields__))


class Best:
    """For each of `rows` components the `slots` positions of the highest score; ties go to the earlier position.

    position: -1 where a slot is empty. left, right: how many tokens the window holds before and after the position, at
    most BEFORE and AFTER. values: (rows, slots, WIDTH), the position's own at BEFORE, zeros outside the window.
    """

    FIELDS = ("score", "position", "left", "right", "values")

    def __init__(self, rows: int, slots: int) -> None:
        self.slots = slots
        self.score: NDArray[np.float32] = np.full((rows, slots), -np.inf, np.float32)
        self.position: Ints = np.full((rows, slots), -1, np.int64)
        self.left: NDArray[np.uint8] = np.zeros((rows, slots), np.uint8)
        self.right: NDArray[np.uint8] = np.zeros((rows, slots), np.uint8)
        self.values: NDArray[np.float16] = np.zeros((rows, slots, WIDTH), np.float16)

    @property
    def least(self) -> NDArray[np.float32]:
        """What a score must exceed to enter, shape (rows,)."""
        return self.score[:, -1]

    def offer(self, found: Candidates) -> None:
        """Keep what is better than what is here."""
        if not found.rows.size:
            return
        found = found.of(np.argsort(found.rows, kind="stable"))
        rows, counts = np.unique(found.rows, return_counts=True)
        place = np.arange(len(found.rows)) - np.repeat(np.cumsum(counts) - counts, counts) + self.slots
        line = np.repeat(np.arange(len(rows)), counts)
        empty = {"score": -np.inf, "position": -1}
        joined = {}
        for name in self.FIELDS:
            old = getattr(self, name)[rows]
            more = np.full((len(rows), int(counts.max()), *old.shape[2:]), empty.get(name, 0), old.dtype)
            joined[name] = np.concatenate([old, more], axis=1)
            joined[name][line, place] = getattr(found, name)
        order = np.lexsort((joined["position"], -joined["score"]), axis=1)[:, : self.slots]
        for name in self.FIELDS:
            getattr(self, name)[rows] = joined[name][np.arange(len(rows))[:, None], order]

    def merge(self, other: Best) -> None:
        """Take in another shard's; the same as if one had seen both."""
        line, slot = np.nonzero(other.position >= 0)
        self.offer(Candidates(line, *(getattr(other, name)[line, slot] for name in self.FIELDS)))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        return {f"{prefix}.{name}": getattr(self, name) for name in self.FIELDS}

    def restore(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        """Inverse of `arrays`; raises ValueError for another shape."""
        for name in self.FIELDS:
            found = np.array(arrays[f"{prefix}.{name}"])
            if found.shape != getattr(self, name).shape or found.dtype != getattr(self, name).dtype:
                raise ValueError("these contexts are of other components")
            setattr(self, name, found)
