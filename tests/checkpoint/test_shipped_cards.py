"""Every shipped card says what the files beside it say: `legible card SLUG --check`, without a model run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import build
from app.commands.card_check import recorded_facts, untrue
from legible_core.folder import Card
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.training.unit_history import UnitHistory

MODELS = Path(__file__).parents[2] / "models"
SHIPPED = sorted(folder.name for folder in MODELS.iterdir() if folder.is_dir())


def with_line(slug: str, key: str, value: str) -> Checkpoint:
    checkpoint = open_checkpoint(MODELS / slug)
    return replace(checkpoint, card=Card({**checkpoint.card.fields, key: value}, checkpoint.card.body))


def test_there_are_shipped_checkpoints() -> None:
    assert "novel-legible" in SHIPPED


@pytest.mark.parametrize("slug", SHIPPED)
def test_a_shipped_card_agrees_with_what_was_measured(slug: str) -> None:
    result = CliRunner().invoke(build(), ["card", slug, "--check"])
    assert result.stdout.endswith("tables were compared; 0 differ.\n"), result.stdout
    assert result.exit_code == 0
    assert "### Quality" in open_checkpoint(MODELS / slug).card.body


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(MODELS / "novel-legible", tmp_path_factory.mktemp("copied") / "novel-legible"))


@pytest.mark.parametrize(
    ("was", "edited"),
    [
        ("| 67,000 |", "| 67,001 |"),
        ("| 5,153 |", "| 5,154 |"),
        ("on 686,885 tokens", "on 686,886 tokens"),
        ("\nblimp: 0.6106\n", "\nblimp: 0.6107\n"),
        ("\nlambada_perplexity: 468869\n", "\nlambada_perplexity: 468870\n"),
    ],
)
def test_a_last_digit_that_was_edited_is_found(copied: Path, was: str, edited: str) -> None:
    """Nothing is measured anew, so there is nothing to round otherwise."""
    card = (MODELS / "novel-legible" / "README.md").read_text(encoding="utf-8")
    assert was in card
    (copied / "README.md").write_text(card.replace(was, edited, 1), encoding="utf-8")
    result = CliRunner().invoke(build(), ["card", str(copied), "--check"])
    assert result.exit_code == 1
    assert result.stdout.endswith("tables were compared; 1 differ.\n"), result.stdout


@pytest.mark.parametrize("slug", SHIPPED)
def test_the_facts_of_its_training_are_held_to_the_recipe_and_the_history(slug: str) -> None:
    facts = recorded_facts(open_checkpoint(MODELS / slug))
    assert facts.keys() >= {"tokens", "seed", "order_seed", "batch_tokens", "optimiser", "decay_tokens"}
    history = (MODELS / slug / "history.safetensors").is_file()
    assert facts["tokens"][1] == ("history.safetensors" if history else f"recipes/{slug}.toml")


@pytest.mark.parametrize(
    ("slug", "key", "value", "where"),
    [
        ("novel-legible", "tokens", "25001985", "history.safetensors"),
        ("novel-legible", "begun_at_tokens", "12005376", "history.safetensors"),
        ("novel-both", "begun_from", "0" * 64, "history.safetensors"),
        ("novel-gelu", "seed", "1", "recipes/novel-gelu.toml"),
        ("novel-gelu", "order_seed", "1", "recipes/novel-gelu.toml"),
        ("novel-gelu", "batch_tokens", "8192", "recipes/novel-gelu.toml"),
        ("novel-gelu", "decay_tokens", "2621440", "recipes/novel-gelu.toml"),
        ("novel-gelu", "optimiser", "AdamW 0.003", "recipes/novel-gelu.toml"),
    ],
)
def test_a_changed_fact_of_the_training_is_found(slug: str, key: str, value: str, where: str) -> None:
    true = open_checkpoint(MODELS / slug).card.fields[key]
    assert untrue(with_line(slug, key, value)) == [f"{key}: {value} on the card, {true} in {where}"]


def test_a_number_may_be_written_with_marks_between_its_digits() -> None:
    assert untrue(with_line("novel-legible", "tokens", "25,001,984")) == []


@pytest.fixture
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitHistory, "load", lambda *_: None)


@pytest.mark.usefixtures("no_history")
def test_without_a_history_the_tokens_are_those_that_the_recipe_makes() -> None:
    (line,) = untrue(with_line("novel-legible", "tokens", "25001985"))
    assert line == "tokens: 25001985 on the card, 25001984 in recipes/novel-legible.toml"


@pytest.mark.usefixtures("no_history")
def test_a_recipe_is_named_by_its_file_or_by_its_name_and_no_other_file_is_read() -> None:
    by_name = recorded_facts(with_line("novel-legible", "recipe", "novel-legible"))
    assert by_name["tokens"] == ("25001984", "recipes/novel-legible.toml")
    for named in ("../recipes/novel-legible.toml", "recipes/../pyproject.toml", "recipes/none.toml", "/etc/hosts", ""):
        assert recorded_facts(with_line("novel-legible", "recipe", named)) == {}, named


@pytest.mark.usefixtures("no_history")
def test_the_recipe_of_a_checkpoint_that_does_not_ship_is_no_witness(tmp_path: Path) -> None:
    """It may have stopped at any step, and named a recipe of its own by the same name."""
    assert untrue(replace(with_line("novel-legible", "tokens", "4096"), path=tmp_path)) == []
