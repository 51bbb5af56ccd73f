"""Next-token loss through the unembedding, in chunks of rows, without ever holding all logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Rows per chunk: 512 rows of an 8,192-entry vocabulary are 16 MiB of float32, small enough to be reused at once.
CHUNK = 512


def next_token_loss(x: Float[Tensor, "n d"], unembedding: Float[Tensor, "v d"], targets: Int[Tensor, " n"]) -> Tensor:
    """Mean cross-entropy of softmax(x Wᵀ), in nats, float32; differentiable in x and W.

    Equal to `cross_entropy(x @ W.T, targets)`. The gradient is made in the same pass over the chunks, so the memory
    beyond inputs and gradients is one chunk of logits.
    """
    return _NextTokenLoss.apply(x, unembedding, targets)


class _NextTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, unembedding: Tensor, targets: Tensor) -> Tensor:
        n = x.shape[0]
        needs_grad = any(ctx.needs_input_grad)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_w = torch.zeros_like(unembedding) if needs_grad else None
        for start in range(0, n, CHUNK):
            rows = x[start : start + CHUNK]
            wanted = targets[start : start + CHUNK, None]
            logits = rows @ unembedding.T
            top = logits.amax(-1, keepdim=True)
            right = logits.gather(-1, wanted)
            p = logits.sub_(top).exp_()
            mass = p.sum(-1, keepdim=True)
            total += (mass.log() + top - right).sum(dtype=torch.float64)
            if grad_x is not None and grad_w is not None:
                p.div_(mass)
                p.scatter_add_(-1, wanted, torch.full_like(right, -1.0))
                p.div_(n)
                torch.mm(p, unembedding, out=grad_x[start : start + CHUNK])
                grad_w.addmm_(p.T, rows)
        if grad_x is not None and grad_w is not None:
            ctx.save_for_backward(grad_x, grad_w)
        return (total / n).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_w = ctx.saved_tensors
        return grad_x * grad, grad_w * grad, None
