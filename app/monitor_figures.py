"""A monitor's figure: how many of the tokens were hits, over the time in which they were read; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 96
BUCKETS = 48


@dataclass(frozen=True, slots=True)
class Bucket:
    """Blocks that were read one after the other: from and until when (seconds since 1970), and what they held."""

    start: float
    end: float
    tokens: int
    hits: int

    @property
    def rate(self) -> float:
        """Hits per token."""
        return self.hits / self.tokens if self.tokens else 0.0

    @property
    def began(self) -> str:
        return _moment(self.start)

    @property
    def ended(self) -> str:
        return _moment(self.end)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def buckets(blocks: Sequence[tuple[float, int, int]]) -> tuple[Bucket, ...]:
    """At most `BUCKETS` of about as many blocks each, in the order of time, from (time, tokens, hits) of each block."""
    blocks = sorted(blocks, key=lambda block: block[0])
    size = max(1, -(-len(blocks) // BUCKETS))
    made = []
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        made.append(Bucket(part[0][0], part[-1][0], sum(b[1] for b in part), sum(b[2] for b in part)))
    return tuple(made)


def rate_bars(found: Sequence[Bucket]) -> Markup:
    """A bar for each bucket, the tallest to the top; the number stands there, and the table below has them all."""
    peak = max((bucket.rate for bucket in found), default=0.0)
    step = WIDTH / max(1, len(found))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 16}" width="{WIDTH}" '
        f'height="{HEIGHT + 16}" role="img" aria-label="{escape("Share of tokens that were hits, over time")}">'
    ]
    for index, bucket in enumerate(found):
        tall = HEIGHT * bucket.rate / peak * 0.86 if peak else 0.0
        parts.append(
            f'<rect class="bar1" x="{index * step:.1f}" y="{HEIGHT - tall:.1f}" width="{max(1.0, step - 1):.1f}" '
            f'height="{tall:.1f}"><title>{bucket.hits:,} of {bucket.tokens:,} tokens</title></rect>'
        )
    parts.append(f'<path class="line" d="M0 {HEIGHT}.5H{WIDTH}"/><text x="0" y="{HEIGHT + 13}">first</text>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 13}" text-anchor="end">last</text>')
    said = f"{100 * peak:.2g}" if peak < 0.1 else f"{100 * peak:.0f}"  # of 100 %, two digits would be 1e+02
    parts.append(f'<text x="0" y="10">{said} % at the tallest</text></svg>')
    return Markup("".join(parts))
