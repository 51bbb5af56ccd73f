"""The figure of `legible parity`: one panel for each number of bits, accuracy against parameters, one line a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

PANEL, HEIGHT, LEFT, TOP, GAP = 220, 150, 44, 64, 44
COLUMNS = 4
# Told apart by dash and marker too, not by colour alone.
STYLES = {
    "set-operators": ("#b3261e", "", "circle"),
    "gelu": ("#2f6db3", "6 3", "square"),
    "relu": ("#3b7d3b", "2 3", "circle"),
    "bilinear": ("#8a6d00", "8 3 2 3", "square"),
    "swiglu": ("#7a4fa3", "4 4", "circle"),
}
CSS = (
    ".bg{fill:#fff}.ink{fill:#222}.soft{fill:#666}.axis{stroke:#999;fill:none}.grid{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){.bg{fill:#181818}.ink{fill:#eee}.soft{fill:#aaa}.axis{stroke:#777}"
    ".grid{stroke:#333}}"
    "text{font:12px system-ui,sans-serif}"
)


def plot(results: Sequence[dict[str, Any]]) -> str:
    """An SVG document of the results' JSON; bars are one standard error over starts."""
    bits = sorted({row["bits"] for row in results})
    layers = list(dict.fromkeys(row["layer"] for row in results))
    low = math.log2(min(row["parameters"] for row in results))
    high = max(math.log2(max(row["parameters"] for row in results)), low + 1)
    rows = math.ceil(len(bits) / COLUMNS)
    width = LEFT + COLUMNS * (PANEL + GAP)
    height = TOP + rows * (HEIGHT + 60)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Accuracy on N-bit parity against parameters, by kind of layer</title>",
        f"<style>{CSS}</style>",
        f'<rect class="bg" width="{width}" height="{height}"/>',
        *_legend(layers),
    ]
    for number, n in enumerate(bits):
        x0, y0 = LEFT + number % COLUMNS * (PANEL + GAP), TOP + number // COLUMNS * (HEIGHT + 60)
        parts += _panel(n, [row for row in results if row["bits"] == n], layers, x0, y0, low, high)
    said = "across: parameters, on a logarithmic scale; up: accuracy over all inputs, ± one standard error over starts"
    parts.append(f'<text class="soft" x="{LEFT}" y="{height - 14}">{said}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def _panel(
    n: int, rows: list[dict[str, Any]], layers: list[str], x0: float, y0: float, low: float, high: float
) -> list[str]:
    def x(parameters: float) -> float:
        return round(x0 + PANEL * (math.log2(parameters) - low) / (high - low), 1)

    def y(accuracy: float) -> float:
        return round(y0 + HEIGHT * (1 - (min(1.0, max(0.4, accuracy)) - 0.4) / 0.6), 1)

    parts = [f'<text class="ink" x="{x0}" y="{y0 - 10}" font-weight="600">{n} bits</text>']
    for level in (0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{x0}" x2="{x0 + PANEL}" y1="{y(level)}" y2="{y(level)}"/>')
        parts.append(f'<text class="soft" x="{x0 - 6}" y="{y(level) + 4}" text-anchor="end">{level:g}</text>')
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        if exponent % 2 or high - low <= 4:
            where = x(2**exponent)
            parts.append(
                f'<text class="soft" x="{where}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{2**exponent}</text>'
            )
    parts.append(f'<path class="axis" d="M{x0} {y0}V{y0 + HEIGHT}H{x0 + PANEL}"/>')
    for layer in layers:
        colour, dash, marker = STYLES.get(layer, ("#888", "", "circle"))
        points = sorted(
            (row["parameters"], row["accuracy"], row["accuracy_se"] or 0.0) for row in rows if row["layer"] == layer
        )
        line = " ".join(f"{x(p)},{y(a)}" for p, a, _ in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>'
        )
        for p, a, error in points:
            said = f"{layer}, {p} parameters: {a:.3f} ± {error:.3f}"
            parts.append(
                f'<line x1="{x(p)}" x2="{x(p)}" y1="{y(a - error)}" y2="{y(a + error)}" stroke="{colour}"/>'
                + _marker(marker, x(p), y(a), colour, said)
            )
    return parts


def _legend(layers: list[str]) -> list[str]:
    parts = []
    for number, layer in enumerate(layers):
        colour, dash, marker = STYLES.get(layer, ("#888", "", "circle"))
        x = LEFT + 150 * number
        parts.append(
            f'<line x1="{x}" x2="{x + 30}" y1="20" y2="20" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{dash}"/>'
        )
        parts.append(_marker(marker, x + 15, 20, colour, layer))
        parts.append(f'<text class="ink" x="{x + 36}" y="24">{escape(layer)}</text>')
    return parts


def _marker(shape: str, x: float, y: float, colour: str, said: str) -> str:
    title = f"<title>{escape(said)}</title>"
    if shape == "square":
        return f'<rect x="{x - 3}" y="{y - 3}" width="6" height="6" fill="{colour}">{title}</rect>'
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}">{title}</circle>'
