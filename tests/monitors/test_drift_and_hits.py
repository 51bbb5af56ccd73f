"""The drift test against its law, exact counts under thinning, and hits with their places."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import comb

import numpy as np
import pytest

from legible_core.drift import MIN_BLOCKS, Counted, binomial_p, corrected, drift
from legible_core.hits import BLOCK, CONTEXT, KEPT, Tally, Teller
from legible_core.monitor import Condition, Monitor
from legible_core.text_stream import StreamToken
from legible_core.units import parse


@pytest.mark.parametrize(("on", "tokens", "rate"), [(0, 9, 0.2), (3, 9, 0.2), (9, 9, 0.2), (7, 40, 0.03), (1, 1, 0.5)])
def test_the_binomial_tail_is_the_sum_of_its_terms(on: int, tokens: int, rate: float) -> None:
    terms = [comb(tokens, k) * rate**k * (1 - rate) ** (tokens - k) for k in range(tokens + 1)]
    expected = min(1.0, 2 * min(sum(terms[: on + 1]), sum(terms[on:])))
    assert binomial_p(on, tokens, rate) == pytest.approx(expected, rel=1e-9)


def test_tails_far_out_and_rates_at_the_ends() -> None:
    assert binomial_p(3000, 3000, 0.4) < 1e-300
    assert binomial_p(120_000, 300_000, 0.4) > 0.9
    assert (binomial_p(0, 50, 0.0), binomial_p(1, 50, 0.0), binomial_p(50, 50, 1.0)) == (1.0, 0.0, 1.0)
    assert drift(0.1, []) is None
    assert drift(0.1, [Counted(0, 0)]) is None


def bursty(rng: np.random.Generator, blocks: int, rate: float) -> list[Counted]:
    """Texts of two sorts: half the blocks have the detector ON at almost twice the rate, the others hardly ever."""
    rates = rate * np.where(rng.random(blocks) < 0.5, 1.9, 0.1)
    return [Counted(BLOCK, int(rng.binomial(BLOCK, r))) for r in rates]


def test_blocks_allow_for_bursts_where_independent_tokens_would_not() -> None:
    rng = np.random.default_rng(0)
    found = [drift(0.1, bursty(rng, 60, 0.1)) for _ in range(400)]
    assert all(one is not None and one.method == "blocks" for one in found)
    by_blocks = np.array([one.p for one in found if one is not None])
    by_tokens = np.array([binomial_p(one.on, one.tokens, 0.1) for one in found if one is not None])
    assert 0.02 < (by_blocks < 0.05).mean() < 0.1
    assert (by_tokens < 0.05).mean() > 0.4
    moved = [drift(0.1, bursty(rng, 400, 0.15)) for _ in range(20)]
    assert all(one is not None and one.p < 0.01 and one.z is not None and one.z > 0 for one in moved)


def test_few_blocks_or_equal_ones_fall_back_to_the_binomial_and_say_so() -> None:
    few = drift(0.1, [Counted(BLOCK, 20), Counted(BLOCK, 11)])
    assert few is not None
    assert (few.method, few.z, few.p) == ("binomial", None, binomial_p(31, 2 * BLOCK, 0.1))
    never = drift(0.1, [Counted(BLOCK, 0)] * MIN_BLOCKS)
    assert never is not None
    assert never.method == "binomial"


def test_holm_multiplies_by_how_many_are_left_and_never_falls() -> None:
    blocks = [[Counted(1000, on)] for on in (100, 160, 131, 129)]
    found = corrected([drift(0.1, blocks[0]), None, *(drift(0.1, one) for one in blocks[1:])])
    p = [one.p for one in found if one is not None]
    adjusted = [one.adjusted for one in found if one is not None]
    order = np.argsort(p)
    expected = np.minimum(1.0, np.maximum.accumulate(np.array(p)[order] * [4, 3, 2, 1]))
    assert found[1] is None
    assert np.array(adjusted)[order] == pytest.approx(expected)


@dataclass
class Looked:
    start: int
    ids: tuple[int, ...]
    values: np.ndarray
    hits: np.ndarray


def looked(flags: np.ndarray, values: np.ndarray, sizes: tuple[int, ...]) -> list[Looked]:
    edges = np.cumsum([0, *sizes])
    return [
        Looked(a, tuple(range(a, b)), values[a:b], flags[a:b]) for a, b in pairwise(edges)
    ]  # fmt: skip


def test_every_hit_is_counted_and_a_block_keeps_its_first_ones_however_the_text_is_cut() -> None:
    rng = np.random.default_rng(1)
    n = 3 * BLOCK + 40
    monitors = [Monitor(name, (Condition(parse("L0.u1"), above=0.5), Condition(parse("L0.h1")))) for name in "ab"]
    components = monitors[0].components
    values = rng.random((n, 2)).astype(np.float32)
    flags = np.stack([rng.random(n) < 0.7, rng.random(n) < 0.02], axis=1)
    results = []
    for sizes in ((n,), (1, 100, 150, n - 251), tuple([7] * (n // 7)) + ((n % 7,) if n % 7 else ())):
        told, tallies = Teller(components, monitors), [Tally(components, 0), Tally(components, 1)]
        kept: list[list[object]] = [[], []]
        hits, blocks = [], [{}, {}]
        told.expect(StreamToken(i, 3 * i) for i in range(n))
        for seen in looked(flags, values, sizes):
            found = told.take(seen)
            hits += found
            for index, tally in enumerate(tallies):
                kept[index] += tally.take(seen, found)
                blocks[index].update(tally.state())
                tally.forget_before(seen.start + len(seen.ids))
                again = Tally(components, index)
                again.restore(tally.state())
                tallies[index] = again
        results.append((hits, kept, blocks))
    assert results[0] == results[1] == results[2]
    hits, kept, blocks = results[0]
    assert len(hits) == flags.sum()
    for hit in hits:
        assert hit.offset == 3 * hit.token
        assert hit.context == tuple(range(max(0, hit.token - CONTEXT), hit.token + 1))
        assert hit.values == {"L0.u1": float(values[hit.token, 0]), "L0.h1": float(values[hit.token, 1])}
    for index in range(2):
        assert sum(block["hits"] for block in blocks[index].values()) == flags[:, index].sum()
        assert sum(block["kept"] for block in blocks[index].values()) == len(kept[index])
        for number, block in blocks[index].items():
            here = slice(int(number) * BLOCK, (int(number) + 1) * BLOCK)
            assert block["tokens"] == len(flags[here])
            assert block["on"]["L0.u1"] == (values[here, 0] > 0.9).sum()
            first = np.flatnonzero(flags[here, index])[:KEPT] + int(number) * BLOCK
            tokens = [hit.token for hit in kept[index] if hit.token // BLOCK == int(number)]  # type: ignore[attr-defined]
            assert tokens == first.tolist()
