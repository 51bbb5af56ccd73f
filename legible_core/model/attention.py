"""Causal self-attention whose value may be bounded.

"Legible-by-Construction" section 3: queries, keys, the attention map and W_O are those of a standard head; only the
value changes, per head: linear V = XW_v; membership V = σ(XW_v) (eq. 1); Boolean V = [A⊙B ; A⊙(1-B)] (eq. 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from legible_core.config import ModelConfig
from legible_core.model.linear import linear, matrix


@dataclass
class KeyValues:
    """Keys and values of the tokens so far, each (b, h, t, dh)."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


class Attention(nn.Module):
    """One layer's heads; the first `n_special` are bounded."""

    query: nn.Parameter
    key: nn.Parameter
    output: nn.Parameter

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        d, bias = config.d_model, config.linear_bias
        self.n_heads = config.n_heads
        self.d_head = config.d_head
        self.value = config.attention.value
        self.n_special = config.attention.n_special[layer]
        n_linear = config.n_heads - self.n_special
        matrix(self, "query", d, d, bias)
        matrix(self, "key", d, d, bias)
        matrix(self, "bounded_values", self.n_special * self.d_head, d, bias)
        matrix(self, "linear_values", n_linear * self.d_head, d, bias)
        matrix(self, "output", d, d, bias)

    def forward(
        self, x: Float[Tensor, "b t d"], cache: KeyValues | None = None
    ) -> tuple[Float[Tensor, "b t h dh"], tuple[Tensor, ...], Tensor | None]:
        """z of every head, the operands, and the bounded heads' combined values.

        x: the normalised residual stream in the compute dtype.
        Operands: () for linear heads, (V,) for membership heads, (A, B) for Boolean ones, each (b, t, n_special, ·).
        """
        q, k = self._split(linear(self, "query", x)), self._split(linear(self, "key", x))
        values, operands, bounded = self.values(x)
        v = values.transpose(1, 2)
        mask, causal = None, True
        if cache is not None:
            k, v = cache.extend(k, v)
            earlier = k.shape[2] - q.shape[2]
            if earlier:
                causal = False
                if q.shape[2] > 1:
                    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device).tril(earlier)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return z.transpose(1, 2), operands, bounded

    def values(self, x: Float[Tensor, "*s d"]) -> tuple[Float[Tensor, "*s h dh"], tuple[Tensor, ...], Tensor | None]:
        """The values of all heads (bounded ones first), the bounded heads' operands, and their combined values."""
        parts: list[Tensor] = []
        operands = self.operands(x)
        bounded = combine(operands)
        if bounded is not None:
            parts.append(bounded)
        if self.n_special < self.n_heads:
            rest = linear(self, "linear_values", x)
            parts.append(rest.unflatten(-1, (self.n_heads - self.n_special, self.d_head)))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)), operands, bounded

    def operands(self, x: Float[Tensor, "*s d"]) -> tuple[Tensor, ...]:
        """σ of the bounded rows: (V,) for membership heads, (A, B) for Boolean ones, () without bounded heads."""
        if not self.n_special:
            return ()
        memberships = torch.sigmoid(linear(self, "bounded_values", x)).unflatten(-1, (self.n_special, self.d_head))
        if self.value == "membership":
            return (memberships,)
        half = self.d_head // 2
        return (memberships[..., :half], memberships[..., half:])

    def pattern_row(self, x: Float[Tensor, "t d"], head: int, position: int) -> Float[Tensor, " s"]:
        """Attention weights of one head from one position to positions 0..position, recomputed in float32."""
        rows = slice(head * self.d_head, (head + 1) * self.d_head)
        query = self._rows("query", rows, x[position])
        keys = self._rows("key", rows, x[: position + 1])
        return torch.softmax(keys.float() @ query.float() / math.sqrt(self.d_head), dim=-1)

    def _rows(self, name: str, rows: slice, x: Tensor) -> Tensor:
        bias = getattr(self, f"{name}_bias", None)
        return F.linear(x, getattr(self, name)[rows], None if bias is None else bias[rows])

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)


def combine(operands: tuple[Tensor, ...]) -> Tensor | None:
    """The bounded value from its operands: V itself (eq. 1), or [A⊙B ; A⊙(1-B)] (eq. 2); None without operands."""
    if not operands:
        return None
    if len(operands) == 1:
        return operands[0]
    a, b = operands
    return torch.cat([a * b, a * (1.0 - b)], dim=-1)
