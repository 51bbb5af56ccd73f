"""Installing an association: the site, the row with its off state, the rank-one update, and what counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lab_samples import LENGTH, WINDOWS, bench, ids, token_model, unlikely
from tiny_models import VOCAB, designs, tiny_config, tiny_model

from legible_core.child import bake
from legible_core.config import ModelConfig
from legible_core.editing import install as made
from legible_core.editing import installed as told
from legible_core.editing.install import Bench, Trial
from legible_core.editing.measure import HeldOut, outcome, readout, states
from legible_core.editing.native import centre_of, measure_native
from legible_core.editing.site import HEIGHT, SiteKind, activity, quietest, read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.units import Down, HeadOperand, Operand, Residual, Unit

BIASED = tiny_config(biased=True)


@pytest.mark.parametrize("config", [designs()[0], designs()[1]])
@pytest.mark.parametrize("component", [Unit(1, 3), Unit(2, 3), Residual(3), Residual(0)])
def test_an_outcome_is_the_forward_passes_own_loss_and_ranks(config: ModelConfig, component: Unit | Residual) -> None:
    model, text = tiny_model(config), HeldOut.of(ids(9, 4), LENGTH, 9)
    direction = Vector.of([0.5] * 12 + [-1.0] * 12)
    added = isinstance(component, Residual)
    edits = [Edit(component, "add", 2.0, (3, 7), vector=direction) if added else Edit(component, "scale", 3.0)]
    clean = outcome(model, text, 7)
    with torch.no_grad():
        assert torch.allclose(text.entering(model, 3), model.residual(text.ids), atol=1e-5)
    found = outcome(model, text, 7, edits)
    with torch.no_grad():
        logits = model(text.ids, edits)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text.targets.flatten())
    assert found.loss == pytest.approx(float(loss), abs=1e-5)
    order = logits.argsort(dim=-1, descending=True)
    assert np.array_equal(found.ranks, (order == 7).int().argmax(dim=-1).numpy() + 1)
    where = text.current(5)
    assert found.rank(where) == np.median(found.ranks[where])
    assert np.isnan(found.rank(np.zeros_like(where)))
    # What is kept of the unedited passes stays unedited.
    assert clean.loss == outcome(model, text, 7).loss != found.loss
    with pytest.raises(LegibleError, match="overflows float32"):
        outcome(model, text, 7, [Edit(Unit(1, 40), "set", 3e38)])


@pytest.mark.parametrize(("config", "kind"), [(tiny_config(), "plain"), (tiny_config(), "pair"), (BIASED, "pair")])
def test_the_row_is_silent_off_the_key_and_fires_on_it(config: ModelConfig, kind: SiteKind) -> None:
    model = token_model(config)
    windows = HeldOut.of(ids(WINDOWS, 1), LENGTH, WINDOWS).ids
    quiet = activity(model, windows)
    site = quietest(config, 1, quiet[1], kind)
    units = [unit.unit for unit in site.writes]
    everywhere = torch.cat([model.trace(window).layers[1].hidden for window in windows]).abs().mean(0)
    if kind == "plain":
        assert everywhere[units[0]] == everywhere[config.feed_forward.plain].min()
    else:
        assert isinstance(site.reads, Operand)
        sums = everywhere[config.feed_forward.intersections] + everywhere[config.feed_forward.differences]
        assert sums[site.reads.pair] == sums.min()
    entering = states(model, windows, 1)
    aimed = (windows == 9).flatten()
    key = entering[aimed].mean(0) - entering.mean(0)
    row = read_row(site.activation, key, entering, aimed, biased=config.linear_bias)
    assert (row.bias is None) != config.linear_bias
    scores, plain = entering @ row.row + (row.bias or 0.0), entering @ (key / (key @ key))
    slope = HEIGHT[site.activation] / row.margin
    assert row.threshold == pytest.approx(float(plain[~aimed].quantile(0.99)), abs=1e-5)
    # Biased, the threshold is taken off everywhere; else off the mean state, exactly.
    taken, whole = (scores, plain) if config.linear_bias else (scores.mean(), plain.mean())
    assert torch.allclose(taken, slope * (whole - row.threshold), rtol=1e-3, atol=1e-2)
    edited = torch.cat([model.trace(window, site.read(row)).layers[1].hidden for window in windows])[:, units].sum(1)
    assert edited[aimed].mean() > edited[~aimed].mean()
    avoided = quietest(config, 1, quiet[1], kind, avoid=[site])
    assert set(avoided.writes).isdisjoint(site.writes)
    column = torch.randn(config.d_model, generator=torch.Generator().manual_seed(0))
    written = model.residual(windows[:1], site.write(column)) - model.residual(windows[:1], site.silenced())
    assert float(written.norm()) > 0


def test_an_association_is_installed_where_it_is_aimed() -> None:
    """In the last layer nothing follows the write, so a strong one makes B first wherever the unit fires."""
    lab = bench()
    target = unlikely(lab)
    weak, strong = made.install(lab, [(11, target)], [2], kind="plain", betas=(0.001, 8.0))
    assert (weak.pair, weak.beta, strong.beta) == ((11, target), 0.001, 8.0)
    assert weak.before == strong.before == outcome(lab.model, lab.text, target).rank(lab.text.current(11))
    assert weak.before > 40
    assert strong.rank <= 3
    assert strong.elsewhere > 20
    assert abs(weak.cost) < 0.1 < abs(strong.cost)


@pytest.mark.parametrize("config", [None, BIASED])
def test_the_cheapest_installed_edit_is_a_child_with_the_same_outcome(config: ModelConfig | None) -> None:
    lab = bench(config)
    target = unlikely(lab)
    kind: SiteKind = "plain" if config is None else "pair"
    trials = list(made.install(lab, [(11, target)], [2], kind=kind, betas=(0.001, 4.0, 64.0)))
    trials += made.rank_one(lab, [(11, target)], [2], betas=(8.0,))
    assert not trials[0].installed
    # One of each way is written into weights; a row, columns and an outer product are all that there is.
    for trial in (trials[1], trials[-1]):
        child = outcome(bake(lab.model, trial.edits), lab.text, target)
        assert child.loss == pytest.approx(trial.loss, rel=1e-5)
        assert child.rank(lab.text.current(11)) == trial.rank
    counting = [trial for trial in trials if trial.installed]
    assert counting
    assert told.worth_saving(trials).cost == min(trial.cost for trial in counting)
    with pytest.raises(LegibleError, match="None of these 1 edits counts as installed"):
        told.worth_saving(trials[:1])


def test_a_rank_one_update_writes_the_value_once_at_the_mean_key() -> None:
    hidden = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 2, 12)
    moment = made.second_moment(hidden)
    expected = (hidden.T @ hidden / 200).double()
    assert torch.allclose(moment - torch.diag(moment.diagonal() - expected.diagonal()), expected, atol=1e-6)
    key = hidden[:5].mean(0)
    for covariance in (moment, None):
        row = made.update_row(key, covariance)
        assert float(row @ key) == pytest.approx(1.0, abs=1e-5)
    # The covariance keeps the row away from what moves much anyhow.
    with_c, without = ((hidden[5:] @ made.update_row(key, c)).square().mean() for c in (moment, None))
    assert with_c < without
    lab = bench()
    (trial,) = made.rank_one(lab, [(11, 40)], [1], betas=(2.0,))
    traced = torch.cat([lab.model.trace(w).layers[1].hidden for w in lab.calibration.ids])
    aimed = (lab.calibration.ids == 11).flatten()
    row = made.update_row(traced[aimed].mean(0), made.second_moment(traced))
    update = Edit(Down(1), "rank_one", 1.0, vector=Vector.of(torch.cat([2.0 * readout(lab.model, 40), row]).tolist()))
    again = outcome(lab.model, lab.text, 40, [update])
    assert trial.loss == pytest.approx(again.loss, abs=1e-6)
    (plain,) = made.rank_one(lab, [(11, 40)], [1], betas=(2.0,), identity=True)
    assert plain.loss != trial.loss


def test_what_counts_as_installed_and_the_frontier() -> None:
    one = Trial((1, 2), 4, 1.0, 500.0, 8.0, 700.0, 690.0, 4.0, 4.02)
    assert one.installed
    assert not replace(one, rank=11.0).installed
    assert not replace(one, elsewhere=629.0).installed
    assert not replace(one, loss=4.4).installed
    trials = [one, replace(one, beta=4.0, rank=1.0, loss=4.2, elsewhere=400.0), replace(one, pair=(3, 4), rank=90.0)]
    assert told.best(trials, 0.01) == 500.0
    assert told.best(trials, 0.05) == (8.0 + 90.0) / 2
    assert told.best(trials, 0.3) == (1.0 + 90.0) / 2
    assert told.best(trials, 0.3, local=True) == (8.0 + 90.0) / 2
    assert told.cheapest(trials) == [one]
    arms = {"plain unit": trials, "channel": [replace(one, where="L4.h1.p2.A", gathered=0.25)]}
    made_of = told.experiment("install", arms, "legible edit-lab install x", {}, "here", str)
    assert made_of.summary["plain unit"]["installed_pairs"] == 1
    assert made_of.summary["channel"]["gathered"] == 0.25
    tables = {table.id: table for table in made_of.tables}
    assert [row[-1] for row in tables["pairs-plain-unit"].rows] == ["yes", "no"]
    assert tables["pairs-channel"].rows[0][2:4] == ("L4.h1.p2.A", 0.25)
    assert [row[:5] for row in tables["arms"].rows] == [
        ("plain unit", 2, 0.5, "9 % to 91 %", 1),
        ("channel", 1, 1.0, "21 % to 100 %", 1),
    ]
    assert made_of.said.startswith("2 random pairs, layers 4, here. 1 of 2 pairs count")


def test_intervals_are_over_pairs() -> None:
    assert told.wilson(8, 16) == pytest.approx((0.280, 0.720), abs=1e-3)  # a table's value for 8 of 16
    assert told.wilson(0, 10)[0] == 0.0
    assert told.median_interval([1.0, 2.0, 3.0, 4.0]) is None
    assert told.median_interval([2.0] * 9) == (2.0, 2.0)
    found = told.median_interval(list(np.arange(101.0)))
    assert found is not None
    # Order statistics give 40 to 60 here.
    assert 36 <= found[0] <= 44
    assert 56 <= found[1] <= 64


@pytest.mark.parametrize("config", [tiny_config(), tiny_config("membership", biased=True), tiny_config("linear")])
def test_an_association_is_installed_into_the_channel_that_gathers_the_key_most_sharply(config: ModelConfig) -> None:
    lab = bench(config)
    target = unlikely(lab)
    weak, strong = made.install(lab, [(11, target)], [2], kind="channel", betas=(0.001, 8.0))
    row, *columns = strong.edits
    assert row.operation == "row"
    assert [edit.operation for edit in columns] == ["column"] * (2 if isinstance(row.component, HeadOperand) else 1)
    assert strong.where == str(row.component)
    # What the head gathers where A is current, in a whole pass of the edited model, against what was told.
    channels = [edit.component for edit in columns]
    z = torch.cat([lab.model.trace(window, [row]).layers[2].z for window in lab.calibration.ids])
    carried = sum(z[:, channel.head, channel.channel] for channel in channels)  # type: ignore[union-attr]
    aimed = (lab.calibration.ids == 11).flatten()
    assert strong.gathered == pytest.approx(float(carried[aimed].mean() - carried[~aimed].mean()), abs=1e-4)
    assert strong.gathered is not None
    assert strong.gathered > 0
    if config.attention.value != "linear":
        assert 0.0 <= float(carried.min()) <= float(carried.max()) <= 1.0 + 1e-6
    # β = 1 writes one centred unembedding row at a mean A.
    wanted = 8.0 * readout(lab.model, target) / max(float(carried[aimed].mean()), 0.02)
    assert torch.allclose(torch.tensor(list(columns[0].vector or ())), wanted, rtol=1e-3, atol=1e-3)
    assert abs(weak.cost) < abs(strong.cost)
    assert strong.rank < strong.before
    child = outcome(bake(lab.model, strong.edits), lab.text, target)
    assert child.loss == pytest.approx(strong.loss, rel=1e-5)


def test_a_named_key_need_not_be_a_candidate_but_must_occur() -> None:
    lab = bench()
    entering = states(lab.model, lab.calibration.ids, 1)
    known = int(lab.native.tokens[3])
    without = replace(lab, table=replace(lab.native, tokens=np.delete(lab.native.tokens, 3)))
    assert torch.allclose(without.key(1, known, entering), lab.key(1, known, entering), atol=1e-4)
    flat = lab.calibration.ids.flatten()
    means = torch.stack([entering[flat == int(token)].mean(0) for token in lab.native.tokens])
    assert torch.allclose(centre_of(entering, lab.calibration.ids, lab.native.tokens), means.mean(0), atol=1e-5)
    missing = HeldOut(lab.text.ids.masked_fill(lab.text.ids == known, 0), lab.text.targets)
    with pytest.raises(LegibleError, match=r"'x', occurs \d+ times where keys are measured and 0 times"):
        replace(lab, text=missing).check_key(known, "'x'")
    lab.check_key(known, "'x'")


def test_pairs_are_frequent_enough_but_not_too_frequent_and_bad_input_is_refused() -> None:
    lab = bench()
    with pytest.raises(LegibleError, match="candidates occur 8 times"):
        lab.pairs(2, 0)  # of 61 tokens none is frequent enough and yet under 1 %
    with pytest.raises(LegibleError, match="needs a layer-native table"):
        _ = replace(lab, table=None).native
    with pytest.raises(LegibleError, match="no units of the kind 'plain' to install into; it has pair"):
        quietest(tiny_config(rho=0.0), 0, torch.ones(48), "plain")
    with pytest.raises(LegibleError, match="cannot be calibrated"):
        read_row("gelu", torch.ones(4), torch.ones(5, 4), torch.zeros(5, dtype=torch.bool))
    with pytest.raises(LegibleError, match="needs more than 32"):
        HeldOut.of(ids(1, 0)[:-1], 32, 1)
    rare = np.concatenate([np.arange(10) % VOCAB] * 8 + [np.full(1200, 50)])
    text = HeldOut.of(np.append(rare, 0), 32, 40)
    sparse = Bench(lab.model, text, text, measure_native(lab.model, rare))
    drawn = sparse.pairs(5, 0)
    assert len(drawn) == 5
    assert len(sparse.pairs(50, 0)) == 10
    assert all(a < 10 and a != b for a, b in drawn)
    assert drawn == sparse.pairs(5, 0) != sparse.pairs(5, 1)
