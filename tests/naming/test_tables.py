"""The papers' tables: their numbers are the names', undefined stays undefined, medians and latches are right."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model
from typer.testing import CliRunner

from app.cli import build
from app.commands.card import figures, tables_text, with_section
from app.commands.card_check import differences
from legible_core.checkpoint import save, write_card
from legible_core.errors import LegibleError
from legible_core.figures import loss_text, percent_text, perplexity_text, same, without_tables
from legible_core.folder import MAX_CARD_BYTES, Card
from legible_core.model.transformer import Transformer
from legible_core.naming.assemble import write_names
from legible_core.naming.lexicon import CLASSES
from legible_core.naming.names import Names
from legible_core.naming.scan import Scan
from legible_core.naming.tables import CATEGORIES, deep_heads, memory, tables
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.tokens import Tokenizer


def _named(model: Transformer, ids: np.ndarray, folder: Path, tokenizer: Tokenizer, hash: str = "h" * 64) -> Names:
    scan = Scan(model, ids, "sample.txt", checkpoint_hash=hash, end_of_document=0)
    for _ in scan.run():
        pass
    return write_names(folder, scan, tokenizer)


@pytest.fixture(scope="module")
def names(model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Names:
    return _named(model, ids[:3000], tmp_path_factory.mktemp("names"), tokenizer)


def test_tables_one_and_five_are_the_names_own_figures(names: Names) -> None:
    found = {table.id: table for table in tables(names)}
    assert set(found) >= {"selective", "value-channels", "operands", "composition", "heads", "half-lives"}
    layers = [*names.legibility["layers"], names.legibility["all"]]
    for row, layer in zip(found["value-channels"].records(), layers, strict=True):
        assert row["operands crisp"] == layer["head_operands"]["crisp"]
        assert row["operands ON"] == layer["head_operands"]["on"]
        for column in ("SELECTIVE", "CONSTANT", "FUZZY"):
            assert row[column] == layer["value"][column.lower()]
    for row, layer in zip(found["operands"].records(), layers, strict=True):
        for column in ("crisp", "ON", "SELECTIVE", "CONSTANT", "FUZZY"):
            assert row[column] == layer["operands"][column.lower()]
    for record in found["composition"].records():
        assert sum(float(record[c] or 0) for c in ("SELECTIVE", "CONSTANT", "FUZZY")) == pytest.approx(1)
    heads = found["heads"].rows
    assert [heads[0][1 + head] is None for head in range(4)] == [False, False, True, True]
    assert [heads[1][1 + head] is None for head in range(4)] == [False, True, True, True]


def test_an_ordinary_model_has_no_tables(ids: np.ndarray, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from legible_core.config import Attention, FeedForward, ModelConfig

    config = ModelConfig(2, 32, 4, 32, tokenizer.vocab_size, Attention("linear", (0, 0)), FeedForward(32))
    names = _named(sample_model(config), ids[:500], tmp_path, tokenizer)
    assert tables(names) == []
    assert memory(names) is None
    assert "undefined" in tables_text(names)
    assert set(figures(names)) == {"loss", "loss_se", "perplexity", "measured_tokens"}


def test_half_lives(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size))
    theta = model.layers[0].feed_forward.theta
    assert theta is not None
    with torch.no_grad():
        for layer in model.layers:
            assert layer.feed_forward.theta is not None
            layer.feed_forward.theta.fill_(40.0)  # λ is 1 in float32: it never forgets
        theta[: len(theta) // 2] = 0.0  # λ = ½: existentials of layer 0 with a half-life of one token
    names = _named(model, ids[:500], tmp_path, tokenizer)
    found = memory(names)
    assert found is not None
    assert found["all"]["latches"] == 0.75
    assert found["existential"]["latches"] == 0.5
    assert found["proportion"]["median"] == float("inf")
    (table,) = (table for table in tables(names) if table.id == "half-lives")
    quarter = found["all"]["quantifiers"] // 4
    assert sum(int(row[2] or 0) + int(row[3] or 0) for row in table.rows) == 4 * quarter
    assert next(row for row in table.rows if row[0] == 1.0)[2] == quarter
    assert table.rows[-1][2:] == (quarter, 2 * quarter)


def test_the_panel_holds_known_labels_of_the_deep_half(names: Names) -> None:
    assert {label for labels in CATEGORIES.values() for label in labels} <= set(CLASSES)
    table = deep_heads(names)
    for row in table.records() if table is not None else []:
        assert str(row["head"]).startswith("L1.")
        assert row["category"] in CATEGORIES
        assert row["operand"]
        assert float(row["agreement"] or 0) >= 0.8


def test_one_rule_for_digits() -> None:
    assert (loss_text(4.43576), perplexity_text(84.41552), percent_text(0.84497)) == ("4.4358", "84.42", "84.5 %")
    assert percent_text(None) == percent_text(float("nan")) == "–"
    assert same("84.42", 84.43, "84.43")
    assert not same("84.42", 84.44, "84.44")
    assert not same("many", 84.44, "84.44")
    assert same("895687", 895683.0, "895683", 1e-5)
    assert not same("895687", 895683.0, "895683")
    assert not same("895687", 895677.0, "895677", 1e-5)
    assert not same("84.42", 84.44, "84.44", 1e-5)
    assert not same("67001", 67000.0, "67000")
    assert same("468870", 468869.0, "468869", 1e-5)
    assert not same("3", math.inf, "inf", 1e-5)


# ---- the card --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scanned(
    model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tokenizer_path: Path, tmp_path: Path
) -> Checkpoint:
    saved = save(tmp_path / "sample", model, tokenizer_path, {"title": "Sample"}, "float32")
    _named(model, ids[:1500], saved.path, tokenizer, saved.hash)
    return saved


def _card(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["card", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_card_is_written_and_then_agrees(scanned: Checkpoint) -> None:
    code, printed = _card(str(scanned.path), "--check")
    assert code == 1
    assert "loss: not on the card" in printed
    assert _card(str(scanned.path), "--set", "data=a sample")[0] == 0
    assert _card(str(scanned.path), "--check")[0] == 0
    written = open_checkpoint(scanned.path)
    assert written.hash == scanned.hash
    assert written.card.fields["data"] == "a sample"
    assert "### Half-lives of the quantifiers" in written.card.body
    before = (scanned.path / "README.md").read_bytes()
    assert _card(str(scanned.path))[0] == 0
    assert (scanned.path / "README.md").read_bytes() == before


@pytest.mark.parametrize(
    "line", ["k=\udcff", "k=a\nb", "k=a\rb", "k=a\x85b", "k=\x1b[2J", "k\nq=a", "\udcff=a", "K=a", "=a", "two words=a"]
)
def test_a_set_line_that_no_card_can_hold_is_refused_at_once(scanned: Checkpoint, line: str) -> None:
    before = (scanned.path / "README.md").read_bytes()
    with pytest.raises(LegibleError, match="is not usable: keys are a-z, 0-9, _, values one line of") as refused:
        _card(str(scanned.path), "--set", line, "--corpus", "none")  # nothing is looked for, less measured, before
    assert refused.value.message.isprintable()
    assert (scanned.path / "README.md").read_bytes() == before


def test_a_body_that_no_card_can_hold_is_refused_and_the_old_card_stays(scanned: Checkpoint, tmp_path: Path) -> None:
    before = (scanned.path / "README.md").read_bytes()
    body = tmp_path / "body.md"
    for data, said in ((b"caf\xe9", r"body.md is not UTF-8 text \(at byte 3\); convert it first"),
                       (b"a" * (MAX_CARD_BYTES + 1), "the limit of a card is 262,144")):  # fmt: skip
        body.write_bytes(data)
        with pytest.raises(LegibleError, match=said):
            _card(str(scanned.path), "--body", str(body))
    body.write_bytes(b"a" * MAX_CARD_BYTES)  # a card of its own length, but not with the figures
    with pytest.raises(LegibleError, match="the limit of a card is 262,144"):
        _card(str(scanned.path), "--body", str(body))
    with pytest.raises(LegibleError, match="text cannot be written as UTF-8"):
        write_card(scanned.path, Card({}, "a\ud800"))
    assert (scanned.path / "README.md").read_bytes() == before
    assert not [path for path in scanned.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("change", ["front", "table", "lines", "tiny"])
def test_a_changed_number_is_found(scanned: Checkpoint, change: str) -> None:
    _card(str(scanned.path))
    card = scanned.path / "README.md"
    text = card.read_text(encoding="utf-8")
    fields = open_checkpoint(scanned.path).card.fields
    loss = fields["loss"]
    if change == "front":
        text = text.replace(f"loss: {loss}", f"loss: {float(loss) + 0.01:.4f}")
    elif change == "tiny":
        text = text.replace(f"loss: {loss}", f"loss: {float(loss) + 0.0001:.4f}")
    elif change == "table":
        row = next(line for line in text.splitlines() if line.startswith("| L1 |") and "%" in line)
        text = text.replace(row, row.replace(row.split("|")[2], " 99.9 % "))
    else:
        text = text.replace("### Composition\n", "")
    card.write_text(text, encoding="utf-8")
    code, printed = _card(str(scanned.path), "--check")
    assert code == 1
    assert {"front": "loss: ", "table": "the tables: | L1 |", "lines": "lines on the card", "tiny": "; 1 differ"}[
        change
    ] in printed


def test_the_same_text_measured_anew_gives_the_same_card(
    model: Transformer, tokenizer_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from naming_samples import text

    saved = save(tmp_path / "sample", model, tokenizer_path, {}, "float32")
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n<|endoftext|>\n".join(text(seed, 300) for seed in range(3)), encoding="utf-8")
    assert _card(str(saved.path), "--corpus", str(corpus))[0] == 0
    assert not (saved.path / "names.json").exists()
    assert _card(str(saved.path), "--corpus", str(corpus), "--check")[0] == 0
    corpus.write_text(text(9, 900), encoding="utf-8")
    code, printed = _card(str(saved.path), "--corpus", str(corpus), "--check")
    assert code == 1
    assert "measured_tokens" in printed


def test_a_folder_without_names_is_told_by_the_folder_that_was_given(
    model: Transformer, tokenizer_path: Path, tmp_path: Path
) -> None:
    """A folder outside the registry has a slug that no command finds again."""
    folder = tmp_path / "my runs" / "tiny"
    save(folder, model, tokenizer_path, {}, "float32")
    with pytest.raises(LegibleError) as refused:
        _card(str(folder))
    assert f"`legible scan '{folder}' --corpus FILE`" in refused.value.message


def test_no_card_is_made_of_the_checkpoints_own_text(
    model: Transformer, tokenizer: Tokenizer, scanned: Checkpoint, ids: np.ndarray
) -> None:
    scan = Scan(model, ids[:500], "own", checkpoint_hash=scanned.hash, sampled=0)
    for _ in scan.run():
        pass
    write_names(scanned.path, scan, tokenizer)
    with pytest.raises(LegibleError, match="its own text"):
        _card(str(scanned.path))


def test_the_tables_take_the_old_ones_place() -> None:
    once = with_section("Prose.\n\n- a list", "## Figures\n\nold")
    twice = with_section(once, "## Figures\n\nnew")
    assert twice.startswith("Prose.\n\n- a list")
    assert "old" not in twice
    assert twice.count("## Figures") == 1
    assert without_tables(twice).strip() == "Prose.\n\n- a list"
    assert without_tables("No tables.") == "No tables."


def test_differences_names_what_is_missing(scanned: Checkpoint) -> None:
    assert differences(scanned, {"loss": "1.0"}, "## Figures") == [
        "loss: not on the card, now 1.0",
        "the tables: not on the card",
    ]
