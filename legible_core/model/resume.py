"""Going on from a trace that is there: from the first edited layer up, and token by token from one of its prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from legible_core.interventions import Edit
from legible_core.model.attention import KeyValues
from legible_core.model.editing import Effect, by_layer, check_fits, edit_stream, fits
from legible_core.model.linear import linear
from legible_core.model.quantifiers import QuantifierState, quantify
from legible_core.model.transformer import Cache, LayerCache
from legible_core.trace import LayerTrace, Trace

if TYPE_CHECKING:
    from legible_core.model.transformer import Transformer


@torch.no_grad()
def resume(model: Transformer, trace: Trace, edits: Sequence[Edit]) -> Trace:
    """The trace of the same tokens under `edits`, computed from the first edited layer up; `trace` is unedited.

    Equal to `model.trace(trace.ids, edits)` and raises what it raises; the layers below are the trace's own.
    """
    config = model.config
    for edit in edits:
        edit.check(config, len(trace.ids))
    first = min((edit.component.layer for edit in edits), default=config.n_layers)
    effect = Effect()
    here = by_layer(edits, 0, effect)
    x = (trace.layers[first].attention_in if first < config.n_layers else trace.residual)[None]
    layers, flags = list(trace.layers[:first]), []
    for index in range(first, config.n_layers):
        before, z, middle, hidden, x = model._layer(model.layers[index], x, here.get(index))
        layers.append(LayerTrace(before[0], z[0], middle[0], hidden[0][0]))
        flags.append(fits(x))
    x = edit_stream(x, here.get(config.n_layers))
    below = [torch.ones_like(fits(x))] * first
    check_fits([*below, *flags, fits(x)], edits)
    effect.check()
    return Trace(trace.ids, trace.embed_token, trace.embed_position, tuple(layers), x[0], edits=tuple(edits))


@torch.no_grad()
def cache_of(model: Transformer, trace: Trace, length: int) -> Cache:
    """What a cached pass over the first `length` tokens of a trace, under its edits, would have left."""
    here = by_layer(trace.edits, 0)
    layers = []
    for index, layer in enumerate(model.layers):
        recorded, edits = trace.layers[index], here.get(index)
        attention = layer.attention
        x = model._compute(layer.attention_norm(recorded.attention_in[None, :length]), attention.output)
        keys = linear(attention, "key", x).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
        values = attention.values(x, edits)[0].transpose(1, 2)
        layers.append(LayerCache(KeyValues(keys, values), _state(model, trace, index, length)))
    return Cache(layers, length)


def _state(model: Transformer, trace: Trace, index: int, length: int) -> QuantifierState | None:
    """The quantifiers' state after `length` tokens; only their rows are multiplied where no edit touches operands."""
    part = model.layers[index].feed_forward
    if not part.layout.n_quantifiers:
        return None
    y = model._compute(
        model.layers[index].feed_forward_norm(trace.layers[index].feed_forward_in[None, :length]), part.down
    )
    edits = by_layer(trace.edits, 0).get(index)
    if edits is not None and edits.inside_units:
        state: QuantifierState | None = part(y, None, edits)[2]
        return state
    return quantify(torch.sigmoid(linear(part, "quantifier", y)), part.decay)[1]
