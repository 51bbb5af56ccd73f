"""A tiny model whose states tell the current token, and texts of few tokens, for experiments in milliseconds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from tiny_models import random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.editing.install import Bench
from legible_core.editing.measure import HeldOut
from legible_core.editing.native import measure_native
from legible_core.model.transformer import Transformer

WINDOWS, LENGTH = 9, 32


def ids(windows: int, seed: int) -> np.ndarray:
    return random_ids(windows * LENGTH + 1, seed).numpy()


def token_model(config: ModelConfig | None = None) -> Transformer:
    """Large embeddings, small read rows, heads that look at their own token: a state is about its token."""
    model = tiny_model(config or tiny_config()).requires_grad_(False)
    model.token_embedding.mul_(10.0)
    for layer in model.layers:
        for name, parameter in layer.feed_forward.named_parameters():
            if name.startswith("pair"):
                parameter.mul_(0.3)
        layer.attention.key.copy_(layer.attention.query)
    return model


@lru_cache
def bench(config: ModelConfig | None = None) -> Bench:
    model = token_model(config)
    calibration, text = (HeldOut.of(ids(WINDOWS, seed), LENGTH, WINDOWS) for seed in (1, 2))
    return Bench(model, calibration, text, measure_native(model, ids(WINDOWS, 1)[:-1], min_count=2))


def unlikely(lab: Bench) -> int:
    """The token that ranks worst over the text."""
    with torch.no_grad():
        return int(lab.model(lab.text.ids).argsort(-1, descending=True).argsort(-1).float().mean((0, 1)).argmax())
