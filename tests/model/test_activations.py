"""The activation axis: layout, operands, tensors, files of before, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import random_ids, tiny_config, tiny_model

from legible_core.config import FeedForward, ModelConfig
from legible_core.errors import LegibleError
from legible_core.model import Observed, Transformer
from legible_core.model.activations import FUNCTIONS
from legible_core.registry import expected_tensors
from legible_core.training.pressures import Pressure, pressure_loss
from legible_core.units import ACTIVATIONS, BOUNDED, GLYPHS, KINDS, Unit


def test_every_kind_has_its_own_glyph_and_every_activation_a_function() -> None:
    assert len({GLYPHS[kind] for kind in KINDS}) == len(KINDS)
    assert set(FUNCTIONS) == set(ACTIVATIONS)
    assert {"gelu", "softplus", "relu"}.isdisjoint(BOUNDED)


def test_the_functions_are_those_of_the_paper() -> None:
    z = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    for name in ("sigmoid", "softplus"):
        assert (FUNCTIONS[name](z).diff() > 0).all()
    relu, gelu = FUNCTIONS["relu"](z), FUNCTIONS["gelu"](z)
    assert (relu[z <= 0] == 0).all()
    # GELU's minimum, at -0.7517: below it the order of pre-activations is reversed.
    assert z[gelu.argmin()].item() == pytest.approx(-0.7517, abs=0.01)
    assert 0 <= FUNCTIONS["sigmoid"](z).min() <= FUNCTIONS["sigmoid"](z).max() <= 1
    assert FUNCTIONS["softplus"](z).max() > 5


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rho", [1.0, 0.5])
def test_an_activation_costs_no_parameter_and_has_its_own_kind(activation: str, rho: float) -> None:
    config = tiny_config(rho=rho, activation=activation)  # type: ignore[arg-type]
    layout = config.feed_forward
    model = Transformer(config)
    baseline = Transformer(tiny_config(rho=rho))
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in baseline.parameters())
    assert {layout.kind(unit) for unit in range(layout.plain.start, layout.d_ff)} == {activation}
    names = {name for name, _ in expected_tensors(config)}
    assert names == {name for name, _ in model.named_parameters()}
    assert f"layers.0.feed_forward.{activation}" in names


@pytest.mark.parametrize("rho", [1.0, 0.5, 0.25])
def test_sigmoid_units_are_operands_after_the_others(rho: float) -> None:
    config = tiny_config(rho=rho, activation="sigmoid")
    layout = config.feed_forward
    model, ids, seen = tiny_model(config), random_ids(9, batch=2), Observed()
    with torch.no_grad():
        model(ids, observed=seen)
    for layer in range(config.n_layers):
        operands = seen.feed_forward_operands[layer]
        assert sum(part.shape[-1] for part in operands) == layout.n_operands
        assert torch.equal(operands[-1], seen.feed_forward_outputs[layer][..., layout.n_named :])
        assert ((operands[-1] >= 0) & (operands[-1] <= 1)).all()
        listed = list(config.operands(layer))
        assert listed[-1] == Unit(layer, layout.d_ff - 1)
        assert listed[-layout.n_plain] == Unit(layer, layout.n_named)
        bounded_heads = config.attention.n_special[layer] * config.d_head
        assert len(listed) == bounded_heads + layout.n_operands
    trace = model.trace(ids[0])
    found = model.operands(1, trace, 4)
    assert torch.allclose(found["sigmoid"], trace.layers[1].hidden[4, layout.plain].float(), atol=1e-6)


@pytest.mark.parametrize("activation", ["gelu", "softplus", "relu"])
def test_units_without_rails_are_no_operands_and_not_pressed(activation: str) -> None:
    config = tiny_config("linear", rho=1.0, activation=activation)  # type: ignore[arg-type]
    assert list(config.operands(0)) == []
    seen = Observed()
    tiny_model(config)(random_ids(9, batch=2), observed=seen)
    assert pressure_loss(seen, Pressure(), Pressure("crispness", crispness=0.5), 0) is None


def test_sigmoid_units_are_pressed_like_operands() -> None:
    seen = Observed()
    tiny_model(tiny_config("linear", rho=1.0, activation="sigmoid"))(random_ids(9, batch=2), observed=seen)
    loss = pressure_loss(seen, Pressure(), Pressure("crispness", crispness=0.5), 0)
    v = torch.stack([part[0] for part in seen.feed_forward_operands]).double()
    assert loss is not None
    assert loss.item() == pytest.approx(0.5 * 3 * (v * (1 - v)).mean().item(), rel=1e-5)


def test_gelu_configs_are_written_as_before_there_were_others() -> None:
    shipped = Path(__file__).parents[2] / "models" / "novel-legible" / "config.json"
    data = json.loads(shipped.read_text(encoding="utf-8"))
    assert "activation" not in data["feed_forward"]
    assert ModelConfig.from_json(data).to_json() == data
    other = tiny_config(activation="relu")
    assert other.to_json()["feed_forward"]["activation"] == "relu"
    assert ModelConfig.from_json(json.loads(json.dumps(other.to_json()))) == other


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (FeedForward(48, 0.5, 0.0, "tanh"), "activation is 'tanh'; it must be one of gelu, sigmoid, softplus, relu"),  # type: ignore[arg-type]
        (FeedForward(48, 0.0, 0.0, "relu"), "activation is relu, but no unit is plain"),
    ],
)
def test_impossible_activations_are_refused(layout: FeedForward, reason: str) -> None:
    with pytest.raises(LegibleError, match=reason):
        replace(tiny_config(), feed_forward=layout)
