"""Labels: the word class that a token list is enriched in, with its evidence; imports no torch.

Each list (its leading tokens) is tested against each class. The null is a frequency-matched draw: from the tokens that
could have been listed, as many of each frequency as the list has, at random; frequent tokens are mostly function words,
so an unmatched draw would find function-word classes everywhere. The overlap with a class is then a sum of independent
hypergeometric variables, one per frequency stratum, and its upper tail is computed exactly. Benjamini-Hochberg runs
over all (list, class) pairs of a checkpoint at q < 0.01. A label also has to describe its list, not only to be
over-represented in it: at least MIN_OVERLAP of the leading tokens are in the class, and they are MIN_SHARE of them or
carry MIN_SHARE of their weight (occurrences at which the operand was ON; promotion). Without one, the three leading
tokens are quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Q = 0.01
LEADING = 20
MIN_OVERLAP = 3
MIN_SHARE = 0.5
# A stratum holds an octave of frequency, and at least this many tokens.
MIN_STRATUM = 32


@dataclass(frozen=True)
class ClassLabel:
    """Class `index` holds `overlap` of the list's `leading` leading tokens, and `share` of their weight.

    q: the adjusted p-value of that overlap.
    """

    index: int
    q: float
    overlap: int
    leading: int
    share: float


def strata(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frequency stratum of each token: octaves of its count, from the most frequent, none smaller than MIN_STRATUM.

    counts: occurrences of each token of the population, shape (n,). The rarest tokens join the stratum above them when
    they are too few.
    """
    stratum = np.zeros(len(counts), np.int64)
    order = np.argsort(-counts, kind="stable")
    octave = np.floor(np.log2(np.maximum(counts[order], 1))).astype(np.int64)
    current, size = 0, 0
    for position, token in enumerate(order):
        new_octave = position > 0 and octave[position] != octave[position - 1]
        if new_octave and size >= MIN_STRATUM:
            current, size = current + 1, 0
        stratum[token] = current
        size += 1
    if current and size < MIN_STRATUM:
        stratum[stratum == current] = current - 1
    return stratum


class Population:
    """The tokens that a list could hold, their frequency strata, and which classes they belong to.

    tokens: (n,) vocabulary ids; counts: (n,) occurrences; membership: (n, classes).
    """

    def __init__(self, tokens: NDArray[np.int64], counts: NDArray[np.int64], membership: NDArray[np.bool_]) -> None:
        self.position = {int(token): index for index, token in enumerate(tokens)}
        self.stratum = strata(counts)
        self.membership = membership
        n_strata = int(self.stratum.max(initial=0)) + 1
        self.sizes = np.bincount(self.stratum, minlength=n_strata)
        self.members = np.stack(
            [np.bincount(self.stratum, weights=column, minlength=n_strata) for column in membership.T]
        ).astype(np.int64)

    def p_value(self, drawn: NDArray[np.int64], class_index: int, overlap: int) -> float:
        """P(at least `overlap` of a draw with `drawn[s]` tokens from each stratum are in the class), exact."""
        law = np.ones(1)
        for size, members, n in zip(self.sizes, self.members[class_index], drawn, strict=True):
            if n and members:
                law = np.convolve(law, _hypergeometric(int(size), int(members), int(n)))
        # Summed from the far end, small terms first.
        return float(min(1.0, law[overlap:][::-1].sum())) if overlap < len(law) else 0.0


@lru_cache(maxsize=200_000)
def _hypergeometric(size: int, members: int, n: int) -> NDArray[np.float64]:
    """P(k members among n drawn without replacement), k = 0 .. min(n, members)."""
    k = np.arange(min(n, members) + 1)
    log = _log_factorials(size)
    others = size - members
    possible = n - k <= others
    k = k[possible]
    law = np.zeros(len(possible))
    law[possible] = np.exp(
        log[members] - log[k] - log[members - k]
        + log[others] - log[n - k] - log[others - n + k]
        - log[size] + log[n] + log[size - n]
    )  # fmt: skip
    return law


@lru_cache(maxsize=64)
def _log_factorials(size: int) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])


# A token list, best first, with a weight for each token: (vocabulary ids, weights).
Weighted = tuple[NDArray[np.int64], NDArray[Any]]


def label_lists(
    groups: Sequence[tuple[Sequence[Weighted], Population]],
    *,
    q: float = Q,
    between: Callable[[], None] | None = None,
) -> list[list[ClassLabel | None]]:
    """The label of each token list, or None where no class passes; one row per group.

    All lists of a checkpoint go in one call, each group with the population that its lists were drawn from: the
    correction is over every (list, class) pair, tested or not. Among the classes that pass, the one with the smallest
    p-value is the label, then the one holding more of the list. between: called now and then.
    """
    tested = []
    for group, (lists, population) in enumerate(groups):
        for index, (tokens, weights) in enumerate(lists):
            if between is not None and index % 256 == 0:
                between()
            for p, overlap, class_index, leading, share in _tests(tokens, weights, population):
                tested.append((p, -overlap, class_index, leading, share, group, index))
    found: list[list[ClassLabel | None]] = [[None] * len(lists) for lists, _ in groups]
    pairs = sum(len(lists) * population.membership.shape[1] for lists, population in groups)
    adjusted = benjamini_hochberg(np.array([test[0] for test in tested]), pairs)
    for position in sorted(range(len(tested)), key=tested.__getitem__):
        _, overlap, class_index, leading, share, group, index = tested[position]
        if adjusted[position] < q and found[group][index] is None:
            found[group][index] = ClassLabel(class_index, float(adjusted[position]), -overlap, leading, share)
    return found


def _tests(
    tokens: NDArray[np.int64], weights: NDArray[Any], population: Population
) -> Iterator[tuple[float, int, int, int, float]]:
    """(p, overlap, class, leading tokens, share) of each class that holds enough of the list to describe it."""
    pairs = [
        (population.position[int(token)], float(weight))
        for token, weight in zip(tokens, weights, strict=True)
        if int(token) in population.position
    ][:LEADING]
    if len(pairs) < MIN_OVERLAP:
        return
    rows = [row for row, _ in pairs]
    carried = np.maximum([weight for _, weight in pairs], 0.0)
    drawn = np.bincount(population.stratum[rows], minlength=len(population.sizes))
    inside = population.membership[rows]
    overlaps, shares = inside.sum(axis=0), carried @ inside / max(float(carried.sum()), 1e-30)
    described = (shares >= MIN_SHARE) | (overlaps >= MIN_SHARE * len(rows))
    for index in np.flatnonzero((overlaps >= MIN_OVERLAP) & described):
        p = population.p_value(drawn, int(index), int(overlaps[index]))
        yield p, int(overlaps[index]), int(index), len(rows), float(shares[index])


def benjamini_hochberg(p: NDArray[np.float64], tests: int) -> NDArray[np.float64]:
    """Adjusted p-values of the given p among `tests` hypotheses; the ones not given count as p = 1.

    Benjamini and Hochberg (1995): q_(i) = min over j >= i of p_(j) * tests / j.
    """
    if not p.size:
        return np.zeros(0)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * tests / np.arange(1, p.size + 1)
    adjusted = np.empty(p.size)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


def as_columns(labels: Sequence[ClassLabel | None]) -> dict[str, NDArray[Any]]:
    """Labels as arrays: class (-1 for none), q (NaN), overlap, leading and share (0)."""
    return {
        "class": np.array([-1 if label is None else label.index for label in labels], np.int16),
        "q": np.array([np.nan if label is None else label.q for label in labels], np.float32),
        "overlap": np.array([0 if label is None else label.overlap for label in labels], np.uint16),
        "share": np.array([0 if label is None else label.share for label in labels], np.float16),
        "leading": np.array([0 if label is None else label.leading for label in labels], np.uint16),
    }
