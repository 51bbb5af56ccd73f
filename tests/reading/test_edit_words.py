"""Edits as text, as JSON and on the command line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_read_command import PROMPT, checkpoint, run

from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.interventions_text import edit_text, edits_from_json, parse_edit
from legible_core.units import Channel, Down, Head, HeadOperand, Operand, QuantifierOperand, Residual, Unit

__all__ = ["checkpoint", "run"]

finite = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 1)
places = st.none() | st.lists(st.integers(0, 500), min_size=1, max_size=4).map(tuple)
vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5).map(Vector.of)
number = st.integers(0, 999)
outputs = st.builds(Unit, number, number) | st.builds(Channel, number, number, number) | st.builds(Head, number, number)
sides = st.sampled_from(["A", "B"])
atoms = (
    st.builds(Operand, number, number, sides)
    | st.builds(HeadOperand, number, number, number, sides)
    | st.builds(QuantifierOperand, number, number)
)
edits = st.one_of(
    st.builds(Edit, outputs, st.sampled_from(["scale", "set", "mean"]), finite, places),
    st.builds(Edit, outputs | atoms, st.just("zero"), positions=places),
    st.builds(Edit, atoms, st.just("flip"), positions=places),
    st.builds(
        lambda c, a, b, p: Edit(c, "clamp", min(a, b), p, upper=max(a, b)), outputs | atoms, shares, shares, places
    ),
    st.builds(Edit, st.builds(Unit, number, number), st.sampled_from(["decay", "state"]), shares, places),
    st.builds(lambda c, v, p, x: Edit(c, "add", v, p, vector=x), st.builds(Residual, number), finite, places, vectors),
    st.builds(lambda c, p, x: Edit(c, "row", None, p, vector=x), atoms, places, vectors),
    st.builds(lambda c, x: Edit(c, "rank_one", vector=x), st.builds(Down, number), vectors),
)


@given(edits)
def test_text_and_json_read_back_to_the_last_bit(edit: Edit) -> None:
    same = edit.canonical()
    assert parse_edit(edit_text(edit)).canonical() == same
    assert Edit.from_json(json.loads(json.dumps(same))).canonical() == same
    assert Edit.from_json(json.loads(json.dumps(edit.to_json()))).canonical() == same
    assert hash(edit) == hash(edit)


def test_vectors_are_float32_whatever_they_came_from() -> None:
    numbers = [0.1, -2.0, 3e-9]
    wanted = Vector.of(numbers)
    for given_as in (tuple(numbers), np.array(numbers), np.array(numbers, dtype=">f8"), wanted):
        assert Vector.of(given_as) == wanted
    assert Edit.from_json({"component": "L1.residual", "operation": "add", "value": 1, "vector": numbers}) == Edit(
        Residual(1), "add", 1, vector=wanted
    )
    for bad in ([], [[1.0]], ["x"], [float("nan")], [1e300]):
        with pytest.raises(LegibleError, match="vector"):
            Vector.of(bad)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{}", "a list of edits"),
        pytest.param(f'["L0.u1:zero", {"9" * 5000}]', "thousands of digits", id="more digits than Python reads"),
        ("[3]", "needs component and operation"),
        ('[{"component": "L0.u1", "operation": "zero", "when": 3}]', "not 'when'"),
        ('[{"component": "L0.u1", "operation": "scale", "value": NaN}]', "not a finite number"),
        ('[{"component": "L0.u1", "operation": "scale", "value": true}]', "must be a number such as 0.5, not true"),
        ('[{"component": "L0.u1", "operation": "scale", "value": 1e999}]', "not a finite number"),
        ('[{"component": "L0.u1", "operation": "zero", "positions": []}]', "non-empty"),
        ('[{"component": "L0.u1", "operation": "zero", "positions": [0.5]}]', "list of whole numbers"),
        ('[{"component": "L0.u1", "operation": "zero", "positions": [1e3]}]', "list of whole numbers"),
        ('[{"component": "L0.u1", "operation": "zero", "positions": "12"}]', "list of whole numbers"),
        ('[{"component": "L0.u1", "operation": "set", "value": "10"}]', 'must be a number such as 0.5, not "10"'),
        ('[{"component": "L0.u1", "operation": "set", "value": ' + "9" * 400 + "}]", "beyond the range of float64"),
        ('{"component": "L0.u1", "operation": "zero"}', "single object; put it into a list"),
        ('["L0.u1:zero"', "line 1, column 14"),
        ('[{"component": "L0.u1", "operation": "melt"}]', "does not exist"),
        ('[{"component": "embed.token", "operation": "zero"}]', "cannot be edited"),
        ('["L0.u1:clamp=2,1"]', "above the upper one"),
        ('["L0.u1:add=1"]', "cannot be done to L0.u1"),
        ('["L0.u1:zero=1"]', "takes no value"),
        ('["L0.h1:set"]', "a value for all its channels or a vector"),
        ('["L0.p1.A:set=1.5"]', "membership between 0 and 1"),
        ('["L0.u1:decay=1.5"]', "between 0 and 1"),
        ('["L0.u1:scale=1,2"]', "only clamp has an upper bound"),
        ('["L0.residual:add=1~??"]', "base64"),
    ],
)
def test_what_is_no_edit_is_one_sentence(data: str, words: str) -> None:
    with pytest.raises(LegibleError, match=words) as raised:
        edits_from_json(data)
    assert raised.value.code == "bad_edit"


def test_the_command_reads_under_edits_of_a_file_and_of_its_own(run: Any, tmp_path: Any) -> None:
    file = tmp_path / "edits.json"
    file.write_text('["L0.u1:scale=3"]')
    found = json.loads(run(PROMPT, "--edits", str(file), "--edit", "L1.u2:zero@0", "--edit", "L0.h1:scale=0", "--json"))
    texts = [edit_text(Edit.from_json(edit)) for edit in found["edits"]]
    assert texts == ["L0.u1:scale=3", "L1.u2:zero@0", "L0.h1:scale=0"]
    assert found["layers"][0]["heads"][1] == 0.0
    shown = run(PROMPT, "--edit", "L0.u1:scale=3")
    assert "edited    L0.u1:scale=3" in shown
    assert "edited" not in run(PROMPT)
    for words, said in (
        (("--edit", "L9.u1:zero"), "layer 9 of edit"),
        (("--edit", "nonsense"), "is no edit"),
        (("--edits", str(tmp_path / "none.json")), "cannot be read"),
        (("--edit", "L0.u1:zero", "--prompts", str(file), "--out", str(tmp_path / "o.jsonl")), "go with one prompt"),
    ):
        with pytest.raises(LegibleError, match=said):
            run(*([] if "--prompts" in words else [PROMPT]), *words)
