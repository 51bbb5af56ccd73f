"""Tuning against the plain way: the edited reading's predictions, and a continuation written token by token."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from reading_samples import make_engine, prompt_ids, request, sample_config
from test_edited_readings import edits_of

from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.model.resume import cache_of, resume
from legible_core.pipeline import Engine
from legible_core.units import Head, Operand, QuantifierOperand, Unit


def some_edits(engine: Engine) -> list[tuple[Edit, ...]]:
    first = engine.config.feed_forward.quantifiers.start
    return [
        (Edit(Unit(1, 4), "scale", 3.0),),
        (Edit(Head(0, 1), "zero", positions=(2, 7)), Edit(Operand(1, 2, "A"), "flip")),
        (Edit(Unit(0, first), "decay", 0.3), Edit(QuantifierOperand(1, first), "set", 1.0)),
        edits_of(engine),
    ]


@pytest.fixture(scope="module", params=[False, True])
def engine(request: pytest.FixtureRequest) -> Engine:
    return make_engine(sample_config("boolean", (4, 4), biased=request.param))


def test_a_resumed_trace_is_the_edited_trace_and_its_cache_goes_on_alike(engine: Engine) -> None:
    ids = torch.tensor(prompt_ids(engine.config, 12))
    plain = engine.model.trace(ids)
    for edits in some_edits(engine):
        wanted, found = engine.model.trace(ids, edits), resume(engine.model, plain, edits)
        assert torch.allclose(found.residual, wanted.residual, atol=1e-5)
        assert found.edits == wanted.edits
        for ours, theirs in zip(found.layers, wanted.layers, strict=True):
            assert torch.allclose(ours.hidden, theirs.hidden, atol=1e-5)
        cache = cache_of(engine.model, found, 8)
        with torch.no_grad():
            rest = engine.model.residual(ids[None, 8:], edits, cache=cache)[0]
        assert torch.allclose(rest, wanted.residual[8:], atol=1e-4)
    assert torch.equal(resume(engine.model, plain, ()).residual, plain.residual)


def test_tuning_is_the_edited_reading_and_the_text_it_would_write(engine: Engine) -> None:
    asked = request(engine, position=9, target=5)
    for edits in some_edits(engine):
        tuned = engine.tune(asked, edits, tokens=6, steps=6)
        for state, carried in ((tuned.before, ()), (tuned.after, edits)):
            reading = engine.read(replace(asked, edits=carried))
            assert [row.id for row in state.predictions] == [row.id for row in reading.predictions]
            assert state.target.rank == reading.target.rank
            assert state.target.probability == pytest.approx(reading.target.probability, rel=1e-4)
            # An edit at positions of the prompt says nothing of what comes after it.
            ids = list(asked.ids[:10])
            for token in state.continuation:
                with torch.no_grad():
                    logits = engine.model(torch.tensor([ids]), carried)[0, -1]
                assert token.id == int(logits.argmax())
                assert token.probability == pytest.approx(float(logits.softmax(0).max()), rel=1e-3)
                ids.append(token.id)
            assert len(state.continuation) == 6
            assert state.complete
        assert tuned.digest == replace(asked, edits=edits).digest
        assert tuned.plain == asked.digest
        document = tuned.to_json()
        assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_redraw_costs_no_more_passes_than_it_may(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    plain = type(engine.model)._layer

    def counted(self, layer, x, *more):
        passes.append(x.shape[1])
        return plain(self, layer, x, *more)

    asked = request(engine, position=9)
    engine.tune(asked)
    monkeypatch.setattr(type(engine.model), "_layer", counted)
    for value in (0.5, 2.0, 3.5):
        passes.clear()
        tuned = engine.tune(asked, [Edit(Unit(1, 4), "scale", value)], steps=1)
        # The edited layer up (one of two) over prompt and draft, and at most one token through both layers.
        assert passes in ([17], [17, 1, 1])
        assert 1 <= len(tuned.after.continuation) <= 8
        assert tuned.after.complete == (len(tuned.after.continuation) == 8)
    passes.clear()
    assert engine.tune(asked).after == engine.tune(asked).before
    assert passes == []


def test_a_prompt_that_fills_the_context_is_tuned_with_one_token(engine: Engine) -> None:
    full = request(engine, engine.config.context)
    tuned = engine.tune(full, ["L1.u4:scale=2"])
    assert len(tuned.before.continuation) == len(tuned.after.continuation) == 1
    assert tuned.after.complete


def test_edits_after_the_read_position_change_nothing_there(engine: Engine) -> None:
    tuned = engine.tune(request(engine, position=5), [Edit(Unit(1, 4), "scale", 2.0, (8,))])
    assert tuned.after == tuned.before


def test_bad_edits_are_refused_as_in_a_reading(engine: Engine) -> None:
    for text, words in (
        ("L9.u0:zero", "layer 9 of edit"),
        ("L1.u4:zero@12", "past the prompt"),
        ("L1.u40:set=1e30", "overflows"),
        ("L1.u4:scale=1.000000000001", "changes nothing"),
    ):
        with pytest.raises(LegibleError, match=words):
            engine.tune(request(engine), [text])
