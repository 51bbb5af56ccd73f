"""What holds in an edited trace: weights, decays and read rows at a position, and whether the edits did anything.

A trace carries the edits that it was made under. What is recomputed from it or said of it asks here first.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.interventions import Edit
from legible_core.model.editing import direction_of, edited_matrix, no_effect, numbers_of, weight_edits
from legible_core.readable import Readable
from legible_core.trace import Trace
from legible_core.units import Channel, Component, Down, Head, HeadOperand, Operand, QuantifierOperand, Unit


def write_matrix(model: Readable, trace: Trace, layer: int, sublayer: str, position: int) -> Float[Tensor, "d n"]:
    """W_O ("attention") or the down-projection ("feed_forward") of a layer as it holds at a position of the trace."""
    part: Any = getattr(model.layers[layer], sublayer)
    matrix: Tensor = part.output if sublayer == "attention" else part.down
    chosen = weight_edits(trace.edits, layer, sublayer, position)
    width = model.config.d_head if sublayer == "attention" else 1
    return edited_matrix(matrix, chosen, width) if chosen else matrix


def decay_at(trace: Trace, unit: Unit, position: int) -> float | None:
    """λ that an edit gives a quantifier at a position; None where it keeps its own."""
    found = None
    for edit in trace.edits:
        if edit.component == unit and edit.operation == "decay" and _applies(edit, position):
            found = edit.value
    return found


def remembers_otherwise(trace: Trace, unit: Unit) -> bool:
    """Whether an edit changes what a quantifier carries from token to token, so that its λ alone does not say it."""
    return any(edit.component == unit and edit.operation in ("decay", "state") for edit in trace.edits)


def row_at(trace: Trace, component: Component, position: int) -> tuple[Float[Tensor, " d"], float | None] | None:
    """The read row and bias (None: its own) that an edit gives an operand, plain unit or channel at a position."""
    found = None
    for edit in trace.edits:
        if edit.component == component and edit.operation == "row" and _applies(edit, position):
            found = (numbers_of(edit), edit.value)
    return found


def edits_of(trace: Trace, component: Component) -> tuple[Edit, ...]:
    """The edits of the trace that name a component itself."""
    return tuple(edit for edit in trace.edits if edit.component == component)


def edited_layers(trace: Trace) -> frozenset[int]:
    return frozenset(edit.component.layer for edit in trace.edits)


# ---- edits that did nothing ------------------------------------------------------------------------------------------


@torch.no_grad()
def check_effect(model: Readable, plain: Trace, edited: Trace) -> None:
    """Raise `LegibleError` when edits that are no identities leave the final residual stream as it was, to the bit.

    plain: the same prompt without edits. An edit that changes what a component writes, or a column that it writes with,
    must be seen in the stream; one of a component whose write is zero need not.
    """
    if not torch.equal(plain.residual, edited.residual):
        return
    for edit in edited.edits:
        if _writes_otherwise(model, plain, edited, edit):
            raise no_effect(edit)


def _writes_otherwise(model: Readable, plain: Trace, edited: Trace, edit: Edit) -> bool:
    """Whether the write of what is edited differs, by more than nothing, at a position that the edit names."""
    component = edit.component
    if edit.operation == "add":
        return bool(direction_of(edit, plain.residual).any())
    layer = component.layer
    sublayer = "attention" if isinstance(component, Head | Channel | HeadOperand) else "feed_forward"
    before, after = _activations(plain, layer, sublayer), _activations(edited, layer, sublayer)
    for position in range(len(plain.ids)) if edit.positions is None else edit.positions:
        old = write_matrix(model, plain, layer, sublayer, position).float()
        new = write_matrix(model, edited, layer, sublayer, position).float()
        columns = _columns(model, component)
        if isinstance(component, Down) or edit.operation == "column":
            if bool((after[position, columns] @ (new - old)[:, columns].T).any()):
                return True
        else:
            moved = after[position, columns] - before[position, columns]
            if bool((moved * new[:, columns].abs().sum(0)).any()):
                return True
    return False


def _activations(trace: Trace, layer: int, sublayer: str) -> Float[Tensor, "t n"]:
    recorded = trace.layers[layer]
    return (recorded.z.flatten(-2) if sublayer == "attention" else recorded.hidden).float()


def _columns(model: Readable, component: Any) -> list[int]:
    """Where what is edited stands in z (flat) or in the hidden vector."""
    config = model.config
    width, pairs = config.d_head, config.feed_forward.n_pairs
    match component:
        case Unit(_, unit) | QuantifierOperand(_, unit):
            return [unit]
        case Operand(_, pair, _):
            return [pair, pairs + pair]
        case Channel(_, head, channel):
            return [head * width + channel]
        case Head(_, head):
            return list(range(head * width, (head + 1) * width))
        case HeadOperand(_, head, pair, _):
            return [head * width + pair, head * width + pair + width // 2]
    return list(range(config.feed_forward.d_ff))


def _applies(edit: Edit, position: int) -> bool:
    return edit.positions is None or position in edit.positions
