"""`legible family`: the figures are those of the names files, and losses are paired window by window."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model, text
from typer.testing import CliRunner

from app.cli import build
from app.commands.family import batched, windows
from legible_core.checkpoint import load, save
from legible_core.errors import LegibleError
from legible_core.evaluation.statistics import mean_of_series
from legible_core.naming.corpus import token_stream
from legible_core.naming.names import Names
from legible_core.registry import open_checkpoint
from legible_core.tokens import Tokenizer


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))


def make(folder: Path, tokenizer_path: Path, vocab_size: int, seed: int) -> Path:
    save(folder, sample_model(sample_config(vocab_size), seed), tokenizer_path, {"title": folder.name}, "float32")
    return folder


def run(*words: str) -> str:
    result = CliRunner().invoke(build(), list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_checkpoints_stand_side_by_side(tmp_path: Path, tokenizer_path: Path, tokenizer: Tokenizer) -> None:
    one, two = (make(tmp_path / name, tokenizer_path, tokenizer.vocab_size, i) for i, name in enumerate(["one", "two"]))
    corpus = tmp_path / "text.txt"
    corpus.write_text(text(3, 1200), encoding="utf-8")
    for folder in (one, two):
        run("scan", str(folder), "--corpus", str(corpus))
    words = ["family", str(one), str(two), "--corpus", str(corpus)]
    found = json.loads(run(*words, "--json"))
    for document, folder in zip(found, (one, two), strict=True):
        names = Names.load(folder, checkpoint_hash=open_checkpoint(folder).hash)
        assert names is not None
        assert document["quality"] == names.quality
        assert document["all"]["feed-forward operands CONSTANT"] == names.legibility["all"]["operands"]["constant"]
        assert document["layers"][0]["operands of both nameable"] == names.legibility["layers"][0]["names"]["nameable"]
    losses = []
    for folder in (one, two):
        model = load(open_checkpoint(folder))
        context = model.config.context
        ids = torch.from_numpy(token_stream([text(3, 1200)], tokenizer)[0])
        rows = []
        for start in range(0, len(ids) // context * context, context):
            piece = ids[start : start + context + 1]
            with torch.no_grad():
                logits = model(piece[None, :context])[0, : len(piece) - 1]
            rows.append(float(torch.nn.functional.cross_entropy(logits, piece[1:])))
        losses.append(np.array(rows))
    difference = losses[1] - losses[0]
    measured = found[1]["on_corpus"]
    # The last window of a text has no token after it, here and there.
    assert measured["loss"] == pytest.approx(losses[1].mean(), abs=1e-5)
    assert measured["difference"] == pytest.approx(difference.mean(), abs=1e-5)
    assert measured["difference_se"] == pytest.approx(mean_of_series(difference).se, abs=1e-5)
    assert found[0]["on_corpus"]["difference"] == 0.0
    shown = run(*words, "--layers").splitlines()
    assert shown[0].split() == ["one", "two"]
    assert [line.split()[0] for line in shown].count("L0") == 12


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path, tokenizer_path: Path, tokenizer: Tokenizer) -> None:
    folder = make(tmp_path / "one", tokenizer_path, tokenizer.vocab_size, 0)
    with pytest.raises(LegibleError, match="has no names, so nothing was measured; run `legible scan"):
        run("family", str(folder))
    with pytest.raises(LegibleError, match="There is no text at"):
        run("family", str(folder), "--corpus", str(tmp_path / "none.txt"))


def test_fewer_tokens_are_windows_from_all_over_the_text() -> None:
    ids = np.arange(10_007)
    starts, length = windows(len(ids), 100, 1_000)
    batches = list(batched(ids, starts, length))
    seen, following = (np.concatenate([getattr(batch, key) for batch in batches]) for key in ("ids", "targets"))
    assert seen.shape == (10, 100)
    assert (seen[0, 0], seen[-1, -1]) == (0, 9_999)
    assert set(np.diff(seen[:, 0])) == {1_100}
    assert (following == seen + 1).all()
    starts, length = windows(9_900, 100, None)
    assert (starts == np.arange(99) * 100).all()
    assert list(batched(ids[:9_900], starts, length))[-1].targets[-1, -1] == -100
