"""Beside each leading contribution of a reading: what the model says when that component is removed and re-run.

    document = check(engine, request, top=20)       # a JSON document, described in docs/causal.md

total     the change of the value (the target's logit, or what the reading is relative to) when the component is edited
          at the read position and everything above it computes again
direct    the change of its own term alone, everything else and the scale std(x) held: for a removal minus the term that
          the reading shows. `direct_rescaled` lets the final norm see the edited stream, and is no longer linear.

Where total and direct differ, later components answered the removal: "Through the Looking Glass" (section 2.4) measures
that a set's removal costs about half of its linear sum. A check is flagged when the two disagree in sign, or when their
ratio leaves the band that holds 90 % of this checkpoint's leading contributions (`causal.records`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legible_core import attribution as sums
from legible_core.attribution import Attribution, Question
from legible_core.axes import Float
from legible_core.causal.plain import PlainRerun
from legible_core.causal.records import HALVES, Band, Checks, Means, half_of
from legible_core.causal.rerun import Plan, Rerun
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.reading import ReadingRequest
from legible_core.units import GLYPHS, Head, Side, Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

SCHEMA = 1
TOP = 20
MAX_TOP = 200
# Below this many logits (or the reading's own tolerance) a change has no sign worth comparing.
NOISE = 1e-3


@dataclass(frozen=True)
class Variant:
    """One way to take one component out; `side` is the operand that is flipped."""

    sort: str
    layer: int
    index: int
    method: str
    side: Side | None = None

    @property
    def component(self) -> Head | Unit:
        return Head(self.layer, self.index) if self.sort == "head" else Unit(self.layer, self.index)


@dataclass(frozen=True)
class Effect:
    """What one variant did to the value: total, direct with the scale frozen, direct with the scale recomputed."""

    variant: Variant
    total: float
    direct: float
    rescaled: float

    @property
    def ratio(self) -> float | None:
        """total / direct; None where the direct effect is nothing."""
        return None if abs(self.direct) < NOISE else self.total / self.direct


@torch.no_grad()
def check(engine: Engine, request: ReadingRequest, top: int = TOP, measured: Checks | None = None) -> dict[str, Any]:
    """The checks of the `top` leading contributions, those of each half of the stack together, and the flags.

    measured: the checkpoint's record, for means and bands; without it the mean is not tried and no ratio is flagged.
    Raises `LegibleError` for a number of checks out of range, and what `Engine.solve` raises.
    """
    if not 1 <= top <= MAX_TOP:
        raise LegibleError(f"{top} checks were asked for; ask for 1 to {MAX_TOP}.", code="bad_top")
    solved = engine.solve(request)
    terms, config = solved.terms, engine.config
    found = sums.strongest(terms, top)
    rerun = rerun_of(engine, solved)
    variants = [v for one in found for v in variants_of(config, *one, measured.means if measured else None)]
    joint = {half: [one for one in found if half in ("all", half_of(one[1], config.n_layers))] for half in HALVES}
    effects, residual = effects_of(engine, solved, rerun, variants, measured, list(joint.values()))
    noise = max(NOISE, 2 * terms.tolerance)
    logits = engine.model.logits(residual[[i for i, v in enumerate(variants) if v.method == "zero"]])
    after = [_after(engine, row, solved.question.target) for row in logits]
    rows = []
    for (sort, layer, index), then in zip(found, after, strict=True):
        own = [e for e in effects if (e.variant.sort, e.variant.layer, e.variant.index) == (sort, layer, index)]
        rows.append(_row(config, own, then, terms, noise, measured))
    together = values_of(engine, solved.question, residual[len(variants) :]) - base_of(engine, solved)
    return {
        "schema": SCHEMA,
        "kind": "check",
        "digest": request.digest,
        "checkpoint": engine.checkpoint.model_dump(),
        "dtype": engine.dtype,
        "position": solved.position,
        "target": engine.token(solved.question.target).model_dump(),
        "contrast": None if solved.question.contrast is None else engine.token(solved.question.contrast).model_dump(),
        "relative_to": solved.question.relative_to,
        "value": terms.value,
        "scale": terms.scale,
        "noise": noise,
        "bands": None if measured is None else _bands_json(measured),
        "checks": rows,
        "halves": [
            _half(half, joint[half], terms, effects, float(change))
            for half, change in zip(HALVES, together.tolist(), strict=True)
            if joint[half]
        ],
    }


def rerun_of(engine: Engine, solved: Solved) -> Rerun | PlainRerun:
    """The re-runs of a solved request: in batches, or one forward each for edited readings and ordinary models."""
    batched = not solved.trace.edits and not engine.config.ordinary
    return (Rerun if batched else PlainRerun)(engine.model, solved.trace, solved.position)


def variants_of(config: ModelConfig, sort: str, layer: int, index: int, means: Means | None) -> list[Variant]:
    """The ways to take a component out: zero, its mean where that was measured, and its operands flipped."""
    methods: list[tuple[str, Side | None]] = [("zero", None)]
    if means is not None:
        methods.append(("mean", None))
    if sort == "unit":
        kind = config.feed_forward.kind(index)
        if kind in ("intersection", "difference"):
            for side in ("A", "B"):
                methods += [("flip_atom", side), ("flip_unit", side)]
        elif kind in ("existential", "proportion"):
            methods.append(("flip_atom", "A"))  # its m feeds it alone
    return [Variant(sort, layer, index, method, side) for method, side in methods]


def write_variant(plan: Plan, row: int, variant: Variant, config: ModelConfig, means: Means | None) -> None:
    """Put one variant into a row of a plan."""
    layer, index = variant.layer, variant.index
    if variant.method == "mean":
        assert means is not None
        if variant.sort == "unit":
            plan.unit(row, layer, index, offset=float(means.units[layer, index]))
        else:
            for channel, mean in enumerate(means.channels[layer, index].tolist()):
                plan.channel(row, layer, index, channel, offset=mean)
    elif variant.method == "zero" and variant.sort == "unit":
        plan.unit(row, layer, index)
    elif variant.method == "zero":
        plan.head(row, layer, index)
    elif config.feed_forward.kind(index) in ("existential", "proportion"):
        plan.atom(row, layer, "quantifier", index - config.feed_forward.quantifiers.start)
    elif variant.method == "flip_atom":
        plan.atom(row, layer, "pair_a" if variant.side == "A" else "pair_b", config.feed_forward.pair(index))
    else:
        assert variant.side is not None
        plan.flip_unit(row, layer, index, variant.side)


@torch.no_grad()
def effects_of(
    engine: Engine,
    solved: Solved,
    rerun: Rerun | PlainRerun,
    variants: Sequence[Variant],
    measured: Checks | None,
    sets: Sequence[Sequence[tuple[str, int, int]]] = (),
) -> tuple[list[Effect], Float[Tensor, "n d"]]:
    """The effects of all variants in one batch, and the final residuals, those of zeroing each of `sets` last."""
    means = None if measured is None else measured.means
    plan = Plan(len(variants) + len(sets))
    for row, variant in enumerate(variants):
        write_variant(plan, row, variant, engine.config, means)
    for row, members in enumerate(sets, len(variants)):
        for sort, layer, index in members:
            write_variant(plan, row, Variant(sort, layer, index, "zero"), engine.config, None)
    outcome = rerun.run(plan, own=True)
    assert outcome.own is not None
    count = len(variants)
    clean = solved.trace.residual[solved.position]
    base = base_of(engine, solved)
    direction = engine.attributor.projections(solved.question).direction.double()
    total = values_of(engine, solved.question, outcome.residual[:count]) - base
    direct = outcome.own[:count].double() @ direction / solved.terms.scale
    rescaled = values_of(engine, solved.question, clean + outcome.own[:count]) - base
    rows = zip(variants, total.tolist(), direct.tolist(), rescaled.tolist(), strict=True)
    return [Effect(*row) for row in rows], outcome.residual


@torch.no_grad()
def values_of(engine: Engine, question: Question, residual: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The value asked, of many final residuals, in float64; no other logit is computed."""
    w, bias = engine.attributor.rows(question)
    return engine.model.final_norm(residual).double() @ w + bias


def base_of(engine: Engine, solved: Solved) -> float:
    """The unedited value, computed as `values_of` does, so that only the edit makes a difference."""
    return float(values_of(engine, solved.question, solved.trace.residual[solved.position][None])[0])


def flags_of(effect: Effect, noise: float, band: Band | None) -> list[str]:
    """`sign`: total and direct disagree in sign. `band`: their ratio leaves this checkpoint's 5-95 % band."""
    flags = []
    if min(abs(effect.total), abs(effect.direct)) > noise and (effect.total > 0) != (effect.direct > 0):
        flags.append("sign")
    ratio = effect.ratio
    if band is not None and ratio is not None and abs(effect.direct) > noise and not band.low <= ratio <= band.high:
        flags.append("band")
    return flags


# ---- the document ----------------------------------------------------------------------------------------------------


def _row(
    config: ModelConfig,
    effects: Sequence[Effect],
    after: dict[str, Any],
    terms: Attribution,
    noise: float,
    measured: Checks | None,
) -> dict[str, Any]:
    first = effects[0].variant
    half = half_of(first.layer, config.n_layers)
    kind = "head" if first.sort == "head" else config.feed_forward.kind(first.index)
    removals = []
    for effect in effects:
        variant = effect.variant
        band = None if measured is None else measured.band(variant.method, half)
        removals.append(
            {
                "method": variant.method,
                "operand": "m" if kind in ("existential", "proportion") and variant.side else variant.side,
                "total": effect.total,
                "direct": effect.direct,
                "direct_rescaled": effect.rescaled,
                "ratio": effect.ratio,
                "flags": flags_of(effect, noise, band),
            }
        )
    array = terms.heads if first.sort == "head" else terms.units
    return {
        "id": str(first.component),
        "kind": kind,
        "glyph": GLYPHS[kind],
        "half": half,
        "term": float(array[first.layer, first.index]),
        "total": removals[0]["total"],
        "direct": removals[0]["direct"],
        "flags": removals[0]["flags"],
        "agrees": not removals[0]["flags"],
        "after": after,
        "removals": removals,
    }


def _half(
    half: str,
    members: Sequence[tuple[str, int, int]],
    terms: Attribution,
    effects: Sequence[Effect],
    together: float,
) -> dict[str, Any]:
    inside = set(members)
    alone = [
        e
        for e in effects
        if e.variant.method == "zero" and (e.variant.sort, e.variant.layer, e.variant.index) in inside
    ]
    direct = sum(e.direct for e in alone)
    return {
        "half": half,
        "n": len(members),
        "direct": direct,
        "absolute": sum(abs(e.direct) for e in alone),
        "alone": sum(e.total for e in alone),
        "together": together,
        "shortfall": None if abs(direct) < NOISE else 1.0 - together / direct,
    }


def _after(engine: Engine, logits: Float[Tensor, " v"], target: int) -> dict[str, Any]:
    """Where the target stands after a removal, and what is predicted then."""
    if not bool(torch.isfinite(logits).all()):
        raise LegibleError("The logits after a removal are not finite numbers.", code="not_finite", status=500)
    best = int(logits.argmax())
    return {"rank": int((logits > logits[target]).sum()) + 1, "prediction": engine.token(best).model_dump()}


def _bands_json(measured: Checks) -> dict[str, Any]:
    document = measured.to_json()
    return {"sample": document["sample"], "bands": document["bands"]}


__all__ = ["Effect", "Variant", "check", "effects_of", "rerun_of", "values_of", "variants_of"]
