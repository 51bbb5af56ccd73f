"""Legibility of bounded values, measured over a scan; imports no torch.

    Moments.update(values)      one batch of memberships in, constant memory whatever the corpus' length
    Moments.add(n, …)           the same by the batch's sums (`naming.measure` makes them)
    Moments.merge(other)        two shards become one
    Moments.classes()           CONSTANT, SELECTIVE, FUZZY, by the papers' thresholds
    Surface, summarise(...)     the rows of the papers' tables 1 and 5, per layer and over all layers

Which values a surface is judged on ("Legible-by-Construction", sections 4.1 and 5.3): on the attention, crispness and
ON on the operands, the three classes on the combined value that W_O reads (table 1) and, beside it, on the operands;
on the feed-forward layer everything on the operands (table 5). Linear heads and GELU units have no rails, so they are
undefined: None in every summary, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Thresholds of section 4.1. Crisp means within RAIL of 0 or 1, ON above 1 - RAIL; a channel whose variance is below
# MIN_VARIANCE is CONSTANT; one that varies and is crisp on more than MIN_CRISPNESS of the tokens is SELECTIVE.
RAIL = 0.1
MIN_VARIANCE = 0.003
MIN_CRISPNESS = 0.5
HISTOGRAM_BINS = 20


class Legibility(StrEnum):
    """The class of one bounded value over a corpus."""

    CONSTANT = "CONSTANT"
    SELECTIVE = "SELECTIVE"
    FUZZY = "FUZZY"


CODES: tuple[Legibility, ...] = (Legibility.CONSTANT, Legibility.SELECTIVE, Legibility.FUZZY)


def is_on(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Where a membership is decisively ON: v > 0.9 (section 4.1)."""
    return values > 1.0 - RAIL


def classify(variance: NDArray[np.float64], crispness: NDArray[np.float64]) -> NDArray[np.int8]:
    """The class of each channel as an index into `CODES`; -1 where nothing was measured (NaN)."""
    code = np.where(variance < MIN_VARIANCE, 0, np.where(crispness > MIN_CRISPNESS, 1, 2)).astype(np.int8)
    code[np.isnan(variance)] = -1
    return code


class Moments:
    """Streaming statistics of `width` memberships: count, mean, variance, crispness, ON and a histogram.

    Mean and sum of squared deviations follow Welford's recurrence in its batched form (Chan, Golub and LeVeque 1979),
    in float64; the counts are integers. Memory is O(width) however long the corpus. Merging shards gives the same
    counts exactly and the same moments to float64 rounding; replaying the same batches gives the same bits.
    """

    def __init__(self, width: int, *, histogram: bool = True) -> None:
        self.width = width
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(width)
        self.squares: NDArray[np.float64] = np.zeros(width)
        self.off: NDArray[np.int64] = np.zeros(width, np.int64)
        self.on: NDArray[np.int64] = np.zeros(width, np.int64)
        self.bins: NDArray[np.int64] | None = np.zeros((HISTOGRAM_BINS, width), np.int64) if histogram else None

    def update(self, values: NDArray[np.float32]) -> None:
        """Take in a batch, shape (tokens, width), values in [0, 1]. Raises ValueError on a NaN or an infinity."""
        if values.ndim != 2 or values.shape[1] != self.width:
            raise ValueError(f"expected (tokens, {self.width}), got {values.shape}")
        n = values.shape[0]
        if n == 0 or self.width == 0:
            self.count += n
            return
        wide = values.astype(np.float64)
        mean = wide.mean(axis=0)
        if not np.isfinite(mean).all():
            raise ValueError("a membership is not a finite number")
        wide -= mean
        squares = np.einsum("ij,ij->j", wide, wide)
        bins = None
        if self.bins is not None:
            # An upper edge belongs to the bin below it at 1.0 only: [0, 1/20), ..., [19/20, 1].
            index = np.minimum((values * HISTOGRAM_BINS).astype(np.int64), HISTOGRAM_BINS - 1)
            np.maximum(index, 0, out=index)
            index += np.arange(self.width) * HISTOGRAM_BINS
            flat = np.bincount(index.ravel(), minlength=self.width * HISTOGRAM_BINS)
            bins = flat.reshape(self.width, HISTOGRAM_BINS).T
        self.add(n, mean, squares, is_on(values).sum(axis=0), (values < RAIL).sum(axis=0), bins)

    def add(
        self,
        n: int,
        mean: NDArray[np.float64],
        squares: NDArray[np.float64],
        on: NDArray[np.integer[Any]],
        off: NDArray[np.integer[Any]],
        bins: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Take in `n` > 0 tokens by their sums: mean, squared deviations from it, counts of v > 0.9 and of v < 0.1.

        All of shape (width,); bins, of shape (20, width), where this holds a histogram.
        """
        self._join(n, mean, squares)
        self.on += on
        self.off += off
        if self.bins is not None and bins is not None:
            self.bins += bins

    def merge(self, other: Moments) -> None:
        """Add another shard's statistics to these."""
        if other.width != self.width or (other.bins is None) != (self.bins is None):
            raise ValueError("these statistics are of different channels")
        if other.count:
            self.add(other.count, other.mean, other.squares, other.on, other.off, other.bins)

    def _join(self, n: int, mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        total = self.count + n
        delta = mean - self.mean
        self.mean += delta * (n / total)
        self.squares += squares + delta * delta * (self.count * n / total)
        self.count = total

    @property
    def variance(self) -> NDArray[np.float64]:
        """Population variance, shape (width,); NaN before the first token."""
        return self.squares / self.count if self.count else np.full(self.width, np.nan)

    @property
    def crispness(self) -> NDArray[np.float64]:
        """Share of tokens with min(v, 1 - v) < 0.1, shape (width,); NaN before the first token."""
        return (self.on + self.off) / self.count if self.count else np.full(self.width, np.nan)

    @property
    def on_share(self) -> NDArray[np.float64]:
        """Share of tokens with v > 0.9, shape (width,); NaN before the first token."""
        return self.on / self.count if self.count else np.full(self.width, np.nan)

    def classes(self) -> NDArray[np.int8]:
        """Each channel's class as an index into `CODES`, -1 before the first token."""
        return classify(self.variance, self.crispness)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, for a safetensors file."""
        state: dict[str, NDArray[Any]] = {
            f"{prefix}.count": np.array([self.count], np.int64),
            f"{prefix}.mean": self.mean,
            f"{prefix}.squares": self.squares,
            f"{prefix}.off": self.off,
            f"{prefix}.on": self.on,
        }
        if self.bins is not None:
            state[f"{prefix}.bins"] = self.bins
        return state

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Moments:
        """Inverse of `arrays`, bit for bit."""
        mean = np.array(arrays[f"{prefix}.mean"], np.float64)
        self = cls(mean.shape[0], histogram=f"{prefix}.bins" in arrays)
        self.count = int(arrays[f"{prefix}.count"][0])
        self.mean = mean
        self.squares = np.array(arrays[f"{prefix}.squares"], np.float64)
        self.off = np.array(arrays[f"{prefix}.off"], np.int64)
        self.on = np.array(arrays[f"{prefix}.on"], np.int64)
        if self.bins is not None:
            self.bins = np.array(arrays[f"{prefix}.bins"], np.int64)
        return self


@dataclass(frozen=True)
class Row:
    """One row of the papers' tables for a set of channels; shares between 0 and 1.

    `crisp` and `on` are pooled over tokens and operands; the classes are shares of channels.
    """

    channels: int
    crisp: float
    on: float
    selective: float
    constant: float
    fuzzy: float


@dataclass(frozen=True)
class Surface:
    """A layer's (or a whole model's) legibility; None where nothing bounded exists to be judged.

    `value`: the attention's combined values, with `crisp` and `on` of the combined value too. `head_operands`: the
    atoms of the bounded heads. `operands`: the feed-forward layer's. `heads`: per head, the SELECTIVE share of its
    combined value channels, None for a linear head (the papers' figure 4).
    """

    value: Row | None
    head_operands: Row | None
    operands: Row | None
    heads: tuple[float | None, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row(parts: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]]) -> Row | None:
    """A table row from (crispness, ON share, class) of one or more layers; None when there is no channel."""
    crisp = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0)
    if crisp.size == 0 or np.isnan(crisp).any():
        return None
    on = np.concatenate([part[1] for part in parts])
    code = np.concatenate([part[2] for part in parts])
    share = [float((code == index).mean()) for index in range(3)]
    return Row(crisp.size, float(crisp.mean()), float(on.mean()), share[1], share[0], share[2])


def row_of(moments: Sequence[Moments]) -> Row | None:
    """A table row over the given channels, or None when there is none or no token was seen."""
    return row([(m.crispness, m.on_share, m.classes()) for m in moments if m.width])


def head_shares(value: Moments, n_heads: int, d_head: int) -> tuple[float | None, ...]:
    """Per head the share of SELECTIVE combined-value channels; None for the linear heads after the bounded ones."""
    bounded = value.width // d_head
    code = value.classes().reshape(bounded, d_head)
    shares = [float(share) for share in (code == 1).mean(axis=1)] if value.count else [math.nan] * bounded
    return tuple(None if math.isnan(share) else share for share in shares) + (None,) * (n_heads - bounded)
