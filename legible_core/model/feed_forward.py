"""The feed-forward layer of fuzzy set operations, self-forgetting quantifiers and plain units.

"Legible-by-Construction" section 3.7 couples it to the attention; its operations are those of "Explicit Fuzzy Logic in
the Feed-Forward Layer": intersection A⊙B and set-difference A⊙(1-B) over sigmoid operands, and the two quantifiers of
`quantifiers.py`. Every hidden unit costs one read row and one write column, as in the GELU baseline.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from legible_core.config import ModelConfig
from legible_core.model.activations import FUNCTIONS
from legible_core.model.edited import edited_hidden
from legible_core.model.editing import LayerEdits
from legible_core.model.linear import Pairs, factoring, fusing, join, joint_linears, linear, matrix, sum_linear
from legible_core.model.quantifiers import QuantifierState, quantify
from legible_core.model.set_operators import named_units

# A quantifier starts sticky: λ = 0.98, a half-life of 34 tokens.
STICKY = 0.98


class FeedForward(nn.Module):
    """hidden = [A⊙B ; A⊙(1-B) ; existentials ; proportions ; plain], written through a free down-projection.

    The plain units' read rows are named for their activation (`gelu`, `sigmoid`, `softplus`, `relu`).
    """

    down: nn.Parameter
    theta: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layout = config.feed_forward
        d, bias = config.d_model, config.linear_bias
        self.layout = layout
        matrix(self, "pair_a", layout.n_pairs, d, bias)
        matrix(self, "pair_b", layout.n_pairs, d, bias)
        matrix(self, "quantifier", layout.n_quantifiers, d, bias)
        matrix(self, layout.activation, layout.n_plain, d, bias)
        matrix(self, "down", d, layout.d_ff, bias)
        sticky = math.log(STICKY / (1 - STICKY))
        self.theta = nn.Parameter(torch.full((layout.n_quantifiers,), sticky)) if layout.n_quantifiers else None

    @property
    def decay(self) -> Float[Tensor, " q"]:
        """λ = σ(θ) of every quantifier, existentials first, float32."""
        if self.theta is None:
            return torch.zeros(0, device=self.down.device)
        return torch.sigmoid(self.theta.float())

    def forward(
        self, x: Float[Tensor, "b t d"], state: QuantifierState | None = None, edits: LayerEdits | None = None
    ) -> tuple[Float[Tensor, "b t f"], tuple[Tensor, ...], QuantifierState | None]:
        """The hidden vector, the operands (A, B, m, sigmoid units; absent ones left out), and the quantifiers' state.

        x: the normalised residual stream in the compute dtype; the hidden vector has its dtype. edits: those of this
        layer; the ones that act before the hidden vector is there are applied.
        """
        if edits is not None and edits.inside_units:
            made = edited_hidden(self, x, state, edits)
            return made.hidden, made.operands, made.state
        parts, operands, after = self.parts(x, state)
        return join(parts), operands, after

    def parts(
        self, x: Float[Tensor, "b t d"], state: QuantifierState | None = None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], QuantifierState | None]:
        """As `forward`, with the hidden vector in parts, one after the other: the named units, the plain ones.

        Both stay contiguous that way, forwards and backwards, and are not copied beside each other.
        """
        layout = self.layout
        if not layout.n_named or self._bounded or torch.compiler.is_compiling():
            hidden, operands, after = self.plainly(x, state)
            return (hidden,), operands, after
        read, plain = self._read(x)
        named, operands, after = named_units(layout, self.decay, state, read)
        return (named, *plain), operands, after

    def written(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b t d"], tuple[Tensor, ...]]:
        """What the layer writes, and the operands, where nobody looks at the hidden vector.

        `write` of `parts`; the set operators are factored where a gradient will be taken in float32.
        """
        if not self.layout.n_pairs or self._bounded or not factoring(x):
            parts, operands, _ = self.parts(x)
            return self.write(parts), operands
        read, plain = self._read(x)
        named, operands, _ = named_units(self.layout, self.decay, None, read, factored=True)
        pairs = Pairs(1, self.layout.n_pairs)
        return sum_linear(self, "down", (named, *plain), pairs), operands

    @property
    def _bounded(self) -> bool:
        """Whether there are sigmoid units, which stand among the operands."""
        return self.layout.n_bounded > self.layout.n_named

    def _read(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """row·x of all operands side by side, and the plain units' activations."""
        layout = self.layout
        names = (["pair_a", "pair_b"] if layout.n_pairs else []) + (["quantifier"] if layout.n_quantifiers else [])
        if fusing(x):
            # One product reads all operands: copying their rows beside each other is nothing to what that saves.
            read, *plain = joint_linears(self, [names, [layout.activation]] if layout.n_plain else [names], x)
        else:
            read = torch.cat([linear(self, name, x) for name in names], dim=-1)
            plain = [linear(self, layout.activation, x)] if layout.n_plain else []
        return read, tuple(map(FUNCTIONS[layout.activation], plain))

    def write(self, parts: tuple[Tensor, ...]) -> Float[Tensor, "b t d"]:
        """The down-projection of a hidden vector in parts."""
        return sum_linear(self, "down", parts)

    def plainly(
        self, x: Float[Tensor, "b t d"], state: QuantifierState | None = None
    ) -> tuple[Float[Tensor, "b t f"], tuple[Tensor, ...], QuantifierState | None]:
        """The same operation by operation: for every design, for a compiler that fuses by itself, and as the test."""
        parts: list[Tensor] = []
        operands = self.operands(x)
        after = None
        if self.layout.n_pairs:
            a, b = operands[0], operands[1]
            parts += [a * b, a * (1.0 - b)]
        if self.layout.n_quantifiers:
            quantified, after = quantify(operands[2 if self.layout.n_pairs else 0], self.decay, state)
            parts.append(quantified.to(x.dtype))
        if self._bounded:
            parts.append(operands[-1])
        elif self.layout.n_plain:
            parts.append(FUNCTIONS[self.layout.activation](linear(self, self.layout.activation, x)))
        return join(parts), operands, after

    def operands(self, x: Float[Tensor, "*s d"]) -> tuple[Tensor, ...]:
        """Sigmoid memberships: (A, B) of the pairs, m of the quantifiers, sigmoid units, where the layer has them."""
        found: list[Tensor] = []
        if self.layout.n_pairs:
            found += [torch.sigmoid(linear(self, "pair_a", x)), torch.sigmoid(linear(self, "pair_b", x))]
        if self.layout.n_quantifiers:
            found.append(torch.sigmoid(linear(self, "quantifier", x)))
        if self._bounded:
            found.append(torch.sigmoid(linear(self, self.layout.activation, x)))
        return tuple(found)
