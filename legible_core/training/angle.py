"""The angle objective: what lets a layer stack made of set operators alone be trained.

"Through the Looking Glass" section 5.2 credits its set-operator arm's convergence (eight seeds of eight) to an
objective that prescribes, layer by layer, the angle between the decode of a layer's residual and the final prediction:
orthogonal through the first half of the stack, aligned through the second. Its formula stands in an appendix that we
do not have; this one is ours:

    c_l(t) = cos( W̄ γ⊙(x_l - mean(x_l)), W̄ γ⊙(x_L - mean(x_L)) )          l = 1 … L-1
    loss   = weight · mean over l and t of (c_l(t) - g_l)²,                  g_l = 0 for l ≤ L/2, 1 after it

with x_l the residual after layer l, γ the last gain and W̄ the unembedding less its mean row, so that the cosine is
that of two centred logit vectors (the scale std(x) and the softmax's free constant drop out). The prediction x_L, γ and
W̄ are held fixed: the objective moves the layers under the prediction, never the prediction or the ruler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.model import Observed, Transformer


@dataclass(frozen=True)
class Angle:
    """weight: the objective's share in the loss; 0 leaves it out."""

    weight: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise LegibleError(
                f"The recipe is not usable: angle.weight is {self.weight}; it must be a finite number of at least 0.",
                code="bad_recipe",
            )


def targets(n_layers: int) -> list[float]:
    """The prescribed cosine after layers 1 … L-1: 0 (orthogonal) up to the stack's middle, 1 (aligned) after it."""
    return [0.0 if 2 * layer <= n_layers else 1.0 for layer in range(1, n_layers)]


def angle_loss(model: Transformer, observed: Observed, angle: Angle) -> Tensor | None:
    """The weighted objective of one pass, a float32 scalar, or None where it has no weight.

    observed: of a pass that began with none; its residuals are those after each layer, (b, t, d).
    """
    if not angle.weight:
        return None
    last = observed.residuals[-1].detach()
    ruler = metric(model)
    aim = _centred(last) @ ruler
    size = (aim * _centred(last)).sum(-1).clamp_min(1e-20).sqrt()
    total = torch.zeros((), device=last.device)
    wanted = targets(len(observed.residuals))
    for x, target in zip(observed.residuals, wanted, strict=False):
        u = _centred(x)
        own = ((u @ ruler) * u).sum(-1).clamp_min(1e-20).sqrt()
        cosine = (u * aim).sum(-1) / (own * size)
        total = total + (cosine - target).square().mean()
    return angle.weight * total / len(wanted)


@torch.no_grad()
def metric(model: Transformer) -> Float[Tensor, "d d"]:
    """γ W̄ᵀW̄ γ, float32: ⟨u, v⟩ under it is the dot product of two centred logit vectors; no logits are made."""
    rows = model.unembedding_matrix.float()
    weighted = (rows - rows.mean(0)) * model.final_norm.gain.float()
    return weighted.T @ weighted


def _centred(x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    x = x.float()
    return x - x.mean(-1, keepdim=True)
