"""Means, standard errors and paired differences, as lm-evaluation-harness defines them; imports no torch.

    mean          x̄ ± s / √n, with s² = Σ(x − x̄)² / (n − 1)                  `mean_stderr`
    of a series   x̄ ± the largest error that blocks or documents give             the harness has none
    several parts the mean of the k parts' means ± √(Σ se²) / k               `unweighted_mean_stderr`
    perplexity    exp(−x̄) of log-likelihoods, ± exp(−x̄) · s / √n             the harness bootstraps the same error
    per word      exp(−Σx / Σw), ± by the ratio estimator over documents      the harness gives none

The error of several parts is that of drawing other items of the same parts (the same 67 paradigms of BLiMP). It says
nothing of how far other paradigms would lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Fewer blocks than this give an error that is itself unsure by more than a fifth; fewer documents one that says little.
BLOCKS, DOCUMENTS = 16, 5


@dataclass(frozen=True)
class Estimate:
    """A figure and its standard error; None where there are too few items for one."""

    value: float
    se: float | None


def mean(values: ArrayLike) -> Estimate:
    """x̄ ± s / √n."""
    x = _array(values)
    centre = float(x.mean())
    if len(x) < 2:
        return Estimate(centre, None)
    return Estimate(centre, math.sqrt(float(((x - centre) ** 2).sum()) / (len(x) - 1) / len(x)))


def mean_of_series(values: ArrayLike, documents: ArrayLike | None = None) -> Estimate:
    """x̄ of values in the order of a text, of which neighbours may be alike, with an error that allows for it.

    Blocking (Flyvbjerg and Petersen 1989): neighbours are averaged two by two, again and again while at least `BLOCKS`
    blocks are left. As long as blocks are shorter than what makes neighbours alike, s / √n is too small and grows with
    them. documents: a number for each value, the document that it is of; where there are `DOCUMENTS` of them or more
    the error over documents (`ratio`) is looked at too, since books are few and differ. The largest error is given.
    """
    x = _array(values)
    plain = mean(x)
    errors = [plain.se]
    blocks = x
    while len(blocks) // 2 >= BLOCKS:
        blocks = blocks[: len(blocks) // 2 * 2].reshape(-1, 2).mean(axis=1)  # an odd last one is left out
        errors.append(mean(blocks).se)
    if documents is not None:
        _, places, counts = np.unique(np.asarray(documents), return_inverse=True, return_counts=True)
        if len(counts) >= DOCUMENTS:
            errors.append(ratio(np.bincount(places, weights=x), counts).se)
    return Estimate(plain.value, max((se for se in errors if se is not None), default=None))


def pooled(parts: Sequence[Estimate]) -> Estimate:
    """The mean of several parts' values, each part counted alike; one part is itself."""
    if len(parts) == 1:
        return parts[0]
    value = math.fsum(part.value for part in parts) / len(parts)
    errors = [part.se for part in parts if part.se is not None]
    whole = len(errors) == len(parts)
    return Estimate(value, math.sqrt(math.fsum(se * se for se in errors)) / len(parts) if whole else None)


def ratio(sums: ArrayLike, weights: ArrayLike) -> Estimate:
    """Σx / Σw over documents, with the linearised error √(n / (n−1) · Σ(x − r·w)²) / Σw."""
    x, w = _array(sums), _array(weights)
    r, n = float(x.sum() / w.sum()), len(x)
    if n < 2:
        return Estimate(r, None)
    return Estimate(r, math.sqrt(n / (n - 1) * float(((x - r * w) ** 2).sum())) / float(w.sum()))


def perplexity(log: Estimate) -> Estimate:
    """exp(−x) of a mean log-likelihood, its error carried to first order; infinite rather than an overflow."""
    if -log.value > 700:
        return Estimate(math.inf, None)
    value = math.exp(-log.value)
    return Estimate(value, None if log.se is None else value * log.se)


def _array(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError("an estimate needs a plain list of at least one value")
    return x
