"""`legible effect`: edits against none on choices, paired by hand; controls of the same kind; bad words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_samples import PARADIGMS
from typer.testing import CliRunner

from app.cli import build
from legible_core.checkpoint import load
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import LegibleError
from legible_core.evaluation.data import load_suite
from legible_core.evaluation.effect import answers, chosen_parts, control, effect
from legible_core.evaluation.run import Run
from legible_core.interventions_text import parse_edit
from legible_core.units import Unit

EDITS = ["L0.u3:zero", "L1.u13:scale=3", "L1.h0:zero"]


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(build(), ["effect", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def by_hand(model: Any, tokenizer: Any, sentence: str, edits: Any) -> float:
    """The log-likelihood of a sentence after a space, without batches, caches or shared prefixes."""
    import torch

    from legible_core.evaluation.encode import Encoder

    [row] = Encoder(tokenizer, model.config.context).pair("", f" {sentence}")
    ids = torch.tensor([row.tokens])
    with torch.no_grad():
        logs = torch.log_softmax(model(ids[:, :-1], edits).double(), -1)[0]
    scored = range(len(row.tokens) - row.scored, len(row.tokens))
    return sum(float(logs[at - 1, row.tokens[at]]) for at in scored)


def test_margins_are_those_of_the_edited_model(checkpoint, data, tokenizer, tmp_path):
    out = tmp_path / "effect.json"
    words = [word for text in EDITS for word in ("--edit", text)]
    printed = run(checkpoint.path, "--data", data, *words, "--controls", "2", "--out", out, "--json")
    found = json.loads(printed)
    assert json.loads(out.read_text()) == found
    assert found["edits"] == EDITS
    edits = tuple(parse_edit(text) for text in EDITS)
    model = load(checkpoint)
    for row in found["parts"]:
        pairs = PARADIGMS[row["name"]][2]
        margins = {
            name: [by_hand(model, tokenizer, good, e) - by_hand(model, tokenizer, bad, e) for good, bad in pairs]
            for name, e in (("before", ()), ("after", edits))
        }
        before, after = np.array(margins["before"]), np.array(margins["after"])
        change = after - before
        error = change.std(ddof=1) / math.sqrt(len(pairs))
        assert row["margin_before"] == pytest.approx(before.mean(), abs=1e-4)
        assert row["margin_change"]["value"] == pytest.approx(change.mean(), abs=1e-4)
        assert row["margin_change"]["high"] == pytest.approx(change.mean() + 1.959964 * error, abs=1e-3)
        right, still = before > -1e-9, after > -1e-9  # equal sentences: the right one stands first
        assert row["before"] == pytest.approx(right.mean())
        assert row["lost"] == int((right & ~still).sum())
        assert row["won"] == int((~right & still).sum())
        assert row["change"]["value"] == pytest.approx((row["won"] - row["lost"]) / row["items"])
    whole = found["all"]["margin_change"]
    parts = [row["margin_change"] for row in found["parts"]]
    assert whole["value"] == pytest.approx(np.mean([row["value"] for row in parts]))
    half = math.sqrt(sum((row["high"] - row["value"]) ** 2 for row in parts)) / len(parts)
    assert whole["high"] - whole["value"] == pytest.approx(half)
    assert [row["name"] for row in found["terms"]] == ["npi_licensing", "agreement"]
    assert len(found["controls"]) == 2
    assert found["controls"][0]["edits"] != found["controls"][1]["edits"]


def test_an_edit_that_does_nothing_changes_nothing(checkpoint, data, tokenizer):
    suite = load_suite("blimp", data)
    model = load(checkpoint)
    runs = [Run(model, tokenizer, suite, edits=edits) for edits in ((), (parse_edit("L0.u3:scale=1"),))]
    for one in runs:
        list(one.steps())
    before, after = (answers(suite, one.scores) for one in runs)
    whole = effect(suite, before, after)["all"]
    assert whole["margin_change"]["value"] == pytest.approx(0.0, abs=1e-6)
    assert (whole["lost"], whole["won"]) == (0, 0)


def test_parts_are_chosen_by_name_term_or_field(checkpoint, data):
    suite = load_suite("blimp", data)
    assert [part.name for part in chosen_parts(suite, ["no_ever"]).parts] == ["no_ever"]
    assert [part.name for part in chosen_parts(suite, ["agreement", "semantics"]).parts] == ["no_ever", "plural_dogs"]
    assert len(chosen_parts(suite, []).parts) == 2
    said = run(checkpoint.path, "--data", data, "--edit", "L0.u3:zero", "--parts", "npi_licensing", "--limit", "2")
    assert "no_ever" in said
    assert "plural_dogs" not in said
    arc = run(checkpoint.path, "--data", data, "--edit", "L0.u3:zero", "--task", "arc_easy", "--json")
    assert json.loads(arc)["parts"][0]["items"] == 3


def test_controls_are_others_of_the_same_kind_and_layer():
    config = ModelConfig(2, 16, 4, 48, 99, Attention("boolean", (4, 2)), FeedForward(32, 0.5, 0.25))
    layout = config.feed_forward
    texts = ["L1.u0:zero", "L1.u1:zero", f"L1.u{layout.existentials.start}:zero", "L1.h0:scale=2", "L0.p1.B:flip"]
    edits = tuple(parse_edit(text) for text in texts)
    seen = set()
    for seed in range(20):
        drawn = control(config, edits, seed)
        assert len({edit.component for edit in drawn} | {edit.component for edit in edits}) == 10
        for edit, other in zip(edits, drawn, strict=True):
            assert (edit.operation, edit.value) == (other.operation, other.value)
            assert edit.component.layer == other.component.layer
            if isinstance(edit.component, Unit):
                assert layout.kind(edit.component.unit) == layout.kind(other.component.unit)
        assert drawn[3].component.head == 1, "of the bounded heads of layer 1 only one is left"
        seen.add(drawn[0].component)
    assert len(seen) > 2
    assert control(config, edits, 7) == control(config, edits, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--edit", "L0.u3:zero", "--parts", "nonsense"], "no part 'nonsense'"),
        (["--edit", "L0.u3:zero@2"], "positions mean nothing"),
        (["--edit", "L0.u99:zero"], "does not exist"),
        (["--edit", "L0.u3:zero", "--task", "lambada"], "no choices"),
        (["--edit", "L0.residual:add=1~" + "AACAPw==" * 1, "--controls", "1"], "numbers|control"),
        ([], "at least one --edit"),
    ],
)
def test_bad_words_are_one_sentence(checkpoint, data, words, said):
    with pytest.raises(LegibleError, match=said):
        run(checkpoint.path, "--data", data, *words)
