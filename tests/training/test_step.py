"""One training step, and that the benchmark's plain PyTorch reference does the same work as the library's GELU twin."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import designs, random_ids, tiny_config

from benchmarks.plain_decoder import PlainDecoder, plain_step
from benchmarks.training import ADAMW
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe
from legible_core.training.step import train_step


def recipe(micro: int | None = None, clip: float = 1.0, **model: object) -> Recipe:
    return Recipe(
        name="test",
        model=ModelRecipe(n_layers=2, d_model=24, n_heads=4, context=16, **model),  # type: ignore[arg-type]
        data=DataRecipe(train="none", vocab_size=61),
        schedule=ScheduleRecipe(tokens=1 << 20, batch_tokens=64, micro_batch_tokens=micro),
        optimiser=ADAMW,
        attention_pressure=Pressure("both", 0.1, 0.2) if model else Pressure(),
        feed_forward_pressure=Pressure("both", 0.1, 0.2) if model else Pressure(),
    )


def fresh(config: ModelConfig) -> Transformer:
    model = Transformer(config)
    model.initialise(torch.Generator().manual_seed(0))
    return model


def test_the_plain_decoder_takes_the_twins_steps() -> None:
    settings = recipe()
    twin = fresh(settings.model.config(61))
    plain = PlainDecoder(61, n_layers=2, d_model=24, n_heads=4, context=16)
    with torch.no_grad():
        plain.tokens.weight.copy_(twin.token_embedding)
        plain.positions.weight.copy_(twin.position_embedding)
        for block, layer in zip(plain.blocks, twin.layers, strict=True):
            attention, feed_forward = layer.attention, layer.feed_forward
            rows = torch.cat([attention.query, attention.key, attention.linear_values])
            block.read.weight.copy_(rows)  # type: ignore[union-attr,operator]
            block.write.weight.copy_(attention.output)  # type: ignore[union-attr,operator]
            block.up.weight.copy_(feed_forward.gelu)  # type: ignore[union-attr,operator]
            block.down.weight.copy_(feed_forward.down)  # type: ignore[union-attr,operator]
    optimiser, step = Optimiser(twin, settings.optimiser), plain_step(plain, settings.optimiser)
    first = last = 0.0
    for number in range(5):
        batch = random_ids(17, batch=4, seed=number % 2)
        loss, pressure, _ = train_step(twin, optimiser, settings, batch, 0, 1.0)
        assert pressure == 0.0
        assert step(batch) == pytest.approx(loss, abs=2e-5)
        first, last = first or loss, loss
    # The steps were steps: the loss of what was seen before is lower.
    assert last < first - 0.02
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in twin.parameters())


def test_accumulating_over_micro_batches_is_one_batch() -> None:
    batch = random_ids(17, batch=4)
    found = []
    for micro in (None, 32, 16):
        settings = recipe(micro, value="boolean", gelu_fraction=0.5, quantifier_fraction=0.25)
        model = fresh(settings.model.config(61))
        found.append(train_step(model, Optimiser(model, settings.optimiser), settings, batch, 0, 1.0))
    for parts in found[1:]:
        assert parts == pytest.approx(found[0], rel=1e-4)


def test_nothing_moves_when_the_loss_is_no_number() -> None:
    settings = recipe(value="boolean", gelu_fraction=0.5, quantifier_fraction=0.25)
    model = fresh(settings.model.config(61))
    with torch.no_grad():
        model.final_norm.gain[0] = math.inf
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss, _, norm = train_step(model, Optimiser(model, settings.optimiser), settings, random_ids(17, batch=4), 0, 1.0)
    assert not (math.isfinite(loss) and math.isfinite(norm))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_every_design_learns_the_same_two_batches() -> None:
    """A few steps of the whole: gradients of every design point downhill."""
    settings = recipe()
    for config in [*designs()[:3], tiny_config("boolean", (0, 4, 2), rho=0.0, quantifiers=0.0)]:
        model = fresh(config)
        optimiser = Optimiser(model, settings.optimiser)
        losses = [
            train_step(model, optimiser, settings, random_ids(17, batch=4, seed=number % 2), 0, 1.0)[0]
            for number in range(8)
        ]
        assert losses[-1] < losses[0] - 0.02


def test_parameters_are_neutral_but_for_the_decays() -> None:
    config = ModelConfig(2, 24, 4, 16, 61, Attention("boolean", (4, 2)), FeedForward(96, 0.5, 0.125))
    legible = sum(p.numel() for p in Transformer(config).parameters())
    twin = sum(p.numel() for p in PlainDecoder(61, 2, 24, 4, 16).parameters())
    assert legible - 2 * config.feed_forward.n_quantifiers == twin
