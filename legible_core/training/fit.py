"""Whether a recipe's model can be trained on a device at all, told from its sizes before anything is allocated.

check_fits(recipe, torch.device("cpu"), "float32")      # TooLarge with the numbers, or nothing
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from legible_core.config import ModelConfig
from legible_core.errors import TooLarge
from legible_core.model import Transformer
from legible_core.training.distributed import world
from legible_core.training.recipe import Recipe

# Weights, gradient and one moment in float32: Muon's, the optimiser with the fewest.
PARAMETER_BYTES = 12


@dataclass(frozen=True)
class Need:
    """At least what training takes, in bytes: for the parameters, and for one micro-batch on its way back."""

    parameters: int
    held: int
    kept: int

    @property
    def total(self) -> int:
        return self.held + self.kept


def need(config: ModelConfig, tokens: int, itemsize: int = 4) -> Need:
    """A lower bound: parameters with gradient and moment; of each layer the values that the backward pass needs.

    tokens: of a micro-batch. itemsize: bytes of an activation. Of each layer and token those are query, key, value and
    gathered values (d_model each) and the hidden vector (d_ff).
    """
    layers = config.n_layers
    one, two = (_parameters(config, count) for count in (1, 2))
    parameters = one + (layers - 1) * (two - one)
    kept = layers * tokens * (4 * config.d_model + config.feed_forward.d_ff) * itemsize
    return Need(parameters, parameters * PARAMETER_BYTES, kept)


def check_fits(recipe: Recipe, device: torch.device, precision: str = "float32") -> None:
    """Raise `TooLarge` naming the numbers when `device` cannot hold the lower bound; a device unknown here passes."""
    there = _memory(device)
    if there is None:
        return
    config = recipe.model.config(recipe.data.vocab_size)
    tokens = max(1, (recipe.schedule.micro_batch_tokens or recipe.schedule.batch_tokens) // world())
    found = need(config, tokens, 4 if precision == "float32" else 2)
    if found.total > there:
        raise TooLarge(
            f"The recipe's model has {found.parameters:,} parameters in {config.n_layers:,} layers and needs at least "
            f"{_gigabytes(found.total)} to train ({_gigabytes(found.held)} for weights, gradient and moment, "
            f"{_gigabytes(found.kept)} for a micro-batch of {tokens:,} tokens); {device.type} has "
            f"{_gigabytes(there)}.",
            code="out_of_memory",
            hint="Give model.n_layers, model.d_model or schedule.micro_batch_tokens a smaller number.",
        )


def _parameters(config: ModelConfig, layers: int) -> int:
    """Parameters of the same model with this many layers, none of them in memory."""
    special = config.attention.n_special[:1] * layers
    with torch.device("meta"):
        model = Transformer(replace(config, n_layers=layers, attention=replace(config.attention, n_special=special)))
    return sum(parameter.numel() for parameter in model.parameters())


def _memory(device: torch.device) -> int | None:
    """Bytes of the device; of the machine what this process may use. None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return there
    return min(there, limit)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
