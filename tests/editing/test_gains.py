"""Gain edits against a plain edited forward, and what is told of them."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import designs, random_ids, tiny_model

from legible_core.editing import gains
from legible_core.editing.measure import HeldOut
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.naming.promote import promotion
from legible_core.units import Channel, Unit


def text(windows: int = 20, length: int = 24) -> HeldOut:
    return HeldOut.of(random_ids(windows * length + 1, seed=5).numpy(), length, windows)


@pytest.mark.parametrize("config", [designs()[0], designs()[1], designs()[10]])
def test_movements_are_those_of_an_edited_forward(config: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model, held = tiny_model(config), text()  # type: ignore[arg-type]
    prompts = []
    trace = model.trace
    monkeypatch.setattr(model, "trace", lambda ids, *rest: prompts.append(ids) or trace(ids, *rest))
    found = gains.gain_edits(model, held, predictions=2, top=5, seed=1)
    assert len(found) == 2 * config.n_layers * 2 * 3  # type: ignore[attr-defined]
    for place, edit in enumerate(found):
        prompt = prompts[place // (len(found) // 2)]
        last = len(prompt) - 1
        scaled = Edit(edit.component, "scale", edit.alpha, (last,))
        with torch.no_grad():
            before, after = model(prompt[None])[0, -1], model(prompt[None], [scaled])[0, -1]
        change = (after - before) - (after - before).mean()
        weights = promotion(model, gains.write_column(model, edit.component)[:, None])[0]
        often = torch.bincount(held.ids.flatten(), minlength=len(weights)) >= gains.OFTEN
        weights = torch.where(often, weights * math.copysign(1.0, edit.activation), -math.inf)
        assert edit.own == pytest.approx(float(change[weights.topk(5).indices].mean()), abs=2e-4)
        if edit.activation > 0:
            assert edit.unsigned == pytest.approx(edit.own, abs=1e-6)


def test_the_last_layer_moves_its_own_tokens_up_and_a_table_says_so() -> None:
    model = tiny_model(designs()[0])
    found = [e for e in gains.gain_edits(model, text(), predictions=12, top=5) if e.component.layer == 2]
    assert sum(e.own > 0 for e in found) > 0.9 * len(found)
    made = gains.experiment(found, "legible edit-lab gains x", {}, "12 predictions")
    rows = {(row[0], row[1]): row for row in made.tables[0].rows}
    assert rows["units", 8.0][2] == 12
    assert rows["units", 8.0][3] > rows["units", 2.0][3] > 0
    assert rows["units", 8.0][3] > abs(rows["units", 8.0][6])
    assert {row[0] for row in made.tables[1].rows} >= {"channel"}
    signed = [e for e in found if isinstance(e.component, Channel)]
    assert rows["channels, signed", 4.0][2] == len(signed) / 3
    assert all(isinstance(e.component, Unit | Channel) for e in found)


def test_gains_that_cannot_be_used_are_refused() -> None:
    model = tiny_model(designs()[0])
    with pytest.raises(LegibleError, match="finite number"):
        gains.gain_edits(model, text(), alphas=(2.0, math.nan))
    with pytest.raises(LegibleError, match="too few for sets of 20"):
        gains.gain_edits(model, text(2, 8))
    with pytest.raises(LegibleError, match=r"gain of 1e\+38 on L0"):
        gains.gain_edits(model, text(), predictions=1, top=5, alphas=(1e38,))
