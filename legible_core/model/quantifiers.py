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
        after = held.after()
        ctx.held = held
        ctx.save_for_backward(m)
        ctx.mark_non_differentiable(after.existential, after.total, after.count)
        values = torch.empty_like(m, dtype=held.values.dtype)
        held.write(values)
        return values, after.existential, after.total, after.count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
        (m,) = ctx.saved_tensors
        by_m = torch.empty_like(m)
        return by_m, ctx.held.gradient(grad, m, by_m), None


@dataclass(frozen=True)
class Held:
    """What the quantifiers made of a text, x_t = (keep_t - by_m_t m_t) x_{t-1} + take_t m_t, for values and gradient.

    values: (t, b, q), e and p after every token, float32. keep, by_m, take: (t, 1, q). count: (q/2), n after the last
    token. slopes: (t, q/2), the derivative of 1/n by λ. carried: (b, q), e and p before the text, None for zeros.
    """

    values: Tensor
    keep: Tensor
    by_m: Tensor
    take: Tensor
    count: Tensor
    slopes: Tensor
    carried: Tensor | None

    def write(self, out: Tensor) -> None:
        """Put e and p into `out` (b, t, q), in its dtype."""
        out.copy_(self.values.transpose(0, 1))

    def after(self) -> QuantifierState:
        half = self.values.shape[-1] // 2
        last = self.values[-1]
        count = self.count.expand_as(last[:, half:])
        return QuantifierState(last[:, :half], last[:, half:] * count, count)

    def gradient(self, grad: Tensor, m: Tensor, out: Tensor) -> Tensor:
        """The gradient by λ; the one by the memberships goes into `out`. grad, m, out: (b, t, q)."""
        half, x = m.shape[-1] // 2, self.values
        m, grad, out = m.transpose(0, 1).to(x.dtype), grad.transpose(0, 1), out.transpose(0, 1)
        # With y_t the whole gradient by x_t: y_t = grad_t + a_{t+1} y_{t+1}, the same scan on reversed time.
        y = grad.to(x.dtype, copy=True, memory_format=torch.contiguous_format)
        a = torch.empty_like(x)
        a[-1] = 0.0
        torch.addcmul(self.keep[1:], self.by_m[1:], m[1:], value=-1, out=a[:-1])
        _scan(a, y, backwards=True)
        # Each step's coefficient acts on the state before it; a is free to hold the products.
        torch.mul(y[1:], x[:-1], out=a[1:])
        if self.carried is None:
            a[0] = 0.0
        else:
            torch.mul(y[0], self.carried, out=a[0])
        # dL/dλ is Σ y_t x_{t-1} (1 - m_t) of an existential, and Σ y_t (m_t - x_{t-1}) d(1/n_t)/dλ of a proportion.
        existential = torch.addcmul(a[..., :half], a[..., :half], m[..., :half], value=-1).sum((0, 1))
        proportion = torch.addcmul(a[..., half:], y[..., half:], m[..., half:], value=-1).sum(1)
        out.copy_(y.mul_(self.take).addcmul_(self.by_m, a, value=-1))
        return torch.cat([existential, -(proportion * self.slopes).sum(0)])


def remember(m: Float[Tensor, "b t q"], decay: Float[Tensor, " q"], state: QuantifierState | None = None) -> Held:
    """Run both recurrences over a text, in float32 (float64 for float64 memberships).

    The proportion is its own state: p_t = p_{t-1} + (m_t - p_{t-1}) / n_t, since λ n_{t-1} = n_t - 1.
    """
    half, dtype = m.shape[-1] // 2, torch.promote_types(m.dtype, torch.float32)
    # n_t = Σ_{i≤t} λ^i + λ^{t+1} n_{-1}: the same for all texts of a batch, which are equally long.
    times = torch.arange(m.shape[1] + 1, device=m.device)[:, None]
    powers = decay[half:].double() ** times
    slopes = torch.cat([torch.zeros_like(powers[:1]), times[1:] * powers[:-1]])
    counts, count_slopes = powers[:-1].cumsum(0), slopes[:-1].cumsum(0)
    carried = None
    if state is not None:
        counts += powers[1:] * state.count[:1]
        count_slopes += slopes[1:] * state.count[:1]
        # Where nothing was counted yet nothing is kept either: the coefficient of the first step is 0 there.
        before = state.total / state.count.clamp_min(torch.finfo(state.count.dtype).tiny)
        carried = torch.cat([state.existential, before], dim=-1)
    shares = counts.reciprocal()
    keep, take = (torch.empty(m.shape[1], 1, m.shape[-1], dtype=dtype, device=m.device) for _ in range(2))
    by_m = torch.zeros_like(keep)
    keep[..., :half] = by_m[..., :half] = decay[:half]
    take[..., :half], take[:, 0, half:] = 1.0, shares
    torch.sub(1.0, shares, out=shares)
    keep[:, 0, half:] = shares
    m = m.transpose(0, 1).to(dtype)
    # Into new memory, time first: the results of operations on m would have its order.
    x, a = torch.empty(m.shape, dtype=dtype, device=m.device), torch.empty(m.shape, dtype=dtype, device=m.device)
    torch.mul(m, take, out=x)
    torch.addcmul(keep, by_m, m, value=-1, out=a)
    if carried is not None:
        x[0].addcmul_(a[0], carried)
    _scan(a, x)
    return Held(x, keep, by_m, take, counts[-1].to(dtype), (count_slopes / -counts.square()).to(dtype), carried)


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
        coefficients = a[later]
        b[later].addcmul_(coefficients, b[earlier])
        if up:
            coefficients.mul_(a[earlier])


def half_life(decay: float) -> float:
    """Tokens until half of a memory is forgotten: ln ½ / ln λ; infinite at λ = 1, 0 at λ = 0."""
    if decay >= 1.0:
        return math.inf
    return 0.0 if decay <= 0.0 else math.log(0.5) / math.log(decay)
