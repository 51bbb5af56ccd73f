"""Edits applied inside the forward pass: the edited tensor is a new one, the model is untouched."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from legible_core.interventions import Edit
from legible_core.units import Channel, Head, Unit


def edit_hidden(
    hidden: Float[Tensor, "b t f"], layer: int, edits: Sequence[Edit], start: int
) -> Float[Tensor, "b t f"]:
    """Apply the unit edits of this layer; `start` is the absolute position of the first token."""
    here = [edit for edit in edits if isinstance(edit.component, Unit) and edit.component.layer == layer]
    if not here:
        return hidden
    hidden = hidden.clone()
    for edit in here:
        unit = edit.component
        assert isinstance(unit, Unit)
        _apply(hidden[..., unit.unit], edit, start)
    return hidden


def edit_heads(
    z: Float[Tensor, "b t h dh"], layer: int, edits: Sequence[Edit], start: int
) -> Float[Tensor, "b t h dh"]:
    """Apply the head and channel edits of this layer to z."""
    here = [edit for edit in edits if isinstance(edit.component, Head | Channel) and edit.component.layer == layer]
    if not here:
        return z
    z = z.clone()
    for edit in here:
        match edit.component:
            case Channel(_, head, channel):
                _apply(z[..., head, channel], edit, start)
            case Head(_, head):
                _apply(z[..., head, :], edit, start)
    return z


def _apply(view: Tensor, edit: Edit, start: int) -> None:
    """Change a (b, t, ...) view in place at the edit's positions."""
    length = view.shape[1]
    positions = range(start, start + length) if edit.positions is None else edit.positions
    local = [position - start for position in positions if start <= position < start + length]
    if not local:
        return
    if edit.operation == "scale":
        view[:, local] = view[:, local] * edit.value
    else:
        view[:, local] = edit.value
