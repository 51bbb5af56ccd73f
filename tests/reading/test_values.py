"""Values of components on every token: a short text as a reading has them, a long one window by window."""

from __future__ import annotations

import pytest
import torch
from reading_samples import make_engine, prompt_ids, request, sample_config

from legible_core.errors import LegibleError
from legible_core.reads import measure, windows
from legible_core.units import parse
from legible_core.values import part_values


@pytest.mark.parametrize("context", [1, 2, 7, 24])
@pytest.mark.parametrize("length", [1, 6, 24, 25, 100])
def test_windows_give_every_token_once_with_half_a_context_before_it(context, length):
    plan = windows(length, context)
    given = [token for window in plan for token in range(window.given, window.stop)]
    assert given == list(range(length))
    for window in plan:
        assert window.stop - window.start <= context
        assert window.start == 0 or window.given - window.start >= context // 2
    # A part of the text is given by the same windows, so that its values do not depend on how it was cut.
    for first in range(0, length, 5):
        part = windows(length, context, first, first + 5)
        assert [t for w in part for t in range(w.given, w.stop)] == list(range(first, min(first + 5, length)))
        assert {w.start for w in part} <= {w.start for w in plan}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
def test_values_are_the_models_own(biased, dtype):
    engine = make_engine(sample_config("boolean", (4, 2), biased=biased), dtype=dtype)
    ids = prompt_ids(engine.config, 12)
    trace, _, _ = engine.run(request(engine, 12))
    asked = ["L1.u7", "L1.p7.A", "L0.u19.m", "L1.u47", "L1.h1.p2.B", "L1.h1.c3", "L1.h3.c0", "L1.h2"]
    components = [parse(text) for text in asked]
    [found] = part_values(engine.model, ids, components, windows(12, engine.config.context))
    operands = engine.model.operands(1, trace, slice(None))
    slack = {"atol": 1e-6, "rtol": 1e-5} if dtype == "float32" else {"atol": 1e-2, "rtol": 2e-2}
    part = engine.model.layers[1].attention
    expected = [
        trace.layers[1].hidden[:, 7],
        operands["pair_a"][:, 7],
        engine.model.operands(0, trace, slice(None))["quantifier"][:, 1],
        trace.layers[1].hidden[:, 47],
        operands["head_b"][:, 1, 2],
        engine.model.head_values(1, trace)[:, 1, 3],
        engine.model.head_values(1, trace)[:, 3, 0],
        torch.linalg.norm(trace.layers[1].z[:, 2].float() @ part.output[:, 16:24].float().T, dim=-1),
    ]
    for row, wanted, text in zip(found, expected, asked, strict=True):
        torch.testing.assert_close(row, wanted.float(), **slack, msg=text)
        said = measure(engine.config, parse(text))
        if said.bounded:
            assert 0 <= float(row.min()) <= float(row.max()) <= 1
        elif not said.signed:
            assert float(row.min()) >= 0


def test_membership_channels_are_their_own_operand():
    engine = make_engine(sample_config("membership", (4, 2)))
    ids = prompt_ids(engine.config, 12)
    [row] = next(part_values(engine.model, ids, [parse("L0.h1.c3")], windows(12, 24)))
    trace = engine.run(request(engine, 12))[0]
    torch.testing.assert_close(row, engine.model.operands(0, trace, slice(None))["membership"][:, 1, 3])


def test_a_long_text_is_read_in_windows_that_look_back_to_their_start(engine):
    """Each token's value is that of the window's own reading: 24 tokens at most, at least 12 before the token."""
    ids = prompt_ids(engine.config, 61)
    components = [parse(text) for text in ("L1.u20", "L2.p3.A", "L1.h0.c2")]
    plan = windows(61, 24)
    found = torch.cat(list(part_values(engine.model, ids, components, plan)), dim=1)
    assert found.shape == (3, 61)
    for window in plan:
        alone = engine.model.trace(torch.tensor(ids[window.start : window.stop]))
        given = slice(window.given - window.start, None)
        torch.testing.assert_close(found[0, window.given : window.stop], alone.layers[1].hidden[given, 20])
    # A part alone gives the same numbers: what is streamed in does not depend on what was there before.
    part = torch.cat(list(part_values(engine.model, ids, components, windows(61, 24, 30, 45))), dim=1)
    torch.testing.assert_close(part, found[:, 30:45])


def test_a_component_that_is_not_there_is_told_before_anything_runs(engine):
    with pytest.raises(LegibleError, match="layers 0 to 2"):
        next(part_values(engine.model, prompt_ids(engine.config, 5), [parse("L9.u0")], windows(5, 24)))
    with pytest.raises(LegibleError, match="part of the floor"):
        next(part_values(engine.model, prompt_ids(engine.config, 5), [parse("embed.token")], windows(5, 24)))
