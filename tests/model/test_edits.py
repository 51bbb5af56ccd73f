"""Every edit against the model's formulas written out in float64, with the edit done by hand at its own place."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.interventions import Edit, Vector
from legible_core.model import Transformer, editing
from legible_core.model.linear import linear
from legible_core.units import Channel, Down, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit

LENGTH = 10


def vector(n: int, seed: int) -> Vector:
    return Vector.of(np.random.default_rng(seed).normal(size=n) * 0.5)


# ---- the reference ---------------------------------------------------------------------------------------------------


class ByHand:
    """One prompt, float64, token by token; each edit is done where the formula has what it names."""

    def __init__(self, model: Transformer, edits: Sequence[Edit]) -> None:
        self.config = model.config
        self.w = {name: value.double().clone() for name, value in model.state_dict().items()}
        self.edits = edits

    def at(self, t: int, *operations: str, sort: type | tuple[type, ...], layer: int) -> list[Edit]:
        return [
            e
            for e in self.edits
            if e.operation in operations
            and isinstance(e.component, sort)
            and e.component.layer == layer
            and (e.positions is None or t in e.positions)
        ]

    def value(self, old: torch.Tensor, edit: Edit, cap: bool = False) -> Any:
        number = edit.value
        match edit.operation:
            case "scale":
                return (old * number).clamp(max=1.0) if cap else old * number
            case "clamp":
                return old.clamp(number, edit.upper)
            case "flip":
                return 1 - old
            case "zero":
                return 0.0
        return torch.tensor(list(edit.vector)).double() if edit.vector is not None else number

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        c = x - x.mean(-1, keepdim=True)
        c = c / (c.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
        return c * self.w[f"{name}.gain"] + self.w.get(f"{name}.bias", torch.zeros(1).double())

    def read(self, y: torch.Tensor, name: str, replaced: dict[int, Edit]) -> torch.Tensor:
        matrix, bias = self.w[name].clone(), self.w.get(f"{name}_bias", torch.zeros(len(self.w[name])).double()).clone()
        for row, edit in replaced.items():
            matrix[row] = torch.tensor(list(edit.vector or ())).double()
            if edit.value is not None:
                bias[row] = edit.value
        return matrix @ y + bias

    def written(self, values: torch.Tensor, name: str, t: int, layer: int) -> torch.Tensor:
        matrix, width = self.w[name].clone(), self.config.d_head
        sorts: Any = Channel if name.endswith("output") else (Unit, Down)
        for edit in self.at(t, "column", "rank_one", sort=sorts, layer=layer):
            numbers = torch.tensor(list(edit.vector or ())).double()
            match edit.component:
                case Channel(_, head, channel):
                    matrix[:, head * width + channel] = numbers
                case Unit(_, unit):
                    matrix[:, unit] = numbers
                case _:
                    u, v = numbers[: self.config.d_model], numbers[self.config.d_model :]
                    matrix += (1.0 if edit.value is None else edit.value) * torch.outer(u, v)
        return matrix @ values + self.w.get(f"{name}_bias", torch.zeros(1).double())

    def values(self, y: torch.Tensor, t: int, layer: int) -> torch.Tensor:
        """All heads' values at one token, (h, dh)."""
        config, here = self.config, f"layers.{layer}.attention"
        special, dh, boolean = config.attention.n_special[layer], config.d_head, config.attention.value == "boolean"
        rows: dict[str, dict[int, Edit]] = {"bounded_values": {}, "linear_values": {}}
        for edit in self.at(t, "row", sort=(HeadOperand, Channel), layer=layer):
            c: Any = edit.component
            index = c.channel if isinstance(c, Channel) else c.pair + (0 if c.side == "A" else dh // 2)
            name, first = ("bounded_values", 0) if c.head < special else ("linear_values", special)
            rows[name][(c.head - first) * dh + index] = edit
        parts = []
        if special:
            m = torch.sigmoid(self.read(y, f"{here}.bounded_values", rows["bounded_values"])).view(special, dh)
            for edit in self.at(t, "scale", "set", "clamp", "zero", "mean", "flip", sort=HeadOperand, layer=layer):
                c = edit.component
                index = c.pair + (0 if c.side == "A" else dh // 2)
                m[c.head, index] = self.value(m[c.head, index], edit, cap=True)
            if boolean:
                a, b = m[:, : dh // 2], m[:, dh // 2 :]
                m = torch.cat([a * b, a * (1 - b)], -1)
            parts.append(m)
        if special < config.n_heads:
            parts.append(self.read(y, f"{here}.linear_values", rows["linear_values"]).view(-1, dh))
        return torch.cat(parts)

    def hidden(self, y: torch.Tensor, t: int, layer: int, memory: dict[str, torch.Tensor]) -> torch.Tensor:
        layout, here = self.config.feed_forward, f"layers.{layer}.feed_forward"
        q = layout.quantifiers.start
        atoms: dict[str, torch.Tensor] = {}
        places = {
            "pair_a": lambda c: c.pair if isinstance(c, Operand) and c.side == "A" else None,
            "pair_b": lambda c: c.pair if isinstance(c, Operand) and c.side == "B" else None,
            "quantifier": lambda c: c.unit - q if isinstance(c, QuantifierOperand) else None,
        }
        for name, place in places.items():
            if f"{here}.{name}" not in self.w:
                continue
            rows = self.at(t, "row", sort=(Operand, QuantifierOperand), layer=layer)
            found = {place(e.component): e for e in rows if place(e.component) is not None}
            m = torch.sigmoid(self.read(y, f"{here}.{name}", found))
            sorts = (Operand, QuantifierOperand)
            for edit in self.at(t, "scale", "set", "clamp", "zero", "mean", "flip", sort=sorts, layer=layer):
                i = place(edit.component)
                if i is not None:
                    m[i] = self.value(m[i], edit, cap=True)
            atoms[name] = m
        parts = []
        if layout.n_pairs:
            a, b = atoms["pair_a"], atoms["pair_b"]
            parts += [a * b, a * (1 - b)]
        if layout.n_quantifiers:
            m, decay, half = atoms["quantifier"], torch.sigmoid(self.w[f"{here}.theta"]).clone(), layout.n_existential
            if not memory:
                memory |= {name: torch.zeros(half).double() for name in ("e", "s", "n")}
            for edit in self.at(t, "decay", "state", sort=Unit, layer=layer):
                c: Any = edit.component
                i = c.unit - q
                if edit.operation == "decay":
                    decay[i] = edit.value
                elif i < half:
                    memory["e"][i] = edit.value
                else:
                    memory["s"][i - half] = edit.value * memory["n"][i - half]  # type: ignore[operator]
            memory["e"] = 1 - (1 - m[:half]) * (1 - decay[:half] * memory["e"])
            memory["s"] = decay[half:] * memory["s"] + m[half:]
            memory["n"] = decay[half:] * memory["n"] + 1
            parts += [memory["e"], memory["s"] / memory["n"]]
        if layout.n_plain:
            rows = self.at(t, "row", sort=Unit, layer=layer)
            found = {e.component.unit - layout.n_named: e for e in rows}  # type: ignore[union-attr]
            z = self.read(y, f"{here}.{layout.activation}", found)
            gelu = z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
            plain = {"gelu": gelu, "sigmoid": torch.sigmoid(z), "softplus": (1 + z.exp()).log(), "relu": z.clamp(min=0)}
            parts.append(plain[layout.activation])
        h = torch.cat(parts)
        for edit in self.at(t, "flip_a", "flip_b", sort=Unit, layer=layer):
            unit = edit.component.unit  # type: ignore[union-attr]
            pair = layout.pair(unit)
            a, b = atoms["pair_a"][pair], atoms["pair_b"][pair]
            a, b = (1 - a, b) if edit.operation == "flip_a" else (a, 1 - b)
            h[unit] = a * b if unit < layout.n_pairs else a * (1 - b)
        for edit in self.at(t, "scale", "set", "clamp", "zero", "mean", "flip", sort=Unit, layer=layer):
            unit = edit.component.unit  # type: ignore[union-attr]
            h[unit] = self.value(h[unit], edit)
        return h

    def residual(self, ids: torch.Tensor) -> torch.Tensor:
        config, w, dh = self.config, self.w, self.config.d_head
        x = w["token_embedding"][ids] + w["position_embedding"][: len(ids)]
        for layer in range(config.n_layers + 1):
            for t in range(len(ids)):
                for edit in self.at(t, "add", sort=Residual, layer=layer):
                    x[t] += (1.0 if edit.value is None else edit.value) * torch.tensor(list(edit.vector or ()))
            if layer == config.n_layers:
                return x
            here = f"layers.{layer}.attention"
            y = self.norm(x, f"layers.{layer}.attention_norm")
            none: dict[int, Edit] = {}
            q = torch.stack([self.read(y[t], f"{here}.query", none) for t in range(len(ids))]).view(len(ids), -1, dh)
            k = torch.stack([self.read(y[t], f"{here}.key", none) for t in range(len(ids))]).view(len(ids), -1, dh)
            v = torch.stack([self.values(y[t], t, layer) for t in range(len(ids))])
            for t in range(len(ids)):
                weights = torch.softmax((k[: t + 1] * q[t]).sum(-1) / math.sqrt(dh), 0)
                z = (weights[..., None] * v[: t + 1]).sum(0)
                for edit in self.at(
                    t, "scale", "set", "clamp", "zero", "mean", "flip", sort=(Head, Channel), layer=layer
                ):
                    c: Any = edit.component
                    part = (c.head, c.channel) if isinstance(c, Channel) else (c.head,)
                    z[part] = self.value(z[part], edit)
                x[t] = x[t] + self.written(z.flatten(), f"{here}.output", t, layer)
            y = self.norm(x, f"layers.{layer}.feed_forward_norm")
            memory: dict[str, torch.Tensor] = {}
            for t in range(len(ids)):
                h = self.hidden(y[t], t, layer, memory)
                x[t] = x[t] + self.written(h, f"layers.{layer}.feed_forward.down", t, layer)
        raise AssertionError


def edits_for(config: ModelConfig) -> list[Edit]:
    """Each operation at least once where the design has something to do it to, at chosen positions and at all."""
    layout, d, boolean = config.feed_forward, config.d_model, config.attention.value == "boolean"
    edits = [
        Edit(Residual(1), "add", -1.5, (2, 5), vector=vector(d, 1)),
        Edit(Residual(3), "add", vector=vector(d, 2)),
        Edit(Head(0, 1), "scale", 2.0, (1, 4)),
        Edit(Head(0, 1), "mean", vector=vector(config.d_head, 3), positions=(4,)),
        Edit(Head(2, 3), "set", 0.25, (3,)),
        Edit(Channel(1, 0, 2), "clamp", 0.2, upper=0.4),
        Edit(Channel(1, 3, 1), "zero"),
        Edit(Channel(0, 2, 5), "column", vector=vector(d, 4)),
        Edit(Channel(0, 2, 4), "column", positions=(0, 7), vector=vector(d, 5)),
        Edit(Unit(0, layout.d_ff - 1), "scale", -2.0),
        Edit(Unit(0, layout.d_ff - 2), "set", 0.5, (6, 2)),
        Edit(Unit(0, layout.d_ff - 2), "scale", 3.0, (2,)),
        Edit(Unit(0, 3), "clamp", 0.3, (1, 2, 3), upper=0.6),
        Edit(Unit(2, 4), "mean", 0.1),
        Edit(Unit(1, 5), "zero", positions=(9,)),
        Edit(Unit(1, 6), "column", vector=vector(d, 6)),
        Edit(Down(1), "rank_one", 0.5, (3, 4), vector=vector(d + layout.d_ff, 7)),
        Edit(Unit(1, 7), "column", positions=(4,), vector=vector(d, 8)),
    ]
    if layout.n_pairs:
        edits += [
            Edit(Operand(0, 1, "A"), "flip"),
            Edit(Operand(0, 2, "B"), "clamp", 0.0, (4, 5), upper=0.1),
            Edit(Operand(1, 0, "B"), "row", -0.3, vector=vector(d, 9)),
            Edit(Operand(1, 0, "B"), "scale", 1.7),
            Edit(Operand(2, 1, "A"), "row", positions=(8,), vector=vector(d, 10)),
            Edit(Unit(2, 0), "flip_a"),
            Edit(Unit(2, layout.n_pairs + 1), "flip_b", positions=(7, 9)),
            Edit(Unit(0, layout.n_pairs), "flip_a", positions=(0,)),
        ]
    if layout.n_quantifiers:
        first, last = layout.quantifiers.start, layout.quantifiers.stop - 1
        edits += [
            Edit(Unit(0, first), "decay", 0.5),
            Edit(Unit(1, first), "state", 0.9, (0, 6)),
            Edit(Unit(1, last), "state", 0.8, (3,)),
            Edit(Unit(2, last), "decay", 1.0, (2, 3, 4)),
            Edit(QuantifierOperand(0, last), "set", 1.0, (1,)),
            Edit(QuantifierOperand(2, first), "flip"),
            Edit(QuantifierOperand(1, first), "row", vector=vector(d, 11)),
        ]
    if layout.n_plain:
        edits.append(Edit(Unit(0, layout.d_ff - 3), "row", 0.2, vector=vector(d, 12)))
    if layout.activation == "sigmoid":
        edits.append(Edit(Unit(2, layout.d_ff - 1), "flip"))
    if any(config.attention.n_special) and boolean:
        edits += [
            Edit(HeadOperand(0, 1, 2, "A"), "flip", positions=(0, 3)),
            Edit(HeadOperand(1, 0, 0, "B"), "row", vector=vector(d, 13)),
            Edit(HeadOperand(1, 1, 1, "B"), "mean", 0.4),
        ]
    if config.attention.value == "membership":
        edits += [Edit(Channel(0, 0, 0), "flip"), Edit(Channel(0, 1, 3), "row", vector=vector(d, 14))]
    if not config.is_bounded(1, 3):
        edits.append(Edit(Channel(1, 3, 4), "row", 0.1, vector=vector(d, 15)))
    return edits


@pytest.mark.parametrize("config", designs())
def test_every_edit_is_what_its_formula_says(config: ModelConfig) -> None:
    model, ids, edits = tiny_model(config), random_ids(LENGTH), edits_for(config)
    wanted = ByHand(model, edits).residual(ids)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    trace = model.trace(ids, edits)
    assert (wanted - trace.residual).abs().max() < 2e-4
    assert (wanted - model.trace(ids).residual).abs().max() > 0.1
    with torch.no_grad():
        # Two prompts in a batch, one pass; and the tokens in pieces with a cache, at absolute positions.
        batch = model.residual(torch.stack([random_ids(LENGTH, seed=1), ids]), edits)
        cache = model.new_cache()
        pieces = torch.cat([model.residual(p[None], edits, cache=cache) for p in ids.split([3, 1, 1, 5])], 1)[0]
    assert (batch[1] - trace.residual).abs().max() < 1e-4
    assert (pieces - trace.residual).abs().max() < 1e-4
    # Nothing is left behind.
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("config", [tiny_config(biased=True), tiny_config("membership", quantifiers=0.5)])
def test_each_edit_alone_is_the_formula_and_changes_something(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(LENGTH)
    plain = model.trace(ids).residual
    for edit in edits_for(config)[::3]:
        changed = model.trace(ids, [edit]).residual
        assert (ByHand(model, [edit]).residual(ids) - changed).abs().max() < 1e-4, edit
        first = min(edit.positions or (0,))
        assert torch.equal(changed[:first], plain[:first])
        assert not torch.equal(changed, plain), edit


def test_weight_edits_are_the_child_that_they_would_make() -> None:
    config = tiny_config(biased=True)
    model, ids, d, f = tiny_model(config), random_ids(LENGTH), config.d_model, config.feed_forward.d_ff
    edits = [
        Edit(Operand(0, 2, "A"), "row", 0.7, vector=vector(d, 1)),
        Edit(Unit(1, 8), "column", vector=vector(d, 2)),
        Edit(Down(1), "rank_one", vector=vector(d + f, 3)),
        Edit(Unit(1, 9), "column", vector=vector(d, 4)),
    ]
    child: Any = copy.deepcopy(model)
    with torch.no_grad():
        child.layers[0].feed_forward.pair_a[2] = torch.tensor(list(edits[0].vector or ()))
        child.layers[0].feed_forward.pair_a_bias[2] = 0.7
        down = child.layers[1].feed_forward.down
        down[:, 8] = torch.tensor(list(edits[1].vector or ()))
        numbers = torch.tensor(list(edits[2].vector or ()))
        down += torch.outer(numbers[:d], numbers[d:])
        down[:, 9] = torch.tensor(list(edits[3].vector or ()))
        assert torch.allclose(model(ids[None], edits), child(ids[None]), atol=1e-5)
        # bfloat16: a child would hold the new numbers in bfloat16 too.
        rounded = [m.to_compute(torch.bfloat16)(ids[None], e) for m, e in ((model, edits), (child, []))]
    assert (rounded[0] - rounded[1]).abs().max() < 0.05 * rounded[1].std()


@pytest.mark.parametrize("biased", [False, True])
def test_columns_edited_at_every_position_are_one_product(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(biased=biased)
    model, d, f, everywhere = tiny_model(config), config.d_model, config.feed_forward.d_ff, tuple(range(LENGTH))
    ids, x = random_ids(LENGTH)[None], torch.randn(2, LENGTH, d, generator=torch.Generator().manual_seed(0))
    made: list[tuple[int, ...]] = []

    def plain(module: Any, name: str, given: torch.Tensor) -> torch.Tensor:
        made.append(given.shape)
        return linear(module, name, given)

    monkeypatch.setattr(editing, "linear", plain)
    for positions in (None, everywhere):
        made.clear()
        edits = [
            Edit(Unit(1, 8), "column", vector=vector(d, 2), positions=positions),
            Edit(Down(1), "rank_one", 0.5, vector=vector(d + f, 3), positions=positions),
            Edit(Channel(0, 2, 5), "column", vector=vector(d, 4), positions=positions),
        ]
        child: Any = copy.deepcopy(model)
        with torch.no_grad():
            child.layers[1].feed_forward.down.copy_(
                editing.edited_matrix(model.layers[1].feed_forward.down, edits[:2], 1)
            )
            child.layers[0].attention.output[:, 2 * config.d_head + 5] = torch.tensor(list(edits[2].vector or ()))
            # Bit for bit what the plain path makes of the edited matrices.
            assert torch.equal(model.residual(ids, edits), child.residual(ids))
        # One plain product each for what has no edit: the attention of layer 1, the feed-forward layer of layer 0.
        assert len(made) == 2
    # Some positions: the others are written as they would be without edits.
    here = editing.LayerEdits(0)
    part: Any = model.layers[0].attention
    some = [Edit(Channel(0, 2, 5), "column", vector=vector(d, 4), positions=(1, 3))]
    with torch.no_grad():
        found, kept = editing.write(part, "output", x, some, here, config.d_head), linear(part, "output", x)
    changed = [t for t in everywhere if not torch.equal(found[:, t], kept[:, t])]
    assert changed == [1, 3]


def test_bfloat16_edits_follow_float32_within_its_rounding() -> None:
    for config in (tiny_config(), tiny_config("membership", quantifiers=0.5)):
        model, ids, edits = tiny_model(config), random_ids(LENGTH), edits_for(config)
        exact = model.trace(ids, edits).residual
        rounded = model.to_compute(torch.bfloat16).trace(ids, edits).residual
        assert 0 < (rounded - exact).abs().mean() < 0.1 * exact.std()


def test_a_gradient_passes_through_edits() -> None:
    model, ids = tiny_model(), random_ids(LENGTH)
    edits = edits_for(model.config)
    model(ids[None], edits).sum().backward()
    found = model.layers[0].attention.query.grad[0, 0]
    values = []
    with torch.no_grad():
        for step in (1e-2, -1e-2):
            moved: Any = copy.deepcopy(model)
            moved.layers[0].attention.query[0, 0] += step
            values.append(float(moved(ids[None], edits).double().sum()))
    assert float(found) == pytest.approx((values[0] - values[1]) / 2e-2, rel=0.05, abs=0.02)


def test_what_is_recomputed_from_an_edited_trace_is_edited_too() -> None:
    model, ids = tiny_model(tiny_config()), random_ids(LENGTH)
    edits = [Edit(Operand(0, 1, "A"), "flip", positions=(4,)), Edit(HeadOperand(0, 1, 2, "B"), "set", 0.75)]
    edits.append(Edit(QuantifierOperand(0, model.config.feed_forward.quantifiers.start), "zero"))
    trace, plain = model.trace(ids, edits), model.trace(ids)
    found, before = model.operands(0, trace, slice(0, 6)), model.operands(0, plain, slice(0, 6))
    assert found["pair_a"].shape == before["pair_a"].shape
    assert torch.equal(model.operands(0, trace, 4)["pair_a"], found["pair_a"][4])
    assert torch.allclose(trace.layers[0].hidden[:6, 1], found["pair_a"][:, 1] * found["pair_b"][:, 1], atol=1e-6)
    assert (found["quantifier"][:, 0] == 0).all()
    assert (found["head_b"][:, 1, 2] == 0.75).all()
    # Attention gathers the edited values: the pattern times them is z.
    row = model.attention_row(0, 1, trace, 6)
    assert torch.allclose(row @ model.head_values(0, trace)[:7, 1], trace.layers[0].z[6, 1], atol=1e-5)
