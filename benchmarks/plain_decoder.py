"""The GELU decoder as one writes it in plain PyTorch, and its training step: what the twin is measured against.

Nothing of it comes from `legible_core`: `nn` modules, one projection for queries, keys and values, fused attention, the
loss over all logits at once, and torch's own AdamW, fused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legible_core.training.recipe import OptimiserRecipe


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); no biases, as in the papers' baseline."""

    def __init__(self, d: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.read, self.write = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        read = self.read(self.attention_norm(x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in read.unbind(2))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.write(z.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class PlainDecoder(nn.Module):
    def __init__(self, vocab_size: int, n_layers: int, d_model: int, n_heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def plain_step(model: PlainDecoder, settings: OptimiserRecipe) -> Callable[[Tensor], float]:
    """A function of a batch (contexts with the token after each) that trains on it and gives the loss."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": gains, "weight_decay": 0.0}],
        lr=settings.lr, betas=settings.betas, eps=1e-8, fused=True,
    )  # fmt: skip

    def step(batch: Tensor) -> float:
        optimiser.zero_grad(set_to_none=True)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        return loss.item()

    return step
