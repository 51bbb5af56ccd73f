"""What installing associations came to: the cheapest edit of each pair, the frontier, the arms beside each other.

    best(trials, 0.01)          the median over pairs of the best rank of B within a budget of held-out loss
    cheapest(trials)            of each pair the edit that brings B into the top ten at the least loss
    experiment("install", {"plain unit": trials, "channel": others}, ...)

A pair is the unit of chance: intervals are over pairs, of shares Wilson's (Wilson 1927) and of medians the central 95 %
of medians of resampled pairs (the percentile bootstrap, seed fixed).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from legible_core.editing import install
from legible_core.editing.install import Pair, Trial
from legible_core.editing.measure import budgets
from legible_core.editing.results import Experiment, shown, table
from legible_core.errors import LegibleError
from legible_core.naming.tables import Table

RANKS = ("B at A before", "B at A", "elsewhere before", "elsewhere")
RESAMPLED, Z = 2000, 1.96


def best(trials: Sequence[Trial], budget: float, *, local: bool = False) -> float:
    """The median over pairs of the best rank that some layer and β reach within a budget of loss.

    A pair for which nothing is cheap enough keeps its rank. local: only edits that do not promote B elsewhere count.
    """
    found = []
    for pair in dict.fromkeys(trial.pair for trial in trials):
        mine = [trial for trial in trials if trial.pair == pair]
        allowed = [trial.rank for trial in mine if trial.cost <= budget and (trial.local or not local)]
        found.append(min([mine[0].before, *allowed]))
    return float(np.median(found)) if found else float("nan")


def cheapest(trials: Sequence[Trial]) -> list[Trial]:
    """For each pair the edit that brings B into the top ten at the least loss, where one does."""
    found = []
    for pair in dict.fromkeys(trial.pair for trial in trials):
        reached = [trial for trial in trials if trial.pair == pair and trial.rank <= install.TOP_RANK]
        if reached:
            found.append(min(reached, key=lambda trial: trial.cost))
    return found


def worth_saving(trials: Sequence[Trial]) -> Trial:
    """Of the edits that count as installed the one that costs least; raises `LegibleError` where none counts."""
    counting = [trial for trial in trials if trial.installed]
    if not counting:
        raise LegibleError(
            f"None of these {len(trials)} edits counts as installed, so no child was saved; try another --beta, "
            "--layer or --seed.",
            code="not_installed",
        )
    return min(counting, key=lambda trial: trial.cost)


def frontier(arms: Mapping[str, Sequence[Trial]]) -> Table:
    """Rank against nats, one row a budget, two columns an arm: any edit, and those that stay local."""
    columns = ["nats at most", *[f"{name}{end}" for name in arms for end in ("", ", local")]]
    rows = [
        [budget, *[best(trials, budget, local=local) for trials in arms.values() for local in (False, True)]]
        for budget in budgets()
    ]
    note = "Median over pairs of B's best rank where A occurs, over layers and β, within the budget."
    return table("frontier", "Best rank within a budget of held-out loss", columns, rows, note)


def by_strength(trials: Sequence[Trial], arm: str) -> Table:
    """One row a β: medians over pairs and layers."""
    title = f"By strength: {arm}"
    columns = ["β", "edits", *RANKS, "nats", "of the loss", "installed"]
    rows = []
    for beta in sorted({trial.beta for trial in trials}):
        mine = [trial for trial in trials if trial.beta == beta]
        medians = [
            float(np.median([getattr(trial, name) for trial in mine]))
            for name in ("before", "rank", "elsewhere_before", "elsewhere", "cost")
        ]
        share = round(100 * float(np.median([trial.cost / trial.loss_before for trial in mine])), 2) + 0.0
        installed = np.mean([trial.installed for trial in mine])
        rows.append([beta, len(mine), *medians, f"{share:.2f} %".replace("-", "−"), installed])
    note = "Medians over pairs and layers; ranks from 1."
    return table(f"strength-{arm.replace(' ', '-')}", title, columns, rows, note, ("installed",))


def arms_table(arms: Mapping[str, Sequence[Trial]]) -> Table:
    """One row an arm: how many pairs are installed, and what the cheapest edit into the top ten costs and spills."""
    columns = [
        "arm", "pairs", "installed", "installed, 95 %", "reach the top ten", "nats for it", "nats, 95 %", "elsewhere ×",
        "elsewhere, 95 %",
    ]  # fmt: skip
    rows = []
    for name, trials in arms.items():
        pairs = pairs_of(trials)
        done = sum(any(trial.installed for trial in trials if trial.pair == pair) for pair in pairs)
        reached = cheapest(trials)
        costs = [trial.cost for trial in reached]
        spill = [trial.elsewhere / trial.elsewhere_before for trial in reached]
        share = [done / len(pairs), _range(wilson(done, len(pairs)), share=True)]
        found = [median(costs), _range(median_interval(costs)), median(spill), _range(median_interval(spill))]
        rows.append([name, len(pairs), *share, len(reached), *found])
    note = (
        "Installed at some layer and β. Nats and elsewhere: medians over the pairs that reach the top ten, of the edit "
        "that does it at the least loss; elsewhere is B's rank there over what it was. Intervals are over pairs."
    )
    return table("arms", "The arms beside each other", columns, rows, note, ("installed",))


def pairs_of(trials: Sequence[Trial]) -> list[Pair]:
    """The pairs in their order."""
    return list(dict.fromkeys(trial.pair for trial in trials))


def median(values: Sequence[float]) -> float | None:
    """None of no values."""
    return float(np.median(values)) if len(values) else None


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)."""
    share, spread = count / total, Z * Z / total
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return tuple(min(1.0, max(0.0, (share + spread / 2 + sign * half) / (1 + spread))) for sign in (-1, 1))  # type: ignore[return-value]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The central 95 % of the medians of resampled values; None of fewer than five, of which it would say nothing."""
    if len(values) < 5:
        return None
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLED, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _range(ends: tuple[float, float] | None, share: bool = False) -> str:
    return "–" if ends is None else " to ".join(shown(float(end), share) for end in ends)


def experiment(
    name: str,
    arms: Mapping[str, Sequence[Trial]],
    command: str,
    settings: dict[str, Any],
    where: str,
    show: Callable[[int], str],
) -> Experiment:
    """The tables of one or several arms; the first is the experiment's own."""
    trials = next(iter(arms.values()))
    pairs = pairs_of(trials)
    installed = {trial.pair for trial in trials if trial.installed}
    summary = {
        arm: {
            "pairs": len(pairs_of(made)),
            "edits": len(made),
            "installed_edits": float(np.mean([trial.installed for trial in made])),
            "installed_pairs": len({trial.pair for trial in made if trial.installed}),
            "installed_interval": wilson(len({t.pair for t in made if t.installed}), len(pairs_of(made))),
            "reached_pairs": len(cheapest(made)),
            "nats_to_top_ten": median([t.cost for t in cheapest(made)]),
            "nats_interval": median_interval([t.cost for t in cheapest(made)]),
            "elsewhere_ratio": median([t.elsewhere / t.elsewhere_before for t in cheapest(made)]),
            "gathered": median([t.gathered for t in made if t.gathered is not None]),
        }
        for arm, made in arms.items()
    }
    drawn = "named" if settings.get("named") else "random"
    return Experiment(
        name,
        f"{len(pairs)} {drawn} pair{'s' * (len(pairs) != 1)}, layers "
        f"{', '.join(str(n) for n in sorted({t.layer for t in trials}))}, {where}. "
        f"{len(installed)} of {len(pairs)} pairs count as installed at some setting ({next(iter(arms))}).",
        command,
        settings,
        summary,
        (
            arms_table(arms),
            frontier(arms),
            *(by_strength(made, arm) for arm, made in arms.items()),
            *(pair_by_pair(made, arm, show) for arm, made in arms.items()),
        ),
    )


def pair_by_pair(trials: Sequence[Trial], arm: str, show: Callable[[int], str]) -> Table:
    """One row a pair: the cheapest edit that reaches the top ten, else the one of the best rank."""
    reached = {trial.pair: trial for trial in cheapest(trials)}
    installed = {trial.pair for trial in trials if trial.installed}
    gathers = any(trial.gathered is not None for trial in trials)
    rows: list[list[Any]] = []
    for pair in pairs_of(trials):
        one = reached.get(pair) or min((t for t in trials if t.pair == pair), key=lambda trial: trial.rank)
        ranks = [one.before, one.rank, one.elsewhere_before, one.elsewhere]
        gathered = [one.gathered] if gathers else []
        rows.append([show(pair[0]), show(pair[1]), one.where, *gathered, one.beta, *ranks, one.cost, pair in installed])
    note = (
        "Installed at some setting: top ten where A occurs, not promoted elsewhere (rank there at least 0.9 times what "
        "it was), under 10 % of held-out loss."
    )
    if gathers:
        note += " Gathered: what the head gathers where A is current, less elsewhere."
    columns = ["A", "B", "where", *(["gathered"] if gathers else []), "β", *RANKS, "nats", "installed"]
    title = f"Pair by pair: the cheapest edit that reaches the top ten, else the best rank ({arm})"
    return table(f"pairs-{arm.replace(' ', '-')}", title, columns, rows, note)
