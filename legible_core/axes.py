"""The vocabulary of shapes, used in every signature that takes or gives tensors.

b       batch                   t       token position
d       residual width          h       attention head
dh      head width              f       hidden (feed-forward) unit
p       pair                    q       quantifier
v       vocabulary entry
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

Ids = Int[Tensor, "b t"]
Prompt = Int[Tensor, " t"]
Logits = Float[Tensor, "b t v"]
Residual = Float[Tensor, "b t d"]
Heads = Float[Tensor, "b t h dh"]
Hidden = Float[Tensor, "b t f"]
Memberships = Float[Tensor, "b t q"]
Decays = Float[Tensor, " q"]

__all__ = ["Decays", "Float", "Heads", "Hidden", "Ids", "Int", "Logits", "Memberships", "Prompt", "Residual", "Tensor"]
