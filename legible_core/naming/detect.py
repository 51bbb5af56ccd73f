"""The detect side: the tokens on which an operand is decisively ON; imports no torch.

An operand's list is made from counts over the naming half of a scan and judged by counts over its held-out half:

    candidates   tokens seen at least MIN_COUNT times, ON at least MIN_ON times, and ON more often than a draw of as
                 many positions at random would be (the frequency-matched null: z >= MIN_Z)
    list         the candidates that predict ON best: the shortest list whose balanced accuracy on the naming half is
                 within SLACK of the best list's, at most MAX_LENGTH tokens
    order        by the lower confidence bound of lift = P(ON | token) / P(ON), so that a token seen five times does
                 not stand before one seen a thousand times at nearly the same rate
    agreement    balanced accuracy of "the token is in the list" for ON, on the held-out half only

Ranking by mean activation instead collapses to the most frequent tokens ("Legible-by-Construction", section 5.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_COUNT = 5
MIN_ON = 3
MIN_Z = 3.0
SLACK = 0.01
MAX_LENGTH = 256
# Agreement needs this many ON and this many not-ON tokens in the held-out half, or it is undefined.
MIN_HELD_OUT = 20
_CONFIDENCE = 1.96

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TokenCounts:
    """How often each operand is ON at each token of a vocabulary subset; memory O(tokens x operands).

    columns: vocabulary ids that are counted one by one; all others share the last row. Counts of shards add up exactly.
    """

    def __init__(self, columns: Ints, vocab_size: int, width: int) -> None:
        self.columns = columns
        self.vocab_size = vocab_size
        self.row = np.full(vocab_size, len(columns), np.int64)
        self.row[columns] = np.arange(len(columns))
        self.seen: NDArray[np.int64] = np.zeros(len(columns) + 1, np.int64)
        self.on: NDArray[np.uint32] = np.zeros((len(columns) + 1, width), np.uint32)

    def count_tokens(self, ids: Ints) -> None:
        """Add the occurrences of `ids`, shape (n,)."""
        self.seen += np.bincount(self.row[ids], minlength=len(self.seen))

    def count_on(self, ids: Ints, on: NDArray[np.bool_]) -> None:
        """Add the ON tokens, `on` of shape (n, operands), at tokens `ids`, shape (n,)."""
        if not ids.size or not on.shape[1]:
            return
        rows = self.row[ids]
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        self.on[rows[starts]] += np.add.reduceat(on[order].view(np.uint8), starts, axis=0, dtype=np.uint32)

    def merge(self, other: TokenCounts) -> None:
        """Add another shard's counts to these."""
        if not np.array_equal(self.columns, other.columns) or self.on.shape != other.on.shape:
            raise ValueError("these counts are of different tokens or operands")
        self.seen += other.seen
        self.on += other.on

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays."""
        return {f"{prefix}.seen": self.seen, f"{prefix}.on": self.on}

    def restored(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> TokenCounts:
        """Counts of the same tokens and operands in the state that `arrays` gave; raises ValueError for another's."""
        seen = np.array(arrays[f"{prefix}.seen"], np.int64)
        on = np.array(arrays[f"{prefix}.on"], np.uint32)
        if seen.shape != self.seen.shape or on.shape != self.on.shape:
            raise ValueError("these counts are of different tokens or operands")
        other = TokenCounts(self.columns, self.vocab_size, 0)
        other.seen, other.on = seen, on
        return other


@dataclass(frozen=True)
class DetectLists:
    """One ragged list per operand. Operand o owns entries `offsets[o]:offsets[o + 1]`, best first.

    tokens: vocabulary ids. on: occurrences at which the operand was ON. share: P(ON | token). lift: P(ON | token) over
    P(ON). naming: balanced accuracy of each list on the naming half, 0.5 for an empty one.
    """

    offsets: Ints
    tokens: Ints
    on: Ints
    share: Floats
    lift: Floats
    naming: Floats

    def of(self, operand: int) -> slice:
        return slice(int(self.offsets[operand]), int(self.offsets[operand + 1]))

    @property
    def count(self) -> int:
        """Number of operands."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)


def detect(counts: TokenCounts, *, slack: float = SLACK, max_length: int = MAX_LENGTH) -> DetectLists:
    """The detect list of every operand, from the naming half alone."""
    seen = counts.seen[:-1]
    total = int(counts.seen.sum())
    on_total = counts.on.sum(axis=0, dtype=np.int64)
    listable = np.flatnonzero(seen >= MIN_COUNT)
    n = seen[listable].astype(np.float64)
    none = _nothing()
    pieces: list[tuple[Ints, Ints, Floats, Floats]] = []
    naming = np.full(len(on_total), 0.5)
    for operand, hits in enumerate(on_total):
        h = counts.on[listable, operand].astype(np.float64)
        pieces.append(one_list(n, h, int(hits), total, slack, max_length))
        chosen, _, _, _ = pieces[-1]
        naming[operand] += 0.5 * float(_gain(n[chosen], h[chosen], int(hits), total).sum())
        pieces[-1] = (counts.columns[listable[chosen]], *pieces[-1][1:])
    offsets = np.concatenate([[0], np.cumsum([len(piece[0]) for piece in pieces])]).astype(np.int64)
    return DetectLists(
        offsets,
        np.concatenate([none[0], *(piece[0] for piece in pieces)]),
        np.concatenate([none[1], *(piece[1] for piece in pieces)]),
        np.concatenate([none[2], *(piece[2] for piece in pieces)]),
        np.concatenate([none[3], *(piece[3] for piece in pieces)]),
        naming,
    )


def _nothing() -> tuple[Ints, Ints, Floats, Floats]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0)


def _gain(n: Floats, h: Floats, hits: int, total: int) -> Floats:
    """What each token adds to (true positive rate - false positive rate) when it joins the list."""
    if not 0 < hits < total:
        return np.zeros_like(n)
    gain: Floats = h / hits - (n - h) / (total - hits)
    return gain


def one_list(
    n: Floats, h: Floats, hits: int, total: int, slack: float = SLACK, max_length: int = MAX_LENGTH
) -> tuple[Ints, Ints, Floats, Floats]:
    """Positions among the listable tokens, with their ON counts, shares and lifts, in the order shown.

    n, h: how often each was seen and ON; hits of all `total` positions are ON.
    """
    none = _nothing()
    if not 0 < hits < total:
        return none
    base = hits / total
    share = h / n
    z = (share - base) / np.sqrt(base * (1.0 - base) / n)
    candidates = np.flatnonzero((h >= MIN_ON) & (z >= MIN_Z))
    if not candidates.size:
        return none
    gain = _gain(n[candidates], h[candidates], hits, total)
    order = np.lexsort((candidates, -gain))
    # Balanced accuracy is (1 + sum of gains) / 2, so a slack in it is twice that in the sum.
    reached = np.cumsum(gain[order])
    length = int(np.searchsorted(reached, reached[-1] - 2.0 * slack)) + 1
    chosen = candidates[order[: min(length, max_length)]]
    chosen = chosen[np.lexsort((chosen, -_lower_bound(share[chosen], n[chosen])))]
    return chosen, h[chosen].astype(np.int64), share[chosen], share[chosen] / base


def _lower_bound(share: Floats, n: Floats) -> Floats:
    """Wilson's lower confidence bound of a rate."""
    z2 = _CONFIDENCE**2
    centre = share + z2 / (2 * n)
    spread = _CONFIDENCE * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    bound: Floats = (centre - spread) / (1 + z2 / n)
    return bound


def agreement(lists: DetectLists, held_out: TokenCounts) -> Floats:
    """Balanced accuracy of "the token is in the list" for ON, per operand, on text that made no list.

    NaN where the held-out half has fewer than MIN_HELD_OUT ON or not-ON tokens; 0.5 for an empty list.
    """
    total = int(held_out.seen.sum())
    hits = held_out.on.sum(axis=0, dtype=np.int64)
    rows = held_out.row[lists.tokens.astype(np.int64)]
    owner = np.repeat(np.arange(len(hits)), lists.lengths)
    inside = np.bincount(owner, weights=held_out.seen[rows], minlength=len(hits))
    caught = np.bincount(owner, weights=held_out.on[rows, owner], minlength=len(hits))
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy: Floats = 0.5 + 0.5 * (caught / hits - (inside - caught) / (total - hits))
    accuracy[(hits < MIN_HELD_OUT) | (total - hits < MIN_HELD_OUT)] = np.nan
    return accuracy
