"""What a run's page shows, made of its folder's history: the state, the figures with their tables, what happened.

now_part(run, name, urls)       state, loss and cumulative perplexity, events, branches: changes with every step
layers_part(run, name, urls)    the telemetry: changes with every reading
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.pages.models import Table
from app.pages.view import percent, plain, short
from app.run_figures import (
    LAYER_POINTS,
    PANELS,
    POINTS,
    Course,
    Line,
    Mark,
    Panel,
    every,
    head_name,
    heads_figure,
    layers_figure,
    loss_figure,
    model_figure,
    perplexity_figure,
    thin,
)
from app.runs import Branch, Run
from app.urls import Urls
from legible_core.training.history import HeldOut, Readings, is_whole

TABLE_ROWS = 40
DRAWN_SPIKES = 100
LISTED_EVENTS = 60
DRAWN_BRANCHES = 4
# Panels of means, behind which one head could hide, and the caption of the figure that has each head by itself.
HEADS = {"write": "Residual write of each head", "columns": "Output-projection columns of each head"}
STATES = {
    "preparing": "preparing: reading the text",
    "training": "training",
    "stopped": "stopped",
    "diverged": "diverged: the guard stopped it",
    "finished": "finished",
}


@dataclass(frozen=True, slots=True)
class LiveFigure:
    """A figure with its numbers as a table, and in `said` what was left out of it."""

    id: str
    caption: str
    data: str
    table: Table
    said: str


@dataclass(frozen=True, slots=True)
class EventLine:
    number: int
    tokens: int
    event: str
    text: str


@dataclass(frozen=True, slots=True)
class BranchLine:
    name: str
    state: str
    number: int
    steps: int
    tokens: int
    last_loss: float | None
    held_out: HeldOut | None
    perplexity: float | None
    csv: str


@dataclass(frozen=True, slots=True)
class NowPart:
    """The part of `page` that follows the log; `poll` with `seconds` between two looks."""

    page: str
    poll: str
    seconds: int
    state: str
    said: str
    reason: str | None
    last_line: str
    number: int
    steps: int
    tokens: int
    total: int
    last_loss: float | None
    held_out: HeldOut | None
    mean_loss: float | None
    perplexity: float | None
    step_seconds: float | None
    left: float | None
    figures: tuple[LiveFigure, ...]
    branches: tuple[BranchLine, ...]
    events: tuple[EventLine, ...]
    more_events: str


@dataclass(frozen=True, slots=True)
class LayersPart:
    """The part that follows the telemetry."""

    page: str
    poll: str
    seconds: int
    said: str
    figures: tuple[LiveFigure, ...]


def now_part(run: Run, name: str, urls: Urls) -> NowPart:
    """Raises nothing for a run without a step: its figures are empty and its state says why."""
    main, size = run.main, max(1, run.schedule("batch_tokens"))
    courses = [_course(branch) for branch in _drawn(run)]
    marks = _marks(run, size)
    lately = sorted(main.history.log["seconds"][-50:]) if len(main.history.log) else []
    pace = lately[len(lately) // 2] if lately else None
    events, more = _events(run, size)
    return NowPart(
        page=urls.run(name),
        poll=urls.run_part(name, "now"),
        seconds=2 if run.active else 15,
        state=main.state,
        said=STATES[main.state],
        reason=main.diverged,
        last_line=when(main.history.changed_at),
        number=main.number,
        steps=main.steps,
        tokens=main.number * size,
        total=main.steps * size,
        last_loss=main.last_loss,
        held_out=main.held_out,
        mean_loss=main.mean_loss,
        perplexity=main.perplexity,
        step_seconds=pace,
        left=(main.steps - main.number) * pace if pace is not None and main.state == "training" else None,
        figures=(_loss(courses, marks), _perplexity(courses, marks)) if any(c.number for c in courses) else (),
        branches=tuple(_branch(branch, name, size, urls) for branch in run.branches),
        events=events,
        more_events=more,
    )


def layers_part(run: Run, name: str, urls: Urls) -> LayersPart:
    """The figures that the run's design has, each with the readings of its branches dotted."""
    size = max(1, run.schedule("batch_tokens"))
    read = [branch for branch in _drawn(run) if len(branch.history.readings)]
    poll, seconds = urls.run_part(name, "layers"), 6 if run.active else 30
    if not read:
        said = "There is no reading yet; unless told otherwise, training makes one every 25 steps."
        return LayersPart(urls.run(name), poll, seconds, said, ())
    marks = [mark for mark in _marks(run, size) if not mark.spike][-8:]
    first = read[0].history.readings
    figures = [_model(first, size)]
    for panel in PANELS:
        if any(branch.history.readings.has(line.key) for branch in read for line in panel.lines):
            figures.append(_panel(panel, read, marks, size))
            if panel.id in HEADS:
                figures.append(_heads(panel.id, read[0]))
    tokens = first.model["tokens"][-1]
    said = f"{len(first):,} reading{'s' * (len(first) != 1)}, the last of step {int(first.number[-1]):,}"
    said += "" if math.isnan(tokens) else f" on {int(tokens):,} tokens of its batch"
    said += ". Branches are dotted." if len(read) > 1 else "."
    return LayersPart(urls.run(name), poll, seconds, said, tuple(figures))


def stages(recipe: dict[str, Any]) -> list[tuple[int, str]]:
    """Where the recipe changes what it does, in tokens, and what; whatever is no number is passed over."""
    found: dict[int, list[str]] = {}

    def note(tokens: Any, text: str) -> None:
        if is_whole(tokens) and tokens > 0:
            found.setdefault(tokens, []).append(text)

    schedule = recipe.get("schedule")
    note(schedule.get("warmup_tokens") if isinstance(schedule, dict) else None, "warm-up ends")
    for key, name in (("attention_pressure", "attention"), ("feed_forward_pressure", "feed-forward")):
        pressure = recipe.get(key)
        if not isinstance(pressure, dict):
            continue
        note(pressure.get("start_tokens"), f"sparsity on the {name} begins")
        later = pressure.get("later")
        for stage in later if isinstance(later, list) else []:
            note(stage.get("tokens") if isinstance(stage, dict) else None, f"pressure on the {name} changes")
    return [(tokens, ", ".join(texts)) for tokens, texts in sorted(found.items())]


def when(seconds: float | None) -> str:
    """A moment to the second, in UTC; – for none."""
    return "–" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# ---- what happened ---------------------------------------------------------------------------------------------------


def _marks(run: Run, size: int) -> list[Mark]:
    """The recipe's stages that were reached, revivals, the divergence, and the highest spikes."""
    log = run.main.history.log

    def loss_at(number: int) -> float | None:
        at = bisect_left(log["number"], number)
        return log["loss"][at] if at < len(log) and log["number"][at] == number else None

    reached = run.main.number * size
    begun = int(log["number"][0]) * size if len(log) else 0
    marks = [
        Mark(tokens, loss_at(tokens // size), f"{text} at {tokens:,} tokens")
        for tokens, text in stages(run.recipe)
        if begun <= tokens <= reached
    ]
    spikes = []
    for event in run.main.history.events:
        loss = loss_at(event.number)
        at = f"at step {event.number:,}"
        if event.event == "spike" and loss is not None:
            spikes.append(Mark(event.number * size, loss, f"spike {at}: loss {loss:.2f}", spike=True))
        elif event.event == "revived":
            marks.append(Mark(event.number * size, loss, f"new start for dead operands {at}"))
        elif event.event == "diverged":
            marks.append(Mark(event.number * size, loss_at(event.number - 1), f"stopped by the guard {at}"))
    spikes.sort(key=lambda mark: -(mark.loss or 0))
    return marks + spikes[:DRAWN_SPIKES]


def _events(run: Run, size: int) -> tuple[tuple[EventLine, ...], str]:
    """The latest events of the run and its branches, and the sentence about those left out."""
    lines = [EventLine(tokens // size, tokens, "stage", text) for tokens, text in stages(run.recipe)]
    lines = [line for line in lines if line.number <= run.main.number]
    for branch in (run.main, *run.branches):
        prefix = f"{branch.name}: " if branch.name else ""
        for event in branch.history.events:
            lines.append(EventLine(event.number, event.number * size, event.event, prefix + event.text))
    lines.sort(key=lambda line: -line.number)
    more = len(lines) - LISTED_EVENTS
    return tuple(lines[:LISTED_EVENTS]), f"{more:,} earlier ones are not listed here; the json has them." * (more > 0)


# ---- figures ---------------------------------------------------------------------------------------------------------


def _drawn(run: Run) -> list[Branch]:
    return [run.main, *run.branches[-DRAWN_BRANCHES:]]


def _course(branch: Branch) -> Course:
    log = branch.history.log
    return Course(branch.name, log["number"], log["tokens"], log["loss"], log["perplexity"])


def _branch(branch: Branch, name: str, size: int, urls: Urls) -> BranchLine:
    csv = urls.run_part(name, "csv", branch=branch.name)
    done = (branch.number, branch.steps, branch.number * size)
    losses = (branch.last_loss, branch.held_out, branch.perplexity)
    return BranchLine(branch.name, STATES[branch.state], *done, *losses, csv)


def _loss(courses: Sequence[Course], marks: Sequence[Mark]) -> LiveFigure:
    _, span = thin(courses[0].loss)
    said = "" if span == 1 else f"Of every {span} steps the lowest and the highest are drawn; the csv has each."
    return LiveFigure("loss", "Loss", _json(loss_figure(courses, marks)), _spans(courses), said)


def _perplexity(courses: Sequence[Course], marks: Sequence[Mark]) -> LiveFigure:
    _, step = every(len(courses[0].perplexity), POINTS)
    said = "" if step == 1 else f"Every {_ordinal(step)} step is drawn; the csv has each."
    rows = []
    for course in courses:
        for i in every(len(course.number), TABLE_ROWS)[0]:
            row = (f"{course.number[i]:.0f}", f"{course.tokens[i]:,.0f}", short(course.perplexity[i], 2))
            rows.append((course.name or "run", *row))
    table = Table(("course", "step", "tokens", "cumulative perplexity"), tuple(rows))
    return LiveFigure("perplexity", "Cumulative perplexity", _json(perplexity_figure(courses, marks)), table, said)


def _spans(courses: Sequence[Course]) -> Table:
    """Spans of steps with their mean, lowest and highest loss."""
    rows = []
    for course in courses:
        span = max(1, math.ceil(len(course.number) / TABLE_ROWS))
        for start in range(0, len(course.number), span):
            part = course.loss[start : start + span]
            end = start + len(part) - 1
            steps = f"{course.number[start]:.0f}" + (f" to {course.number[end]:.0f}" if end > start else "")
            numbers = (sum(part) / len(part), min(part), max(part))
            rows.append((course.name or "run", steps, f"{course.tokens[end]:,.0f}", *(short(n, 3) for n in numbers)))
    return Table(("course", "steps", "tokens", "mean loss", "lowest", "highest"), tuple(rows))


def _model(readings: Readings, size: int) -> LiveFigure:
    tokens = [number * size for number in readings.number]
    rms, gain = readings.model["residual_rms"], readings.model["gain_norm"]
    rows = tuple(
        (f"{readings.number[i]:.0f}", f"{tokens[i]:,.0f}", short(rms[i], 3), short(gain[i], 3))
        for i in every(len(tokens), TABLE_ROWS)[0]
    )
    table = Table(("step", "tokens", "residual RMS", "norm of the gain"), rows)
    caption = "Residual at the final norm, and its gain"
    return LiveFigure("model", caption, _json(model_figure(tokens, rms, gain)), table, _left_out(len(tokens), POINTS))


def _panel(panel: Panel, read: Sequence[Branch], marks: Sequence[Mark], size: int) -> LiveFigure:
    courses = [
        (b.name, [n * size for n in b.history.readings.number], b.history.readings.layers) for b in read
    ]  # fmt: skip
    readings = read[0].history.readings
    chosen = every(len(readings), 4)[0]
    lines = [line for line in panel.lines if readings.has(line.key)]
    head = ("layer", "figure", *(f"step {readings.number[i]:.0f}" for i in chosen))
    rows = tuple(
        (f"L{layer}", line.name, *(_cell(panel, line, columns, i) for i in chosen))
        for layer, columns in enumerate(readings.layers)
        for line in lines
    )
    data = _json(layers_figure(panel, courses, marks))
    return LiveFigure(panel.id, panel.title, data, Table(head, rows), _left_out(len(readings), LAYER_POINTS))


def _heads(figure: str, branch: Branch) -> LiveFigure:
    """Every head of the last reading; `figure`: write or columns."""
    readings = branch.history.readings
    last = [{name: column[-1] for name, column in layer.items()} for layer in readings.layers]
    values, kinds, rows = [], [], []
    for layer, each in enumerate(last):
        count = next(head for head in itertools.count() if f"{figure}.h{head}" not in each)
        values.append([each[f"{figure}.h{head}"] for head in range(count)])
        kinds.append(["bounded" if head < each["bounded_heads"] else "conventional" for head in range(count)])
        largest = f"{head_name(each[f'{figure}.largest_head'])} {short(each[f'{figure}.largest'], 2)}"
        bounded = f"{short(each['bounded_heads'], 0)} of {count}"
        rows.append((f"L{layer}", bounded, largest, *(short(value, 2) for value in values[-1])))
    across = max(map(len, values))
    table = Table(
        ("layer", "bounded, the first", "largest", *(f"h{head}" for head in range(across))),
        tuple((*row, *("–" for _ in range(3 + across - len(row)))) for row in rows),
    )
    caption = f"{HEADS[figure]}, step {readings.number[-1]:.0f}{' of ' + branch.name if branch.name else ''}"
    return LiveFigure(f"{figure}-heads", caption, _json(heads_figure(values, kinds, caption)), table, "")


def _cell(panel: Panel, line: Line, columns: Mapping[str, Sequence[float]], reading: int) -> str:
    value = columns[line.key][reading]
    of = f"{head_name(columns[line.head][reading])} " if line.head else ""
    if math.isnan(value):
        return f"{of}–"
    return percent(value, 1) if panel.scale == "share" else of + short(value, 2)


def _left_out(count: int, points: int) -> str:
    _, step = every(count, points)
    return "" if step == 1 else f"Every {_ordinal(step)} reading is drawn; its csv has each."


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number:,}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _json(figure: dict[str, Any]) -> str:
    return json.dumps(plain(figure), separators=(",", ":"))
