"""The optimisers: Muon for the layers' matrices with AdamW for the rest, or AdamW for everything.

`torch.optim.Muon` orthogonalises in bfloat16, which a CPU without bfloat16 units runs some thirty times slower than
float32; this one computes in float32 on a CPU and in bfloat16 elsewhere and batches equal shapes. A test holds it to
torch's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from legible_core.model import Transformer
from legible_core.training.recipe import OptimiserRecipe

# Keller Jordan's quintic, the same numbers as torch's.
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5


class Muon:
    """Momentum whose step is the nearest semi-orthogonal matrix, with decoupled weight decay.

    θ ← θ (1 - lr·decay) - lr·√max(1, rows/columns)·NS(g + μ·m),  m ← μ·m + g·(1-μ).
    `lr` may be changed between steps. State: one momentum buffer per parameter.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float, decay: float) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.buffers = [torch.zeros_like(parameter) for parameter in self.parameters]
        shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, parameter in enumerate(self.parameters):
            shapes[tuple(parameter.shape)].append(index)
        self.shapes = dict(shapes)

    @torch.no_grad()
    def step(self) -> None:
        for shape, indices in self.shapes.items():
            parameters = [self.parameters[index] for index in indices]
            buffers = [self.buffers[index] for index in indices]
            grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
            assert len(grads) == len(parameters)
            # One call for all matrices of a shape: there are dozens, and each is small.
            torch._foreach_lerp_(buffers, grads, 1 - self.momentum)
            updates = torch._foreach_lerp(grads, buffers, self.momentum)
            directions = orthogonalise(torch.stack(updates)).to(parameters[0].dtype)
            torch._foreach_mul_(parameters, 1 - self.lr * self.decay)
            scale = math.sqrt(max(1.0, shape[0] / shape[1]))
            torch._foreach_add_(parameters, list(directions.unbind()), alpha=-self.lr * scale)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration towards U Vᵀ of each matrix (n, rows, columns); singular values end near 1."""
    x = matrices.float() if matrices.device.type == "cpu" else matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x


class Optimiser:
    """What the loop drives: `step()`, a learning-rate factor, and a flat state of named tensors.

    Parameters are divided by meaning: the layers' matrices; embeddings (and an untied unembedding); gains and biases;
    θ with a rate of its own and no decay.
    """

    def __init__(self, model: Transformer, recipe: OptimiserRecipe) -> None:
        self.recipe = recipe
        matrices: dict[str, nn.Parameter] = {}
        embeddings: dict[str, nn.Parameter] = {}
        gains: dict[str, nn.Parameter] = {}
        thetas: dict[str, nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            if name.endswith(".theta"):
                thetas[name] = parameter
            elif parameter.ndim < 2:
                gains[name] = parameter
            elif name.startswith("layers."):
                matrices[name] = parameter
            else:
                embeddings[name] = parameter
        self.muon: Muon | None = None
        self.muon_names: list[str] = []
        groups = [
            {"params": list(embeddings.values()), "lr": recipe.lr, "weight_decay": recipe.weight_decay},
            {"params": list(gains.values()), "lr": recipe.lr, "weight_decay": 0.0},
            {"params": list(thetas.values()), "lr": recipe.theta_lr, "weight_decay": 0.0},
        ]
        self.adam_names = [*embeddings, *gains, *thetas]
        if recipe.kind == "muon":
            self.muon = Muon(matrices.values(), recipe.matrix_lr, recipe.momentum, recipe.matrix_weight_decay)
            self.muon_names = list(matrices)
        else:
            groups.append({"params": list(matrices.values()), "lr": recipe.lr, "weight_decay": recipe.weight_decay})
            self.adam_names += list(matrices)
        groups = [group for group in groups if group["params"]]
        self.base = [float(group["lr"]) for group in groups]  # type: ignore[arg-type]
        self.adam = torch.optim.AdamW(groups, betas=recipe.betas, eps=1e-8, fused=True)

    def set_factor(self, factor: float) -> None:
        """Scale every learning rate of the recipe by the schedule's factor."""
        for group, base in zip(self.adam.param_groups, self.base, strict=True):
            group["lr"] = base * factor
        if self.muon is not None:
            self.muon.lr = self.recipe.matrix_lr * factor

    def step(self) -> None:
        self.adam.step()
        if self.muon is not None:
            self.muon.step()

    @torch.no_grad()
    def forget(self, name: str, *, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
        """Drop the momentum (and AdamW's second moments) of rows or columns of one parameter."""
        if name in self.muon_names and self.muon is not None:
            buffers = [self.muon.buffers[self.muon_names.index(name)]]
        else:
            parameters = [p for group in self.adam.param_groups for p in group["params"]]
            entry = self.adam.state.get(parameters[self.adam_names.index(name)], {})
            buffers = [entry[key] for key in ("exp_avg", "exp_avg_sq") if key in entry]
        for buffer in buffers:
            if rows is not None:
                buffer[rows] = 0.0
            if columns is not None:
                buffer[:, columns] = 0.0

    def state(self) -> dict[str, Tensor]:
        """Every buffer by parameter name, for a safetensors file."""
        found: dict[str, Tensor] = {}
        parameters = [p for group in self.adam.param_groups for p in group["params"]]
        for name, parameter in zip(self.adam_names, parameters, strict=True):
            for key, value in self.adam.state.get(parameter, {}).items():
                found[f"adam.{key}.{name}"] = value
        if self.muon is not None:
            for name, buffer in zip(self.muon_names, self.muon.buffers, strict=True):
                found[f"muon.{name}"] = buffer
        return found

    def empty_state(self) -> dict[str, Tensor]:
        """The buffers of an optimiser that has made no step yet, all zero, in the layout of `state`."""
        parameters = [p for group in self.adam.param_groups for p in group["params"]]
        found: dict[str, Tensor] = {}
        for name, parameter in zip(self.adam_names, parameters, strict=True):
            found[f"adam.step.{name}"] = torch.zeros(())
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"adam.{key}.{name}"] = torch.zeros_like(parameter)
        for name, buffer in zip(self.muon_names, self.muon.buffers if self.muon else [], strict=True):
            found[f"muon.{name}"] = torch.zeros_like(buffer)
        return found

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave; raises KeyError when a buffer is missing."""
        parameters = [p for group in self.adam.param_groups for p in group["params"]]
        for name, parameter in zip(self.adam_names, parameters, strict=True):
            entries = {key: state[f"adam.{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            self.adam.state[parameter] = {key: value.clone() for key, value in entries.items()}
        if self.muon is not None:
            for name, buffer in zip(self.muon_names, self.muon.buffers, strict=True):
                buffer.copy_(state[f"muon.{name}"])
