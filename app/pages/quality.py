"""What was measured of a checkpoint, beside its twin: rows for page, JSON and terminal; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.catalogue import Catalogue
from app.figures import signed
from app.urls import Urls
from legible_core.errors import LegibleError
from legible_core.evaluation.data import TASKS
from legible_core.evaluation.records import (
    ACCURACIES,
    FIGURES,
    FILE,
    Evaluation,
    TaskResult,
    difference,
    perplexity_digits,
)
from legible_core.evaluation.statistics import Estimate
from legible_core.registry import Checkpoint

# What `records.card_fields` puts on a card, in words.
CARD_WORDS = {
    name + ("" if figure == "acc" else f"_{figure}") + end: "its standard error" if end else f"{task.title}, {words}"
    for name, task in TASKS.items()
    for figure, words in FIGURES.items()
    for end in ("", "_se")
}
UNMEASURED = "Not judged on any task yet; `legible eval {slug} --data DIR` does."
INDENT = {"field": "", "term": "  ", "part": "    "}
POOLED = (
    "± is the standard error of drawing other items. A row of several paradigms is their plain mean, and its ± is "
    "√(Σ se²) / k over the k paradigms: it says nothing of how far other paradigms would lie."
)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """A figure of all items, of a field, of a linguistic term or of one paradigm, as text."""

    name: str
    level: str
    figure: str
    items: int
    ours: str
    twin: str
    difference: str
    chance: str


@dataclass(frozen=True, slots=True)
class QualityTable:
    """A task: the rows that are read first, and those of single paradigms."""

    task: str
    title: str
    said: str
    rows: tuple[QualityRow, ...]
    parts: tuple[QualityRow, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The section of a model's page; without tables `missing` says why."""

    tables: tuple[QualityTable, ...]
    missing: str | None
    twin: str | None
    twin_href: str | None
    unmatched: str | None = None
    note: str = POOLED


def judged(checkpoint: Checkpoint, catalogue: Catalogue, urls: Urls) -> Judged:
    """The section of a checkpoint, with its twin's results where the card names one that is here."""
    twin = twin_of(checkpoint, catalogue)
    stored, missing = stored_of(checkpoint)
    theirs = stored_of(twin)[0] if twin is not None else None
    tables = []
    for name, task in sorted((stored.tasks if stored is not None else {}).items()):
        tables.append(table(task, theirs.tasks.get(name) if theirs is not None else None))
    if twin is None:
        return Judged(tuple(tables), missing, None, None)
    return Judged(tuple(tables), missing, twin.slug, urls.model(twin.slug), unmatched(checkpoint, twin))


def stored_of(checkpoint: Checkpoint) -> tuple[Evaluation | None, str | None]:
    """What is stored beside a checkpoint, or the sentence that says why there is nothing."""
    try:
        stamp = (checkpoint.path / FILE).stat().st_mtime_ns
    except OSError:
        return None, UNMEASURED.format(slug=checkpoint.slug)
    try:
        stored = _load(checkpoint.path, checkpoint.hash, stamp)
    except LegibleError as error:
        return None, f"The stored results cannot be used: {error.message.rstrip('.')}."
    return stored, None if stored is not None and stored.tasks else UNMEASURED.format(slug=checkpoint.slug)


def twin_of(checkpoint: Checkpoint, catalogue: Catalogue) -> Checkpoint | None:
    """The checkpoint that the card's `twin` names; None where it names none, or one that is not here."""
    named = checkpoint.card.fields.get("twin")
    try:
        return catalogue.get(named) if named else None
    except LegibleError:
        return None


def unmatched(checkpoint: Checkpoint, twin: Checkpoint) -> str | None:
    """That the two saw unequally many tokens, where both cards say how many."""
    ours, theirs = checkpoint.tokens_trained, twin.tokens_trained
    if ours is None or theirs is None or ours == theirs:
        return None
    return (
        f"Not matched: {checkpoint.slug} was trained on {ours:,} tokens and {twin.slug} on {theirs:,}, so the "
        "difference is of the training as well as of the design."
    )


@lru_cache(maxsize=16)
def _load(path: Path, checkpoint_hash: str, _stamp: int) -> Evaluation | None:
    return Evaluation.load(path, checkpoint_hash)


# ---- rows ----------------------------------------------------------------------------------------------------------


def table(task: TaskResult, twin: TaskResult | None = None) -> QualityTable:
    """A task as text: all items first, then fields, terms and paradigms where it has them."""
    rows = [_row("all", "all", task, twin, figure) for figure in task.figures]
    first = task.figures[0]
    for label in ("field", "term"):
        others = twin.groups(label) if twin is not None else {}
        rows += [
            _row(name.replace("_", " "), label, group, others.get(name), first)
            for name, group in task.groups(label).items()
        ]
    parts = []
    if len(task.parts) > 1:
        for part in task.parts:
            ours, theirs = task.part(part.name), twin.part(part.name) if twin is not None else None
            assert ours is not None
            parts.append(_row(part.name.replace("_", " "), "part", ours, theirs, first))
    return QualityTable(task.name, task.title, said(task), tuple(rows), tuple(parts))


def said(task: TaskResult) -> str:
    """How many items, from where, and what was cut."""
    words = f"{task.items:,} items"
    if len(task.parts) > 1:
        words += f" in {len(task.parts)} paradigms"
    if task.limit is not None:
        words += f", the first {task.limit:,}" + (" of each" if len(task.parts) > 1 else "")
    words += f"; {task.source}; {task.computed}" if task.computed else f"; {task.source}"
    if task.shortened:
        words += f"; {task.shortened:,} longer than the context, cut as the harness does"
    return words


def _row(name: str, level: str, task: TaskResult, twin: TaskResult | None, figure: str) -> QualityRow:
    change = difference(task, twin, figure) if twin is not None else None
    return QualityRow(
        name=name,
        level=level,
        figure=FIGURES[figure],
        items=task.items,
        ours=_plus_minus(task.estimate(figure), figure),
        twin=_plus_minus(twin.estimate(figure), figure) if twin is not None else "–",
        difference=_change(change, figure),
        chance=f"{task.chance:.4f}" if task.chance is not None and figure in ACCURACIES else "–",
    )


def _plus_minus(estimate: Estimate, figure: str) -> str:
    digits = 4 if figure in ACCURACIES else perplexity_digits(estimate.value, figure)
    text = f"{estimate.value:,.{digits}f}"
    return text if estimate.se is None else f"{text} ± {estimate.se:,.{digits}f}"


def _change(change: Estimate | None, figure: str) -> str:
    if change is None:
        return "–"
    # A figure in bits has its difference in bits; every other one is made of nats.
    unit = math.log(2) if figure == "bits_per_byte" else 1.0
    text = signed(change.value / unit, 4)
    text = text if change.se is None else f"{text} ± {change.se / unit:.4f}"
    return text if figure in ACCURACIES else f"{text} {'nats' if unit == 1.0 else 'bits'}"


# ---- for programs and the terminal ---------------------------------------------------------------------------------


def document(
    checkpoint: Checkpoint,
    results: dict[str, TaskResult],
    twin: Checkpoint | None = None,
    theirs: dict[str, TaskResult] | None = None,
) -> dict[str, Any]:
    """The same numbers as JSON: each figure with its error, the twin's and the paired difference."""
    theirs = theirs or {}
    return {
        "checkpoint": checkpoint.hash,
        "slug": checkpoint.slug,
        "tokens": checkpoint.tokens_trained,
        "twin": None if twin is None else {"checkpoint": twin.hash, "slug": twin.slug, "tokens": twin.tokens_trained},
        "tasks": {name: _task_document(task, theirs.get(name)) for name, task in results.items()},
    }


def _task_document(task: TaskResult, twin: TaskResult | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "title": task.title,
        "source": task.source,
        "computed": task.computed,
        "seconds": task.seconds,
        "shortened": task.shortened,
        "limit": task.limit,
        **_figures(task, twin),
    }
    for label in ("field", "term"):
        groups = task.groups(label)
        others = twin.groups(label) if twin is not None else {}
        if groups:
            found[f"{label}s"] = {name: _figures(group, others.get(name)) for name, group in groups.items()}
    if len(task.parts) > 1:
        single = {part.name: task.part(part.name) for part in task.parts}
        found["parts"] = {
            name: _figures(part, twin.part(name) if twin is not None else None)
            for name, part in single.items()
            if part is not None
        }
    return found


def _figures(task: TaskResult, twin: TaskResult | None) -> dict[str, Any]:
    figures = {}
    for figure in task.figures:
        entry: dict[str, Any] = _estimate(task.estimate(figure))
        if twin is not None and figure in twin.figures:
            change = difference(task, twin, figure)
            entry["twin"] = _estimate(twin.estimate(figure))
            entry["difference"] = None if change is None else _estimate(change)
        figures[figure] = entry
    return {"items": task.items, "chance": task.chance, "figures": figures}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value if abs(estimate.value) < float("inf") else None, "se": estimate.se}


def report(
    checkpoint: Checkpoint,
    results: dict[str, TaskResult],
    twin: Checkpoint | None = None,
    theirs: dict[str, TaskResult] | None = None,
    paradigms: bool = False,
) -> str:
    """The results for a terminal: a line a row, the twin and the paired difference beside it where there is one.

    paradigms: with the parts of a task, each on a line under its term; without, a line says how many there are.
    """
    theirs = theirs or {}
    lines = []
    for name, task in results.items():
        shown = table(task, theirs.get(name))
        lines += ["", f"{shown.title}: {shown.said}"]
        head = ["", "items", checkpoint.slug, *([twin.slug, "difference"] if twin is not None else []), "chance"]
        body = []
        for row in (*shown.rows, *(shown.parts if paradigms else ())):
            title = (
                row.figure if row.level == "all" else {"field": "", "term": "  ", "part": "    "}[row.level] + row.name
            )
            against = [row.twin, row.difference] if twin is not None else []
            body.append([title, f"{row.items:,}", row.ours, *against, row.chance])
        width = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
        for line in (head, *body):
            cells = [line[0].ljust(width[0])] + [c.rjust(w) for c, w in zip(line[1:], width[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        if shown.parts and not paradigms:
            lines.append(f"{len(shown.parts)} paradigms are pooled here; --paradigms shows each of them.")
    notes = [POOLED] if twin is None else [POOLED, *filter(None, [unmatched(checkpoint, twin)])]
    return "\n".join([*lines, "", *notes]).lstrip("\n")
