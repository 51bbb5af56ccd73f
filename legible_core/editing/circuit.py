"""A circuit across two layers that the model does not hold: a head says where, a unit two layers up says what.

"Through the Looking Glass" section 4.5: at layer h a head is made to fire where A is the current token and to write a
private, random direction; at layer r = h + 2 the quietest unit (or pair) is made to read what arrives there and to
write the centred unembedding row of B. Only the stream between them is the model's.

The head. What A looks like to the attention of layer h is the mean of its normed input where A is the current token,
less the mean elsewhere; that row, with an off state (`site`), is put into the quietest value channel (of a Boolean
head, the quietest pair) of every head at once, and the head that gathers it most sharply, A against elsewhere, is kept.

The reader's row is measured at its destination and not carried there (eq. 23): the change of the reader's normed input
when the head's edit is made, mean over positions of A, less the mean over the others. How many positions of A it was
measured on is varied, because that estimate is what limits such a circuit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from legible_core.config import ModelConfig
from legible_core.editing.channels import Heads
from legible_core.editing.install import MAX_COST, TOP_RANK, Bench, Pair
from legible_core.editing.measure import budgets, outcome, readout, reads
from legible_core.editing.results import Experiment, table
from legible_core.editing.site import QUANTILE, SiteKind, activity, quietest, read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.model.transformer import Transformer

ABOVE = 2
STRENGTHS = (0.25, 1.0)
BETAS = (4.0, 8.0, 16.0)
ALL = 0  # positions of A that the reader's row is measured on: all there are


@dataclass(frozen=True)
class Wiring:
    """A head's installed half: its edits, which head, and how sharply it gathers (mean value at A less elsewhere)."""

    edits: tuple[Edit, ...]
    head: int
    contrast: float


@dataclass(frozen=True)
class Circuit:
    """One setting. strength: norm of what arrives where A is, as a share of the median stream's; positions: of A that
    the reader was measured on. Ranks of B are medians where A is current, and elsewhere; `alone` are the halves alone.
    """

    pair: Pair
    writer: int
    head: int
    contrast: float
    strength: float
    beta: float
    positions: int
    before: float
    rank: float
    elsewhere_before: float
    elsewhere: float
    write_alone: float | None
    reader_alone: float | None
    loss_before: float
    loss: float

    @property
    def cost(self) -> float:
        return self.loss - self.loss_before

    @property
    def separation(self) -> float:
        """How many times better B ranks where A is than elsewhere."""
        return self.elsewhere / self.rank


def writer_of(config: ModelConfig, given: int | None = None) -> int:
    """The layer of the head: the one given, else three below the top, so that its reader is one below the top.

    Raises `LegibleError` when that layer does not exist, or the layer of its reader.
    """
    if config.n_layers <= ABOVE:
        raise LegibleError(
            f"A head needs a reader {ABOVE} layers above it; this checkpoint has {config.n_layers} layers in all.",
            code="bad_options",
        )
    writer = max(0, config.n_layers - 2 - ABOVE) if given is None else given
    if not 0 <= writer < config.n_layers - ABOVE:
        raise LegibleError(
            f"A head in layer {writer} needs a reader in layer {writer + ABOVE}; this checkpoint's last layer is "
            f"{config.n_layers - 1}.",
            code="bad_options",
        )
    return writer


@torch.no_grad()
def wire_head(bench: Bench, layer: int, token: int, generator: torch.Generator) -> Callable[[float], Wiring]:
    """A head of `layer` that fires where `token` is current; give the function a strength for the private write.

    Raises `LegibleError` when the text lacks the token.
    """
    model, ids = bench.model, bench.calibration.ids
    heads = Heads.of(model, ids, layer)
    aimed = (ids == token).flatten().to(heads.entering.device)
    put = heads.sharpest(conditional(heads.entering, aimed), aimed)
    private = torch.randn(model.config.d_model, generator=generator)
    private = private / private.norm()
    size = median_stream(model, ids, layer)

    def wiring(strength: float) -> Wiring:
        edits = [*put.site.read(put.row), *put.site.write(strength * size / put.unit_write * private)]
        return Wiring(tuple(edits), put.head, put.contrast)

    return wiring


def median_stream(model: Transformer, windows: Int[Tensor, "w t"], layer: int) -> float:
    """The median length of the stream that enters a layer's feed-forward, over a few windows."""
    return float(torch.cat([model.trace(w).layers[layer].feed_forward_in for w in windows[:4]]).norm(dim=-1).median())


def conditional(values: Float[Tensor, "n d"], aimed: Bool[Tensor, " n"], count: int = ALL) -> Float[Tensor, " d"]:
    """Mean over (the first `count`) aimed positions, less the mean over the others; raises where there are none."""
    places = aimed.nonzero()[:, 0]
    if not len(places) or bool(aimed.all()):
        raise LegibleError(
            "The key cannot be calibrated: the text needs positions where it occurs and others where it does not.",
            code="corpus_too_short",
        )
    return values[places[: count or None]].mean(dim=0) - values[~aimed].mean(dim=0)


@torch.no_grad()
def circuits(
    bench: Bench,
    pairs: Sequence[Pair],
    writer: int,
    *,
    kind: SiteKind,
    strengths: Sequence[float] = STRENGTHS,
    betas: Sequence[float] = BETAS,
    positions: Sequence[int] = (ALL,),
    quantile: float = QUANTILE,
    seed: int = 0,
    between: Callable[[int], None] | None = None,
) -> list[Circuit]:
    """Build each circuit with its head in layer `writer`, over every strength, β and number of measured positions.

    The halves alone are judged at the largest strength and β. Raises `LegibleError` when the reader's layer would not
    exist.
    """
    model, ids, text = bench.model, bench.calibration.ids, bench.text
    reader = writer_of(model.config, writer) + ABOVE
    site = quietest(model.config, reader, activity(model, ids, [reader])[reader], kind)
    clean = reads(model, bench.calibration, reader)
    found: list[Circuit] = []
    for token, target in pairs:
        aimed = (ids == token).flatten().to(clean.device)
        wire = wire_head(bench, writer, token, torch.Generator().manual_seed(seed + token))
        where = text.current(token)
        before = outcome(model, text, target)
        for strength in strengths:
            wiring = wire(strength)
            written = reads(model, bench.calibration, reader, wiring.edits)
            for count in positions:
                key = conditional(written - clean, aimed, count)
                row = read_row(site.activation, key, written, aimed, biased=model.config.linear_bias, quantile=quantile)
                for beta in betas:
                    answer = [*site.read(row), *site.write(beta / row.on * readout(model, target))]
                    both = outcome(model, text, target, [*wiring.edits, *answer])
                    alone: tuple[float | None, float | None] = (None, None)
                    if (strength, beta, count) == (max(strengths), max(betas), ALL):
                        halves = [outcome(model, text, target, half) for half in (wiring.edits, answer)]
                        alone = (halves[0].rank(where), halves[1].rank(where))
                    used = int(aimed.sum()) if count == ALL else min(count, int(aimed.sum()))
                    facts = ((token, target), writer, wiring.head, wiring.contrast, strength, beta, used)
                    ranks = (before.rank(where), both.rank(where), before.rank(~where), both.rank(~where))
                    found.append(Circuit(*facts, *ranks, *alone, before.loss, both.loss))
        if between is not None:
            between(len(found))
    return found


# ---- what is told ----------------------------------------------------------------------------------------------------


def experiment(
    made: Sequence[Circuit], command: str, settings: dict[str, Any], where: str, show: Callable[[int], str]
) -> Experiment:
    """The frontier, the best circuit of every pair, the halves alone, and separation by positions measured on."""
    pairs = list(dict.fromkeys(one.pair for one in made))
    most = {pair: max(one.positions for one in made if one.pair == pair) for pair in pairs}
    full = [one for one in made if one.positions == most[one.pair]]
    rows, chosen = [], []
    for pair in pairs:
        mine = [one for one in full if one.pair == pair]
        allowed = [one for one in mine if one.cost < MAX_COST * one.loss_before] or mine
        one = min(allowed, key=lambda circuit: (circuit.rank, circuit.cost))
        chosen.append(one)
        names = [show(pair[0]), show(pair[1]), f"L{one.writer}.h{one.head}", one.contrast, one.strength, one.beta]
        rows.append([*names, one.before, one.rank, one.elsewhere_before, one.elsewhere, one.separation, one.cost])
    budget_rows = []
    for budget in budgets():
        ranks = [
            min([one.rank for one in full if one.pair == pair and one.cost <= budget], default=None) for pair in pairs
        ]
        best = [pair_before(full, pair) if rank is None else rank for rank, pair in zip(ranks, pairs, strict=True)]
        budget_rows.append([budget, float(np.median(best)), sum(rank is not None for rank in ranks)])
    halves = [one for one in full if one.write_alone is not None and one.reader_alone is not None]
    half_rows = [
        [name, _median([rank(one) for one in halves]), _median([one.before / rank(one) for one in halves])]
        for name, rank in HALVES
    ]
    counted = []
    for count in [*sorted({one.positions for one in made if one.positions < most[one.pair]}), ALL]:
        mine = [one for one in made if one.positions == (count or most[one.pair])]
        best_of = [max((o.separation for o in mine if o.pair == pair), default=None) for pair in pairs]
        known = [value for value in best_of if value is not None]
        counted.append([str(count) if count else "all", len(known), float(np.median(known))])
    reached = sum(one.rank <= TOP_RANK and one.cost < MAX_COST * one.loss_before for one in chosen)
    return Experiment(
        "circuit",
        f"{len(pairs)} random pairs: a head of layer {made[0].writer} fires on A, the quietest unit of layer "
        f"{made[0].writer + ABOVE} answers B, {where}. {reached} of {len(pairs)} bring B into the top ten under 10 % "
        "of held-out loss.",
        command,
        settings,
        {
            "pairs": len(pairs),
            "rank_before": float(np.median([one.before for one in chosen])),
            "rank": float(np.median([one.rank for one in chosen])),
            "separation": float(np.median([one.separation for one in chosen])),
            "nats": float(np.median([one.cost for one in chosen])),
            "reached": reached,
        },
        (
            table("circuit", "Best rank of each pair under 10 % of held-out loss, else of all", CIRCUIT_COLUMNS, rows,
                  "Contrast: what the head gathers where A is current, less elsewhere. Separation: rank elsewhere over "
                  "rank at A."),
            table("circuit-frontier", "Best rank within a budget of held-out loss",
                  ["nats at most", "B at A, median", "pairs with a setting"], budget_rows),
            table("circuit-halves", "The halves alone, at the largest strength and β",
                  ["made", "B at A, median", "times better, median"], half_rows),
            table("circuit-positions", "Separation by positions the reader's row was measured on",
                  ["positions of A", "pairs", "best separation, median"], counted),
        ),
    )  # fmt: skip


CIRCUIT_COLUMNS = [
    "A", "B", "head", "contrast", "strength", "β", "B at A before", "B at A", "elsewhere before", "elsewhere",
    "separation", "nats",
]  # fmt: skip
HALVES: tuple[tuple[str, Callable[[Circuit], float]], ...] = (
    ("nothing", lambda one: one.before),
    ("the write alone", lambda one: one.write_alone or float("nan")),
    ("the reader alone", lambda one: one.reader_alone or float("nan")),
    ("both", lambda one: one.rank),
)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def pair_before(made: Sequence[Circuit], pair: Pair) -> float:
    """B's rank at A before anything was made."""
    return next(one.before for one in made if one.pair == pair)
