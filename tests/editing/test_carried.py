"""A condition carried by attention: what the head looks for, that only it is changed, and who answers where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lab_samples import LENGTH, WINDOWS, bench, token_model, unlikely
from tiny_models import tiny_config

from legible_core.config import ModelConfig
from legible_core.editing import carried as made
from legible_core.editing.carried_told import best, experiment
from legible_core.editing.channels import Heads
from legible_core.editing.measure import HeldOut, outcome, reads, states
from legible_core.editing.site import read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.units import Channel, HeadOperand, Unit


def few(seed: int) -> np.ndarray:
    """A text of twelve tokens only."""
    return np.random.default_rng(seed).integers(0, 12, WINDOWS * LENGTH + 1)


BIASED = tiny_config("membership", biased=True)


def test_positions_are_sorted_by_what_came_before() -> None:
    ids = torch.tensor([[3, 7, 3, 3, 5], [7, 3, 3, 7, 3], [1, 1, 1, 1, 1]])
    after, before, distance = made.seen(ids, 7)
    assert after.int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 0, 1], [0] * 5]
    assert before.int().tolist() == [[1, 0, 0, 0, 0], [0] * 5, [1] * 5]
    assert distance.tolist() == [[-1, 0, 1, 2, 3], [0, 1, 2, 0, 1], [-1] * 5]


@pytest.mark.parametrize("config", [tiny_config(), BIASED, tiny_config("linear")])
def test_the_score_of_one_head_rises_on_the_token_and_nothing_else_is_changed(config: ModelConfig) -> None:
    model = token_model(config)
    lab = bench(config)
    heads = Heads.of(model, lab.calibration.ids, 1)
    aimed = (lab.calibration.ids == 11).flatten()
    key = heads.entering[aimed].mean(0) - heads.entering[~aimed].mean(0)
    row = read_row("relu", key, heads.entering, aimed, biased=config.linear_bias, height=1.0)
    spread, place = made.own_scores(heads, windows=9)
    own = model.layers[1].attention
    plain = torch.stack([own.pattern_row(heads.entering[:32], 2, t)[t] for t in range(32)])
    assert plain.shape == (32,)
    mean = heads.entering.mean(0)
    looking = made.looking(own, mean, row, 5.0 * spread, place, only=2)
    changed = made.with_attention(model, 1, looking)
    z, edited = heads.z(), heads.z(attention=looking)
    assert torch.equal(z[:, [0, 1, 3]], edited[:, [0, 1, 3]])
    assert not torch.allclose(z[:, 2], edited[:, 2])
    # The scores, in full: as they were without the coordinate, and κ s times what the row says of the token looked at.
    x = heads.entering[:32]
    width, at = own.d_head, 2 * own.d_head + int(place[2])
    others = [row for row in range(2 * width, 3 * width) if row != at]

    def projected(name: str) -> torch.Tensor:
        bias = getattr(own, f"{name}_bias", None)
        return x @ getattr(own, name)[others].T + (0.0 if bias is None else bias[others])

    score = projected("query") @ projected("key").T / width**0.5
    held = x @ (mean / (mean @ mean)) if row.bias is None else torch.ones(32)
    score = score + 5.0 * spread[2] * torch.outer(held, x @ row.row + (row.bias or 0.0))
    for t in (3, 31):
        wanted = torch.softmax(score[t, : t + 1], dim=-1)
        assert torch.allclose(looking.pattern_row(x, 2, t), wanted, atol=1e-5)
    # Shared but for that attention: the model itself is as it was, and what is kept below serves both.
    assert changed.layers[0] is model.layers[0]
    assert model.layers[1].attention is own
    assert changed.layers[1].feed_forward is model.layers[1].feed_forward
    assert lab.text.entering(changed, 1) is lab.text.entering(changed, 1)
    scores = own.pattern_row(x, 2, 31)
    assert torch.allclose(scores, own.pattern_row(x, 2, 31))
    allowed = torch.cat([all_scores(own, heads.entering[32 * w : 32 * w + 32], 2) for w in range(9)])
    assert float(spread[2]) == pytest.approx(float(allowed.std()), rel=1e-4)


def all_scores(attention: torch.nn.Module, x: torch.Tensor, head: int) -> torch.Tensor:
    """A head's scores before the softmax, of every token for what it may look at."""
    rows = slice(head * 6, head * 6 + 6)
    q, k = (
        x @ getattr(attention, name)[rows].T
        + (0.0 if getattr(attention, f"{name}_bias", None) is None else getattr(attention, f"{name}_bias")[rows])
        for name in ("query", "key")
    )
    return (q @ k.T / 6**0.5)[torch.ones(32, 32, dtype=torch.bool).tril()]


@pytest.mark.parametrize("config", [None, BIASED])
def test_reads_are_the_states_of_a_whole_pass(config: ModelConfig | None) -> None:
    lab = bench(config)
    edits = [Edit(Channel(0, 1, 2), "column", vector=Vector.of([1.0] * 24))]
    edits += [Edit(Unit(0, 40 if config is None else 30), "scale", 3.0)]
    for layer in (1, 2):
        for some in ((), edits):
            found = reads(lab.model, lab.text, layer, some)
            assert torch.allclose(found, states(lab.model, lab.text.ids, layer, some), atol=1e-5)


def test_a_unit_answers_after_the_token_through_attention() -> None:
    # Twelve tokens in 24 dimensions, so that a row can tell one from the others.
    calibration, text = (HeldOut.of(few(seed), LENGTH, WINDOWS) for seed in (1, 2))
    lab = replace(bench(), calibration=calibration, text=text)
    target = unlikely(lab)
    found = made.carried(lab, [(11, target)], 0, kind="plain", kappas=(0.0, 20.0), strengths=(2.0,), betas=(0.5, 16.0))
    assert [(one.kappa, one.beta) for one in found] == [(0.0, 0.5), (0.0, 16.0), (20.0, 0.5), (20.0, 16.0)]
    after, before, _ = (mask.numpy() for mask in made.seen(lab.text.ids, 11))
    clean = outcome(lab.model, lab.text, target)
    for one in found:
        assert (one.before, one.elsewhere_before) == (clean.rank(after), clean.rank(before))
        assert one.loss_before == clean.loss
        assert (one.write_alone is None) == (one.beta == 0.5)
    trained, looks = found[1], found[3]
    # A head that looks for the token tells far better whether it was there than one that does not, so B is answered.
    assert looks.apart > 2 * trained.apart > 0
    assert looks.fires > 4 * looks.rests
    assert looks.rank < 20 < 50 < looks.before
    assert looks.elsewhere >= looks.elsewhere_before
    assert trained.rank > 40
    assert looks.write_alone is not None
    assert looks.rank < looks.write_alone
    told = experiment(found, "legible edit-lab carried x", {}, "here", str)
    tables = {table.id: table for table in told.tables}
    assert [row[0] for row in tables["carried-kappa"].rows] == [0.0, 20.0]
    assert [row[0] for row in tables["carried-distance"].rows] == ["1", "2 to 4", "5 to 16", "17 to 64", "65 and more"]
    assert tables["carried-distance"].rows[-1][1] == 0  # windows of 32 tokens
    assert tables["carried-halves"].rows[1][1:] == (looks.before, looks.write_alone, looks.reader_alone, looks.rank)
    assert "1 random pairs" in told.said
    cheap = replace(looks, rank=50.0, loss=looks.loss_before)
    dear = replace(looks, rank=1.0, loss=2 * looks.loss_before)
    assert best([cheap, dear]) == [cheap]


def test_what_cannot_be_carried_is_refused() -> None:
    lab = bench()
    with pytest.raises(LegibleError, match="needs a reader in layer 3"):
        made.carried(lab, [(11, 40)], 1, kind="plain")
    with pytest.raises(LegibleError, match="κ is -1"):
        made.carried(lab, [(11, 40)], 0, kind="plain", kappas=(-1.0,))
    only_first = HeldOut(torch.full((2, 32), 5), torch.full((2, 32), 5))
    heads = Heads.of(lab.model, only_first.ids, 0)
    with pytest.raises(LegibleError, match="positions after A and others before it"):
        made.wire(replace(lab, calibration=only_first), heads, 5, 0.0, made.own_scores(heads), torch.ones(24))
    assert isinstance(heads.sites[0].reads, HeadOperand)
    assert np.isnan(outcome(lab.model, lab.text, 3).rank(np.zeros((9, 32), bool)))
