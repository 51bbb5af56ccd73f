"""Streaming statistics against the plain formulas, merging, and the papers' classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legible_core.legibility import CODES, Legibility, Moments, classify, head_shares, row_of


def _values(seed: int, tokens: int, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).beta(0.3, 0.6, (tokens, width)).astype(np.float32)


def _of(values: np.ndarray) -> Moments:
    moments = Moments(values.shape[1])
    moments.update(values)
    return moments


def test_equals_the_plain_formulas() -> None:
    values = _values(0, 1000)
    moments = Moments(5)
    for start in range(0, 1000, 37):
        moments.update(values[start : start + 37])
    wide = values.astype(np.float64)
    np.testing.assert_allclose(moments.mean, wide.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(moments.variance, wide.var(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(moments.crispness, (np.minimum(wide, 1 - wide) < 0.1).mean(axis=0))
    np.testing.assert_array_equal(moments.on_share, (wide > 0.9).mean(axis=0))
    assert moments.bins is not None
    for channel in range(5):
        expected, _ = np.histogram(wide[:, channel], bins=20, range=(0, 1))
        # Values on an edge may fall either way between float32 and float64; beta draws hardly hit one.
        assert np.abs(moments.bins[:, channel] - expected).sum() <= 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.integers(0, 10_000), st.randoms())
def test_shards_merge_exactly_in_any_order(sizes: list[int], seed: int, random: object) -> None:
    values = _values(seed, sum(sizes))
    whole = _of(values)
    shards = [_of(part) for part in np.split(values, np.cumsum(sizes)[:-1])]
    random.shuffle(shards)  # type: ignore[attr-defined]
    merged = shards[0]
    for shard in shards[1:]:
        merged.merge(shard)
    assert merged.count == whole.count
    for counts in ("on", "off", "bins"):
        np.testing.assert_array_equal(getattr(merged, counts), getattr(whole, counts))
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.squares, whole.squares, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(merged.classes(), whole.classes())


def test_variance_keeps_its_digits_far_from_zero() -> None:
    values = (0.999 + 1e-4 * np.random.default_rng(1).random((100_000, 1))).astype(np.float32)
    moments = Moments(1)
    for part in np.split(values, 100):
        moments.update(part)
    np.testing.assert_allclose(moments.variance, values.astype(np.float64).var(axis=0), rtol=1e-9)


def test_classes_follow_the_papers_thresholds() -> None:
    variance = np.array([0.0029, 0.003, 0.003, 0.1, 0.0, np.nan])
    crispness = np.array([1.0, 0.5, 0.51, 0.2, 0.0, np.nan])
    code = classify(variance, crispness)
    assert code.tolist() == [0, 2, 1, 2, 0, -1]
    assert CODES[0] is Legibility.CONSTANT
    assert CODES[1] is Legibility.SELECTIVE
    assert CODES[2] is Legibility.FUZZY


def test_a_dead_operand_is_constant_and_crisp() -> None:
    moments = _of(np.full((500, 1), 0.01, np.float32))
    assert CODES[moments.classes()[0]] is Legibility.CONSTANT
    assert moments.crispness[0] == 1.0
    assert moments.on_share[0] == 0.0


def test_a_bit_is_selective_and_a_soft_gate_is_fuzzy() -> None:
    generator = np.random.default_rng(2)
    bit = (generator.random(2000) < 0.1).astype(np.float32)
    gate = generator.uniform(0.2, 0.8, 2000).astype(np.float32)
    moments = _of(np.stack([bit, gate], axis=1))
    assert [CODES[code] for code in moments.classes()] == [Legibility.SELECTIVE, Legibility.FUZZY]


def test_nothing_measured_is_undefined_never_zero() -> None:
    assert row_of([Moments(0)]) is None
    assert row_of([]) is None
    assert row_of([Moments(3)]) is None
    assert np.isnan(Moments(3).variance).all()
    heads = head_shares(_of(_values(3, 50, 8)), n_heads=4, d_head=4)
    assert heads[2:] == (None, None)
    assert all(share is not None for share in heads[:2])


def test_refuses_values_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        _of(np.array([[0.5], [np.nan]], np.float32))
    with pytest.raises(ValueError, match="expected"):
        Moments(3).update(np.zeros((4, 2), np.float32))


def test_state_round_trips_bit_for_bit() -> None:
    moments = _of(_values(4, 100))
    again = Moments.from_arrays(moments.arrays("x"), "x")
    more = _values(5, 77)
    moments.update(more)
    again.update(more)
    for name in ("mean", "squares", "on", "off", "bins"):
        assert getattr(moments, name).tobytes() == getattr(again, name).tobytes()
    assert moments.count == again.count
