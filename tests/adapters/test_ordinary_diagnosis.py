"""`legible diagnose` of ordinary models: what their heads write, held against each head's own write vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from family_samples import VOCAB, hf_model, save
from typer.testing import CliRunner

from app.cli import build
from legible_core.adapters.config import from_hugging_face
from legible_core.ordinary.diagnosis import read
from legible_core.ordinary.loading import bridged

TEXTS = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_the_reads_are_those_of_each_head_s_own_write(family: str) -> None:
    """A head's write is made here from the other heads set to nothing: what the sublayer adds without its bias."""
    hf = hf_model(family)
    model = bridged(hf, from_hugging_face(hf.config))
    found = read(model, *TEXTS, skip=1)
    assert found["tokens"] == 2 * 23
    traces = [model.trace(ids) for ids in TEXTS]
    residual = torch.cat([trace.residual[1:] for trace in traces])
    assert found["residual_rms"] == pytest.approx(residual.square().mean().sqrt().item(), rel=1e-4)
    assert found["gain_norm"] == pytest.approx(model.final_norm.gain.norm().item(), rel=1e-4)
    for index, (layer, said) in enumerate(zip(model.layers, found["layers"], strict=True)):
        gain = layer.attention.post_gain[:, None] if model.config.post_norms else 1.0
        for head in range(model.config.n_heads):
            norms = []
            for trace in traces:
                part = trace.layers[index]
                alone = torch.zeros_like(part.z)
                alone[:, head] = part.z[:, head]
                write = layer.attention.output @ alone.flatten(1).T * gain
                norms.append(write.T if part.attention_divisor is None else write.T / part.attention_divisor[:, None])
            mean = torch.cat([each[1:].norm(dim=1) for each in norms]).mean().item()
            assert said["write"][head] == pytest.approx(mean, rel=1e-4)
        assert said["bounded_heads"] == 0
        assert said["attention"] is said["feed_forward"] is said["half_life"] is said["write_ratio"] is None


def test_the_command_reads_a_folder_and_says_what_is_undefined(tmp_path: Path) -> None:
    folder = save("gpt2", tmp_path / "model")
    words = ["diagnose", str(folder), "--text", "It was the best of times"]
    done = CliRunner().invoke(build(), words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "The largest head of each layer" in said
    assert "Operands on the text" not in said
    assert "neither bounded heads nor operands nor quantifiers" in said
    assert "…" not in said
    found = json.loads(CliRunner().invoke(build(), [*words, "--json"]).output)
    assert (found["ordinary"], found["signs"], found["read_on"]["source"]) == (True, [], "text")
    assert found["read_on"]["loss"] > 0
    assert [len(layer["write"]) for layer in found["layers"]] == [4, 4]
    own = json.loads(CliRunner().invoke(build(), ["diagnose", str(folder), "--tokens", "64", "--json"]).output)
    assert own["read_on"] == {"source": "own text", "seed": 0, "tokens": own["tokens"], "loss": None}
    assert own["tokens"] >= 60
