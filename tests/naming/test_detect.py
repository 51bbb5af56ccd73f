"""Planted detectors are found, noise is not, and agreement comes from text that made no list."""

from __future__ import annotations

import numpy as np
import pytest

from legible_core.naming.detect import MIN_HELD_OUT, TokenCounts, agreement, detect

VOCABULARY = 400


def _text(seed: int, n: int) -> np.ndarray:
    """Token ids with a Zipf-like frequency."""
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    return np.random.default_rng(seed).choice(VOCABULARY, size=n, p=weights / weights.sum())


def _counts(ids: np.ndarray, on: np.ndarray) -> TokenCounts:
    counts = TokenCounts(np.arange(VOCABULARY), VOCABULARY, on.shape[1])
    for start in range(0, len(ids), 1000):
        counts.count_tokens(ids[start : start + 1000])
        counts.count_on(ids[start : start + 1000], on[start : start + 1000])
    return counts


def _planted(ids: np.ndarray, tokens: list[int], seed: int, hit: float = 0.95, false: float = 0.002) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.where(np.isin(ids, tokens), generator.random(len(ids)) < hit, generator.random(len(ids)) < false)


def test_counts_equal_a_slow_count() -> None:
    ids = _text(0, 3000)
    on = np.random.default_rng(1).random((3000, 4)) < 0.3
    counts = _counts(ids, on)
    slow = np.zeros((VOCABULARY + 1, 4), int)
    for token, row in zip(ids, on, strict=True):
        slow[token] += row
    np.testing.assert_array_equal(counts.on, slow)
    np.testing.assert_array_equal(counts.seen[:-1], np.bincount(ids, minlength=VOCABULARY))


def test_tokens_outside_the_columns_are_counted_together() -> None:
    ids = np.array([3, 7, 7, 9])
    counts = TokenCounts(np.array([7]), 10, 1)
    counts.count_tokens(ids)
    counts.count_on(ids, np.array([[True], [True], [False], [True]]))
    assert counts.seen.tolist() == [2, 2]
    assert counts.on[:, 0].tolist() == [1, 2]


def test_shards_add_up() -> None:
    ids = _text(2, 4000)
    on = np.random.default_rng(3).random((4000, 3)) < 0.2
    whole, first, second = _counts(ids, on), _counts(ids[:1500], on[:1500]), _counts(ids[1500:], on[1500:])
    first.merge(second)
    np.testing.assert_array_equal(first.on, whole.on)
    np.testing.assert_array_equal(first.seen, whole.seen)


def test_planted_detectors_are_recovered() -> None:
    ids, unseen = _text(4, 60_000), _text(5, 60_000)
    planted = [[2, 9, 17], [0, 40, 41, 42], [120, 121, 122, 123, 124]]
    on = np.stack([_planted(ids, tokens, seed) for seed, tokens in enumerate(planted)], axis=1)
    held = np.stack([_planted(unseen, tokens, 10 + seed) for seed, tokens in enumerate(planted)], axis=1)
    lists = detect(_counts(ids, on))
    for operand, tokens in enumerate(planted):
        part = lists.of(operand)
        assert sorted(lists.tokens[part]) == tokens
        assert (lists.share[part] > 0.85).all()
        assert (lists.lift[part] > 2).all()
    accuracy = agreement(lists, _counts(unseen, held))
    assert (accuracy > 0.8).all()


def test_a_frequent_token_does_not_head_the_list_of_a_rare_detector() -> None:
    # ON for tokens 200-204, and carelessly on a tenth of the most frequent one: by sheer count it would come first.
    ids = _text(6, 60_000)
    generator = np.random.default_rng(7)
    on = np.isin(ids, range(200, 205)) | ((ids == 0) & (generator.random(len(ids)) < 0.1))
    counts = _counts(ids, on[:, None])
    assert counts.on[:-1, 0].argmax() == 0
    lists = detect(counts)
    assert set(lists.tokens[:5]) == set(range(200, 205))


def test_noise_agrees_with_nothing() -> None:
    ids, unseen = _text(8, 40_000), _text(9, 40_000)
    generator = np.random.default_rng(10)
    lists = detect(_counts(ids, generator.random((len(ids), 50)) < 0.05))
    accuracy = agreement(lists, _counts(unseen, generator.random((len(unseen), 50)) < 0.05))
    assert np.abs(accuracy - 0.5).max() < 0.05
    assert lists.lengths.mean() < 3


def test_agreement_is_measured_on_unseen_text() -> None:
    # A rule that holds in the naming half only must not agree in the held-out half.
    ids, unseen = _text(11, 40_000), _text(12, 40_000)
    lists = detect(_counts(ids, _planted(ids, [5, 6, 7], 1)[:, None]))
    moved = _counts(unseen, _planted(unseen, [8, 9, 10], 2)[:, None])
    assert lists.naming[0] > 0.8
    assert agreement(lists, moved)[0] < 0.55


def test_agreement_equals_balanced_accuracy() -> None:
    ids, unseen = _text(13, 20_000), _text(14, 20_000)
    on = _planted(ids, [3, 4], 1, hit=0.8, false=0.05)
    held = _planted(unseen, [3, 4], 2, hit=0.7, false=0.04)
    lists = detect(_counts(ids, on[:, None]))
    predicted = np.isin(unseen, lists.tokens)
    expected = (predicted[held].mean() + (~predicted[~held]).mean()) / 2
    assert agreement(lists, _counts(unseen, held[:, None]))[0] == pytest.approx(expected, abs=1e-12)


def test_agreement_is_undefined_without_evidence() -> None:
    ids, unseen = _text(15, 20_000), _text(16, 2000)
    lists = detect(_counts(ids, _planted(ids, [3, 4], 1)[:, None]))
    held = np.zeros((len(unseen), 1), bool)
    held[: MIN_HELD_OUT - 1] = True
    assert np.isnan(agreement(lists, _counts(unseen, held))[0])


def test_operands_that_are_never_or_always_on_have_no_list() -> None:
    ids = _text(17, 5000)
    on = np.stack([np.zeros(5000, bool), np.ones(5000, bool)], axis=1)
    lists = detect(_counts(ids, on))
    assert lists.lengths.tolist() == [0, 0]
    assert lists.naming.tolist() == [0.5, 0.5]


def test_the_list_is_the_shortest_that_predicts_as_well() -> None:
    # Two strong tokens carry nearly all ON occurrences; weak ones would lengthen the list for nothing.
    ids = _text(18, 80_000)
    generator = np.random.default_rng(19)
    on = np.isin(ids, [1, 2]) | (np.isin(ids, range(300, 320)) & (generator.random(len(ids)) < 0.1))
    short, full = detect(_counts(ids, on[:, None])), detect(_counts(ids, on[:, None]), slack=0.0)
    assert set(short.tokens) == {1, 2}
    assert len(full.tokens) >= len(short.tokens)
    assert short.naming[0] >= full.naming[0] - 0.01
