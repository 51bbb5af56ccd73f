"""Statistics made block by block, on one thread and on two, against the plain sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from legible_core.legibility import Moments
from legible_core.naming.blocks import ROWS, Groups, Measured, Surface, Team, count_on, join, measure
from legible_core.naming.detect import TokenCounts

# Windows longer than a block and no multiple of it, and five short ones, of which some make a block.
SHAPE = (2, ROWS + 45)
SHORT = (5, ROWS // 3)


@pytest.fixture(params=[1, 2])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    team = Team()
    assert torch.get_num_threads() == team.size == request.param
    yield team
    torch.set_num_threads(before)


def _values(width: int, seed: int = 0, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    """Memberships, the first ones on every edge that matters and beside it, and a column that hardly varies."""
    generator = np.random.default_rng(seed)
    values = generator.beta(0.3, 0.6, (shape[0] * shape[1], width)).astype(np.float32)
    edges = np.append(np.arange(21) / 20, [0.1, 0.9]).astype(np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges[:-1], np.float32(1))])
    values[: len(edges), 0] = edges.clip(0, 1)
    values[:, 1] = 0.999 + 1e-4 * generator.random(len(values))
    return torch.from_numpy(values)


def _check(found: Measured, values: torch.Tensor, *, histogram: bool) -> None:
    moments, plain = (Moments(values.shape[1], histogram=histogram) for _ in range(2))
    found.add_to(moments)
    plain.update(values.numpy())
    assert moments.count == plain.count
    np.testing.assert_array_equal(moments.on, plain.on)
    np.testing.assert_array_equal(moments.off, plain.off)
    np.testing.assert_allclose(moments.mean, plain.mean, atol=1e-7)
    np.testing.assert_allclose(moments.variance, plain.variance, rtol=1e-5)
    if histogram:
        np.testing.assert_array_equal(moments.bins, plain.bins)


def test_threads_of_a_team_work_alone(team: Team) -> None:
    def work(_: int) -> int:
        torch.ones(1 << 18).sigmoid()  # large enough that torch would divide it
        return torch.get_num_threads()

    assert team.map(work, range(8)) == [1] * 8
    assert torch.get_num_threads() == team.size


@pytest.mark.parametrize("shape", [SHAPE, SHORT])
def test_every_sum_is_that_of_the_plain_formulas(team: Team, shape: tuple[int, int]) -> None:
    heads, units, hidden = _values(5, 0, shape), _values(3, 1, shape), _values(7, 2, shape)
    hidden[:, 4:] *= 1e30  # units without rails may hold anything
    on = torch.full((len(heads), 8), 9.0)
    surfaces = [Surface(heads, 5, on[:, :5]), Surface(units, 3, on[:, 5:]), Surface(hidden, 4), Surface(hidden, 0)]
    first, second, some, none = measure(surfaces, shape, team, peaks=True)
    operands = torch.cat([heads, units], dim=1)
    _check(join([first, second]), operands, histogram=True)
    _check(some, hidden[:, :4], histogram=False)
    np.testing.assert_array_equal(on, operands > 0.9)
    for found, values in ((first, heads), (some, hidden), (none, hidden)):
        np.testing.assert_array_equal(found.peaks, values.view(*shape, -1).amax(dim=1))
    assert not measure(surfaces, shape, team, peaks=False)[2].peaks.size


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(team: Team, wrong: float) -> None:
    values = _values(4)
    values[ROWS + 3, 2] = wrong
    measure([Surface(values, 2)], SHAPE, team, peaks=True)
    for on in (None, torch.empty(len(values), 4)):
        with pytest.raises(ValueError, match="not a finite number"):
            measure([Surface(values, 4, on)], SHAPE, team, peaks=True)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_counts_of_on_equal_the_plain_ones(parts: int) -> None:
    generator = np.random.default_rng(3)
    # One token in half of all places, many that are not listed, many that occur once.
    ids = np.where(generator.random(900) < 0.5, 7, generator.integers(0, 400, 900))
    counts, plain = (TokenCounts(np.arange(0, 300), 400, 6) for _ in range(2))
    for _ in range(2):
        on = generator.random((900, 6)) < 0.4
        groups = Groups.of(counts, ids).split(parts)
        assert len(groups) <= parts
        for part in groups:
            count_on(counts, part, torch.from_numpy(on).float())
        plain.count_on(ids, on)
    np.testing.assert_array_equal(counts.on, plain.on)
    alone = TokenCounts(np.array([5]), 10, 1)
    for part in Groups.of(alone, np.array([5, 5])).split(4):
        count_on(alone, part, torch.ones(2, 1))
    assert alone.on.tolist() == [[2], [0]]
