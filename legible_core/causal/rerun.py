"""Many edited re-runs of one prediction at once: one token each, with the keys and values that the trace implies.

    rerun = Rerun(model, trace, position)
    plan = Plan(n_rows)
    plan.unit(row, layer, unit, factor=0.0, offset=0.0)      # activation ← factor · activation + offset
    outcome = rerun.run(plan)                                # outcome.residual (n, d): the final residual of each row

An edit at the read position changes no earlier position, so of every layer a re-run needs the read position's row
alone; keys, values and quantifier states of the tokens before it are made once from the trace and shared by all rows.
A row joins the batch at the layer of its first edit, where its stream is still the trace's own. The result is the
plain edited forward's ("Through the Looking Glass" sections 2.4 and 2.5 re-run the model for every removal).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from legible_core.model import Transformer
from legible_core.model.attention import combine
from legible_core.model.linear import join, linear, linears
from legible_core.model.quantifiers import QuantifierState, quantify
from legible_core.trace import Trace
from legible_core.units import Side

# Rows that pass through a layer together: enough for full matrix products, few enough to stay in the cache.
ROWS = 256
Sublayer = Literal["attention", "feed_forward"]


@dataclass
class _Affine:
    """value[row, index...] ← factor · value + offset, for many entries at once."""

    rows: list[int] = field(default_factory=list)
    at: list[tuple[int, ...]] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    offsets: list[float] = field(default_factory=list)

    def add(self, row: int, at: tuple[int, ...], factor: float, offset: float) -> None:
        self.rows.append(row)
        self.at.append(at)
        self.factors.append(factor)
        self.offsets.append(offset)

    def apply(self, values: Tensor, place: dict[int, int]) -> None:
        """Change `values` (rows, ...) in place; `place` says where in the batch a row of the plan stands."""
        chosen = [i for i, row in enumerate(self.rows) if row in place]
        if not chosen:
            return
        device = values.device
        rows = torch.tensor([place[self.rows[i]] for i in chosen], device=device)
        at = torch.tensor([self.at[i] for i in chosen], device=device).T
        factors = torch.tensor([self.factors[i] for i in chosen], dtype=values.dtype, device=device)
        offsets = torch.tensor([self.offsets[i] for i in chosen], dtype=values.dtype, device=device)
        index = (rows, *at)
        old = values[index]
        shape = (-1,) + (1,) * (old.ndim - 1)
        values[index] = old * factors.view(shape) + offsets.view(shape)


@dataclass
class _LayerPlan:
    heads: _Affine = field(default_factory=_Affine)
    channels: _Affine = field(default_factory=_Affine)
    head_atoms: dict[str, _Affine] = field(default_factory=lambda: defaultdict(_Affine))
    units: _Affine = field(default_factory=_Affine)
    atoms: dict[str, _Affine] = field(default_factory=lambda: defaultdict(_Affine))
    # (row, unit, side): the unit alone is computed from the flipped operand.
    flips: list[tuple[int, int, Side]] = field(default_factory=list)


class Plan:
    """What is edited in each of `n_rows` re-runs. Within a row a component is named once; order then has no meaning.

    Every change is affine, value ← factor · value + offset: zero (0, 0), set (0, v), scale (α, 0), flip (−1, 1).
    """

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.layers: dict[int, _LayerPlan] = defaultdict(_LayerPlan)
        self.starts: list[int | None] = [None] * n_rows
        # row -> (channels (L, h, dh), units (L, f)) that survive; all others are zeroed.
        self.kept: dict[int, tuple[Bool[Tensor, "l h dh"], Bool[Tensor, "l f"]]] = {}
        self.in_attention: set[int] = set()

    def head(self, row: int, layer: int, head: int, factor: float = 0.0, offset: float = 0.0) -> None:
        """All of a head's z."""
        self._at(row, layer, attention=True).heads.add(row, (head,), factor, offset)

    def channel(self, row: int, layer: int, head: int, channel: int, factor: float = 0.0, offset: float = 0.0) -> None:
        """One coordinate of a head's z."""
        self._at(row, layer, attention=True).channels.add(row, (head, channel), factor, offset)

    def unit(self, row: int, layer: int, unit: int, factor: float = 0.0, offset: float = 0.0) -> None:
        """One hidden activation."""
        self._at(row, layer).units.add(row, (unit,), factor, offset)

    def atom(self, row: int, layer: int, name: str, index: int, factor: float = -1.0, offset: float = 1.0) -> None:
        """An operand, `name` one of pair_a, pair_b, quantifier, at its index; it moves all that is made of it."""
        self._at(row, layer).atoms[name].add(row, (index,), factor, offset)

    def head_atom(
        self, row: int, layer: int, name: str, head: int, index: int, factor: float = -1.0, offset: float = 1.0
    ) -> None:
        """An operand of a Boolean head's pair at the read token itself; `name` is head_a or head_b."""
        self._at(row, layer, attention=True).head_atoms[name].add(row, (head, index), factor, offset)

    def flip_unit(self, row: int, layer: int, unit: int, side: Side) -> None:
        """One unit alone computed from 1 − A or 1 − B (for a quantifier side A is its m)."""
        self._at(row, layer).flips.append((row, unit, side))

    def keep(self, row: int, channels: Bool[Tensor, "l h dh"], units: Bool[Tensor, "l f"]) -> None:
        """Zero every channel and unit of the model at the read position but these."""
        self.kept[row] = (channels, units)
        self.starts[row] = 0
        self.in_attention.add(row)

    def _at(self, row: int, layer: int, attention: bool = False) -> _LayerPlan:
        first = self.starts[row]
        if first is None or layer < first:
            self.starts[row] = layer
            self.in_attention.discard(row)
        if attention and self.starts[row] == layer:
            self.in_attention.add(row)
        return self.layers[layer]


@dataclass(frozen=True)
class Outcome:
    """residual (n, d): where each row ended. own (n, d), where asked: what its first edits took out of or put into the
    stream themselves, the upstream being the trace's; for a row of one component that is its direct effect."""

    residual: Float[Tensor, "n d"]
    own: Float[Tensor, "n d"] | None


class Rerun:
    """Re-runs of one position of a trace. Layers' keys, values and states are made when first needed, and kept."""

    def __init__(self, model: Transformer, trace: Trace, position: int) -> None:
        self.model = model
        self.trace = trace
        self.position = position
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._states: dict[int, QuantifierState | None] = {}

    @torch.no_grad()
    def run(self, plan: Plan, *, own: bool = False) -> Outcome:
        """The final residual of every row; a row without edits is the trace's own."""
        final = self.trace.residual[self.position].expand(plan.n_rows, -1).clone()
        written = torch.zeros_like(final) if own else None
        for rows in _batches(plan):
            x, part = self._run(plan, rows, None, own)
            final[rows] = x
            if written is not None and part is not None:
                written[rows] = part
        return Outcome(final, written)

    @torch.no_grad()
    def entering(self, plan: Plan, layer: int, sublayer: Sublayer) -> Float[Tensor, "n d"]:
        """The residual stream of every row as it enters a sublayer."""
        clean = getattr(self.trace.layers[layer], f"{sublayer}_in")[self.position]
        found = clean.expand(plan.n_rows, -1).clone()
        for rows in _batches(plan):
            rows = [row for row in rows if (plan.starts[row] or 0) <= layer]
            if rows:
                found[rows] = self._run(plan, rows, (layer, sublayer), False)[0]
        return found

    def _run(
        self, plan: Plan, rows: Sequence[int], stop: tuple[int, Sublayer] | None, own: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Rows in order of their first layer, from there up."""
        starts = [plan.starts[row] or 0 for row in rows]
        x = self.trace.residual.new_zeros((0, self.trace.residual.shape[1]))
        written: list[Tensor] = []
        for layer in range(starts[0], self.model.config.n_layers):
            joined = sum(start == layer for start in starts)
            clean = self.trace.layers[layer].attention_in[self.position]
            x = torch.cat([x, clean.expand(joined, -1)]) if joined else x
            active = rows[: len(x)]
            if stop == (layer, "attention"):
                break
            x, part = self._layer(plan, layer, active, x, joined if own else 0, stop == (layer, "feed_forward"))
            if part is not None:
                written.append(part)
            if stop is not None and stop[0] == layer:
                break
        return x, torch.cat(written) if written else None

    def _layer(
        self, plan: Plan, index: int, rows: Sequence[int], x: Tensor, joined: int, half: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One layer of the rows; the last `joined` began here, and what they wrote themselves comes back as well."""
        layer: Any = self.model.layers[index]
        attention, feed_forward = layer.attention, layer.feed_forward
        edits = plan.layers.get(index, _LayerPlan())
        place = {row: number for number, row in enumerate(rows)}
        z = self._attend(edits, index, self._cast(layer.attention_norm(x), attention.output), place)
        edits.heads.apply(z, place)
        edits.channels.apply(z, place)
        for row in plan.kept.keys() & place.keys():
            z[place[row]] *= plan.kept[row][0][index].to(z)
        middle = x + linear(attention, "output", z.flatten(-2)).float()
        if half:
            return middle, None
        y = self._cast(layer.feed_forward_norm(middle), feed_forward.down)
        hidden = self._hidden(edits, index, y, place)
        edits.units.apply(hidden, place)
        for row in plan.kept.keys() & place.keys():
            hidden[place[row]] *= plan.kept[row][1][index].to(hidden)
        own = self._own(plan, index, rows, z, hidden, joined) if joined else None
        return middle + linear(feed_forward, "down", hidden).float(), own

    def _own(
        self, plan: Plan, index: int, rows: Sequence[int], z: Tensor, hidden: Tensor, joined: int
    ) -> Float[Tensor, "j d"]:
        """What the rows that began here wrote otherwise than the trace did, the bias aside."""
        layer: Any = self.model.layers[index]
        recorded = self.trace.layers[index]
        first = len(rows) - joined
        heads = torch.tensor([row in plan.in_attention for row in rows[first:]], device=z.device)[:, None]
        by_heads = (z[first:] - recorded.z[self.position]).flatten(-2).float() * heads
        # A head's edit reaches this layer's units through the stream: that is no longer its own write.
        by_units = (hidden[first:] - recorded.hidden[self.position]).float() * ~heads
        return by_heads @ layer.attention.output.float().T + by_units @ layer.feed_forward.down.float().T

    # ---- the two sublayers -------------------------------------------------------------------------------------------

    def _attend(self, edits: _LayerPlan, index: int, y: Tensor, place: dict[int, int]) -> Float[Tensor, "n h dh"]:
        """z of every head at the read position, from each row's own query, key and value and the shared ones."""
        layer: Any = self.model.layers[index]
        attention = layer.attention
        keys, values = self._earlier(index)
        query, key = (part.unflatten(-1, (attention.n_heads, -1)) for part in linears(attention, ["query", "key"], y))
        value, operands, _ = attention.values(y)
        if edits.head_atoms:
            changed = tuple(operand.clone() for operand in operands)
            for name, operand in zip(("head_a", "head_b"), changed, strict=True):
                edits.head_atoms[name].apply(operand, place)
            value = value.clone()
            value[:, : attention.n_special] = combine(changed)
        scores = torch.einsum("nhd,hpd->nhp", query.float(), keys.float())
        scores = torch.cat([scores, (query.float() * key.float()).sum(-1, keepdim=True)], -1)
        weights = torch.softmax(scores / math.sqrt(attention.d_head), dim=-1)
        z = torch.einsum("nhp,hpd->nhd", weights[..., :-1], values.float()) + weights[..., -1:] * value.float()
        return z.to(y.dtype)

    def _hidden(self, edits: _LayerPlan, index: int, y: Tensor, place: dict[int, int]) -> Float[Tensor, "n f"]:
        """The hidden vector at the read position, operands edited; the units' own edits come after."""
        layer: Any = self.model.layers[index]
        part, layout = layer.feed_forward, self.model.config.feed_forward
        state = self._state(index)
        many = None if state is None else QuantifierState(*(v.expand(len(y), -1) for v in _fields(state)))
        parts, operands, _ = part.parts(y[:, None], many)
        hidden = join(parts)[:, 0]
        if not edits.atoms and not any(row in place for row, _, _ in edits.flips):
            return hidden.clone()
        names = (["pair_a", "pair_b"] if layout.n_pairs else []) + (["quantifier"] if layout.n_quantifiers else [])
        atoms = {name: operand[:, 0].clone() for name, operand in zip(names, operands, strict=False)}
        hidden = hidden.clone()
        changed = {name: atoms[name].clone() for name in atoms}
        for name, affine in edits.atoms.items():
            affine.apply(changed[name], place)
        if edits.atoms.keys() & {"pair_a", "pair_b"}:
            # Only where an operand moved, so that all else stays the forward's to the last bit.
            a, b = changed["pair_a"], changed["pair_b"]
            moved = (a != atoms["pair_a"]) | (b != atoms["pair_b"])
            for where, new in ((layout.intersections, a * b), (layout.differences, a * (1.0 - b))):
                hidden[:, where] = torch.where(moved, new, hidden[:, where])
        if "quantifier" in edits.atoms:
            new = self._quantified(part, changed["quantifier"], many).to(hidden.dtype)
            moved = changed["quantifier"] != atoms["quantifier"]
            hidden[:, layout.quantifiers] = torch.where(moved, new, hidden[:, layout.quantifiers])
        for row, unit, side in edits.flips:
            if row in place:
                hidden[place[row], unit] = self._flipped(part, changed, many, place[row], unit, side)
        return hidden

    def _flipped(
        self,
        part: Any,
        atoms: dict[str, Tensor],
        state: QuantifierState | None,
        row: int,
        unit: int,
        side: Side,
    ) -> Tensor:
        layout = self.model.config.feed_forward
        kind = layout.kind(unit)
        if kind in ("existential", "proportion"):
            m = atoms["quantifier"][row].clone()
            m[unit - layout.quantifiers.start] = 1.0 - m[unit - layout.quantifiers.start]
            one = None if state is None else QuantifierState(*(v[row : row + 1] for v in _fields(state)))
            return self._quantified(part, m[None], one)[0, unit - layout.quantifiers.start]
        pair = layout.pair(unit)
        a, b = atoms["pair_a"][row, pair], atoms["pair_b"][row, pair]
        a, b = (1.0 - a, b) if side == "A" else (a, 1.0 - b)
        return a * b if kind == "intersection" else a * (1.0 - b)

    @staticmethod
    def _quantified(part: Any, m: Tensor, state: QuantifierState | None) -> Tensor:
        return quantify(m[:, None], part.decay, state)[0][:, 0]

    # ---- what earlier positions leave ----------------------------------------------------------------------------

    def _earlier(self, index: int) -> tuple[Float[Tensor, "h p dh"], Float[Tensor, "h p dh"]]:
        """Keys and values of the positions before the read one."""
        if index not in self._before:
            layer: Any = self.model.layers[index]
            attention = layer.attention
            x = self.trace.layers[index].attention_in[: self.position]
            y = self._cast(layer.attention_norm(x), attention.output)
            keys = linear(attention, "key", y).unflatten(-1, (attention.n_heads, -1))
            self._before[index] = keys.transpose(0, 1), attention.values(y)[0].transpose(0, 1)
        return self._before[index]

    def _state(self, index: int) -> QuantifierState | None:
        """What the quantifiers remember before the read position; None where there is nothing to remember."""
        if index not in self._states:
            self._states[index] = self._remember(index)
        return self._states[index]

    def _remember(self, index: int) -> QuantifierState | None:
        layout = self.model.config.feed_forward
        if not layout.n_quantifiers or not self.position:
            return None
        layer: Any = self.model.layers[index]
        x = self.trace.layers[index].feed_forward_in[: self.position]
        y = self._cast(layer.feed_forward_norm(x), layer.feed_forward.down)
        m = torch.sigmoid(linear(layer.feed_forward, "quantifier", y))
        return quantify(m[None], layer.feed_forward.decay)[1]

    @staticmethod
    def _cast(x: Tensor, like: Tensor) -> Tensor:
        return x.to(like.dtype)


def _fields(state: QuantifierState) -> tuple[Tensor, Tensor, Tensor]:
    return state.existential, state.total, state.count


def _batches(plan: Plan) -> Iterable[list[int]]:
    """Rows that have edits, those that begin deepest last, in batches of at most `ROWS`."""
    order = [row for _, row in sorted((start, row) for row, start in enumerate(plan.starts) if start is not None)]
    for first in range(0, len(order), ROWS):
        yield order[first : first + ROWS]
