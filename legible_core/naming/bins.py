"""Fixed bins for values without rails: two an octave on either side of zero; imports no torch.

    edges()                              # 82 numbers; bin i holds the values between edges()[i] and edges()[i + 1]
    quantiles(counts, (0.5, 0.99), ...)  # read off the counts, exact to within a bin

Nothing is known beforehand of how large an ordinary unit's values get, so the bins are the same for every unit of every
model, and shards add up: the middle one holds |v| < 1/256, then come [2^k, 1.5·2^k) and [1.5·2^k, 2^(k+1)), and the
outermost ones are open. They begin where a float32's exponent or its first fraction bit changes, so that binning is
exact: a value on an edge belongs to the bin farther from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The middle bin ends at 2^LOW; the outermost begins at 1.5·2^(HIGH - 1).
LOW, HIGH = -8, 12
SIDE = 2 * (HIGH - LOW)
BINS = 2 * SIDE + 1


def edges() -> NDArray[np.float64]:
    """The BINS + 1 edges in ascending order; the first and last are infinite."""
    steps = np.arange(SIDE)
    out = np.exp2(LOW + steps // 2) * np.where(steps % 2, 1.5, 1.0)
    return np.concatenate([[-np.inf], -out[::-1], out, [np.inf]])


def quantiles(
    counts: NDArray[np.integer[Any]], shares: Sequence[float], least: float, most: float
) -> tuple[float, ...]:
    """The values below which these shares of the counted ones lie, evenly spread within a bin.

    counts: (BINS,), of at least one value. least, most: the smallest and the largest value, which end the open bins.
    """
    within = np.clip(edges(), least, most)
    below = np.concatenate([[0], np.cumsum(counts)])
    found = []
    for share in shares:
        wanted = share * below[-1]
        index = min(int(np.searchsorted(below, wanted, side="left")), BINS)
        index = max(index - 1, 0)
        part = (wanted - below[index]) / max(int(counts[index]), 1)
        found.append(float(within[index] + part * (within[index + 1] - within[index])))
    return tuple(found)
