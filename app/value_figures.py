"""The histogram of a value without rails, as SVG made here; imports no torch.

Its bins are two an octave on either side of zero (`legible_core.naming.bins`), drawn equally wide: the axis is that of
the value's size in octaves, with the sign kept. Bars below zero are darker.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from legible_core.naming.plain import Bin

WIDTH, HEIGHT = 440, 72
TICKS = 7


def signed_histogram(bins: Sequence[Bin], label: str) -> Markup:
    """Bars of the bins' counts, the tallest to the top, each with its range and share in its title."""
    total = sum(part.count for part in bins) or 1
    peak = max((part.count for part in bins), default=0) or 1
    step = WIDTH / max(1, len(bins))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 28}" width="{WIDTH}" height="{HEIGHT + 28}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    for index, part in enumerate(bins):
        tall = part.count / peak * HEIGHT
        tone = "bar1" if part.stop is not None and part.stop <= 0 else "bar2"
        said = f"{range_of(part)}: {part.count:,} tokens, {share_of(part.count / total)}"
        parts.append(
            f'<rect class="{tone}" x="{index * step:.1f}" y="{12 + HEIGHT - tall:.1f}" '
            f'width="{max(1.0, step - 1):.1f}" height="{tall:.1f}"><title>{escape(said)}</title></rect>'
        )
    parts.append(f'<path class="line" d="M0 {HEIGHT + 12.5}H{WIDTH}"/>')
    for index in _ticks(bins):
        edge = bins[index].start
        x = index * step
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT + 26}" text-anchor="{anchor}">{number_of(edge)}</text>')
    parts.append(f'<text x="0" y="9">{escape(share_of(peak / total))} in the tallest</text>')
    return Markup("".join(parts) + "</svg>")


def range_of(part: Bin) -> str:
    """A bin in words."""
    if part.start is None:
        return f"under {number_of(part.stop)}"
    if part.stop is None:
        return f"{number_of(part.start)} and more"
    return f"{number_of(part.start)} to {number_of(part.stop)}"


def number_of(edge: float | None) -> str:
    """An edge of a bin: 0.0039, −0.75, 24."""
    return "" if edge is None else f"{edge:.3g}".replace("-", "−")


def share_of(share: float) -> str:
    """A share as per cent with two digits that count: 12 %, 0.031 %."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _ticks(bins: Sequence[Bin]) -> list[int]:
    """The bins at whose start a number stands: evenly spread ones, as far as they have a start."""
    every = max(1, -(-len(bins) // TICKS))
    return [index for index in range(0, len(bins), every) if bins[index].start is not None]
