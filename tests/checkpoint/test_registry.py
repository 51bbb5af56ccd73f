"""Finding checkpoints, slugs, links out of the folder, cards."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
from checkpoint_samples import SMALL, edit_header, sign, small_model

from legible_core import registry
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import Corrupt, LegibleError, NotFound
from legible_core.folder import Card
from legible_core.registry import check_slug, discover, expected_tensors, open_checkpoint, resolve, survey
from legible_core.token_service import TokenizerService

CONFIGS = [
    SMALL,
    ModelConfig(1, 8, 2, 4, 11, Attention("linear", (0,)), FeedForward(16)),
    ModelConfig(3, 8, 2, 4, 11, Attention("membership", (2, 1, 0)), FeedForward(16, 0.0, 0.0), norm_bias=True),
    ModelConfig(
        2, 8, 4, 4, 11, Attention("boolean", (1, 4)), FeedForward(20, 0.3, 0.5),
        linear_bias=True, norm_bias=True, tied=False, unembedding_bias=True,
    ),
    ModelConfig(1, 8, 2, 4, 11, Attention("boolean", (2,)), FeedForward(16, 0.0, 1.0), linear_bias=True),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_expected_tensors_are_the_models_own(config: ModelConfig) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in small_model(config).state_dict().items()}
    assert dict(expected_tensors(config)) == own


def test_an_opened_checkpoint_says_what_it_is(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.slug == "small"
    assert checkpoint.config == SMALL
    assert checkpoint.parameters == sum(p.numel() for p in small_model().parameters()) == checkpoint.size
    assert checkpoint.bytes == (folder / "model.safetensors").stat().st_size
    assert (checkpoint.dtype, checkpoint.title, checkpoint.perplexity) == ("F32", "Small", 50.5)
    assert checkpoint.kind == "Boolean values on 75 % of the heads, half of the units named"
    assert checkpoint.to_json()["legibility"] == {"crisp": 0.75}
    assert not checkpoint.has_names
    assert checkpoint.tokens_trained is None


def test_legible_figures_do_not_travel_without_quality(folder: Path) -> None:
    card = folder / "README.md"
    card.write_text(card.read_text().replace("perplexity: 50.5\n", ""))
    assert open_checkpoint(folder).legibility == {}
    card.write_text(card.read_text().replace("crisp:", "loss: 2.0\ncrisp:"))
    assert open_checkpoint(folder).legibility == {"crisp": 0.75}
    assert open_checkpoint(folder).perplexity == pytest.approx(math.exp(2))


def test_the_hash_names_the_files_and_not_the_folder_or_card(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "moved"))
    with (other / "README.md").open("a") as card:
        card.write("\nMore prose.\n")
    assert open_checkpoint(other).hash == open_checkpoint(folder).hash
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config + "\n")
    assert registry.identify(other) != registry.identify(folder)


@pytest.mark.parametrize("slug", ["novel-legible", "a", "gpt2.small_1", "x" * 64])
def test_good_slugs(slug: str) -> None:
    assert check_slug(slug) == slug


@pytest.mark.parametrize(
    "slug", ["", ".", "..", "../x", "a/b", "a\\b", "a..b", "-a", ".a", "a.", "A", "a b", "a\n", "ä", "x" * 65, "a%2fb"]
)
def test_bad_slugs(slug: str) -> None:
    with pytest.raises(LegibleError, match=r"The slug .* is not usable"):
        check_slug(slug)


def test_survey_lists_good_and_refused_ones(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("good", "also", "torn", "Bad Name"):
        shutil.copytree(folder, root / name)
    (root / "torn" / "model.safetensors").write_bytes(b"")
    (root / "drafts").mkdir()
    (root / "README.md").write_text("What ships.")
    shutil.copytree(folder, root / ".good.saving-12ab")
    with TokenizerService() as service:
        entries = survey(
            [root, tmp_path / "absent"], [("mine", folder), ("also", folder), ("gone", tmp_path / "gone")],
            tokenizer=service,
        )  # fmt: skip
    assert [(entry.slug, entry.origin) for entry in entries if entry.checkpoint] == [
        ("also", "shipped"), ("good", "shipped"), ("mine", "added"),
    ]  # fmt: skip
    said = {entry.slug: entry.error.message for entry in entries if entry.error}
    assert set(said) == {"torn", "Bad Name", "also", "gone"}
    assert "truncated" in said["torn"]
    assert "not usable" in said["Bad Name"]
    assert "already taken" in said["also"]
    assert "There is no checkpoint folder" in said["gone"]
    assert [checkpoint.slug for checkpoint in discover([root])] == ["also", "good"]

    assert resolve("good", entries).slug == "good"
    assert resolve(open_checkpoint(folder).hash, entries).hash == open_checkpoint(folder).hash
    with pytest.raises(Corrupt, match="truncated"):
        resolve("torn", entries)
    with pytest.raises(NotFound, match=r"There is no checkpoint '\.\./x'; there are: also, good, mine"):
        resolve("../x", entries)
    with pytest.raises(NotFound, match="none yet"):
        resolve("good", [])


def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        outside.unlink(missing_ok=True)
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)
        with pytest.raises(Corrupt, match=f"{name} is a link that leads out of the folder"):
            open_checkpoint(folder)
        (folder / name).unlink()
        shutil.move(outside, folder / name)
    (folder / "config.json").rename(folder / "real.json")
    (folder / "config.json").symlink_to("real.json")
    assert open_checkpoint(folder).slug == "small"


def test_links_in_a_circle_pipes_and_folders_are_refused(folder: Path) -> None:
    config = folder / "config.json"
    config.unlink()
    config.symlink_to("config.json")
    with pytest.raises(Corrupt, match=r"config\.json is missing or cannot be reached"):
        open_checkpoint(folder)
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(Corrupt, match=r"config\.json is no regular file"):
        open_checkpoint(folder)
    config.unlink()
    config.mkdir()
    with pytest.raises(Corrupt, match=r"config\.json"):
        open_checkpoint(folder)


def test_a_changed_file_is_hashed_again(folder: Path) -> None:
    before = open_checkpoint(folder).hash
    edit_header(folder, lambda header: header.update(__metadata__={"made": "later"}))
    sign(folder)
    assert open_checkpoint(folder).hash != before


def test_cards() -> None:
    card = Card.parse("\ufeff---\r\nhash: abc\r\n# a remark\r\n\r\ntitle:  A: B \r\nnote:\r\n---\r\n\r\n# Prose\r\n")
    assert card == Card({"hash": "abc", "title": "A: B", "note": ""}, "# Prose\n")
    assert Card.parse(card.render("def")) == Card({"hash": "def", "title": "A: B", "note": ""}, "# Prose\n")
    assert Card.parse("# No front\n") == Card({}, "# No front\n")
    for text, said in [
        ("---\nhash: a\n", "no closing ---"),
        ("---\nhash: a\nhash: b\n---\n", "line 3 is given twice"),
        ("---\n- hash\n---\n", "line 2 is no `key: value` line"),
    ]:
        with pytest.raises(Corrupt, match=said):
            Card.parse(text)
    for fields in ({"a": "b\nhash: c"}, {"a b": "c"}, {"a": " c"}):
        with pytest.raises(LegibleError, match="is not usable"):
            Card(fields).render("h")
