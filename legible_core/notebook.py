"""A reading as one piece of HTML for a notebook: the figure as SVG, a table, the sum; imports no torch.

Colours and geometry are attributes and nothing runs, so the piece looks the same in Jupyter, in a saved notebook and on
a page that forbids inline styles. Every text of the model is escaped.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from legible_core.reading import Contributor, Reading, Token

UP, DOWN = "#c0392b", "#2e6da4"
ROW, CELL, LABEL, STRIP = 22, 26, 34, 300
MARKS = 8  # units drawn in each layer
LISTED = 12  # rows of the table


def reading_html(reading: Reading) -> str:
    """What `Reading._repr_html_` shows."""
    summary = reading.summary
    against = "" if summary.contrast is None else f" against {_token(summary.contrast)}"
    against = " against the vocabulary's mean" if summary.relative_to == "mean" else against
    chips = " ".join(
        f"<b>{_token(token)}</b>" if index == summary.position else _token(token)
        for index, token in enumerate(summary.tokens)
    )
    predicted = ", ".join(f"{_token(token)} {token.probability:.2f}" for token in summary.predictions[:5])
    head = (
        f"<p>{chips}<br>predicts {predicted}<br>reads {_token(summary.target)}{against}: rank {summary.target.rank}, "
        f"probability {summary.target.probability:.3g}, logit {summary.target.logit:.4f}</p>"
    )
    groups = [(name.replace("_", " "), value) for name, value in summary.groups if value]
    sums = " ".join(f"{escape(name)} {value:+.2f}" for name, value in groups)
    close = (
        f"<p>{sums} = {summary.sum:.4f}; the model's {_what(summary.relative_to)} is {summary.value:.4f}, "
        f"residual {summary.residual:.1e} (tolerance {summary.tolerance:.0e}). "
        f"Legible share of the absolute mass: {_percent(summary.shares.mass)}.</p>"
    )
    name = f"{escape(summary.checkpoint.slug)}, weights {escape(summary.checkpoint.hash[:12])}"
    return f"<div>{head}{figure(reading)}{_table(summary.top[:LISTED])}{close}<p><small>{name}</small></p></div>"


def figure(reading: Reading) -> str:
    """SVG: layers × heads on the left, each layer's strongest units by their term on the right; red up, blue down."""
    heads, units = reading.heads, reading.units
    layers, count = heads.shape
    left = LABEL + CELL * count + 16
    width, height = left + STRIP + 8, ROW * layers + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="currentColor">'
        "<title>Terms of the sum by layer: heads on the left, the strongest units on the right</title>"
    ]
    strongest_head = float(np.abs(heads).max(initial=0.0))
    strongest_unit = float(np.abs(units).max(initial=0.0))
    middle, half = left + STRIP / 2, STRIP / 2 - 6
    for layer in range(layers):
        y = layer * ROW
        parts.append(f'<text x="0" y="{y + 15}">L{layer}</text>')
        for head in range(count):
            value = float(heads[layer, head])
            parts.append(
                f'<rect x="{LABEL + head * CELL}" y="{y + 2}" width="{CELL - 2}" height="{ROW - 4}" '
                f"{_paint(value, strongest_head)}><title>L{layer}.h{head} {value:+.4f}</title></rect>"
            )
        parts.append(
            f'<line x1="{left}" x2="{left + STRIP}" y1="{y + ROW / 2:g}" y2="{y + ROW / 2:g}" '
            'stroke="currentColor" stroke-opacity="0.25"/>'
        )
        for unit in np.argsort(-np.abs(units[layer]), kind="stable")[:MARKS]:
            value = float(units[layer, unit])
            x = middle + (half * value / strongest_unit if strongest_unit else 0.0)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y + ROW / 2:g}" r="5" {_paint(value, strongest_unit)}>'
                f"<title>L{layer} unit {int(unit)} {value:+.4f}</title></circle>"
            )
    base = height - 5
    parts.append(f'<text x="{LABEL}" y="{base}">heads</text>')
    for x, anchor, text in (
        (left, "start", f"−{strongest_unit:.2f}"),
        (middle, "middle", "units: 0"),
        (left + STRIP, "end", f"+{strongest_unit:.2f}"),
    ):
        parts.append(f'<text x="{x:g}" y="{base}" text-anchor="{anchor}">{text}</text>')
    return "".join(parts) + "</svg>"


def _table(rows: tuple[Contributor, ...]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{row.value:+.3f}</td><td>{escape(row.glyph)} {escape(row.id)}</td><td>{_operation(row)}</td>"
        f"<td>{escape(' '.join(token.display for token in row.promotes[:6]))}</td></tr>"
        for row in rows
    )
    head = "<tr><th>term</th><th>component</th><th>operation over its operands here</th><th>promotes</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _operation(row: Contributor) -> str:
    operands = []
    for operand in row.operands:
        label = "" if operand.label is None else f" {operand.label.text}"
        operands.append(f"{operand.id.rsplit('.', 1)[-1]} {operand.value:.2f}{label}")
    text = " ".join(part for part in (row.operation or "", ", ".join(operands)) if part)
    return escape(f"{row.formula}: {text}" if row.formula else text)


def _token(token: Token) -> str:
    return f"<code>{escape(token.display)}</code>"


def _paint(value: float, scale: float) -> str:
    share = min(1.0, abs(value) / scale) if scale > 0 and math.isfinite(value) else 0.0
    return f'fill="{UP if value > 0 else DOWN}" fill-opacity="{0.08 + 0.92 * share:.2f}"'


def _what(relative_to: str) -> str:
    return {"nothing": "logit", "mean": "logit minus the mean", "contrast": "logit difference"}[relative_to]


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.0%}"
