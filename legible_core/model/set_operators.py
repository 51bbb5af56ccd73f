"""Set operators over memberships, written straight into the vector that holds them, with their gradient.

Plainly: A = σ(a), B = σ(b), hidden = cat[A⊙B, A⊙(1-B), ...]. Autograd would run that in a dozen passes over memory,
keep both factors of every product, and split and join what stands side by side anyway. Here the memberships are one
tensor, so that a pressure on all operands is one operation too; only they are kept for the gradient, which is made in
place. The tests hold values and gradients to the plain formulation.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.config import FeedForward
from legible_core.model.quantifiers import Held, QuantifierState, remember

aten = torch.ops.aten
# A tensor without dimensions acts as a number, on every device and in every dtype.
ONE = torch.tensor(1.0)


class Operands(tuple[Tensor, ...]):
    """Operands that stand side by side in one tensor, `joint`: parts of it along its last dimension, not copies."""

    joint: Tensor

    @classmethod
    def of(cls, joint: Tensor, widths: list[int]) -> Operands:
        operands = cls(joint.split(widths, dim=-1))
        operands.joint = joint
        return operands


def named_units(
    layout: FeedForward,
    decay: Float[Tensor, " q"],
    state: QuantifierState | None,
    named: Float[Tensor, "b t o"],
) -> tuple[Float[Tensor, "b t o"], Operands, QuantifierState | None]:
    """The named units, the operands (A, B, m; absent ones left out), and the state after the last token.

    named: row·x of the pairs' A, of their B and of the quantifiers, side by side; it is spent: the memberships take its
    place. decay: λ of the quantifiers. A state, before or after, is a constant to the gradient.
    """
    hidden, memberships, *after = _NamedUnits.apply(layout, decay, state, named)
    return hidden, operands_of(layout, memberships), QuantifierState(*after) if after else None


def operands_of(layout: FeedForward, memberships: Tensor) -> Operands:
    widths = [layout.n_pairs] * 2 if layout.n_pairs else []
    return Operands.of(memberships, widths + ([layout.n_quantifiers] if layout.n_quantifiers else []))


def boolean_values(rows: Float[Tensor, "*s h dh"]) -> tuple[Float[Tensor, "*s h dh"], Operands]:
    """The Boolean value [A⊙B ; A⊙(1-B)] of every head ("Legible-by-Construction" eq. 2) and A, B, from its rows·x."""
    values, memberships = _BooleanValues.apply(rows)
    return values, Operands.of(memberships, [rows.shape[-1] // 2] * 2)


class _BooleanValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        memberships, values = torch.sigmoid(rows), torch.empty_like(rows)
        _combine(*memberships.chunk(2, -1), *values.chunk(2, -1))
        ctx.save_for_backward(memberships)
        ctx.set_materialize_grads(False)
        return values, memberships

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, pressed: Tensor | None) -> Tensor | None:
        (memberships,) = ctx.saved_tensors
        if grad is None:
            return None if pressed is None else aten.sigmoid_backward(pressed, memberships)
        out = torch.empty_like(memberships)
        _combine_gradient(grad.chunk(2, -1), memberships.chunk(2, -1), pressed, out)
        return aten.sigmoid_backward.grad_input(out, memberships, grad_input=out)


class _NamedUnits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layout: FeedForward, decay: Tensor, state: QuantifierState | None, named: Tensor
    ) -> tuple[Tensor, ...]:
        memberships = named.sigmoid_()
        ctx.mark_dirty(named)
        hidden = torch.empty_like(memberships)
        pairs, held = slice(0, 2 * layout.n_pairs), None
        if layout.n_pairs:
            _combine(*memberships[..., pairs].chunk(2, -1), *hidden[..., pairs].chunk(2, -1))
        if layout.n_quantifiers:
            held = remember(memberships[..., pairs.stop :], decay, state)
            held.write(hidden[..., layout.quantifiers])
        ctx.layout, ctx.held = layout, held
        ctx.save_for_backward(memberships, decay)
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
        memberships, decay = ctx.saved_tensors
        if grad is None:
            if pressed is None:
                return (None,) * 4
            grad = torch.zeros_like(memberships)
        pairs = slice(0, 2 * layout.n_pairs)
        out = torch.empty_like(memberships)
        by_decay = None
        if layout.n_pairs:
            _combine_gradient(
                grad[..., pairs].chunk(2, -1),
                memberships[..., pairs].chunk(2, -1),
                None if pressed is None else pressed[..., pairs],
                out[..., pairs],
            )
        if held is not None:
            m, by_m = memberships[..., pairs.stop :], out[..., pairs.stop :]
            by_decay = held.gradient(grad[..., layout.quantifiers], m, decay, by_m)
            if pressed is not None:
                by_m += pressed[..., pairs.stop :]
        aten.sigmoid_backward.grad_input(out, memberships, grad_input=out)
        return None, by_decay, None, out


def _combine(a: Tensor, b: Tensor, intersection: Tensor, difference: Tensor) -> None:
    """A⊙B and A⊙(1-B) into their places, as the plain formula rounds: A - A⊙B would lose digits where B is near 1."""
    torch.mul(a, b, out=intersection)
    torch.sub(ONE, b, out=difference).mul_(a)


def _combine_gradient(
    grads: tuple[Tensor, ...], sides: tuple[Tensor, ...], pressed: Tensor | None, out: Tensor
) -> None:
    """dA = g₂ + B⊙(g₁ - g₂), dB = A⊙(g₁ - g₂), each with the pressure's own share, into the halves of `out`."""
    (by_intersection, by_difference), (a, b), (by_a, by_b) = grads, sides, out.chunk(2, -1)
    torch.sub(by_intersection, by_difference, out=by_b)
    if pressed is None:
        torch.addcmul(by_difference, b, by_b, out=by_a)
        by_b *= a
    else:
        press_a, press_b = pressed.chunk(2, -1)
        torch.add(press_a, by_difference, out=by_a).addcmul_(b, by_b)
        torch.addcmul(press_b, a, by_b, out=by_b)
