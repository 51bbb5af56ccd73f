"""The values of chosen components on every token of a text, however long: in windows of the context.

    plan = windows(len(ids), config.context)                 # which window gives which tokens
    for values in part_values(model, ids, components, plan): ...

A text within the context is one window, and its values are exactly those of a reading. A longer one is read in windows
that start half a context after one another; a token takes its value from the window in which at least half a context
stands before it. Attention and a quantifier's memory reach back to their window's start and no further, as they do
whenever this checkpoint reads: it has no other past. `windows` is in `reads`, which imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.readable import Readable, Transformer
from legible_core.reads import Window, check_component, opens, read_of
from legible_core.trace import Trace
from legible_core.units import Channel, Component, Head, Unit
from legible_core.upstream import read_series


@torch.no_grad()
def part_values(
    model: Readable, ids: Sequence[int], components: Sequence[Component], plan: Sequence[Window]
) -> Iterator[Float[Tensor, "n t"]]:
    """For each window the components' values on the tokens that it gives, one row a component.

    ids: the whole text. Raises `NotFound` for a component that the checkpoint lacks, before anything runs.
    """
    for component in components:
        check_component(model.config, component)
    device = model.token_embedding.device
    for window in plan:
        trace = model.trace(torch.tensor(ids[window.start : window.stop], device=device))
        given = slice(window.given - window.start, window.stop - window.start)
        yield torch.stack([component_values(model, trace, component)[given].float().cpu() for component in components])


@torch.no_grad()
def component_values(model: Readable, trace: Trace, component: Component) -> Float[Tensor, " t"]:
    """A component's value at every position of a trace; `reads.measure` says in words what it is.

    Units: the hidden value. Operands: their membership of the token. Channels: the head's value at the token, before
    attention gathers it, A·B or A·(1 - B) for a Boolean one. Heads: the norm of what they write there.
    """
    config = model.config
    match component:
        case Unit(layer, unit):
            return trace.layers[layer].hidden[:, unit].float()
        case Head(layer, head):
            part: Any = model.layers[layer]
            width = slice(head * config.d_head, (head + 1) * config.d_head)
            write = trace.layers[layer].z[:, head].float() @ part.attention.output[:, width].float().T
            return write.norm(dim=-1)
        case Channel(layer, head, channel) if config.ordinary:  # its value has no read row of its own to ask
            return model.head_values(layer, trace)[:, head, channel]
        case Channel(_, _, channel) if len(opens(config, component)) == 2:
            legible = cast(Transformer, model)
            a, b = (read_series(legible, trace, read_of(config, operand)) for operand in opens(config, component))
            return a * b if channel < config.d_head // 2 else a * (1.0 - b)
    return read_series(cast(Transformer, model), trace, read_of(config, component))
