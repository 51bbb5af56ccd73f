"""What a prediction cannot survive losing: sets of units and channels at one position (`sufficiency` keeps such sets).

    necessity(engine, request)       # the top 1, 2, 4, ... 64 removed, against random sets of the same size and kinds

"Through the Looking Glass" section 2.4. The components are feed-forward units and attention channels, ranked
by their signed term in the value asked. Removed is zeroed, at the read position only. A set's linear sum is what its
terms add up to; the shortfall 1 - (value lost)/(linear sum) is what the components left behind made up for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legible_core.attribution import Attribution, slices
from legible_core.axes import Float
from legible_core.causal.checks import NOISE, base_of, rerun_of, values_of
from legible_core.causal.rerun import Plan
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.reading import ReadingRequest
from legible_core.units import Channel, Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

SCHEMA = 1
SIZES = (1, 2, 4, 8, 16, 32, 64)
SEEDS = 8
MAX_SEEDS = 100

Members = NDArray[np.int64]


class Components:
    """All channels, then all units, of one prediction as one flat array of terms, with the kind of each."""

    def __init__(self, config: ModelConfig, terms: Attribution) -> None:
        self.config = config
        self.n_channels = terms.channels.size
        self.terms = np.concatenate([terms.channels.ravel(), terms.units.ravel()])
        kinds = np.zeros((config.n_layers, config.feed_forward.d_ff), np.int64)
        for number, where in enumerate(slices(config.feed_forward).values(), 1):
            kinds[:, where] = number
        self.kinds = np.concatenate([np.zeros(self.n_channels, np.int64), kinds.ravel()])

    @property
    def ranked(self) -> Members:
        """All components, the one that pushes the value up most first."""
        return np.argsort(-self.terms, kind="stable")

    def random_like(self, members: Members, generator: np.random.Generator) -> Members:
        """As many other components of the same kinds, drawn evenly over all layers; none of `members`, if it can be."""
        drawn = []
        inside = np.zeros(len(self.terms), bool)
        inside[members] = True
        for kind, count in zip(*np.unique(self.kinds[members], return_counts=True), strict=True):
            others = np.flatnonzero((self.kinds == kind) & ~inside)
            if len(others) < count:
                others = np.flatnonzero(self.kinds == kind)
            drawn.append(generator.choice(others, count, replace=False))
        return np.concatenate(drawn) if drawn else members

    def component(self, flat: int) -> Channel | Unit:
        """The component at a place of the flat array."""
        config = self.config
        if flat < self.n_channels:
            layer, rest = divmod(flat, config.n_heads * config.d_head)
            return Channel(layer, *divmod(rest, config.d_head))
        return Unit(*divmod(flat - self.n_channels, config.feed_forward.d_ff))

    def remove(self, plan: Plan, row: int, members: Members) -> None:
        """Zero these in a row of a plan."""
        for flat in members.tolist():
            component = self.component(flat)
            if isinstance(component, Unit):
                plan.unit(row, component.layer, component.unit)
            else:
                plan.channel(row, component.layer, component.head, component.channel)

    def keep(self, plan: Plan, row: int, members: Members) -> None:
        """Zero all but these in a row of a plan."""
        config = self.config
        kept = torch.zeros(len(self.terms), dtype=torch.bool)
        kept[torch.from_numpy(members)] = True
        channels, units = kept[: self.n_channels], kept[self.n_channels :]
        plan.keep(
            row,
            channels.view(config.n_layers, config.n_heads, config.d_head),
            units.view(config.n_layers, config.feed_forward.d_ff),
        )


@dataclass(frozen=True)
class Loss:
    """What removing one set did: its linear sum, the value lost, and whether the leading prediction changed."""

    linear: float
    lost: float
    changed: bool


# ---- necessity -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def necessity(
    engine: Engine, request: ReadingRequest, *, sizes: Sequence[int] = SIZES, seeds: int = SEEDS, seed: int = 0
) -> dict[str, Any]:
    """One prediction with its top k components removed, for every k, against `seeds` random sets each.

    A JSON document, described in docs/causal.md. Raises `LegibleError` for sizes or seeds out of range.
    """
    solved, losses, randoms = removals(engine, request, sizes=sizes, seeds=seeds, seed=seed)
    components = Components(engine.config, solved.terms)
    ranked = components.ranked
    return {
        **head_of(engine, request, solved, "necessity"),
        "seeds": seeds,
        "seed": seed,
        "members": [member_of(components, flat) for flat in ranked[: max(sizes)].tolist()],
        "rows": [
            {
                "k": size,
                "top": _loss_json([loss]),
                "random": _without_shortfall(_loss_json(randoms[number])),
            }
            for number, (size, loss) in enumerate(zip(sizes, losses, strict=True))
        ],
    }


@torch.no_grad()
def removals(
    engine: Engine, request: ReadingRequest, *, sizes: Sequence[int], seeds: int, seed: int
) -> tuple[Solved, list[Loss], list[list[Loss]]]:
    """The loss of every top set, and of the random sets beside it, all in one batch."""
    _check_sizes(engine.config, sizes, seeds)
    solved = engine.solve(request)
    rerun = rerun_of(engine, solved)
    components = Components(engine.config, solved.terms)
    generator = np.random.default_rng(seed)
    ranked = components.ranked
    sets = [ranked[:size] for size in sizes]
    sets += [components.random_like(ranked[:size], generator) for size in sizes for _ in range(seeds)]
    plan = Plan(len(sets))
    for row, members in enumerate(sets):
        components.remove(plan, row, members)
    residual = rerun.run(plan).residual
    lost = (base_of(engine, solved) - values_of(engine, solved.question, residual)).tolist()
    first = int(solved.logits.argmax())
    leading = leaders(engine, residual).tolist()
    found = [
        Loss(float(components.terms[members].sum()), gone, after != first)
        for members, gone, after in zip(sets, lost, leading, strict=True)
    ]
    count = len(sizes)
    return solved, found[:count], [found[count + i * seeds : count + (i + 1) * seeds] for i in range(count)]


def leaders(engine: Engine, residual: Float[Tensor, "n d"], rows: int = 64) -> Tensor:
    """The most probable token of every row; the logits of few rows at a time are in memory."""
    return torch.cat([engine.model.logits(chunk).argmax(-1) for chunk in residual.split(rows)])


def held_out(rows: Sequence[tuple[list[Loss], list[list[Loss]]]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Necessity over many predictions: per k the means over them of the top set and of its random sets."""
    return [
        {
            "k": size,
            "top": _loss_json([top[number] for top, _ in rows]),
            "random": _without_shortfall(_loss_json([loss for _, random in rows for loss in random[number]])),
        }
        for number, size in enumerate(sizes)
    ]


def _loss_json(losses: Sequence[Loss]) -> dict[str, Any]:
    """Means, and the shortfall of their sums: 1 - Σ lost / Σ linear."""
    linear, lost = sum(loss.linear for loss in losses), sum(loss.lost for loss in losses)
    count = len(losses)
    return {
        "n": count,
        "changed": sum(loss.changed for loss in losses) / count,
        "lost": lost / count,
        "linear": linear / count,
        "shortfall": 1.0 - lost / linear if linear > NOISE * count else None,
    }


def _without_shortfall(row: dict[str, Any]) -> dict[str, Any]:
    """The terms of a random set cancel, so its shortfall would be a quotient of two small numbers."""
    return {key: value for key, value in row.items() if key != "shortfall"}


def _check_sizes(config: ModelConfig, sizes: Sequence[int], seeds: int) -> None:
    count = config.n_layers * (config.n_heads * config.d_head + config.feed_forward.d_ff)
    for size in sizes:
        if not 1 <= size <= count // 2:
            raise LegibleError(f"A set of {size} components was asked for; ask for 1 to {count // 2}.", code="bad_size")
    if not 1 <= seeds <= MAX_SEEDS:
        raise LegibleError(f"{seeds} random sets were asked for; ask for 1 to {MAX_SEEDS}.", code="bad_seeds")


# ---- what the documents say of a prediction and its components -------------------------------------------------------


def head_of(engine: Engine, request: ReadingRequest, solved: Solved, kind: str) -> dict[str, Any]:
    question, logits = solved.question, solved.logits
    probability = float(torch.softmax(logits.double(), 0)[question.target])
    return {
        "schema": SCHEMA,
        "kind": kind,
        "digest": request.digest,
        "checkpoint": engine.checkpoint.model_dump(),
        "dtype": engine.dtype,
        "position": solved.position,
        "target": engine.token(question.target).model_dump(),
        "contrast": None if question.contrast is None else engine.token(question.contrast).model_dump(),
        "relative_to": question.relative_to,
        "value": solved.terms.value,
        "probability": probability,
    }


def member_of(components: Components, flat: int) -> dict[str, Any]:
    component = components.component(flat)
    return {
        "id": str(component),
        "kind": kind_names(components)[components.kinds[flat]],
        "term": float(components.terms[flat]),
    }


def kind_names(components: Components) -> list[str]:
    return ["channel", *slices(components.config.feed_forward)]
