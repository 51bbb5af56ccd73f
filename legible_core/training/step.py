"""One training step: forward, loss and penalties, backward over micro-batches, clip, update.

It needs no run and no folder, so the loop, a benchmark and a test all drive the same step.
"""

from __future__ import annotations

import contextlib
import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from legible_core.model import Observed, Transformer
from legible_core.training.angle import angle_loss
from legible_core.training.distributed import mean_of, world
from legible_core.training.loss import next_token_loss
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import Pressing, pressure_loss
from legible_core.training.recipe import Recipe

Precision: TypeAlias = Literal["float32", "bfloat16"]
Scalar: TypeAlias = Float[Tensor, ""]


def train_step(
    model: Transformer,
    optimiser: Optimiser,
    recipe: Recipe,
    batch: Int[Tensor, "b t"],
    tokens: int,
    factor: float,
    objective: nn.Module | None = None,
) -> tuple[float, float, float]:
    """Accumulate over micro-batches, clip, update; gives the loss, the penalty and the norm before the clip.

    batch: contexts with the token that follows each, on the model's device; of several processes, this one's share.
    tokens: how many were trained on before this step, which decides the pressures' stage. factor: the schedule's
    learning-rate factor. objective: an `Objective` of this model, made for many steps; float32 and by itself without
    one. Nothing is updated when the loss or the norm is not finite.
    """
    objective = objective or Objective(model, recipe)
    micro = (recipe.schedule.micro_batch_tokens or recipe.schedule.batch_tokens) // recipe.model.context
    parts = batch.split(micro // world())
    for parameter in model.parameters():
        parameter.grad = None
    sums = torch.zeros(2, dtype=torch.float64, device=batch.device)
    for number, part in enumerate(parts, 1):
        with _gradients_of_all(objective, number == len(parts)):
            total, *scores = objective(part, tokens)
            (total / len(parts)).backward()
        sums += torch.stack(scores).double() / len(parts)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimiser.clip)
    # The host waits for the device here and nowhere before.
    loss, pressure, size = torch.cat([mean_of(sums), norm.double()[None]]).tolist()
    if math.isfinite(loss) and math.isfinite(size):
        optimiser.set_factor(factor)
        optimiser.step()
    return loss, pressure, size


class Objective(nn.Module):
    """Next-token loss and penalties of a micro-batch; a module, as DistributedDataParallel wants it.

    With `bfloat16` the layers run under autocast: their matrices and what they multiply are bfloat16; the weights, the
    residual stream, norms, logits and the loss stay float32. compiled: run the layers through `torch.compile`.
    """

    def __init__(
        self, model: Transformer, recipe: Recipe, precision: Precision = "float32", compiled: bool = False
    ) -> None:
        super().__init__()
        self.model, self.recipe, self.precision, self.compiled = model, recipe, precision, compiled
        self.residual = torch.compile(model.residual) if compiled else model.residual

    def forward(self, rows: Int[Tensor, "b t"], tokens: int) -> tuple[Scalar, Scalar, Scalar]:
        """What to differentiate, and its parts without gradient: the next-token loss in nats, and the penalties."""
        model, recipe = self.model, self.recipe
        pressures = (recipe.attention_pressure, recipe.feed_forward_pressure)
        # A compiled forward presses afterwards: strengths that change with the tokens would compile it anew.
        observed = Observed() if self.compiled else Pressing(*pressures, tokens)
        with self._autocast(rows.device.type):
            residual = self.residual(rows[:, :-1], observed=observed)
        x = model.final_norm(residual)
        task = next_token_loss(x.flatten(0, 1), model.unembedding_matrix, rows[:, 1:].flatten())
        penalty = observed.penalty if isinstance(observed, Pressing) else pressure_loss(observed, *pressures, tokens)
        if (angle := angle_loss(model, observed, recipe.angle)) is not None:
            penalty = angle if penalty is None else penalty + angle
        if penalty is None:
            return task, task.detach(), torch.zeros_like(task)
        return task + penalty, task.detach(), penalty.detach()

    def _autocast(self, device: str) -> contextlib.AbstractContextManager[object]:
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device, torch.bfloat16)


def over_processes(objective: Objective) -> nn.Module:
    """The objective, with its gradients averaged over the processes of the run where there are several."""
    if world() == 1:
        return objective
    device = objective.model.token_embedding.device
    return DistributedDataParallel(objective, device_ids=[device.index] if device.type == "cuda" else None)


def _gradients_of_all(objective: nn.Module, last: bool) -> contextlib.AbstractContextManager[object]:
    """Gradients of all but the last micro-batch are added up before the processes average them."""
    if isinstance(objective, DistributedDataParallel) and not last:
        return objective.no_sync()
    return contextlib.nullcontext()
