"""evaluation.json and its figures: estimates, pooling, pairs, what is refused, and what belongs to which weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from legible_core.errors import Corrupt, Unavailable
from legible_core.evaluation.records import FILE, Evaluation, PartResult, TaskResult, card_fields, difference, moved
from legible_core.evaluation.statistics import mean, mean_of_series, perplexity, pooled, ratio

HASH = "a" * 64


def part(name: str, right: list[int], **labels: str) -> PartResult:
    return PartResult(name, f"d-{name}", labels, {"acc": np.array(right, bool)}, 0.5)


@pytest.fixture
def blimp() -> TaskResult:
    parts = (
        part("one", [1, 1, 0, 1], field="syntax", term="islands"),
        part("two", [1, 0, 0, 0, 1, 1, 0, 1, 1], field="syntax", term="npi_licensing"),
        part("three", [1, 1, 1], field="semantics", term="npi_licensing"),
    )
    return TaskResult("blimp", parts, computed="float32 on cpu", seconds=1.5)


@pytest.fixture
def lambada() -> TaskResult:
    values = {"acc": np.array([1, 0, 0], bool), "loglik": np.array([-1.0, -2.5, -4.0], np.float32)}
    return TaskResult("lambada", (PartResult("lambada", "d", {}, values),), figures=("acc", "perplexity"))


def test_estimates():
    assert mean([1, 0, 0, 1]).value == 0.5
    assert mean([1, 0, 0, 1]).se == pytest.approx(math.sqrt(1 / 3 / 4))
    assert mean([1]).se is None
    both = pooled([mean([1, 0, 0, 1]), mean([1, 1, 1, 0])])
    assert both.value == 0.625
    assert both.se == pytest.approx(math.sqrt(1 / 12 + 1 / 16) / 2)
    assert pooled([mean([1]), mean([1, 0])]).se is None
    assert perplexity(mean([-1.0, -3.0])).value == pytest.approx(math.exp(2))
    assert perplexity(mean([-800.0, -800.0])).value == math.inf


def test_a_ratios_error_is_that_of_resampled_documents():
    rng = np.random.default_rng(0)
    words = rng.integers(50, 400, 200)
    logs = -words * rng.normal(4.0, 0.5, 200)
    found = ratio(logs, words)
    assert found.value == pytest.approx(logs.sum() / words.sum())
    draws = rng.integers(0, 200, (2000, 200))
    assert found.se == pytest.approx((logs[draws].sum(1) / words[draws].sum(1)).std(), rel=0.1)
    # Equal weights: the error of a plain mean.
    assert ratio(logs, np.ones(200)).se == pytest.approx(mean(logs).se)


def test_parts_are_pooled_each_counted_alike(blimp):
    assert blimp.estimate("acc").value == pytest.approx((3 / 4 + 5 / 9 + 1) / 3)
    errors = [one.estimate("acc").se for one in blimp.parts]
    assert blimp.estimate("acc").se == pytest.approx(math.sqrt(sum(se**2 for se in errors)) / 3)
    assert list(blimp.groups("field")) == ["semantics", "syntax"]
    assert blimp.groups("term")["npi_licensing"].estimate("acc").value == pytest.approx((5 / 9 + 1) / 2)
    assert blimp.part("one").items == 4
    assert blimp.part("none") is None
    assert blimp.chance == 0.5


def test_a_file_gives_back_what_was_written(tmp_path, blimp, lambada):
    made = Evaluation(HASH, {}).with_task(blimp).with_task(lambada)
    made.write(tmp_path / FILE)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    back = Evaluation.load(tmp_path, HASH)
    assert back.to_json() == made.to_json()
    for ours, theirs in zip(blimp.parts, back.tasks["blimp"].parts, strict=True):
        assert ours.values["acc"].tolist() == theirs.values["acc"].tolist()
    assert back.tasks["lambada"].parts[0].values["loglik"].tolist() == [-1.0, -2.5, -4.0]
    document = json.loads((tmp_path / FILE).read_text())
    assert document["tasks"]["blimp"]["figures"]["acc"]["value"] == blimp.estimate("acc").value
    assert Evaluation.load(tmp_path, "b" * 64) is None
    assert Evaluation.load(tmp_path / "none", HASH) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(version=2),
        lambda d: d.update(format="names"),
        lambda d: d.update(tasks=[]),
        lambda d: d["tasks"].update(glue=d["tasks"]["blimp"]),
        lambda d: d["tasks"]["blimp"].pop("parts"),
        lambda d: d["tasks"]["blimp"].update(parts={}),
        lambda d: d["tasks"]["blimp"]["parts"]["one"].update(items=40),
        lambda d: d["tasks"]["blimp"]["parts"]["one"].update(items=10**12),
        lambda d: d["tasks"]["blimp"]["parts"]["one"]["values"].update(acc="§"),
        lambda d: d["tasks"]["blimp"]["parts"]["one"]["values"].update(other="AA=="),
        lambda d: d["tasks"]["blimp"]["parts"]["one"].update(values={}),
        lambda d: d["tasks"]["blimp"]["parts"]["one"].update(values=3),
        lambda d: d["tasks"]["lambada"]["parts"]["lambada"]["values"].update(loglik="AADAfwAAwH8AAMB/"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, blimp, lambada, spoil):
    Evaluation(HASH, {"blimp": blimp, "lambada": lambada}).write(tmp_path / FILE)
    document = json.loads((tmp_path / FILE).read_text())
    spoil(document)
    (tmp_path / FILE).write_text(json.dumps(document))
    with pytest.raises(Corrupt):
        Evaluation.load(tmp_path, HASH)


@pytest.mark.parametrize("text", ["\ud800", "a\nb", "\x1b[2J", "x" * 201])
@pytest.mark.parametrize(
    "put",
    [
        lambda task, text: task["parts"]["one"]["labels"].update(field=text),
        lambda task, text: task["parts"]["one"]["labels"].update({text: "syntax"}),
        lambda task, text: task["parts"].update({text: task["parts"]["one"]}),
        lambda task, text: task.update(source=text),
        lambda task, text: task.update(computed=text),
    ],
)
def test_a_stored_text_that_no_page_could_show_is_refused(tmp_path, blimp, put, text):
    Evaluation(HASH, {"blimp": blimp}).write(tmp_path / FILE)
    document = json.loads((tmp_path / FILE).read_text())
    put(document["tasks"]["blimp"], text)
    (tmp_path / FILE).write_text(json.dumps(document))
    with pytest.raises(Corrupt, match="is damaged") as refused:
        Evaluation.load(tmp_path, HASH)
    assert refused.value.message.isprintable()


def test_a_disk_that_takes_nothing_leaves_the_old_results(tmp_path, blimp, monkeypatch):
    Evaluation(HASH, {"blimp": blimp}).write(tmp_path / FILE)
    before = (tmp_path / FILE).read_bytes()

    def full(self: Path, *_: object, **__: object) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Unavailable, match="No space left on device; name a file with --out"):
        Evaluation(HASH, {}).write(tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_difference_is_paired(blimp, lambada):
    worse = part("one", [0, 1, 0, 1], **blimp.parts[0].labels)
    other = TaskResult("blimp", (worse, *blimp.parts[1:]))
    found = difference(blimp, other, "acc")
    assert found.value == pytest.approx(0.25 / 3)
    assert found.se == pytest.approx(mean([1, 0, 0, 0]).se / 3)
    assert difference(blimp, blimp, "acc").se == 0.0
    asked_otherwise = TaskResult("blimp", (PartResult("one", "?", {}, worse.values, 0.5), *blimp.parts[1:]))
    assert difference(blimp, asked_otherwise, "acc") is None
    assert difference(blimp, TaskResult("blimp", blimp.parts[:2]), "acc") is None
    changed = {"acc": lambada.parts[0].values["acc"], "loglik": np.array([-2.0, -2.5, -6.0], np.float32)}
    twin = TaskResult("lambada", (PartResult("lambada", "d", {}, changed),), figures=("acc", "perplexity"))
    assert difference(lambada, twin, "perplexity").value == pytest.approx(1.0)


def test_the_cards_lines(blimp, lambada):
    assert card_fields({}) == {}
    assert card_fields({"lambada": lambada, "blimp": blimp}) == {
        "blimp": "0.7685",
        "blimp_se": f"{blimp.estimate('acc').se:.4f}",
        "lambada": "0.3333",
        "lambada_se": "0.3333",
        "lambada_perplexity": f"{math.exp(2.5):.2f}",
        "lambada_perplexity_se": f"{math.exp(2.5) * math.sqrt(2.25 / 3):.2f}",
    }
    rare = PartResult("lambada", "d", {}, {"acc": np.zeros(2, bool), "loglik": np.array([-12.0, -13.0], np.float32)})
    large = TaskResult("lambada", (rare,), figures=("acc", "perplexity"))
    assert card_fields({"lambada": large})["lambada_perplexity"] == f"{math.exp(12.5):.0f}"


def test_what_moved_is_told_of_the_same_items_only(blimp, lambada):
    assert moved(blimp, blimp) == moved(lambada, lambada) == {}
    worse = part("one", [0, 1, 0, 1], **blimp.parts[0].labels)
    now = TaskResult("blimp", (worse, *blimp.parts[1:]))
    assert moved(blimp, now) == {"blimp": ("0.7685", f"{now.estimate('acc').value:.4f}")}
    asked_otherwise = TaskResult("blimp", (PartResult("one", "?", {}, worse.values, 0.5), *blimp.parts[1:]))
    assert moved(blimp, asked_otherwise) == {}
    values = {"acc": lambada.parts[0].values["acc"], "loglik": lambada.parts[0].values["loglik"] + np.float32(1e-5)}
    rounded = TaskResult("lambada", (PartResult("lambada", "d", {}, values),), figures=("acc", "perplexity"))
    assert moved(lambada, rounded) == {}


def test_error_of_a_series_allows_for_neighbours_that_are_alike() -> None:
    """Windows of each stretch of 16 share a part: independent draws would have a third of the error."""
    generator = np.random.default_rng(0)

    def drawn(shared: float) -> np.ndarray:
        stretches = generator.normal(0, shared, (64, 1))
        return (stretches + generator.normal(0, 1, (64, 16))).ravel()

    alike = [drawn(1.0) for _ in range(200)]
    truth = float(np.std([series.mean() for series in alike]))
    said = np.array([mean_of_series(series).se for series in alike])
    independent = np.array([mean(series).se for series in alike])
    assert np.median(independent) < 0.4 * truth
    assert 0.9 * truth < np.median(said) < 1.35 * truth
    fresh = [drawn(0.0) for _ in range(200)]
    inflated = np.median([mean_of_series(s).se for s in fresh]) / np.median([mean(s).se for s in fresh])
    assert 1 <= inflated < 1.35
    assert mean_of_series(alike[0]).value == mean(alike[0]).value
    short = alike[0][:31]
    assert mean_of_series(short) == mean(short)
    assert mean_of_series([1.0]).se is None


def test_error_of_a_series_is_that_of_its_documents_where_they_differ() -> None:
    """Six books of 128 windows, each with a difference of its own: blocks are too short to see all of it."""
    generator = np.random.default_rng(1)
    books = np.repeat(np.arange(6), 128)

    def drawn() -> np.ndarray:
        return generator.normal(0, 1, 6)[books] + generator.normal(0, 1, len(books))

    series = [drawn() for _ in range(200)]
    truth = float(np.std([one.mean() for one in series]))
    blocks = np.median([mean_of_series(one).se for one in series])
    told = np.median([mean_of_series(one, books).se for one in series])
    assert blocks < 0.75 * truth
    assert 0.8 * truth < told < 1.2 * truth
    few = books.clip(max=3)
    assert mean_of_series(series[0], few) == mean_of_series(series[0])
