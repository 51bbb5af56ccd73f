"""What is stored of a corpus, as the model's page and the terminal say it; every figure with its quality."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from app.account_plots import Middle, Series, linear, logarithmic, plot, shares
from app.commands.account import account as command
from app.commands.account import lines, report
from app.pages.accounted import accounted, accounting_of, helped_by
from app.pages.accounted_data import TABLES, accounted_csv, accounted_json
from app.pages.accounted_tables import quartiles
from app.pages.view import percent
from legible_core.accounting import records, written
from legible_core.accounting.measure import Plan, measure
from legible_core.accounting.one import document
from legible_core.accounting.records import Accounting, Quartiles
from legible_core.errors import LegibleError, NotFound
from legible_core.figures import perplexity_text
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Unit
from tests.tiny_models import random_ids, tiny_config, tiny_model

HASH = "c" * 64
CONFIG = tiny_config(biased=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with everything measured of a tiny model; what the pages need of a checkpoint."""
    folder = tmp_path_factory.mktemp("measured")
    plan = Plan(sample=20, floor=0.2)
    measure(
        tiny_model(CONFIG), random_ids(32 * 40, seed=3).numpy(), "random", None, HASH, folder, plan, lambda *_: None
    )
    return SimpleNamespace(path=folder, hash=HASH, slug="tiny", config=CONFIG)


def test_every_table_has_its_population_and_the_quality(checkpoint: Any) -> None:
    stored, missing = accounting_of(checkpoint)
    assert stored is not None
    assert missing is None
    shown = accounted(checkpoint)
    ids = [table.id for table in shown.tables]
    assert ids == [
        "counts", "confidence", "push", "carriage", "depth", "members", "promoted", "reads", "ordering", "writes",
    ]  # fmt: skip
    assert stored.counts is not None
    assert stored.writes is not None
    for table in shown.tables:
        population = stored.writes.population if table.id == "writes" else None
        assert "perplexity there" in table.said
        assert "random" in table.said
        assert population is None or perplexity_text(population.perplexity) in table.said
        assert all(len(row) == len(table.head) for row in table.rows)
    n90 = stored.counts.channels.counts["net"]["n90"]
    assert quartiles(n90) in shown.tables[0].rows[0]
    assert len(shown.tables[3].rows) == 3
    drawn = {table.id: len(table.figures) for table in shown.tables if table.figures}
    assert drawn == {"confidence": 2, "members": 1}
    said = "\n".join(report(stored, records.PARTS))
    assert "perplexity" in said
    assert f"{n90.median:.0f}" in said
    assert said.count("\nat probability ") == sum(tenth.n90.n > 0 for tenth in stored.counts.confidence)
    assert "largest members" in said
    assert "not measured now" not in said


def test_parts_of_another_text_are_not_told_as_measured_now(checkpoint: Any, tmp_path: Path) -> None:
    (tmp_path / records.FILE).write_bytes((checkpoint.path / records.FILE).read_bytes())
    text = random_ids(32 * 30, seed=4).numpy()
    plan = Plan(("counts",), sample=10, floor=0.2)
    stored = measure(tiny_model(CONFIG), text, "another", None, HASH, tmp_path, plan, lambda *_: None)
    said = list(report(stored, plan.parts))
    assert "predictions of another" in said[0]
    measured = "\n".join(said[:-4])
    assert "named by writes" not in measured
    assert "carriage" not in measured
    assert "read rows" not in measured
    assert said[-1] == "writes: not measured now; what is stored is of random, 1,280 tokens"
    assert [line.partition(":")[0] for line in said[-4:]] == ["depth", "carriage", "reads", "writes"]


def test_a_unit_says_what_it_helped(checkpoint: Any) -> None:
    table = written.Written.load(checkpoint.path, HASH, CONFIG)
    assert table is not None
    best = int(table.times[table.layout.first_unit :].argmax()) + table.layout.first_unit
    component = table.layout.component(best)
    assert isinstance(component, Unit)
    found = helped_by(checkpoint, component, None)
    assert found is not None
    assert found.times == int(table.times[best])
    assert found.tokens[0].display == f"token {found.tokens[0].id}"
    assert found.variation is not None
    assert found.variation == pytest.approx(float(table.variation[best]))
    stored, _ = accounting_of(checkpoint)
    assert stored is not None
    assert stored.writes is not None
    side = stored.writes.layers[component.layer].feed_forward
    assert f"L{component.layer}'s 48 units {percent(side.covered)} are covered" in found.layer
    assert quartiles(side.variation, 2) in found.layer
    assert "perplexity" in found.said


def test_every_number_of_the_tables_is_had_as_csv_and_json(checkpoint: Any) -> None:
    services: Any = SimpleNamespace(catalogue=SimpleNamespace(get=lambda slug: checkpoint))
    stored, _ = accounting_of(checkpoint)
    assert stored is not None
    assert stored.counts is not None
    assert stored.depth is not None
    ids = {each for table in accounted(checkpoint).tables for each in table.data}
    assert ids == {name for tables in TABLES.values() for name in tables}
    for table in sorted(ids):
        data = json.loads(bytes(accounted_json("tiny", table, services).body))
        answer = accounted_csv("tiny", table, services)
        head, *rows = csv.reader(io.StringIO(bytes(answer.body).decode()))
        assert f"tiny-accounting-{table}.csv" in answer.headers["content-disposition"]
        assert head == [*data["columns"], "perplexity", "corpus", "checkpoint"]
        assert len(rows) == len(data["rows"]) > 0
        assert {row[-2] for row in rows} == {"random"}
        assert {float(row[-3]) for row in rows} == {data["population"]["perplexity"]}
        for row, record in zip(rows, data["rows"], strict=True):
            assert ["" if value is None else str(value) for value in record.values()] == row[:-3]
    points = json.loads(bytes(accounted_json("tiny", "predictions", services).body))["rows"]
    assert [tuple(row.values()) for row in points] == [tuple(point) for point in stored.counts.points]
    climbed = json.loads(bytes(accounted_json("tiny", "members", services).body))["rows"]
    assert climbed[0]["cosine_median"] == stored.depth.strongest.median
    with pytest.raises(NotFound, match="no table 'wishes'; it has counts, "):
        accounted_json("tiny", "wishes", services)


def test_a_figure_has_every_point_and_keeps_within_its_axes() -> None:
    middles = [Middle(0.05, 40, 60, 90), Middle(0.95, 1, 1, 2)]
    drawn = str(plot(
        [Series("a & b", middles, [(0.01, 3.0), (0.99, 1200.0)]), Series("c", middles, second=True)],
        shares("p"), logarithmic("n90", [1, 1200]), 'said "so"',
    ))  # fmt: skip
    assert drawn.count("h0") == 2
    assert "a &amp; b" in drawn
    assert "said &#34;so&#34;" in drawn
    places = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h0", drawn)]
    assert places[0] > places[1]
    assert all(24 <= y <= 196 for y in places)
    assert linear("net", [-3.0, 12.0]).ticks[0] == (-5.0, "−5")
    assert linear("cosine", [0.61], 1).ticks[-1] == (pytest.approx(0.8), "0.8")
    assert [text for _, text in logarithmic("k", [1, 80]).ticks] == ["1", "2", "5", "10", "20", "50", "100"]


def test_what_is_missing_or_spoilt_is_said(checkpoint: Any, tmp_path: Path) -> None:
    empty = SimpleNamespace(path=tmp_path, hash=HASH, slug="tiny", config=CONFIG)
    assert "legible account tiny --corpus" in str(accounted(empty).missing)
    assert helped_by(empty, Unit(0, 0), None) is None
    (tmp_path / records.FILE).write_text("{", encoding="utf-8")
    (tmp_path / written.FILE).write_bytes(b"{}")
    assert "cannot be used" in str(accounted(empty).missing)
    assert helped_by(empty, Unit(0, 0), None) is None
    Accounting(checkpoint="d" * 64).write(tmp_path / records.FILE)
    assert "Not accounted" in str(accounted(empty).missing)
    assert quartiles(Quartiles.of([])) == "–"


def test_what_was_measured_before_a_figure_was_known_still_opens(checkpoint: Any, tmp_path: Path) -> None:
    stored = json.loads((checkpoint.path / records.FILE).read_text())
    for key in ("heads", "net", "opposing_over_net"):
        for row in stored["counts"]["confidence"]:
            del row[key]
    del stored["counts"]["points"]
    for key in ("running_other", "running_rank", "sum_leads", "sum_never", "ranks", "leading", "layers"):
        del stored["depth"][key]
    for row in [stored["writes"][name] for name in ("every", "attention", "feed_forward")]:
        del row["variation"], row["tokens_to_half"]
    (tmp_path / records.FILE).write_text(json.dumps(stored))
    arrays = load_file(checkpoint.path / written.FILE)
    del arrays["variation"]
    meta = {"format": written.STORED.format, "version": written.STORED.version, "checkpoint": HASH, "corpus": "random"}
    save_file(arrays, tmp_path / written.FILE, {**meta, "predictions": "9", "perplexity": "70"})
    older = SimpleNamespace(path=tmp_path, hash=HASH, slug="tiny", config=CONFIG)
    shown = {table.id: table for table in accounted(older).tables}
    assert "promoted" not in shown
    assert not shown["confidence"].figures
    assert shown["confidence"].rows[0][2] == "–"
    assert shown["depth"].rows[0][3:] == ("–", "–")
    services: Any = SimpleNamespace(catalogue=SimpleNamespace(get=lambda slug: older))
    with pytest.raises(NotFound, match="no table 'predictions'"):
        accounted_csv("tiny", "predictions", services)
    assert b"rank_median" in bytes(accounted_csv("tiny", "members", services).body)
    helped = helped_by(older, Unit(2, 0), None)
    assert helped is not None
    assert helped.variation is None


@pytest.mark.parametrize("target", range(0, 60, 12))
def test_the_terminal_says_one_prediction(target: int) -> None:
    engine = Engine(tiny_model(CONFIG), CheckpointRef(hash=HASH, slug="tiny"))
    found = document(engine, ReadingRequest(HASH, tuple(random_ids(10).tolist()), target=target))
    said = "\n".join(lines({**found, "perplexity": 12.5}, shown=3))
    n90 = found["channels"]["counts"]["net"]["n90"]
    if n90 is None:
        assert "not positive" in said
    else:
        assert f"n90 = {n90} of 216" in said
        assert "perplexity is 12.50" in said
        assert found["members"][0]["id"] in said
        assert n90 <= 3 or f"{n90 - 3} more" in said
        heads = found["heads"]
        said = "\n".join(lines({**found, "perplexity": 12.5}, shown=3, by_head=True))
        assert f"n90 = {heads['counts']['net']['n90']} of 156 heads and units" in said
        assert heads["members"][0]["id"] in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Give a prompt"),
        ({"prompt": "a", "corpus": Path("b")}, "not both"),
        ({"corpus": Path("nowhere.txt")}, "There is no text at"),
        ({"corpus": Path(__file__), "target": " a"}, "go with a prompt"),
        ({"corpus": Path(__file__), "heads": True}, "go with a prompt"),
        ({"corpus": Path(__file__), "out": Path("nowhere")}, "There is no folder"),
    ],
)
def test_what_the_command_cannot_do_is_one_sentence(given: dict[str, Any], said: str) -> None:
    defaults = {
        "prompt": None,
        "target": None,
        "position": None,
        "corpus": None,
        "out": None,
        "as_json": False,
        "heads": False,
    }
    with pytest.raises(LegibleError, match=said):
        command("novel-legible", **{**defaults, **given})
