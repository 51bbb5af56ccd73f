"""What circuits with a carried condition came to: the best of every pair, by κ, by distance, within budgets of loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from legible_core.editing.carried import ABOVE, DISTANCES, Carried
from legible_core.editing.install import LEAST_ELSEWHERE, MAX_COST, TOP_RANK, Pair
from legible_core.editing.installed import median
from legible_core.editing.measure import budgets
from legible_core.editing.results import Experiment, table
from legible_core.naming.tables import Table

COLUMNS = [
    "A", "B", "head", "κ", "strength", "β", "gathered", "std apart", "fires after", "before", "B after A, before",
    "B after A", "B before A, before", "B before A", "separation", "nats",
]  # fmt: skip


def experiment(
    made: Sequence[Carried], command: str, settings: dict[str, Any], where: str, show: Callable[[int], str]
) -> Experiment:
    """The tables; "best" is the best rank under 10 % of held-out loss, and of all where nothing is so cheap."""
    chosen = best(made)
    rows = []
    for one in chosen:
        names = [show(one.pair[0]), show(one.pair[1]), f"L{one.writer}.h{one.head}"]
        knobs = [one.kappa, one.strength, one.beta, one.gathered, one.apart, one.fires, one.rests]
        ranks = [one.before, one.rank, one.elsewhere_before, one.elsewhere, one.separation, one.cost]
        rows.append([*names, *knobs, *ranks])
    reached = [one for one in chosen if one.rank <= TOP_RANK and one.cost < MAX_COST * one.loss_before]
    local = sum(one.elsewhere >= LEAST_ELSEWHERE * one.elsewhere_before for one in reached)
    writer = made[0].writer
    return Experiment(
        "carried",
        f"{len(chosen)} {'named' if settings.get('named') else 'random'} pairs: a head of layer {writer} carries A to "
        f"later positions, the quietest unit of layer {writer + ABOVE} answers B there, {where}. {len(reached)} of "
        f"{len(chosen)} bring B into the top ten after A under 10 % of held-out loss; {local} of these do not promote "
        "B before A.",
        command,
        settings,
        {
            "pairs": len(chosen),
            "rank_before": median([one.before for one in chosen]),
            "rank": median([one.rank for one in chosen]),
            "elsewhere_before": median([one.elsewhere_before for one in chosen]),
            "elsewhere": median([one.elsewhere for one in chosen]),
            "separation": median([one.separation for one in chosen]),
            "nats": median([one.cost for one in chosen]),
            "apart": median([one.apart for one in chosen]),
            "reached": len(reached),
            "reached_local": local,
        },
        (
            table("carried", "Best rank of each pair under 10 % of held-out loss, else of all", COLUMNS, rows,
                  "After A: A stands earlier in the window and not here; before A: not yet. Gathered, and how many "
                  "standard deviations apart: what the head gathers after A less before it. Fires: the reader's mean "
                  "activation. Separation: B's rank before A over its rank after it."),
            by_kappa(made),
            by_distance(chosen),
            frontier(made),
            halves(made),
        ),
    )  # fmt: skip


def best(made: Sequence[Carried]) -> list[Carried]:
    """Of each pair the setting of the best rank among those under 10 % of held-out loss, else among all."""
    found = []
    for pair in _pairs(made):
        mine = [one for one in made if one.pair == pair]
        allowed = [one for one in mine if one.cost < MAX_COST * one.loss_before] or mine
        found.append(min(allowed, key=lambda one: (one.rank, one.cost)))
    return found


def by_kappa(made: Sequence[Carried]) -> Table:
    """One row a κ: medians over pairs of the best setting with it."""
    rows = []
    for kappa in sorted({one.kappa for one in made}):
        mine = best([one for one in made if one.kappa == kappa])
        names = ("gathered", "apart", "fires", "rests", "before", "rank", "elsewhere_before", "elsewhere")
        middle = [median([getattr(one, name) for one in mine]) for name in (*names, "separation", "cost")]
        rows.append([kappa, len(mine), *middle])
    columns = [
        "κ", "pairs", "gathered", "std apart", "fires after", "before", "B after A, before", "B after A",
        "B before A, before", "B before A", "separation", "nats",
    ]  # fmt: skip
    note = "κ is what the head's score rises by on A, in its own standard deviations; at 0 the attention is as trained."
    return table("carried-kappa", "By κ, the best setting of each pair", columns, rows, note)


def by_distance(chosen: Sequence[Carried]) -> Table:
    """One row a range of distances to the last A, of the best setting of every pair."""
    rows = []
    for place, low in enumerate(DISTANCES):
        high = DISTANCES[place + 1] - 1 if place + 1 < len(DISTANCES) else None
        named = f"{low} and more" if high is None else str(low) if high == low else f"{low} to {high}"
        known = [one.distances[place] for one in chosen if np.isfinite(one.distances[place]).all()]
        rows.append([named, len(known), *[median([some[column] for some in known]) for column in (2, 0, 1)]])
    columns = ["tokens since A", "pairs", "fires", "B's rank before the edit", "B's rank"]
    return table("carried-distance", "By distance to the last A, the best setting of each pair", columns, rows)


def frontier(made: Sequence[Carried]) -> Table:
    """For each budget the best rank after A, as trained and with any κ; where nothing fits a pair keeps its rank."""
    arms = {"as trained": [one for one in made if not one.kappa], "any κ": list(made)}
    rows = []
    for budget in budgets():
        row: list[Any] = [budget]
        for mine in arms.values():
            ranks = []
            for pair in _pairs(mine):
                of_pair = [one for one in mine if one.pair == pair]
                ranks.append(min([of_pair[0].before, *(one.rank for one in of_pair if one.cost <= budget)]))
            row.append(median(ranks))
        rows.append(row)
    title = "Best rank of B after A within a budget of held-out loss"
    return table("carried-frontier", title, ["nats at most", *arms], rows, "Medians over pairs.")


def halves(made: Sequence[Carried]) -> Table:
    """The halves alone, of the settings on which they were judged, by κ."""
    rows = []
    for kappa in sorted({one.kappa for one in made}):
        mine = [one for one in made if one.kappa == kappa and one.write_alone is not None]
        names = ("before", "write_alone", "reader_alone", "rank")
        rows.append([kappa, *[median([getattr(one, name) for one in mine]) for name in names]])
    columns = ["κ", "nothing", "the head alone", "the reader alone", "both"]
    return table("carried-halves", "B after A: the halves alone, at the largest strength and β", columns, rows)


def _pairs(made: Sequence[Carried]) -> list[Pair]:
    return list(dict.fromkeys(one.pair for one in made))
