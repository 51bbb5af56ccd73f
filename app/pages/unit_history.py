"""What a unit was on the way: the history stored beside a checkpoint, as a unit's page shows it; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from app.history_figures import STYLE_WORDS, Series, over_training
from app.pages.view import percent
from legible_core.errors import LegibleError
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.training.unit_history import FILE, Moment, UnitHistory
from legible_core.units import Unit

# So many moments make a course; fewer are a beginning and an end.
COURSE = 3
RATE_MARKS = {
    "decayed": "● decayed weights", "constant": "○ weights at a constant rate",
    "not recorded": "without a mark: which of the two is not recorded",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One snapshot: `perplexity` on the text measured on; `promotes`: (id, display) of the leading tokens."""

    moment: Moment
    perplexity: float | None
    promotes: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure and, in words, which line is which."""

    title: str
    figure: Markup
    legend: str


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The section of a unit's page; without rows `missing` says why, and an empty `missing` says nothing at all."""

    rows: tuple[Row, ...] = ()
    figures: tuple[Drawn, ...] = ()
    said: str = ""
    missing: str = ""


def history_of(checkpoint: Checkpoint, unit: Unit, names: Names | None) -> HistoryView:
    """The history of a unit; empty where none is stored for these weights."""
    try:
        stored = _stored(checkpoint)
    except LegibleError as error:
        return HistoryView(missing=f"The stored history cannot be used: {error.message.rstrip('.')}.")
    if stored is None:
        return HistoryView()
    moments = stored.of(unit)
    rows = tuple(
        Row(
            moment,
            math.exp(moment.snapshot.loss) if moment.snapshot.loss < 700 else None,
            tuple((token, f"token {token}" if names is None else names.display(token)) for token in moment.promotes),
        )
        for moment in moments
    )
    text, count = stored.measured
    said = f"Each snapshot on the same {count:,} tokens of {text}; the last row is this checkpoint. {_rates(moments)}"
    return HistoryView(rows, _figures(moments), said)


def _rates(moments: tuple[Moment, ...]) -> str:
    """How many moments there are of which sort, and what cannot be read off them."""
    sorts = {moment.snapshot.rate for moment in moments}
    said = ""
    if len(moments) < COURSE:
        said = "This is a beginning and an end, not a course: nothing is known of what lies between. "
    marks = [mark for sort, mark in RATE_MARKS.items() if sort in sorts]
    said += f"In the figures: {', '.join(marks)}. "
    if {"decayed", "constant"} <= sorts:
        said += "Between a point of the one sort and one of the other the decay is part of what changed. "
    return said.rstrip()


def history_json(checkpoint: Checkpoint, unit: Unit) -> list[dict[str, Any]] | None:
    """The same for a program; None where nothing usable is stored."""
    try:
        stored = _stored(checkpoint)
    except LegibleError:
        return None
    return None if stored is None else [moment.to_json() for moment in stored.of(unit)]


def history_rows(checkpoint: Checkpoint, unit: Unit) -> list[dict[str, Any]]:
    """The same as rows of a table, one a snapshot, each with its loss on the text that it was measured on."""
    try:
        stored = _stored(checkpoint)
    except LegibleError:
        return []
    rows = []
    for moment in () if stored is None else stored.of(unit):
        row: dict[str, Any] = moment.to_json()
        for operand in row.pop("operands"):
            name = operand.pop("id")
            side = "value" if name == str(unit) else name.rpartition(".")[2]
            row |= {f"{side}.{figure}": value for figure, value in operand.items()}
        row["promotes"] = " ".join(str(token) for token in row["promotes"])
        rows.append({**row, "text": stored.measured[0] if stored is not None else ""})
    return rows


def _figures(moments: tuple[Moment, ...]) -> tuple[Drawn, ...]:
    tokens = [moment.snapshot.tokens for moment in moments]
    rates = [moment.snapshot.rate for moment in moments]
    operands = [operand.id for operand in moments[0].operands]
    found = []
    if operands:
        series = [
            Series(name, tuple(moment.operands[place].on for moment in moments)) for place, name in enumerate(operands)
        ]
        most = _above(max(value for one in series for value in one.values))
        figure = over_training(tokens, rates, series, "ON over the training", 0.0, most, ("0", percent(most)))
        found.append(Drawn("ON, share of tokens", figure, _legend(series)))
    reads = operands or ["its read row"]
    lines = [Series("its write column", tuple(moment.write_cosine for moment in moments))]
    for place, name in enumerate(reads):
        values = [moment.operands[place].cosine if operands else moment.read_cosine for moment in moments]
        lines.append(Series(f"row of {name}" if operands else name, tuple(values)))
    label = "Cosine with what it became, over the training"
    low = -1.0 if min(value for one in lines for value in one.values) < 0 else 0.0
    figure = over_training(tokens, rates, lines, label, low, 1.0, ("0" if low == 0 else "−1", "1"))
    return (*found, Drawn("cosine with what it became", figure, _legend(lines)))


def _above(share: float) -> float:
    """The end of a share's axis: a whole per cent, which its label says exactly, with room above all but 100 %."""
    return min(1.0, max(1, math.ceil(105 * share)) / 100)


def _legend(series: list[Series]) -> str:
    return "; ".join(f"{word}: {one.name}" for word, one in zip(STYLE_WORDS, series, strict=False))


def _stored(checkpoint: Checkpoint) -> UnitHistory | None:
    found = _loaded(checkpoint)
    return None if found is None else found.ending(checkpoint.decay_tokens)


def _loaded(checkpoint: Checkpoint) -> UnitHistory | None:
    try:
        stamp = (checkpoint.path / FILE).stat().st_mtime_ns
    except OSError:
        return None
    kept = _kept(checkpoint.path, checkpoint.hash, stamp)
    if not kept:
        kept.append(UnitHistory.load(checkpoint.path, checkpoint.hash, checkpoint.config))
    return kept[0]


@lru_cache(maxsize=8)
def _kept(path: Path, checkpoint_hash: str, _stamp: int) -> list[UnitHistory | None]:
    """By path, weights and time of writing; the config goes with the weights."""
    return []
