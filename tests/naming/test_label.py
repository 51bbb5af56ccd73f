"""Labels: planted classes are found, random lists get none, frequency alone is no evidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legible_core.naming.label import LEADING, Population, benjamini_hochberg, label_lists, strata

N, CLASSES = 2000, 30


def _population(seed: int = 0) -> Population:
    """Tokens by falling frequency; class 0 is the 57 most frequent ones, the others are random, of several sizes."""
    generator = np.random.default_rng(seed)
    counts = np.maximum(5, (60_000 / np.arange(1, N + 1)).astype(np.int64))
    membership = np.zeros((N, CLASSES), bool)
    membership[:57, 0] = True
    for column in range(1, CLASSES):
        membership[generator.choice(N, size=10 * column, replace=False), column] = True
    return Population(np.arange(N) * 3, counts, membership)


def _weighted(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(rows) * 3, np.ones(len(rows))


def _matched_draw(population: Population, like: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Other tokens of the same frequencies."""
    rows = []
    for stratum, n in zip(*np.unique(population.stratum[like], return_counts=True), strict=True):
        rows.append(generator.choice(np.flatnonzero(population.stratum == stratum), size=n, replace=False))
    return generator.permutation(np.concatenate(rows))


def test_planted_classes_are_found_with_their_evidence() -> None:
    population = _population()
    generator = np.random.default_rng(1)
    lists = []
    for column in range(5, 15):
        inside = generator.choice(np.flatnonzero(population.membership[:, column]), size=12, replace=False)
        outside = generator.choice(np.flatnonzero(~population.membership[:, column]), size=4, replace=False)
        lists.append(generator.permutation(np.concatenate([inside, outside])))
    (labels,) = label_lists([([_weighted(rows) for rows in lists], population)])
    for column, label in zip(range(5, 15), labels, strict=True):
        assert label is not None
        assert (label.index, label.overlap, label.leading) == (column, 12, 16)
        assert label.q < 1e-6
        assert label.share == pytest.approx(0.75)


def test_null_lists_get_no_labels() -> None:
    # 1500 lists drawn as the null says, mostly of frequent tokens: at q < 0.01 none should be labelled.
    population = _population(2)
    generator = np.random.default_rng(3)
    weights = 1.0 / np.arange(1, N + 1)
    lists = []
    for _ in range(1500):
        like = generator.choice(N, size=int(generator.integers(3, 40)), replace=False, p=weights / weights.sum())
        lists.append(_weighted(_matched_draw(population, like, generator)))
    (labels,) = label_lists([(lists, population)])
    assert sum(label is not None for label in labels) == 0


def test_frequency_alone_is_no_evidence() -> None:
    # A list of the most frequent tokens lies in the class of the most frequent tokens, as any such list would.
    population = _population(4)
    (labels,) = label_lists([([_weighted(np.arange(15))], population)])
    assert labels == [None]
    assert population.p_value(np.bincount(population.stratum[:15], minlength=len(population.sizes)), 0, 15) > 0.01


def test_a_class_that_is_enriched_but_describes_little_is_no_label() -> None:
    population = _population(5)
    inside = np.flatnonzero(population.membership[:, 1])[-6:]
    rest = np.flatnonzero(~population.membership[:, 1])[-(LEADING - 6) :]
    rows = np.concatenate([inside, rest])
    drawn = np.bincount(population.stratum[rows], minlength=len(population.sizes))
    assert population.p_value(drawn, 1, 6) < 1e-6
    (labels,) = label_lists([([_weighted(rows)], population)])
    assert labels == [None]
    heavy = np.where(np.arange(LEADING) < 6, 100.0, 1.0)
    (labels,) = label_lists([([(rows * 3, heavy)], population)])
    assert labels[0] is not None
    assert labels[0].index == 1


def test_p_values_equal_simulation() -> None:
    population = _population(6)
    generator = np.random.default_rng(7)
    like = np.concatenate([np.arange(8), np.arange(500, 520)])
    drawn = np.bincount(population.stratum[like], minlength=len(population.sizes))
    hits = np.array([population.membership[_matched_draw(population, like, generator), 29].sum() for _ in range(4000)])
    for overlap in (0, 3, 5, 7):
        simulated = (hits >= overlap).mean()
        exact = population.p_value(drawn, 29, overlap)
        assert exact == pytest.approx(simulated, abs=4 * np.sqrt(0.25 / 4000))
    assert population.p_value(drawn, 29, 0) == 1.0
    assert population.p_value(drawn, 29, 29) < 1e-12


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=300))
def test_strata_are_large_and_ordered_by_frequency(counts: list[int]) -> None:
    array = np.array(counts)
    stratum = strata(array)
    sizes = np.bincount(stratum)
    assert (sizes >= min(32, len(counts))).all()
    for level in range(1, len(sizes)):
        assert array[stratum == level].max() <= array[stratum == level - 1].min()


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 100))
def test_benjamini_hochberg_equals_its_definition(p: list[float], untested: int) -> None:
    tests = len(p) + untested
    every = np.sort(np.array(p + [1.0] * untested))
    adjusted = benjamini_hochberg(np.array(p), tests)
    for value, q in zip(p, adjusted, strict=True):
        expected = min(
            min(1.0, x * tests / (rank + 1)) for rank, x in enumerate(every) if rank >= np.searchsorted(every, value)
        )
        assert q == pytest.approx(expected, rel=1e-12)


def test_nothing_to_label() -> None:
    assert label_lists([([], _population())]) == [[]]
    (labels,) = label_lists([([_weighted(np.array([1, 2])), _weighted(np.zeros(0, int))], _population())])
    assert labels == [None, None]
