"""The section of a model's page: figures with errors beside the twin's, or why there are none; everything escaped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluation_samples import make_checkpoint
from fastapi.testclient import TestClient

from app.main import create_app
from app.pages.quality import document, report, stored_of, table
from app.settings import Settings
from legible_core.checkpoint import write_card
from legible_core.evaluation.records import FILE, Evaluation, PartResult, TaskResult
from legible_core.folder import Card

HOSTILE = "<b>npi&</b>"


def result(right: list[int]) -> TaskResult:
    labels = {"field": "syntax", "term": HOSTILE}
    parts = tuple(PartResult(n, n, labels, {"acc": np.array(right, bool)}, 0.5) for n in ("one_<i>", "two"))
    return TaskResult("blimp", parts, computed="float32 on cpu")


@pytest.fixture
def site(tmp_path: Path, tokenizer_path: Path):
    settings = Settings.load(data_dir=tmp_path / "data", workers=0)
    app = create_app(settings)
    twin = make_checkpoint(tmp_path / "twin", tokenizer_path, seed=1)
    ours = make_checkpoint(tmp_path / "ours", tokenizer_path, {"twin": "twin"})
    for checkpoint in (ours, twin):
        app.state.services.store.add_checkpoint(checkpoint.slug, checkpoint.hash, str(checkpoint.path))
    app.state.services.catalogue.refresh()
    yield TestClient(app, base_url="http://127.0.0.1:8321"), ours, twin
    app.state.services.close()


def test_before_any_judging_the_page_names_the_command(site):
    client, ours, _ = site
    assert "legible eval ours --data DIR" in client.get("/models/ours").text
    assert client.get("/models/ours.json").json()["evaluation"] is None
    (ours.path / FILE).write_text("{")
    client.app.state.kept_pages.clear()
    assert "The stored results cannot be used" in client.get("/models/ours").text


def test_a_stored_term_that_no_page_can_be_written_with_is_said_instead(site):
    client, ours, _ = site
    labels = {"field": "syntax", "term": "\ud800"}
    part = PartResult("one", "one", labels, {"acc": np.array([True])}, 0.5)
    Evaluation(ours.hash, {"blimp": TaskResult("blimp", (part,))}).write(ours.path / FILE)
    page = client.get("/models/ours")
    assert page.status_code == 200
    assert "The stored results cannot be used" in page.text
    assert client.get("/models/ours.json").status_code == 200


def test_figures_stand_beside_the_twins(site):
    client, ours, twin = site
    Evaluation(ours.hash, {"blimp": result([1, 1, 1, 0])}).write(ours.path / FILE)
    Evaluation(twin.hash, {"blimp": result([1, 1, 0, 0])}).write(twin.path / FILE)
    text = client.get("/models/ours").text
    assert "0.7500 ± 0.1768" in text
    assert "0.5000 ± 0.2041" in text
    assert "+0.2500 ± 0.1768" in text
    assert 'href="/models/twin"' in text
    assert HOSTILE not in text
    assert "&lt;b&gt;npi&amp;&lt;/b&gt;" in text
    assert "each of the 2 paradigms" in text
    figure = client.get("/models/ours.json").json()["evaluation"]["blimp"]["figures"]["acc"]
    assert figure["value"] == 0.75
    assert "paired difference" not in client.get("/models/twin").text


def test_a_twin_that_saw_other_tokens_is_said_to_be_no_match(site):
    """On the page and in the terminal; nothing is said where the cards agree, or where one does not say."""
    client, ours, twin = site
    Evaluation(ours.hash, {"blimp": result([1, 0])}).write(ours.path / FILE)
    words = "Not matched: ours was trained on 25,001,984 tokens and twin on 12,001,280"
    for theirs, expected in (("12001280", True), ("25001984", False), ("", False)):
        write_card(ours.path, Card({"twin": "twin", "tokens": "25001984"}))
        write_card(twin.path, Card({"tokens": theirs} if theirs else {}))
        client.app.state.services.catalogue.refresh()
        client.app.state.kept_pages.clear()
        assert (words in client.get("/models/ours").text) == expected
        catalogue = client.app.state.services.catalogue
        pair = catalogue.get("ours"), catalogue.get("twin")
        results = {"blimp": result([1, 0])}
        assert (words in report(pair[0], results, pair[1], results)) == expected
        said = document(pair[0], results, pair[1], results)
        assert said["tokens"] == 25_001_984
        assert said["twin"]["tokens"] == (int(theirs) if theirs else None)


def test_the_cards_lines_have_words(site, tokenizer_path, tmp_path):
    client, ours, _ = site
    write_card(ours.path, Card({"blimp": "0.6012", "blimp_se": "0.0018", "lambada_perplexity": "51.20"}))
    client.app.state.services.catalogue.refresh()
    text = client.get("/models/ours").text
    number = '<dd class="num">'  # which no line break parts
    assert f"<dt>BLiMP, accuracy</dt>{number}0.6012</dd><dt>its standard error</dt>{number}0.0018</dd>" in text
    assert "<dt>LAMBADA, perplexity of the last word</dt>" in text


def test_results_of_other_weights_are_not_shown(site):
    client, ours, _ = site
    Evaluation("f" * 64, {"blimp": result([1, 0])}).write(ours.path / FILE)
    assert stored_of(ours)[0] is None
    assert "legible eval ours" in client.get("/models/ours").text


def test_a_difference_has_the_unit_of_its_figure_and_no_minus_before_nothing():
    def text(loglik: list[float]) -> TaskResult:
        values = {"loglik": np.array(loglik), "words": np.array([2, 2]), "bytes": np.array([10, 10])}
        part = PartResult("all", "all", {}, values)
        return TaskResult("wikitext2", (part,), figures=("word_perplexity", "bits_per_byte"))

    word, byte = table(text([-20.0, -22.0]), text([-24.0, -26.0])).rows
    assert word.difference.startswith("+2.0000")
    assert word.difference.endswith(" nats")
    assert byte.difference.startswith(f"+{0.4 / np.log(2):.4f}")
    assert byte.difference.endswith(" bits")
    for row in table(text([-20.00001, -22.0]), text([-20.0, -22.0])).rows:
        assert row.difference.startswith("0.0000")


def test_a_table_without_a_twin_has_no_difference():
    shown = table(result([1, 0]))
    assert [row.level for row in shown.rows] == ["all", "field", "term"]
    assert {row.difference for row in (*shown.rows, *shown.parts)} == {"–"}
    assert shown.rows[0].chance == "0.5000"
