"""The batched re-run against the plain edited forward: every design, every sort of edit, every place of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legible_core.causal import rerun
from legible_core.causal.plain import PlainRerun, edits_of
from legible_core.causal.rerun import Plan, Rerun
from legible_core.config import ModelConfig
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.model.quantifiers import quantify
from legible_core.units import Channel, Head, Unit
from tests.tiny_models import designs, random_ids, tiny_config, tiny_model

CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-4}


def plain(model: Transformer, ids: torch.Tensor, edits: list[Edit], position: int) -> torch.Tensor:
    return model.trace(ids, edits).residual[position]


@pytest.mark.parametrize("config", designs())
def test_a_batch_of_edits_is_as_many_edited_forwards(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(9)
    for position in (0, 6) if config == designs()[0] else (6,):
        trace = model.trace(ids)
        wanted: list[list[Edit]] = []
        plan = Plan(3 * 4 + 2)
        row = 0
        for layer in range(3):
            unit, head = 7 + 11 * layer, layer + 1
            plan.unit(row, layer, unit)
            plan.head(row + 1, layer, head)
            plan.channel(row + 2, layer, head, 5, factor=0.0, offset=0.4)
            plan.unit(row + 3, layer, 47 - layer, factor=-1.5)
            where = (position,)
            wanted += [
                [Edit(Unit(layer, unit), "set", 0.0, where)],
                [Edit(Head(layer, head), "set", 0.0, where)],
                [Edit(Channel(layer, head, 5), "set", 0.4, where)],
                [Edit(Unit(layer, 47 - layer), "scale", -1.5, where)],
            ]
            row += 4
        # Several edits in several layers at once, and a row that edits nothing.
        plan.unit(row, 2, 3)
        plan.head(row, 0, 0)
        plan.unit(row, 0, 1, offset=0.7)
        edits = [(Unit(2, 3), 0.0), (Head(0, 0), 0.0), (Unit(0, 1), 0.7)]
        wanted += [[Edit(component, "set", value, where) for component, value in edits], []]
        found = Rerun(model, trace, position).run(plan).residual
        expected = torch.stack([plain(model, ids, edits, position) for edits in wanted])
        torch.testing.assert_close(found, expected, **CLOSE)
        assert torch.equal(found[-1], trace.residual[position])
        # Some units of a ReLU layer are 0 already.
        moved = (found[:-1] - trace.residual[position]).abs().max(-1).values > 1e-6
        assert int(moved.sum()) >= 9


def flipped(model: Transformer, ids: torch.Tensor, layer: int, position: int, change: Any) -> torch.Tensor:
    """The forward with one layer's hidden vector made anew, plainly, from operands that `change` altered."""
    layout = model.config.feed_forward

    def hook(module: Any, args: Any, output: Any) -> Any:
        hidden, operands, state = output
        hidden, atoms = hidden.clone(), [operand.clone() for operand in operands]
        unit = change(atoms, position)
        made = hidden.clone()
        a, b = atoms[0], atoms[1]
        made[..., layout.intersections], made[..., layout.differences] = a * b, a * (1 - b)
        made[..., layout.quantifiers] = quantify(atoms[2], module.decay)[0]
        # Later positions would remember the change; the reading's position is what is compared.
        which = slice(None) if unit is None else unit
        hidden[:, position, which] = made[:, position, which]
        return hidden, operands, state

    handle = model.layers[layer].feed_forward.register_forward_hook(hook)
    try:
        with torch.no_grad():
            return model.residual(ids[None])[0, position]
    finally:
        handle.remove()


@pytest.mark.parametrize("biased", [False, True])
def test_flipped_operands_are_the_forward_with_its_operations_made_anew(biased: bool) -> None:
    model, ids = tiny_model(tiny_config(rho=0.25, quantifiers=0.5, biased=biased)), random_ids(8, seed=3)
    layout = model.config.feed_forward
    position, layer = 6, 1
    pair, quantifier = 2, 3
    first = layout.quantifiers.start

    def atom(which: int, index: int, unit: int | None = None) -> Any:
        def change(atoms: list[torch.Tensor], position: int) -> int | None:
            atoms[which][:, position, index] = 1 - atoms[which][:, position, index]
            return unit

        return change

    plan = Plan(6)
    plan.atom(0, layer, "pair_a", pair)
    plan.atom(1, layer, "pair_b", pair)
    plan.atom(2, layer, "quantifier", quantifier)
    plan.flip_unit(3, layer, layout.intersections.start + pair, "B")
    plan.flip_unit(4, layer, layout.differences.start + pair, "A")
    plan.flip_unit(5, layer, layout.quantifiers.stop - 1, "A")
    changes = [
        atom(0, pair),
        atom(1, pair),
        atom(2, quantifier),
        atom(1, pair, layout.intersections.start + pair),
        atom(0, pair, layout.differences.start + pair),
        atom(2, layout.n_quantifiers - 1, first + layout.n_quantifiers - 1),
    ]
    trace = model.trace(ids)
    found = Rerun(model, trace, position).run(plan).residual
    expected = torch.stack([flipped(model, ids, layer, position, change) for change in changes])
    torch.testing.assert_close(found, expected, **CLOSE)
    # Per atom both operations move; per unit one of them: the three are three different predictions.
    assert (found[0] - found[4]).abs().max() > 1e-4
    assert (found[1] - found[3]).abs().max() > 1e-4


def test_a_kept_set_is_the_forward_with_all_else_zeroed() -> None:
    config = tiny_config(biased=True)
    model, ids = tiny_model(config), random_ids(7)
    generator = torch.Generator().manual_seed(1)
    channels = torch.rand(3, 4, 6, generator=generator) < 0.3
    units = torch.rand(3, 48, generator=generator) < 0.3
    plan = Plan(2)
    plan.keep(0, channels, units)
    plan.keep(1, torch.ones_like(channels), torch.ones_like(units))
    position = 5
    trace = model.trace(ids)
    found = Rerun(model, trace, position).run(plan).residual
    gone = [Edit(Channel(*c), "set", 0.0, (position,)) for c in (~channels).nonzero().tolist()]
    gone += [Edit(Unit(*u), "set", 0.0, (position,)) for u in (~units).nonzero().tolist()]
    torch.testing.assert_close(found[0], plain(model, ids, gone, position), **CLOSE)
    torch.testing.assert_close(found[1], trace.residual[position], **CLOSE)


def test_what_a_component_wrote_itself_is_its_own_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun, "ROWS", 3)  # so that the rows come in several batches
    model, ids = tiny_model(tiny_config(biased=True)), random_ids(6)
    trace, position = model.trace(ids), 4
    plan = Plan(8)
    for row in range(8):
        layer = 2 - row % 3
        if row % 2:
            plan.unit(row, layer, row)
        else:
            plan.head(row, layer, row // 2)
    outcome = Rerun(model, trace, position).run(plan, own=True)
    assert outcome.own is not None
    for row in range(8):
        layer = 2 - row % 3
        part = model.layers[layer]
        if row % 2:
            wrote = part.feed_forward.down[:, row] * trace.layers[layer].hidden[position, row]
        else:
            width = slice(6 * (row // 2), 6 * (row // 2) + 6)
            wrote = part.attention.output[:, width] @ trace.layers[layer].z[position, row // 2]
        torch.testing.assert_close(outcome.own[row], -wrote, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            outcome.residual[row], Rerun(model, trace, position).run(plan).residual[row], **CLOSE
        )


def test_the_stream_entering_a_sublayer_is_the_edited_trace() -> None:
    model, ids = tiny_model(), random_ids(6)
    trace, position = model.trace(ids), 5
    plan = Plan(4)
    plan.unit(0, 0, 3)
    plan.head(1, 1, 2)
    plan.unit(2, 2, 5)
    plan.head(3, 2, 0)
    where = (position,)
    edits = [
        Edit(Unit(0, 3), "set", 0.0, where),
        Edit(Head(1, 2), "set", 0.0, where),
        Edit(Unit(2, 5), "set", 0.0, where),
        Edit(Head(2, 0), "set", 0.0, where),
    ]
    again = Rerun(model, trace, position)
    for layer, sublayer in ((0, "attention"), (1, "feed_forward"), (2, "attention"), (2, "feed_forward")):
        found = again.entering(plan, layer, sublayer)
        for row, edit in enumerate(edits):
            layers = model.trace(ids, [edit]).layers
            torch.testing.assert_close(found[row], getattr(layers[layer], f"{sublayer}_in")[position], **CLOSE)


def test_a_plan_is_the_vocabulary_of_edits() -> None:
    model, ids = tiny_model(tiny_config(biased=True)), random_ids(7, seed=2)
    layout, position = model.config.feed_forward, 5
    plan = Plan(8)
    plan.unit(0, 1, 4, factor=0.5)
    plan.head(1, 0, 2)
    plan.channel(2, 2, 1, 3, offset=0.25)
    plan.atom(3, 1, "pair_a", 3)
    plan.atom(4, 0, "quantifier", 1)
    plan.flip_unit(5, 1, layout.differences.start + 1, "B")
    for row, names in ((6, ["head_a", "head_b"]), (7, ["head_b"])):
        for name in names:
            plan.head_atom(row, 1, name, 1, 2 if row == 6 else 0)
    trace = model.trace(ids)
    for one in (Rerun(model, trace, position), PlainRerun(model, trace, position)):
        outcome = one.run(plan, own=True)
        if isinstance(one, Rerun):
            batched = outcome
    torch.testing.assert_close(batched.residual, outcome.residual, **CLOSE)
    torch.testing.assert_close(batched.own, outcome.own, **CLOSE)
    assert (outcome.residual - trace.residual[position]).abs().max(-1).values.min() > 1e-5
    operations = [edits_of(plan, row, position, model.config)[0].operation for row in range(8)]
    assert operations == ["scale", "zero", "set", "flip", "flip", "flip_b", "flip", "flip"]
    for layer, sublayer in ((1, "feed_forward"), (2, "attention")):
        found = [o.entering(plan, layer, sublayer) for o in (Rerun(model, trace, 5), PlainRerun(model, trace, 5))]
        torch.testing.assert_close(*found, **CLOSE)
