"""Self-forgetting quantifiers: a soft existential and a soft proportion over the prefix.

"Explicit Fuzzy Logic in the Feed-Forward Layer" (abstract) introduces them: memory with a learned forgetting rate per
unit. With m in [0,1] and decay λ:

    existential   e_t = 1 - (1 - m_t)(1 - λ e_{t-1})  =  λ(1 - m_t) e_{t-1} + m_t,            e_{-1} = 0
    proportion    p_t = s_t / n_t,   s_t = λ s_{t-1} + m_t,   n_t = λ n_{t-1} + 1,            s_{-1} = n_{-1} = 0

Both are linear in their state, x_t = a_t x_{t-1} + b_t, so they run as a parallel scan of log2(T) steps whose memory is
linear in T. The gradient is another such scan, backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def linear_scan(a: Float[Tensor, "b t q"], b: Float[Tensor, "b t q"]) -> Float[Tensor, "b t q"]:
    """x_t = a_t x_{t-1} + b_t with x_{-1} = 0, along dimension 1, in float32; differentiable in both arguments."""
    return _LinearScan.apply(a.float(), b.float())


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = _scan(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        # dL/db_t = g_t + a_{t+1} dL/db_{t+1}: the same scan on reversed time, with the coefficients one step late.
        late = torch.cat([torch.zeros_like(a[:, :1]), a[:, 1:].flip(1)], dim=1)
        grad_b = _scan(late, grad.flip(1)).flip(1)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return grad_b * before, grad_b


def _scan(a: Tensor, b: Tensor) -> Tensor:
    """Hillis-Steele: after step k each entry holds the composition of the last 2^k maps x -> a x + b."""
    a, b = a.clone(), b.clone()
    step = 1
    while step < b.shape[1]:
        b[:, step:] += a[:, step:] * b[:, :-step]
        a[:, step:] = a[:, step:] * a[:, :-step]
        step *= 2
    return b


@dataclass(frozen=True)
class QuantifierState:
    """What a key-value cache keeps beside keys and values: e (b, q/2), s (b, q/2), n (b, q/2), float32."""

    existential: Tensor
    total: Tensor
    count: Tensor

    @classmethod
    def empty(cls, batch: int, n_existential: int, n_proportion: int, device: torch.device) -> QuantifierState:
        zeros = torch.zeros(batch, n_proportion, device=device)
        return cls(torch.zeros(batch, n_existential, device=device), zeros, zeros.clone())


def quantify(
    m: Float[Tensor, "b t q"], decay: Float[Tensor, " q"], state: QuantifierState | None = None
) -> tuple[Float[Tensor, "b t q"], QuantifierState]:
    """Existentials of the first half of the channels, proportions of the second, and the state after the last token.

    m: memberships in [0,1]; decay: λ in (0,1) per unit; state: what earlier tokens left, None at a text's start.
    """
    half = m.shape[-1] // 2
    m = m.float()
    seen, held = m[..., :half], m[..., half:]
    a = decay[:half] * (1.0 - seen)
    decays = decay[half:].expand(1, m.shape[1], half)
    ones = torch.ones_like(decays)
    if state is not None:
        seen = _continue(seen, a[:, 0] * state.existential)
        held = _continue(held, decay[half:] * state.total)
        # All texts of a batch are equally long, so one row of counts serves them all.
        ones = _continue(ones, decay[half:] * state.count[:1])
    existential = linear_scan(a, seen)
    total = linear_scan(decays.expand_as(held), held)
    count = linear_scan(decays, ones)
    after = QuantifierState(existential[:, -1], total[:, -1], count[:, -1].expand_as(total[:, -1]))
    return torch.cat([existential, total / count], dim=-1), after


def _continue(b: Tensor, carried: Tensor) -> Tensor:
    """Add what the earlier state contributes to the first step's term."""
    return torch.cat([b[:, :1] + carried[:, None], b[:, 1:]], dim=1)


def half_life(decay: float) -> float:
    """Tokens until half of a memory is forgotten: ln ½ / ln λ; infinite at λ = 1, 0 at λ = 0."""
    if decay >= 1.0:
        return math.inf
    return 0.0 if decay <= 0.0 else math.log(0.5) / math.log(decay)
