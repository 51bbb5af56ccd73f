"""The activations of plain feed-forward units ("Through the Looking Glass" section 5.2).

    gelu       z Φ(z)             unbounded, falls below z ≈ -0.752 and rises again: not order-preserving
    sigmoid    1 / (1 + e^-z)     eq. 28: strictly increasing, in [0, 1], so a membership
    softplus   log(1 + e^z)       eq. 29: strictly increasing, unbounded
    relu       max(0, z)          increasing, but one with every z ≤ 0: the control that discards information

Only the sigmoid has two rails. ReLU is off at exactly 0 and softplus near it, but neither has an ON, so what crispness
and ON would mean is undefined, as for GELU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "relu": F.relu,
}
