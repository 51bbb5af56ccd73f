"""`legible diagnose`: signs only where the paper saw them, every design, checkpoints and runs, bad arguments."""

from __future__ import annotations

import copy
import json
import lzma
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from app.cli import build
from app.commands.diagnose import examine
from legible_core.checkpoint import save
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError, NotFound
from legible_core.folder import Card
from legible_core.training import sources
from legible_core.training.diagnosis import Sign, own_text, signs
from legible_core.training.history import largest_head
from legible_core.training.state import write_state
from legible_core.training.telemetry import read


def reading(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    return read(tiny_model(config, seed), random_ids(16, batch=2))


def levels(found: list[Sign]) -> list[tuple[str, int | None]]:
    return [(sign.level, sign.layer) for sign in found]


def with_layer(found: dict[str, Any], **values: Any) -> dict[str, Any]:
    made = copy.deepcopy(found)
    made["layers"][1] |= values
    return made


def test_the_paper_s_diverged_checkpoint_and_its_healthy_layers() -> None:
    """A.2: 99 % saturated and writes 174 times as large in one layer; 3-38 % and 3-5 times elsewhere."""
    config = replace(tiny_config("membership", (3, 3, 3)), n_heads=4)
    healthy = {"attention": {"saturated": 0.3}, "write_ratio": 4.0, "columns_ratio": 1.2}
    base = {"layers": [dict(healthy) for _ in range(3)], "residual_rms": 3.0, "gain_norm": 57.0}
    assert levels(signs(config, base)) == [("warning", None)]  # the split itself
    spoilt = with_layer(base, attention={"saturated": 0.99}, write_ratio=174.0, columns_ratio=2.0)
    found = signs(config, spoilt)
    assert levels(found) == [("alarm", 1), ("warning", None), ("note", 1)]
    assert "174" in found[0].text
    assert "99%" in found[0].text
    # Between the two: as the saturation is like the one or the other.
    assert ("warning", 1) in levels(signs(config, with_layer(base, attention={"saturated": 0.6}, write_ratio=20.0)))
    assert ("note", 1) in levels(signs(config, with_layer(base, write_ratio=20.0)))


def test_saturation_alone_is_no_sign() -> None:
    """A.3: crispness pins healthy operands to the rails."""
    config = tiny_config("boolean", (4, 4, 4))
    base = reading(config)
    assert signs(config, with_layer(base, attention={**base["layers"][1]["attention"], "saturated": 1.0})) == []


@pytest.mark.parametrize(
    ("value", "special", "expected"),
    [
        ("membership", (4, 4, 4), []),
        ("membership", (2, 2, 2), []),
        ("membership", (3, 3, 3), ["warning"]),
        ("membership", (4, 3, 4), ["warning"]),
        ("boolean", (3, 3, 3), ["note"]),
        ("linear", (0, 0, 0), []),
    ],
)
def test_a_small_unbounded_minority(value: Any, special: tuple[int, ...], expected: list[str]) -> None:
    config = tiny_config(value, special)
    calm = {"attention": None, "write_ratio": None, "columns_ratio": None}
    found = signs(config, {"layers": [calm] * 3, "residual_rms": 1.0, "gain_norm": 5.0})
    assert [sign.level for sign in found] == expected
    if special == (4, 3, 4):
        assert "In layer 1 " in found[0].text


def test_weights_that_are_no_numbers() -> None:
    calm = {"attention": None, "write_ratio": None, "columns_ratio": None}
    found = signs(tiny_config(), {"layers": [calm] * 3, "residual_rms": None, "gain_norm": 5.0})
    assert levels(found)[0] == ("alarm", None)


def test_a_model_writes_its_own_text() -> None:
    model = tiny_model()
    written = own_text(model, 5, 100, seed=1)
    assert written is not None
    assert written.numel() >= 100
    assert written.shape[1] <= model.config.context
    assert (written[:, 0] == 5).all()
    again, other = own_text(model, 5, 100, seed=1), own_text(model, 5, 100, seed=2)
    assert again is not None
    assert other is not None
    assert torch.equal(written, again)
    assert not torch.equal(written, other)
    with torch.no_grad():
        model.final_norm.gain[0] = torch.nan
    assert own_text(model, 5, 100, seed=1) is None


# ---- the command -----------------------------------------------------------------------------------------------------


def tokenizer(path: Path) -> Path:
    """A byte-level tokenizer of exactly the tiny models' size: some letters, and nothing else."""
    alphabet = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c.isascii()][:60]
    vocabulary = {letter: index for index, letter in enumerate(["<|endoftext|>", *alphabet])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer(tmp_path_factory.mktemp("words") / "tokenizer.json")


@pytest.fixture(scope="module")
def folder(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("membership", (3, 3, 3))
    return save(tmp_path_factory.mktemp("made") / "tiny", tiny_model(config), words, Card({"loss": "4.0"})).path


@pytest.mark.parametrize("config", designs(), ids=lambda config: f"{config.attention.value}-{config.feed_forward}")
def test_every_design(tmp_path: Path, words: Path, config: ModelConfig) -> None:
    path = save(tmp_path / "made", tiny_model(config), words, Card({})).path
    done = CliRunner().invoke(build(), ["diagnose", str(path), "--tokens", "40"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "text that it wrote itself" in done.output
    assert ("Half-lives" in done.output) == (config.feed_forward.n_quantifiers > 0)
    assert max(map(len, done.output.splitlines())) <= 80
    assert "…" not in done.output


def test_the_largest_head_of_a_layer_is_named(tmp_path: Path, words: Path) -> None:
    model = tiny_model(tiny_config("membership", (4, 4, 4)))
    with torch.no_grad():
        output = model.layers[1].attention.output
        share = output.shape[1] // 4
        output[:, 2 * share : 3 * share] *= 1000
    path = save(tmp_path / "made", model, words, Card({}), dtype="float32").path
    columns = examine(str(path), text="ABCABC")["layers"][1]["columns"]
    assert max(columns) == columns[2] > 100 * columns[3]
    done = CliRunner().invoke(build(), ["diagnose", str(path), "--text", "ABCABC"], env={"COLUMNS": "80"})
    table = done.output.partition("The largest head of each layer")[2].partition("Operands")[0]
    row = next(line.split() for line in table.splitlines() if line.split()[:1] == ["L1"])
    times = columns[2] / statistics.median(columns)
    assert row[:5] == ["L1", "h2", "bounded", f"{columns[2]:.3g}", f"{times:.3g}"]
    assert row[5:7] == ["h2", "bounded"]


def test_a_head_that_is_no_number_is_the_largest() -> None:
    assert largest_head([1.0, 3.0, 2.0]) == (1, 3.0)
    assert largest_head([]) is None
    found = largest_head([1.0, 3.0, None])
    assert found is not None
    assert found[0] == 2
    assert math.isnan(found[1])


def test_json_says_on_what_it_was_read(folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ABC DEF " * 40)
    own = examine(str(folder), tokens=64)
    assert own["read_on"] == {"source": "own text", "seed": 0, "tokens": own["tokens"], "loss": None}
    text = examine(str(folder), text="ABCABC")
    assert text["read_on"]["source"] == "text"
    assert text["read_on"]["tokens"] == 6
    assert text["read_on"]["loss"] > 0
    done = CliRunner().invoke(build(), ["diagnose", str(folder), "--corpus", str(corpus), "--tokens", "50", "--json"])
    found = json.loads(done.output)
    assert found["read_on"]["source"] == "corpus corpus.txt"
    assert found["read_on"]["tokens"] == 50
    assert len(found["layers"]) == 3
    assert found["signs"][0]["level"] in ("warning", "alarm")
    piped = CliRunner().invoke(build(), ["diagnose", str(folder), "--text", "-", "--json"], input="ABCABC")
    assert json.loads(piped.output)["read_on"] == text["read_on"]


def test_a_run_is_read_in_its_last_state(tmp_path: Path, words: Path) -> None:
    from legible_core.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe

    recipe = Recipe(
        name="r", model=ModelRecipe(2, 16, 4, 16, "membership", 0.75, None, 0.5, 0.25),
        data=DataRecipe("unused", vocab_size=61), schedule=ScheduleRecipe(tokens=640, batch_tokens=64),
    )  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text(json.dumps(recipe.to_json()))
    (run / "tokenizer.json").write_bytes(words.read_bytes())
    with pytest.raises(NotFound, match="no saved state yet"):
        examine(str(run))
    model = tiny_model(recipe.model.config(61))
    write_state(run / "state", dict(model.named_parameters()), {"none": torch.zeros(1)}, {"step": 7})
    found = examine(str(run), text="ABCD")
    assert found["checkpoint"] == "r, step 7"
    expected = read(model, torch.tensor([Tokenizer.from_file(str(words)).encode("ABCD").ids]))
    assert found["layers"] == expected["layers"]


@pytest.mark.parametrize(
    ("words_given", "said"),
    [
        (["nowhere/at/all"], "nowhere"),
        (["no-such-slug"], "no-such-slug"),
        (["{folder}", "--text", "a", "--corpus", "b"], "not both"),
        (["{folder}", "--corpus", "{folder}/none.txt"], "There is no text at"),
        (["{folder}", "--corpus", "{folder}/model.safetensors"], "is not UTF-8 text: byte"),
        (["{folder}", "--corpus", "{folder}"], "holds no .txt or .xz file"),
        (["{folder}", "--text", ""], "The text is empty"),
    ],
)
def test_bad_arguments_are_one_sentence(folder: Path, words_given: list[str], said: str) -> None:
    arguments = ["diagnose", *(word.format(folder=folder) for word in words_given)]
    done = CliRunner().invoke(build(), arguments)
    assert isinstance(done.exception, LegibleError)
    assert said in done.exception.message


@pytest.mark.parametrize("seed", ["-1", str(1 << 31), "9" * 20])
def test_a_seed_beyond_what_every_other_takes(folder: Path, seed: str) -> None:
    done = CliRunner().invoke(build(), ["diagnose", str(folder), "--seed", seed, "--tokens", "8"])
    assert done.exit_code == 2
    assert "--seed" in done.output
    assert "than or equal to" in done.output


def test_a_packed_corpus_is_the_same_text(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 100)
    text = "ABCD\nDCBA\n" * 40  # more than is read at once
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    (tmp_path / "t.txt.xz").write_bytes(lzma.compress(text.encode()))
    plain, packed = (examine(str(folder), corpus=tmp_path / name, tokens=30) for name in ("t.txt", "t.txt.xz"))
    assert plain["read_on"]["tokens"] == 30
    assert packed["read_on"]["source"] == "corpus t.txt.xz"
    assert packed["layers"] == plain["layers"]
