"""The sum: every term against a slow oracle, closing on every architecture, and failing when a term is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_samples import make_engine, make_model, oracle, prompt_ids, request, sample_config

from legible_core import attribution as sums
from legible_core.attribution import Attributor, Question
from legible_core.config import FeedForward
from legible_core.errors import NotExact
from legible_core.interventions import Edit
from legible_core.pipeline import Engine
from legible_core.units import Channel, Head, Unit

ARCHITECTURES = [
    sample_config("linear", (0, 0), gelu=1.0),
    sample_config("linear", (0, 0), biased=True, tied=False),
    sample_config("membership", (4, 1, 0)),
    sample_config("membership", (2, 4), biased=True),
    sample_config("boolean", (4, 4)),
    sample_config("boolean", (1, 3, 0), biased=True, tied=False),
    sample_config("boolean", (2, 2), gelu=0.0, quantifiers=0.0),
    sample_config("boolean", (2, 2), gelu=0.0, quantifiers=1.0),
]
QUESTIONS = [Question(7), Question(7, "mean"), Question(7, "contrast", 50)]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.relative_to)
@pytest.mark.parametrize("config", ARCHITECTURES, ids=lambda c: f"{c.attention.value}-{c.norm_bias}-{c.feed_forward}")
def test_every_term_equals_the_oracles(config, question):
    model = make_model(config)
    trace = model.trace(torch.tensor(prompt_ids(config, 13)))
    for position in (0, 6, 12):
        logits = model.logits_at(trace, position)
        found = Attributor(model).attribute(trace, position, question, logits)
        expected = oracle(model, trace, position, question)
        for name in ("heads", "channels", "units"):
            np.testing.assert_allclose(getattr(found, name), expected.pop(name).numpy(), rtol=0, atol=2e-6)
        assert set(found.floor) == set(expected)
        for name, value in expected.items():
            assert found.floor[name] == pytest.approx(float(value), abs=2e-6)
        found.check()
        assert found.total == pytest.approx(
            sum(found.floor.values()) + found.heads.sum() + found.units.sum(), abs=1e-12
        )


def test_the_value_is_the_models_own(engine):
    logits = engine.model(torch.tensor([request(engine).ids]))[0, 4].double()
    for question, expected in (
        (Question(3), logits[3]),
        (Question(3, "mean"), logits[3] - logits.mean()),
        (Question(3, "contrast", 9), logits[3] - logits[9]),
    ):
        wish = request(engine, position=4, target=3, relative_to=question.relative_to, contrast=question.contrast)
        solved = engine.solve(wish)
        assert solved.terms.value == pytest.approx(float(expected), abs=1e-5)
        assert solved.terms.total == pytest.approx(float(expected), abs=1e-4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    value=st.sampled_from(["linear", "membership", "boolean"]),
    special=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    gelu=st.sampled_from([0.0, 0.3, 1.0]),
    quantifiers=st.sampled_from([0.0, 0.5, 1.0]),
    biased=st.booleans(),
    length=st.integers(1, 24),
    target=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_it_closes_whatever_the_architecture(value, special, gelu, quantifiers, biased, length, target, seed):
    n_special = tuple(special) if value != "linear" else (0,) * len(special)
    config = sample_config(value, n_special, biased=biased, gelu=gelu, quantifiers=quantifiers)
    engine = make_engine(config, seed)
    wish = request(engine, length, seed, position=seed % length, target=target)
    terms = engine.solve(wish).terms
    assert abs(terms.residual) <= terms.tolerance
    groups = sums.groups(terms, config)
    assert sum(groups.values()) == pytest.approx(terms.total, abs=1e-9)
    shares = sums.shares(terms, config)
    if value == "linear" and gelu == 1.0:
        assert shares["mass"] == 0.0
    if set(n_special) == {4} and gelu == 0.0:
        assert shares["mass"] == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_it_closes_for_small_and_large_residual_streams(scale):
    config = sample_config("boolean", (4, 4), biased=True)
    engine = make_engine(config)
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            if name.endswith(("down", "output", "embedding")):
                parameter.mul_(scale)
    terms = engine.solve(request(engine)).terms
    assert terms.tolerance >= 1e-4
    assert abs(terms.residual) <= terms.tolerance


def test_bf16_closes_within_its_wider_tolerance():
    # As many units as a small real model has: with a few dozen, the rounding of a write (machines differ in it)
    # comes near 1e-3 of so small a mass.
    config = replace(sample_config("boolean", (4, 2), biased=True), feed_forward=FeedForward(1024, 0.5, 0.25))
    engine = make_engine(config, dtype="bfloat16")
    reading = engine.read(request(engine))
    assert reading.dtype == "bfloat16"
    solved = engine.solve(request(engine))
    assert solved.trace.residual.dtype == torch.float32
    assert solved.trace.layers[0].hidden.dtype == torch.bfloat16
    assert reading.tolerance == pytest.approx(1e-3 * solved.terms.mass)
    assert 0 < abs(reading.residual) <= reading.tolerance


def test_edits_are_in_the_terms():
    engine = make_engine(sample_config("boolean", (4, 4), biased=True))
    edits = (
        Edit(Unit(1, 5), "set", 3.0),
        Edit(Head(0, 2), "scale", 0.0),
        Edit(Channel(1, 1, 4), "set", -2.0),
    )
    plain, edited = engine.solve(request(engine, target=5)), engine.solve(request(engine, target=5, edits=edits))
    assert edited.terms.heads[0, 2] == 0.0
    assert plain.terms.heads[0, 2] != 0.0
    assert edited.terms.value != pytest.approx(plain.terms.value, abs=1e-3)
    column = engine.attributor.projections(edited.question)
    assert edited.terms.units[1, 5] == pytest.approx(3.0 * float(column.units[1, 5]) / edited.terms.scale, abs=1e-9)


# ---- a wrong term is found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["channels", "units", "biases", "undivided", "direction"])
def test_a_broken_term_fails_with_both_numbers(engine, monkeypatch, part):
    plain = Attributor._project

    def broken(self, question):
        made = plain(self, question)
        match part:
            case "direction":
                return replace(made, direction=made.direction * 1.01)
            case "channels" | "units":
                tensor = getattr(made, part).clone()
                tensor[1, 3] += 0.05 * tensor.abs().max()
                return replace(made, **{part: tensor})
            case _:
                numbers = dict(getattr(made, part))
                numbers.popitem()
                return replace(made, **{part: numbers})

    wish = request(engine, target=11)
    true = engine.solve(wish).terms
    monkeypatch.setattr(Attributor, "_project", broken)
    fresh = Engine(engine.model, engine.checkpoint)
    with pytest.raises(NotExact) as failure:
        fresh.read(wish)
    assert repr(true.value) in failure.value.message
    wrong = fresh.attributor.attribute(*_where(fresh, wish))
    assert repr(wrong.total) in failure.value.message
    assert failure.value.code == "not_exact"


def test_a_stale_trace_fails(engine):
    """Logits of another position than the terms': the check is against the model, not against itself."""
    trace, position, _ = engine.run(request(engine))
    other = engine.model.logits_at(trace, position - 1)
    with pytest.raises(NotExact):
        engine.attributor.attribute(trace, position, Question(3), other).check()


def test_nan_never_passes(engine):
    terms = engine.solve(request(engine)).terms
    with pytest.raises(NotExact):
        replace(terms, value=float("nan")).check()


def _where(engine, wish):
    trace, position, logits = engine.run(wish)
    return trace, position, Question(wish.target), logits


# ---- sums over the terms ---------------------------------------------------------------------------------------------


def test_channels_sum_to_their_head_and_layers_to_the_groups(engine):
    terms, config = engine.solve(request(engine)).terms, engine.config
    np.testing.assert_allclose(terms.channels.sum(-1), terms.heads, rtol=0, atol=1e-12)
    rows, groups = sums.by_layer(terms, config), sums.groups(terms, config)
    total = {kind: sum(row[kind] for row in rows) for kind in rows[0]}
    assert total["attention"] == pytest.approx(groups["attention"] + groups["linear_attention"])
    assert total["intersection"] + total["difference"] == pytest.approx(groups["set_operators"])
    assert total["existential"] + total["proportion"] == pytest.approx(groups["quantifiers"])
    assert total["gelu"] == pytest.approx(groups["gelu"])


def test_shares_count_bounded_heads_and_named_units(engine):
    terms, config = engine.solve(request(engine)).terms, engine.config
    groups, shares = sums.groups(terms, config), sums.shares(terms, config)
    legible = groups["attention"] + groups["set_operators"] + groups["quantifiers"]
    net = terms.total - groups["floor"]
    if net > 0:
        assert shares["net"] == pytest.approx(legible / net)
        assert shares["why_undefined"] is None
    mass = np.abs(terms.heads).sum() + np.abs(terms.units).sum()
    named = np.abs(terms.heads[0]).sum() + np.abs(terms.heads[1, :2]).sum() + np.abs(terms.units[:, :24]).sum()
    assert config.feed_forward.n_named == 24
    assert shares["mass"] == pytest.approx(named / mass)


def test_a_net_that_is_not_positive_has_no_share(engine):
    terms = engine.solve(request(engine)).terms
    flipped = replace(terms, heads=-np.abs(terms.heads), units=-np.abs(terms.units))
    shares = sums.shares(flipped, engine.config)
    assert shares["net"] is None
    assert "not positive" in shares["why_undefined"]
    assert 0 < shares["mass"] < 1


def test_named_shares_take_channels_and_units(engine):
    terms, config = engine.solve(request(engine)).terms, engine.config
    everything = np.ones_like(terms.channels, dtype=bool), np.ones_like(terms.units, dtype=bool)
    nothing = np.zeros_like(everything[0]), np.zeros_like(everything[1])
    assert sums.shares(terms, config, everything)["named_mass"] == pytest.approx(1.0)
    assert sums.shares(terms, config, nothing)["named_mass"] == 0.0
    one = np.zeros_like(everything[0])
    one[0, 1, 2] = True
    mass = np.abs(terms.heads).sum() + np.abs(terms.units).sum()
    within = np.abs(terms.channels[0, 1, 2]) / np.abs(terms.channels[0, 1]).sum()
    share = sums.shares(terms, config, (one, nothing[1]))["named_mass"]
    assert share == pytest.approx(np.abs(terms.heads[0, 1]) * within / mass)


def test_strongest_are_the_largest_in_order(engine):
    terms = engine.solve(request(engine)).terms
    found = sums.strongest(terms, 15)
    sizes = [abs((terms.heads if sort == "head" else terms.units)[layer, index]) for sort, layer, index in found]
    everything = np.sort(np.abs(np.concatenate([terms.heads.ravel(), terms.units.ravel()])))[::-1]
    np.testing.assert_array_equal(sizes, everything[:15])
    assert len({*found}) == 15
    assert sums.strongest(terms, 0) == []
    assert len(sums.strongest(terms, 10_000)) == terms.heads.size + terms.units.size


def test_mean_row_is_the_vocabularys_mean(engine):
    mean = engine.model.unembedding_matrix.double().mean(0)
    torch.testing.assert_close(engine.attributor.mean_row(), mean, rtol=0, atol=1e-12)


def test_projections_are_shared_between_positions_and_prompts(engine):
    fresh = Engine(engine.model, engine.checkpoint)
    for length, position in ((12, 3), (12, 7), (9, 2)):
        fresh.read(request(fresh, length, position=position, target=5))
    assert fresh.attributor._projections.misses == 1
