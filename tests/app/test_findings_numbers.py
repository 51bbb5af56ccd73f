"""docs/findings.md says what the shipped files say: no row of its tables of checkpoints drifts by half a last digit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.paths import models_dir
from legible_core.evaluation.records import Evaluation
from legible_core.naming.names import Names
from legible_core.naming.tables import memory
from legible_core.registry import open_checkpoint

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
ARMS = PAGE.with_name("arms.json")  # what `legible family --json` printed of the short arms
NUMBER = re.compile(r"−?\d[\d,]*(?:\.\d+)?")
SLUGS = ("novel-both", "novel-membership", "novel-legible", "novel-legible-12m", "novel-gelu")

# Rows whose numbers no file has: a design, a figure of a run, or of both checkpoints together.
UNSTORED = ("design", "trained on", "paired difference")


@cache
def stored(slug: str) -> tuple[Names, Evaluation, dict[str, Any]]:
    """A checkpoint's names, evaluation and checks."""
    checkpoint = open_checkpoint(models_dir() / slug)
    names, judged = (kind.load(checkpoint.path, checkpoint_hash=checkpoint.hash) for kind in (Names, Evaluation))
    assert isinstance(names, Names)
    assert isinstance(judged, Evaluation)
    return names, judged, json.loads((checkpoint.path / "checks.json").read_text())


def percents(row: dict[str, Any] | None, *keys: str) -> list[float]:
    return [] if row is None else [100 * row[key] for key in keys]


def by_layer(slug: str, surface: str, key: str) -> list[float]:
    return [number for layer in stored(slug)[0].legibility["layers"] for number in percents(layer[surface], key)]


def judged(slug: str, task: str, term: str | None = None) -> list[float]:
    result = stored(slug)[1].tasks[task]
    estimate = (result if term is None else result.groups("term")[term]).estimate("acc")
    assert estimate.se is not None
    return [estimate.value, estimate.se]


def ablation(slug: str) -> list[float]:
    zero = stored(slug)[2]["bands"]["zero"]["all"]
    return [zero["median"], zero["low"], zero["high"]]


def shortfall(slug: str) -> list[float]:
    rows = {row["k"]: row["top"] for row in stored(slug)[2]["necessity"]["rows"]}
    return [100 * rows[k]["shortfall"] for k in (1, 4, 16, 64)]


def accounted(slug: str, *path: str) -> float:
    found = json.loads((models_dir() / slug / "accounting.json").read_text())["counts"]
    for key in path:
        found = found[key]
    return float(found["median"])


def half_lives(slug: str) -> list[float]:
    found = memory(stored(slug)[0])
    return [] if found is None else [found["all"]["median"], 100 * found["all"]["latches"]]


def expected(title: str, slug: str) -> list[float]:
    """The numbers of a row's cell, in the order in which they are printed; none where they are undefined."""
    names = stored(slug)[0]
    pooled, quality = names.legibility["all"], names.quality
    if title.startswith("loss, perplexity on 686,883"):
        assert quality["tokens"] == 686_883
        return [quality["loss"], quality["loss_se"], quality["perplexity"]]
    rows = {
        "BLiMP": lambda: judged(slug, "blimp"),
        "of it quantifiers": lambda: judged(slug, "blimp", "quantifiers"),
        "of it NPI licensing": lambda: judged(slug, "blimp", "npi_licensing"),
        "LAMBADA": lambda: judged(slug, "lambada"),
        "ARC-Easy": lambda: judged(slug, "arc_easy"),
        "value channels SELECTIVE; CONSTANT": lambda: percents(pooled["value"], "selective", "constant"),
        "SELECTIVE by layer": lambda: by_layer(slug, "value", "selective"),
        "value operands crisp; ON": lambda: percents(pooled["head_operands"], "crisp", "on"),
        "feed-forward operands crisp; ON": lambda: percents(pooled["operands"], "crisp", "on"),
        "feed-forward operands SELECTIVE by layer": lambda: by_layer(slug, "operands", "selective"),
        "nameable by layer": lambda: by_layer(slug, "names", "nameable"),
        "operands of both surfaces": lambda: percents(pooled["names"], "alive", "in_range", "nameable"),
        "ablation of a leading component": lambda: ablation(slug),
        "shortfall of the top 1, 4, 16, 64": lambda: shortfall(slug),
        "n90 by channels; with heads whole": lambda: [
            accounted(slug, kind, "counts", "net", "n90") for kind in ("channels", "heads")
        ],
        "opposing mass over net": lambda: [accounted(slug, "opposing_over_net")],
        "quantifiers: median half-life; latches": lambda: half_lives(slug),
    }
    (found,) = (make for start, make in rows.items() if title.startswith(start))
    return found()


def numbers(cell: str) -> list[tuple[float, float]]:
    """Each number of a cell with half of its last printed digit."""
    found = [match.replace(",", "").replace("−", "-") for match in NUMBER.findall(cell)]
    return [(float(text), 0.5 * 10.0 ** -len(text.partition(".")[2])) for text in found]


def table(section: str) -> list[list[str]]:
    """The cells of a section's first table, its head first."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}", 1)[1]
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found is not None
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
    return [head, *body]


def cells(section: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a section's first table: the title, and the cell of each checkpoint's column."""
    head, *body = table(section)
    columns = [name.split(" ")[0] for name in head]
    for row in body:
        yield row[0], dict(zip(columns[1:], row[1:], strict=True))


def differs(shown: list[tuple[float, float]], values: list[float]) -> bool:
    return len(shown) != len(values) or any(
        abs(number - value) > half + 1e-9 for (number, half), value in zip(shown, values, strict=True)
    )


@pytest.mark.parametrize("section", ["The checkpoints", "The longer run", "Memberships alone"])
def test_tables_of_checkpoints_are_the_files(section: str) -> None:
    compared, wrong = 0, []
    for title, row in cells(section):
        if title.startswith(UNSTORED):
            continue
        assert set(row) <= set(SLUGS)
        for slug, cell in row.items():
            values = expected(title, slug)
            compared += len(values)
            if differs(numbers(cell), values):
                wrong.append(f"{slug}, {title}: {cell} on the page, {values} in the files")
    assert not wrong, "\n".join(wrong)
    assert compared > 20


def test_the_table_of_short_arms_is_the_file() -> None:
    arms = {arm["checkpoint"].removeprefix("arm-"): arm for arm in json.loads(ARMS.read_text(encoding="utf-8"))}
    head, *body = table("Short matched arms")
    # The columns of `legible family`, in the order of the table's; the first two are of the losses.
    columns = [
        [f"feed-forward operands {key}" for key in ("crisp", "ON", "SELECTIVE", "CONSTANT")],
        ["value channels SELECTIVE", "value channels CONSTANT"],
        ["attention operands crisp", "attention operands ON"],
        [f"operands of both {key}" for key in ("alive", "in the ON range", "nameable", "nameable and labelled")],
    ]
    assert len(head) == 3 + len(columns)
    rows = {match[1]: row for row in body if (match := re.match(r"`([^`]+)`", row[0]))}
    assert arms.keys() <= rows.keys()
    wrong = []
    for name, arm in arms.items():
        losses = arm["on_corpus"]
        # The first arm's difference from itself is none.
        paired = [] if losses["difference"] == 0.0 else [losses["difference"], losses["difference_se"]]
        shares = [[100 * arm["all"][key] for key in keys if arm["all"][key] is not None] for keys in columns]
        for cell, values in zip(rows[name][1:], [[losses["loss"]], paired, *shares], strict=True):
            if differs(numbers(cell), values):
                wrong.append(f"{name}: {cell} on the page, {values} in the file")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("said", "surface", "key"),
    [
        ("by layer ([^%]+) %; feed-forward", "names", "nameable"),
        ("feed-forward operands SELECTIVE ([^%]+) %", "operands", "selective"),
        ("value channels\\*\\*: SELECTIVE ([^%]+) %", "value", "selective"),
    ],
)
def test_rows_by_layer_are_the_files(said: str, surface: str, key: str) -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if "legibility rises with depth" in line)
    shown = re.search(said, row)
    assert shown is not None
    assert not differs(numbers(shown[1]), by_layer("novel-legible-12m", surface, key))


def test_necessity_is_the_file() -> None:
    page = PAGE.read_text(encoding="utf-8").split("**Necessity.**", 1)[1]
    stated = [line.strip("|").split("|") for line in page.splitlines() if re.match(r"\| \d+ \|", line)][:7]
    files = [stored(slug)[2]["necessity"]["rows"] for slug in ("novel-legible-12m", "novel-gelu")]
    assert [int(row[0]) for row in stated] == [row["k"] for row in files[0]]
    for row, *both in zip(stated, *files, strict=True):
        values = [
            value
            for one in both
            for value in (
                100 * one["top"]["changed"], one["top"]["lost"], one["top"]["linear"],
                100 * one["top"]["shortfall"], 100 * one["random"]["changed"],
            )
        ]  # fmt: skip
        assert not differs(numbers(" ".join(row[1:])), values), row
