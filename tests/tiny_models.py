"""Tiny random models of every design, for tests: same code paths as the real ones, milliseconds to run."""

from __future__ import annotations

import torch

from legible_core.config import Attention, FeedForward, ModelConfig, Value
from legible_core.model import Transformer
from legible_core.units import Activation

VOCAB = 61


def tiny_config(
    value: Value = "boolean",
    special: tuple[int, ...] = (4, 2, 4),
    rho: float = 0.5,
    quantifiers: float = 0.25,
    biased: bool = False,
    context: int = 32,
    tied: bool = True,
    activation: Activation = "gelu",
) -> ModelConfig:
    """3 layers, d = 24, 4 heads of 6, d_ff = 48."""
    return ModelConfig(
        n_layers=3,
        d_model=24,
        n_heads=4,
        context=context,
        vocab_size=VOCAB,
        attention=Attention(value, (0, 0, 0) if value == "linear" else special),
        feed_forward=FeedForward(48, rho, quantifiers, activation),
        norm_bias=biased,
        linear_bias=biased,
        unembedding_bias=biased,
        tied=tied,
    )


def tiny_model(config: ModelConfig | None = None, seed: int = 0) -> Transformer:
    """Every parameter random, gains and biases included, large enough that each operation is far from linear."""
    model = Transformer(config or tiny_config())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("gain"):
                parameter.copy_(1.0 + 0.3 * noise)
            elif name.endswith("theta"):
                parameter.copy_(1.5 * noise)
            else:
                parameter.copy_(noise * (0.4 if parameter.ndim > 1 else 0.2))
    return model.eval()


def designs() -> list[ModelConfig]:
    """One config for every branch of the architecture, biased and unbiased, tied and untied."""
    return [
        tiny_config(),
        tiny_config(biased=True, tied=False),
        tiny_config("membership", rho=0.25, quantifiers=0.5),
        tiny_config("membership", (3, 3, 3), rho=1.0, biased=True),
        tiny_config("boolean", rho=0.0, quantifiers=0.0),
        tiny_config("boolean", rho=0.0, quantifiers=1.0, biased=True),
        tiny_config("membership", rho=1.0, quantifiers=0.0, activation="sigmoid"),
        tiny_config("boolean", biased=True, activation="sigmoid"),
        tiny_config("membership", rho=1.0, activation="softplus", biased=True),
        tiny_config("boolean", rho=0.75, activation="relu"),
        tiny_config("linear", rho=0.5),
        tiny_config("linear", rho=1.0, tied=False),
    ]


def random_ids(length: int, seed: int = 0, batch: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (length,) if batch is None else (batch, length)
    return torch.randint(0, VOCAB, shape, generator=generator)
