"""Tiny random models, and a slow oracle that decomposes by stacking every component's write."""

from __future__ import annotations

import torch
from torch import Tensor

from legible_core.attribution import Question
from legible_core.config import Attention, FeedForward, ModelConfig, Value
from legible_core.model import Transformer
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, Dtype, ReadingRequest
from legible_core.trace import Trace
from legible_core.units import Activation

HASH = "c0ffee" * 10 + "beef"


def sample_config(
    value: Value = "boolean",
    n_special: tuple[int, ...] = (4, 2, 0),
    *,
    biased: bool = False,
    tied: bool = True,
    gelu: float = 0.5,
    quantifiers: float = 0.25,
    activation: Activation = "gelu",
) -> ModelConfig:
    return ModelConfig(
        n_layers=len(n_special),
        d_model=32,
        n_heads=4,
        context=24,
        vocab_size=61,
        attention=Attention(value, n_special),
        feed_forward=FeedForward(48, gelu, quantifiers, activation),
        norm_bias=biased,
        linear_bias=biased,
        tied=tied,
        unembedding_bias=biased,
    )


def make_model(config: ModelConfig, seed: int = 0, spread: float = 0.4) -> Transformer:
    """Every parameter drawn at random, gains, biases and decays included: a term that is left out shows."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
            if name.endswith("gain"):
                parameter.add_(1.0)
    return model.requires_grad_(False)


def make_engine(config: ModelConfig, seed: int = 0, dtype: Dtype = "float32") -> Engine:
    model = make_model(config, seed)
    if dtype == "bfloat16":
        model.to_compute(torch.bfloat16)
    return Engine(model, CheckpointRef(hash=HASH, slug="tiny"), dtype=dtype)


def prompt_ids(config: ModelConfig, length: int, seed: int = 1) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(config.vocab_size, (length,), generator=generator).tolist())


def request(engine: Engine, length: int = 12, seed: int = 1, **fields: object) -> ReadingRequest:
    fields = {"dtype": engine.dtype, **fields}
    return ReadingRequest(HASH, prompt_ids(engine.config, length, seed), **fields)  # type: ignore[arg-type]


def oracle(model: Transformer, trace: Trace, position: int, question: Question) -> dict[str, Tensor]:
    """Every term in float64 by the definition: form each write, subtract its mean, divide by std(x), times gain, dot.

    heads (L, h), channels (L, h, dh), units (L, f), floor {name: value}; nothing shared with the code under test.
    """
    config = model.config
    x = trace.residual[position].double()
    std = ((x - x.mean()).square().mean() + config.norm_eps).sqrt()
    matrix = model.unembedding_matrix.double()
    bias = torch.zeros(config.vocab_size) if model.unembedding_bias is None else model.unembedding_bias
    w, b = matrix[question.target], bias.double()[question.target]
    if question.relative_to == "mean":
        w, b = w - matrix.mean(0), b - bias.double().mean()
    if question.relative_to == "contrast":
        w, b = w - matrix[question.contrast], b - bias.double()[question.contrast]
    gain = model.final_norm.gain.double()

    def read(writes: Tensor) -> Tensor:
        return ((writes - writes.mean(-1, keepdim=True)) / std * gain) @ w

    floor = {
        "embed.token": read(trace.embed_token[position].double()),
        "embed.position": read(trace.embed_position[position].double()),
    }
    heads, channels, units = [], [], []
    for index, layer in enumerate(model.layers):
        z = trace.layers[index].z[position].double()
        columns = layer.attention.output.double().view(config.d_model, config.n_heads, config.d_head)
        writes = torch.einsum("hc,dhc->hcd", z, columns)
        channels.append(read(writes))
        heads.append(read(writes.sum(1)))
        hidden = trace.layers[index].hidden[position].double()
        units.append(read(hidden[:, None] * layer.feed_forward.down.double().T))
        if config.linear_bias:
            floor[f"L{index}.attention.bias"] = read(layer.attention.output_bias.double())
            floor[f"L{index}.feed_forward.bias"] = read(layer.feed_forward.down_bias.double())
    if config.norm_bias:
        floor["norm.bias"] = model.final_norm.bias.double() @ w
    if model.unembedding_bias is not None:
        floor["unembedding.bias"] = b
    return {"heads": torch.stack(heads), "channels": torch.stack(channels), "units": torch.stack(units), **floor}
