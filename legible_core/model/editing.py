"""Edits applied inside the forward pass: the edited tensors are new ones, the model is untouched.

Within a layer the order is that of the computation, whatever the order of the list: the stream that enters it (add),
read rows (row), operands, quantifiers (decay, state), units' own operands (flip_a, flip_b), then z and the hidden
vector, then write columns (column, rank_one). At one place the edits apply in the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from legible_core.errors import LegibleError, NotExact
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.model.linear import linear
from legible_core.units import Channel, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit

# What an operation does to values themselves; the others change weights, states, or how a unit reads its operands.
VALUES = ("scale", "set", "clamp", "zero", "mean", "flip")
Where: TypeAlias = slice | Tensor
# Edits that apply in one step, each with a column and its number.
_Run: TypeAlias = list[tuple[Edit, int, float]]


@dataclass
class Effect:
    """What the value edits of one pass did: whether each operation should have moved a number, and did."""

    notes: list[tuple[_Run, Tensor, Tensor]] = field(default_factory=list)

    def note(self, run: _Run, old: Tensor, new: Tensor, exact: Tensor) -> None:
        """old, new, exact: (..., n), the run's values before, after, and after in numbers that do not round."""
        self.notes.append((run, (exact != old).flatten(0, -2).any(0), (new != old).flatten(0, -2).any(0)))

    def check(self) -> None:
        """Raise `LegibleError` for an edit that is no identity and yet left every number as it was."""
        wanted: dict[int, Edit] = {}
        moved: set[int] = set()
        for run, should, did in self.notes:
            for (edit, _, _), want, move in zip(run, should.tolist(), did.tolist(), strict=True):
                if move:
                    moved.add(id(edit))
                elif want:
                    wanted[id(edit)] = edit
        for key, edit in wanted.items():
            if key not in moved:
                raise no_effect(edit)


def no_effect(edit: Edit) -> LegibleError:
    return LegibleError(
        f"The edit {_short(edit)} changes nothing, though it is no identity: the change is smaller than the numbers "
        "resolve; make it larger, or compute in float32.",
        code="no_effect",
    )


@dataclass
class LayerEdits:
    """The edits of one layer, sorted by the place where they act; `start`: the position of the pass's first token."""

    start: int
    effect: Effect | None = None
    stream: list[Edit] = field(default_factory=list)
    value_rows: list[Edit] = field(default_factory=list)
    value_operands: list[Edit] = field(default_factory=list)
    heads: list[Edit] = field(default_factory=list)
    channel_columns: list[Edit] = field(default_factory=list)
    rows: list[Edit] = field(default_factory=list)
    operands: list[Edit] = field(default_factory=list)
    memory: list[Edit] = field(default_factory=list)
    flips: list[Edit] = field(default_factory=list)
    units: list[Edit] = field(default_factory=list)
    unit_columns: list[Edit] = field(default_factory=list)
    # Last of all, what survives: z and the hidden vector are multiplied by these, (b, 1, h, dh) and (b, 1, f).
    kept: tuple[Tensor, Tensor] | None = None

    @property
    def inside_values(self) -> bool:
        """Whether the values are made otherwise, before attention gathers them."""
        return bool(self.value_rows or self.value_operands)

    @property
    def inside_units(self) -> bool:
        """Whether the hidden vector is made otherwise, before its units' own edits."""
        return bool(self.rows or self.operands or self.memory or self.flips)

    def add(self, edit: Edit) -> None:
        self._place(edit).append(edit)

    def _place(self, edit: Edit) -> list[Edit]:
        of_heads = isinstance(edit.component, Head | Channel | HeadOperand)
        match edit.operation:
            case "add":
                return self.stream
            case "row":
                return self.value_rows if of_heads else self.rows
            case "decay" | "state":
                return self.memory
            case "flip_a" | "flip_b":
                return self.flips
            case "column" | "rank_one":
                return self.channel_columns if of_heads else self.unit_columns
        if isinstance(edit.component, HeadOperand):
            return self.value_operands
        if isinstance(edit.component, Operand | QuantifierOperand):
            return self.operands
        return self.heads if of_heads else self.units


def by_layer(edits: Iterable[Edit], start: int, effect: Effect | None = None) -> dict[int, LayerEdits]:
    """The edits of each layer that has any; the final residual stream counts as the layer after the last."""
    found: dict[int, LayerEdits] = {}
    for edit in edits:
        layer = edit.component.layer
        found.setdefault(layer, LayerEdits(start, effect)).add(edit)
    return found


# ---- values: scale, set, clamp, zero, mean, flip --------------------------------------------------------------------


def edit_hidden(
    hidden: Float[Tensor, "b t f"], layer: int, edits: Sequence[Edit], start: int
) -> Float[Tensor, "b t f"]:
    """Apply the value edits of this layer's units; `start` is the absolute position of the first token."""
    here = by_layer((e for e in edits if isinstance(e.component, Unit) and e.operation in VALUES), start).get(layer)
    return hidden if here is None else edit_units(hidden, here)


def edit_heads(
    z: Float[Tensor, "b t h dh"], layer: int, edits: Sequence[Edit], start: int
) -> Float[Tensor, "b t h dh"]:
    """Apply the value edits of this layer's heads and channels to z."""
    wanted = (e for e in edits if isinstance(e.component, Head | Channel) and e.operation in VALUES)
    here = by_layer(wanted, start).get(layer)
    return z if here is None else edit_z(z, here)


def edit_units(hidden: Float[Tensor, "b t f"], here: LayerEdits) -> Float[Tensor, "b t f"]:
    hidden = edit_values(hidden, here.units, _unit, here)
    return hidden if here.kept is None else hidden * here.kept[1].to(hidden)


def edit_z(z: Float[Tensor, "b t h dh"], here: LayerEdits) -> Float[Tensor, "b t h dh"]:
    width = z.shape[-1]

    def columns(edit: Edit) -> list[int]:
        component: Any = edit.component
        first = component.head * width
        return [first + component.channel] if isinstance(component, Channel) else list(range(first, first + width))

    z = edit_values(z.flatten(-2), here.heads, columns, here).unflatten(-1, (-1, width))
    return z if here.kept is None else z * here.kept[0].to(z)


def edit_values(
    values: Float[Tensor, "b t n"],
    edits: Sequence[Edit],
    columns: Callable[[Edit], list[int]],
    here: LayerEdits,
    limit: float | None = None,
) -> Float[Tensor, "b t n"]:
    """A copy of `values` with the edits applied; `columns` says which columns an edit means.

    limit: what a scaled value may not exceed, 1 for operands, so that they stay memberships.
    """
    if not edits:
        return values
    values = values.clone()
    for run in _runs(edits, columns):
        where = _where(run[0][0], here.start, values)
        if where is None:
            continue
        index = torch.tensor([column for _, column, _ in run], device=values.device)
        place: Any = (slice(None), where, index) if isinstance(where, slice) else (slice(None), where[:, None], index)
        old = values[place]
        new = _changed(old, run, limit)
        values[place] = new
        if here.effect is not None:
            # A bound or a value is rounded like what it meets, so only these two can be lost in rounding.
            exact = _changed(old.double(), run, limit) if run[0][0].operation in ("scale", "flip") else new
            here.effect.note(run, old, new, exact)
    return values


def _runs(edits: Sequence[Edit], columns: Callable[[Edit], list[int]]) -> Iterator[_Run]:
    """Edits that apply in one step: one after the other, of one operation and the same positions, each column once."""
    run: _Run = []
    seen: set[int] = set()
    for edit in edits:
        wide = columns(edit)
        numbers = [0.0 if edit.value is None else edit.value] * len(wide) if edit.vector is None else list(edit.vector)
        same = not run or (edit.operation, edit.positions) == (run[0][0].operation, run[0][0].positions)
        if not same or not seen.isdisjoint(wide):
            yield run
            run, seen = [], set()
        run += [(edit, column, number) for column, number in zip(wide, numbers, strict=True)]
        seen.update(wide)
    if run:
        yield run


def _changed(old: Tensor, run: _Run, limit: float | None) -> Tensor:
    """The run's operation on (..., n) values, computed in float32 at least."""
    wide = torch.promote_types(old.dtype, torch.float32)
    first = torch.tensor([number for _, _, number in run], dtype=torch.float64, device=old.device).to(wide)
    new = old.to(wide)
    match run[0][0].operation:
        case "scale":
            new = new * first
            new = new if limit is None else new.clamp(max=limit)
        case "clamp":
            last = torch.tensor([edit.upper for edit, _, _ in run], dtype=torch.float64, device=old.device)
            new = torch.minimum(torch.maximum(new, first), last.to(wide))
        case "flip":
            new = 1.0 - new
        case _:
            new = first.expand_as(new)
    return new.to(old.dtype)


def _where(edit: Edit, start: int, values: Tensor) -> Where | None:
    """The edit's positions within a pass that begins at `start`; None when it has none here."""
    if edit.positions is None:
        return slice(None)
    length = values.shape[1]
    local = sorted({position - start for position in edit.positions if start <= position < start + length})
    return torch.tensor(local, device=values.device) if local else None


def _unit(edit: Edit) -> list[int]:
    component: Any = edit.component
    return [component.unit]


# ---- the stream -----------------------------------------------------------------------------------------------------


def edit_stream(x: Float[Tensor, "b t d"], here: LayerEdits | None) -> Float[Tensor, "b t d"]:
    """x with the layer's directions added."""
    if here is None or not here.stream:
        return x
    x = x.clone()
    for edit in here.stream:
        where = _where(edit, here.start, x)
        if where is not None:
            x[:, where] += direction_of(edit, x)
    return x


def direction_of(edit: Edit, like: Tensor) -> Float[Tensor, " d"]:
    """What an `add` edit adds at each of its positions, in the dtype and on the device of `like`."""
    return (1.0 if edit.value is None else edit.value) * numbers_of(edit).to(like)


def numbers_of(edit: Edit) -> Float[Tensor, " n"]:
    """The edit's vector, float32."""
    assert edit.vector is not None
    return torch.from_numpy(edit.vector.array.copy())


# ---- weights: rows read otherwise, columns written otherwise ---------------------------------------------------------


def edit_rows(
    module: Any,
    name: str,
    scores: Float[Tensor, "b t n"],
    x: Float[Tensor, "b t d"],
    edits: Sequence[tuple[int, Edit]],
    here: LayerEdits,
) -> Float[Tensor, "b t n"]:
    """row·x of the matrix `name`, with the rows replaced that (row, edit) pairs name."""
    if not edits:
        return scores
    scores = scores.clone()
    for row, edit in edits:
        where = _where(edit, here.start, scores)
        if where is None:
            continue
        bias = getattr(module, f"{name}_bias", None)
        offset = edit.value if edit.value is not None else None if bias is None else bias[row]
        read = x[:, where] @ numbers_of(edit).to(x)
        scores[:, where, row] = read if offset is None else read + offset
    return scores


def write(
    module: Any, name: str, activations: Float[Tensor, "b t n"], edits: Sequence[Edit], here: LayerEdits, width: int
) -> Float[Tensor, "b t d"]:
    """The matrix `name` applied with its edited columns; `width`: how many columns a head has (1 for units)."""
    if not edits:
        return linear(module, name, activations)

    def product(x: Tensor, chosen: Sequence[Edit]) -> Tensor:
        matrix = edited_matrix(getattr(module, name), chosen, width)
        return F.linear(x, matrix, getattr(module, f"{name}_bias", None))

    groups = _together(edits, here.start, activations)
    if len(groups) == 1 and isinstance(groups[0][0], slice):
        # The same edits everywhere: one product, and none with the matrix as it is.
        return product(activations, groups[0][1])
    out = linear(module, name, activations)
    for where, chosen in groups:
        out[:, where] = product(activations[:, where], chosen)
    return out


def edited_matrix(matrix: Float[Tensor, "d n"], edits: Sequence[Edit], width: int) -> Float[Tensor, "d n"]:
    """A copy of a write matrix with `column` and `rank_one` edits done in their order, in the matrix's dtype."""
    matrix = matrix.detach().clone()
    for edit in edits:
        vector = numbers_of(edit).to(matrix.device)
        component: Any = edit.component
        if edit.operation == "rank_one":
            u, v = vector[: matrix.shape[0]], vector[matrix.shape[0] :]
            factor = 1.0 if edit.value is None else edit.value
            matrix = (matrix.float() + factor * torch.outer(u, v)).to(matrix.dtype)
        else:
            column = component.unit if isinstance(component, Unit) else component.head * width + component.channel
            matrix[:, column] = vector.to(matrix.dtype)
    return matrix


def weight_edits(edits: Iterable[Edit], layer: int, sublayer: str, position: int) -> list[Edit]:
    """The edits that change what a sublayer ("attention", "feed_forward") writes with at a position."""
    heads = sublayer == "attention"
    return [
        edit
        for edit in edits
        if edit.operation in ("column", "rank_one")
        and edit.component.layer == layer
        and isinstance(edit.component, Channel) == heads
        and (edit.positions is None or position in edit.positions)
    ]


def added_at(edits: Iterable[Edit], position: int, layers: int) -> Iterator[Edit]:
    """The directions added at a position to the stream entering layer `layers` or a layer below it."""
    for edit in edits:
        here = edit.positions is None or position in edit.positions
        if isinstance(edit.component, Residual) and edit.component.layer <= layers and here:
            yield edit


def _together(edits: Sequence[Edit], start: int, x: Tensor) -> list[tuple[Where, list[Edit]]]:
    """Positions under the same edits, with these edits; positions under none are left out."""
    if all(edit.positions is None for edit in edits):
        return [(slice(None), list(edits))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in range(x.shape[1]):
        key = tuple(i for i, e in enumerate(edits) if e.positions is None or start + place in e.positions)
        if key:
            groups.setdefault(key, []).append(place)
    if [len(places) for places in groups.values()] == [x.shape[1]]:
        return [(slice(None), [edits[i] for key in groups for i in key])]
    return [(torch.tensor(places, device=x.device), [edits[i] for i in key]) for key, places in groups.items()]


# ---- overflow --------------------------------------------------------------------------------------------------------


def fits(x: Float[Tensor, "b t d"]) -> Tensor:
    """() bool: whether the stream, and the squares that its norms sum, are finite everywhere."""
    return x.square().sum(-1).isfinite().all()


def check_fits(flags: Sequence[Tensor], edits: Sequence[Edit]) -> None:
    """Raise `NotExact` naming the first layer whose stream no longer fits.

    flags: `fits` after every layer, and of the final stream.
    """
    passed = torch.stack(list(flags)).tolist()
    if all(passed):
        return
    layer = passed.index(False)
    where = f"in layer {layer}" if layer < len(flags) - 1 else "before the final norm"
    guilty = [_short(edit) for edit in edits if edit.component.layer <= layer]
    said = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "")
    raise NotExact(
        f"With the edits {said} the residual stream overflows float32 {where}, so there is nothing to read; "
        "use smaller values.",
        code="not_finite",
        status=422,
    )


def _short(edit: Edit) -> str:
    text = edit_text(edit)
    return text if len(text) <= 60 else text[:57] + "…"
