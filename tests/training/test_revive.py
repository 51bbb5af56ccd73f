"""Dead operands come back, and the model computes what it did before."""

from __future__ import annotations

import pytest
import torch
from tiny_models import random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.model import Observed, Transformer
from legible_core.training import revive as module
from legible_core.training.optimiser import Optimiser
from legible_core.training.recipe import OptimiserRecipe
from legible_core.training.revive import revive


def kill(model: Transformer) -> None:
    """A at 0, B at 0, B at 1 and m at 0, on both surfaces of layer 1, through rows that read the constant direction."""
    layer = model.layers[1]
    with torch.no_grad():
        for norm in (layer.attention_norm, layer.feed_forward_norm):
            assert norm.bias is not None
            norm.bias.fill_(1.0)
        push = torch.full((24,), 3.0)
        layer.feed_forward.pair_a[0] = -push
        layer.feed_forward.pair_b[1] = -push
        layer.feed_forward.pair_b[2] = push
        layer.feed_forward.quantifier[0] = -push
        layer.attention.bounded_values[0] = -push
        layer.attention.bounded_values[3 + 1] = -push


def variances(model: Transformer, ids: torch.Tensor) -> list[torch.Tensor]:
    seen = Observed()
    with torch.no_grad():
        model.residual(ids, observed=seen)
    return [v.double().var((0, 1)) for v in (*seen.attention_operands[1], *seen.feed_forward_operands[1])]


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_the_dead_live_and_the_function_stays(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    config = ModelConfig(**{**vars(tiny_config()), "norm_bias": True, "linear_bias": False})
    model = tiny_model(config)
    kill(model)
    ids = random_ids(32, batch=8)
    optimiser = Optimiser(model, OptimiserRecipe(kind=kind))  # type: ignore[arg-type]
    model(ids).square().mean().backward()
    optimiser.step()
    kill(model)
    before = variances(model, ids)
    with torch.no_grad():
        logits = model(ids)
    # With no small start for silent columns the function is kept exactly.
    monkeypatch.setattr(module, "SMALL", 0.0)
    counts = revive(model, optimiser, [ids[:4], ids[4:]], torch.Generator().manual_seed(0))
    after = variances(model, ids)
    dead = [int((v < 0.003).sum()) for v in before]
    assert dead[0] >= 1
    assert dead[1] >= 1
    assert counts["feed_forward"] >= 4
    assert sum(int((v < 0.003).sum()) for v in after) < sum(dead)
    assert before[2][0] < 0.003 < after[2][0]
    assert before[3][1] < 0.003 < after[3][1]
    assert before[3][2] < 0.003 < after[3][2]
    assert before[4][0] < 0.003 < after[4][0]
    with torch.no_grad():
        assert (model(ids) - logits).abs().mean() < 0.01 * logits.std()


def test_momentum_of_what_was_redrawn_is_forgotten() -> None:
    model = tiny_model(ModelConfig(**{**vars(tiny_config()), "norm_bias": True}))
    kill(model)
    optimiser = Optimiser(model, OptimiserRecipe())
    ids = random_ids(32, batch=8)
    model(ids).square().mean().backward()
    assert optimiser.muon is not None
    optimiser.muon.step()
    kill(model)
    buffer = optimiser.muon.buffers[optimiser.muon_names.index("layers.1.feed_forward.pair_a")]
    assert buffer[0].any() or buffer[5].any()
    revive(model, optimiser, [ids], torch.Generator().manual_seed(0))
    assert not buffer[0].any()
    assert buffer[5].any()


def test_rows_from_the_data_are_detectors_of_something_that_occurs() -> None:
    # States around 20 centres on a common direction, which stands in for a bias: what a norm without one leaves.
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 32, generator=generator) * 2
    states = centres[torch.randint(20, (4000,), generator=generator)] + torch.randn(4000, 32, generator=generator) * 0.3
    states = states + 3.0
    rows = module.from_data(states, 50, torch.Generator().manual_seed(1))
    values = torch.sigmoid(states @ rows.T)
    on, crisp = (values > 0.9).float().mean(0), (torch.minimum(values, 1 - values) < 0.1).float().mean(0)
    assert ((on >= 0.005) & (on <= 0.2)).all()
    assert crisp.mean() > 0.8
    assert (values.var(0) >= 0.003).float().mean() > 0.9
    random = torch.sigmoid(states @ (torch.randn(32, 50, generator=generator) * 0.6 / 32**0.5))
    assert (random > 0.9).float().mean() != pytest.approx(on.mean().item(), abs=0.01)
    assert torch.equal(rows, module.from_data(states, 50, torch.Generator().manual_seed(1)))


def test_rows_from_the_data_keep_the_function_of_a_b_that_is_constant_between_the_rails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model(ModelConfig(**{**vars(tiny_config()), "norm_bias": True, "linear_bias": False}))
    with torch.no_grad():
        for layer in model.layers:
            layer.feed_forward.pair_b[:2] *= 1e-3  # constant at a half
    ids = random_ids(32, batch=8)
    with torch.no_grad():
        logits = model(ids)
    kept = model.layers[1].feed_forward.pair_b[2:].clone()
    monkeypatch.setattr(module, "SMALL", 0.0)
    monkeypatch.setattr(module, "QUIET", 0.0)
    optimiser = Optimiser(model, OptimiserRecipe())
    assert revive(model, optimiser, [ids], torch.Generator().manual_seed(0))["feed_forward"] == 0
    counts = revive(model, optimiser, [ids], torch.Generator().manual_seed(0), "data")
    assert counts["feed_forward"] >= 4
    assert variances(model, ids)[3][:2].min() > 0.003
    assert torch.equal(model.layers[1].feed_forward.pair_b[2:], kept)
    with torch.no_grad():
        assert (model(ids) - logits).abs().mean() < 0.01 * logits.std()


@pytest.mark.parametrize("rho", [1.0, 0.5])
def test_dead_sigmoid_units_live_again(monkeypatch: pytest.MonkeyPatch, rho: float) -> None:
    config = tiny_config("membership", rho=rho, activation="sigmoid")
    model = tiny_model(ModelConfig(**{**vars(config), "norm_bias": True}))
    layer, start = model.layers[1], config.feed_forward.plain.start
    with torch.no_grad():
        assert layer.feed_forward_norm.bias is not None
        layer.feed_forward_norm.bias.fill_(1.0)
        layer.feed_forward.sigmoid[3] = -3.0
    ids = random_ids(32, batch=8)
    before = model.layers[1].feed_forward.down.detach().clone()
    optimiser = Optimiser(model, OptimiserRecipe())
    counts = revive(model, optimiser, [ids], torch.Generator().manual_seed(0))
    assert counts["feed_forward"] >= 1
    seen = Observed()
    with torch.no_grad():
        model.residual(ids, observed=seen)
    assert seen.feed_forward_operands[1][-1].double().var((0, 1))[3] > 1e-4
    changed = (model.layers[1].feed_forward.down != before).any(0).nonzero()[:, 0].tolist()
    assert start + 3 in changed
