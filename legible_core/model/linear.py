"""Matrices stored as (outputs, inputs), each with its own meaning, absent when they would have no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Pairs(NamedTuple):
    """Where the first columns of a write matrix are those of set operators: groups of `half` W's and `half` V's.

    For factored set operators (`set_operators.py`), whose product takes W-V in the place of W.
    """

    groups: int
    half: int

    def of(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """W and V of a matrix (outputs, inputs), each (outputs, groups, half), as views."""
        w, v = matrix[:, : 2 * self.groups * self.half].unflatten(1, (self.groups, 2, self.half)).unbind(2)
        return w, v


def matrix(module: nn.Module, name: str, rows: int, columns: int, bias: bool) -> None:
    """Register `name` (rows, columns) and, with `bias`, `<name>_bias` (rows); nothing when there are no rows."""
    absent = rows == 0
    module.register_parameter(name, None if absent else nn.Parameter(torch.zeros(rows, columns)))
    if bias:
        module.register_parameter(f"{name}_bias", None if absent else nn.Parameter(torch.zeros(rows)))


def linear(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """x Wᵀ (+ bias) with the matrix registered under `name`."""
    bias = getattr(module, f"{name}_bias", None)
    return F.linear(x, getattr(module, name), bias)


def linears(module: nn.Module, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    """x Wᵀ (+ bias) of several matrices. The gradients by x are summed in the products, without a pass for each sum."""
    if not fusing(x):
        return tuple(linear(module, name, x) for name in names)
    return joint_linears(module, [(name,) for name in names], x)


def sum_linear(module: nn.Module, name: str, parts: Sequence[Tensor], pairs: Pairs | None = None) -> Tensor:
    """x Wᵀ (+ bias) of an x whose last dimension comes in parts, without putting them beside each other.

    In bfloat16 they are put there all the same: a sum of products would round once for each part. pairs: x has factored
    set operators, which it may have only where `factoring` says so.
    """
    if pairs is None and (len(parts) == 1 or not factoring(parts[0])):
        return linear(module, name, join(parts))
    written: Tensor = _SumLinear.apply(pairs, getattr(module, name), getattr(module, f"{name}_bias", None), *parts)
    return written


def factoring(x: Tensor) -> bool:
    """Whether a gradient will be taken by x in full precision, so that what is written may be taken apart.

    In bfloat16 a sum of products would round once for each, and of factored set operators W-V rounds, and A is larger
    than A⊙(1-B).
    """
    return fusing(x) and x.dtype != torch.bfloat16 and not torch.is_autocast_enabled(x.device.type)


def join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


def fusing(x: Tensor) -> bool:
    """Whether a gradient will be taken by x and no compiler is at work, which fuses better by itself."""
    return torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()


def joint_linears(module: nn.Module, groups: Sequence[Sequence[str]], x: Tensor) -> tuple[Tensor, ...]:
    """`linears` of groups of matrices, the rows of each group in one product, side by side in one tensor of its own."""
    weights: list[Tensor | None] = []
    for name in (name for group in groups for name in group):
        weights += [getattr(module, name), getattr(module, f"{name}_bias", None)]
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        # Outside the function, so that autograd takes the gradients back to the parameters' own dtype.
        dtype = torch.get_autocast_dtype(kind)
        x, weights = x.to(dtype), [None if weight is None else weight.to(dtype) for weight in weights]
    read: tuple[Tensor, ...] = _Linears.apply(x, [len(group) for group in groups], *weights)
    return read


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], *weights: Tensor | None) -> tuple[Tensor, ...]:
        rows = x.flatten(0, -2)
        outputs, matrices, ctx.heights = [], [], []
        start = 0
        for size in sizes:
            parts, biases = weights[start : start + 2 * size : 2], weights[start + 1 : start + 2 * size : 2]
            start += 2 * size
            matrix, bias = _stack(parts), _stack(biases)
            # A tensor of its own, not a view, so that what takes it may work in place.
            out = x.new_empty(*x.shape[:-1], matrix.shape[0])  # type: ignore[union-attr]
            flat = out.view(-1, out.shape[-1])
            if bias is None:
                torch.mm(rows, matrix.T, out=flat)  # type: ignore[union-attr]
            else:
                torch.addmm(bias, rows, matrix.T, out=flat)  # type: ignore[union-attr]
            outputs.append(out)
            matrices.append(matrix)
            ctx.heights.append([part.shape[0] for part in parts if part is not None])
        ctx.save_for_backward(x, *matrices)
        ctx.biased = weights[1] is not None
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        rows = x.flatten(0, -2)
        by_x: Tensor | None = None
        by_weights: list[Tensor | None] = []
        for matrix, heights, grad in zip(matrices, ctx.heights, grads, strict=True):
            if grad is None:
                by_weights += [None, None] * len(heights)
                continue
            grad = grad.flatten(0, -2)
            by_x = grad @ matrix if by_x is None else by_x.addmm_(grad, matrix)
            by_parts = (grad.T @ rows).split(heights)
            by_biases = grad.sum(0).split(heights) if ctx.biased else [None] * len(heights)
            for by_part, by_bias in zip(by_parts, by_biases, strict=True):
                by_weights += [by_part, by_bias]
        return None if by_x is None else by_x.view_as(x), None, *by_weights


class _SumLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pairs: Pairs | None, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        if pairs is not None:
            weight = weight.clone()
            w, v = pairs.of(weight)
            w -= v
        ctx.save_for_backward(weight, *parts)
        ctx.pairs, ctx.biased = pairs, bias is not None
        out: Tensor | None = None
        for part, columns in zip(parts, _columns(weight, parts), strict=True):
            rows = part.flatten(0, -2)
            if out is not None:
                out.addmm_(rows, columns.T)
            else:
                out = rows @ columns.T if bias is None else torch.addmm(bias, rows, columns.T)
        assert out is not None
        return out.view(*parts[0].shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *parts = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        by_parts = [(rows @ c).view_as(part) for part, c in zip(parts, _columns(weight, parts), strict=True)]
        by_weight = torch.cat([rows.T @ part.flatten(0, -2) for part in parts], dim=-1)
        if ctx.pairs is not None:
            by_w, by_v = ctx.pairs.of(by_weight)
            by_v -= by_w
        return None, by_weight, rows.sum(0) if ctx.biased else None, *by_parts


def _columns(weight: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return weight.split([part.shape[-1] for part in parts], dim=-1)


def _stack(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) > 1 else present[0] if present else None
