"""Figures: the reading's as SVG made here, the model page's as Plotly JSON; imports no torch.

    heads_grid(heads, …)     layers × heads, red up, blue down, the sign also in the cell's text
    unit_strips(units, …)    one strip a layer: the strongest named, all others as a faint density
    plotly figures           per-layer legibility, SELECTIVE heatmap, half-lives

No inline style and no script: colours are classes of static/legible.css, geometry is SVG presentation attributes, so a
page holds under a Content-Security-Policy without 'unsafe-inline'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup, escape

ROW = 26  # height of a layer's row in both parts of the figure, so that they align
LABEL = 30  # room for "L11"
STRIP = 306  # width of a strip
NAME = 118  # room for the name of a layer's strongest unit
BIN = 3  # width of a density bar
MARKS = 8  # units drawn one by one in each layer, and links to their panels

Href = Callable[[str], str]


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, U+2212 for minus; "0.00" without sign when it rounds to nothing."""
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def places(value: float, digits: int = 2, figures: int = 2) -> int:
    """How many decimals show a value's first `figures` figures: `digits` at least, eight at most."""
    if not value or not math.isfinite(value):
        return digits
    return min(8, max(digits, figures - 1 - math.floor(math.log10(abs(value)))))


def telling(value: float, digits: int = 2) -> str:
    """As `signed`, with as many decimals as two figures need: the sign of what is not zero is always seen.

    What eight decimals would not show is written as a power of ten: −3e-9.
    """
    text = signed(value, places(value, digits))
    return text if not value or text[0] in "+−" else f"{value:+.0e}".replace("e-0", "e-").replace("-", "−", value < 0)


def level(value: float, scale: float) -> str:
    """The colour class of a term: z0, or p1..p4 (up), n1..n4 (down), in quarters of `scale`."""
    share = abs(value) / scale if scale > 0 else 0.0
    if share < 0.02 or not math.isfinite(share):
        return "z0"
    return f"{'p' if value > 0 else 'n'}{min(4, 1 + int(share * 4))}"


def heads_grid(heads: np.ndarray, href: Href, selected: str | None = None, scale: float | None = None) -> Markup:
    """Layers × heads of (L, H) terms in logits; each cell is a link to `href(component)`.

    `scale` is the size that has the full colour; the largest term's, where it is not given.
    """
    layers, count = heads.shape
    scale = float(np.abs(heads).max(initial=0.0)) if scale is None else scale
    cell = 34 if count <= 8 else 30 if count <= 12 else 20
    width, height = LABEL + cell * count, ROW * layers + 18
    parts = [_open(width, height, "Terms of the attention heads by layer")]
    for layer in range(layers):
        y = layer * ROW
        parts.append(f'<text x="0" y="{y + 16}">L{layer}</text>')
        for head in range(count):
            value = float(heads[layer, head])
            name = f"L{layer}.h{head}"
            tone = level(value, scale)
            x = LABEL + head * cell
            text = ""
            if tone != "z0" and cell >= 30:
                on = f" on-{tone}" if tone in ("p4", "n4") else ""
                shown = _short(value, 1 if scale >= 1 else 2)
                text = f'<text class="cell{on}" x="{x + (cell - 3) / 2:g}" y="{y + 15}">{shown}</text>'
            parts.append(
                f'<a href="{escape(href(name))}" aria-label="{name} {signed(value)}"{_current(name == selected)}>'
                f'<rect class="{tone}" x="{x}" y="{y}" width="{cell - 3}" height="{ROW - 4}"/>{text}</a>'
            )
    parts.extend(
        f'<text x="{LABEL + head * cell + (cell - 3) / 2:g}" y="{height - 4}" text-anchor="middle">h{head}</text>'
        for head in range(count)
    )
    return Markup("".join(parts) + "</svg>")


def unit_strips(
    units: np.ndarray, href: Href, glyph: Callable[[int], str], selected: str | None = None,
    always: Sequence[str] = (), scale: float | None = None,
) -> Markup:  # fmt: skip
    """One strip a layer of (L, d_ff) terms in logits, on a square-root axis common to all layers.

    The strongest `MARKS` units of each layer, those in `always` and the selected one are drawn one by one and are
    links; the rest is a density of four grades. `glyph(unit)` is the sign of a unit's kind;
    `scale` ends the axis.
    """
    layers, d_ff = units.shape
    scale = (float(np.abs(units).max(initial=0.0)) if scale is None else scale) or 1.0
    width, height = LABEL + STRIP + NAME, ROW * layers + 18
    half = STRIP / 2 - 4
    zero = LABEL + STRIP / 2

    def x_of(values: np.ndarray) -> np.ndarray:
        return np.asarray(zero + np.sign(values) * np.sqrt(np.abs(values) / scale) * half)

    named = _indices(always, selected)
    parts = [_open(width, height, "Terms of the feed-forward units by layer")]
    grades: list[list[str]] = [[], [], [], []]
    marks: list[str] = []
    for layer in range(layers):
        y = layer * ROW
        row = units[layer]
        top = np.argsort(-np.abs(row), kind="stable")[: min(MARKS, d_ff)]
        drawn = dict.fromkeys([int(i) for i in top if row[i] != 0] + [u for u in named.get(layer, ()) if u < d_ff])
        rest = np.delete(row, list(drawn)) if drawn else row
        counts, edges = np.histogram(x_of(rest), bins=STRIP // BIN, range=(LABEL, LABEL + STRIP))
        for count, edge in zip(counts, edges, strict=False):
            if count:
                grade = 0 if count == 1 else 1 if count <= 4 else 2 if count <= 24 else 3
                grades[grade].append(f"M{edge + BIN / 2:g} {y + 4}v{ROW - 12}")
        parts.append(f'<text x="0" y="{y + 16}">L{layer}</text>')
        for place, unit in enumerate(drawn):
            value = float(row[unit])
            name, tone = f"L{layer}.u{unit}", "up" if value >= 0 else "down"
            x = float(x_of(np.array([value]))[0])
            text = ""
            if place == 0 and abs(value) > scale * 0.01:
                text = (
                    f'<text class="id" x="{LABEL + STRIP + 4}" y="{y + 16}">{escape(glyph(unit))} u{unit}</text>'
                    f'<text class="{tone}" x="{width}" y="{y + 16}" text-anchor="end">{signed(value)}</text>'
                )
            marks.append(
                f'<a href="{escape(href(name))}" aria-label="{escape(glyph(unit))} {name} {signed(value)}"'
                f"{_current(name == selected)}>"
                f'<rect class="{tone}" x="{x - 1.5:.1f}" y="{y + 1}" width="3" height="{ROW - 6}"/>{text}</a>'
            )
    parts.append(f'<path class="line" d="M{zero:g} 0V{ROW * layers}"/>')
    parts.extend(f'<path class="d{grade}" d="{"".join(bars)}"/>' for grade, bars in enumerate(grades, 1) if bars)
    parts.extend(marks)
    digits = 1 if scale >= 1 else 2
    for share in (-1.0, -0.25, 0.0, 0.25, 1.0):
        x = zero + math.copysign(math.sqrt(abs(share)), share) * half
        parts.append(f'<text x="{x:.0f}" y="{height - 4}" text-anchor="middle">{signed(share * scale, digits)}</text>')
    return Markup("".join(parts) + "</svg>")


def histogram(counts: Sequence[float], label: str, low: str = "0", high: str = "1") -> Markup:
    """Bars of `counts` between two rails, tallest to the top; the outer tenths are darker, as crispness counts them."""
    width, height = 220, 56
    peak = max((float(c) for c in counts), default=0.0) or 1.0
    step = width / max(1, len(counts))
    parts = [_open(width, height + 14, label)]
    for i, count in enumerate(counts):
        middle = (i + 0.5) / len(counts)
        tall = float(count) / peak * height
        tone = "bar1" if middle < 0.1 or middle > 0.9 else "bar2"
        parts.append(
            f'<rect class="{tone}" x="{i * step:.1f}" y="{height - tall:.1f}" width="{max(1.0, step - 1):.1f}" '
            f'height="{tall:.1f}"/>'
        )
    parts.append(f'<path class="line" d="M0 {height}.5H{width}"/><text x="0" y="{height + 12}">{escape(low)}</text>')
    parts.append(f'<text x="{width}" y="{height + 12}" text-anchor="end">{escape(high)}</text></svg>')
    return Markup("".join(parts))


def decay_curve(decay: float, tokens: int = 128) -> Markup:
    """λ^n over the first `tokens` tokens after an ON, with the half-life marked."""
    width, height = 220, 72
    points = [(width * n / tokens, height * (1 - decay**n)) for n in range(tokens + 1)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [_open(width, height + 14, f"Memory of an ON after n tokens, decay {decay:.4f}")]
    parts.append(f'<path class="line" d="M0 {height / 2}H{width}M0 {height}H{width}"/><path class="curve" d="{path}"/>')
    parts.append(f'<text x="0" y="{height + 12}">0</text><text x="{width}" y="{height + 12}" text-anchor="end">')
    parts.append(f'{tokens} tokens</text><text x="{width}" y="{height / 2 - 3}" text-anchor="end">½</text></svg>')
    return Markup("".join(parts))


def thumbnail(layers: int, heads: int, href: Href, shade: Mapping[str, float], selected: str | None = None) -> Markup:
    """A small layers × heads map; `shade` gives a share from 0 to 1 by head id, an absent head is undefined."""
    cell = 18
    parts = [_open(LABEL + heads * cell, layers * cell + 14, "All heads; this one is marked")]
    for layer in range(layers):
        parts.append(f'<text x="0" y="{layer * cell + 12}">L{layer}</text>')
        for head in range(heads):
            name = f"L{layer}.h{head}"
            share = shade.get(name)
            said = "undefined" if share is None else f"SELECTIVE {share:.0%}"
            opacity = "" if share is None else f' fill-opacity="{0.08 + 0.92 * share:.2f}"'
            parts.append(
                f'<a href="{escape(href(name))}" aria-label="{name}, {said}"{_current(name == selected)}>'
                f'<title>{name}, {said}</title><rect class="{"z0" if share is None else "bar1"}" '
                f'x="{LABEL + head * cell}" y="{layer * cell}" width="{cell - 3}" height="{cell - 3}"{opacity}/></a>'
            )
    return Markup("".join(parts) + "</svg>")


def attention_levels(row: Sequence[float]) -> list[int]:
    """The shade 0-4 of each attended position: 4 for a quarter of the attention or more, or for the most attended one.

    An even pattern over many tokens stays pale: no single token stands out there.
    """
    peak = max((float(v) for v in row), default=0.0)
    scale = max(peak, 0.25)
    return [min(4, math.ceil(4 * float(v) / scale - 0.2)) if v > 0 else 0 for v in row]


# The model page's figures: data only; static/app.js gives them the page's colours.

# Colour and, for greyscale, hatching.
CLASS_TONES = {"SELECTIVE": ("#2f8f6f", ""), "FUZZY": ("#b9a44c", "/"), "CONSTANT": ("#8b8f98", "x")}


def per_layer_figure(rows: Sequence[Mapping[str, float | None]], title: str, under: str = "") -> dict[str, Any]:
    """Stacked bars of the three classes by layer; a layer without bounded values has no bar."""
    return composition_figure([f"L{i}" for i in range(len(rows))], rows, title, under)


def composition_figure(
    names: Sequence[str], rows: Sequence[Mapping[str, float | None]], title: str, under: str = ""
) -> dict[str, Any]:
    """Stacked bars of the three classes, one bar a name; `under` stands below the axis, also in an exported image."""
    return {
        "data": [
            {
                "type": "bar", "name": name, "x": list(names), "y": [row.get(name) for row in rows],
                "marker": {
                    "color": tone,
                    "pattern": {"shape": shape, "fillmode": "overlay", "size": 7, "solidity": 0.15},
                },
                "hovertemplate": f"%{{x}} {name} %{{y:.1%}}<extra></extra>",
            }
            for name, (tone, shape) in CLASS_TONES.items()
        ],
        "layout": {
            "barmode": "stack", "title": {"text": title}, "xaxis": {"title": _axis_title(under)},
            "yaxis": {"range": [0, 1], "tickformat": ".0%"},
        },
    }  # fmt: skip


def lines_figure(
    names: Sequence[str], lines: Mapping[str, Sequence[float | None]], title: str, under: str = ""
) -> dict[str, Any]:
    """Shares by layer, one line each; where a share is undefined the line has a gap."""
    looks = (("#2f8f6f", "solid", "circle"), ("#b5651d", "solid", "square"), ("#8b8f98", "dot", "diamond"))
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "x": list(names), "y": list(values),
                "line": {"color": tone, "dash": dash}, "marker": {"symbol": symbol, "size": 8},
                "connectgaps": False, "hovertemplate": f"%{{x}} {name} %{{y:.1%}}<extra></extra>",
            }
            for (name, values), (tone, dash, symbol) in zip(lines.items(), looks, strict=False)
        ],
        "layout": {
            "title": {"text": title}, "xaxis": {"title": _axis_title(under)},
            "yaxis": {"range": [0, 1.02], "tickformat": ".0%"},
        },
    }  # fmt: skip


def heatmap_figure(values: Sequence[Sequence[float | None]], title: str, under: str = "") -> dict[str, Any]:
    """Layers × heads, SELECTIVE share of each head; undefined heads stay empty."""
    return {
        "data": [
            {
                "type": "heatmap", "z": [list(row) for row in values], "zmin": 0, "zmax": 1, "showscale": False,
                "text": [["" if share is None else f"{share:.0%}" for share in row] for row in values],
                "texttemplate": "%{text}", "hoverongaps": False,
                "x": [f"h{i}" for i in range(len(values[0]) if values else 0)],
                "y": [f"L{i}" for i in range(len(values))],
                "hovertemplate": "%{y}.%{x} SELECTIVE %{z:.1%}<extra></extra>", "xgap": 1, "ygap": 1,
            }
        ],
        "layout": {
            "title": {"text": title}, "xaxis": {"title": _axis_title(under)}, "yaxis": {"autorange": "reversed"},
        },
    }  # fmt: skip


def half_life_figure(
    existential: Sequence[float], proportion: Sequence[float], title: str, under: str = "tokens"
) -> dict[str, Any]:
    """Half-lives in tokens on a logarithmic axis, both sorts of quantifier."""
    low, high, bins = -1.0, 4.0, 50
    edges = np.linspace(low, high, bins + 1)

    def counted(values: Sequence[float]) -> list[int]:
        logs = np.log10(np.clip(np.asarray(values, dtype=float), 10**low, 10**high - 1e-9))
        return [int(n) for n in np.histogram(logs, bins=edges)[0]]

    middles = [float(10 ** ((a + b) / 2)) for a, b in pairwise(edges)]
    widths = [float(10**b - 10**a) for a, b in pairwise(edges)]
    return {
        "data": [
            {
                "type": "bar", "name": name, "x": middles, "y": counted(values), "width": widths,
                "marker": {"color": tone}, "hovertemplate": f"{name}, %{{x:.3g}} tokens: %{{y}}<extra></extra>",
            }
            for name, values, tone in (
                ("∃ existential", existential, "#2f8f6f"), ("% proportion", proportion, "#8b8f98"),
            )
        ],
        "layout": {"barmode": "stack", "title": {"text": title}, "xaxis": {"type": "log", "title": _axis_title(under)}},
    }  # fmt: skip


def _axis_title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12}, "standoff": 6}


def _open(width: float, height: float, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="group" aria-label="{escape(label)}">'
    )


def _current(yes: bool) -> str:
    return ' aria-current="true"' if yes else ""


def _short(value: float, digits: int) -> str:
    """+.7, −1.2 or +.07: what fits into a cell; the sign alone where the digits would all be 0."""
    text = signed(value, digits)
    if text.startswith("0"):
        return "+" if value > 0 else "−"
    return text.replace("0.", ".", 1) if text[1:3] == "0." else text


def _indices(ids: Sequence[str], selected: str | None) -> dict[int, list[int]]:
    """Unit ids by layer; ids of other components are passed over."""
    found: dict[int, list[int]] = {}
    for name in [*ids, *([selected] if selected else [])]:
        layer, dot, unit = name.partition(".u")
        if dot and unit.isdecimal() and layer[1:].isdecimal():
            found.setdefault(int(layer[1:]), []).append(int(unit))
    return found
