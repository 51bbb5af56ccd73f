"""The values of heads and the hidden vector made step by step under edits: rows, operands, memories, single units.

The same operations as `attention` and `feed_forward` run fused ("Legible-by-Construction" eqs. 1 and 2, and the
quantifiers' recurrences), with the edits between them. Only a layer that has such edits comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.interventions import Edit
from legible_core.model.activations import FUNCTIONS
from legible_core.model.editing import LayerEdits, edit_rows, edit_values
from legible_core.model.linear import linear
from legible_core.model.quantifiers import QuantifierState, quantify
from legible_core.units import HeadOperand, Operand, QuantifierOperand


def edited_values(
    attention: Any, names: Sequence[str], rows: Sequence[Tensor], x: Float[Tensor, "b t d"], here: LayerEdits
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Per matrix in `names` the values (b, t, n, dh), bounded ones combined, and the bounded heads' operands.

    rows: row·x of each matrix, (b, t, n·dh).
    """
    width, special, boolean = attention.d_head, attention.n_special, attention.value == "boolean"

    def placed(edit: Edit) -> tuple[str, int]:
        component: Any = edit.component
        name, first = ("bounded_values", 0) if component.head < special else ("linear_values", special)
        if isinstance(component, HeadOperand):
            place = component.pair + (0 if component.side == "A" else width // 2)
        else:
            place = component.channel
        return name, (component.head - first) * width + place

    parts = []
    operands: tuple[Tensor, ...] = ()
    for name, scores in zip(names, rows, strict=True):
        replaced = [(placed(edit)[1], edit) for edit in here.value_rows if placed(edit)[0] == name]
        scores = edit_rows(attention, name, scores, x, replaced, here)
        if name == "bounded_values":
            joint = torch.sigmoid(scores)
            joint = edit_values(joint, here.value_operands, lambda edit: [placed(edit)[1]], here, limit=1.0)
            joint = joint.unflatten(-1, (-1, width))
            operands = (joint,)
            if boolean:
                a, b = joint.chunk(2, -1)
                operands, joint = (a, b), torch.cat([a * b, a * (1.0 - b)], dim=-1)
            parts.append(joint)
        else:
            parts.append(scores.unflatten(-1, (-1, width)))
    return parts, operands


@dataclass(frozen=True)
class Made:
    """A hidden vector (b, t, f), its operands as `FeedForward.forward` gives them, and the quantifiers' state."""

    hidden: Tensor
    operands: tuple[Tensor, ...]
    state: QuantifierState | None


def edited_operands(part: Any, x: Float[Tensor, "b t d"], here: LayerEdits) -> dict[str, Tensor]:
    """The operands of a feed-forward layer under its edits, by matrix: pair_a, pair_b, quantifier (b, t, ·)."""
    layout = part.layout
    found: dict[str, Tensor] = {}
    names = ["pair_a", "pair_b"] if layout.n_pairs else []
    names += ["quantifier"] if layout.n_quantifiers else []
    for name in names:
        rows = [(_row(edit, layout), edit) for edit in here.rows if _matrix(edit) == name]
        scores = edit_rows(part, name, linear(part, name, x), x, rows, here)
        edits = [edit for edit in here.operands if _matrix(edit) == name]
        found[name] = edit_values(torch.sigmoid(scores), edits, lambda edit: [_row(edit, layout)], here, limit=1.0)
    return found


def edited_plain(part: Any, x: Float[Tensor, "b t d"], here: LayerEdits) -> Float[Tensor, "b t g"]:
    """The plain units under edits of their read rows."""
    name = part.layout.activation
    rows = [(_row(edit, part.layout), edit) for edit in here.rows if _matrix(edit) == "plain"]
    return FUNCTIONS[name](edit_rows(part, name, linear(part, name, x), x, rows, here))


def edited_hidden(part: Any, x: Float[Tensor, "b t d"], state: QuantifierState | None, here: LayerEdits) -> Made:
    """The hidden vector of a feed-forward layer under its edits; x: the normalised stream in the compute dtype."""
    layout = part.layout
    atoms = edited_operands(part, x, here)
    operands = tuple(atoms.values())
    parts: list[Tensor] = []
    after = None
    if layout.n_pairs:
        a, b = atoms["pair_a"], atoms["pair_b"]
        parts += [a * b, a * (1.0 - b)]
    if layout.n_quantifiers:
        m = atoms["quantifier"]
        values, after = quantify(m, part.decay, state)
        values, after = _remember_otherwise(part, m, values, state, after, here)
        parts.append(values.to(x.dtype))
    if layout.n_plain:
        plain = edited_plain(part, x, here)
        parts.append(plain)
        operands += (plain,) if layout.n_bounded > layout.n_named else ()
    hidden = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    for edit in here.flips:
        hidden = _flip(hidden, atoms, edit, layout, here)
    return Made(hidden, operands, after)


def _flip(hidden: Tensor, atoms: dict[str, Tensor], edit: Edit, layout: Any, here: LayerEdits) -> Tensor:
    """One unit alone with A or B turned to its complement."""
    component: Any = edit.component
    pair = layout.pair(component.unit)
    a, b = atoms["pair_a"][..., pair], atoms["pair_b"][..., pair]
    a, b = (1.0 - a, b) if edit.operation == "flip_a" else (a, 1.0 - b)
    flipped = a * b if component.unit < layout.n_pairs else a * (1.0 - b)
    applies = _applies(edit, here.start, hidden.shape[1], hidden.device)
    hidden = hidden.clone()
    hidden[..., component.unit] = torch.where(applies, flipped, hidden[..., component.unit])
    return hidden


def _remember_otherwise(
    part: Any,
    m: Float[Tensor, "b t q"],
    values: Float[Tensor, "b t q"],
    state: QuantifierState | None,
    after: QuantifierState,
    here: LayerEdits,
) -> tuple[Tensor, QuantifierState]:
    """Run the edited quantifiers again, token by token, with their own λ and states at the edits' positions."""
    layout = part.layout
    half = layout.n_existential
    units: dict[int, list[Edit]] = {}
    for edit in here.memory:
        component: Any = edit.component
        units.setdefault(component.unit - layout.quantifiers.start, []).append(edit)
    if not units:
        return values, after
    before = state or QuantifierState.empty(m.shape[0], half, layout.n_proportion, m.device)
    values = values.clone()
    kept = [tensor.clone() for tensor in (after.existential, after.total, after.count)]
    for row, edits in units.items():
        existential = row < half
        member = m[..., row].to(values.dtype)
        carried = before.existential[:, row] if existential else before.total[:, row - half]
        counted = carried if existential else before.count[:, row - half].expand_as(carried)
        made = []
        for place in range(m.shape[1]):
            decay = part.decay[row]
            for edit in edits:
                if edit.positions is not None and here.start + place not in edit.positions:
                    continue
                number = torch.as_tensor(edit.value, dtype=values.dtype, device=m.device)
                if edit.operation == "decay":
                    decay = number
                else:
                    carried = number.expand_as(carried) if existential else number * counted
            now = member[:, place]
            if existential:
                carried = 1.0 - (1.0 - now) * (1.0 - decay * carried)
                made.append(carried)
            else:
                carried, counted = decay * carried + now, decay * counted + 1.0
                made.append(carried / counted)
        values[..., row] = torch.stack(made, dim=1)
        if existential:
            kept[0][:, row] = carried
        else:
            kept[1][:, row - half], kept[2][:, row - half] = carried, counted
    return values, QuantifierState(*kept)


def _applies(edit: Edit, start: int, length: int, device: torch.device) -> Tensor:
    """(t,) bool: whether the edit applies at each token of a pass."""
    if edit.positions is None:
        return torch.ones(length, dtype=torch.bool, device=device)
    return torch.tensor([start + place in edit.positions for place in range(length)], device=device)


def _matrix(edit: Edit) -> str:
    if isinstance(edit.component, Operand):
        return f"pair_{edit.component.side.lower()}"
    return "quantifier" if isinstance(edit.component, QuantifierOperand) else "plain"


def _row(edit: Edit, layout: Any) -> int:
    component: Any = edit.component
    if isinstance(component, Operand):
        return component.pair
    first: int = layout.quantifiers.start if isinstance(component, QuantifierOperand) else layout.n_named
    return int(component.unit) - first


__all__ = ["Made", "edited_hidden", "edited_operands", "edited_plain", "edited_values"]
