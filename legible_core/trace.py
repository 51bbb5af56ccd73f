"""What a forward pass leaves behind for a reading: references to the tensors it made, not copies."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from legible_core.interventions import Edit


@dataclass(frozen=True)
class LayerTrace:
    """One layer of a traced prompt.

    attention_in, feed_forward_in: the residual stream entering each sublayer, shape (t, d), float32.
    z: every head's attention-weighted value before W_O, shape (t, h, dh).
    hidden: the feed-forward hidden vector after its operations, shape (t, f).
    attention_divisor, feed_forward_divisor: what a norm after the sublayer (an ordinary model's) divides its write by
    at each position, shape (t,); None where the write joins the stream as it is.
    """

    attention_in: Float[Tensor, "t d"]
    z: Float[Tensor, "t h dh"]
    feed_forward_in: Float[Tensor, "t d"]
    hidden: Float[Tensor, "t f"]
    attention_divisor: Float[Tensor, " t"] | None = None
    feed_forward_divisor: Float[Tensor, " t"] | None = None


@dataclass(frozen=True)
class Trace:
    """All positions of one prompt: enough for the reading of any position and any target without another forward.

    embed_position: None where positions are rotary and so add nothing to the stream. edits: those that it was made
    under; what is recomputed from it applies them again.
    """

    ids: Int[Tensor, " t"]
    embed_token: Float[Tensor, "t d"]
    embed_position: Float[Tensor, "t d"] | None
    layers: tuple[LayerTrace, ...]
    residual: Float[Tensor, "t d"]
    edits: tuple[Edit, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes; the measure of the worker's cache."""
        tensors = [self.ids, self.embed_token, self.residual]
        if self.embed_position is not None:
            tensors.append(self.embed_position)
        for layer in self.layers:
            tensors += [layer.attention_in, layer.z, layer.feed_forward_in, layer.hidden]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
