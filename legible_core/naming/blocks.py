"""A layer's values into statistics on a processor: window by window on every thread, block by block in its cache.

    team = Team()
    found = measure([Surface(values, rails=512), ...], (windows, tokens), team, peaks=True)
    team.map(lambda groups: count_on(counts, groups, on), Groups.of(counts, ids).split(team.size))

What `naming.measure` does in a few passes over the memory, each on one thread, is done here on blocks of rows that the
cache holds, so that memory is read once. Sums of a block are products with a row of ones in float32, around its first
row, so that a channel that hardly varies loses no digits; blocks are joined in float64. The sums of a batch are thus
the same in every shard, and whichever thread makes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from legible_core.legibility import HISTOGRAM_BINS, RAIL, Moments
from legible_core.naming.detect import TokenCounts
from legible_core.naming.observe import Ints

# Rows of a block: one of 512 columns takes half a mebibyte, and as much the buffer beside it.
ROWS = 256

T = TypeVar("T")
R = TypeVar("R")


class Team:
    """As many threads as torch may use, each running torch's operations by itself.

    For work in many small pieces: torch's own division of one operation among threads costs more than such a piece.
    With one thread everything is done by the caller.
    """

    def __init__(self) -> None:
        self.size = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None
        if self.size == 1:
            return
        self._pool = ThreadPoolExecutor(self.size, "scan")
        barrier = Barrier(self.size)

        def begin(_: int) -> None:
            # Asked first: a thread that was not asked yet takes the number of all, whatever it was told.
            torch.get_num_threads()
            torch.set_num_threads(1)  # of this thread, and of those that begin after it
            barrier.wait()

        list(self._pool.map(begin, range(self.size)))
        torch.set_num_threads(self.size)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results in order; raises what the first of them raised."""
        return list(map(function, items) if self._pool is None else self._pool.map(function, items))


@dataclass(frozen=True)
class Surface:
    """Values of one kind over a batch, of which the first `rails` columns are between 0 and 1.

    on: for operands, a place for 1 where one is ON and 0 elsewhere; a histogram is made of them too.
    """

    values: Float[Tensor, "n w"]
    rails: int
    on: Float[Tensor, "n w"] | None = None


@dataclass(frozen=True)
class Measured:
    """One surface over a batch of `n` tokens: what `Moments.add` takes, and the largest value of each window.

    mean, squares (float64), on, off (int64): of shape (rails,). bins: (20, rails), of operands. peaks: (windows, width)
    float32, of all columns; of no columns where they were not asked for.
    """

    n: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    on: NDArray[np.int64]
    off: NDArray[np.int64]
    bins: NDArray[np.int64] | None
    peaks: NDArray[np.float32]

    def add_to(self, moments: Moments) -> None:
        """Add what was measured to the statistics."""
        if moments.width:
            moments.add(self.n, self.mean, self.squares, self.on, self.off, self.bins)
        else:
            moments.count += self.n


def measure(surfaces: Sequence[Surface], shape: tuple[int, int], team: Team, *, peaks: bool) -> list[Measured]:
    """Measure a layer's surfaces over a batch of `shape` (windows, tokens).

    Raises ValueError on a NaN or an infinity where there are rails.
    """
    count, length = shape
    # A block is some whole windows, or a part of one.
    together, parts = max(1, ROWS // length), -(-length // ROWS)
    ends = [length * part // parts for part in range(parts)] if parts > 1 else [0]
    starts = [window * length + end for window in range(0, count, together) for end in ends]

    def one(rows: tuple[int, int]) -> list[_Block]:
        windows = max(1, (rows[1] - rows[0]) // length) if peaks else 0
        part = slice(*rows)
        return [_block(of.values[part], of.rails, None if of.on is None else of.on[part], windows) for of in surfaces]

    blocks = team.map(one, itertools.pairwise([*starts, count * length]))
    return [_joined(found, parts) for found in zip(*blocks, strict=True)]


@dataclass(frozen=True)
class _Block:
    """A block of one surface: its first row, and sums around it; float32, whole numbers exact.

    bins: (rails, 21). peaks: (windows, width), one window where the block is a part of it.
    """

    n: int
    first: Tensor
    deviations: Tensor
    squares: Tensor
    on: Tensor
    off: Tensor | None
    bins: Tensor | None
    peaks: Tensor


@torch.no_grad()
def _block(values: Float[Tensor, "n w"], rails: int, on: Tensor | None, windows: int) -> _Block:
    # The rows are written out: a surface without bounded values is 0 wide, which -1 cannot be told of.
    shape = (windows, len(values) // max(windows, 1), values.shape[1])
    highest = values.view(shape).amax(dim=1) if windows else values.new_empty(1, 0)
    values, n = values[:, :rails], len(values)
    ones, wide = values.new_ones(1, n), values.new_empty(n, rails)
    torch.sub(values, values[0], out=wide)
    deviations = ones @ wide
    squares = ones @ wide.square_()
    if not math.isfinite(float(squares.sum())):
        raise ValueError("a membership is not a finite number")
    mask = torch.gt(values, 1.0 - RAIL, out=wide if on is None else on)
    count = ones @ mask
    if on is None:
        off = ones @ torch.lt(values, RAIL, out=wide)
        return _Block(n, values[0], deviations[0], squares[0], count[0], off[0], None, highest)
    # One bin more than there are, for the value 1.0, which belongs to the last one.
    size = HISTOGRAM_BINS + 1
    number = torch.mul(values, HISTOGRAM_BINS, out=wide).int()
    number += torch.arange(0, rails * size, size, dtype=torch.int32)
    bins = torch.bincount(number.view(-1), minlength=rails * size).view(rails, size)
    return _Block(n, values[0], deviations[0], squares[0], count[0], None, bins, highest)


def _joined(blocks: Sequence[_Block], each: int) -> Measured:
    """One surface's blocks, `each` of them a window where they are parts of one, by Chan, Golub and LeVeque's rule."""

    def stack(name: str) -> NDArray[Any]:
        found: NDArray[Any] = torch.stack([getattr(block, name) for block in blocks]).numpy()
        return found

    peaks = torch.cat([block.peaks for block in blocks]).numpy()
    n = np.array([[block.n] for block in blocks], np.float64)
    total = n.sum()
    deviations = stack("deviations").astype(np.float64)
    means = stack("first") + deviations / n
    mean = (means * (n / total)).sum(axis=0)
    within = np.maximum(stack("squares") - deviations**2 / n, 0.0)
    bins = None
    if blocks[0].bins is not None:
        counts = stack("bins").sum(axis=0)
        counts[:, -2] += counts[:, -1]
        bins = counts[:, :-1].T
        # A float32 is below the rail just where its twentyfold is below 2: the first two bins hold no other.
        off = bins[: round(RAIL * HISTOGRAM_BINS)].sum(axis=0)
    else:
        off = stack("off").sum(axis=0).astype(np.int64)
    return Measured(
        int(total),
        mean,
        (within + n * np.square(means - mean)).sum(axis=0),
        stack("on").sum(axis=0).astype(np.int64),
        off,
        bins,
        peaks.reshape(len(peaks) // each, each, peaks.shape[1]).max(axis=1),
    )


def join(parts: list[Measured]) -> Measured:
    """Surfaces side by side, over the same tokens."""
    if len(parts) == 1:
        return parts[0]
    rows = ("mean", "squares", "on", "off", "peaks", "bins")
    joined = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in rows}
    return Measured(parts[0].n, **joined)


@dataclass(frozen=True)
class Groups:
    """Which places of a batch count in which row of a `TokenCounts`: for `rows[i]`, `order[start[i]:start[i + 1]]`."""

    order: Ints
    start: Ints
    rows: Ints

    @classmethod
    def of(cls, counts: TokenCounts, ids: Ints) -> Groups:
        """Of a batch of ids, shape (n,), n > 0."""
        rows = counts.row[ids]
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        return cls(order, np.append(begins, len(ids)), rows[begins])

    def split(self, parts: int) -> list[Groups]:
        """The same rows in at most so many parts of about as many tokens each."""
        wanted = np.arange(1, parts) * len(self.order) // parts
        cuts = np.unique(np.concatenate([[0], np.searchsorted(self.start, wanted), [len(self.rows)]]))
        return [
            Groups(self.order[self.start[a] : self.start[b]], self.start[a : b + 1] - self.start[a], self.rows[a:b])
            for a, b in itertools.pairwise(cuts)
        ]


@torch.no_grad()
def count_on(counts: TokenCounts, groups: Groups, on: Float[Tensor, "n o"]) -> None:
    """`TokenCounts.count_on` of a batch whose ON are 1 in `on` and the others 0."""
    order, start = torch.from_numpy(groups.order), torch.from_numpy(groups.start)
    sums = F.embedding_bag(order, on, start, mode="sum", include_last_offset=True)
    # Whole numbers below 2^24: exact in float32.
    counts.on[groups.rows] += sums.numpy().astype(np.uint32)


__all__ = ["Groups", "Measured", "Surface", "Team", "count_on", "join", "measure"]
