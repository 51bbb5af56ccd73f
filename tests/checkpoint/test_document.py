"""docs/checkpoints.md is true: its tables against the code, its worked example against a forward pass in numpy."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_samples import SMALL
from numpy.typing import NDArray

from legible_core.checkpoint import load
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.folder import Card
from legible_core.registry import LEGIBILITY, check_weights, expected_tensors, open_checkpoint
from legible_core.token_service import TokenizerService
from legible_core.units import ACTIVATIONS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
Array = NDArray[np.float64]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def test_every_tensor_is_described_and_no_other() -> None:
    bare = set()
    for activation in ACTIVATIONS:
        everything = ModelConfig(
            1, 8, 4, 4, 11, Attention("boolean", (2,)), FeedForward(20, 0.3, 0.5, activation),
            norm_bias=True, linear_bias=True, tied=False, unembedding_bias=True,
        )  # fmt: skip
        bare |= {re.sub(r"\d+", "{l}", name, count=1) for name, _ in expected_tensors(everything)}
    table = set(re.findall(r"^\| `([a-z_{}.]+)` \| \(", DOCUMENT, re.MULTILINE))
    biases = {name for name in bare if name.endswith("_bias") and name != "unembedding_bias"}
    assert table == bare - biases - {name for name in bare if name.endswith(".bias")}
    prose = DOCUMENT[DOCUMENT.index("With `linear_bias` each matrix") :].split("\n\n")[0]
    assert set(re.findall(r"`(?:layers\.\{l\}\.\w+\.)?(\w+_bias)`", prose)) - {"linear_bias", "M_bias"} == {
        name.rsplit(".", 1)[1] for name in biases
    }


def test_every_field_of_the_config_is_described() -> None:
    (text,) = blocks("json")
    config = ModelConfig.from_json(json.loads(text))
    fields = config.to_json()
    names = {name for name in fields if name not in ("attention", "feed_forward")}
    parts = {"attention": Attention, "feed_forward": FeedForward}
    names |= {f"{part}.{field.name}" for part, made in parts.items() for field in dataclasses.fields(made)}
    section = DOCUMENT[DOCUMENT.index("## config.json") : DOCUMENT.index("## Tensors")]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == names
    assert json.loads(text) == fields


def test_the_card_that_is_shown_can_be_read() -> None:
    section = DOCUMENT[DOCUMENT.index("## README.md") :]
    shown = section.split("```\n")[1]
    card = Card.parse(re.sub(r"  +.*", "", shown))
    assert card.number("tokens") == 12_000_000
    assert card.number("perplexity") == pytest.approx(math.exp(card.number("loss") or 0), rel=1e-3)
    for key in LEGIBILITY:
        assert f"`{key}`" in section
        card.share(key)


def test_the_hash_on_the_command_line(folder: Path) -> None:
    (command,) = re.findall(r"```\n(printf .*?)```", DOCUMENT, re.DOTALL)
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == open_checkpoint(folder).hash


@pytest.mark.parametrize("bounded", [[[1, 3], [2]], [[], [0, 1, 2, 3]]])
def test_the_worked_example(bounded: list[list[int]], tokenizer_path: Path, tmp_path: Path) -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(block, "docs/checkpoints.md", "exec"), names)
    state = foreign(layers=2, d=16, heads=4, context=12, vocabulary=SMALL.vocab_size)
    names["convert"](state, 4, bounded, tokenizer_path, tmp_path / "mapped")
    with TokenizerService() as service:
        check_weights(open_checkpoint(tmp_path / "mapped", tokenizer=service))
    model = load(tmp_path / "mapped")
    ids = [5, 0, 264, 17, 17, 200, 33, 1, 2, 90, 91, 92]
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0].double().numpy()
    expected = reference(state, 4, bounded, ids)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    # The heads matter: with the sigmoids elsewhere the logits are others.
    elsewhere = reference(state, 4, [[0], [3]], ids)
    assert np.abs(elsewhere - expected).max() > 1e-3


def foreign(*, layers: int, d: int, heads: int, context: int, vocabulary: int) -> dict[str, NDArray[np.float32]]:
    """Random weights under the names and in the layout of Hugging Face's GPT-2, without biases."""
    draw = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (draw.standard_normal(shape) * scale).astype(np.float32)

    state = {
        "transformer.wte.weight": normal(vocabulary, d),
        "transformer.wpe.weight": normal(context, d),
        "transformer.ln_f.weight": 1 + normal(d),
    }
    for layer in range(layers):
        state |= {
            f"transformer.h.{layer}.ln_1.weight": 1 + normal(d),
            f"transformer.h.{layer}.ln_2.weight": 1 + normal(d),
            f"transformer.h.{layer}.attn.c_attn.weight": normal(d, 3 * d),
            f"transformer.h.{layer}.attn.c_proj.weight": normal(d, d),
            f"transformer.h.{layer}.mlp.c_fc.weight": normal(d, 4 * d),
            f"transformer.h.{layer}.mlp.c_proj.weight": normal(4 * d, d),
        }
    return state


def reference(state: dict[str, NDArray[np.float32]], heads: int, bounded: list[list[int]], ids: list[int]) -> Array:
    """The foreign model's own logits, in float64: GPT-2 with a sigmoid on the values of the bounded heads."""
    weights = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in state.items()}
    erf = np.vectorize(math.erf)

    def norm(x: Array, gain: Array) -> Array:
        return np.asarray(gain * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))

    time = len(ids)
    x = weights["wte.weight"][ids] + weights["wpe.weight"][:time]
    for layer, special in enumerate(bounded):
        part = f"h.{layer}"
        qkv = norm(x, weights[f"{part}.ln_1.weight"]) @ weights[f"{part}.attn.c_attn.weight"]
        query, key, value = (a.reshape(time, heads, -1) for a in np.split(qkv, 3, axis=-1))
        gathered = np.empty_like(value)
        for head in range(heads):
            scores = query[:, head] @ key[:, head].T / math.sqrt(value.shape[-1])
            scores = np.where(np.tri(time, dtype=bool), scores, -np.inf)
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern /= pattern.sum(-1, keepdims=True)
            mine = 1 / (1 + np.exp(-value[:, head])) if head in special else value[:, head]
            gathered[:, head] = pattern @ mine
        x = x + gathered.reshape(time, -1) @ weights[f"{part}.attn.c_proj.weight"]
        inner = norm(x, weights[f"{part}.ln_2.weight"]) @ weights[f"{part}.mlp.c_fc.weight"]
        x = x + (inner * 0.5 * (1 + erf(inner / math.sqrt(2)))) @ weights[f"{part}.mlp.c_proj.weight"]
    return np.asarray(norm(x, weights["ln_f.weight"]) @ weights["wte.weight"].T)
