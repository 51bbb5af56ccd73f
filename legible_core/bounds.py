"""Bounds that hold by construction, at the scale of one reading: what a unit can write, and how far it remembers.

    found = write_ranges(engine, request)            # (L, f) low and high of every unit with rails, in logits
    document = unit_bounds(engine, request, unit)    # one unit: write, operands, reach, tokens, a box around the input

A unit with rails has a ∈ [0, 1], so its term a·⟨column, d⟩/std(x) lies between 0 and the slope ⟨column, d⟩/std(x).
std(x) depends on the input; it is this reading's, frozen as in its sum. The proofs, and what rounding adds, are in
docs/bounds.md; "Legible-by-Construction" section 6 names the aim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from legible_core.attribution import Question
from legible_core.axes import Float
from legible_core.contributors import finite
from legible_core.errors import LegibleError
from legible_core.intervals import (
    ROUNDING,
    ROUNDING_BF16,
    Interval,
    affine,
    difference,
    directions,
    existential,
    intersection,
    proportion,
    reach,
    reach_here,
    scaled,
    sigmoid,
    state_error,
    tokens_until,
)
from legible_core.model.quantifiers import half_life
from legible_core.reading import ReadingRequest
from legible_core.reads import check_component, read_of
from legible_core.units import BOUNDED, GLYPHS, Component, Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

TOKENS = 10
BACK = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class WriteRanges:
    """What each unit with rails can write to one target, in logits; NaN for units without rails.

    slopes, low, high: (L, f); errors: (L, f), what rounding may add to a slope. pair_low, pair_high: (L, p), both
    operations of a pair together, narrower than the two apart because A∩B + A∖B = A ≤ 1. total: every unit with rails.
    """

    scale: float
    slopes: np.ndarray
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    pair_low: np.ndarray
    pair_high: np.ndarray
    total: tuple[float, float]

    def strongest(self, count: int) -> list[tuple[int, int]]:
        """(layer, unit) of the `count` widest ranges."""
        width = np.nan_to_num(self.high - self.low, nan=-1.0)
        order = np.argsort(-width, axis=None, kind="stable")[: max(count, 0)]
        found = [divmod(int(index), width.shape[1]) for index in order]
        return [(layer, unit) for layer, unit in found if width[layer, unit] >= 0.0]


@torch.no_grad()
def write_ranges(engine: Engine, question: Question, scale: float) -> WriteRanges:
    """The range of every unit's term for one question at a given std(x); one matrix-vector product a layer, float64.

    Widened by (d + 6) u Σ|direction||column| / std(x), so that both the exact term and the one that a reading shows
    (float32 projections) lie inside, and for quantifiers by what a scan's rounding can add.
    """
    layout = engine.config.feed_forward
    if not layout.n_bounded:
        raise LegibleError("No unit of this checkpoint has rails, so nothing bounds what they write.", code="unbounded")
    direction = _direction(engine, question)
    columns, mass = [], []
    for layer in engine.model.layers:
        down = layer.feed_forward.down[:, : layout.n_bounded].double()
        columns.append((direction @ down).cpu().numpy())
        mass.append((direction.abs() @ down.abs()).cpu().numpy())
    slope = np.stack(columns) / scale
    error = np.stack(mass) * (len(direction) + 6) * ROUNDING / scale
    most = np.ones(layout.n_bounded)
    most[layout.quantifiers] += state_error(engine.config.context)
    low, high = np.minimum(slope - error, 0.0) * most, np.maximum(slope + error, 0.0) * most
    firsts, seconds = layout.intersections, layout.differences
    # As computed, A·B + A·(1 − B) may pass A by its roundings.
    passed = 1 + 4 * (ROUNDING if engine.dtype == "float32" else ROUNDING_BF16)
    pair_low = np.minimum(low[:, firsts], low[:, seconds]) * passed
    pair_high = np.maximum(high[:, firsts], high[:, seconds]) * passed
    others = slice(seconds.stop, layout.n_bounded)
    total = (float(pair_low.sum() + low[:, others].sum()), float(pair_high.sum() + high[:, others].sum()))
    slopes, errors, lows, highs = (_whole(part, layout.d_ff) for part in (slope, error, low, high))
    return WriteRanges(scale, slopes, errors, lows, highs, pair_low, pair_high, total)


@torch.no_grad()
def ranges_document(engine: Engine, request: ReadingRequest, top: int = 20) -> dict[str, Any]:
    """The widest ranges at one prediction beside the terms of the reading, as plain JSON (docs/bounds.md)."""
    solved = engine.solve(request)
    found = write_ranges(engine, solved.question, solved.terms.scale)
    terms = solved.terms.units
    rows = []
    for layer, index in found.strongest(top):
        unit = Unit(layer, index)
        rows.append(
            {
                **_identity(engine, unit),
                "value": float(terms[layer, index]),
                "activation": float(solved.trace.layers[layer].hidden[solved.position, index]),
                "low": float(found.low[layer, index]),
                "high": float(found.high[layer, index]),
            }
        )
    return {
        **_head(engine, request, solved),
        "units": rows,
        "total": {"low": found.total[0], "high": found.total[1], "value": float(terms[np.isfinite(found.high)].sum())},
    }


@torch.no_grad()
def unit_bounds(
    engine: Engine, request: ReadingRequest, unit: Unit, radius: float | None = None, tokens: int = TOKENS
) -> dict[str, Any]:
    """Every bound of one unit at one prediction, as plain JSON (docs/bounds.md).

    radius: also propagate a box of that radius around the layer's normed input at the read position (each coordinate on
    its own) to the operands, the unit and its write. tokens: how many tokens it can raise and lower most are listed.
    Raises `NotFound` for a unit that does not exist, `LegibleError` for one without rails and a radius below 0.
    """
    config = engine.config
    check_component(config, unit)
    kind = config.feed_forward.kind(unit.unit)
    if kind not in BOUNDED:
        raise LegibleError(
            f"{unit} is a {kind} unit and has no rails, so nothing bounds what it writes; choose a set operator, a "
            "quantifier or a sigmoid unit.",
            code="unbounded",
        )
    solved = engine.solve(request)
    position, terms = solved.position, solved.terms
    found = write_ranges(engine, solved.question, terms.scale)
    low, high = float(found.low[unit.layer, unit.unit]), float(found.high[unit.layer, unit.unit])
    slope = float(found.slopes[unit.layer, unit.unit])
    memory = _memory(engine, solved, unit, max(abs(low), abs(high)))
    raised, lowered = _tokens(engine, unit, terms.scale, tokens)
    return {
        **_head(engine, request, solved),
        **_identity(engine, unit),
        "edited": any(getattr(edit.component, "layer", None) == unit.layer for edit in request.edits),
        "value": float(terms.units[unit.layer, unit.unit]),
        "activation": float(solved.trace.layers[unit.layer].hidden[position, unit.unit]),
        "slope": slope,
        "write": {"low": low, "high": high},
        "pair": _pair(engine, found, unit),
        "operands": _operands(engine, unit, slope),
        "memory": memory,
        "raises": raised,
        "lowers": lowered,
        "box": None if radius is None else _box(engine, solved, unit, radius, found),
    }


# ---- its parts -------------------------------------------------------------------------------------------------------


def _head(engine: Engine, request: ReadingRequest, solved: Solved) -> dict[str, Any]:
    question = solved.question
    return {
        "checkpoint": engine.checkpoint.hash,
        "digest": request.digest,
        "position": solved.position,
        "target": engine.token(question.target).model_dump(),
        "contrast": None if question.contrast is None else engine.token(question.contrast).model_dump(),
        "relative_to": question.relative_to,
        "scale": solved.terms.scale,
    }


def _identity(engine: Engine, unit: Unit) -> dict[str, Any]:
    kind = engine.config.feed_forward.kind(unit.unit)
    return {
        "id": str(unit),
        "kind": kind,
        "glyph": GLYPHS[kind],
        "formula": engine.describer.name_fields(unit)["formula"],
    }


def _direction(engine: Engine, question: Question) -> Float[Tensor, " d"]:
    """w⊙γ less its mean, float64, as `attribution.Projections` rounds it to float32."""
    w, _ = engine.attributor.rows(question)
    direction = w * engine.model.final_norm.gain.double()
    return direction - direction.mean()


def _pair(engine: Engine, found: WriteRanges, unit: Unit) -> dict[str, Any] | None:
    """Both operations of a set operator's pair together."""
    layout = engine.config.feed_forward
    if unit.unit >= 2 * layout.n_pairs:
        return None
    pair = layout.pair(unit.unit)
    return {
        "units": [str(Unit(unit.layer, pair)), str(Unit(unit.layer, pair + layout.n_pairs))],
        "low": float(found.pair_low[unit.layer, pair]),
        "high": float(found.pair_high[unit.layer, pair]),
    }


def _operands(engine: Engine, unit: Unit, slope: float) -> list[dict[str, Any]]:
    """Each operand: which way unit and write go as it rises, and where it lies for every input whatever."""
    return [
        {
            "id": str(operand),
            "unit_rises": way > 0,
            "write_rises": None if slope == 0.0 else way * slope > 0.0,
            "anywhere": _ends(anywhere(engine, operand)),
        }
        for operand, way in directions(engine.config, unit)
    ]


@torch.no_grad()
def anywhere(engine: Engine, operand: Component) -> Interval:
    """The range of an operand over every input that its layer can ever see, from the weights alone; an interval of one.

    The norm's output before gain and bias has mean 0 and length at most √d, so by Cauchy and Schwarz the pre-activation
    lies within √d ‖r⊙γ − mean(r⊙γ)‖ of ⟨r, β⟩ + b.
    """
    row, bias, norm = _row(engine, operand)
    gained = row * norm.gain.double().cpu().numpy()
    middle = bias + (0.0 if norm.bias is None else float(row @ norm.bias.double().cpu().numpy()))
    size = math.sqrt(len(row)) * float(np.linalg.norm(gained - gained.mean()))
    # float32 computes the norm and the product with errors below (2d + 16) u of what they sum.
    extra = (2 * len(row) + 16) * ROUNDING * (math.sqrt(len(row)) * float(np.linalg.norm(gained)) + abs(middle))
    return sigmoid(Interval.around(np.array([middle]), size + extra))


def _row(engine: Engine, operand: Component) -> tuple[np.ndarray, float, Any]:
    """The float64 read row of an operand, its bias, and the norm before it."""
    read = read_of(engine.config, operand)
    layer: Any = engine.model.layers[read.layer]
    part, norm = (
        (layer.attention, layer.attention_norm)
        if read.sublayer == "attention"
        else (layer.feed_forward, layer.feed_forward_norm)
    )
    bias = getattr(part, f"{read.matrix}_bias", None)
    row = getattr(part, read.matrix)[read.row].double().cpu().numpy()
    return row, 0.0 if bias is None else float(bias[read.row]), norm


def _memory(engine: Engine, solved: Solved, unit: Unit, write: float) -> dict[str, Any] | None:
    """A quantifier's reach: at most, with the other memberships of this prompt, and in logits."""
    decay = engine.describer.decay(unit.layer, unit.unit)
    if decay is None:
        return None
    kind = engine.config.feed_forward.kind(unit.unit)
    m = _series(engine, solved, unit)[: solved.position + 1]
    here = reach_here(kind, m, decay)
    length = len(m)
    return {
        "decay": decay,
        "half_life": finite(half_life(decay)),
        "below_one_percent": tokens_until(kind, decay),
        "rounding": 2 * state_error(length),
        "reach": [
            {
                "back": back,
                "most": reach(kind, decay, back, length),
                "here": float(here[back]),
                "most_logits": reach(kind, decay, back, length) * write,
            }
            for back in sorted({*(back for back in BACK if back < length), length - 1})
        ],
    }


def _series(engine: Engine, solved: Solved, unit: Unit) -> np.ndarray:
    """m of a quantifier at every position."""
    read = next(operand for operand, _ in directions(engine.config, unit))
    found = engine.model.operands(unit.layer, solved.trace, slice(None))["quantifier"]
    return found[:, read_of(engine.config, read).row].double().cpu().numpy()


def _tokens(engine: Engine, unit: Unit, scale: float, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tokens whose logits the unit can raise, and lower, most: its range to each is from 0 to the slope."""
    model = engine.model
    column = model.layers[unit.layer].feed_forward.down[:, unit.unit].double()
    seen = (column - column.mean()) * model.final_norm.gain.double() / scale
    matrix = model.unembedding_matrix
    slopes = torch.cat([chunk.double() @ seen for chunk in matrix.split(4096)])
    names = engine.names  # with them, only tokens that their corpus holds often enough are ranked, as in promote lists
    often = None if names is None else torch.from_numpy(names.often.copy()).to(matrix.device)
    ranked = slopes if often is None else slopes[often]
    ids = torch.arange(len(slopes), device=slopes.device) if often is None else often.nonzero()[:, 0]
    count = min(count, len(ranked))

    def listed(largest: bool) -> list[dict[str, Any]]:
        best = ranked.topk(count, largest=largest).indices
        rows = []
        for index in ids[best].tolist():
            slope = float(slopes[index])
            if slope > 0.0 if largest else slope < 0.0:
                error = float(matrix[index].double().abs() @ seen.abs()) * (len(seen) + 6) * ROUNDING
                low, high = min(slope - error, 0.0), max(slope + error, 0.0)
                rows.append({"id": index, "display": engine.describer.display(index), "low": low, "high": high})
        return rows

    return listed(True), listed(False)


def _box(engine: Engine, solved: Solved, unit: Unit, radius: float, found: WriteRanges) -> dict[str, Any]:
    """Operands, unit and write over a box around the layer's normed input at the read position."""
    if engine.dtype != "float32":
        raise LegibleError(
            "A box is propagated for float32 alone: how a product in bfloat16 rounds depends on the device; read the "
            "prompt in float32.",
            code="bad_dtype",
        )
    layer = engine.model.layers[unit.layer]
    x = layer.feed_forward_norm(solved.trace.layers[unit.layer].feed_forward_in[solved.position])
    operands, activation = propagate(engine, solved, unit, Interval.around(x.double().cpu().numpy(), radius))
    at = unit.layer, unit.unit
    return {
        "radius": radius,
        "operands": [{"id": str(id), **_ends(interval)} for id, interval in operands],
        "activation": _ends(activation),
        "write": _ends(scaled(activation, float(found.slopes[at]), float(found.errors[at]))),
    }


def propagate(
    engine: Engine, solved: Solved, unit: Unit, box: Interval
) -> tuple[list[tuple[Component, Interval]], Interval]:
    """The operands' and the unit's ranges while the layer's normed input at the read position moves in a box (d,).

    The tokens before stay as they are, so a quantifier starts from the state that they left. Operands of a pair are
    bounded one by one: sound, and looser than the truth where both cannot reach their ends together.
    """
    config = engine.config
    kind = config.feed_forward.kind(unit.unit)
    found: list[tuple[Component, Interval]] = []
    for operand, _ in directions(config, unit):
        row, bias, _ = _row(engine, operand)
        found.append((operand, sigmoid(affine(row[None], box, np.array([bias])))))
    operands = [interval for _, interval in found]
    if kind == "intersection":
        return found, intersection(*operands)
    if kind == "difference":
        return found, difference(*operands)
    if kind == "sigmoid":
        return found, operands[0]
    position = solved.position
    hidden = solved.trace.layers[unit.layer].hidden
    before = float(hidden[position - 1, unit.unit]) if position else 0.0
    decay = engine.describer.decay(unit.layer, unit.unit)
    assert decay is not None  # the remaining kinds are quantifiers
    step = existential if kind == "existential" else proportion
    return found, step(operands[0], Interval.of([before], [before]), np.array([decay]), position + 1)


def _ends(interval: Interval) -> dict[str, float]:
    return {"low": float(interval.low[0]), "high": float(interval.high[0])}


def _whole(part: np.ndarray, width: int) -> np.ndarray:
    """Columns of NaN for the units without rails."""
    return np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=np.nan)


__all__ = ["WriteRanges", "anywhere", "propagate", "ranges_document", "unit_bounds", "write_ranges"]
