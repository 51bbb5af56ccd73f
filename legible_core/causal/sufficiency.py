"""What it takes to build a prediction: the smallest kept set that still emits the token, all else zeroed.

    sufficiency(engine, request)     # a JSON document, described in docs/causal.md

"Through the Looking Glass" section 2.5. Units and channels are zeroed at the read position only; the survivors compute
from what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from legible_core.causal.checks import rerun_of
from legible_core.causal.plain import PlainRerun
from legible_core.causal.rerun import Plan, Rerun
from legible_core.causal.sets import MAX_SEEDS, Components, Members, head_of, kind_names, member_of
from legible_core.errors import LegibleError
from legible_core.reading import ReadingRequest

if TYPE_CHECKING:
    from legible_core.pipeline import Engine

# Prefixes, and sets with a part left out, that are tried in one batch.
AT_ONCE = 24
# Batches that the pruning may take; with a part in each it is far from this.
MAX_ROUNDS = 160
METHOD = (
    "Prefixes of the ranking by signed term: doubled until one emits the token, then the interval before it "
    f"divided into {AT_ONCE} until no shorter prefix is found that does. Then parts of the set are left out, from a "
    "quarter of it down to single components: all parts at once that could each be missed if the rest still emits "
    "the token, else the one that leaves the largest margin. The set is then minimal in single removals, or it is said "
    "that it is not; that is no proof that no smaller set exists."
)


@torch.no_grad()
def sufficiency(engine: Engine, request: ReadingRequest, *, seeds: int = 32, seed: int = 0) -> dict[str, Any]:
    """The smallest kept set found that still makes the target the most probable token, and its random control.

    Every other unit and channel is zeroed at the read position; the survivors compute from what is left. A JSON
    document, described in docs/causal.md. Raises `LegibleError` when the target is not the token predicted.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise LegibleError(f"{seeds} random sets were asked for; ask for 1 to {MAX_SEEDS}.", code="bad_seeds")
    solved = engine.solve(request)
    target = solved.question.target
    if int(solved.logits.argmax()) != target:
        raise LegibleError(
            "Sufficiency asks what emits a token, and this target is not the one that the model predicts here; choose "
            "the most probable token.",
            code="not_predicted",
        )
    search = _Search(engine, rerun_of(engine, solved), Components(engine.config, solved.terms), target)
    prefix = search.prefix()
    kept, minimal = search.prune(prefix)
    components = search.components
    generator = np.random.default_rng(seed)
    like = [components.random_like(kept, generator) for _ in range(seeds)]
    margins = search.margins([kept, *like])
    control = []
    for size in _doubling(len(kept), len(components.terms)):
        emits = search.margins([_any(components, kept, size, generator) for _ in range(min(seeds, AT_ONCE))])
        control.append({"size": size, "n": len(emits), "emit": sum(m > 0 for m in emits) / len(emits)})
        if control[-1]["emit"] == 1.0:
            break
    return {
        **head_of(engine, request, solved, "sufficiency"),
        "method": METHOD,
        "components": len(components.terms),
        "prefix": len(prefix),
        "size": len(kept),
        "minimal": minimal,
        "margin": margins[0],
        "reruns": search.reruns,
        "linear": float(components.terms[kept].sum()),
        "kinds": _kinds(components, kept),
        "members": [member_of(components, flat) for flat in kept.tolist()],
        "random": {"n": seeds, "seed": seed, "emit": sum(m > 0 for m in margins[1:]) / seeds},
        "random_sizes": control,
    }


class _Search:
    """Sets tried by keeping them and zeroing all else."""

    def __init__(self, engine: Engine, rerun: Rerun | PlainRerun, components: Components, target: int) -> None:
        self.engine = engine
        self.rerun = rerun
        self.components = components
        self.target = target
        self.reruns = 0

    def margins(self, sets: Sequence[Members]) -> list[float]:
        """For every kept set, how far the target's logit stands above the best other one."""
        plan = Plan(len(sets))
        for row, members in enumerate(sets):
            self.components.keep(plan, row, members)
        self.reruns += len(sets)
        logits = self.engine.model.logits(self.rerun.run(plan).residual)
        own = logits[:, self.target].clone()
        logits[:, self.target] = -torch.inf
        found: list[float] = (own - logits.max(-1).values).tolist()
        return found

    def prefix(self) -> Members:
        """The shortest prefix of the ranking that was found to emit the token."""
        ranked = self.components.ranked
        sizes = [0, *_doubling(1, len(ranked))]
        margins = self.margins([ranked[:size] for size in sizes])
        # All components kept is the model itself, so the last one emits it.
        first = next(i for i, margin in enumerate(margins) if margin > 0 or i == len(sizes) - 1)
        low, high = (sizes[first - 1] if first else 0), sizes[first]
        while high - low > 1:
            inner = np.unique(np.linspace(low, high, min(AT_ONCE, high - low - 1) + 2).astype(int))[1:-1].tolist()
            good = [margin > 0 for margin in self.margins([ranked[:size] for size in inner])]
            if any(good):
                place = good.index(True)
                low, high = (inner[place - 1] if place else low), inner[place]
            else:
                low = inner[-1]
        return ranked[:high]

    def prune(self, members: Members) -> tuple[Members, bool]:
        """Leave out what can be missed; and whether in the end each single member is needed."""
        size = max(1, len(members) // 4)
        for _ in range(MAX_ROUNDS):
            # The weakest first; parts beyond a batch wait for the next round.
            order = members[np.argsort(self.components.terms[members], kind="stable")]
            parts = [order[start : start + size] for start in range(0, len(order), size)]
            spare, margins = [], []
            for first in range(0, len(parts), AT_ONCE):
                tried = parts[first : first + AT_ONCE]
                found = self.margins([np.setdiff1d(members, part, assume_unique=True) for part in tried])
                spare += [part for part, margin in zip(tried, found, strict=True) if margin > 0]
                margins += [margin for margin in found if margin > 0]
            if not spare:
                if size == 1:
                    return self._ranked(members), True
                size = max(1, size // 2)
                continue
            without = np.setdiff1d(members, np.concatenate(spare), assume_unique=True)
            if len(spare) > 1 and self.margins([without])[0] > 0:
                members = without
            else:
                members = np.setdiff1d(members, spare[int(np.argmax(margins))], assume_unique=True)
            size = min(size, max(1, len(members) // 2))
        return self._ranked(members), False

    def _ranked(self, members: Members) -> Members:
        return members[np.argsort(-self.components.terms[members], kind="stable")]


def _doubling(first: int, last: int) -> list[int]:
    """first, 2·first, 4·first, ... and last itself."""
    sizes = []
    size = max(1, first)
    while size < last:
        sizes.append(size)
        size *= 2
    return [*sizes, last]


def _any(components: Components, kept: Members, size: int, generator: np.random.Generator) -> Members:
    """A random set of a larger size, units and channels in the proportion of all; the kept ones may be in it."""
    if size == len(kept):
        return components.random_like(kept, generator)
    return generator.choice(len(components.terms), size, replace=False)


def _kinds(components: Components, members: Members) -> dict[str, int]:
    names = kind_names(components)
    return {
        names[kind]: int(count)
        for kind, count in zip(*np.unique(components.kinds[members], return_counts=True), strict=True)
    }
