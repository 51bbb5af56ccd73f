"""Set operators over memberships, written straight into the vector that holds them, with their gradient.

Plainly: A = σ(a), B = σ(b), hidden = cat[A⊙B, A⊙(1-B), ...]. Autograd would run that in a dozen passes over memory,
keep both factors of every product, and split and join what stands side by side anyway. Here the memberships are one
tensor, so that a pressure on all operands is one operation too; only they are kept for the gradient, which is made in
place, with the pressure's own share, a piece of some mebibytes after the other. The tests hold values and gradients
to the plain formulation.

Factored, A stands in the place of A⊙(1-B), for a write matrix with W-V in the place of W (`linear.Pairs`):
W(A⊙B) + V(A⊙(1-B)) = (W-V)(A⊙B) + V A. No difference is made then, of values or of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.config import FeedForward
from legible_core.model.quantifiers import Held, QuantifierState, remember

aten = torch.ops.aten
# A tensor without dimensions acts as a number, on every device and in every dtype.
ONE = torch.tensor(1.0)


# Numbers of a piece of a gradient on each of a processor's threads: four mebibytes. Smaller ones would stay in one
# core's cache, but every operation wakes and joins the threads, which costs more than that saves.
PIECE = 1 << 20


class Asked:
    """What penalties on memberships v ask of their gradient: base + slope·v, each a number or one per channel.

    A penalty's backward runs before that of the operators that made v. Through this it leaves its share to them,
    instead of a tensor as large as v that would be made here and read there.
    """

    def __init__(self) -> None:
        self._terms: tuple[Tensor, Tensor] | None = None

    def add(self, base: Tensor, slope: Tensor) -> None:
        before = self._terms
        self._terms = (base, slope) if before is None else (before[0] + base, before[1] + slope)

    def take(self) -> tuple[Tensor, Tensor] | None:
        """What was asked since the last time."""
        terms, self._terms = self._terms, None
        return terms


class Operands(tuple[Tensor, ...]):
    """Operands that stand side by side in one tensor, `joint`: parts of it along its last dimension, not copies.

    asked: where a penalty on `joint` may leave its gradient; None where it must give it.
    """

    joint: Tensor
    asked: Asked | None

    @classmethod
    def of(cls, joint: Tensor, widths: list[int], asked: Asked | None = None) -> Operands:
        operands = cls(joint.split(widths, dim=-1))
        operands.joint, operands.asked = joint, asked
        return operands


def named_units(
    layout: FeedForward,
    decay: Float[Tensor, " q"],
    state: QuantifierState | None,
    named: Float[Tensor, "b t o"],
    factored: bool = False,
) -> tuple[Float[Tensor, "b t o"], Operands, QuantifierState | None]:
    """The named units, the operands (A, B, m; absent ones left out), and the state after the last token.

    named: row·x of the pairs' A, of their B and of the quantifiers, side by side; it is spent: the memberships take its
    place. decay: λ of the quantifiers. A state, before or after, is a constant to the gradient.
    """
    asked = Asked()
    hidden, memberships, *after = _NamedUnits.apply(layout, decay, state, asked, factored, named)
    return hidden, operands_of(layout, memberships, asked), QuantifierState(*after) if after else None


def operands_of(layout: FeedForward, memberships: Tensor, asked: Asked | None = None) -> Operands:
    widths = [layout.n_pairs] * 2 if layout.n_pairs else []
    return Operands.of(memberships, widths + ([layout.n_quantifiers] if layout.n_quantifiers else []), asked)


def boolean_values(rows: Float[Tensor, "*s h dh"], factored: bool = False) -> tuple[Float[Tensor, "*s h dh"], Operands]:
    """The Boolean value [A⊙B ; A⊙(1-B)] of every head ("Legible-by-Construction" eq. 2) and A, B, from its rows·x."""
    asked = Asked()
    values, memberships = _BooleanValues.apply(asked, factored, rows)
    return values, Operands.of(memberships, [rows.shape[-1] // 2] * 2, asked)


class _BooleanValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Asked, factored: bool, rows: Tensor) -> tuple[Tensor, Tensor]:
        memberships, values = torch.sigmoid(rows), torch.empty_like(rows)
        _combine(factored, *memberships.chunk(2, -1), *values.chunk(2, -1))
        ctx.asked, ctx.factored = asked, factored
        ctx.save_for_backward(memberships)
        ctx.set_materialize_grads(False)
        return values, memberships

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, pressed: Tensor | None) -> tuple[Tensor | None, ...]:
        (memberships,) = ctx.saved_tensors
        terms = ctx.asked.take()
        if grad is None and pressed is None and terms is None:
            return None, None, None
        out = torch.empty_like(memberships)
        grad = torch.zeros_like(memberships) if grad is None else grad
        for v, g, by_v, press in _pieces(2, memberships, grad, out, pressed):
            _combine_gradient(g, v, press, terms, by_v, ctx.factored)
            aten.sigmoid_backward.grad_input(by_v, v, grad_input=by_v)
        return None, None, out


class _NamedUnits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layout: FeedForward,
        decay: Tensor,
        state: QuantifierState | None,
        asked: Asked,
        factored: bool,
        named: Tensor,
    ) -> tuple[Tensor, ...]:
        memberships = named.sigmoid_()
        ctx.mark_dirty(named)
        hidden = torch.empty_like(memberships)
        pairs, held = slice(0, 2 * layout.n_pairs), None
        if layout.n_pairs:
            _combine(factored, *memberships[..., pairs].chunk(2, -1), *hidden[..., pairs].chunk(2, -1))
        if layout.n_quantifiers:
            held = remember(memberships[..., pairs.stop :], decay, state)
            held.write(hidden[..., layout.quantifiers])
        ctx.layout, ctx.held, ctx.asked, ctx.factored = layout, held, asked, factored
        ctx.save_for_backward(memberships)
        ctx.set_materialize_grads(False)
        if held is None:
            return hidden, memberships
        after = held.after()
        states = (after.existential, after.total, after.count)
        ctx.mark_non_differentiable(*states)
        return hidden, memberships, *states

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, pressed: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        layout: FeedForward = ctx.layout
        held: Held | None = ctx.held
        (memberships,) = ctx.saved_tensors
        terms = ctx.asked.take()
        if grad is None:
            if pressed is None and terms is None:
                return (None,) * 6
            grad = torch.zeros_like(memberships)
        pairs, rest = slice(0, 2 * layout.n_pairs), slice(2 * layout.n_pairs, None)
        out = torch.empty_like(memberships)
        by_decay = None
        if held is not None:
            m, by_m = memberships[..., rest], out[..., rest]
            by_decay = held.gradient(grad[..., layout.quantifiers], m, by_m)
            if terms is not None:
                by_m += torch.addcmul(terms[0][rest], terms[1][rest], m)
            if pressed is not None:
                by_m += pressed[..., rest]
        ours = None if terms is None else (terms[0][pairs], terms[1][pairs])
        for v, g, by_v, press in _pieces(1, memberships, grad, out, pressed):
            if layout.n_pairs:
                press = None if press is None else press[..., pairs]
                _combine_gradient(g[..., pairs], v[..., pairs], press, ours, by_v[..., pairs], ctx.factored)
            aten.sigmoid_backward.grad_input(by_v, v, grad_input=by_v)
        return None, by_decay, None, None, None, out


def _combine(factored: bool, a: Tensor, b: Tensor, intersection: Tensor, difference: Tensor) -> None:
    """A⊙B and A⊙(1-B) into their places, as the plain formula rounds: A - A⊙B would lose digits where B is near 1."""
    torch.mul(a, b, out=intersection)
    if factored:
        difference.copy_(a)
    else:
        torch.sub(ONE, b, out=difference).mul_(a)


def _combine_gradient(
    grad: Tensor,
    memberships: Tensor,
    pressed: Tensor | None,
    terms: tuple[Tensor, Tensor] | None,
    out: Tensor,
    factored: bool,
) -> None:
    """dA = g₂ + B⊙(g₁ - g₂), dB = A⊙(g₁ - g₂), each with the pressures' own share, into the halves of `out`.

    Factored, g₂ is the gradient by A beside A⊙B, and g₁ stands where the difference does.
    pressed: that share as a tensor. terms: base and slope of it, as in `Asked`.
    """
    (by_intersection, by_difference), (a, b), (by_a, by_b) = (x.chunk(2, -1) for x in (grad, memberships, out))
    apart = by_intersection if factored else by_intersection - by_difference
    if terms is None and pressed is None:
        torch.addcmul(by_difference, b, apart, out=by_a)
        torch.mul(a, apart, out=by_b)
        return
    if terms is not None:
        torch.addcmul(*terms, memberships, out=out)
        if pressed is not None:
            out += pressed
    elif pressed is not None:
        out.copy_(pressed)
    by_a.add_(by_difference).addcmul_(b, apart)
    by_b.addcmul_(a, apart)


def _pieces(channels: int, first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The same parts of tensors of one shape, small enough to stay in a processor's cache; a None goes along.

    The last `channels` dimensions are never cut. Elsewhere than on a processor the tensors stay whole.
    """
    wanted = PIECE * torch.get_num_threads()
    if first.device.type != "cpu" or first.numel() <= wanted or first.ndim == channels:
        yield (first, *others)
        return
    each = first[0].numel()
    size = max(1, wanted // each)
    parts = [[None] * -(-len(first) // size) if tensor is None else tensor.split(size) for tensor in (first, *others)]
    for piece in zip(*parts, strict=True):
        if each > wanted and first.ndim > channels + 1:
            head, *rest = (None if tensor is None else tensor[0] for tensor in piece)
            assert head is not None
            yield from _pieces(channels, head, *rest)
        else:
            yield piece
