"""The accounting of one prediction of an engine: counts, the one-hop set, and the waterfall's points.

    document(engine, request)       # what the job "account", the page's JSON and `legible account` give

Whatever the request is relative to, the accounting is relative to the vocabulary's mean, so that a random token carries
nothing ("Through the Looking Glass" section 2.2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from legible_core.accounting.counts import Account, Layout, account, flat, shares

if TYPE_CHECKING:
    from legible_core.pipeline import Engine
    from legible_core.reading import ReadingRequest

SCHEMA = 1
MEMBERS = 200  # members of the one-hop set in the document, and as many opposing components
POINTS = 160


def document(engine: Engine, request: ReadingRequest, members: int = MEMBERS) -> dict[str, Any]:
    """The accounting as JSON: prediction, counts per channel and per head, members, opponents, curve, shares.

    Raises what `Engine.solve` raises. `channels` and `heads` have the counts with the channel, or the head, as the
    unit of attention. `members` are the one-hop set's channels and units, largest first, at most `members`, and
    `left_out` says how many more; `opposing` are the strongest negative terms, `curve` the sum. The same with heads
    whole is in `heads`, its opponents as `against`.
    """
    solved = engine.solve(replace(request, contrast=None, relative_to="mean"))
    terms, config = solved.terms, engine.config
    channels = _Side(flat(terms.channels, terms.units), Layout.of(config), members)
    heads = _Side(flat(terms.heads, terms.units), Layout.of(config, by_head=True), members)
    probabilities = solved.logits.double().softmax(-1)
    target = solved.question.target
    return {
        "schema": SCHEMA,
        "kind": "account",
        "checkpoint": {"hash": engine.checkpoint.hash, "slug": engine.checkpoint.slug},
        "digest": request.digest,
        "dtype": engine.dtype,
        "position": solved.position,
        "tokens": [dict(engine.token(i)) for i in request.ids],
        "target": {
            **dict(engine.token(target)),
            "probability": float(probabilities[target]),
            "rank": int((solved.logits > solved.logits[target]).sum()) + 1,
        },
        "value": terms.value,
        "sum": terms.total,
        "residual": terms.residual,
        "tolerance": terms.tolerance,
        "scale": terms.scale,
        "floor": [{"id": name, "value": value} for name, value in terms.floor.items()],
        "channels": channels.counts,
        "heads": {
            **heads.counts, "members": heads.members, "left_out": heads.left_out, "against": heads.against,
            "curve": heads.curve,
        },
        "members": channels.members,
        "left_out": channels.left_out,
        "opposing": channels.against,
        "curve": channels.curve,
    }  # fmt: skip


class _Side:
    """The accounting under one choice of what a component of attention is."""

    def __init__(self, values: NDArray[np.float64], layout: Layout, members: int) -> None:
        found = account(values)
        shown = found.members[:members]
        against = np.flatnonzero(values < 0)
        against = against[np.argsort(values[against], kind="stable")][: max(1, members // 10)]
        self.counts = {**found.to_json(), "shares": shares(values, found.members, layout)}
        self.members = _rows(values, shown, layout, found)
        self.left_out = len(found.members) - len(shown)
        self.against = _rows(values, against, layout, found)
        self.curve = curve(values)


def _rows(
    values: NDArray[np.float64], places: NDArray[np.int64], layout: Layout, found: Account
) -> list[dict[str, Any]]:
    """Components with their terms, their shares of the net, and the running sum after each."""
    rising = np.cumsum(values[places])
    return [
        {
            "id": str(layout.component(int(place))),
            "value": float(values[place]),
            "share": float(values[place]) / found.net if found.net > 0 else None,
            "running": float(so_far),
        }
        for place, so_far in zip(places, rising, strict=True)
    ]


def curve(values: NDArray[np.float64], points: int = POINTS) -> list[tuple[int, float]]:
    """(how many of the largest terms, their signed sum) at up to `points` counts: from 0 up to the peak, down to the
    net.

    The counts lie evenly on a square root over the way up and, mirrored, over the way down, so that both ends, where
    single components matter, are drawn finely; the peak and the end are always among them.
    """
    falling = np.sort(values)[::-1]
    rising = np.concatenate([[0.0], np.cumsum(falling)])
    peak, end = int((falling > 0).sum()), len(falling)
    steps = np.linspace(0.0, 1.0, points // 2) ** 2
    counts = np.unique(np.concatenate([np.rint(peak * steps), np.rint(end - (end - peak) * steps)]).astype(np.int64))
    return [(int(count), float(rising[count])) for count in counts]
