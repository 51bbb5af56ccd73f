"""Self-forgetting quantifiers: a soft existential and a soft proportion over the prefix.

"Explicit Fuzzy Logic in the Feed-Forward Layer" (abstract) introduces them: memory with a learned forgetting rate per
unit. With m in [0,1] and decay λ:

    existential   e_t = 1 - (1 - m_t)(1 - λ e_{t-1})  =  λ(1 - m_t) e_{t-1} + m_t,            e_{-1} = 0
    proportion    p_t = s_t / n_t,   s_t = λ s_{t-1} + m_t,   n_t = λ n_{t-1} + 1,            s_{-1} = n_{-1} = 0

Both are linear in their state, x_t = a_t x_{t-1} + b_t, so they run as one parallel scan of 2 log2(T) steps whose
memory and work are linear in T. The gradient is another such scan, backwards. Inside, time is the first dimension, so
that every step of a scan works on long contiguous rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


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
    The values are float32 and differentiable in m and decay; a state, before or after, is a constant to the gradient.
    """
    values, existential, total, count = _Quantify.apply(m, decay, state)
    return values, QuantifierState(existential, total, count)


class _Quantify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, decay: Tensor, state: QuantifierState | None) -> tuple[Tensor, ...]:
        held = remember(m, decay, state)
        values = torch.empty_like(m, dtype=held.states.dtype)
        held.write(values)
        after = held.after()
        ctx.held = held
        ctx.save_for_backward(m, decay)
        ctx.mark_non_differentiable(after.existential, after.total, after.count)
        return values, after.existential, after.total, after.count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
        m, decay = ctx.saved_tensors
        grad_m = torch.empty_like(m)
        return grad_m, ctx.held.gradient(grad, m, decay, grad_m), None


@dataclass(frozen=True)
class Held:
    """What the quantifiers remember of a text, for values, state and gradient.

    states: (t, b, q), e and s after every token. counts: (t, q/2), n after every token, and its derivative by λ.
    carried: (b, q), e and s before the first token, None for zeros.
    """

    states: Tensor
    counts: Tensor
    count_slopes: Tensor
    carried: Tensor | None

    def write(self, out: Tensor) -> None:
        """Put e and p = s / n into `out` (b, t, q), in its dtype."""
        half = out.shape[-1] // 2
        out[..., :half] = self.states[..., :half].transpose(0, 1)
        out[..., half:] = self.states[..., half:].transpose(0, 1) / self.counts

    def after(self) -> QuantifierState:
        half = self.states.shape[-1] // 2
        last = self.states[-1]
        return QuantifierState(last[:, :half], last[:, half:], self.counts[-1].expand_as(last[:, half:]))

    def gradient(self, grad: Tensor, m: Tensor, decay: Tensor, out: Tensor) -> Tensor:
        """The gradient by λ; the one by the memberships goes into `out`. grad, m, out: (b, t, q)."""
        half = m.shape[-1] // 2
        x = self.states
        g = torch.empty_like(x)
        g[..., :half] = grad[..., :half].transpose(0, 1)
        g[..., half:] = grad[..., half:].transpose(0, 1) / self.counts[:, None]
        # p = s / n, so dL/dn_t = -Σ_b (g_t / n_t) p_t.
        by_count = -(g[..., half:] * x[..., half:]).sum(1) / self.counts
        # dL/db_t = g_t + a_{t+1} dL/db_{t+1}: the same scan on reversed time, with the coefficients one step early.
        a = torch.empty_like(x)
        a[..., half:] = decay[half:]
        a[-1] = 0.0
        a[:-1, :, :half] = torch.addcmul(decay[:half], decay[:half], m[:, 1:, :half].transpose(0, 1), value=-1)
        _scan(a, g, backwards=True)
        # Each step's coefficient acts on the state before it; a is free to hold the products.
        torch.mul(g[1:], x[:-1], out=a[1:])
        if self.carried is None:
            a[0] = 0.0
        else:
            torch.mul(g[0], self.carried, out=a[0])
        by_decay = a.sum((0, 1)).to(decay.dtype)
        by_decay[:half] -= (a[..., :half] * m[..., :half].transpose(0, 1)).sum((0, 1))
        by_decay[half:] += (by_count * self.count_slopes).sum(0)
        g[..., :half].addcmul_(decay[:half], a[..., :half], value=-1)
        out.copy_(g.transpose(0, 1))
        return by_decay


def remember(m: Float[Tensor, "b t q"], decay: Float[Tensor, " q"], state: QuantifierState | None = None) -> Held:
    """Run both recurrences over a text, in float32 (float64 for float64 memberships)."""
    half = m.shape[-1] // 2
    dtype = torch.promote_types(m.dtype, torch.float32)
    x = m.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)
    a = torch.empty_like(x)
    a[..., :half] = torch.addcmul(decay[:half], decay[:half], x[..., :half], value=-1)
    a[..., half:] = decay[half:]
    carried = None
    if state is not None:
        carried = torch.cat([state.existential, state.total], dim=-1)
        x[0].addcmul_(a[0], carried)
    # n_t = Σ_{i≤t} λ^i + λ^{t+1} n_{-1}: the same for all texts of a batch, which are equally long.
    times = torch.arange(m.shape[1] + 1, device=m.device)[:, None]
    powers = decay[half:].double() ** times
    slopes = torch.cat([torch.zeros_like(powers[:1]), times[1:] * powers[:-1]])
    counts, count_slopes = powers[:-1].cumsum(0), slopes[:-1].cumsum(0)
    if state is not None:
        counts += powers[1:] * state.count[:1]
        count_slopes += slopes[1:] * state.count[:1]
    _scan(a, x)
    return Held(x, counts.to(dtype), count_slopes.to(dtype), carried)


def _scan(a: Tensor, b: Tensor, backwards: bool = False) -> None:
    """x_t = a_t x_{t-1} + b_t with x_{-1} = 0 along dimension 0, into b; a is spent. Backwards, from the last t down.

    Brent and Kung's scan: on the way up, the last step of every block of 2, 4, 8, ... composes its block's two halves;
    on the way down, the states that are ready give the middles of the blocks after them. Each level works on half as
    many steps as the one below, so the whole costs three passes, not one for every level.
    """
    length = b.shape[0]
    levels = [1 << k for k in range((length - 1).bit_length())]
    ways = [(2 * size - 1, size, True) for size in levels] + [(3 * size - 1, size, False) for size in reversed(levels)]
    for first, size, up in ways:
        if first >= length:
            continue
        stride = 2 * size
        reach = (length - 1 - first) // stride * stride
        late, early = first, first - size
        if backwards:
            late, early = length - 1 - first - reach, length - 1 - first - reach + size
        later, earlier = slice(late, late + reach + 1, stride), slice(early, early + reach + 1, stride)
        b[later].addcmul_(a[later], b[earlier])
        if up:
            a[later] *= a[earlier]


def half_life(decay: float) -> float:
    """Tokens until half of a memory is forgotten: ln ½ / ln λ; infinite at λ = 1, 0 at λ = 0."""
    if decay >= 1.0:
        return math.inf
    return 0.0 if decay <= 0.0 else math.log(0.5) / math.log(decay)
