"""Readings of checkpoints whose plain units are sigmoid, softplus or ReLU: the sum, operands, groups, shares, edits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reading_samples import make_engine, oracle, request, sample_config

from legible_core.details import component_detail
from legible_core.interventions import Edit
from legible_core.reading import Reading
from legible_core.units import GLYPHS, Unit

ACTIVATIONS = ("sigmoid", "softplus", "relu")


def engine_of(activation, gelu=0.5, value="membership"):
    return make_engine(sample_config(value, (4, 2), biased=True, gelu=gelu, activation=activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gelu", [1.0, 0.5])
def test_the_sum_closes_and_each_term_is_the_oracles(activation, gelu):
    engine = engine_of(activation, gelu)
    asked = request(engine)
    reading, solved = engine.read(asked), engine.solve(asked)
    assert abs(reading.residual) <= reading.tolerance
    right = oracle(engine.model, solved.trace, solved.position, solved.question)
    assert np.allclose(solved.terms.units, right["units"].numpy(), atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_plain_units_stand_under_their_own_kind(activation):
    engine = engine_of(activation)
    reading = engine.read(request(engine), top=10_000)
    start = engine.config.feed_forward.n_named
    plain = [row for row in reading.top if row.kind == activation]
    assert len(plain) == 2 * engine.config.feed_forward.n_plain
    for row in plain:
        assert row.glyph == GLYPHS[activation]
        if activation == "sigmoid":
            # A membership is its own operand: the value that it contributes with.
            [operand] = row.operands
            assert operand.id == row.id
            assert operand.value == pytest.approx(row.activation, abs=1e-6)
        else:
            assert row.operands == ()
    groups = reading.groups.model_dump()
    assert groups[activation] == pytest.approx(float(reading.units[:, start:].sum()), abs=1e-4)
    assert groups["gelu"] == 0.0
    assert set(groups).isdisjoint(set(ACTIVATIONS) - {activation})
    assert sum(groups.values()) == pytest.approx(reading.sum, abs=1e-6)
    layers = json.loads(reading.summary_json())["layers"]
    assert [row[activation] for row in layers] == pytest.approx(reading.units[:, start:].sum(1).tolist(), abs=1e-4)
    assert Reading.unpack(reading.summary_json(), reading.pack()).groups == reading.groups


def test_gelu_checkpoints_write_what_they_wrote_before():
    engine = make_engine(sample_config())
    written = json.loads(engine.read(request(engine)).summary_json())
    assert set(written["groups"]) == {
        *("attention", "linear_attention", "set_operators", "quantifiers", "gelu", "floor"),
    }
    assert set(written["layers"][0]).isdisjoint(ACTIVATIONS)


def test_sigmoid_units_count_as_legible_and_unbounded_ones_do_not():
    whole = make_engine(sample_config("membership", (4, 4), gelu=1.0, activation="sigmoid"))
    assert whole.read(request(whole)).shares.mass == pytest.approx(1.0)
    for activation in ("softplus", "relu"):
        engine = make_engine(sample_config("membership", (4, 4), gelu=1.0, activation=activation))
        reading = engine.read(request(engine))
        heads, units = np.abs(reading.heads).sum(), np.abs(reading.units).sum()
        assert reading.shares.mass == pytest.approx(float(heads / (heads + units)), abs=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_plain_unit_can_be_edited_and_looked_at(activation):
    engine = engine_of(activation)
    unit = Unit(1, engine.config.feed_forward.n_named + 3)
    detail = component_detail(engine, request(engine), unit)
    assert detail["kind"] == activation
    if activation == "sigmoid":
        assert detail["operands"][0]["id"] == str(unit)
        assert detail["operands"][0]["values"] == pytest.approx(detail["activations"])
    edited = engine.solve(request(engine, target=5, edits=(Edit(unit, "set", 2.0),)))
    assert edited.trace.layers[1].hidden[edited.position, unit.unit] == 2.0
    edited.terms.check()
    assert edited.terms.value != pytest.approx(engine.read(request(engine, target=5)).value, abs=1e-4)
