"""How many components carry one prediction, under three meanings of "ninety per cent"; imports no torch.

Each component c (a unit, or a channel of a head) has a term κ_c in the target's logit relative to the vocabulary's
mean. N = Σ κ_c is the net that the components deliver; embeddings and biases are the floor and no terms here. With the
terms ranked, n_90 is how many of them reach nine tenths of a total, and there are three totals ("Through the Looking
Glass" section 2.3):

    net        the signed sum: Σ of the largest κ_c >= 0.9 N, a term that opposes counting against it
    positive   Σ of the largest κ_c >= 0.9 Σ max(κ_c, 0)
    absolute   Σ of the largest |κ_c| >= 0.9 Σ |κ_c|

The members of the net's set at 90 % are the one-hop set. A prediction whose net is not positive has no share of it, so
it has no count under `net` and no set; callers count such predictions and leave them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from legible_core.config import ModelConfig
from legible_core.units import Channel, Head, Unit

Floats = NDArray[np.float64]
Denominator: TypeAlias = Literal["net", "positive", "absolute"]
DENOMINATORS: tuple[Denominator, ...] = get_args(Denominator)
PERCENTS = (80, 90, 99)
BAR = 90


@dataclass(frozen=True)
class Account:
    """The accounting of one prediction. Masses in logits.

    counts: denominator -> per cent -> number of components; under `net` None where the net is not positive. members:
    the one-hop set, places in the flat terms, largest term first; empty without a positive net.
    """

    net: float
    positive: float
    opposing: float
    components: int
    counts: dict[Denominator, dict[int, int | None]]
    members: NDArray[np.int64]

    @property
    def opposing_over_net(self) -> float | None:
        """Σ |negative terms| / N; None where the net is not positive."""
        return self.opposing / self.net if self.net > 0 else None

    def n(self, percent: int = BAR, denominator: Denominator = "net") -> int | None:
        """n_80, n_90 or n_99 under a denominator."""
        return self.counts[denominator][percent]

    def to_json(self) -> dict[str, Any]:
        """The numbers, without the members."""
        return {
            "net": self.net,
            "positive": self.positive,
            "opposing": self.opposing,
            "opposing_over_net": self.opposing_over_net,
            "components": self.components,
            "counts": {name: {f"n{p}": n for p, n in row.items()} for name, row in self.counts.items()},
        }


def account(terms: NDArray[Any]) -> Account:
    """Account for one prediction from its flat terms (any order; see `flat`), in float64.

    Raises ValueError when a term is not a finite number.
    """
    values: Floats = np.asarray(terms, dtype=np.float64).ravel()
    # Two sorts serve all three rankings: the positive terms are the head of the descending order.
    falling = np.sort(values)[::-1]
    if values.size and not np.isfinite(falling[[0, -1]]).all():
        raise ValueError("a term is not a finite number")
    positives = falling[: int(np.searchsorted(-falling, 0.0))]
    rising = np.cumsum(positives)
    positive = float(rising[-1]) if rising.size else 0.0
    net = float(falling.sum())
    sizes = np.cumsum(np.sort(np.abs(values))[::-1])
    mass = float(sizes[-1]) if sizes.size else 0.0
    totals = {"net": (rising, net), "positive": (rising, positive), "absolute": (sizes, mass)}
    counts: dict[Denominator, dict[int, int | None]] = {
        name: {percent: _reach(totals[name][0], totals[name][1], percent / 100) for percent in PERCENTS}
        for name in DENOMINATORS
    }
    first = counts["net"][BAR] or 0
    return Account(net, positive, max(positive - net, 0.0), values.size, counts, largest(values, falling, first))


def _reach(rising: Floats, total: float, share: float) -> int | None:
    """How many of the ranked terms it takes to reach a share of the total; None where the total is not positive.

    The signed sum of the largest terms rises up to the last positive one and falls from there; it reaches the bar on
    the way up, because its peak is at least the net.
    """
    if not total > 0 or not rising.size:
        return None
    return min(int(np.searchsorted(rising, share * total)), rising.size - 1) + 1


def largest(values: Floats, falling: Floats, count: int) -> NDArray[np.int64]:
    """Places of the `count` largest values, largest first; equal values in order of place. `falling`: them, sorted."""
    if count == 0:
        return np.zeros(0, np.int64)
    found = np.flatnonzero(values >= falling[count - 1])
    return found[np.lexsort((found, -values[found]))][:count]


# ---- the flat order ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The flat order of a model's components: every layer's channels head by head, then every layer's units.

    by_head: heads stand in place of their channels, as in work that counts heads.
    """

    n_layers: int
    n_heads: int
    d_head: int
    d_ff: int
    by_head: bool = False

    @classmethod
    def of(cls, config: ModelConfig, by_head: bool = False) -> Layout:
        return cls(config.n_layers, config.n_heads, config.d_head, config.feed_forward.d_ff, by_head)

    @property
    def attention(self) -> int:
        """Attention components in a layer."""
        return self.n_heads * (1 if self.by_head else self.d_head)

    @property
    def size(self) -> int:
        return self.n_layers * (self.attention + self.d_ff)

    @property
    def first_unit(self) -> int:
        """Where the units begin."""
        return self.n_layers * self.attention

    def layer(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """The layer of each place."""
        return np.where(place < self.first_unit, place // self.attention, (place - self.first_unit) // self.d_ff)

    def component(self, place: int) -> Head | Channel | Unit:
        """The component at a place."""
        if place >= self.first_unit:
            return Unit(*divmod(place - self.first_unit, self.d_ff))
        layer, index = divmod(place, self.attention)
        return Head(layer, index) if self.by_head else Channel(layer, *divmod(index, self.d_head))

    def place(self, component: Channel | Unit | Head) -> int:
        """The place of a component; the inverse of `component`."""
        if isinstance(component, Unit):
            return self.first_unit + component.layer * self.d_ff + component.unit
        within = component.head if isinstance(component, Head) else component.head * self.d_head + component.channel
        return component.layer * self.attention + within


def flat(attention: NDArray[Any], units: NDArray[Any]) -> Floats:
    """The terms of an `Attribution` in flat order: its channels (L, h, dh) or heads (L, h), then its units (L, f)."""
    return np.concatenate([attention.ravel(), units.ravel()]).astype(np.float64)


def shares(terms: NDArray[Any], members: NDArray[np.int64], layout: Layout) -> dict[str, Any]:
    """What part of the one-hop set's mass, and of its members, lies where; nothing is divided where the set is empty.

    `attention` and `feed_forward` are shares of Σ κ over the set, `attention_members` the attention components' share
    of its count; `layers` has both sublayers of each layer as shares of Σ κ.
    """
    mass = np.asarray(terms, np.float64)[members]
    total, unit = float(mass.sum()), members >= layout.first_unit
    layer = layout.layer(members)

    def part(mask: NDArray[np.bool_]) -> float | None:
        return float(mass[mask].sum()) / total if total > 0 else None

    return {
        "attention": part(~unit),
        "feed_forward": part(unit),
        "attention_members": float((~unit).mean()) if members.size else None,
        "layers": [
            {"layer": i, "attention": part(~unit & (layer == i)), "feed_forward": part(unit & (layer == i))}
            for i in range(layout.n_layers)
        ],
    }
