"""One head or one component of a reading, close up: what the panels and the head, unit and channel pages show.

Both answers are plain JSON documents (`docs/reading-schema.md`, "Details"); their terms are the reading's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from legible_core.attribution import optional
from legible_core.axes import Float
from legible_core.contributors import OPERATIONS, finite, memberships, operands_of
from legible_core.errors import LegibleError, NotFound
from legible_core.model.quantifiers import half_life
from legible_core.reading import ReadingRequest
from legible_core.trace import Trace
from legible_core.under_edits import decay_at, edited_layers, write_matrix
from legible_core.units import GLYPHS, Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

PROMOTED = 20
STRONGEST = 8


@torch.no_grad()
def head_detail(
    engine: Engine, request: ReadingRequest, layer: int, head: int, strongest: int = STRONGEST
) -> dict[str, Any]:
    """Where a head looks from the read position, what it finds there, and what that adds to the value.

    `pattern`: attention weights to positions 0..position; `terms`: the head's term divided over them (weight × value ×
    projection, exact because z is the weighted sum of the values). `channels`: all d_h of them, largest |term| first;
    the first `strongest` of a bounded head also carry the operand values found at each position.
    Raises `NotFound` for a head that does not exist, and what `Engine.read` raises for the request.
    """
    config = engine.config
    check_range("layer", layer, config.n_layers)
    check_range("head", head, config.n_heads)
    solved = engine.solve(request)
    trace, position, terms = solved.trace, solved.position, solved.terms
    seen = engine.attributor.seen(solved.question, trace, position)
    columns = seen.channels[layer].view(config.n_heads, config.d_head)[head]
    divisor = trace.layers[layer].attention_divisor
    if divisor is not None:
        columns = columns / divisor[position]
    gathered = gathered_by(
        engine, trace, position, Head(layer, head), columns, terms.scale, terms.channels[layer, head], strongest
    )
    write = engine.describer.writes([("head", layer, head)], trace, position)
    [(promotes, rank)] = engine.describer.promotes(write, solved.question.target, PROMOTED)
    return {
        "id": str(Head(layer, head)),
        "kind": "head",
        "glyph": GLYPHS["head"],
        "position": position,
        "target": solved.question.target,
        "value": float(terms.heads[layer, head]),
        **gathered,
        "promotes": [token.model_dump() for token in promotes],
        "target_rank": rank,
    }


def gathered_by(
    engine: Engine,
    trace: Trace,
    position: int,
    id: Head,
    columns: Float[Tensor, " dh"],
    scale: float,
    per_channel: np.ndarray,
    strongest: int = STRONGEST,
) -> dict[str, Any]:
    """Where a head looks from a position, and what it finds there, seen from one direction of the residual stream.

    columns (dh,): the head's write columns projected on the direction, not yet divided by `scale`; `per_channel` (dh,):
    the channels' terms. `terms` divide the head's term over the attended tokens: z is their weighted sum, so this is
    exact.
    """
    config = engine.config
    layer, head = id.layer, id.head
    pattern = engine.model.attention_row(layer, head, trace, position)
    values = engine.model.head_values(layer, trace)[: position + 1, head]
    per_token = pattern.double() * (values.double() @ columns.double()) / scale
    z = trace.layers[layer].z[position, head].float()
    order = np.argsort(-np.abs(per_channel), kind="stable").tolist()
    bounded = config.is_bounded(layer, head)
    found = engine.model.operands(layer, trace, slice(0, position + 1)) if bounded else {}
    channels = []
    for place, c in enumerate(order):
        row = channel_row(engine, Channel(layer, head, c), float(z[c]), float(per_channel[c]))
        if bounded and place < strongest:
            row["values"] = values[:, c].tolist()
            row["gathered"] = [
                {"id": str(id), "values": _head_series(found, id).tolist()}
                for id in operands_of(config, Channel(layer, head, c))
            ]
        channels.append(row)
    return {
        "bounded": bounded,
        "operation": config.attention.value if bounded else "linear",
        "pattern": pattern.tolist(),
        "terms": per_token.tolist(),
        "channels": channels,
    }


@torch.no_grad()
def component_detail(engine: Engine, request: ReadingRequest, component: Component) -> dict[str, Any]:
    """A unit or channel over the tokens of one prompt: its term here, its activation and its operands everywhere.

    `activations` and each operand's `values` run over all positions of the prompt. A head is answered by `head_detail`.
    Raises `NotFound` for a component that does not exist, `LegibleError` for a sort that has no term of its own.
    """
    match component:
        case Head(layer, head):
            return head_detail(engine, request, layer, head)
        case Unit(layer, unit):
            check_range("layer", layer, engine.config.n_layers)
            check_range("unit", unit, engine.config.feed_forward.d_ff)
        case Channel(layer, head, channel):
            check_range("layer", layer, engine.config.n_layers)
            check_range("head", head, engine.config.n_heads)
            check_range("channel", channel, engine.config.d_head)
        case _:
            raise LegibleError(
                f"{component} has no term of its own; ask for a head (L6.h4), channel (L6.h4.c48) or unit (L11.u39).",
                code="bad_component",
            )
    solved = engine.solve(request)
    return _unit(engine, component, solved) if isinstance(component, Unit) else _channel(engine, component, solved)


def _unit(engine: Engine, id: Unit, solved: Solved) -> dict[str, Any]:
    trace, position, terms, target = solved.trace, solved.position, solved.terms, solved.question.target
    layer, unit = id.layer, id.unit
    kind = engine.config.feed_forward.kind(unit)
    decay = decay_at(trace, id, position)
    decay = engine.describer.decay(layer, unit) if decay is None else decay
    [(promotes, rank)] = engine.describer.promotes(
        engine.describer.writes([("unit", layer, unit)], trace, position), target, PROMOTED
    )
    activations = trace.layers[layer].hidden[:, unit].float()
    operands = operands_of(engine.config, id)
    part: Any = engine.model.layers[layer]
    x = trace.layers[layer].feed_forward_in
    if operands:
        x = part.feed_forward_norm(x).to(part.feed_forward.down.dtype)
    return {
        "id": str(id),
        "kind": kind,
        "glyph": GLYPHS[kind],
        "operation": OPERATIONS[kind],
        "position": position,
        "target": target,
        "value": float(terms.units[layer, unit]),
        "activation": float(activations[position]),
        "activations": activations.tolist(),
        "operands": [
            _operand(
                engine, operand, activations if operand == id else _unit_series(engine, operand, trace, x), position
            )
            for operand in operands
        ],
        "decay": decay,
        "half_life": finite(None if decay is None else half_life(decay)),
        "promotes": [token.model_dump() for token in promotes],
        "target_rank": rank,
        **engine.describer.name_fields(id),
    }


def _channel(engine: Engine, id: Channel, solved: Solved) -> dict[str, Any]:
    trace, position, terms, target = solved.trace, solved.position, solved.terms, solved.question.target
    layer, head, channel = id.layer, id.head, id.channel
    part: Any = engine.model.layers[layer]
    matrix = write_matrix(engine.model, trace, layer, "attention", position)
    column = matrix[:, head * engine.config.d_head + channel].float()
    gain = optional(part.attention, "post_gain")
    if gain is not None:
        column = column * gain.float()
    [(promotes, rank)] = engine.describer.promotes(column[None], target, PROMOTED)
    z = trace.layers[layer].z[:, head, channel].float()
    term = float(terms.channels[layer, head, channel])
    found = engine.model.operands(layer, trace, slice(None)) if engine.config.is_bounded(layer, head) else {}
    return {
        **channel_row(engine, id, float(z[position]), term),
        "kind": "channel",
        "glyph": GLYPHS["head"],
        "position": position,
        "target": target,
        "activations": z.tolist(),
        "values": engine.model.head_values(layer, trace)[:, head, channel].tolist(),
        "operands": [
            _operand(engine, operand, _head_series(found, operand), position)
            for operand in operands_of(engine.config, id)
        ],
        "promotes": [token.model_dump() for token in promotes],
        "target_rank": rank,
    }


def channel_row(engine: Engine, id: Channel, gathered: float, term: float) -> dict[str, Any]:
    """A channel with its operation, what the head gathered in it (its z) and its part of the head's term."""
    config = engine.config
    operation = "linear"
    if config.is_bounded(id.layer, id.head):
        half = config.d_head // 2
        boolean = "A∩B" if id.channel < half else "A∖B"
        operation = boolean if config.attention.value == "boolean" else "membership"
    return {
        "id": str(id),
        "operation": operation,
        "activation": gathered,
        "value": term,
        **engine.describer.name_fields(id),
    }


def _operand(engine: Engine, id: Component, series: Tensor, position: int) -> dict[str, Any]:
    row = engine.describer.operand(id, float(series[position])).model_dump()
    return {**row, "values": series.tolist()}


def _unit_series(engine: Engine, id: Component, trace: Trace, x: Tensor) -> Tensor:
    """An operand of a unit at every position; x (t, d) is the layer's normalised input in the compute dtype."""
    assert isinstance(id, Operand | QuantifierOperand)
    part: Any = engine.model.layers[id.layer]
    if id.layer in edited_layers(trace):
        found = engine.model.operands(id.layer, trace, slice(None))
        if isinstance(id, QuantifierOperand):
            return found["quantifier"][:, id.unit - engine.config.feed_forward.quantifiers.start]
        return found[f"pair_{id.side.lower()}"][:, id.pair]
    if isinstance(id, QuantifierOperand):
        row = id.unit - engine.config.feed_forward.quantifiers.start
        return memberships(part.feed_forward, "quantifier", [row], x)[0]
    return memberships(part.feed_forward, f"pair_{id.side.lower()}", [id.pair], x)[0]


def _head_series(found: dict[str, Tensor], id: Component) -> Tensor:
    """An operand of a bounded head at the positions that `found` was computed for."""
    if isinstance(id, Channel):
        return found["membership"][:, id.head, id.channel]
    assert isinstance(id, HeadOperand)
    return found[f"head_{id.side.lower()}"][:, id.head, id.pair]


def check_range(what: str, index: int, limit: int) -> None:
    """Raise `NotFound` when a part with this number does not exist."""
    if not 0 <= index < limit:
        raise NotFound(f"There is no {what} {index}; this checkpoint has {what}s 0 to {limit - 1}.")
