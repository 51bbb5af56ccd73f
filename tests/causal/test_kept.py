"""Kept sets of edited readings: the batch against one plain forward each in which every other component is zeroed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from legible_core.causal.plain import PlainRerun
from legible_core.causal.rerun import Plan, Rerun
from legible_core.causal.sufficiency import sufficiency
from legible_core.config import ModelConfig
from legible_core.interventions import Edit, Vector
from legible_core.interventions_text import parse_edit
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Channel, Residual, Unit
from tests.tiny_models import designs, random_ids, tiny_config, tiny_model

HASH = "c" * 64
EVERY: list[Any] = [Channel(*at) for at in np.ndindex(3, 4, 6)] + [Unit(*at) for at in np.ndindex(3, 48)]


def edits(config: ModelConfig) -> tuple[Edit, ...]:
    """Edits of every place where one can act: at all positions, before the read one, at it, and past it."""
    noise = np.random.default_rng(0).normal(size=24).tolist()
    made = [
        Edit(Residual(1), "add", 0.7, vector=Vector.of(noise)),
        parse_edit("L0.u40:set=2"),
        parse_edit("L1.h1:scale=-2@3"),
        parse_edit("L1.h0.c2:set=0.8@6,7"),
        Edit(Unit(2, 30), "column", vector=Vector.of(noise)),
    ]
    if config.feed_forward.n_pairs:
        made += [parse_edit("L1.p2.A:flip"), parse_edit("L2.p1.B:set=0.4@6")]
    if config.feed_forward.n_quantifiers:
        made.append(parse_edit(f"L0.u{config.feed_forward.existentials.start}:decay=0.5"))
    return tuple(made)


@pytest.mark.parametrize("config", designs(), ids=str)
def test_kept_sets_of_an_edited_reading_are_plain_forwards_with_all_else_zeroed(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(9)
    rng = np.random.default_rng(1)
    for position in (0, 6) if config == designs()[0] else (6,):
        own = tuple(edit for edit in edits(config) if position or edit.positions is None)
        trace = model.trace(ids, own)
        kept = rng.random((3, len(EVERY))) < np.array([[0.0], [0.3], [1.0]])
        plan = Plan(3)
        for row, mask in enumerate(torch.from_numpy(kept)):
            plan.keep(row, mask[:72].view(3, 4, 6), mask[72:].view(3, 48))
        found = PlainRerun(model, trace, position).run(plan).residual
        for row, mask in enumerate(kept):
            gone = [Edit(c, "zero", None, (position,)) for c, stays in zip(EVERY, mask, strict=True) if not stays]
            expected = model.residual(ids[None], (*own, *gone))[0, position]
            torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[2], trace.residual[position], rtol=1e-4, atol=1e-4)
    unedited = model.trace(ids)
    both = [kind(model, unedited, 6).run(plan).residual for kind in (PlainRerun, Rerun)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)


def test_a_sufficient_set_of_an_edited_reading_emits_its_token_under_the_edits() -> None:
    engine = Engine(tiny_model(tiny_config(biased=True)), CheckpointRef(hash=HASH, slug="tiny"))
    ids = tuple(random_ids(9, seed=5).tolist())
    own = (parse_edit("L2.u3:set=6"), parse_edit("L1.h1:scale=3"), parse_edit("L0.p1.A:flip"))
    request = ReadingRequest(HASH, ids, edits=own)
    document = sufficiency(engine, request, seeds=4)
    assert document["digest"] == request.digest != ReadingRequest(HASH, ids).digest
    kept = {m["id"] for m in document["members"]}
    gone = [Edit(c, "zero", None, (8,)) for c in EVERY if str(c) not in kept]
    after = engine.model.logits(engine.model.residual(torch.tensor([ids]), (*own, *gone))[0, 8]).detach()
    assert int(after.argmax()) == document["target"]["id"]
    own_value, others = after[document["target"]["id"]], after.clone()
    others[document["target"]["id"]] = -torch.inf
    assert document["margin"] == pytest.approx(float(own_value - others.max()), abs=1e-3)
