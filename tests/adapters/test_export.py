"""A legible checkpoint as a GPT-2 folder: every term of it, read through TransformerLens, is the native one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from family_samples import VOCAB, words
from full_disk import full_disk
from typer.testing import CliRunner

from app.cli import build
from legible_core.agreement import TOLERANCE, Agreement, compare
from legible_core.checkpoint import save
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import Conflict, LegibleError, NotExact, Unavailable
from legible_core.model import Transformer
from legible_core.ordinary.export import check_exportable, export
from legible_core.registry import open_checkpoint

MODELS = Path(__file__).parents[2] / "models"
PROMPT = "It was the best of times, it was the"


def test_the_shipped_gelu_checkpoint_agrees_in_every_term(tmp_path: Path) -> None:
    folder = tmp_path / "as-gpt2"
    done = CliRunner().invoke(build(), ["export", "novel-gelu", "--out", str(folder), "--check"])
    assert done.exit_code == 0, done.output
    said = re.search(r"([\d,]+) terms .* largest differences: (.*)\.\n", done.stdout)
    assert said is not None, done.stdout
    config = open_checkpoint(MODELS / "novel-gelu").config
    inside = config.n_layers * (config.d_model + config.n_heads + config.feed_forward.d_ff)
    assert int(said[1].replace(",", "")) > inside  # every channel, head and unit, and the floor
    differences = [float(part.split()[1]) for part in said[2].split(", ")]
    assert len(differences) == 5
    assert max(differences) <= 1e-5


@pytest.mark.parametrize("biased", [False, True])
def test_a_random_checkpoint_gives_the_same_terms(biased: bool, tmp_path: Path) -> None:
    config = ModelConfig(
        n_layers=2, d_model=24, n_heads=4, context=32, vocab_size=VOCAB, attention=Attention("linear", (0, 0)),
        feed_forward=FeedForward(48), norm_bias=biased, linear_bias=biased, tied=not biased,
    )  # fmt: skip
    model = Transformer(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if name.endswith("gain") else 0.4 * noise)
    (tmp_path / "tokenizer.json").write_bytes(words())
    native = save(tmp_path / "native", model.eval(), tmp_path / "tokenizer.json", {}, dtype="float32")
    with full_disk(), pytest.raises(Unavailable, match=r"as-gpt2 cannot be written: File too large\."):
        export(native, tmp_path / "as-gpt2")
    assert sorted(os.listdir(tmp_path)) == ["native", "tokenizer.json"]
    made = export(native, tmp_path / "as-gpt2")
    found = compare(native, made, PROMPT)
    found.check()
    assert max(found.largest.values()) <= TOLERANCE
    assert found.terms > 2 * (24 + 4 + 48)
    with pytest.raises(Conflict):
        export(native, made)
    with torch.no_grad():
        model.layers[1].feed_forward.down[3, 5] += 1.0
    other = save(tmp_path / "other", model, tmp_path / "tokenizer.json", {}, dtype="float32")
    with pytest.raises(NotExact, match="is not the checkpoint: a term"):
        compare(other, made, PROMPT).check()


def test_the_check_is_refused_before_a_folder_is_written_where_the_libraries_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformer_lens", None)
    folder = tmp_path / "as-gpt2"
    done = CliRunner().invoke(build(), ["export", "novel-gelu", "--out", str(folder), "--check"])
    assert isinstance(done.exception, LegibleError)
    assert done.exception.code == "not_installed"
    assert not folder.exists()


def test_a_difference_that_is_no_number_is_over_the_tolerance() -> None:
    with pytest.raises(NotExact, match="nan"):
        Agreement(1, 0, 1, {"heads": 0.0, "units": float("nan")}).check()


def test_operations_have_no_place_in_gpt2() -> None:
    with pytest.raises(LegibleError, match="boolean values"):
        check_exportable(open_checkpoint(MODELS / "novel-legible"))
