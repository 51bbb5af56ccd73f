"""What feeds an operand: its upstream sources, credited by the exact sum and checked by removal.

    sources(engine, request, operand)             # direct, mediated, answered, and siblings

"Through the Looking Glass", its account of what drives a unit (appendix D.1): the exact sum of an operand's
pre-activation credits every upstream component with its own term; removing the credited ones, beside random upstream
sets of the same size and kinds, shows whether they are causes. A direct source writes into what the operand reads; a
mediated one reaches it only through something else; a sibling reads what the operand reads, and writes nothing into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from legible_core.attribution import Attribution, optional
from legible_core.axes import Float
from legible_core.causal.checks import rerun_of
from legible_core.causal.paths import facts_of, remove
from legible_core.causal.plain import PlainRerun
from legible_core.causal.rerun import Plan, Rerun
from legible_core.causal.sets import MAX_SEEDS, Components
from legible_core.errors import LegibleError
from legible_core.model.activations import FUNCTIONS
from legible_core.reading import ReadingRequest
from legible_core.reads import Read, read_of
from legible_core.units import GLYPHS, Component, Head, Unit
from legible_core.upstream import attribute_read

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

# Sources shown, and of the sum credited to sources the share that the removed set has.
TOP = 12
DRIVE = 0.9
SEEDS = 16
# Upstream components that are removed one by one; more than these are left to the sum.
SINGLES = 64
# A sibling's read row and the operand's look alike at this cosine and above.
ALIKE = 0.3


@torch.no_grad()
def sources(
    engine: Engine,
    request: ReadingRequest,
    operand: Component,
    *,
    top: int = TOP,
    seeds: int = SEEDS,
    seed: int = 0,
) -> dict[str, Any]:
    """What feeds an operand at `request.position`: credited terms against removals, alone and as a set.

    A JSON document, described in docs/causal.md. Raises `NotFound` for an operand that does not exist, and
    `LegibleError` for one with nothing upstream.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise LegibleError(f"{seeds} random sets were asked for; ask for 1 to {MAX_SEEDS}.", code="bad_seeds")
    read = read_of(engine.config, operand)
    solved = engine.solve(request)
    rerun = rerun_of(engine, solved)
    terms = attribute_read(engine.model, solved.trace, read, solved.position, engine.dtype)
    terms.check()
    upstream = Upstream(engine, read, terms)
    if not upstream.allowed.any():
        raise LegibleError(f"Nothing but the embeddings lies upstream of {operand}.", code="no_sources")
    credited = upstream.credited()
    alike = upstream.alike()
    generator = np.random.default_rng(seed)
    singles = [*upstream.strongest(SINGLES), *(one for one in alike if one not in upstream.strongest(SINGLES))]
    randoms = [upstream.random_like(credited, generator) for _ in range(seeds)]
    lone = upstream.any_of(4 * seeds, set(credited), generator)
    found = upstream.removed(rerun, [credited, *randoms, *([one] for one in singles), *([one] for one in lone)])
    base = upstream.value(_entering(solved, read)[None])[0]
    changes = [value - base for value in found]
    alone = dict(zip(singles, changes[1 + seeds :], strict=False))
    # What a random single component does to the pre-activation: effects below its 95 % quantile are nothing.
    floor = float(np.quantile(np.abs(changes[1 + seeds + len(singles) :]), 0.95))
    rows = [upstream.row(one, alone[one], floor) for one in singles]
    rows = sorted(rows, key=lambda row: -max(abs(row["direct"]), abs(row["total"])))
    siblings = [row for row in rows if row["sort"] == "sibling"]
    drive = -float(upstream.flat[credited].sum())
    return {
        **facts_of(engine, request, solved),
        "kind": "sources",
        "operand": str(operand),
        "pre_activation": base,
        "activation": upstream.activation(base),
        "drive": DRIVE,
        "floor": floor,
        "credited": {
            "n": len(credited),
            "members": [str(upstream.component(one)) for one in credited[: 4 * TOP]],
            "linear": drive,
            "total": changes[0],
            "activation": upstream.activation(found[0]),
        },
        "random": {
            "n": seeds,
            "seed": seed,
            "total": float(np.mean(changes[1 : 1 + seeds])),
            "absolute": float(np.mean(np.abs(changes[1 : 1 + seeds]))),
            "largest": float(np.max(np.abs(changes[1 : 1 + seeds]))),
            "activation": float(np.mean([upstream.activation(value) for value in found[1 : 1 + seeds]])),
        },
        "sources": rows[:top],
        "siblings": siblings[:top],
    }


class Upstream:
    """The heads and units upstream of a read, as one flat array: all heads of the model, then all units."""

    def __init__(self, engine: Engine, read: Read, terms: Attribution) -> None:
        self.engine = engine
        self.read = read
        config = engine.config
        self.heads = config.n_layers * config.n_heads
        self.flat = np.concatenate([terms.heads.ravel(), terms.units.ravel()])
        heads_in, units_in = read.upstream()
        self.allowed = np.zeros(len(self.flat), bool)
        self.allowed[: heads_in * config.n_heads] = True
        self.allowed[self.heads : self.heads + units_in * config.feed_forward.d_ff] = True
        kinds = Components(config, terms).kinds
        self.kinds = np.concatenate([np.zeros(self.heads, np.int64), kinds[-(len(self.flat) - self.heads) :]])
        layer: Any = engine.model.layers[read.layer]
        part = getattr(layer, read.sublayer)
        self.norm = getattr(layer, f"{read.sublayer}_norm")
        matrix, bias = getattr(part, read.matrix), optional(part, f"{read.matrix}_bias")
        self.row_vector = matrix[read.row]
        self.bias = 0.0 if bias is None else float(bias[read.row])
        self._kept: dict[int, Tensor] = {}

    def component(self, flat: int) -> Head | Unit:
        if flat < self.heads:
            return Head(*divmod(flat, self.engine.config.n_heads))
        return Unit(*divmod(flat - self.heads, self.engine.config.feed_forward.d_ff))

    def strongest(self, count: int) -> list[int]:
        """The upstream components of largest absolute term."""
        order = np.argsort(-np.abs(np.where(self.allowed, self.flat, 0.0)), kind="stable")
        return [int(i) for i in order[:count] if self.allowed[i]]

    def credited(self) -> list[int]:
        """The sources that drive the operand where it stands: largest first, until `DRIVE` of their signed sum.

        Signed: the components' whole sum, and the sources that push in its direction.
        """
        net = float(self.flat[self.allowed].sum())
        sign = 1.0 if net >= 0 else -1.0
        order = np.argsort(-sign * np.where(self.allowed, self.flat, 0.0), kind="stable")
        found: list[int] = []
        reached = 0.0
        for flat in order.tolist():
            if not self.allowed[flat] or (found and reached >= DRIVE * abs(net)) or sign * self.flat[flat] <= 0:
                break
            found.append(flat)
            reached += sign * float(self.flat[flat])
        return found or self.strongest(1)

    def random_like(self, members: Sequence[int], generator: np.random.Generator) -> list[int]:
        """As many other upstream components of the same kinds."""
        drawn: list[int] = []
        inside = np.zeros(len(self.flat), bool)
        inside[list(members)] = True
        for kind, count in zip(*np.unique(self.kinds[list(members)], return_counts=True), strict=True):
            free = np.flatnonzero(self.allowed & (self.kinds == kind) & ~inside)
            if len(free) < count:
                free = np.flatnonzero(self.allowed & (self.kinds == kind))
            drawn += generator.choice(free, count, replace=False).tolist()
        return drawn

    def any_of(self, count: int, without: set[int], generator: np.random.Generator) -> list[int]:
        """Upstream components drawn evenly, the credited ones left out where others are."""
        free = [one for one in np.flatnonzero(self.allowed).tolist() if one not in without]
        drawn: list[int] = generator.choice(free or np.flatnonzero(self.allowed), count).tolist()
        return drawn

    def alike(self) -> list[int]:
        """Upstream units whose read rows look most like the operand's, each in its own norm's frame."""
        layers = range(self.read.upstream()[1])
        if not layers:
            return []
        cosines = torch.cat([self._cosines(layer) for layer in layers])
        best, where = cosines.topk(min(TOP, len(cosines)))
        pairs = zip(best.tolist(), where.tolist(), strict=True)
        return [self.heads + flat for cosine, flat in pairs if cosine >= ALIKE]

    def cosine(self, flat: int) -> float | None:
        """The largest cosine of the operand's read direction with a row that a unit reads; None for a head."""
        component = self.component(flat)
        if isinstance(component, Head):
            return None
        return float(self._cosines(component.layer)[component.unit])

    def removed(self, rerun: Rerun | PlainRerun, sets: Sequence[Sequence[int]]) -> list[float]:
        """The operand's pre-activation with each set of sources zeroed."""
        plan = Plan(len(sets))
        for row, members in enumerate(sets):
            for flat in members:
                remove(plan, row, self.component(flat))
        sublayer: Any = self.read.sublayer
        return self.value(rerun.entering(plan, self.read.layer, sublayer))

    def value(self, x: Float[Tensor, "n d"]) -> list[float]:
        """The pre-activation of the operand for each stream that enters its sublayer."""
        y = self.norm(x).to(self.row_vector.dtype).float()
        found: list[float] = (F.linear(y, self.row_vector.float()[None])[:, 0] + self.bias).tolist()
        return found

    def activation(self, pre: float) -> float:
        """The operand's value for a pre-activation."""
        functions: dict[Any, Any] = {"linear": lambda x: x, **FUNCTIONS, "sigmoid": torch.sigmoid}
        return float(functions[self.read.function](torch.tensor(pre)))

    def row(self, flat: int, total: float, floor: float) -> dict[str, Any]:
        """One source: its own term taken away, what its removal did, and which sort it is."""
        component = self.component(flat)
        kind = "head" if isinstance(component, Head) else self.engine.config.feed_forward.kind(component.unit)
        direct, cosine = -float(self.flat[flat]), self.cosine(flat)
        return {
            "id": str(component),
            "kind": kind,
            "glyph": GLYPHS[kind],
            "direct": direct,
            "total": total,
            "cosine": cosine,
            "sort": sort_of(direct, total, cosine, floor),
        }

    def _cosines(self, layer: int) -> Tensor:
        """Per unit of a layer the largest |cosine| of its read rows with the operand's, through the norms' gains."""
        if layer not in self._kept:
            config = self.engine.config
            part: Any = self.engine.model.layers[layer]
            own = _direction(self.row_vector[None], self.norm.gain)
            best = torch.zeros(config.feed_forward.d_ff)
            for name in ("pair_a", "pair_b", "quantifier", config.feed_forward.activation):
                matrix = optional(part.feed_forward, name)
                if matrix is None:
                    continue
                cosines = F.cosine_similarity(_direction(matrix, part.feed_forward_norm.gain), own).abs().cpu()
                for where in _units_of(config.feed_forward, name):
                    best[where] = torch.maximum(best[where], cosines)
            self._kept[layer] = best
        return self._kept[layer]


def sort_of(direct: float, total: float, cosine: float | None, floor: float) -> str:
    """direct, mediated, answered, sibling or none; `floor` is what a random component does.

    direct: its own term and its removal are both above the floor, agree in sign, and the term is at least half of it.
    mediated: its removal is above the floor, its own term is not the half of that. answered: its own term is above the
    floor, yet its removal is not, for others made up for it. sibling: neither, though it reads what the operand reads.
    """
    if abs(total) > floor:
        own = abs(direct) > floor and (direct > 0) == (total > 0) and abs(direct) >= abs(total) / 2
        return "direct" if own else "mediated"
    if abs(direct) > floor:
        return "answered"
    return "sibling" if cosine is not None and cosine >= ALIKE else "none"


def _entering(solved: Solved, read: Read) -> Tensor:
    stream: Tensor = getattr(solved.trace.layers[read.layer], f"{read.sublayer}_in")[solved.position]
    return stream


def _direction(rows: Tensor, gain: Tensor) -> Tensor:
    """Read rows as directions of the residual stream: times the norm's gain, without the constant part."""
    seen = rows.float() * gain.float()
    return seen - seen.mean(-1, keepdim=True)


def _units_of(layout: Any, name: str) -> list[slice]:
    if name in ("pair_a", "pair_b"):
        return [layout.intersections, layout.differences]
    return [layout.quantifiers if name == "quantifier" else layout.plain]
