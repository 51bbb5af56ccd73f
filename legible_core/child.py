"""An edited model as a checkpoint of its own: edits written into the weights, where weights can say the same.

    child = bake(model, edits)                     # a new model; its plain forward is the edited forward of the old one
    checkpoint = save_child(parent, edits, folder) # an ordinary checkpoint folder whose card names parent and edits

A layer writes M·h. Unit edits make of each h_u an affine s·h_u + c, so column u becomes s·M_u, and c·M_u a constant.
Operands of a pair span {A·B, A·(1 − B)} = {A·B, A}: any affine change of B, and any factor of A, only mixes the pair's
two columns; 1 − σ(z) = σ(−z) turns a read row round. Constants need a bias to live in. What has no such form (a clamp,
a change at some positions) is refused with the reason, and stays the base checkpoint's hash and a list of edits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from legible_core.checkpoint import StoredDtype, load, save
from legible_core.errors import LegibleError
from legible_core.folder import MAX_CARD_BYTES, Card
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.lineage import lineage_fields
from legible_core.model import Transformer
from legible_core.model.editing import LayerEdits, by_layer, edited_matrix
from legible_core.reads import read_of
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit

_DTYPES: dict[str, StoredDtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# σ is exactly 0 and 1 here in float32, and finite.
OFF, ON = -120.0, 40.0
# What of a parent's card is as true of its child.
KEPT = ("licence", "data", "training_text")


@torch.no_grad()
def bake(model: Transformer, edits: Sequence[Edit]) -> Transformer:
    """A copy of a float32 model whose plain forward is the edited forward of `model`, to float32 rounding.

    Raises `LegibleError` (code "not_in_weights") naming the first edit that weights cannot express, and what
    `Edit.check` raises for one that the model has no place for.
    """
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        raise LegibleError("Edits are written into float32 weights; load the checkpoint in float32.", code="bad_dtype")
    for edit in edits:
        edit.check(model.config, model.config.context)
        at_position = isinstance(edit.component, Residual) and edit.component.layer == 0
        if edit.positions is not None and not at_position:
            raise refused(edit, "it applies at some positions, and weights act at all of them")
    child = copy.deepcopy(model)
    for layer, here in by_layer(edits, 0).items():
        for edit in here.stream:
            _add(child, edit)
        if layer < child.config.n_layers:
            _Layer(child, layer, here).bake()
    return child.eval()


def save_child(
    parent: Checkpoint, edits: Sequence[Edit], folder: Path | str, *, dtype: StoredDtype | None = None
) -> Checkpoint:
    """Write the child of a checkpoint under these edits as a folder, and return it as `open_checkpoint` reads it back.

    dtype: default the parent's where it holds every edited weight exactly, float32 otherwise. Raises what `bake` and
    `save` raise, `LegibleError` for no edits, edits that leave every weight as it was, and edits that overflow.
    """
    if not edits:
        raise LegibleError("A child checkpoint needs at least one edit; give --edit.", code="no_edits")
    model = load(parent)
    child = bake(model, edits)
    before = model.state_dict()
    if all(torch.equal(tensor, before[name]) for name, tensor in child.state_dict().items()):
        raise LegibleError("These edits leave every weight as it was, so there is no child to save.", code="no_effect")
    _check_computes(child)
    card = _card(parent, edits)
    size = len(card.render("0" * 64).encode())
    if size > MAX_CARD_BYTES:
        raise LegibleError(
            f"These edits take {size:,} bytes on the card, whose limit is {MAX_CARD_BYTES:,}; save them in several "
            "steps, each a child of the last.",
            code="too_large",
        )
    chosen = dtype or _lossless(child, _DTYPES[parent.dtype])
    return save(folder, child, parent.tokenizer_path, card, chosen)


@torch.no_grad()
def _check_computes(child: Transformer) -> None:
    """Raise where a trial pass over tokens from the whole vocabulary overflows: no reading of it could be made."""
    ids = torch.linspace(0, child.config.vocab_size - 1, min(child.config.context, 64)).long()
    stream = child.residual(ids[None])  # which the final norm squares
    if not (torch.isfinite(stream.square().sum(-1)).all() and torch.isfinite(child.logits(stream)).all()):
        raise LegibleError(
            "These edits make the model's numbers overflow float32 on a trial text, so the child could not be read; "
            "give smaller values.",
            code="not_finite", status=422,
        )  # fmt: skip


def refused(edit: Edit, reason: str) -> LegibleError:
    """The refusal of an edit that weights cannot express."""
    text = edit_text(edit)
    text = text if len(text) <= 60 else text[:57] + "…"
    return LegibleError(
        f"The edit {text} cannot be saved in weights: {reason}.",
        code="not_in_weights",
        hint="It can be read all the same, as the base checkpoint with edits: legible read MODEL PROMPT --edit …",
        status=422,
    )


# ---- one layer -------------------------------------------------------------------------------------------------------


@dataclass
class _Affine:
    """x → scale·x + constant, and the edits that made it."""

    scale: float = 1.0
    constant: float = 0.0

    def apply(self, edit: Edit, number: float | None) -> None:
        match edit.operation:
            case "scale":
                self.scale, self.constant = self.scale * _given(number), self.constant * _given(number)
            case "zero":
                self.scale, self.constant = 0.0, 0.0
            case "set" | "mean":
                self.scale, self.constant = 0.0, _given(number)
            case "flip":
                self.scale, self.constant = -self.scale, 1.0 - self.constant
            case _:
                raise refused(edit, f"no weights {edit.operation} a value that depends on the text")

    def check_membership(self, edit: Edit) -> None:
        """Raise for an operand that would pass 1, where the edited forward stops it."""
        if edit.operation == "scale" and max(self.constant, self.scale + self.constant) > 1.0:
            raise refused(edit, "an operand that it raises above 1 is stopped there, and weights cannot stop it")


class _Layer:
    """The edits of one layer, written into the layer of a copy."""

    def __init__(self, model: Transformer, layer: int, here: LayerEdits) -> None:
        self.config = model.config
        self.layer, self.here = layer, here
        self.part: Any = model.layers[layer]

    def bake(self) -> None:
        """In the order of the forward: rows, operands, memories, then what each sublayer writes."""
        for edit in (*self.here.value_rows, *self.here.rows):
            self._replace_row(edit)
        for edit in self.here.memory:
            self._remember(edit)
        self._write(
            self.part.attention, "output", self.here.value_operands, [], self.here.heads, self.here.channel_columns
        )
        here = self.here
        self._write(self.part.feed_forward, "down", here.operands, here.flips, here.units, here.unit_columns)

    def _replace_row(self, edit: Edit) -> None:
        module, name, row = self._row(edit.component)
        assert edit.vector is not None  # an edit of a row has one
        getattr(module, name)[row] = torch.from_numpy(edit.vector.array.copy())
        if edit.value is not None:
            self._bias_row(module, name, row, edit.value, edit)

    def _bias_row(self, module: Any, name: str, row: int, value: float, edit: Edit) -> None:
        bias = getattr(module, f"{name}_bias", None)
        if bias is not None:
            bias[row] = value
        elif value:
            raise refused(edit, "this checkpoint has no biases in which a constant could live")

    def _remember(self, edit: Edit) -> None:
        if edit.operation == "state":
            raise refused(edit, "a state is what the text left, and weights do not set it")
        unit: Any = edit.component
        decay = _given(edit.value)
        theta = OFF if decay <= 0.0 else ON if decay >= 1.0 else math.log(decay / (1.0 - decay))
        self.part.feed_forward.theta[unit.unit - self.config.feed_forward.quantifiers.start] = theta

    def _write(
        self,
        module: Any,
        name: str,
        operands: list[Edit],
        flips: list[Edit],
        values: list[Edit],
        columns: list[Edit],
    ) -> None:
        """The write matrix and its bias under the edits of operands, of single units, of values, and of columns."""
        if not (operands or flips or values or columns):
            return
        matrix: Any = getattr(module, name)
        width = self.config.d_head if name == "output" else 1
        old = edited_matrix(matrix, columns, width).double()
        new, constant = old.clone(), torch.zeros(old.shape[0], dtype=torch.float64)
        last: Edit | None = None
        for column, (affine, edit) in self._values(values).items():
            new[:, column] = old[:, column] * affine.scale
            if affine.constant and old[:, column].any():
                constant += old[:, column] * affine.constant
                last = edit
        new = self._mixed(new, operands, flips)
        if last is not None:
            bias = getattr(module, f"{name}_bias", None)
            if bias is None:
                raise refused(last, "this checkpoint has no biases in which a constant could live")
            bias.copy_(bias.double() + constant)
        matrix.copy_(new)

    def _values(self, edits: list[Edit]) -> dict[int, tuple[_Affine, Edit]]:
        """By column the affine map that the value edits make, and the last of them."""
        found: dict[int, tuple[_Affine, Edit]] = {}
        for edit in edits:
            for column, number in self._columns(edit):
                affine = found[column][0] if column in found else _Affine()
                affine.apply(edit, number)
                found[column] = (affine, edit)
        return found

    def _columns(self, edit: Edit) -> list[tuple[int, float | None]]:
        width = self.config.d_head
        match edit.component:
            case Unit(_, unit):
                return [(unit, edit.value)]
            case Channel(_, head, channel):
                return [(head * width + channel, edit.value)]
            case Head(_, head):
                numbers = [edit.value] * width if edit.vector is None else list(edit.vector)
                return [(head * width + channel, number) for channel, number in enumerate(numbers)]
        raise AssertionError(edit.component)

    # ---- operands ----------------------------------------------------------------------------------------------------

    def _mixed(self, matrix: Tensor, operands: list[Edit], flips: list[Edit]) -> Tensor:
        """The columns (float64) once operands are edited: pairs mix theirs, a quantifier's is scaled."""
        matrix = matrix.clone()
        sides: dict[Component, list[Edit]] = {}
        for edit in operands:
            component: Any = edit.component
            sides.setdefault(component, []).append(edit)
        for component, edits in sides.items():
            if isinstance(component, QuantifierOperand):
                matrix[:, component.unit] *= self._quantifier(component, edits)
        for first, second, a, b in self._pairs(operands, flips):
            scale = self._first(a, sides.get(a, []))
            affine = self._second(sides.get(b, []))
            flipped = {unit for unit in (first, second) if self._flipped(unit, flips)}
            both = _rows(affine, first in flipped, second in flipped)
            one, two = matrix[:, first].clone(), matrix[:, second].clone()
            for column, place in ((first, 0), (second, 1)):
                matrix[:, column] = scale * (one * both[0][place] + two * both[1][place])
        return matrix

    def _pairs(self, operands: list[Edit], flips: list[Edit]) -> Iterable[tuple[int, int, Component, Component]]:
        """The pairs that any edit touches: columns of A·B and A·(1 − B), and both operands."""
        layout, half, width = self.config.feed_forward, self.config.d_head // 2, self.config.d_head
        found: dict[tuple[int, int], tuple[Component, Component]] = {}
        for edit in (*operands, *flips):
            match edit.component:
                case HeadOperand(layer, head, pair, _):
                    start = head * width + pair
                    found[start, start + half] = (
                        HeadOperand(layer, head, pair, "A"),
                        HeadOperand(layer, head, pair, "B"),
                    )
                case Operand(layer, pair, _):
                    found[pair, pair + layout.n_pairs] = (Operand(layer, pair, "A"), Operand(layer, pair, "B"))
                case Unit(layer, unit):
                    pair = layout.pair(unit)
                    found[pair, pair + layout.n_pairs] = (Operand(layer, pair, "A"), Operand(layer, pair, "B"))
        return [(*columns, *sides) for columns, sides in found.items()]

    def _flipped(self, unit: int, flips: list[Edit]) -> bool:
        """Whether a unit alone has its B turned; one whose A is turned has no such weights."""
        turned = False
        for edit in flips:
            component: Any = edit.component
            if component.unit == unit:
                if edit.operation == "flip_a":
                    raise refused(edit, "it needs B without A, and the pair's two units give only A·B and A·(1 − B)")
                turned = True
        return turned

    def _first(self, operand: Component, edits: list[Edit]) -> float:
        """The factor that is left for the columns of A's pair; flips turn A's row round, constants use its bias."""
        affine = self._turned(operand, edits)
        return self._constant(operand, affine, edits[-1]) if affine.constant else affine.scale

    def _second(self, edits: list[Edit]) -> _Affine:
        """What the edits make of B, in full."""
        affine = _Affine()
        for edit in edits:
            affine.apply(edit, edit.value)
            affine.check_membership(edit)
        return affine

    def _quantifier(self, operand: QuantifierOperand, edits: list[Edit]) -> float:
        """The factor that is left for a quantifier's column: a proportion is linear in its m, an existential is not."""
        affine = self._turned(operand, edits)
        if affine.constant:
            return self._constant(operand, affine, edits[-1])
        if affine.scale not in (0.0, 1.0) and self.config.feed_forward.kind(operand.unit) == "existential":
            raise refused(edits[-1], "an existential is not linear in its m")
        return affine.scale

    def _turned(self, operand: Component, edits: list[Edit]) -> _Affine:
        """What the edits make of an operand whose row turns round for its first flips: 1 − σ(z) = σ(−z)."""
        affine = _Affine()
        for edit in edits:
            if edit.operation == "flip" and (affine.scale, affine.constant) == (1.0, 0.0):
                module, name, row = self._row(operand)
                for weights in (getattr(module, name), getattr(module, f"{name}_bias", None)):
                    if weights is not None:
                        weights[row] *= -1.0
                continue
            affine.apply(edit, edit.value)
            affine.check_membership(edit)
        return affine

    def _constant(self, operand: Component, affine: _Affine, edit: Edit) -> float:
        """An operand that is the same on every text: its row reads nothing, its bias is the logit of the value."""
        value = affine.constant
        if affine.scale:
            raise refused(edit, "it leaves the operand neither a membership of a row nor a constant")
        module, name, row = self._row(operand)
        logit = ON if value >= 1.0 else math.log(value / (1.0 - value))
        self._bias_row(module, name, row, logit, edit)
        getattr(module, name)[row] = 0.0
        return 1.0

    def _row(self, component: Any) -> tuple[Any, str, int]:
        read = read_of(self.config, component)
        module = self.part.attention if read.sublayer == "attention" else self.part.feed_forward
        return module, read.matrix, read.row


def _rows(b: _Affine, first: bool, second: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """A·B' and A·(1 − B') for B' = s·B + c as mixtures of A·B and A·(1 − B): A = A·B + A·(1 − B) carries constants.

    first, second: whether that unit alone has B' turned to 1 − B', which makes it the other of the two.
    """
    both = (b.scale + b.constant, b.constant)
    without = (1.0 - b.scale - b.constant, 1.0 - b.constant)
    return (without if first else both), (both if second else without)


def _add(model: Transformer, edit: Edit) -> None:
    """A direction added to the stream: to the positions before layer 0, to the bias of the layer below elsewhere."""
    layer = edit.component.layer
    assert edit.vector is not None  # an edit that adds has one
    direction = _given(edit.value, 1.0) * torch.from_numpy(edit.vector.array.copy())
    if layer == 0:
        rows = range(model.config.context) if edit.positions is None else sorted(set(edit.positions))
        model.position_embedding[list(rows)] += direction
        return
    bias = getattr(model.layers[layer - 1].feed_forward, "down_bias", None)
    if bias is None:
        raise refused(edit, "this checkpoint has no biases in which a constant could live")
    bias += direction


def _given(number: float | None, default: float = 0.0) -> float:
    return default if number is None else number


# ---- the folder ------------------------------------------------------------------------------------------------------


def _card(parent: Checkpoint, edits: Sequence[Edit]) -> Card:
    texts = [edit_text(edit) for edit in edits]
    fields = {"title": f"{parent.title}, edited", **lineage_fields(parent, tuple(edits))}
    fields |= {key: parent.card.fields[key] for key in KEPT if key in parent.card.fields}
    shown = "\n".join(f"- `{text if len(text) <= 100 else text[:97] + '…'}`" for text in texts)
    body = (
        f"# {parent.title}, edited\n\nThe checkpoint {parent.slug} ({parent.hash[:12]}) with these edits written into "
        f"its weights, in this order:\n\n{shown}\n\nNothing was measured on it: the parent's figures are the parent's."
    )
    return Card(fields, body)


def _lossless(model: Transformer, dtype: StoredDtype) -> StoredDtype:
    """The dtype if it holds every matrix exactly (vectors are stored in float32 anyway), else float32."""
    stored = getattr(torch, dtype)
    exact = all(
        torch.equal(tensor.to(stored).float(), tensor) for tensor in model.state_dict().values() if tensor.ndim > 1
    )
    return dtype if exact else "float32"


__all__ = ["bake", "refused", "save_child"]
