"""What an ordinary model in half precision rounds away, measured place by place: the floor's term `rounding`.

    rounding = measure(model, trace, position)     # vectors; `Attributor` projects them on a question

Such a model adds each sublayer's write to a bfloat16 stream, so the stream holds a little less or more than the writes
in it. At the read position, with x_l the stream entering layer l and w the exact writes of its sublayers,

    r_l = x_{l+1} - x_l - w_l,a - w_l,f        r_embed = x_0 - token - position        r_norm = round(y) - y

where y is what the final norm gives. Their sum is what the terms lack of the logit. That they are roundings is
checked, not assumed: each r is held to what its dtype can round there, so a wrong write is refused and never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.errors import NotExact
from legible_core.model.editing import added_at, direction_of

if TYPE_CHECKING:
    from legible_core.adapters.model import OrdinaryModel
    from legible_core.trace import Trace

# A write is rounded when it is made, when a bias joins it and behind a norm of its own; the stream after each write.
ROUNDINGS = 4


@dataclass(frozen=True)
class Rounding:
    """Float64: `stream`, what roundings left in the final residual; `normed`, what the last one changed of y."""

    stream: Float[Tensor, " d"]
    normed: Float[Tensor, " d"]


@torch.no_grad()
def measure(model: OrdinaryModel, trace: Trace, position: int) -> Rounding | None:
    """The roundings at one position of a trace; None for a model in float32, whose roundings the tolerance covers.

    Raises `NotExact`, with both numbers, where a difference is larger than roundings of the dtype can make it.
    """
    dtype = model.unembedding_matrix.dtype
    if dtype == torch.float32:
        return None
    streams = [layer.attention_in[position].double() for layer in trace.layers] + [trace.residual[position].double()]
    parts = [trace.embed_token[position].double()]
    if trace.embed_position is not None:
        parts.append(trace.embed_position[position].double())
    total = torch.zeros_like(streams[0])
    for index, after in enumerate(streams):
        if index:
            parts = [streams[index - 1], *_writes(model, trace, index - 1, position)]
        parts += _added(trace, index, position, after)
        difference = after - sum(parts[1:], parts[0])
        possible = ROUNDINGS * torch.finfo(dtype).eps / 2 * float(sum(part.norm() for part in [*parts, after]))
        if not float(difference.norm()) <= possible:
            where = f"layer {index - 1} writes" if index else "the embeddings write"
            raise NotExact(
                f"What {where} differs by {float(difference.norm()):.3g} from what the stream then holds, and "
                f"rounding in {str(dtype).removeprefix('torch.')} explains at most {possible:.3g}, so there is no "
                "reading.",
                hint="Add the model with --dtype float32.",
            )
        total += difference
    normed = model.final_norm(trace.residual[position].float())
    return Rounding(total, normed.to(dtype).double() - normed.double())


def _writes(model: OrdinaryModel, trace: Trace, index: int, position: int) -> list[Tensor]:
    """What both sublayers of a layer write at a position, from the coordinates that the trace holds."""
    layer, part = trace.layers[index], model.layers[index]
    found = []
    for sublayer, matrix, values, divisor in (
        (part.attention, "output", layer.z[position].flatten(), layer.attention_divisor),
        (part.feed_forward, "down", layer.hidden[position], layer.feed_forward_divisor),
    ):
        written: Any = (getattr(sublayer, matrix).float() @ values.float()).double()
        bias = getattr(sublayer, f"{matrix}_bias")
        if bias is not None:
            written = written + bias.double()
        if divisor is not None:
            written = written / divisor[position].double() * sublayer.post_gain.double()
        found.append(written)
    return found


def _added(trace: Trace, layer: int, position: int, like: Tensor) -> list[Tensor]:
    """The directions that edits add to the stream entering a layer."""
    edits = added_at(trace.edits, position, len(trace.layers))
    return [direction_of(edit, like) for edit in edits if edit.component.layer == layer]
