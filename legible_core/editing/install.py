"""Install an association A → B that the model does not hold, in closed form, and count what it costs.

"Through the Looking Glass" section 4.2: the quietest unit of a layer gets a read row, the layer-native row of A (with
an off state, `site`), and a write column, β times the centred unembedding row of B over the unit's activation on the
key. Nothing is fitted, traced or optimised. A value channel of a head (section 4.3) gets the same, with the row of A at
the head's own input, in the head that gathers it most sharply (`channels`). The comparator (section 4.7, eq. 27)
changes the whole down-projection:

    W ← W + β (U_B − Ū) (C⁻¹ k)ᵀ / (kᵀ C⁻¹ k),   k = mean hidden vector where A is the current token, C = E[h hᵀ]

so that a mean A writes β (U_B − Ū), as the unit does; with `identity` C is left out. Both are swept over β, and what is
compared is the frontier: the best rank of B where A occurs, for each budget of held-out loss (`installed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from legible_core.editing.channels import Heads
from legible_core.editing.measure import HeldOut, gathered, outcome, readout, states
from legible_core.editing.native import NativeTable, centre_of
from legible_core.editing.site import QUANTILE, ReadRow, Site, activity, quietest, read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.model.transformer import Transformer
from legible_core.units import Down

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# A counts as a key when it occurs this often in either text, and on no larger share of it: an edit pays for every
# position that it overrides, so a frequent A would measure its frequency.
LEAST, MOST = 8, 0.01
TOP_RANK, LEAST_ELSEWHERE, MAX_COST = 10, 0.9, 0.10
RIDGE = 1e-3

InstallKind = Literal["plain", "pair", "channel"]
Pair = tuple[int, int]
Edits = Callable[[float], list[Edit]]


@dataclass(frozen=True)
class Trial:
    """One edit. Ranks of the target are medians, where the key is the current token and elsewhere; loss in nats.

    where: the component whose row or matrix was changed. gathered: of a channel, what its head gathers where A is
    current less elsewhere, on the text that keys are measured on; None of others. edits: what was done to the model,
    which `save_child` can write into weights.
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
    where: str = ""
    gathered: float | None = None

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

        At most one pair for each token that can be A, so there may be fewer than `count` (`fewer_text`). Raises
        `LegibleError` when fewer than two tokens can be keys.
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

    def check_key(self, token: int, shown: str) -> None:
        """Raise `LegibleError` for a token that is to be a key and that either text lacks; `shown`: it in words."""
        measured, judged = self._counts(token)
        if not measured or not judged:
            raise LegibleError(
                f"A, {shown}, occurs {measured} times where keys are measured and {judged} times where edits are "
                "judged, and must occur in both; give more --tokens and --windows, or another A.",
                code="corpus_too_short",
            )

    def key(self, layer: int, token: int, entering: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
        """Ẽ[layer, token]: the table's row, and measured on `entering` (this text's states) for a token it lacks."""
        if token in self.native.tokens:
            return torch.from_numpy(self.native.row(layer, token)).to(entering.device)
        centre = torch.from_numpy(self.native.centre[layer]).to(entering.device)
        return entering[self.aimed(token, entering)].mean(dim=0) - centre

    def aimed(self, token: int, like: Tensor) -> Bool[Tensor, " n"]:
        """Where a token is the current one of the text that keys are measured on."""
        return (self.calibration.ids == token).flatten().to(like.device)

    def _counts(self, token: int) -> tuple[int, int]:
        return int((self.calibration.ids == token).sum()), int((self.text.ids == token).sum())

    def _key(self, token: int) -> bool:
        counts = self._counts(token)
        sizes = (self.calibration.tokens, self.text.tokens)
        return all(LEAST <= count <= MOST * size for count, size in zip(counts, sizes, strict=True))


def fewer_text(drawn: int, asked: int) -> str:
    """Why `Bench.pairs` gave fewer pairs than were asked for, in words."""
    return (
        f"{drawn} of the {asked} pairs asked for: no other token of the table can be A, which has to occur {LEAST} "
        "times or more both where keys are measured and where edits are judged, and to be at most "
        f"{100 * MOST:.0f} % of either; more --windows and --tokens give more."
    )


def install(
    bench: Bench,
    pairs: Sequence[Pair],
    layers: Sequence[int],
    *,
    kind: InstallKind,
    betas: Sequence[float] = BETAS,
    quantile: float = QUANTILE,
) -> Iterator[Trial]:
    """Install each association into the quietest unit (or pair, or channel) of each layer, at every strength."""
    if kind == "channel":
        yield from _into_channels(bench, pairs, layers, betas, quantile)
        return
    model = bench.model
    quiet = activity(model, bench.calibration.ids, layers)
    for layer in layers:
        entering = states(model, bench.calibration.ids, layer)
        site = quietest(model.config, layer, quiet[layer], kind)
        for pair in pairs:
            key, aimed = bench.key(layer, pair[0], entering), bench.aimed(pair[0], entering)
            row = read_row(site.activation, key, entering, aimed, biased=model.config.linear_bias, quantile=quantile)
            edits = partial(_written, site, row, readout(model, pair[1]) / row.on)
            yield from _sweep(bench, pair, Where(layer, str(site.reads)), edits, betas)


def _into_channels(
    bench: Bench, pairs: Sequence[Pair], layers: Sequence[int], betas: Sequence[float], quantile: float
) -> Iterator[Trial]:
    model, ids = bench.model, bench.calibration.ids
    for layer in layers:
        heads = Heads.of(model, ids, layer)
        # The table holds what enters the feed-forward, so the rows at the heads' input are measured on this text.
        centre = centre_of(heads.entering, ids, bench.native.tokens)
        for pair in pairs:
            aimed = bench.aimed(pair[0], heads.entering)
            put = heads.sharpest(heads.entering[aimed].mean(dim=0) - centre, aimed, quantile)
            edits = partial(_written, put.site, put.row, readout(model, pair[1]) / put.unit_write)
            yield from _sweep(bench, pair, Where(layer, str(put.site.reads), put.contrast), edits, betas)


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
            edits = partial(_updated, layer, value, direction)
            yield from _sweep(bench, pair, Where(layer, str(Down(layer))), edits, betas)


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


@dataclass(frozen=True)
class Where:
    """The place of an edit; see `Trial`."""

    layer: int
    component: str
    gathered: float | None = None


def _sweep(bench: Bench, pair: Pair, at: Where, edits: Edits, betas: Sequence[float]) -> Iterator[Trial]:
    where = bench.text.current(pair[0])
    before = outcome(bench.model, bench.text, pair[1])
    for beta in betas:
        made = edits(beta)
        after = outcome(bench.model, bench.text, pair[1], made)
        yield Trial(
            pair, at.layer, beta, before.rank(where), after.rank(where), before.rank(~where), after.rank(~where),
            before.loss, after.loss, tuple(made), at.component, at.gathered,
        )  # fmt: skip
