"""The accounting of a corpus as SVG: predictions against the model's confidence, and sums that climb member by member.

Both figures have their table on the page, and their numbers as CSV and JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 34


@dataclass(frozen=True, slots=True)
class Middle:
    """A median with its quartiles, at x."""

    x: float
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """A line of medians, and single points behind it. `second`: drawn in the quieter tone, dashed."""

    name: str
    middles: Sequence[Middle]
    points: Sequence[tuple[float, float]] = ()
    second: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """From low to high, by logarithm where `log`; ticks are values with what is written at them."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        low, high, value = (
            (math.log(v) if self.log else v) for v in (self.low, self.high, min(max(value, self.low), self.high))
        )
        return (value - low) / ((high - low) or 1.0)


def linear(title: str, values: Sequence[float], digits: int = 0) -> Axis:
    """An axis from 0, or from below it, to the largest value, with round ticks."""
    low, high = min(0.0, *values), max(*values, 1e-9)
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [(step * k, _text(step * k, digits if step >= 1 else max(digits, -math.floor(math.log10(step)))))
             for k in range(first, last + 1)]  # fmt: skip
    return Axis(title, first * step, last * step, ticks)


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """An axis of counts, 1 or more, with ticks at 1, 2 and 5 times the powers of ten, or at the powers alone."""
    low, high = max(1.0, min(values)), max(max(values), 2.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [float(k * 10**p) for p in powers for k in (1, 2, 5)]
    first = max(tick for tick in fine if tick <= low)
    last = min(tick for tick in fine if tick >= high)
    kept = [tick for tick in fine if first <= tick <= last]
    if len(kept) > 7:
        kept = [tick for tick in kept if math.log10(tick).is_integer()]
    return Axis(title, first, last, [(tick, f"{tick:,.0f}") for tick in kept], log=True)


def shares(title: str) -> Axis:
    """Probabilities, 0 to 100 %."""
    return Axis(title, 0.0, 1.0, [(k / 4, f"{25 * k} %") for k in range(5)])


def plot(series: Sequence[Series], x: Axis, y: Axis, label: str) -> Markup:
    """Points, then medians with their quartiles; `label` is what the figure says to who does not see it."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(a: float, b: float) -> tuple[float, float]:
        return LEFT + wide * x.at(a), TOP + high * (1 - y.at(b))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(label)}">'
    ]
    for value, text in y.ticks:
        level = place(x.low, value)[1]
        parts.append(f'<path class="line" d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{level + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        parts.append(f'<text x="{place(value, y.low)[0]:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">')
        parts.append(f"{escape(text)}</text>")
    parts.append(f'<text x="{LEFT + wide / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x.title)}</text>')
    parts.append(f'<text x="2" y="11">{escape(y.title)}</text>')
    for each in series:
        tone = " second" if each.second else ""
        if each.points:
            dots = "".join("M{:.1f} {:.1f}h0".format(*place(*point)) for point in each.points)
            parts.append(f'<path class="dots{tone}" d="{dots}"/>')
    for each in series:
        tone = " second" if each.second else ""
        spans = "".join(
            f"M{place(m.x, m.low)[0]:.1f} {place(m.x, m.low)[1]:.1f}V{place(m.x, m.high)[1]:.1f}" for m in each.middles
        )
        line = "L".join("{:.1f} {:.1f}".format(*place(m.x, m.median)) for m in each.middles)
        if line:
            parts.append(f'<path class="curve thin{tone}" d="{spans}"/><path class="curve{tone}" d="M{line}"/>')
    parts.append(_legend(series))
    return Markup("".join(parts) + "</svg>")


def _legend(series: Sequence[Series]) -> str:
    """What each line is, at the top right."""
    parts, end = [], float(WIDTH - RIGHT)
    for each in reversed(series):
        begin = end - 6.2 * len(each.name) - 22
        tone = " second" if each.second else ""
        parts.append(f'<path class="curve{tone}" d="M{begin:.0f} 7h16"/>')
        parts.append(f'<text x="{begin + 20:.0f}" y="11">{escape(each.name)}</text>')
        end = begin - 12
    return "".join(parts) if len(series) > 1 else ""


def _text(value: float, digits: int) -> str:
    text = f"{abs(value):,.{digits}f}"
    return f"−{text}" if value < 0 and float(text.replace(",", "")) else text


__all__ = ["Axis", "Middle", "Series", "linear", "logarithmic", "plot", "shares"]
