"""From the sums of naming by writes to its figures: covered, characterised, coherent; imports no torch.

Coherence is judged in a distributional space built from the same text: a token is what stands one and two places before
and after it, as positive pointwise mutual information with the most frequent tokens, reduced to 64 dimensions. A
component's set is the (up to 20) tokens that it helped most often; its mean pairwise cosine is compared with those of
99 sets in which each token is exchanged for one of about the same frequency, of those that were helped at all; it is
coherent when no more than 5 % of them lie as close together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legible_core.accounting.counts import Layout
from legible_core.accounting.records import LayerWritten, Population, Quartiles, Writes, WrittenShares
from legible_core.accounting.written import CHARACTERISED, TOKENS, Written

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

OFFSETS = (-2, -1, 1, 2)
CONTEXTS, DIMENSIONS, SEEN = 256, 64, 8
SET, DRAWS, LEVEL = 20, 99, 0.05
OFTEN = 5  # times that a pair must occur for its coefficient of variation to count


def summarise(
    layout: Layout, keys: Ints, sums: Floats, n90: Ints, ids: Ints, vocabulary: int, population: Population,
    checkpoint: str,
) -> tuple[Writes, Written]:  # fmt: skip
    """keys: component · vocabulary + token, sorted. sums: (pairs, 3) times, Σ share, Σ share². n90: a histogram."""
    component, token = np.divmod(keys, vocabulary)
    times = np.bincount(component, sums[:, 0], layout.size).astype(np.float64)
    leading = _leading(component, token, sums, layout.size)
    coherent = _coherence(component, token, sums[:, 0], times, ids, vocabulary)
    often, variation = _variation(component, sums)
    to_half = _concentration(component, sums[:, 1], times)
    unit = np.arange(layout.size) >= layout.first_unit
    layer = layout.layer(np.arange(layout.size))

    def shares(mask: NDArray[np.bool_]) -> WrittenShares:
        known = mask & (times >= CHARACTERISED)
        judged = known & (coherent >= 0)
        return WrittenShares(
            components=int(mask.sum()),
            covered=float((times[mask] > 0).mean()),
            characterised=float(known.sum() / max(1, mask.sum())),
            judged=int(judged.sum()),
            single=int((known & (coherent == -2)).sum()),
            coherent=float((coherent[judged] == 1).mean()) if judged.any() else None,
            variation=Quartiles.of(variation[mask[often]].tolist()),
            tokens_to_half=Quartiles.of(to_half[known].tolist()),
        )

    every = np.ones(layout.size, bool)
    known = times >= CHARACTERISED
    different = np.bincount(component, minlength=layout.size)
    record = Writes(
        population=population,
        members=_of_histogram(n90),
        every=shares(every),
        attention=shares(~unit),
        feed_forward=shares(unit),
        layers=[
            LayerWritten(
                layer=i, attention=shares(~unit & (layer == i)), feed_forward=shares(unit & (layer == i))
            )
            for i in range(layout.n_layers)
        ],
        variation=Quartiles.of(variation.tolist()),
        below_03=float((variation < 0.3).mean()) if variation.size else None,
        one_token=float((different[known] == 1).mean()) if known.any() else None,
        half_on_one=float((to_half[known] == 1).mean()) if known.any() else None,
        tokens_to_half=Quartiles.of(to_half[known].tolist()),
    )  # fmt: skip
    meta = {
        "checkpoint": checkpoint,
        "corpus": population.corpus,
        "predictions": str(population.predictions),
        "perplexity": f"{population.perplexity:.6g}",
    }
    judged = np.maximum(coherent, -1).astype(np.int8)
    spread = _medians(often, variation, layout.size)
    return record, Written(times.astype(np.int32), *leading, judged, spread, layout=layout, meta=meta)


def _leading(
    component: Ints, token: Ints, sums: Floats, size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """The tokens that each component helped most often, with how often and the mean share."""
    tokens = np.full((size, TOKENS), -1, np.int32)
    counts, shares = np.zeros((size, TOKENS), np.int32), np.zeros((size, TOKENS), np.float32)
    order = np.lexsort((token, -sums[:, 0], component))
    place = _places(component[order])
    kept = place < TOKENS
    rows, columns, chosen = component[order][kept], place[kept], order[kept]
    tokens[rows, columns] = token[chosen]
    counts[rows, columns] = sums[chosen, 0]
    shares[rows, columns] = sums[chosen, 1] / sums[chosen, 0]
    return tokens, counts, shares


def _places(groups: Ints) -> Ints:
    """The place of each entry within its group; groups are contiguous."""
    if not groups.size:
        return groups
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(groups)]]))
    return np.arange(len(groups)) - np.repeat(starts, lengths)


def _variation(component: Ints, sums: Floats) -> tuple[Ints, Floats]:
    """Standard deviation over mean of the share, of pairs that occur often enough; and each pair's component."""
    often = sums[:, 0] >= OFTEN
    n, mean = sums[often, 0], sums[often, 1] / sums[often, 0]
    variance = np.maximum(sums[often, 2] / n - mean**2, 0.0) * n / (n - 1)
    return component[often], np.sqrt(variance) / mean


def _medians(component: Ints, values: Floats, size: int) -> NDArray[np.float32]:
    """Each component's median; NaN without a value. Components come in order."""
    found = np.full(size, np.nan, np.float32)
    for each, some in zip(np.unique(component), np.split(values, np.flatnonzero(np.diff(component)) + 1), strict=False):
        found[each] = np.median(some)
    return found


def _concentration(component: Ints, shares: Floats, times: Floats) -> Floats:
    """How few tokens hold half of each component's share; NaN for one that is not characterised."""
    found = np.full(len(times), np.nan)
    known = np.flatnonzero(times >= CHARACTERISED)
    starts, ends = np.searchsorted(component, known), np.searchsorted(component, known, side="right")
    for each, start, end in zip(known.tolist(), starts, ends, strict=True):
        held = np.cumsum(np.sort(shares[start:end])[::-1])
        found[each] = int(np.searchsorted(held, held[-1] / 2)) + 1
    return found


def _of_histogram(counts: Ints) -> Quartiles:
    rising, total = np.cumsum(counts), int(counts.sum())

    def at(share: float) -> float | None:
        return float(np.searchsorted(rising, share * total)) if total else None

    return Quartiles(q1=at(0.25), median=at(0.5), q3=at(0.75), n=total)


# ---- coherence -----------------------------------------------------------------------------------------------------


def _coherence(component: Ints, token: Ints, counts: Floats, times: Floats, ids: Ints, vocabulary: int) -> Ints:
    """1 or 0 for each component; -1 for one that is not characterised, -2 for one whose set is a single token."""
    found = np.full(len(times), -1, np.int64)
    seen = np.bincount(ids, minlength=vocabulary)
    vectors = space(ids, seen)
    usable = np.abs(vectors).sum(1) > 0
    # What a token may be exchanged for: a helped one of about the same frequency, in steps of a factor of two.
    step = np.log2(np.maximum(seen, 1)).astype(np.int64)
    pool = np.unique(token[usable[token]])
    pool = pool[np.argsort(step[pool], kind="stable")]
    first = np.searchsorted(step[pool], np.arange(64))
    size = np.searchsorted(step[pool], np.arange(64), side="right") - first
    generator = np.random.default_rng(0)
    order = np.lexsort((token, -counts, component))
    starts = np.searchsorted(component[order], np.arange(len(times) + 1))
    for each in np.flatnonzero(times >= CHARACTERISED).tolist():
        chosen = token[order[starts[each] : starts[each + 1]]]
        chosen = chosen[usable[chosen]][:SET]
        if len(chosen) < 2:
            found[each] = -2
            continue
        group = step[chosen]
        drawn = pool[first[group] + (generator.random((DRAWS, len(chosen))) * size[group]).astype(np.int64)]
        null = _closeness(vectors[drawn])
        ours = _closeness(vectors[chosen][None])[0]
        found[each] = int((1 + int((null >= ours).sum())) / (DRAWS + 1) <= LEVEL)
    return found


def _closeness(sets: NDArray[np.float32]) -> Floats:
    """Mean pairwise cosine of sets of unit vectors (n, k, d): (|Σ u|² - k) / (k (k - 1))."""
    k = sets.shape[1]
    return (np.square(sets.sum(1, dtype=np.float64)).sum(-1) - k) / (k * (k - 1))


def space(ids: Ints, seen: Ints) -> NDArray[np.float32]:
    """Unit vectors (v, 64) of the tokens seen 8 times or more, 0 for the others."""
    rows = np.flatnonzero(seen >= SEEN)
    contexts = np.argsort(-seen, kind="stable")[: min(CONTEXTS, len(seen))]
    row_of, column_of = np.full(len(seen), -1), np.full(len(seen), -1)
    row_of[rows], column_of[contexts] = np.arange(len(rows)), np.arange(len(contexts))
    parts = []
    for offset in OFFSETS:
        words, beside = (ids[: len(ids) - offset], ids[offset:]) if offset > 0 else (ids[-offset:], ids[:offset])
        r, c = row_of[words], column_of[beside]
        both = (r >= 0) & (c >= 0)
        flat = np.bincount(r[both] * len(contexts) + c[both], minlength=len(rows) * len(contexts))
        parts.append(_ppmi(flat.reshape(len(rows), len(contexts))))
    matrix = np.concatenate(parts, 1) if rows.size else np.zeros((0, 1), np.float32)
    _, axes = np.linalg.eigh(matrix.T @ matrix)
    reduced = matrix @ axes[:, ::-1][:, :DIMENSIONS]
    length = np.linalg.norm(reduced, axis=1, keepdims=True)
    vectors = np.zeros((len(seen), reduced.shape[1]), np.float32)
    vectors[rows] = np.divide(reduced, length, out=np.zeros_like(reduced), where=length > 1e-6)
    return vectors


def _ppmi(counts: Ints) -> NDArray[np.float32]:
    """max(0, log p(w, c) / (p(w) p(c))), the contexts' probabilities smoothed by a power of 0.75 as is usual."""
    total = max(1, int(counts.sum()))
    words = counts.sum(1, keepdims=True) / total
    contexts = np.power(counts.sum(0, keepdims=True), 0.75)
    contexts = contexts / max(1.0, float(contexts.sum()))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(counts / total / (words * contexts))
    return np.maximum(np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0), 0.0).astype(np.float32)
