"""Streaming statistics of values without rails, and each unit's strongest positions.

    values = Values(width)
    values.update(batch)                         # (n, width) float32
    strongest = Strongest(width, slots)
    strongest.update(batch, first)               # the batch's first position in the text
    strongest.positions, strongest.values        # (width, slots), best first; -1 where there are no more

Memory does not grow with the text. Shards merge: counts, extremes, bins and positions exactly, whatever the order;
means and variances to float64 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.legibility import Moments
from legible_core.naming.bins import BINS, LOW, SIDE
from legible_core.naming.measure import count_true, deviations

# A float32's exponent and first fraction bit, as a number: that of 2^LOW. (127 is the exponent of 1.)
_FIRST = (127 + LOW) << 1
_SHIFT = 22
_LAST = (1 << 32) - 1


class Values:
    """Count, mean, variance, extremes, count above 0 and histogram (`bins`) of `width` units.

    moments: of the values; its `on` counts those above 0, and its `off` nothing.
    """

    def __init__(self, width: int) -> None:
        self.moments = Moments(width, histogram=False)
        self.least: NDArray[np.float32] = np.full(width, np.inf, np.float32)
        self.most: NDArray[np.float32] = np.full(width, -np.inf, np.float32)
        self.bins: NDArray[np.int64] = np.zeros((width, BINS), np.int64)

    @torch.no_grad()
    def update(self, values: Float[Tensor, "n w"]) -> None:
        """Take in a batch; raises ValueError on a NaN or an infinity."""
        n = len(values)
        mean, squares = deviations(values, self.moments.mean if self.moments.count else None)
        above = count_true(values > 0)
        self.moments.add(n, mean, squares, above, np.zeros_like(above))
        low, high = values.aminmax(dim=0)
        self.least = np.minimum(self.least, low.cpu().numpy())
        self.most = np.maximum(self.most, high.cpu().numpy())
        self.bins += histogram(values)

    def merge(self, other: Values) -> None:
        """Add another shard's statistics to these."""
        self.moments.merge(other.moments)
        self.least = np.minimum(self.least, other.least)
        self.most = np.maximum(self.most, other.most)
        self.bins += other.bins

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays."""
        return {
            **self.moments.arrays(f"{prefix}.moments"),
            f"{prefix}.least": self.least,
            f"{prefix}.most": self.most,
            f"{prefix}.bins": self.bins,
        }

    def restored(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Values:
        """The statistics of the state that `arrays` gave; raises KeyError or ValueError for other units'."""
        found = Values(self.moments.width)
        found.moments = Moments.from_arrays(arrays, f"{prefix}.moments")
        for name in ("least", "most", "bins"):
            setattr(found, name, _like(getattr(found, name), arrays[f"{prefix}.{name}"]))
        if found.moments.width != self.moments.width:
            raise ValueError("these statistics are of other units")
        return found


class Strongest:
    """For each of `width` units the `slots` positions of its largest values above 0; ties go to the earlier position.

    keys: (width, slots), descending; the value's float32 bits over the position counted from the end of 32 bits, so
    that whole numbers stand in the order of value, then of place. 0 where a slot is empty.
    """

    def __init__(self, width: int, slots: int) -> None:
        self.keys: NDArray[np.int64] = np.zeros((width, slots), np.int64)

    @property
    def positions(self) -> NDArray[np.int64]:
        """(width, slots) places in the text; -1 where a slot is empty."""
        return np.where(self.keys > 0, _LAST - (self.keys & _LAST), -1)

    @property
    def values(self) -> NDArray[np.float32]:
        """(width, slots) the values there; 0 where a slot is empty."""
        return (self.keys >> 32).astype(np.int32).view(np.float32)

    @torch.no_grad()
    def update(self, values: Float[Tensor, "n w"], first: int) -> None:
        """Look at a batch whose first token is at place `first` of the text; batches come in the order of the text."""
        held = torch.from_numpy(self.keys).to(values.device)
        least = (held[:, -1] >> 32).to(torch.int32).view(torch.float32)
        token, unit = (values > least).nonzero(as_tuple=True)
        if not len(unit):
            return
        order = unit.argsort(stable=True)
        token, unit = token[order], unit[order]
        counts = torch.bincount(unit, minlength=values.shape[1])
        most = int(counts.max())
        slot = torch.arange(len(unit), device=unit.device) - (counts.cumsum(0) - counts)[unit]
        bits = values[token, unit].view(torch.int32).to(torch.int64)
        offered = torch.zeros(len(counts), most, dtype=torch.int64, device=values.device)
        offered[unit, slot] = (bits << 32) | (_LAST - first - token)
        self._keep(torch.cat([held, offered], dim=1))

    def _keep(self, keys: Tensor) -> None:
        self.keys = keys.topk(self.keys.shape[1], dim=1).values.cpu().numpy()

    def merge(self, other: Strongest) -> None:
        """Take in another shard's; the same as if one had seen both."""
        self._keep(torch.from_numpy(np.concatenate([self.keys, other.keys], axis=1)))

    def restored(self, arrays: Mapping[str, NDArray[Any]], name: str) -> Strongest:
        """Those of the state's array `name`; raises KeyError or ValueError for other units'."""
        found = Strongest(0, 0)
        found.keys = _like(self.keys, arrays[name])
        return found


def histogram(values: Float[Tensor, "n w"]) -> NDArray[np.int64]:
    """How many values of each unit lie in each bin, shape (w, BINS)."""
    bits = values.contiguous().view(torch.int32)
    # Bins from zero outwards: 0 for the middle one, 1 .. SIDE beyond it.
    out = (((bits & 0x7FFFFFFF) >> _SHIFT) - (_FIRST - 1)).clamp_(0, SIDE)
    index = torch.where(bits < 0, SIDE - out, SIDE + out)
    width = values.shape[1]
    index += torch.arange(width, dtype=torch.int32, device=values.device) * BINS
    counted: NDArray[np.int64] = torch.bincount(index.view(-1), minlength=width * BINS).view(width, BINS).cpu().numpy()
    return counted


def _like(pattern: NDArray[Any], found: NDArray[Any]) -> NDArray[Any]:
    if found.shape != pattern.shape or found.dtype != pattern.dtype:
        raise ValueError("these statistics are of other units")
    return np.array(found)
