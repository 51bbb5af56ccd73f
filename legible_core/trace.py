"""What a forward pass leaves behind for a reading: references to the tensors it made, not copies."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LayerTrace:
    """One layer of a traced prompt.

    attention_in, feed_forward_in: the residual stream entering each sublayer, shape (t, d), float32.
    z: every head's attention-weighted value before W_O, shape (t, h, dh).
    hidden: the feed-forward hidden vector after its operations, shape (t, f).
    """

    attention_in: Float[Tensor, "t d"]
    z: Float[Tensor, "t h dh"]
    feed_forward_in: Float[Tensor, "t d"]
    hidden: Float[Tensor, "t f"]


@dataclass(frozen=True)
class Trace:
    """All positions of one prompt: enough for the reading of any position and any target without another forward."""

    ids: Int[Tensor, " t"]
    embed_token: Float[Tensor, "t d"]
    embed_position: Float[Tensor, "t d"]
    layers: tuple[LayerTrace, ...]
    residual: Float[Tensor, "t d"]

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes; the measure of the worker's cache."""
        tensors = [self.ids, self.embed_token, self.embed_position, self.residual]
        for layer in self.layers:
            tensors += [layer.attention_in, layer.z, layer.feed_forward_in, layer.hidden]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
