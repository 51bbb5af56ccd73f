"""The accounting of ordinary models over a text: the numbers of a native twin, every window's beginning, gated rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_samples import VOCAB, hf_model, save, words
from typer.testing import CliRunner

from app.cli import build
from legible_core.accounting.carriage import carry
from legible_core.accounting.depth import follow
from legible_core.accounting.drawing import Drawing, Text
from legible_core.accounting.drives import read_rows
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import PARTS
from legible_core.accounting.rows import rows_of
from legible_core.adapters.config import from_hugging_face
from legible_core.checkpoint import save as save_native
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer
from legible_core.ordinary.export import export
from legible_core.ordinary.loading import bridged

SENTENCE = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of folly. "
TEXT = Text(np.random.default_rng(0).integers(1, VOCAB, 64 * 24), "random")


def account(folder: Path, corpus: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    said = CliRunner().invoke(build(), [
        "account", str(folder), "--corpus", str(corpus), "--sample", "8", "--floor", "0.05", "--out", str(out),
        "--device", "cpu", "--json",
    ])  # fmt: skip
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    assert json.loads((out / "accounting.json").read_text())["checkpoint"] == found["checkpoint"]
    return found


def differing(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Every number in which two documents differ by more than rounding."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        return [found for key in ours for found in differing(ours[key], theirs[key], f"{where}.{key}")]
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        return [
            found for i, pair in enumerate(zip(ours, theirs, strict=True)) for found in differing(*pair, f"{where}.{i}")
        ]
    same = theirs == pytest.approx(ours, rel=2e-3, abs=2e-3) if isinstance(ours, float) else ours == theirs
    return [] if same else [f"{where}: {ours} {theirs}"]


def test_an_exported_checkpoint_has_the_numbers_of_the_native_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    config = ModelConfig(
        n_layers=2, d_model=24, n_heads=4, context=32, vocab_size=VOCAB, attention=Attention("linear", (0, 0)),
        feed_forward=FeedForward(48), norm_bias=True, linear_bias=True, tied=False,
    )  # fmt: skip
    model = Transformer(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if name.endswith("gain") else 0.4 * noise)
    (tmp_path / "tokenizer.json").write_bytes(words())
    native = save_native(tmp_path / "native", model.eval(), tmp_path / "tokenizer.json", {}, dtype="float32")
    made = export(native, tmp_path / "as-gpt2")
    order = np.random.default_rng(3).permutation(64)
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(SENTENCE[i % 40 :] + str(i) for i in order))
    ours = account(native.path, corpus, tmp_path / "ours")
    theirs = account(made, corpus, tmp_path / "theirs")
    assert all(ours[part] is not None for part in PARTS)
    assert ours["counts"]["channels"]["counts"]["net"]["n90"]["n"] >= 4
    ours.pop("checkpoint")
    theirs.pop("checkpoint")
    assert differing(ours, theirs) == []


def test_a_folder_that_nobody_added_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    folder, corpus = save("gpt2", tmp_path / "small"), tmp_path / "text.txt"
    corpus.write_text(SENTENCE * 20)
    before = sorted(path.name for path in folder.iterdir())
    words_of = ["account", str(folder), "--corpus", str(corpus), "--parts", "counts", "--sample", "2", "--floor", "0"]
    said = CliRunner().invoke(build(), words_of)
    assert said.exit_code == 0, said.output
    assert sorted(path.name for path in folder.iterdir()) == before
    [written] = (tmp_path / "data").glob("accountings/*/accounting.json")
    assert str(written.parent) in said.output.replace("\n", "")


def test_every_window_begins_as_the_tokenizer_has_it_and_probabilities_are_behind_the_soft_cap() -> None:
    hf = hf_model("gemma2")
    model = bridged(hf, from_hugging_face(hf.config))
    reader = Reader(model, begin=0)
    assert reader.count(63 * 3 + 5, 64) == 3
    [piece] = reader.windows(TEXT.ids[: 63 * 2], 64)
    assert piece.ids.shape == (2, 64)
    assert (piece.ids[:, 0] == 0).all()
    assert (piece.following[:, 0] == -100).all()
    assert piece.following[0, -1] == TEXT.ids[63]
    predicted = reader.predict(reader.run(piece.ids), piece.following)
    with torch.no_grad():
        logs = hf(torch.from_numpy(piece.ids)).logits.double().log_softmax(-1).reshape(128, -1)
    known = piece.following.reshape(-1) >= 0
    after = torch.from_numpy(piece.following.reshape(-1)[known])
    np.testing.assert_allclose(
        predicted.loss[known], -logs[torch.from_numpy(known)].gather(1, after[:, None])[:, 0].numpy(), atol=1e-4
    )
    torch.testing.assert_close(predicted.probability.double(), logs.exp().amax(1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "kinds"), [("gpt_neox", ["plain"]), ("gemma2", ["gate", "up"])])
def test_read_rows_carriage_and_depth_of_families(name: str, kinds: list[str]) -> None:
    hf = hf_model(name)
    model = bridged(hf, from_hugging_face(hf.config))
    begin = 0 if name == "gemma2" else None
    reader, source = Reader(model, begin), rows_of(model, begin)
    contexts, candidates = TEXT.ids[:20].reshape(2, 10), np.arange(5, 75)
    states = source.substituted(contexts, candidates)
    before = [] if begin is None else [begin]
    for layer, state in enumerate(states):
        one = model.trace(torch.tensor([*before, *contexts[1], candidates[69]]))
        [*groups] = source.groups(layer)
        act = {group.kind: group.function(z_of(group, state[1, 69])) for group in groups}
        hidden = act["plain"] if "plain" in act else act["gate"] * act["up"]
        torch.testing.assert_close(hidden, one.layers[layer].hidden[-1], atol=1e-4, rtol=1e-4)
    found = read_rows(reader, TEXT, candidates=20, contexts=2, table_tokens=640)
    assert [kind.kind for kind in found.kinds] == kinds
    assert all(kind.rows == 2 * model.config.feed_forward.d_ff for kind in found.kinds)
    carried = carry(reader, TEXT, floor=0.0, predictions=2, positions=320)
    assert carried.substituted + carried.population.not_positive == 2
    assert all(0 <= row.rotation <= 1 and 0 <= row.same_with_set <= 1 for row in carried.layers)
    depth = follow(reader, Drawing(reader, TEXT, floor=0.0, predictions=4))
    assert depth.leading[-1] == 1.0
    assert depth.ranks[-1].median == 1.0


def z_of(group: Any, state: torch.Tensor) -> torch.Tensor:
    z = state @ group.rows.T
    return z if group.bias is None else z + group.bias
