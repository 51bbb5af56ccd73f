"""Readings under edits: the sum closes whatever was edited, and what is said of a component is what holds there."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from reading_samples import make_engine, oracle, request, sample_config

from legible_core.attribution import Question
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.pipeline import Engine
from legible_core.reading import Reading
from legible_core.units import Channel, Down, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit, parse
from legible_core.upstream import upstream_detail

POSITION = 7


def vector(n: int, seed: int) -> Vector:
    return Vector.of(np.random.default_rng(seed).normal(size=n) * 0.4)


def edits_of(engine: Engine) -> tuple[Edit, ...]:
    d, layout = engine.config.d_model, engine.config.feed_forward
    first = layout.quantifiers.start
    return (
        Edit(Residual(1), "add", 2.0, (3, POSITION), vector=vector(d, 0)),
        Edit(Residual(2), "add", vector=vector(d, 1)),
        Edit(Head(0, 1), "scale", 3.0),
        Edit(Channel(1, 0, 2), "column", vector=vector(d, 2)),
        Edit(HeadOperand(0, 0, 1, "A"), "flip"),
        Edit(Operand(0, 2, "B"), "flip"),
        Edit(Operand(1, 3, "A"), "row", 0.4, vector=vector(d, 3)),
        Edit(QuantifierOperand(1, first), "clamp", 0.0, upper=0.2),
        Edit(Unit(0, first), "decay", 0.25),
        Edit(Unit(1, layout.d_ff - 1), "column", positions=(POSITION,), vector=vector(d, 4)),
        Edit(Unit(1, 4), "flip_b"),
        Edit(Down(0), "rank_one", 0.5, vector=vector(d + layout.d_ff, 5)),
        Edit(Unit(0, 5), "set", 3.0),
    )


@pytest.mark.parametrize("biased", [False, True])
def test_the_sum_closes_and_each_term_is_what_was_written(biased: bool) -> None:
    engine = make_engine(sample_config("boolean", (4, 4), biased=biased))
    edits = edits_of(engine)
    asked = request(engine, position=POSITION, target=5, contrast=9, edits=edits)
    solved = engine.solve(asked)
    # The oracle forms each write from a model with the weights of this position; directions are what is left.
    child = copy.deepcopy(engine.model)
    with torch.no_grad():
        child.layers[1].attention.output[:, 2] = torch.tensor(list(edits[3].vector or ()))
        child.layers[1].feed_forward.down[:, 47] = torch.tensor(list(edits[9].vector or ()))
        numbers = torch.tensor(list(edits[11].vector or ()))
        child.layers[0].feed_forward.down += 0.5 * torch.outer(numbers[:32], numbers[32:])
    wanted = oracle(child, solved.trace, POSITION, Question(5, "contrast", 9))
    assert np.allclose(solved.terms.units, wanted["units"].numpy(), atol=1e-5)
    assert np.allclose(solved.terms.channels, wanted["channels"].numpy(), atol=1e-5)
    assert {"L1.residual", "L2.residual"} <= solved.terms.floor.keys()
    assert solved.terms.floor["L1.residual"] != 0
    elsewhere = engine.solve(replace(asked, position=POSITION + 1)).terms.floor
    assert "L1.residual" not in elsewhere
    assert "L2.residual" in elsewhere


def test_an_edited_reading_carries_its_edits_and_is_another_reading() -> None:
    engine = make_engine(sample_config("boolean", (4, 4)))
    edits = edits_of(engine)
    asked = request(engine, position=POSITION, edits=edits)
    reading = engine.read(asked, top=400)
    assert reading.digest == asked.digest != request(engine).digest
    assert [Edit.from_json(edit) for edit in reading.edits] == list(edits)
    assert Reading.from_json(reading.to_json()).edits == reading.edits
    found = {row.id: row for row in reading.top}
    unit = found[f"L0.u{engine.config.feed_forward.quantifiers.start}"]
    assert unit.decay == 0.25
    assert unit.half_life == pytest.approx(0.5)
    plain = {row.id: row for row in engine.read(request(engine, position=POSITION), top=400).top}
    flipped, before = (rows["L0.u2"].operands for rows in (found, plain))
    # Layer 0 is entered otherwise (a head was scaled), so the operand is flipped from its value there, not from before.
    hidden = engine.run(asked)[0].layers[0].hidden[POSITION]
    assert flipped[0].value * flipped[1].value == pytest.approx(float(hidden[2]), abs=1e-6)
    assert flipped[1].value != pytest.approx(before[1].value, abs=1e-3)
    memory = found[f"L1.u{engine.config.feed_forward.quantifiers.start}"].operands[0].value
    assert memory == pytest.approx(0.2)
    for component in (f"L0.u{engine.config.feed_forward.quantifiers.start}", "L0.u2", "L0.h0", "L0.h0.c1", "L1.u47"):
        detail = engine.component_detail(asked, component)
        assert detail["value"] == pytest.approx(
            found[component].value if component in found else detail["value"], abs=1e-6
        )
        if detail["kind"] == "head":
            assert sum(detail["terms"]) == pytest.approx(detail["value"], abs=1e-4)
    detail = engine.component_detail(asked, "L0.u2")
    assert detail["operands"][1]["values"][POSITION] == pytest.approx(flipped[1].value, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sum_of_an_edited_operand_closes(dtype: str) -> None:
    engine = make_engine(sample_config("boolean", (4, 4), biased=True), dtype=dtype)  # type: ignore[arg-type]
    asked = request(engine, position=POSITION, edits=edits_of(engine))
    for operand in ("L1.p3.A", "L1.p0.B", "L1.h0.p1.A", f"L1.u{engine.config.feed_forward.quantifiers.start}.m"):
        result = upstream_detail(engine, asked, parse(operand), parse("L0.h2"))
        names = {term["id"] for term in result["floor"]}
        assert "L1.residual" in names
        assert "L2.residual" not in names
        assert len(result["series"]) == 12
    row = upstream_detail(engine, asked, parse("L1.p3.A"), top=200)
    assert row["activation"] == pytest.approx(
        1 / (1 + np.exp(-row["value"])), abs=1e-2 if dtype == "bfloat16" else 1e-5
    )
    assert {"id": "read.bias", "value": 0.4} in row["floor"]
    # A memory under an edited λ opens at its own token only.
    memory = next(r for r in row["top"] if r["id"] == f"L0.u{engine.config.feed_forward.quantifiers.start}")
    assert [part["position"] for part in memory["opens"]] == [POSITION]


def test_an_edit_that_changes_nothing_is_an_error_and_an_identity_is_none() -> None:
    engine = make_engine(sample_config("boolean", (4, 4)))
    swallowed = Edit(Residual(1), "add", 1e-12, vector=vector(engine.config.d_model, 1))
    with pytest.raises(LegibleError, match=r"L1.residual:add=1e-12.*changes nothing") as raised:
        engine.read(request(engine, edits=(swallowed,)))
    assert raised.value.code == "no_effect"
    same = Vector.of(engine.model.layers[0].feed_forward.down[:, 3])
    for edit in (
        Edit(Unit(0, 3), "scale", 1.0),
        Edit(Unit(0, 3), "column", vector=same),
        replace(swallowed, value=0.0),
    ):
        assert engine.read(request(engine, edits=(edit,))).value == pytest.approx(engine.read(request(engine)).value)
    # A component whose write is zero may be edited without effect.
    silent = make_engine(sample_config("boolean", (4, 4)))
    silent.model.layers[1].feed_forward.down[:, 3] = 0.0
    silent.read(request(silent, edits=(Edit(Unit(1, 3), "zero"),)))


def test_an_edit_is_refused_with_the_request() -> None:
    engine = make_engine(sample_config("boolean", (4, 4)))
    with pytest.raises(LegibleError, match=r"position 12 .* past the prompt"):
        request(engine, edits=(Edit(Unit(0, 3), "zero", positions=(12,)),)).check(engine.config)
    with pytest.raises(LegibleError, match=r"layer 2 of edit L2\.u0 does not exist"):
        engine.read(request(engine, edits=(Edit(Unit(2, 0), "zero"),)))
