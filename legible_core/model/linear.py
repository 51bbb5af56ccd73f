"""Matrices stored as (outputs, inputs), each with its own meaning, absent when they would have no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
    if not (torch.is_grad_enabled() and x.requires_grad) or torch.compiler.is_compiling():
        return tuple(linear(module, name, x) for name in names)
    weights: list[Tensor | None] = []
    for name in names:
        weights += [getattr(module, name), getattr(module, f"{name}_bias", None)]
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        # Outside the function, so that autograd takes the gradients back to the parameters' own dtype.
        dtype = torch.get_autocast_dtype(kind)
        x, weights = x.to(dtype), [None if weight is None else weight.to(dtype) for weight in weights]
    read: tuple[Tensor, ...] = _Linears.apply(x, *weights)
    return read


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights[::2])
        ctx.biased = weights[1] is not None
        ctx.set_materialize_grads(False)
        return tuple(F.linear(x, w, bias) for w, bias in zip(weights[::2], weights[1::2], strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows = x.flatten(0, -2)
        by_x: Tensor | None = None
        by_weights: list[Tensor | None] = []
        for weight, grad in zip(weights, grads, strict=True):
            if grad is None:
                by_weights += [None, None]
                continue
            grad = grad.flatten(0, -2)
            by_x = grad @ weight if by_x is None else by_x.addmm_(grad, weight)
            by_weights += [grad.T @ rows, grad.sum(0) if ctx.biased else None]
        return None if by_x is None else by_x.view_as(x), *by_weights
