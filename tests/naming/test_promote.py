"""Promote lists against the exact sum's own terms, their centring, and the memory they take at GPT-2's size."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model

from legible_core.model.transformer import Transformer
from legible_core.naming.promote import TOP, TOP_RARE, promote, promotion, write_columns


def test_promotion_is_the_units_own_effect_on_the_logits(model: Transformer) -> None:
    # Adding a·w to the residual at a frozen scale moves the logits by promotion·a/std, up to one number for all tokens.
    columns = model.layers[1].feed_forward.down.detach()  # type: ignore[union-attr]
    weights = promotion(model, columns)
    x = torch.randn(model.config.d_model, dtype=torch.float64)
    centred = x - x.mean()
    std = torch.sqrt(centred.pow(2).mean() + model.config.norm_eps)
    unembedding = model.unembedding_matrix.detach().double()
    gain = model.final_norm.gain.detach().double()
    for unit in (0, 7, 31):
        w = columns[:, unit].double()
        before = unembedding @ (gain * centred / std)
        after = unembedding @ (gain * (centred + 0.5 * (w - w.mean())) / std)
        moved = after - before
        expected = 0.5 * weights[unit].double() / std
        torch.testing.assert_close(moved - moved.mean(), expected, atol=1e-6, rtol=1e-4)


def test_a_column_that_raises_every_token_alike_promotes_none(model: Transformer) -> None:
    model = sample_model(sample_config(model.config.vocab_size), seed=3)
    with torch.no_grad():
        model.token_embedding[:, 0] = 5.0
    column = torch.zeros(model.config.d_model, 1)
    column[0] = 1.0
    raw = model.unembedding_matrix.detach() @ (column - column.mean())
    assert raw.min() > 4.0
    assert promotion(model, column).abs().max() < 0.05


def test_weights_are_centred_over_the_vocabulary(model: Transformer) -> None:
    for channels, units in write_columns(model):
        for columns in (channels, units):
            weights = promotion(model, columns)
            assert weights.mean(dim=1).abs().max() < 1e-5


def test_planted_tokens_come_first_and_rare_ones_apart(model: Transformer) -> None:
    # A column that points along tokens 300 and 301; 301 was hardly seen.
    model = sample_model(sample_config(model.config.vocab_size), seed=4)
    with torch.no_grad():
        model.token_embedding.mul_(0.1)
        model.token_embedding[300] += torch.linspace(-1, 1, model.config.d_model)
        model.token_embedding[301] += torch.linspace(-1, 1, model.config.d_model)
    often = np.ones(model.config.vocab_size, bool)
    often[301] = often[310:] = False
    found = promote(model, torch.linspace(-1, 1, model.config.d_model)[:, None], often)
    assert found.tokens[0, 0] == 300
    assert found.rare[0, 0] == 301
    assert often[found.tokens].all()
    assert not often[found.rare].any()
    assert (np.diff(found.weights[0]) <= 0).all()
    assert found.tokens.shape == (1, TOP)
    assert found.rare.shape == (1, TOP_RARE)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_change_nothing(model: Transformer, chunk: int) -> None:
    often = np.arange(model.config.vocab_size) % 3 > 0
    columns = model.layers[0].feed_forward.down.detach()  # type: ignore[union-attr]
    whole, parts = promote(model, columns, often), promote(model, columns, often, chunk=chunk)
    np.testing.assert_array_equal(whole.tokens, parts.tokens)
    np.testing.assert_allclose(whole.weights, parts.weights, atol=1e-5)


def test_a_vocabulary_smaller_than_the_list(model: Transformer) -> None:
    often = np.zeros(model.config.vocab_size, bool)
    often[:3] = True
    found = promote(model, model.layers[0].feed_forward.down.detach(), often)  # type: ignore[union-attr]
    assert found.tokens.shape[1] == 3


MEASURE = """
import json, resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model.transformer import Transformer
from legible_core.naming.promote import promote, write_columns

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

layers = int(sys.argv[1])
config = ModelConfig(layers, 768, 12, 1024, 50257, Attention("boolean", (12,) * layers), FeedForward(3072, 0.5, 0.125))
model = Transformer(config)
model.token_embedding.data.normal_(std=0.02)
often = np.arange(50257) % 4 > 0
promote(model, torch.randn(768, 2), often, chunk=2)
before = peak()
count = 0
for channels, units in write_columns(model):
    for columns in (channels[:, :16], units[:, :int(sys.argv[2])]):
        count += len(promote(model, columns, often).tokens)
print(json.dumps({"over": peak() - before, "count": count}))
"""


def test_a_gpt2_sized_model_needs_less_than_a_gibibyte_over_its_weights() -> None:
    """Every chunk is alike, so two full chunks of one layer take the memory that all 36,864 units take."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, "1", "800"], capture_output=True, text=True, check=True, timeout=120
    )
    measured = json.loads(run.stdout)
    assert measured["count"] == 816
    assert measured["over"] < 1 << 30
