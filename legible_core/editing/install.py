"""Install an association A → B that the model does not hold, in closed form, and count what it costs.

"Through the Looking Glass" section 4.2: the quietest unit of a layer gets a read row, the layer-native row of A (with
an off state, `site`), and a write column, β times the centred unembedding row of B over the unit's activation on the
key. Nothing is fitted, traced or optimised. The comparator (section 4.7, eq. 27) changes the whole down-projection:

    W ← W + β (U_B − Ū) (C⁻¹ k)ᵀ / (kᵀ C⁻¹ k),   k = mean hidden vector where A is the current token, C = E[h hᵀ]

so that a mean A writes β (U_B − Ū), as the unit does; with `identity` C is left out. Both are swept over β, and what is
compared is the frontier: the best rank of B where A occurs, for each budget of held-out loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.editing.measure import HeldOut, budgets, gathered, outcome, readout, states
from legible_core.editing.native import NativeTable
from legible_core.editing.results import Experiment, table
from legible_core.editing.site import QUANTILE, ReadRow, Site, SiteKind, activity, quietest, read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.model.transformer import Transformer
from legible_core.naming.tables import Table
from legible_core.units import Down

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# A counts as a key when it occurs this often in either text, and on no larger share of it: an edit pays for every
# position that it overrides, so a frequent A would measure its frequency.
LEAST, MOST = 8, 0.01
TOP_RANK, LEAST_ELSEWHERE, MAX_COST = 10, 0.9, 0.10
RIDGE = 1e-3
RANKS = ("B at A before", "B at A", "elsewhere before", "elsewhere")

Pair = tuple[int, int]
Edits = Callable[[float], list[Edit]]


@dataclass(frozen=True)
class Trial:
    """One edit. Ranks of the target are medians, where the key is the current token and elsewhere; loss in nats.

    edits: what was done to the model, which `save_child` can write into weights.
    """

    pair: Pair
    layer: int
    beta: float
    before: float
    rank: float
    elsewhere_before: float
    elsewhere: float
    loss_before: float
    loss: float
    edits: tuple[Edit, ...] = field(default=(), repr=False, compare=False)

    @property
    def cost(self) -> float:
        """Held-out loss that the edit costs, nats a token."""
        return self.loss - self.loss_before

    @property
    def local(self) -> bool:
        """Whether B is not promoted elsewhere: its rank there stays above 0.9 times what it was."""
        return self.elsewhere >= LEAST_ELSEWHERE * self.elsewhere_before

    @property
    def installed(self) -> bool:
        """The paper's rule: in the top ten where A occurs, not promoted elsewhere, under 10 % of held-out loss."""
        return self.rank <= TOP_RANK and self.local and self.cost < MAX_COST * self.loss_before


@dataclass(frozen=True, eq=False)
class Bench:
    """What the experiments share: the model, a text to measure keys on, another to judge on, the layer-native table.

    table: None where the experiment needs none.
    """

    model: Transformer
    calibration: HeldOut
    text: HeldOut
    table: NativeTable | None = None

    @property
    def native(self) -> NativeTable:
        """The layer-native table; raises `LegibleError` where there is none."""
        if self.table is None:
            raise LegibleError(
                "This experiment needs a layer-native table; `legible native` makes one.", code="no_table"
            )
        return self.table

    def pairs(self, count: int, seed: int) -> list[Pair]:
        """Random (A, B) of the table's candidates, A frequent enough in both texts and under 1 % of either.

        Raises `LegibleError` when fewer than two tokens can be keys.
        """
        generator = np.random.default_rng(seed)
        keys = [int(token) for token in self.native.tokens if self._key(int(token))]
        if len(keys) < 2:
            raise LegibleError(
                f"Only {len(keys)} candidates occur {LEAST} times or more in both texts; give more windows or tokens.",
                code="corpus_too_short",
            )
        chosen = generator.permutation(keys)[:count]
        others = [int(generator.choice(self.native.tokens[self.native.tokens != key])) for key in chosen]
        return [(int(key), other) for key, other in zip(chosen, others, strict=True)]

    def _key(self, token: int) -> bool:
        counts = [int((text.ids == token).sum()) for text in (self.calibration, self.text)]
        sizes = (self.calibration.tokens, self.text.tokens)
        return all(LEAST <= count <= MOST * size for count, size in zip(counts, sizes, strict=True))


def install(
    bench: Bench,
    pairs: Sequence[Pair],
    layers: Sequence[int],
    *,
    kind: SiteKind,
    betas: Sequence[float] = BETAS,
    quantile: float = QUANTILE,
) -> Iterator[Trial]:
    """Install each association into the quietest unit (or pair) of each layer, at every strength."""
    model = bench.model
    quiet = activity(model, bench.calibration.ids, layers)
    for layer in layers:
        entering = states(model, bench.calibration.ids, layer)
        site = quietest(model.config, layer, quiet[layer], kind)
        for pair in pairs:
            aimed = (bench.calibration.ids == pair[0]).flatten().to(entering.device)
            key = torch.from_numpy(bench.native.row(layer, pair[0])).to(entering.device)
            row = read_row(site.activation, key, entering, aimed, biased=model.config.linear_bias, quantile=quantile)
            value = readout(model, pair[1]) / row.on
            yield from _sweep(bench, pair, layer, partial(_written, site, row, value), betas)


def rank_one(
    bench: Bench,
    pairs: Sequence[Pair],
    layers: Sequence[int],
    *,
    betas: Sequence[float] = BETAS,
    identity: bool = False,
) -> Iterator[Trial]:
    """The comparator: each association as a rank-one update of each layer's down-projection."""
    model = bench.model
    for layer in layers:
        (hidden,) = gathered(model, bench.calibration.ids, lambda _layer, _z, values: values, [layer])
        covariance = None if identity else second_moment(hidden)
        for pair in pairs:
            aimed = (bench.calibration.ids == pair[0]).flatten().to(hidden.device)
            direction = update_row(hidden[aimed].mean(dim=0), covariance)
            value = readout(model, pair[1])
            yield from _sweep(bench, pair, layer, partial(_updated, layer, value, direction), betas)


def second_moment(hidden: Float[Tensor, "n f"]) -> Float[Tensor, "f f"]:
    """C = E[h hᵀ] in float64, with a thousandth of its mean diagonal added: units that never moved make it singular."""
    wide = hidden.double()
    moment = wide.T @ wide / len(wide)
    return moment + RIDGE * moment.diagonal().mean() * torch.eye(len(moment), dtype=moment.dtype, device=moment.device)


def update_row(key: Float[Tensor, " f"], covariance: Float[Tensor, "f f"] | None) -> Float[Tensor, " f"]:
    """C⁻¹k / (kᵀC⁻¹k): whatever is written along it comes out once where the hidden vector is k."""
    wide = key.double()
    spread = wide if covariance is None else torch.linalg.solve(covariance, wide)
    return (spread / (wide @ spread)).float()


def _written(site: Site, row: ReadRow, value: Float[Tensor, " d"], beta: float) -> list[Edit]:
    return [*site.read(row), *site.write(beta * value)]


def _updated(layer: int, value: Float[Tensor, " d"], row: Float[Tensor, " f"], beta: float) -> list[Edit]:
    return [Edit(Down(layer), "rank_one", 1.0, vector=Vector.of(torch.cat([beta * value, row]).tolist()))]


def _sweep(bench: Bench, pair: Pair, layer: int, edits: Edits, betas: Sequence[float]) -> Iterator[Trial]:
    where = bench.text.current(pair[0])
    before = outcome(bench.model, bench.text, pair[1])
    for beta in betas:
        made = edits(beta)
        after = outcome(bench.model, bench.text, pair[1], made)
        yield Trial(
            pair, layer, beta, before.rank(where), after.rank(where), before.rank(~where), after.rank(~where),
            before.loss, after.loss, tuple(made),
        )  # fmt: skip


# ---- what is told ----------------------------------------------------------------------------------------------------


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
        reached = [trial for trial in trials if trial.pair == pair and trial.rank <= TOP_RANK]
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


def by_strength(trials: Sequence[Trial], title: str) -> Table:
    """One row a β: medians over pairs and layers."""
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
    return table("strength", title, columns, rows, "Medians over pairs and layers; ranks from 1.", ("installed",))


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
    reached = cheapest(trials)
    pairs = list(dict.fromkeys(trial.pair for trial in trials))
    installed = {trial.pair for trial in trials if trial.installed}
    rows = []
    for pair in pairs:
        mine = [trial for trial in reached if trial.pair == pair]
        one = mine[0] if mine else min((t for t in trials if t.pair == pair), key=lambda trial: trial.rank)
        ranks = [one.before, one.rank, one.elsewhere_before, one.elsewhere]
        rows.append([show(pair[0]), show(pair[1]), one.layer, one.beta, *ranks, one.cost, pair in installed])
    columns = ["A", "B", "layer", "β", *RANKS, "nats", "installed"]
    summary = {
        arm: {
            "pairs": len({trial.pair for trial in made}),
            "edits": len(made),
            "installed_edits": float(np.mean([trial.installed for trial in made])),
            "installed_pairs": len({trial.pair for trial in made if trial.installed}),
            "reached_pairs": len(cheapest(made)),
            "nats_to_top_ten": float(np.median([t.cost for t in cheapest(made)])) if cheapest(made) else None,
            "elsewhere_ratio": float(np.median([t.elsewhere / t.elsewhere_before for t in cheapest(made)]))
            if cheapest(made)
            else None,
        }
        for arm, made in arms.items()
    }
    return Experiment(
        name,
        f"{len(pairs)} random pairs, layers {', '.join(str(n) for n in sorted({t.layer for t in trials}))}, {where}. "
        f"{len(installed)} of {len(pairs)} pairs count as installed at some setting.",
        command,
        settings,
        summary,
        (
            *(by_strength(made, f"By strength: {arm}") for arm, made in arms.items()),
            frontier(arms),
            table(
                "pairs",
                "Pair by pair: the cheapest edit that reaches the top ten, else the best rank",
                columns,
                rows,
                "Installed at some setting: top ten where A occurs, not promoted elsewhere (rank there at least 0.9 "
                "times what it was), under 10 % of held-out loss.",
            ),
        ),
    )
