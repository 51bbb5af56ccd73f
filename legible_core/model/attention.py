"""Causal self-attention whose value may be bounded.

"Legible-by-Construction" section 3: queries, keys, the attention map and W_O are those of a standard head; only the
value changes, per head: linear V = XW_v; membership V = σ(XW_v) (eq. 1); Boolean V = [A⊙B ; A⊙(1-B)] (eq. 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from legible_core.config import ModelConfig
from legible_core.model.edited import edited_values
from legible_core.model.editing import LayerEdits
from legible_core.model.linear import Pairs, factoring, linear, linears, matrix, sum_linear
from legible_core.model.set_operators import boolean_values


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
        self,
        x: Float[Tensor, "b t d"],
        cache: KeyValues | None = None,
        edits: LayerEdits | None = None,
        factored: bool = False,
    ) -> tuple[Float[Tensor, "b t h dh"], tuple[Tensor, ...], Tensor | None]:
        """z of every head, the operands, and the bounded heads' combined values.

        x: the normalised residual stream in the compute dtype. edits: those of this layer; the ones that act on values
        before attention gathers them are applied. factored: for `written` alone; Boolean values are [A⊙B ; A] then, and
        z and the combined values are what that gives.
        Operands: () for linear heads, (V,) for membership heads, (A, B) for Boolean ones, each (b, t, n_special, ·).
        """
        names = ["query", "key", *self._value_names()]
        queries, keys, *rows = linears(self, names, x)
        q, k = self._split(queries), self._split(keys)
        values, operands, bounded = self._values(rows, x, edits, factored)
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

    def written(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b t d"], tuple[Tensor, ...]]:
        """What the heads write together, and the operands, where nobody looks at z or at the values.

        Boolean values are factored where a gradient will be taken in float32.
        """
        factored = self.n_special > 0 and self.value == "boolean" and factoring(x)
        z, operands, _ = self(x, factored=factored)
        pairs = Pairs(self.n_special, self.d_head // 2) if factored else None
        return sum_linear(self, "output", (z.flatten(-2),), pairs), operands

    def values(
        self, x: Float[Tensor, "*s d"], edits: LayerEdits | None = None
    ) -> tuple[Float[Tensor, "*s h dh"], tuple[Tensor, ...], Tensor | None]:
        """The values of all heads (bounded ones first), the bounded heads' operands, and their combined values.

        With edits x must be (b, t, d).
        """
        return self._values(linears(self, self._value_names(), x), x, edits)

    def operands(self, x: Float[Tensor, "*s d"]) -> tuple[Tensor, ...]:
        """σ of the bounded rows: (V,) for membership heads, (A, B) for Boolean ones, () without bounded heads."""
        if not self.n_special:
            return ()
        memberships = torch.sigmoid(linear(self, "bounded_values", x)).unflatten(-1, (self.n_special, self.d_head))
        return (memberships,) if self.value == "membership" else memberships.chunk(2, -1)

    def _value_names(self) -> list[str]:
        names = ["bounded_values"] if self.n_special else []
        return [*names, "linear_values"] if self.n_special < self.n_heads else names

    def _values(
        self, rows: Sequence[Tensor], x: Tensor, edits: LayerEdits | None, factored: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        """As `values`, from the rows·x of `_value_names`."""
        if edits is not None and edits.inside_values:
            edited, operands = edited_values(self, self._value_names(), rows, x, edits)
            joined = edited[0] if len(edited) == 1 else torch.cat(edited, dim=-2)
            return joined, operands, edited[0] if self.n_special else None
        parts = [part.unflatten(-1, (-1, self.d_head)) for part in rows]
        operands = ()
        bounded: Tensor | None = None
        if self.n_special and self.value == "membership":
            bounded = torch.sigmoid(parts[0])
            operands = (bounded,)
        elif self.n_special and torch.compiler.is_compiling():
            operands = torch.sigmoid(parts[0]).chunk(2, -1)
            bounded = combine(operands)
        elif self.n_special:
            bounded, operands = boolean_values(parts[0], factored)
        if bounded is not None:
            parts[0] = bounded
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)), operands, bounded

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


def combine(operands: tuple[Tensor, ...]) -> Tensor:
    """The bounded value from its operands, plainly: V itself (eq. 1), or [A⊙B ; A⊙(1-B)] (eq. 2)."""
    if len(operands) == 1:
        return operands[0]
    a, b = operands
    return torch.cat([a * b, a * (1.0 - b)], dim=-1)
