"""Matrices stored as (outputs, inputs), each with its own meaning, absent when they would have no row."""

from __future__ import annotations

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
