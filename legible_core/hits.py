"""Hits of monitors as facts to tell and to store, and the counts that stay exact however many there are; no torch.

    told = Teller(watch.components, watch.monitors)
    told.expect(tokens)                       # StreamToken(id, offset), as they are given to the watch
    for hit in told.take(seen): ...           # Hit(monitor, token, offset, id, values, context)
    tally.take(seen, hits)                    # counts by block of tokens, and which hits keep their context

Thousands of hits a second are counted one by one, but not all are stored whole: of each block of `BLOCK` tokens the
first `KEPT` hits of a monitor keep their place, values and context, the others are counts. The rule goes by tokens and
not by the clock, so that the same text leaves the same behind on a fast machine and a slow one, and after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from legible_core.legibility import RAIL
from legible_core.monitor import Monitor
from legible_core.text_stream import StreamToken
from legible_core.tokens import Tokenizer
from legible_core.units import Component

CONTEXT = 16  # tokens before a hit that are told with it
BLOCK = 128
KEPT = 16


class Looked(Protocol):
    """Tokens that a watch has seen; `watching.Seen`, named here so that no torch is needed."""

    @property
    def start(self) -> int: ...
    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def values(self) -> NDArray[np.float32]: ...
    @property
    def hits(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """Token number `token` (from 0), which begins at byte `offset`, is a hit of monitor number `monitor`.

    values: the monitor's components there. context: the ids of up to `CONTEXT` tokens before it, then its own.
    """

    monitor: int
    token: int
    offset: int
    id: int
    values: dict[str, float]
    context: tuple[int, ...]


class Teller:
    """Puts places, values and contexts to what a watch has seen."""

    def __init__(self, components: Sequence[Component], monitors: Sequence[Monitor]) -> None:
        place = {component: index for index, component in enumerate(components)}
        self._columns = [[(str(c), place[c]) for c in monitor.components] for monitor in monitors]
        self._before: deque[int] = deque(maxlen=CONTEXT)
        self._offsets: deque[int] = deque()

    def expect(self, tokens: Iterable[StreamToken]) -> list[int]:
        """Where the next tokens begin; returns their ids, for the watch."""
        tokens = list(tokens)
        self._offsets.extend(token.offset for token in tokens)
        return [token.id for token in tokens]

    def take(self, seen: Looked) -> list[Hit]:
        """The hits among these tokens, in their order."""
        found = []
        rows = set(np.flatnonzero(seen.hits.any(axis=1)).tolist())
        for row, index in enumerate(seen.ids):
            offset = self._offsets.popleft()
            if row in rows:
                context = (*self._before, index)
                for monitor in np.flatnonzero(seen.hits[row]).tolist():
                    values = {name: float(seen.values[row, column]) for name, column in self._columns[monitor]}
                    found.append(Hit(monitor, seen.start + row, offset, index, values, context))
            self._before.append(index)
        return found

    def state(self) -> list[int]:
        """The tokens before the next one; there are no places to remember between pieces."""
        return list(self._before)

    def restore(self, state: Sequence[int]) -> None:
        """Go on after the tokens that another teller's `state` gave."""
        self._before = deque((int(index) for index in state), maxlen=CONTEXT)


@dataclass(slots=True)
class Block:
    """What became of a block of tokens: how many were read, were hits, kept their context; ON tokens by component."""

    tokens: int = 0
    hits: int = 0
    kept: int = 0
    on: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "hits": self.hits, "kept": self.kept, "on": self.on}


class Tally:
    """Exact counts of one monitor by block, and the rule that thins contexts."""

    def __init__(self, components: Sequence[Component], monitor: int = 0) -> None:
        self._names = [str(component) for component in components]
        self._monitor = monitor
        self.blocks: dict[int, Block] = {}

    def take(self, seen: Looked, hits: Sequence[Hit]) -> list[Hit]:
        """Count these tokens; returns the hits of the monitor that keep their context."""
        numbers = (seen.start + np.arange(len(seen.ids))) // BLOCK
        on, flagged = seen.values > 1.0 - RAIL, seen.hits[:, self._monitor]
        for number in np.unique(numbers).tolist():
            here = numbers == number
            block = self.blocks.setdefault(number, Block())
            block.tokens += int(here.sum())
            block.hits += int(flagged[here].sum())
            for name, count in zip(self._names, on[here].sum(axis=0).tolist(), strict=True):
                block.on[name] = block.on.get(name, 0) + count
        kept = []
        for hit in hits:
            block = self.blocks[hit.token // BLOCK]
            if hit.monitor == self._monitor and block.kept < KEPT:
                block.kept += 1
                kept.append(hit)
        return kept

    def forget_before(self, token: int) -> None:
        """Let go of the blocks that end before a token; they are stored and will not change."""
        for number in [number for number in self.blocks if (number + 1) * BLOCK <= token]:
            del self.blocks[number]

    def state(self) -> dict[str, Any]:
        """The blocks at hand, as JSON."""
        return {str(number): block.to_json() for number, block in self.blocks.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the blocks that another tally's `state` gave."""
        self.blocks = {int(number): Block(**block) for number, block in state.items()}


def context_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of a hit's context; characters cut at its ends are U+FFFD."""
    return "".join(tokenizer.pieces(ids))
