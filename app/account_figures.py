"""The accounting's two figures as SVG: the one-hop set as a waterfall, and the whole sum going up and coming down.

Numbers are logits. Both figures have their table on the page; geometry and classes are those of `app.figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from app.figures import signed

HEIGHT, TOP, LEFT = 168, 14, 44
BARS = 24
BAR = 17


@dataclass(frozen=True, slots=True)
class Step:
    """A bar of the waterfall: from where the sum stood, by `value`; `href` where it leads somewhere."""

    name: str
    value: float
    href: str = ""


def waterfall(steps: Sequence[Step], net: float, bar: float) -> Markup:
    """One bar a component, each beginning where the last ended; lines at the bar (in logits) and at the net.

    The steps must add up to the net.
    """
    running, tops = 0.0, [0.0, net, bar]
    for step in steps:
        running += step.value
        tops.append(running)
    y = _scale(min(tops), max(tops))
    width = LEFT + BAR * len(steps) + 64
    parts = [_open(width, "The one-hop set, term by term, and what all other components add up to")]
    parts.append(_level(y(0.0), width, "0"))
    # A label that would lie on the other one is left out; the caption has both numbers.
    if abs(y(net) - y(bar)) >= 11:
        parts.append(_level(y(bar), width, "90 %"))
    parts.append(_level(y(net), width, ""))
    end = LEFT + BAR * len(steps)
    parts.append(f'<text x="{end:g}" y="{y(net) - 3:.1f}">net {signed(net)}</text>')
    running = 0.0
    for index, step in enumerate(steps):
        start, running = running, running + step.value
        top, bottom = min(y(start), y(running)), max(y(start), y(running))
        said = f"{step.name} {signed(step.value)}, together {signed(running)}"
        shape = (
            f'<rect class="{"up" if step.value >= 0 else "down"}" x="{LEFT + BAR * index:g}" y="{top:.1f}" '
            f'width="{BAR - 4}" height="{max(1.0, bottom - top):.1f}"><title>{escape(said)}</title></rect>'
        )
        link = f'<a href="{escape(step.href)}" aria-label="{escape(said)}">{shape}</a>'
        parts.append(link if step.href else shape)
    return Markup("".join(parts) + "</svg>")


def mountain(curve: Sequence[tuple[int, float]], n90: int | None, net: float) -> Markup:
    """The signed sum of the k largest terms over k: up to the peak, where the positive terms end, and down to the net.

    The axis is by square root from both ends, so that single components are seen where the sum begins and where it
    ends.
    """
    peak = max(curve, key=lambda point: point[1])
    end = curve[-1][0]
    half, room = 300.0, 92
    y = _scale(min(0.0, net), peak[1])

    def x(count: float) -> float:
        if count <= peak[0]:
            return LEFT + half * (count / peak[0]) ** 0.5 if peak[0] else LEFT
        return LEFT + 2 * half - half * ((end - count) / max(1, end - peak[0])) ** 0.5

    width = LEFT + 2 * half + room
    parts = [_open(width, f"The sum of the largest terms: up to {signed(peak[1])} and down to {signed(net)}")]
    parts += [_level(y(0.0), width - room, "0"), _level(y(net), width - room, "")]
    path = "M" + "L".join(f"{x(count):.1f} {y(total):.1f}" for count, total in curve)
    parts.append(f'<path class="curve" d="{path}"/>')
    parts.append(f'<text x="{x(peak[0]):.0f}" y="{y(peak[1]) - 4:.0f}" text-anchor="middle">')
    parts.append(f"{signed(peak[1], 1)} after {peak[0]:,}</text>")
    parts.append(f'<text x="{x(end) + 4:.0f}" y="{y(net) + 4:.0f}">net {signed(net)}</text>')
    if n90 is not None:
        parts.append(f'<path class="line" d="M{x(n90):.1f} {TOP}V{HEIGHT}"/>')
        parts.append(f'<text x="{x(n90) + 4:.0f}" y="{TOP + 8}">n90 = {n90:,}</text>')
    for count, anchor in ((0, "start"), (peak[0], "middle"), (end, "end")):
        parts.append(f'<text x="{x(count):.0f}" y="{HEIGHT + 13}" text-anchor="{anchor}">{count:,}</text>')
    return Markup("".join(parts) + "</svg>")


def _scale(low: float, high: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: TOP + (HEIGHT - TOP) * (high - value) / span


def _level(y: float, width: float, label: str) -> str:
    line = f'<path class="line" d="M{LEFT} {y:.1f}H{width:g}"/>'
    return line + (f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>' if label else "")


def _open(width: float, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {HEIGHT + 18}" width="{width:g}" '
        f'height="{HEIGHT + 18}" role="group" aria-label="{escape(label)}">'
    )
