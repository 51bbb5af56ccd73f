"""Drive a trained unit from two layers below, through the row that it already reads with; nothing is installed.

"Through the Looking Glass" section 4.6, eq. 25: to first order in a change of the stream, a unit's pre-activation moves
along its read row times the norm's gain, less the part along the constant direction, which the norm takes out:

    d = g ⊙ w,   d ← d − mean(d)·1

A set operator reads two rows, so w is the gradient of its value by the normed state, averaged over the positions of a
text: A∩B gives A'·B·row_A + A·B'·row_B, A∖B gives A'(1−B)·row_A − A·B'·row_B. A quantifier reads the row of m.

The direction is added before the layer two below, at a tenth of the positions. What is told: how many standard
deviations the unit moved there, the rank of the token that its write column promotes most, and the mediation

    m = 1 − (r₀ᵃᵇˡ − rᵃᵇˡ) / (r₀ − r)

with the unit silenced in the ablated arm, each arm against its own baseline: the share that went through the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.editing.install import Bench
from legible_core.editing.measure import Mask, gathered, outcome, states
from legible_core.editing.results import Experiment, table
from legible_core.editing.survival import entering_stream
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.model.transformer import Transformer
from legible_core.naming.promote import promotion
from legible_core.units import Residual, Unit

BELOW = 2
WRITTEN = 0.1
STRENGTHS = (0.25, 0.5, 1.0)
OFTEN = 5
HEADS = ("moved, std", "rank before", "rank")
FIGURES = ("deviations", "before", "after", "cost")


@dataclass(frozen=True)
class Drive:
    """One unit driven at one strength (a share of the median residual norm); ranks are medians at written positions.

    target: the token that the unit's column promotes most. deviations: how far the unit moved, in its own standard
    deviations over the text. cost: held-out loss of the write, nats. mediation: None where the write did not better the
    rank, so that there is nothing to share out. estimated: the direction came from activations, not from the weights.
    """

    unit: Unit
    kind: str
    target: int
    strength: float
    estimated: bool
    deviations: float
    before: float
    after: float
    silenced_before: float
    silenced_after: float
    cost: float

    @property
    def mediation(self) -> float | None:
        moved = self.before - self.after
        return None if moved <= 0 else 1.0 - (self.silenced_before - self.silenced_after) / moved


@torch.no_grad()
def decisive(bench: Bench, layer: int, count: int, kind: str | None = None) -> list[tuple[Unit, int]]:
    """Units whose column promotes one token far above the next (among tokens of the text), with that token.

    The margin is between the two tokens promoted most, relative to the first. kind: of this kind of unit only. Units
    that never move on the calibration text are left out.
    Raises `LegibleError` for a kind that the layer has not.
    """
    model = bench.model
    layout = model.config.feed_forward
    counts = torch.bincount(bench.calibration.ids.flatten(), minlength=model.config.vocab_size)
    often = (counts >= OFTEN).nonzero()[:, 0]
    weights = promotion(model, model.layers[layer].feed_forward.down.float())[:, often]
    top = weights.topk(2, dim=1)
    margin = 1.0 - top.values[:, 1] / top.values[:, 0].clamp(min=1e-12)
    (hidden,) = gathered(model, bench.calibration.ids[:8], lambda _layer, _z, values: values, [layer])
    margin[hidden.std(dim=0) < 1e-4] = -torch.inf
    if kind is not None:
        kinds = [layout.kind(unit) for unit in range(layout.d_ff)]
        if kind not in kinds:
            raise LegibleError(
                f"This checkpoint has no units of the kind {kind!r}; it has {', '.join(dict.fromkeys(kinds))}.",
                code="bad_options",
            )
        margin[torch.tensor([other != kind for other in kinds])] = -torch.inf
    chosen = [int(unit) for unit in margin.argsort(descending=True)[:count] if margin[unit] > -torch.inf]
    return [(Unit(layer, unit), int(often[top.indices[unit, 0]])) for unit in chosen]


@torch.no_grad()
def read_direction(model: Transformer, unit: Unit, entering: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The unit direction of the stream that moves a unit most, eq. 25; entering: normed states of a text (n, d)."""
    layer = model.layers[unit.layer]
    part, layout = layer.feed_forward, model.config.feed_forward
    kind = layout.kind(unit.unit)
    if kind in ("intersection", "difference"):
        pair = layout.pair(unit.unit)
        a, b = (values[:, pair].float() for values in part.operands(entering.to(part.down.dtype))[:2])
        sign = 1.0 if kind == "intersection" else -1.0
        other = b if kind == "intersection" else 1.0 - b
        by_a, by_b = (a * (1.0 - a) * other).mean(), sign * (a * b * (1.0 - b)).mean()
        row = by_a * _row(part, "pair_a", pair) + by_b * _row(part, "pair_b", pair)
    elif kind in ("existential", "proportion"):
        row = _row(part, "quantifier", unit.unit - layout.quantifiers.start)
    else:
        row = _row(part, layout.activation, unit.unit - layout.n_named)
    return _unit_length(layer.feed_forward_norm.gain.float() * row)


@torch.no_grad()
def estimated_direction(bench: Bench, unit: Unit, below: int) -> Float[Tensor, " d"]:
    """The comparator: the mean stream where the unit is in its top hundredth, less the mean stream."""
    model, ids = bench.model, bench.calibration.ids[:16]
    (values,) = gathered(model, ids, lambda _layer, _z, hidden: hidden[:, unit.unit : unit.unit + 1], [unit.layer])
    stream = entering_stream(model, ids, below)
    loud = values[:, 0].topk(max(1, len(values) // 100)).indices
    return _unit_length(stream[loud].mean(dim=0) - stream.mean(dim=0))


def _row(module: torch.nn.Module, name: str, place: int) -> Float[Tensor, " d"]:
    rows: Tensor = getattr(module, name)
    return rows[place].float()


def _unit_length(direction: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    direction = direction - direction.mean()
    return direction / direction.norm()


@torch.no_grad()
def drive(
    bench: Bench,
    units: Sequence[tuple[Unit, int]],
    *,
    strengths: Sequence[float] = STRENGTHS,
    estimated: bool = False,
    seed: int = 0,
) -> list[Drive]:
    """Drive each unit towards its token; raises `LegibleError` for a unit with fewer than two layers below it."""
    model, text = bench.model, bench.text
    found: list[Drive] = []
    for unit, target in units:
        generator = torch.Generator().manual_seed(seed)  # the same positions for every unit
        if unit.layer < BELOW:
            raise LegibleError(
                f"{unit} has fewer than {BELOW} layers below it; drive units of layer {BELOW} or above.",
                code="bad_options",
            )
        below = unit.layer - BELOW
        ids = text.ids
        size = float(entering_stream(model, ids, below).norm(dim=-1).median())
        entering = states(model, bench.calibration.ids[:8], unit.layer)
        w = estimated_direction(bench, unit, below) if estimated else read_direction(model, unit, entering)
        count = max(1, round(WRITTEN * ids.shape[1]))
        where = tuple(sorted(torch.randperm(ids.shape[1], generator=generator)[:count].tolist()))
        mask: Mask = np.zeros(tuple(ids.shape), np.bool_)
        mask[:, list(where)] = True
        silence = [Edit(unit, "zero")]
        clean, clean_silenced = (outcome(model, text, target, edits) for edits in ((), silence))
        at_rest = _values(bench, unit, ())
        for strength in strengths:
            write = [Edit(Residual(below), "add", strength * size, where, vector=Vector.of(w.tolist()))]
            written, written_silenced = (outcome(model, text, target, [*write, *rest]) for rest in ((), silence))
            moved = _values(bench, unit, write) - at_rest
            deviation = float(moved[torch.from_numpy(mask.flatten())].mean() / at_rest.std().clamp(min=1e-12))
            ranks = [one.rank(mask) for one in (clean, written, clean_silenced, written_silenced)]
            kind, cost = model.config.feed_forward.kind(unit.unit), written.loss - clean.loss
            facts = (unit, kind, target, strength, estimated, deviation)
            found.append(Drive(*facts, ranks[0], ranks[1], ranks[2], ranks[3], cost))
    return found


def _values(bench: Bench, unit: Unit, edits: Sequence[Edit]) -> Float[Tensor, " n"]:
    """The unit at every position of the text."""
    column = slice(unit.unit, unit.unit + 1)
    (values,) = gathered(bench.model, bench.text.ids, lambda _layer, _z, h: h[:, column], [unit.layer], edits)
    return values[:, 0]


def experiment(
    drives: Sequence[Drive], command: str, settings: dict[str, Any], where: str, show: Callable[[int], str]
) -> Experiment:
    """By direction and strength, then unit by unit at the largest strength."""
    rows, summary = [], {}
    for estimated in (False, True):
        for strength in sorted({one.strength for one in drives}):
            mine = [one for one in drives if (one.estimated, one.strength) == (estimated, strength)]
            if not mine:
                continue
            mediations = [one.mediation for one in mine if one.mediation is not None]
            middle = [float(np.median([getattr(one, key) for one in mine])) for key in FIGURES]
            mediation = float(np.median(mediations)) if mediations else None
            source = "activations" if estimated else "weights"
            rows.append([source, strength, len(mine), *middle, mediation, len(mediations)])
            summary[f"{source} {strength:g}"] = dict(
                zip(("units", *FIGURES, "mediation"), [len(mine), *middle, mediation], strict=True)
            )
    largest = max(one.strength for one in drives)
    each = [
        [str(one.unit), one.kind, show(one.target), one.deviations, one.before, one.after, one.mediation, one.cost]
        for one in drives
        if one.strength == largest and not one.estimated
    ]
    return Experiment(
        "drive",
        f"Units driven by a direction added {BELOW} layers below at {100 * WRITTEN:.0f} % of the positions, {where}. "
        "Strength is a share of the median residual norm there.",
        command,
        settings,
        summary,
        (
            table(
                "drive",
                "By strength",
                ["direction from", "strength", "units", *HEADS, "nats", "mediation", "of units"],
                rows,
                "Medians over units, ranks at the written positions. Mediation: the share that went through the unit, "
                "over the units whose token rose.",
            ),
            table(
                "drive-units",
                f"Unit by unit, strength {largest:g}",
                ["unit", "kind", "its token", *HEADS, "mediation", "nats"],
                each,
            ),
        ),
    )
