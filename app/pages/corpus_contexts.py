"""The contexts that a scan kept of an operand or unit, as shaded strips: where it is strongest, and some at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.figures import attention_levels
from app.pages.contexts import Shaded
from app.pages.view import short
from legible_core.errors import LegibleError
from legible_core.naming.contexts import FILE, Contexts
from legible_core.registry import Checkpoint
from legible_core.units import Component

SHOWN = {"strongest": 4, "lowest": 4, "random": 2}


@dataclass(frozen=True, slots=True)
class Strip:
    """One context: its tokens shaded by the component's value, the token it was chosen for marked.

    place: its index among the component's contexts.
    """

    tokens: tuple[Shaded, ...]
    peak: float
    chosen: str
    place: int


@dataclass(frozen=True, slots=True)
class Strips:
    """The contexts of one component, all from `source`: a corpus file, or sampled by the checkpoint itself."""

    id: str
    source: str
    strips: tuple[Strip, ...]


def contexts_of(checkpoint: Checkpoint) -> Contexts | None:
    """The contexts beside a checkpoint; None where a scan left none, or where they cannot be used."""
    try:
        stamp = (checkpoint.path / FILE).stat().st_mtime_ns
        return _load(checkpoint.path, checkpoint.hash, stamp)
    except (OSError, LegibleError):
        return None


@lru_cache(maxsize=4)
def _load(path: Path, checkpoint_hash: str, _stamp: int) -> Contexts | None:
    return Contexts.load(path, checkpoint_hash=checkpoint_hash)


def strips_of(contexts: Contexts | None, component: Component, *, bounded: bool = True) -> Strips | None:
    """The first contexts of each sort; None where there are none. `bounded` values are shaded in fifths of [0, 1]."""
    if contexts is None:
        return None
    try:
        found = contexts.contexts_of(component)
    except LegibleError:
        return None
    kept = [
        each for chosen, count in SHOWN.items()
        for each in [(place, c) for place, c in enumerate(found) if c.chosen == chosen][:count]
    ]  # fmt: skip
    if not kept:
        return None
    strips = []
    for place, context in kept:
        values = context.values
        sign = -1.0 if context.chosen == "lowest" else 1.0  # there, the more negative the darker
        shades = (
            [min(4, int(v * 5)) for v in values] if bounded else attention_levels([max(0.0, sign * v) for v in values])
        )
        tokens = tuple(
            Shaded(display, max(0, shade), short(value), index == context.at)
            for index, (display, value, shade) in enumerate(zip(context.tokens, values, shades, strict=True))
        )
        strips.append(Strip(tokens, context.peak, context.chosen, place))
    return Strips(str(component), contexts.source.said, tuple(strips))
