"""One training step: forward, loss and penalties, backward over micro-batches, clip, update.

It needs no run and no folder, so the loop, a benchmark and a test all drive the same step.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor

from legible_core.model import Observed, Transformer
from legible_core.training.loss import next_token_loss
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import pressure_loss
from legible_core.training.recipe import Recipe


def train_step(
    model: Transformer,
    optimiser: Optimiser,
    recipe: Recipe,
    batch: Int[Tensor, "b t"],
    tokens: int,
    factor: float,
) -> tuple[float, float, float]:
    """Accumulate over micro-batches, clip, update; gives the loss, the penalty and the norm before the clip.

    batch: contexts with the token that follows each, on the model's device. tokens: how many were trained on before
    this step, which decides the pressures' stage. factor: the schedule's learning-rate factor. Nothing is updated when
    the loss or the norm is not finite.
    """
    schedule = recipe.schedule
    micro = (schedule.micro_batch_tokens or schedule.batch_tokens) // recipe.model.context
    parts = batch.split(micro)
    for parameter in model.parameters():
        parameter.grad = None
    loss = pressure = 0.0
    for part in parts:
        observed = Observed()
        x = model.final_norm(model.residual(part[:, :-1], observed=observed))
        task = next_token_loss(x.flatten(0, 1), model.unembedding_matrix, part[:, 1:].flatten())
        penalty = pressure_loss(observed, recipe.attention_pressure, recipe.feed_forward_pressure, tokens)
        total = task if penalty is None else task + penalty
        (total / len(parts)).backward()
        loss += task.item() / len(parts)
        pressure += 0.0 if penalty is None else penalty.item() / len(parts)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimiser.clip).item()
    if math.isfinite(loss) and math.isfinite(norm):
        optimiser.set_factor(factor)
        optimiser.step()
    return loss, pressure, norm
