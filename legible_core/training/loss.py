"""Next-token loss through the unembedding, in chunks of rows, without ever holding all logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Rows per chunk: 512 rows of an 8,192-entry vocabulary are 16 MiB of float32, small enough to be reused at once on a
# CPU. A GPU wants long products instead.
CHUNK = 512
CHUNK_ELSEWHERE = 4096


def next_token_loss(x: Float[Tensor, "n d"], unembedding: Float[Tensor, "v d"], targets: Int[Tensor, " n"]) -> Tensor:
    """Mean cross-entropy of softmax(x Wᵀ), in nats, float32; differentiable in x and W.

    Equal to `cross_entropy(x @ W.T, targets)`. The gradient is made in the same pass over the chunks, so the memory
    beyond inputs and gradients is two chunks of logits. Under autocast the products are in its dtype, as those of the
    layers are; the softmax and the sums stay float32.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    with torch.autocast(kind, enabled=False):
        loss: Tensor = _NextTokenLoss.apply(x, unembedding, targets, dtype)
    return loss


class _NextTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, unembedding: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        n = x.shape[0]
        chunk = CHUNK if x.device.type == "cpu" else CHUNK_ELSEWHERE
        needs_grad = any(ctx.needs_input_grad)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_w = torch.zeros_like(unembedding) if needs_grad else None
        w = unembedding.to(dtype)
        for start in range(0, n, chunk):
            rows = x[start : start + chunk].to(dtype)
            wanted = targets[start : start + chunk, None]
            logits = (rows @ w.T).to(x.dtype)
            top = logits.amax(-1, keepdim=True)
            right = logits.gather(-1, wanted)
            p = torch.softmax(logits, -1)
            # log Σ e^l = top - log max p; the largest probability, unlike the wanted one, is never rounded to 0.
            total += (top - p.amax(-1, keepdim=True).log() - right).sum(dtype=torch.float64)
            if grad_x is not None and grad_w is not None:
                p.scatter_add_(-1, wanted, torch.full_like(right, -1.0))
                cast = p.to(dtype)
                if dtype == x.dtype:
                    torch.mm(cast, w, out=grad_x[start : start + chunk])
                    grad_w.addmm_(cast.T, rows)
                else:
                    grad_x[start : start + chunk] = cast @ w
                    grad_w += cast.T @ rows
        if grad_x is not None and grad_w is not None:
            ctx.save_for_backward(grad_x, grad_w)
        return (total / n).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_x, grad_w = ctx.saved_tensors
        scale = grad / grad_x.shape[0]
        return grad_x * scale, grad_w * scale, None, None
