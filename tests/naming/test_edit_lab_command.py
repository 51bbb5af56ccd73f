"""`legible native` and `legible edit-lab` as a person runs them, the whole way, and options that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model, text
from typer.testing import CliRunner

from app.cli import build
from app.commands.edit_lab_shared import Asked, Lab, with_missing
from app.commands.read import find
from legible_core.checkpoint import load, save
from legible_core.editing import install
from legible_core.editing.native import NativeTable
from legible_core.editing.results import Experiment, Results
from legible_core.errors import Conflict, LegibleError
from legible_core.lineage import lineage
from legible_core.registry import Checkpoint
from legible_core.tokens import Tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path, tokenizer: Tokenizer) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoints") / "sample"
    return save(folder, sample_model(sample_config(tokenizer.vocab_size)), tokenizer_path, {"title": "S"}, "float32")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(text(0, 1200))
    return path


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*words: object) -> str:
    result = CliRunner().invoke(build(), [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_table_is_made_where_asked_and_used(
    checkpoint: Checkpoint, corpus: Path, data_dir: Path, tmp_path: Path
) -> None:
    made = json.loads(run("native", checkpoint.path, "--corpus", corpus, "--tokens", 600, "--json"))
    path = data_dir / "native" / f"{checkpoint.hash}.safetensors"
    assert made["file"] == str(path)
    assert NativeTable.load(path, checkpoint.hash).table.shape == (2, made["candidates"], 32)
    said = run("native", checkpoint.path, "--corpus", corpus, "--tokens", 600, "--out", tmp_path / "own.safetensors")
    assert "own.safetensors" in said
    common = ("--corpus", corpus, "--windows", 2, "--length", 16, "--out", tmp_path, "--json")
    drawn = ("--native", path, "--draws", 1)
    found = json.loads(run("edit-lab", "survival", checkpoint.path, "--tokens", 600, *drawn, *common))
    assert [row[0] for row in found["tables"][0]["rows"]] == ["L0", "L1", "final norm"]
    edits = ("--predictions", 2, "--top", 3, "--alpha", 2, "--windows", 18)
    found = json.loads(run("edit-lab", "gains", checkpoint.path, "--tokens", 600, *common, *edits))
    assert found["tables"][0]["rows"][0][:3] == ["units", 2.0, 4]
    stored = Results.load(tmp_path, checkpoint.hash)
    assert list(stored.experiments) == ["gains", "survival"]
    assert "Survival and spill" in run("edit-lab", "show", checkpoint.path, "--out", tmp_path)
    assert "No experiment was made" in run("edit-lab", "show", checkpoint.path)


def test_an_installed_association_is_saved_as_a_child(
    checkpoint: Checkpoint, corpus: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: tuple[object, ...] = ("edit-lab", "install", checkpoint.path, "--corpus", corpus, "--windows", 150)
    words += ("--length", 16, "--layer", 1, "--pairs", 2, "--kind", "plain", "--out", tmp_path)
    monkeypatch.setattr("sys.argv", ["legible", *map(str, words), "--save", "linked", f"--corpus={corpus}"])
    with monkeypatch.context() as patched:
        # A model of random weights hardly answers an edit of one unit, so any rank counts here.
        patched.setattr(install, "TOP_RANK", tokenizer.vocab_size)
        made = json.loads(run(*words, "--beta", 4, "--beta", 16, "--save", "linked", "--json"))
    # The stored command says no folder, and makes no child a second time.
    assert "--save" not in made["command"]
    assert made["command"].endswith("--corpus text.txt")
    assert str(corpus.parent) not in made["command"]
    child = find("linked")
    assert (made["child"]["hash"], made["child"]["slug"]) == (child.hash, "linked")
    origin = lineage(child)
    assert origin is not None
    assert origin.parent == checkpoint.hash
    edits = origin.edits
    assert [edit.operation for edit in edits] == ["row", "column"]
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted, plain = load(checkpoint)(ids, edits), load(checkpoint)(ids)
        assert torch.allclose(load(child)(ids), wanted, atol=1e-4)
        assert not torch.allclose(plain, wanted, atol=1e-3)
    with pytest.raises(Conflict, match="'linked' is taken"):
        run(*words, "--save", "linked")
    with pytest.raises(LegibleError, match="counts as installed, so no child was saved"):
        run(*words, "--beta", 4, "--save", "weak")
    assert "0 of 2 pairs" in Results.load(tmp_path, checkpoint.hash).experiments["install"].said


def test_fewer_pairs_than_asked_for_are_told_with_the_reason(checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
    """A text in which few tokens can be A gives fewer pairs, which the stored result would hide."""

    def made(pairs: int, a: list[str] | None = None) -> Experiment:
        asked = Asked(model="S", corpus=Path("text.txt"), tokens=600, windows=8, pairs=6, a=a)
        settings = Lab(asked, checkpoint, tokenizer, None, "here").settings(pairs=pairs)  # type: ignore[arg-type]
        return with_missing(Experiment("rank-one", f"{pairs} random pairs.", "legible", settings, {}, ()))

    fewer = made(4)
    assert (fewer.settings["pairs"], fewer.settings["pairs_asked"]) == (4, 6)
    assert fewer.said.startswith("4 random pairs. 4 of the 6 pairs asked for: no other token of the table can be A")
    assert "occur 8 times or more" in fewer.said
    assert "at most 1 % of either" in fewer.said
    for whole in (made(6), made(1, a=[" he"])):
        assert whole.said.endswith("random pairs.")
        assert "pairs_asked" not in whole.settings


def test_named_tokens_are_installed_everywhere_and_carried(
    checkpoint: Checkpoint, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    common = ("--corpus", corpus, "--tokens", 1200, "--windows", 12, "--length", 16, "--out", tmp_path, "--json")
    key = tokenizer.text(int(np.bincount(tokenizer.encode(text(0, 40))).argmax()))
    other = next(tokenizer.text(n) for n in range(300, 400) if tokenizer.text(n) != key)
    pair = ("--a", key, "--b", other)
    found = json.loads(run("edit-lab", "install", checkpoint.path, "--layer", 1, "--beta", 4, *pair, *common))
    assert found["settings"]["named"] is True
    assert found["said"].startswith("1 named pair, layers 1")
    tables = {table["id"]: table for table in found["tables"]}
    assert [row[0] for row in tables["arms"]["rows"]] == ["plain unit", "pair", "channel"]
    names = [tokenizer.display(tokenizer.target(word)) for word in (key, other)]
    assert tables["pairs-channel"]["rows"][0][:2] == names
    assert tables["pairs-channel"]["rows"][0][2].startswith("L1.h")
    found = json.loads(run("edit-lab", "rank-one", checkpoint.path, "--layer", 1, "--beta", 4, *pair, *common))
    frontier = next(table for table in found["tables"] if table["id"] == "frontier")
    assert [name for name in frontier["columns"] if not name.endswith("local")] == [
        "nats at most", "with C", "one plain unit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("edit-lab install", "--a", " the"), "as many --b as --a"),
        (("edit-lab rank-one", "--a", " the", "--b", " the"), "A and B are both"),
        (("edit-lab install", "--a", " the", "--b", "no such one token"), "a B is one token"),
        (
            ("edit-lab install", "--a", "id:7", "--b", " the"),
            r"A, .*, occurs 0 times where keys are measured and 0 times",
        ),
        (("edit-lab carried", "--tokens", "400"), "needs a reader 2 layers above it; this checkpoint has 2 layers"),
        (("edit-lab circuit", "--kind", "channel"), "give plain or pair"),
        (("native", "--corpus", "nowhere.txt"), "no text at nowhere.txt"),
        (("native", "--out", "/nowhere/file"), "no folder /nowhere"),
        (("edit-lab install", "--length", "33"), "longer than the context of sample, 32"),
        (("edit-lab install", "--layer", "2"), "no layer 2; use 0 to 1"),
        (("edit-lab install", "--kind", "gelu"), "give plain, pair or channel"),
        (("edit-lab drive", "--layer", "1", "--tokens", "400"), "fewer than 2 layers below"),
        (("edit-lab circuit", "--writer", "0", "--tokens", "400"), "needs a reader 2 layers above it"),
        (("edit-lab gains", "--out", "/nowhere"), "no folder /nowhere"),
        (("edit-lab survival", "--native", "nowhere"), "no layer-native table at nowhere"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    checkpoint: Checkpoint, corpus: Path, words: tuple[str, ...], said: str
) -> None:
    options = list(words[1:])
    if "--corpus" not in options:
        options += ["--corpus", str(corpus)]
    if words[0] not in ("native", "edit-lab gains") and "--length" not in options:
        options += ["--length", "16", "--windows", "2"]
    if words[0] != "native" and "--tokens" not in options:
        options += ["--tokens", "400"]
    with pytest.raises(LegibleError, match=said):
        run(*words[0].split(), checkpoint.path, *options)
