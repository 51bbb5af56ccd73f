"""The causal commands: for people and as JSON, bands measured and used, one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reading_folder import TEXT, make_folder
from typer.testing import CliRunner

from app.cli import build
from legible_core.causal.records import Checks
from legible_core.errors import LegibleError
from legible_core.registry import Checkpoint

PROMPT = "It was the best of times, it was the"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture
def run(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(command: str, *words: str) -> str:
        result = CliRunner().invoke(build(), [command, str(checkpoint.path), *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_bands_are_measured_stored_and_used(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("legible_core.causal.bands.LEAST", 3)
    corpus = tmp_path / "held-out.txt"
    corpus.write_text(TEXT * 12, encoding="utf-8")
    before = json.loads(run("check", PROMPT, "--json", "--top", "5"))
    assert before["bands"] is None
    said = run("check", "--bands", "--corpus", str(corpus), "--sample", "8", "--top", "4", "--floor", "0")
    assert "8 held-out predictions" in said
    stored = Checks.load(checkpoint.path, checkpoint.hash, checkpoint.config)
    assert stored is not None
    assert stored.sample["corpus"] == "held-out.txt"
    assert stored.necessity["predictions"] == 8
    assert str(tmp_path) not in (checkpoint.path / "checks.json").read_text()
    after = json.loads(run("check", PROMPT, "--json", "--top", "5"))
    assert after["bands"]["sample"]["predictions"] == 8
    assert {r["method"] for row in after["checks"] for r in row["removals"]} >= {"zero", "mean"}
    table = run("check", PROMPT, "--top", "5")
    for row in after["checks"]:
        assert row["id"] in table
        assert f"{row['total']:+.3f}" in table
    (checkpoint.path / "checks.json").unlink()


def test_sets_and_paths_are_printed(run):
    data = json.loads(run("necessity", PROMPT, "--seeds", "2", "--json"))
    table = run("necessity", PROMPT, "--seeds", "2")
    assert all(f"{row['top']['lost']:+.3f}" in table for row in data["rows"])
    assert "components" in run("sufficiency", PROMPT, "--seeds", "2")
    said = run("path", PROMPT, "--first", "L0.h1", "--second", "L1.u3")
    assert "m = " in said or "undefined" in said
    assert "leading sources removed" in run("path", PROMPT, "--operand", "L1.p2.A", "--seeds", "2")


def test_the_value_asked_and_the_edits_are_those_of_a_reading(run):
    plain = json.loads(run("check", PROMPT, "--json", "--top", "3"))
    mean = json.loads(run("check", PROMPT, "--json", "--top", "3", "--relative-to", "mean"))
    assert (mean["relative_to"], mean["target"]) == ("mean", plain["target"])
    read = json.loads(run("read", PROMPT, "--json", "--relative-to", "mean", "--top", "3"))
    assert mean["value"] == pytest.approx(read["value"])
    assert [row["id"] for row in mean["checks"]] == [row["id"] for row in read["top"]]
    edit = ("--edit", "L1.u3:set=4")
    edited = json.loads(run("check", PROMPT, "--json", "--top", "3", *edit))
    assert edited["digest"] == json.loads(run("read", PROMPT, "--json", *edit))["digest"] != plain["digest"]
    for command, more in (("necessity", ()), ("sufficiency", ()), ("path", ("--first", "L0.h1", "--second", "L1.u3"))):
        asked = json.loads(run(command, PROMPT, "--json", "--relative-to", "mean", *edit, *more))
        assert (asked["relative_to"], asked["digest"]) == ("mean", edited["digest"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", PROMPT, "--relative-to", "moon"), "nothing, mean or contrast"),
        (("check", PROMPT, "--edit", "L1.u3:boil"), "boil"),
        (("check", PROMPT, "--edit", "L7.u3:zero"), "layer 7"),
        (("check", "--bands", "--corpus", "x.txt", "--edit", "L1.u3:zero"), "no prompt"),
        (("necessity", "--corpus", "x.txt", "--relative-to", "mean"), "over --corpus"),
        (("check",), "Give a prompt"),
        (("check", PROMPT, "--top", "0"), "1 to 200"),
        (("check", PROMPT, "--bands"), "--corpus FILE"),
        (("check", "--bands", "--corpus", "nowhere.txt"), "no text at"),
        (("necessity",), "Give a prompt"),
        (("path", PROMPT), "--first and --second"),
        (("path", PROMPT, "--first", "L1.u0", "--second", "L0.u0"), "not later"),
        (("path", PROMPT, "--operand", "L1.u0"), "made of operands"),
    ],
)
def test_bad_input_is_one_sentence(run, words, said):
    with pytest.raises(LegibleError, match=said) as problem:
        run(*words)
    assert "\n" not in problem.value.message
