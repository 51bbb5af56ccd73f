"""Sets kept and all else zeroed, many in one batch, where the trace's own keys and values do not tell everything.

    rows = kept_rows(model, trace, position, channels, units)       # (n, d): the final residual of each row

For readings that have edits of their own the batch goes on from the cache that an edited pass leaves, under the same
edits at the read position. An ordinary model reads the prompt in a batch of rows, each zeroed where it is asked; hooks
do that, as they do every edit of it. What is kept is said last, after the reading's own edits, so that a unit that an
edit sets and that is not kept is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from legible_core.model.attention import KeyValues
from legible_core.model.editing import LayerEdits, by_layer, edit_stream
from legible_core.model.quantifiers import QuantifierState
from legible_core.model.resume import cache_of
from legible_core.model.transformer import Cache, LayerCache, Transformer
from legible_core.trace import Trace

# Tokens of one batch of an ordinary model: the prompt is read once for each row.
BATCH_TOKENS = 2048


@torch.no_grad()
def kept_rows(
    model: Any, trace: Trace, position: int, channels: Bool[Tensor, "n l h dh"], units: Bool[Tensor, "n l f"]
) -> Float[Tensor, "n d"]:
    """Where the stream of the read position ends in each row, every other channel and unit zeroed there."""
    if not model.config.ordinary:
        return _edited(model, trace, position, channels, units)
    many = max(1, BATCH_TOKENS // len(trace.ids))
    parts = zip(channels.split(many), units.split(many), strict=True)
    return torch.cat([_ordinary(model, trace, position, *part) for part in parts])


def _edited(model: Transformer, trace: Trace, position: int, channels: Tensor, units: Tensor) -> Tensor:
    """One token in n rows, after the tokens before it under the trace's edits."""
    count, config = len(channels), model.config
    before = cache_of(model, trace, position) if position else model.new_cache()
    cache = Cache([_many(layer, count) for layer in before.layers], position)
    assert trace.embed_position is not None  # these designs have learned positions
    x = (trace.embed_token[position] + trace.embed_position[position])[None, None].expand(count, 1, -1)
    here = by_layer(trace.edits, position)
    for index, layer in enumerate(model.layers):
        edits = here.get(index) or LayerEdits(position)
        edits.kept = channels[:, None, index], units[:, None, index]
        x = model._layer(layer, x, edits, cache.layers[index])[-1]
    return edit_stream(x, here.get(config.n_layers))[:, 0]


def _many(layer: LayerCache, count: int) -> LayerCache:
    """The same memory for every row."""
    keys, values, state = layer.attention.keys, layer.attention.values, layer.quantifiers
    if keys is None or values is None:
        return layer
    wide = [part.expand(count, *part.shape[1:]) for part in (keys, values)]
    if state is not None:
        parts = (state.existential, state.total, state.count)
        state = QuantifierState(*(part.expand(count, *part.shape[1:]) for part in parts))
    return LayerCache(KeyValues(*wide), state)


def _ordinary(model: Any, trace: Trace, position: int, channels: Tensor, units: Tensor) -> Tensor:
    """The prompt in n rows."""
    seen: list[Tensor] = []

    def only(mask: Tensor) -> Any:
        def hook(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[:, position] *= mask.reshape(value[:, position].shape).to(value)
            return value

        return hook

    hooks = [*model._edits(trace.edits)]
    for index in range(model.config.n_layers):
        hooks.append((f"blocks.{index}.attn.o.hook_in", only(channels[:, index])))
        hooks.append((f"blocks.{index}.mlp.out.hook_in", only(units[:, index])))
    hooks.append(("ln_final.hook_in", lambda value, hook: seen.append(value[:, position].float())))
    model.bridge.run_with_hooks(trace.ids.expand(len(channels), -1), return_type=None, fwd_hooks=hooks)
    return seen[0]
