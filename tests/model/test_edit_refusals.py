"""Edits that a model cannot take: refused in one sentence, or stopped with the layer named."""

from __future__ import annotations

import pytest
from tiny_models import random_ids, tiny_config, tiny_model

from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.interventions_text import parse_edit
from legible_core.units import Head, Residual, Unit

LENGTH = 10
DIRECTION = Vector.of([(-0.5) ** (i % 3) for i in range(24)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L9.u3:zero", "layer 9 of edit L9.u3 does not exist; use 0 to 2"),
        ("L0.u48:zero", "unit 48 .* use 0 to 47"),
        ("L0.h4:zero", "head 4 .* use 0 to 3"),
        ("L0.h1.c6:zero", "channel 6 .* use 0 to 5"),
        ("L0.p99.A:flip", "pair 99 .* use 0 to 8"),
        ("L1.h3.p0.A:flip", "no Boolean value"),
        ("L0.u0.m:zero", "no quantifier"),
        ("L4.residual:add~AACAPw==", "layer 4 .* use 0 to 3"),
        ("L1.residual:add~AACAPw==", "needs 24 numbers; its vector has 1"),
        ("L1.down:rank_one~AACAPw==", "24 numbers of u and 48 of v; its vector has 1"),
        ("L0.u3:zero@10", "position 10 .* past the prompt, whose tokens have positions 0 to 9"),
        ("L0.u3:clamp=0,1.5", "membership between 0 and 1.*cannot use 1.5"),
        ("L0.u3:clamp=-0.5,1", "cannot use -0.5"),
        ("L0.h1.c0:clamp=0,2", "boolean head"),
        ("L0.u40:flip_a", "of kind gelu and has no operands"),
        ("L0.u3:decay=0.5", "remembers nothing"),
        ("L0.u23:state=0.5@0", "counted nothing before position 0"),
        ("L0.u3:flip", "flip an operand, or use flip_a or flip_b"),
        ("L0.u3:row~AACAPw==", "name its operand"),
        ("L0.h1.c0:row~AACAPw==", "two operands"),
        ("L0.h1.c0:flip", "cannot be flipped"),
    ],
)
def test_an_edit_that_the_model_cannot_take_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(LegibleError, match=words) as raised:
        tiny_model(tiny_config()).trace(random_ids(LENGTH), [parse_edit(text)])
    assert raised.value.message.count(". ") == 0


def test_activations_that_overflow_name_their_layer() -> None:
    model, ids = tiny_model(), random_ids(LENGTH)
    for edit, where in (
        (Edit(Unit(1, 3), "set", 3e38), "in layer 1"),
        (Edit(Unit(2, 3), "set", 1e300), "in layer 2"),
        (Edit(Head(0, 1), "scale", 1e30), "in layer 0"),
        (Edit(Residual(3), "add", 1e30, vector=DIRECTION), "before the final norm"),
    ):
        for run in (lambda e: model.trace(ids, [e]), lambda e: model(ids[None], [e])):
            with pytest.raises(LegibleError, match=f"overflows float32 {where}") as raised:
                run(edit)
            assert str(edit.component) in raised.value.message
            assert raised.value.code == "not_finite"


def test_an_edit_that_rounding_swallows_is_an_error() -> None:
    model, ids = tiny_model(), random_ids(LENGTH)
    with pytest.raises(LegibleError, match="changes nothing") as raised:
        model.trace(ids, [Edit(Unit(1, 40), "zero"), Edit(Unit(0, 2), "scale", 1.0 + 1e-12)])
    assert raised.value.code == "no_effect"
    assert "L0.u2" in raised.value.message
    # Identities are none: a factor of one, a value that is there already, a clamp that nothing meets.
    model.trace(ids, [Edit(Unit(0, 2), "scale", 1.0), Edit(Unit(0, 2), "clamp", 0.0, upper=1.0)])
    once = Edit(Unit(0, 2), "set", 0.1)
    model.trace(ids, [once, once])
