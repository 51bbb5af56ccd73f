"""The figures of a training run as Plotly JSON, made of columns; imports no torch.

    loss_figure(courses, marks)         loss by tokens, its lowest and highest where many steps share a point
    perplexity_figure(courses, marks)   cumulative perplexity on a logarithmic axis, branches beside
    layers_figure(panel, ...)           small multiples: one plot a layer, common axes
    heads_figure(values, ...)           layers × heads of one reading, each head's number in its cell

Long logs are thinned, never smoothed: a spike stays as high as it was. What was left out is said with the figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

# The most points of one line. Of the loss each span gives two, its lowest and its highest.
POINTS = 400
LAYER_POINTS = 80
COLUMNS = 3
# The most heads whose numbers find room in their cells on a telephone.
CELLS_WITH_TEXT = 12
# The most lines whose names find room in one row above a figure on a telephone; a second row would touch its title.
FEW = 3
MAIN, SOFT, TONES = "#2f8f6f", "#8b8f98", ("#b9a44c", "#4393c3", "#c8624d", "#8d6bb8")


@dataclass(frozen=True)
class Course:
    """What one log gives to draw: the run itself (name "") or a decay branch; columns are equally long."""

    name: str
    number: Sequence[float]
    tokens: Sequence[float]
    loss: Sequence[float]
    perplexity: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """Something that happened: where (in tokens and nats) and its name; own words only, for Plotly reads markup."""

    tokens: float
    loss: float | None
    name: str
    spike: bool = False


@dataclass(frozen=True)
class Line:
    """One line of each small plot: its name, the figure of `history.layer_figures` and its tone.

    head: the figure that says of which head the value is, where that changes from reading to reading.
    """

    name: str
    key: str
    tone: str = MAIN
    head: str = ""


@dataclass(frozen=True)
class Panel:
    """A figure of small multiples. `scale`: share, log or plain."""

    id: str
    title: str
    lines: tuple[Line, ...]
    scale: str = "plain"


SURFACES = ("attention", "feed_forward")
BOTH_HEADS = ("bounded", "conventional")
PANELS = (
    Panel(
        "saturated", "Memberships within 0.02 of a rail",
        (Line("attention", "attention.saturated"), Line("feed-forward", "feed_forward.saturated", TONES[0])), "share",
    ),
    Panel(
        "write", "Residual write of a head, mean norm",
        (
            Line("bounded", "write.bounded"), Line("conventional", "write.conventional", TONES[2]),
            Line("largest head", "write.largest", TONES[1], "write.largest_head"),
        ), "log",
    ),
    Panel(
        "ratio", "Conventional heads : bounded heads",
        (Line("residual write", "write_ratio", TONES[2]), Line("output-projection columns", "columns_ratio", SOFT)),
        "log",
    ),
    Panel(
        "columns", "Output-projection columns, mean norm",
        (
            Line("bounded", "columns.bounded"), Line("conventional", "columns.conventional", TONES[2]),
            Line("largest head", "columns.largest", TONES[1], "columns.largest_head"),
        ),
    ),
    Panel(
        "on", "Operands ON",
        (Line("attention", "attention.on"), Line("feed-forward", "feed_forward.on", TONES[0])), "share",
    ),
    Panel(
        "crisp", "Operands crisp",
        (Line("attention", "attention.crisp"), Line("feed-forward", "feed_forward.crisp", TONES[0])), "share",
    ),
    Panel(
        "constant", "Operands CONSTANT (dead)",
        (Line("attention", "attention.constant"), Line("feed-forward", "feed_forward.constant", TONES[0])), "share",
    ),
    Panel(
        "half-life", "Half-lives of the quantifiers, tokens",
        (
            Line("median", "half_life.median"), Line("shortest", "half_life.min", SOFT),
            Line("longest", "half_life.max", SOFT),
        ), "log",
    ),
    Panel("latches", "Quantifiers that are latches, 32 tokens or more", (Line("share", "half_life.latches"),), "share"),
)  # fmt: skip


def thin(values: Sequence[float], points: int = POINTS) -> tuple[list[int], int]:
    """Indices of at most 2·`points` + 2 entries, each span's lowest and highest in order, and how long a span is.

    Everything, and 1, where that fits. NaN is passed over where a span has anything else.
    """
    if len(values) <= 2 * points:
        return list(range(len(values))), 1
    span = math.ceil(len(values) / points)
    padded = np.full(math.ceil(len(values) / span) * span, np.nan)
    padded[: len(values)] = values
    rows = padded.reshape(-1, span)
    some = ~np.isnan(rows).all(axis=1)
    starts = np.arange(len(rows)) * span
    lowest = starts + np.where(np.isnan(rows), np.inf, rows).argmin(axis=1)
    highest = starts + np.where(np.isnan(rows), -np.inf, rows).argmax(axis=1)
    return [int(i) for i in np.unique(np.concatenate([lowest[some], highest[some]]))], span


def every(count: int, points: int) -> tuple[list[int], int]:
    """Indices of at most `points` + 1 entries, evenly, the last one among them; and the distance between them."""
    step = max(1, math.ceil(count / points))
    return sorted({*range(step - 1, count, step), *([count - 1] if count else [])}), step


def loss_figure(courses: Sequence[Course], marks: Sequence[Mark]) -> dict[str, Any]:
    """Loss of the steps, the running mean that the guard follows, and what happened."""
    data: list[dict[str, Any]] = []
    for course, tone in zip(courses, (MAIN, *TONES * len(courses)), strict=False):
        chosen, _ = thin(course.loss)
        prefix = f"{course.name}: " if course.name else ""
        data.append(_line(f"{prefix}steps", course.tokens, course.loss, chosen, tone, width=1, opacity=0.6))
        chosen, _ = every(len(course.loss), POINTS)
        means = _line(f"{prefix}mean", course.tokens, course.perplexity, chosen, tone)
        means["y"] = [_round(math.log(value)) if value is not None and value > 0 else None for value in means["y"]]
        data.append(means)
    for spike, name, symbol in ((True, "spikes", "diamond-open"), (False, "events", "triangle-down")):
        found = [mark for mark in marks if mark.spike == spike and mark.loss is not None]
        if found:
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": name, "x": [mark.tokens for mark in found],
                    "y": [_round(mark.loss) for mark in found], "text": [mark.name for mark in found],
                    "marker": {"symbol": symbol, "size": 8, "color": TONES[2] if spike else SOFT},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )  # fmt: skip
    layout = _layout("Loss, nats a token", height=360, shapes=_shapes(marks, "paper", "x"))
    return {"data": data, "layout": layout | _legend(data)}


def perplexity_figure(courses: Sequence[Course], marks: Sequence[Mark]) -> dict[str, Any]:
    """The cumulative perplexity, which alone tells a divergence."""
    data = [
        _line(c.name or "run", c.tokens, c.perplexity, every(len(c.perplexity), POINTS)[0], tone)
        for c, tone in zip(courses, (MAIN, *TONES * len(courses)), strict=False)
    ]
    layout = _layout("Cumulative perplexity", height=360, shapes=_shapes(marks, "paper", "x"))
    layout["yaxis"] |= _log_axis(data)
    return {"data": data, "layout": layout | _legend(data)}


def model_figure(tokens: Sequence[float], rms: Sequence[float], gain: Sequence[float]) -> dict[str, Any]:
    """The residual at the final norm and the norm's gain, whose fall goes with a divergence (A.3)."""
    chosen, _ = every(len(tokens), POINTS)
    data = [
        _line("residual RMS", tokens, rms, chosen, TONES[2]),
        _line("norm of the gain", tokens, gain, chosen, MAIN),
    ]
    layout = _layout("Residual at the final norm, and its gain", height=360)
    layout["yaxis"] |= _log_axis(data)
    return {"data": data, "layout": layout}


# A course's readings: its name, their tokens, and by layer the columns of `history.Readings`.
Read: TypeAlias = tuple[str, Sequence[float], Sequence[Mapping[str, Sequence[float]]]]


def layers_figure(panel: Panel, courses: Sequence[Read], marks: Sequence[Mark]) -> dict[str, Any]:
    """One plot a layer; the lines of branches are dotted."""
    layers = max(len(columns) for _, _, columns in courses)
    data = []
    for branch, (name, tokens, columns) in enumerate(courses):
        chosen, _ = every(len(tokens), LAYER_POINTS)
        for layer, each in enumerate(columns):
            for line in panel.lines:
                values = each[line.key]
                if all(math.isnan(value) for value in values):
                    continue
                trace = _line(line.name, tokens, values, chosen, line.tone, width=1.5)
                place = str(layer + 1) if layer else ""
                trace |= {"xaxis": f"x{place}", "yaxis": f"y{place}", "legendgroup": line.key}
                of = " %{text}" if line.head else ""
                trace["hovertemplate"] = f"L{layer}{' ' + name if name else ''}, {line.name}{of}: %{{y}}<extra></extra>"
                if line.head:
                    trace["text"] = [head_name(each[line.head][i]) for i in chosen]
                trace["line"]["dash"] = "dot" if branch else "solid"
                data.append(trace)
    shown: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace["name"] not in shown
        shown.add(trace["name"])
    return {"data": data, "layout": _grid(panel, layers, data, marks)}


def head_name(number: float) -> str:
    """h3 for 3.0; nothing where no head is meant."""
    return "" if math.isnan(number) else f"h{int(number)}"


def heads_figure(values: Sequence[Sequence[float]], kinds: Sequence[Sequence[str]], title: str) -> dict[str, Any]:
    """A cell a head, darker the larger, on a logarithmic scale; a head without a number stays empty.

    values: by layer and head; kinds: what to call each head, such as "bounded".
    """
    across = max(map(len, values), default=0)
    finite = [value for row in values for value in row if math.isfinite(value) and value > 0]
    low = math.log10(min(finite)) if finite else 0.0
    # A factor of two at least from one end to the other: heads that are about equal look equal.
    high = max(math.log10(max(finite)) if finite else 0.0, low + math.log10(2))

    def row_of(row: Sequence[float]) -> list[float | None]:
        padded = [*row, *[math.nan] * (across - len(row))]
        return [
            None if not math.isfinite(value) else _round(math.log10(value)) if value > 0 else low for value in padded
        ]

    trace: dict[str, Any] = {
        "type": "heatmap", "name": "heads", "z": [row_of(row) for row in values],
        "zmin": _round(low), "zmax": _round(high),
        "x": [f"h{head}" for head in range(across)], "y": [f"L{layer}" for layer in range(len(values))],
        "text": [[brief(value) for value in row] for row in values], "showscale": False, "hoverongaps": False,
        "customdata": [
            [f"{kind}: {value:.4g}" for kind, value in zip(names, row, strict=True)]
            for names, row in zip(kinds, values, strict=True)
        ],
        "hovertemplate": "%{y}.%{x} %{customdata}<extra></extra>", "xgap": 1, "ygap": 1,
    }  # fmt: skip
    if across <= CELLS_WITH_TEXT:
        trace |= {"texttemplate": "%{text}", "textfont": {"size": 10}}
    layout = _layout(title, height=110 + 24 * len(values))
    layout["xaxis"], layout["yaxis"] = {"showgrid": False}, {"autorange": "reversed", "showgrid": False}
    return {"data": [trace], "layout": layout}


def brief(value: float) -> str:
    """At most four characters up to 9,999, for a cell as wide as that."""
    if not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def _grid(panel: Panel, layers: int, data: list[dict[str, Any]], marks: Sequence[Mark]) -> dict[str, Any]:
    """Axes of one plot a layer in rows of two or three: common scales, numbers at the left and the bottom only."""
    across = 2 if layers in (1, 2, 4) else COLUMNS
    rows = math.ceil(layers / across)
    logarithmic = _log_axis(data) if panel.scale == "log" else {}
    layout = _layout(panel.title, height=130 + 105 * rows)
    layout["annotations"] = []
    layout["shapes"] = []
    gap_x, gap_y = 0.03, 0.32 / (rows + 1) if rows > 1 else 0.0
    width, height = (1 - gap_x * (across - 1)) / across, (1 - gap_y * (rows - 1)) / rows
    for layer in range(layers):
        row, column = divmod(layer, across)
        place = str(layer + 1) if layer else ""
        left, top = column * (width + gap_x), 1 - row * (height + gap_y)
        bottom = layer + across >= layers
        x = {
            "domain": [_round(left), _round(left + width)], "anchor": f"y{place}", "tickformat": "~s",
            "showticklabels": bottom, "nticks": 4,
        }  # fmt: skip
        y: dict[str, Any] = {
            "domain": [_round(max(0.0, top - height)), _round(top)], "anchor": f"x{place}", "nticks": 5,
            "showticklabels": column == 0,
        }  # fmt: skip
        if layer:
            x["matches"], y["matches"] = "x", "y"
        y |= logarithmic
        if panel.scale == "share":
            y |= {"range": [-0.03, 1.03], "tickformat": ".0%", "tickvals": [0, 0.5, 1]}
        layout[f"xaxis{place}"], layout[f"yaxis{place}"] = x, y
        layout["annotations"].append(
            {
                "text": f"L{layer}", "xref": f"x{place} domain", "yref": f"y{place} domain", "x": 0.02, "y": 1.0,
                "xanchor": "left", "yanchor": "top", "showarrow": False, "font": {"size": 11},
            }
        )  # fmt: skip
        layout["shapes"] += _shapes(marks, f"y{place} domain", f"x{place}")
    return layout


def _layout(title: str, *, height: int, shapes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "title": {"text": title}, "height": height, "uirevision": "same", "shapes": shapes or [],
        "xaxis": {"tickformat": "~s", "title": {"text": "tokens"}}, "yaxis": {},
    }  # fmt: skip


def _legend(data: Sequence[Any]) -> dict[str, Any]:
    """The names of many lines stand below the figure, which grows by them; those of a few above it, as everywhere."""
    return {"legend": {"y": -0.28, "yanchor": "top"}, "height": 340 + 16 * len(data)} if len(data) > FEW else {}


def _line(
    name: str, x: Sequence[float], y: Sequence[float], chosen: Sequence[int], tone: str, *, width: float = 2,
    opacity: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": [_round(x[i], 7) for i in chosen],
        "y": [_round(y[i]) for i in chosen], "line": {"color": tone, "width": width}, "opacity": opacity,
        "hovertemplate": f"%{{x:,}} tokens, {name}: %{{y}}<extra></extra>",
    }  # fmt: skip


def _shapes(marks: Sequence[Mark], yref: str, xref: str) -> list[dict[str, Any]]:
    """A dotted upright for whatever is no spike."""
    return [
        {
            "type": "line", "xref": xref, "yref": yref, "x0": mark.tokens, "x1": mark.tokens, "y0": 0, "y1": 1,
            "line": {"color": SOFT, "width": 1, "dash": "dot"},
        }
        for mark in marks
        if not mark.spike
    ]  # fmt: skip


def _log_axis(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A logarithmic axis, ticks written out: the decades, and 2 and 5 where those are few."""
    values = [value for trace in data for value in trace["y"] if value is not None and value > 0]
    if not values or max(values) < 4 * min(values):
        return {}  # within one decade a logarithmic axis has hardly a tick
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [_round(step * 10.0**power) for power in range(low - 1, high + 1) for step in steps]
    return {"type": "log", "tickvals": ticks, "tickformat": "~r"}


def _round(value: float | None, digits: int = 5) -> float | None:
    """Few digits, so that a page stays small; None for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")
