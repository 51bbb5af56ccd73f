"""How an effect travels: how much of one component's effect goes through a later one.

    mediation(engine, request, first, second)     # how much of first's effect on the value goes through second

Mediation ("Through the Looking Glass" section 4, its closing part): with r₀ and r the value before and after the first
is removed, and r₀ᵃᵇˡ and rᵃᵇˡ the same pair with the second's write column zeroed at the read position,

    m = 1 - (r₀ᵃᵇˡ - rᵃᵇˡ) / (r₀ - r)

Each arm stands against its own baseline: removing a component that promotes the target moves that baseline by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legible_core.causal.checks import NOISE, base_of, rerun_of, values_of
from legible_core.causal.rerun import Plan
from legible_core.errors import LegibleError
from legible_core.reading import ReadingRequest
from legible_core.reads import check_component
from legible_core.units import Channel, Component, Head, Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

SCHEMA = 1


@torch.no_grad()
def mediation(engine: Engine, request: ReadingRequest, first: Component, second: Component) -> dict[str, Any]:
    """The four arms, m on the value and on the target's rank, and the first's effect divided.

    `direct` is the first's own term, `through` the part that goes through the second, `other` the rest. A JSON
    document, described in docs/causal.md. Raises `NotFound` for a component that does not exist and `LegibleError`
    where the second does not read what the first writes.
    """
    a, b = (_component(engine, one) for one in (first, second))
    if _depth(a) >= _depth(b):
        raise LegibleError(
            f"{b} is not later than {a}, so nothing of {a} can go through it; name the earlier component first.",
            code="bad_path",
        )
    solved = engine.solve(request)
    rerun = rerun_of(engine, solved)
    plan = Plan(3)
    for row, members in enumerate(((a,), (b,), (a, b))):
        for member in members:
            remove(plan, row, member)
    outcome = rerun.run(plan, own=True)
    assert outcome.own is not None
    values = values_of(engine, solved.question, outcome.residual).tolist()
    ranks = [_rank(row, solved.question.target) for row in engine.model.logits(outcome.residual)]
    arms = {
        "intact": (base_of(engine, solved), values[0]),
        "second_removed": (values[1], values[2]),
    }
    by_rank = {
        "intact": (_rank(solved.logits, solved.question.target), ranks[0]),
        "second_removed": (ranks[1], ranks[2]),
    }
    noise = max(NOISE, 2 * solved.terms.tolerance)
    effect, left = (arm[1] - arm[0] for arm in arms.values())
    direct = float(outcome.own[0].double() @ engine.attributor.projections(solved.question).direction.double())
    direct /= solved.terms.scale
    through = effect - left
    return {
        **facts_of(engine, request, solved),
        "kind": "path",
        "first": str(a),
        "second": str(b),
        "value": solved.terms.value,
        "noise": noise,
        "arms": {name: {"before": arm[0], "after": arm[1], "effect": arm[1] - arm[0]} for name, arm in arms.items()},
        "ranks": {name: {"before": arm[0], "after": arm[1]} for name, arm in by_rank.items()},
        "m": None if abs(effect) <= noise else through / effect,
        "m_rank": None if by_rank["intact"][0] == by_rank["intact"][1] else _m(by_rank),
        "effect": effect,
        "direct": direct,
        "through": through,
        "other": effect - direct - through,
        "why_undefined": None
        if abs(effect) > noise
        else f"removing {a} changes the value by {effect:.2g} only, so there is no effect to divide",
    }


def _component(engine: Engine, component: Component) -> Head | Channel | Unit:
    check_component(engine.config, component)
    if not isinstance(component, Head | Channel | Unit):
        raise LegibleError(
            f"{component} has no write of its own; name a unit such as L5.u263, a head such as L5.h2 or a channel.",
            code="bad_component",
        )
    return component


def _depth(component: Head | Channel | Unit) -> int:
    """Heads of a layer write before its units; components of one sublayer do not read each other."""
    return 2 * component.layer + isinstance(component, Unit)


def remove(plan: Plan, row: int, component: Head | Channel | Unit) -> None:
    """Zero one component in a row of a plan."""
    match component:
        case Head(layer, head):
            plan.head(row, layer, head)
        case Channel(layer, head, channel):
            plan.channel(row, layer, head, channel)
        case Unit(layer, unit):
            plan.unit(row, layer, unit)


def _rank(logits: Tensor, target: int) -> int:
    return int((logits > logits[target]).sum()) + 1


def _m(ranks: dict[str, tuple[int, int]]) -> float:
    effect, left = (arm[0] - arm[1] for arm in ranks.values())
    return 1.0 - left / effect


def facts_of(engine: Engine, request: ReadingRequest, solved: Solved) -> dict[str, Any]:
    """What every document says of the reading."""
    question = solved.question
    return {
        "schema": SCHEMA,
        "digest": request.digest,
        "checkpoint": engine.checkpoint.model_dump(),
        "dtype": engine.dtype,
        "position": solved.position,
        "target": engine.token(question.target).model_dump(),
        "contrast": None if question.contrast is None else engine.token(question.contrast).model_dump(),
        "relative_to": question.relative_to,
    }
