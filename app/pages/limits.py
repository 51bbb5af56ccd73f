"""What a reading's panel says of its unit by construction, from the reading itself: no worker is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from app.pages.panel import Limits, Panel
from app.urls import Urls
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.intervals import Direction, directions, reach, tokens_until
from legible_core.reading import Contributor, Summary
from legible_core.units import BOUNDED, Component, Unit, parse, parse_place

REACHES = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def with_limits(
    panel: Panel, c: Contributor, summary: Summary, config: ModelConfig | None, urls: Urls, slug: str
) -> Panel:
    """The panel with the bounds of its unit; as it is for heads, units without rails and units that an edit changes.

    The slope is the term over the activation, so a unit that is exactly 0 here has none to show (its page has).
    """
    unit = parse(c.id) if c.kind in BOUNDED else None
    if not isinstance(unit, Unit) or config is None or any(_touches(edit, unit) for edit in summary.edits):
        return panel
    href = urls.bounds(
        slug, summary.digest, unit, position=summary.position, target=summary.target.id,
        contrast=None if summary.contrast is None else summary.contrast.id,
        relative_to=summary.relative_to if summary.relative_to == "mean" else None,
    )  # fmt: skip
    write = ""
    if c.activation:
        # A term is the product of activation and slope, each rounded in float64 alone.
        slope = c.value / c.activation
        write = between({"low": min(0.0, slope), "high": max(0.0, slope)})
    against = "" if summary.contrast is None else f" less {summary.contrast.display}"
    against = " less the vocabulary's mean" if summary.relative_to == "mean" else against
    decay = c.decay
    return replace(
        panel,
        limits=Limits(
            write=write,
            token=f"{summary.target.display}{against}",
            order=order_said(directions(config, unit)),
            reach="" if decay is None else reach_said(c.kind, decay),
            href=href,
        ),
    )


def between(ends: dict[str, Any], digits: int = 3) -> str:
    """−0.187 and +0.001: both ends as text, rounded outwards, so that what is shown is a bound as well."""
    step = 10.0**digits
    low, high = math.floor(ends["low"] * step) / step, math.ceil(ends["high"] * step) / step
    return " and ".join("0" if end == 0.0 else f"{end:+.{digits}f}".replace("-", "−") for end in (low, high))


def order_said(order: tuple[tuple[Component, Direction], ...]) -> str:
    """`rises with A, falls with B`."""
    names = [(str(operand).rpartition(".")[2], way) for operand, way in order]
    if len({way for _, way in names}) == 1 and len(names) > 1:
        return f"{'rises' if names[0][1] > 0 else 'falls'} with {' and '.join(name for name, _ in names)}"
    said = {"m": "every m, past and present"}
    return ", ".join(f"{'rises' if way > 0 else 'falls'} with {_part(name, said)}" for name, way in names)


def reach_said(kind: str, decay: float) -> str:
    """How far back a changed m can still matter."""
    end = tokens_until(kind, decay)
    if end is None:
        return "a change of m never fades"
    return f"a change of m moves it by at most {reach(kind, decay, 1):.2f} a token later, by under 0.01 from {end} on"


def _part(name: str, said: dict[str, str]) -> str:
    return said.get(name, name if name in ("A", "B") else "its pre-activation")


def _touches(edit: dict[str, Any], unit: Unit) -> bool:
    """Whether an edit (in canonical form) lies in the unit's layer, where it may change what the unit is."""
    try:
        return getattr(parse_place(str(edit.get("component"))), "layer", None) == unit.layer
    except LegibleError:
        return True
