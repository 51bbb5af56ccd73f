"""Where an edit is put, and the row that reads a key there: the quietest unit, a slope and an off state.

    site = quietest(model, layer, activity(model, windows), kind="pair")
    row = read_row(site, key, states, aimed, mean_state)          # fires on the key, silent elsewhere
    edits = [*site.read(row), *site.write(column)]

A pair's two operations read the same operands, A⊙B + A⊙(1−B) = A, so a pair is one place to install into: its A reads,
and both of its write columns get the value, whatever B does. A quantifier remembers, so it is none.

Off state ("Through the Looking Glass" eq. 24): these models have no bias, so one is built from the mean state x̄ of the
layer: u = x̄/(x̄·x̄) has u·x near 1 everywhere, and row ← row − t·u takes t off the row's pre-activation. t is a quantile
of the row's own projection where the edit is not aimed, so it is measured and fits nothing to the target. A model with
biases gets the threshold as the row's bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from legible_core.config import ModelConfig
from legible_core.editing.measure import gathered
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.model.activations import FUNCTIONS
from legible_core.model.transformer import Transformer
from legible_core.units import ACTIVATIONS, Activation, Channel, HeadOperand, Operand, Unit

SiteKind = Literal["pair", "plain"]
QUANTILE = 0.99
# The mean pre-activation on the key: a sigmoid is then at 0.998, a GELU at 1.95.
HEIGHT: dict[Activation, float] = {"sigmoid": 6.0, "gelu": 2.0, "relu": 2.0, "softplus": 2.0}
# A key whose projection hardly stands out gets a steep slope, but no endless one.
LEAST_MARGIN = 0.02


@dataclass(frozen=True)
class Site:
    """A unit, the two units of a pair, or the same in a head, with the component whose row reads for it.

    activation: what stands behind the row; a linear channel has none and is given the slope of a ReLU.
    """

    layer: int
    reads: Operand | Unit | HeadOperand | Channel
    writes: tuple[Unit, ...] | tuple[Channel, ...]
    activation: Activation

    def read(self, row: ReadRow) -> list[Edit]:
        """The edit that puts a read row here."""
        return [Edit(self.reads, "row", row.bias, vector=Vector.of(row.row.tolist()))]

    def write(self, column: Float[Tensor, " d"]) -> list[Edit]:
        """The edits that put a write column here; of a pair, the same for both operations."""
        vector = Vector.of(column.tolist())
        return [Edit(unit, "column", vector=vector) for unit in self.writes]

    def silenced(self) -> list[Edit]:
        """The edits that take away what the site writes."""
        return [Edit(unit, "zero") for unit in self.writes]


@dataclass(frozen=True, eq=False)
class ReadRow:
    """A row (d,) for a site, its bias (None in a model without), and what was measured of it.

    on: the activation that the row is made to have on the key. threshold, margin: t, and how far the key's mean lies
    above it, in units of the key's squared length; a margin near 0 or below means that the key does not stand out.
    """

    row: Float[Tensor, " d"]
    bias: float | None
    on: float
    threshold: float
    margin: float


def activity(
    model: Transformer, windows: Int[Tensor, "w t"], layers: Sequence[int] | None = None
) -> dict[int, Float[Tensor, " f"]]:
    """Mean |activation| of every unit of some layers over a text."""
    chosen = list(range(model.config.n_layers)) if layers is None else list(layers)
    found = gathered(model, windows, lambda _layer, _z, hidden: hidden.abs(), chosen)
    return {layer: values.mean(dim=0) for layer, values in zip(chosen, found, strict=True)}


def default_kind(config: ModelConfig) -> SiteKind:
    """A plain unit where the model has some (a unit for itself), else a pair."""
    return "plain" if config.feed_forward.n_plain else "pair"


def quietest(
    config: ModelConfig, layer: int, activity: Float[Tensor, " f"], kind: SiteKind, avoid: Sequence[Site] = ()
) -> Site:
    """The plain unit, or the pair, that does least on the text; raises `LegibleError` when the layer has none."""
    layout = config.feed_forward
    written = [unit for site in avoid if site.layer == layer for unit in site.writes]
    taken = {unit.unit for unit in written if isinstance(unit, Unit)}
    if kind == "pair" and layout.n_pairs:
        # Sum of the two operations' means is the mean of A.
        quiet = (activity[layout.intersections] + activity[layout.differences]).clone()
        for unit in taken:
            quiet[unit % layout.n_pairs] = torch.inf
        pair = int(quiet.argmin())
        return Site(
            layer, Operand(layer, pair, "A"), (Unit(layer, pair), Unit(layer, layout.n_pairs + pair)), "sigmoid"
        )
    activation = next((name for name in ACTIVATIONS if name == layout.activation), None)
    if kind == "plain" and layout.n_plain and activation is not None:
        quiet = activity[layout.plain].clone()
        for unit in taken:
            quiet[unit - layout.n_named] = torch.inf
        unit = layout.n_named + int(quiet.argmin())
        return Site(layer, Unit(layer, unit), (Unit(layer, unit),), activation)
    have = [word for word, count in (("pair", layout.n_pairs), ("plain", layout.n_plain)) if count]
    raise LegibleError(
        f"This checkpoint has no units of the kind {kind!r} to install into; it has {', '.join(have) or 'none'}.",
        code="bad_options",
    )


def read_row(
    activation: Activation,
    key: Float[Tensor, " d"],
    states: Float[Tensor, "n d"],
    aimed: Bool[Tensor, " n"],
    *,
    biased: bool = False,
    quantile: float = QUANTILE,
    height: float | None = None,
) -> ReadRow:
    """The row that fires on a key and is silent elsewhere.

    states: what the site reads at every position of a calibration text; aimed: where it is meant to fire. The key is
    divided by its squared length, the threshold is the quantile of its projection elsewhere, and the
    slope brings the mean pre-activation on the key to `height` (by activation, `HEIGHT`).
    Raises `LegibleError` when there is no position, or none but aimed ones, or a key of no length.
    """
    if not bool(aimed.any()) or bool(aimed.all()) or not float(key @ key) > 0:
        raise LegibleError(
            "The key cannot be calibrated: the text needs positions where it occurs and others where it does not.",
            code="corpus_too_short",
        )
    height = HEIGHT[activation] if height is None else height
    row = key / (key @ key)
    projection = states @ row
    on, off = projection[aimed], projection[~aimed]
    threshold = float(_quantile(off, quantile))
    margin = float(on.mean()) - threshold
    slope = height / max(margin, LEAST_MARGIN)
    value = float(FUNCTIONS[activation](torch.tensor(height)))
    if biased:
        return ReadRow(slope * row, -slope * threshold, value, threshold, margin)
    mean = states.mean(dim=0)
    return ReadRow(slope * (row - threshold * mean / (mean @ mean)), None, value, threshold, margin)


def _quantile(values: Float[Tensor, " n"], q: float) -> Float[Tensor, ""]:
    """As `torch.quantile`, without its bound on the number of values."""
    place = q * (len(values) - 1)
    low = int(place)
    ordered = values.sort().values
    return torch.lerp(ordered[low], ordered[min(low + 1, len(values) - 1)], place - low)
