"""LayerNorm with a gain and, where a foreign model has one, a bias; always computed in float32."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    """y = gain ⊙ (x - mean(x)) / sqrt(var(x) + eps) (+ bias).

    In: (..., d) float32. Out: (..., d) float32. The residual stream and its norms stay float32 in every compute dtype.
    """

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.centred = True
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*s d"]) -> Float[Tensor, "*s d"]:
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)

    def scale(self, x: Float[Tensor, "*s d"]) -> Float[Tensor, "*s 1"]:
        """The divisor std(x) = sqrt(var(x) + eps) that a reading freezes at its actual value."""
        return (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()
