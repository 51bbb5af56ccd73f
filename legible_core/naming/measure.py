"""A batch of memberships into streaming statistics, on the device where the values are.

Every sum is a product with a row of ones in float64, around the mean so far, so that no digits are lost; the histogram
is one count of (channel, bin) numbers. Only the sums leave the device.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.legibility import HISTOGRAM_BINS, RAIL, Moments

# Rows at a time: a piece stays in the processor's cache, and a column of it holds less than 256 of anything.
CHUNK = 128


@torch.no_grad()
def take_in(moments: Moments, values: Float[Tensor, "n w"]) -> Tensor:
    """Add a batch of values in [0, 1] to the statistics; returns the mask of ON, shape (n, w).

    The same as `Moments.update`, to float64 rounding. Raises ValueError on a NaN or an infinity.
    """
    n, width = values.shape
    on = values > 1.0 - RAIL
    if n == 0 or width == 0:
        moments.count += n
        return on
    mean, squares = deviations(values, moments.mean if moments.count else None)
    bins = None
    if moments.bins is not None:
        # One bin more than there are, for the value 1.0, which belongs to the last one.
        count = HISTOGRAM_BINS + 1
        columns = torch.arange(width, dtype=torch.int32, device=values.device) * count
        index = (values * HISTOGRAM_BINS).int().add_(columns)
        table = torch.bincount(index.view(-1), minlength=width * count).view(width, count)
        table[:, -2] += table[:, -1]
        bins = table[:, :-1].T.cpu().numpy()
    moments.add(
        n,
        mean,
        squares,
        count_true(on),
        count_true(values < RAIL),
        bins,
    )
    return on


def deviations(
    values: Float[Tensor, "n w"], around: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of n > 0 values of each column and the sum of squared deviations from it, float64.

    around: a number near each mean, such as that of earlier batches; the first row's where it is None. Raises
    ValueError on a NaN or an infinity.
    """
    shift = values[0].double() if around is None else torch.from_numpy(around).to(values.device)
    sums, squares = torch.zeros_like(shift), torch.zeros_like(shift)
    for piece in values.split(CHUNK):
        wide = piece.double().sub_(shift)
        ones = torch.ones(1, len(piece), dtype=torch.float64, device=values.device)
        sums += (ones @ wide)[0]
        squares += (ones @ wide.square_())[0]
    squares -= sums.square() / len(values)
    mean = shift + sums / len(values)
    if not bool(torch.isfinite(mean).all()):
        raise ValueError("a value is not a finite number")
    return mean.cpu().numpy(), squares.clamp_(min=0.0).cpu().numpy()


def count_true(mask: Bool[Tensor, "n w"]) -> NDArray[np.int64]:
    """How many of each column are true, shape (w,)."""
    if mask.device.type != "cpu":
        found: NDArray[np.int64] = mask.sum(dim=0).cpu().numpy()
        return found
    bits = mask.contiguous().numpy().view(np.uint8)
    whole = len(bits) // CHUNK * CHUNK
    # Sums of eight bits are several times as fast as those of wide integers.
    chunks = bits[:whole].reshape(-1, CHUNK, bits.shape[1]).sum(axis=1, dtype=np.uint8)
    return chunks.sum(axis=0, dtype=np.int64) + bits[whole:].sum(axis=0, dtype=np.int64)
