"""A unit's figures over its training, as SVG: one line a series, the tokens trained from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 300.0, 96.0
LEFT, TOP = 40.0, 6.0
# How a series is drawn, in their order; each differs from the others without its colour.
STYLES = ("curve", "curve second", "curve thin second")
STYLE_WORDS = ("solid", "dashed", "thin")
# How a snapshot's point is drawn; one that is neither is not marked.
POINTS = {"decayed": "point", "constant": "point open"}
POINT_WORDS = {"decayed": "decayed weights", "constant": "weights at a constant rate"}


@dataclass(frozen=True, slots=True)
class Series:
    """What is drawn, in words, and its value at each snapshot."""

    name: str
    values: tuple[float, ...]


def over_training(
    tokens: Sequence[int], rates: Sequence[str], series: Sequence[Series], label: str, low: float, high: float,
    ends: tuple[str, str],
) -> Markup:  # fmt: skip
    """Lines between `low` and `high`, whose texts are `ends`; at most three series. tokens: in ascending order.

    rates: each snapshot's `Snapshot.rate`; `POINTS` are drawn on every line.
    """
    last = max(tokens[-1], 1)

    def x(count: int) -> float:
        return LEFT + count / last * WIDTH

    def y(value: float) -> float:
        return TOP + (high - min(max(value, low), high)) / (high - low) * HEIGHT

    bottom = TOP + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 8:g} {bottom + 16:g}" '
        f'width="{LEFT + WIDTH + 8:g}" height="{bottom + 16:g}" role="img" aria-label="{escape(label)}">'
        f'<path class="line" d="M{LEFT:g} {TOP:g}V{bottom:g}M{LEFT:g} {bottom:g}H{LEFT + WIDTH:g}"/>'
    ]
    if low < 0 < high:
        parts.append(f'<path class="line" d="M{LEFT:g} {y(0):.1f}H{LEFT + WIDTH:g}"/>')
        parts.append(f'<text x="{LEFT - 5:g}" y="{y(0) + 4:.1f}" text-anchor="end">0</text>')
    for style, one in zip(STYLES, series, strict=False):
        path = "L".join(f"{x(count):.1f} {y(value):.1f}" for count, value in zip(tokens, one.values, strict=True))
        parts.append(f'<path class="{style}" d="M{path}"><title>{escape(one.name)}</title></path>')
        for count, rate, value in zip(tokens, rates, one.values, strict=True):
            if rate in POINTS:
                title = f"{count:,} tokens, {POINT_WORDS[rate]}: {one.name}"
                parts.append(
                    f'<circle class="{POINTS[rate]}" cx="{x(count):.1f}" cy="{y(value):.1f}" r="3">'
                    f"<title>{escape(title)}</title></circle>"
                )
    for value, text in ((high, ends[1]), (low, ends[0])):
        parts.append(f'<text x="{LEFT - 5:g}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    parts.append(f'<text x="{LEFT:g}" y="{bottom + 14:g}">0</text>')
    parts.append(f'<text x="{LEFT + WIDTH:g}" y="{bottom + 14:g}" text-anchor="end">{last:,} tokens</text></svg>')
    return Markup("".join(parts))
