"""What is said of each contributor: operation, operands and their values, decay, promoted tokens, names.

Read off the weights and the trace: operation, operands, activations, decay, promotes, target rank.
Measured on data, where the checkpoint has names: detect lists, labels, formulas, classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from legible_core.attribution import Attribution, optional
from legible_core.axes import Float
from legible_core.config import ModelConfig
from legible_core.model.quantifiers import half_life
from legible_core.naming.promote import promotion
from legible_core.readable import Readable
from legible_core.reading import Contributor, DetectToken, LabelInfo, OperandValue, Promoted
from legible_core.tokens import Tokenizer
from legible_core.trace import Trace
from legible_core.under_edits import decay_at, edited_layers, write_matrix
from legible_core.units import (
    BOUNDED,
    GLYPHS,
    Channel,
    Component,
    Head,
    HeadOperand,
    Operand,
    QuantifierOperand,
    Unit,
)

if TYPE_CHECKING:
    from legible_core.naming.names import ComponentName, Label, Names

OPERATIONS = {
    "intersection": "A∩B",
    "difference": "A∖B",
    "existential": "∃m",
    "proportion": "%m",
    "gelu": "GELU",
    "sigmoid": "σ",
    "softplus": "softplus",
    "relu": "ReLU",
    "silu": "SiLU",
    "swiglu": "SiLU(gate)·up",
    "geglu": "GELU(gate)·up",
}
# Channels shown with a head among the top contributors; the head's own page shows all.
HEAD_CHANNELS = 3
DETECT_TOKENS = 8
# Rows of the write columns projected on the vocabulary at once: the product is (rows, vocabulary) float32.
CHUNK = 32


class Describer:
    """Turns (layer, index) pairs of one reading into `Contributor`s."""

    def __init__(self, model: Readable, tokenizer: Tokenizer | None, names: Names | None) -> None:
        self.model = model
        self.config: ModelConfig = model.config
        self.tokenizer = tokenizer
        self.names = names
        self._masks: tuple[np.ndarray, np.ndarray] | None = None
        self._ranked: Tensor | None = None

    # ---- one contributor after another -------------------------------------------------------------------------------

    def describe(
        self,
        found: Sequence[tuple[str, int, int]],
        trace: Trace,
        position: int,
        attribution: Attribution,
        target: int,
        promoted: int,
    ) -> tuple[Contributor, ...]:
        """The contributors `found` (see `attribution.strongest`), in their order.

        promoted: how many promoted tokens each gets; 0 leaves the vocabulary untouched, and with it the target's rank.
        """
        values = self.operand_values(found, trace, position)
        lists: Sequence[tuple[tuple[Promoted, ...], int | None]] = [((), None)] * len(found)
        if promoted and found:
            lists = self.promotes(self.writes(found, trace, position), target, promoted)
        described = []
        for (sort, layer, index), (promotes, rank) in zip(found, lists, strict=True):
            if sort == "head":
                described.append(self._head(layer, index, trace, position, attribution, promotes, rank))
            else:
                value = float(attribution.units[layer, index])
                activation = float(trace.layers[layer].hidden[position, index])
                decay = decay_at(trace, Unit(layer, index), position)
                described.append(self._unit(layer, index, value, activation, values, promotes, rank, decay))
        return tuple(described)

    def _unit(
        self,
        layer: int,
        index: int,
        value: float,
        activation: float,
        values: dict[Component, float],
        promotes: tuple[Promoted, ...],
        rank: int | None,
        decay: float | None,
    ) -> Contributor:
        kind = self.config.feed_forward.kind(index)
        decay = self.decay(layer, index) if decay is None else decay
        return Contributor(
            id=str(Unit(layer, index)),
            kind=kind,
            glyph=GLYPHS[kind],
            value=value,
            activation=activation,
            operation=OPERATIONS[kind],
            operands=tuple(self.operand(id, values[id]) for id in operands_of(self.config, Unit(layer, index))),
            decay=decay,
            half_life=finite(None if decay is None else half_life(decay)),
            promotes=promotes,
            target_rank=rank,
            **self.name_fields(Unit(layer, index)),
        )

    def _head(
        self,
        layer: int,
        index: int,
        trace: Trace,
        position: int,
        attribution: Attribution,
        promotes: tuple[Promoted, ...],
        rank: int | None,
    ) -> Contributor:
        terms = attribution.channels[layer, index]
        strongest = np.argsort(-np.abs(terms), kind="stable")[:HEAD_CHANNELS]
        z = trace.layers[layer].z[position, index]
        return Contributor(
            id=str(Head(layer, index)),
            kind="head",
            glyph=GLYPHS["head"],
            value=float(attribution.heads[layer, index]),
            operation=self.config.attention.value if self.config.is_bounded(layer, index) else "linear",
            operands=tuple(
                self.operand(Channel(layer, index, int(c)), float(z[int(c)]), float(terms[c])) for c in strongest
            ),
            promotes=promotes,
            target_rank=rank,
        )

    # ---- read off the weights and the trace --------------------------------------------------------------------------

    @torch.no_grad()
    def operand_values(
        self, found: Sequence[tuple[str, int, int]], trace: Trace, position: int
    ) -> dict[Component, float]:
        """Operand values of the units in `found` at one position: only their rows are multiplied, layer by layer."""
        layout = self.config.feed_forward
        wanted: dict[int, list[int]] = {}
        for sort, layer, index in found:
            if sort == "unit" and layout.kind(index) in BOUNDED:
                wanted.setdefault(layer, []).append(index)
        values: dict[Component, float] = {}
        for layer in wanted.keys() & edited_layers(trace):
            values |= self._edited_operands(layer, wanted.pop(layer), trace, position)
        for layer, units in wanted.items():
            part: Any = self.model.layers[layer]
            recorded = trace.layers[layer].feed_forward_in[position]
            x = part.feed_forward_norm(recorded).to(part.feed_forward.down.dtype)
            pairs = sorted({layout.pair(u) for u in units if u < 2 * layout.n_pairs})
            quantifiers = sorted(u for u in units if 2 * layout.n_pairs <= u < layout.n_named)
            for unit in (u for u in units if u >= layout.n_named):  # a sigmoid unit's operand is its own value
                values[Unit(layer, unit)] = float(trace.layers[layer].hidden[position, unit])
            if pairs:
                a, b = (memberships(part.feed_forward, name, pairs, x).tolist() for name in ("pair_a", "pair_b"))
                values |= {Operand(layer, pair, "A"): m for pair, m in zip(pairs, a, strict=True)}
                values |= {Operand(layer, pair, "B"): m for pair, m in zip(pairs, b, strict=True)}
            if quantifiers:
                rows = [u - layout.quantifiers.start for u in quantifiers]
                m = memberships(part.feed_forward, "quantifier", rows, x).tolist()
                values |= {QuantifierOperand(layer, unit): v for unit, v in zip(quantifiers, m, strict=True)}
        return values

    def _edited_operands(self, layer: int, units: Sequence[int], trace: Trace, position: int) -> dict[Component, float]:
        """As `operand_values` of one layer, as its edits left them."""
        found = self.model.operands(layer, trace, position)
        layout = self.config.feed_forward
        values: dict[Component, float] = {}
        for id in (operand for unit in units for operand in operands_of(self.config, Unit(layer, unit))):
            match id:
                case Operand(_, pair, side):
                    values[id] = float(found[f"pair_{side.lower()}"][pair])
                case QuantifierOperand(_, unit):
                    values[id] = float(found["quantifier"][unit - layout.quantifiers.start])
                case Unit(_, unit):  # a sigmoid unit's operand is its own value
                    values[id] = float(trace.layers[layer].hidden[position, unit])
        return values

    def decay(self, layer: int, unit: int) -> float | None:
        """λ of a quantifier; None for other units."""
        layout = self.config.feed_forward
        if not layout.quantifiers.start <= unit < layout.quantifiers.stop:
            return None
        return float(self.model.decay(layer)[unit - layout.quantifiers.start])

    @torch.no_grad()
    def writes(self, found: Sequence[tuple[str, int, int]], trace: Trace, position: int) -> Float[Tensor, "n d"]:
        """The write column of each unit, and of each head what it writes here (its columns weighted by its z)."""
        columns = []
        for sort, layer, index in found:
            part: Any = self.model.layers[layer]
            matrix = write_matrix(self.model, trace, layer, "feed_forward" if sort == "unit" else "attention", position)
            if sort == "unit":
                column, gain = matrix[:, index].float(), optional(part.feed_forward, "post_gain")
            else:
                width = self.config.d_head
                z = trace.layers[layer].z[position, index].float()
                column = matrix[:, index * width : (index + 1) * width].float() @ z
                gain = optional(part.attention, "post_gain")
            columns.append(column if gain is None else column * gain.float())
        return torch.stack(columns)

    @torch.no_grad()
    def promotes(
        self, columns: Float[Tensor, "n d"], target: int, count: int
    ) -> list[tuple[tuple[Promoted, ...], int]]:
        """Per write column the `count` tokens it promotes most, and the target's rank among them all (from 1).

        The weight of token v is ⟨W_U[v]⊙γ, column - mean(column)⟩ less its mean over the vocabulary: the logits that
        one unit of activation adds, before the division by std(x). With names, only tokens that their corpus holds
        often enough are ranked, and the target beside them whatever it is.
        """
        often = self._often()
        result: list[tuple[tuple[Promoted, ...], int]] = []
        for chunk in columns.split(CHUNK):
            weights = promotion(self.model, chunk.T)
            of_target = weights[:, target, None].clone()
            if often is not None:
                weights.masked_fill_(~often, -math.inf)
            best, ids = weights.topk(min(count, weights.shape[1] if often is None else int(often.sum())), dim=-1)
            ranks = ((weights > of_target).sum(-1) + 1).tolist()
            for row, tokens, rank in zip(best.tolist(), ids.tolist(), ranks, strict=True):
                pairs = zip(tokens, row, strict=True)
                result.append((tuple(Promoted(id=i, display=self.display(i), weight=w) for i, w in pairs), rank))
        return result

    def _often(self) -> Tensor | None:
        """(v,) bool: tokens that the named corpus holds often enough to be ranked; None without names."""
        if self._ranked is None and self.names is not None:
            self._ranked = torch.from_numpy(self.names.often.copy()).to(self.model.token_embedding.device)
        return self._ranked

    # ---- measured on data --------------------------------------------------------------------------------------------

    def operand(self, id: Component, value: float, term: float | None = None) -> OperandValue:
        """An operand or channel with its value here and, where a scan named it, what it detects."""
        label: LabelInfo | None = None
        detect: tuple[DetectToken, ...] = ()
        on: float | None = None
        if self.names is not None and is_operand(self.config, id):
            name = self.names.operand(id, shown=DETECT_TOKENS)
            label, on = label_info(name.label, name.agreement), name.on
            detect = tuple(
                DetectToken(id=t.id, display=t.display, lift=t.lift, count=t.count, share=t.share)
                for t in name.detect
                if math.isfinite(t.lift)
            )
        elif isinstance(id, Channel):
            label = self.label(id)
        return OperandValue(id=str(id), value=value, term=term, label=label, detect=detect, on=on)

    def label(self, id: Unit | Channel) -> LabelInfo | None:
        """Label of a component's promote side; None without names, and for linear channels, which have none."""
        name = self._name(id)
        return None if name is None else label_info(name.label, None)

    def name_fields(self, id: Unit | Channel) -> dict[str, Any]:
        """`label` (of the promote side), `formula` and `class` of a component; all None where it has no name."""
        name = self._name(id)
        if name is None:
            return {"label": None, "formula": None, "class": None}
        label = label_info(name.label, None)
        return {
            "label": None if label is None else label.model_dump(),
            "formula": name.formula or None,
            "class": None if name.cls is None else str(name.cls),
        }

    def _name(self, id: Unit | Channel) -> ComponentName | None:
        if self.names is None or (isinstance(id, Channel) and not self.config.is_bounded(id.layer, id.head)):
            return None
        return self.names.component(id)

    def named_masks(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Which channels (L, h, dh) and units (L, f) are SELECTIVE and labelled; None without names. Computed once."""
        if self.names is None:
            return None
        if self._masks is None:
            config = self.config
            channels = np.zeros((config.n_layers, config.n_heads, config.d_head), dtype=bool)
            units = np.zeros((config.n_layers, config.feed_forward.d_ff), dtype=bool)
            for layer in range(config.n_layers):
                bounded = config.attention.n_special[layer]
                named, units[layer] = self.names.named(layer)
                channels[layer, :bounded] = named.reshape(bounded, config.d_head)
            self._masks = (channels, units)
        return self._masks

    def display(self, token: int) -> str:
        return str(token) if self.tokenizer is None else self.tokenizer.display(token)


def operands_of(config: ModelConfig, component: Unit | Channel) -> list[Component]:
    """The operands that feed a unit or a bounded channel; none for linear channels and units without rails.

    A membership channel and a sigmoid unit are their own operand.
    """
    if isinstance(component, Channel):
        if not config.is_bounded(component.layer, component.head):
            return []
        if config.attention.value == "membership":
            return [component]
        pair = component.channel % (config.d_head // 2)
        return [
            HeadOperand(component.layer, component.head, pair, "A"),
            HeadOperand(component.layer, component.head, pair, "B"),
        ]
    kind = config.feed_forward.kind(component.unit)
    if kind not in BOUNDED:
        return []
    if kind == "sigmoid":
        return [component]
    if kind in ("existential", "proportion"):
        return [QuantifierOperand(component.layer, component.unit)]
    pair = config.feed_forward.pair(component.unit)
    return [Operand(component.layer, pair, "A"), Operand(component.layer, pair, "B")]


def is_operand(config: ModelConfig, id: Component) -> bool:
    """Whether the id names an operand; membership channels and sigmoid units are their own."""
    if isinstance(id, Channel):
        return config.attention.value == "membership" and config.is_bounded(id.layer, id.head)
    if isinstance(id, Unit):
        return config.feed_forward.kind(id.unit) == "sigmoid"
    return isinstance(id, Operand | HeadOperand | QuantifierOperand)


def memberships(part: Any, name: str, rows: list[int], x: Float[Tensor, "*t d"]) -> Float[Tensor, " n *t"]:
    """σ of some rows of a read matrix (with its bias), float32; x is the normalised input in the compute dtype."""
    bias = optional(part, f"{name}_bias")
    scores = F.linear(x, getattr(part, name)[rows], None if bias is None else bias[rows])
    return torch.sigmoid(scores).float().movedim(-1, 0)


def label_info(label: Label | None, agreement: float | None) -> LabelInfo | None:
    """A names file's label as the schema writes it; `agreement` belongs to the operand whose label it is."""
    return None if label is None else LabelInfo(**label.to_json(), agreement=finite(agreement))


def finite(value: float | None) -> float | None:
    """The number, or None where it is absent or no finite one (JSON has neither NaN nor infinity)."""
    return None if value is None or not np.isfinite(value) else float(value)
