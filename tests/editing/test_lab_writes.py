"""Circuits, driven units and survival: each against what it is by definition, on tiny models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lab_samples import bench, token_model, unlikely
from tiny_models import tiny_config

from legible_core.editing import circuit, driving, survival
from legible_core.editing.measure import HeldOut, outcome, states
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.units import Channel, HeadOperand, Unit


def test_a_head_writes_the_private_direction_at_the_strength_asked_for() -> None:
    lab = bench()
    wire = circuit.wire_head(lab, 0, 11, torch.Generator().manual_seed(0))
    wiring = wire(0.5)
    assert isinstance(wiring.edits[0].component, HeadOperand)
    channels = [edit for edit in wiring.edits if isinstance(edit.component, Channel)]
    assert {edit.component.head for edit in channels} == {wiring.head}  # type: ignore[union-attr]
    assert wiring.contrast > 0
    without = [replace(edit, vector=Vector.of([0.0] * 24)) if edit in channels else edit for edit in wiring.edits]
    aimed = (lab.calibration.ids == 11).flatten()
    streams = [
        torch.cat([lab.model.trace(w, edits).layers[0].feed_forward_in for w in lab.calibration.ids])
        for edits in (wiring.edits, without, ())
    ]
    written = (streams[0] - streams[1])[aimed].mean(0)
    assert float(written.norm()) == pytest.approx(0.5 * float(streams[2][: 4 * 32].norm(dim=-1).median()), rel=1e-3)


def test_a_circuit_answers_where_the_head_fires() -> None:
    lab = bench()
    target = unlikely(lab)
    made = circuit.circuits(lab, [(11, target)], 0, kind="plain", strengths=(1.0,), betas=(8.0,), positions=(2, 0))
    few, full = made
    assert (few.positions, full.positions) == (2, int((lab.calibration.ids == 11).sum()))
    assert few.write_alone is None
    assert full.write_alone is not None
    assert full.before == outcome(lab.model, lab.text, target).rank(lab.text.current(11)) > 40
    assert full.rank < full.before
    assert full.separation > 1
    told = circuit.experiment(made, "legible edit-lab circuit x", {}, "here", str)
    assert [row[0] for row in told.tables[3].rows] == ["2", "all"]
    assert told.tables[2].rows[0][1] == full.before
    clean = states(lab.model, lab.calibration.ids, 2)
    aimed = (lab.calibration.ids == 11).flatten()
    places = aimed.nonzero()[:2, 0]
    assert torch.allclose(
        circuit.conditional(clean, aimed, 2), clean[places].mean(0) - clean[~aimed].mean(0), atol=1e-6
    )
    with pytest.raises(LegibleError, match="needs a reader in layer 3"):
        circuit.circuits(lab, [(11, 40)], 1, kind="plain")
    with pytest.raises(LegibleError, match="cannot be calibrated"):
        circuit.conditional(clean, torch.zeros_like(aimed))


@pytest.mark.parametrize("unit", [2, 11, 30])  # ∩, ∖ of the same layer, and GELU
def test_a_unit_is_driven_along_the_gradient_of_its_value(unit: int) -> None:
    model = token_model(tiny_config(quantifiers=0.25))
    entering = states(model, bench().calibration.ids[:3], 2)
    part, gain = model.layers[2].feed_forward, model.layers[2].feed_forward_norm.gain
    found = driving.read_direction(model, Unit(2, unit), entering)
    if model.config.feed_forward.kind(unit) == "gelu":
        gradient = part.gelu[unit - model.config.feed_forward.n_named]  # type: ignore[index]
    else:
        offset = torch.zeros(24, requires_grad=True)
        part((entering + offset)[None])[0][0, :, unit].mean().backward()
        assert offset.grad is not None
        gradient = offset.grad
    expected = gain * gradient - (gain * gradient).mean()
    assert torch.allclose(found, expected / expected.norm(), atol=1e-5)
    assert float(found.sum()) == pytest.approx(0.0, abs=1e-5)


def test_driving_moves_the_unit_and_shares_out_what_went_through_it() -> None:
    lab = bench()
    ((unit, target),) = driving.decisive(lab, 2, 1, "gelu")
    assert lab.model.config.feed_forward.kind(unit.unit) == "gelu"
    lab = replace(lab, text=HeldOut(lab.text.ids[:3], lab.text.targets[:3]))
    weak, strong = driving.drive(lab, [(unit, target)], strengths=(0.05, 0.5))
    assert strong.deviations > weak.deviations > 0
    assert weak.before == strong.before
    assert replace(strong, before=100.0, after=20.0, silenced_before=90.0, silenced_after=82.0).mediation == 0.9
    assert replace(strong, before=10.0, after=10.0).mediation is None
    (other,) = driving.drive(lab, [(unit, target)], strengths=(0.5,), estimated=True)
    told = driving.experiment([weak, strong, other], "legible edit-lab drive x", {}, "here", str)
    assert [row[:3] for row in told.tables[0].rows] == [
        ("weights", 0.05, 1),
        ("weights", 0.5, 1),
        ("activations", 0.5, 1),
    ]
    with pytest.raises(LegibleError, match="fewer than 2 layers below"):
        driving.drive(lab, [(Unit(1, 30), 3)])
    with pytest.raises(LegibleError, match="no units of the kind 'relu'; it has intersection"):
        driving.decisive(lab, 2, 1, "relu")


def test_a_write_before_the_final_norm_survives_whole_and_a_lower_one_is_answered() -> None:
    lab = bench()
    writes = survival.survival(lab, [0, 3], draws=1, windows=2)
    top = [write for write in writes if write.layer == 3]
    assert [write.sort for write in top] == list(survival.SORTS)
    assert [write.survival for write in top] == pytest.approx([1.0] * 4, abs=1e-4)
    assert [write.spill for write in top] == [0.0] * 4
    assert all(write.survival < 0.999 and write.spill > 0 for write in writes if write.layer == 0)
    seen = {write.sort: write.seen for write in top}
    assert seen["working"] == pytest.approx(0.0, abs=1e-3)
    told = survival.experiment(lab.model, writes, "legible edit-lab survival x", {}, "here")
    assert [row[0] for row in told.tables[0].rows] == ["L0", "final norm"]
    visible = survival.readout_directions(lab.model)
    assert torch.allclose(visible.T @ visible, torch.eye(6), atol=1e-5)
    stream = survival.entering_stream(lab.model, lab.text.ids[:2], 1)
    for sort in survival.SORTS:
        made = survival.direction(lab, sort, 1, stream, visible, torch.Generator().manual_seed(0))
        assert float(made.norm()) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(LegibleError):
        lab.model.residual(lab.text.ids[:1], [Edit(Unit(0, 99), "zero")])
