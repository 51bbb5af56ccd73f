"""Give dead operands a new start without changing what the model computes.

An operand that has become CONSTANT gets no gradient any more, so it stays dead. Its read row can be drawn anew, as
dictionary learning does with dead features, and because the two operations of a pair share their operands the function
can be kept: with B constant at c, A∩B and A∖B write A·(c·w₁ + (1-c)·w₂), so the pair computes the same with any B once
both write columns are that sum.

A new row is random, or read off the data (`rows="data"`): a random token's state is taken, the tokens whose states are
most like it are its neighbours, and the row is the ridge regression of "is a neighbour" on the states. Such an operand
is born a detector of something that occurs, ON on a chosen small share of the tokens; a random row is born dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from legible_core.legibility import MIN_VARIANCE
from legible_core.model import Observed, Transformer
from legible_core.training.optimiser import Optimiser

# New write columns start at this share of the columns' usual size: near nothing, yet with a gradient for their row.
SMALL = 0.1
# Mean within this of 0 or 1: the operand is not merely constant but off or on for good.
RAIL = 0.05
# A row from the data is ON on a share of tokens drawn log-uniformly from this range.
SHARES = (0.01, 0.08)
# Its pre-activation is aimed at ±this; ON (a value above 0.9) begins at LOGIT.
AIM, LOGIT = 4.0, math.log(9.0)
# A pair whose two write columns are both below this share of the columns' median size hardly writes at all.
QUIET = 0.3


@torch.no_grad()
def revive(
    model: Transformer,
    optimiser: Optimiser,
    batches: list[Tensor],
    generator: torch.Generator,
    rows: Literal["random", "data"] = "random",
) -> dict[str, int]:
    """Redraw the rows of operands that are CONSTANT over the batches, in place; how many by surface.

    batches: ids (b, t). Dead A, m or sigmoid unit at 0: a new row, and write columns near zero (they wrote nothing).
    Dead B: a new row, and both columns of the pair become what the pair wrote. What is constant elsewhere and no B
    carries a constant that the model may need, and is left, unless rows come from the data and the pair hardly writes.
    With rows from the data, operands constant between the rails count as dead too. The optimiser forgets the momentum
    of what was redrawn.
    """
    states, values = _observe(model, batches)
    counts = {"attention": 0, "feed_forward": 0}
    for index, layer in enumerate(model.layers):
        name, attention, layout = f"layers.{index}", layer.attention, model.config.feed_forward
        device = model.token_embedding.device
        context = _Context(model, optimiser, generator, states[index], rows)
        if len(values[index][0]) == 2:
            half = attention.d_head // 2
            first = torch.arange(attention.n_special)[:, None] * attention.d_head + torch.arange(half)
            first = first.to(device).flatten()
            read = f"{name}.attention.bounded_values"
            counts["attention"] += _pairs(
                context, 0, (read, first), (read, first + half), f"{name}.attention.output", first, first + half,
                *values[index][0],
            )  # fmt: skip
        banks = values[index][1]
        if layout.n_pairs:
            pairs = torch.arange(layout.n_pairs, device=device)
            counts["feed_forward"] += _pairs(
                context, 1, (f"{name}.feed_forward.pair_a", pairs), (f"{name}.feed_forward.pair_b", pairs),
                f"{name}.feed_forward.down", pairs, pairs + layout.n_pairs, *banks[:2],
            )  # fmt: skip
        # Operands that feed one unit each: the quantifiers' m, and sigmoid units, which are their own.
        singles = [("quantifier", layout.quantifiers.start)] if layout.n_quantifiers else []
        singles += [(layout.activation, layout.plain.start)] if layout.n_bounded > layout.n_named else []
        for (matrix, start), bank in zip(singles, banks[2 if layout.n_pairs else 0 :], strict=True):
            off = (bank.dead(rows) & (bank.mean < RAIL)).nonzero()[:, 0]
            context.redraw_rows(1, f"{name}.feed_forward.{matrix}", off)
            context.redraw_columns(f"{name}.feed_forward.down", off + start)
            counts["feed_forward"] += len(off)
    return counts


@dataclass(frozen=True)
class _Bank:
    """Mean and variance over tokens of the operands of one bank, float64."""

    mean: Tensor
    variance: Tensor

    def dead(self, rows: str) -> Tensor:
        """CONSTANT; with random rows only at a rail, since a constant between them scales what its pair writes."""
        at_rail = (self.mean < RAIL) | (self.mean > 1 - RAIL)
        return (self.variance < MIN_VARIANCE) & (at_rail | (rows == "data"))


@dataclass(frozen=True)
class _Context:
    """What redrawing needs of one layer; `states` holds the normed inputs (n, d) of its attention and feed-forward."""

    model: Transformer
    optimiser: Optimiser
    generator: torch.Generator
    states: tuple[Tensor, Tensor]
    rows: str

    def redraw_rows(self, surface: int, name: str, rows: Tensor) -> None:
        if not len(rows):
            return
        weight = self.model.get_parameter(name)
        if self.rows == "data":
            fresh = from_data(self.states[surface], len(rows), self.generator)
        else:
            std = 0.6 / math.sqrt(weight.shape[1])
            fresh = torch.randn(len(rows), weight.shape[1], generator=self.generator) * std
        weight[rows] = fresh.to(weight)
        bias = dict(self.model.named_parameters()).get(f"{name}_bias")
        if bias is not None:
            bias[rows] = 0.0
        self.optimiser.forget(name, rows=rows)

    def redraw_columns(self, name: str, columns: Tensor) -> None:
        weight = self.model.get_parameter(name)
        std = SMALL * weight.std().item()
        weight[:, columns] = (torch.randn(weight.shape[0], len(columns), generator=self.generator) * std).to(weight)
        self.optimiser.forget(name, columns=columns)


def _pairs(
    context: _Context,
    surface: int,
    a_rows: tuple[str, Tensor],
    b_rows: tuple[str, Tensor],
    write: str,
    both: Tensor,
    without: Tensor,
    a: _Bank,
    b: _Bank,
) -> int:
    """Revive the operands of one surface's pairs; `both` and `without` are the columns of A∩B and A∖B."""
    columns = context.model.get_parameter(write)
    silent = a.dead(context.rows) & (a.mean < RAIL)
    if context.rows == "data":
        sizes = columns.norm(dim=0)
        quiet = torch.maximum(sizes[both], sizes[without]) < QUIET * sizes.median()
        silent = silent | (a.dead("data") & quiet)
    dead_b = b.dead(context.rows)
    chosen = silent.nonzero()[:, 0]
    context.redraw_rows(surface, a_rows[0], a_rows[1][chosen])
    context.redraw_columns(write, torch.cat([both[chosen], without[chosen]]))
    where = (dead_b & ~silent).nonzero()[:, 0]
    # At a rail one column was in use, and it is kept exactly; in between both were, in the share of B's mean.
    share = b.mean[where].to(columns)
    share = torch.where(share > 1 - RAIL, 1.0, torch.where(share < RAIL, 0.0, share))
    merged = columns[:, both[where]] * share + columns[:, without[where]] * (1 - share)
    columns[:, both[where]] = merged
    columns[:, without[where]] = merged
    context.optimiser.forget(write, columns=torch.cat([both[where], without[where]]))
    revived = dead_b.nonzero()[:, 0]
    context.redraw_rows(surface, b_rows[0], b_rows[1][revived])
    return len(chosen) + len(revived)


def from_data(states: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Read rows (count, d) of detectors of what occurs in `states` (n, d), the normed inputs of a layer.

    Each row's pre-activation passes LOGIT on about the share of states that it was aimed at (between SHARES) and is
    ridge-regressed to ±AIM on neighbours and others. Float32; deterministic given the generator.
    """
    n, d = states.shape
    states = states.float()
    centred = torch.nn.functional.normalize(states - states.mean(0), dim=1)
    seeds = torch.randint(n, (count,), generator=generator)
    low, high = (math.log(share) for share in SHARES)
    shares = torch.exp(low + (high - low) * torch.rand(count, generator=generator))
    similar = centred @ centred[seeds.to(states.device)].T
    ordered = similar.sort(dim=0, descending=True).values
    cut = ordered[(shares * n).long().clamp(1, n - 1).to(states.device), torch.arange(count, device=states.device)]
    # Both sides weigh the same, or "never" would be a good answer for a rare neighbourhood.
    near = (similar >= cut).float()
    gram = states.T @ states / n + 0.01 * torch.eye(d, device=states.device)
    rows = torch.empty(count, d, device=states.device)
    for index in range(count):
        chosen = states[near[:, index] > 0]
        weight = max(1.0, 0.25 / shares[index].item())
        system = gram + (weight - 1) * chosen.T @ chosen / n
        aim = (weight + 1) * chosen.sum(0) / n - states.mean(0)
        rows[index] = AIM * torch.linalg.solve(system, aim)
    reached = (states @ rows.T).sort(dim=0, descending=True).values
    level = reached[(shares * n).long().clamp(1, n - 1).to(states.device), torch.arange(count, device=states.device)]
    return rows * (LOGIT / level.clamp(min=0.5))[:, None]


def _observe(
    model: Transformer, batches: list[Tensor]
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[list[_Bank], list[_Bank]]]]:
    """Per layer: the normed inputs of both sublayers, and mean and variance of every operand bank of both surfaces."""
    layers = model.config.n_layers
    totals: dict[tuple[int, int, int], Tensor] = {}
    inputs: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(layers)]
    tokens = 0
    handles = []
    for layer, kept in zip(model.layers, inputs, strict=True):
        for norm, into in zip((layer.attention_norm, layer.feed_forward_norm), kept, strict=True):
            handles.append(norm.register_forward_hook(lambda _m, _i, out, into=into: into.append(out.flatten(0, 1))))
    try:
        for ids in batches:
            seen = Observed()
            model.residual(ids, observed=seen)
            tokens += ids.numel()
            for layer_index in range(layers):
                surfaces = (seen.attention_operands[layer_index], seen.feed_forward_operands[layer_index])
                for surface, banks in enumerate(surfaces):
                    for number, v in enumerate(banks):
                        v = v.double()
                        moments = torch.stack([v.sum((0, 1)), v.square().sum((0, 1))]).flatten(1)
                        key = (layer_index, surface, number)
                        totals[key] = totals[key] + moments if key in totals else moments
    finally:
        for handle in handles:
            handle.remove()
    found: list[tuple[list[_Bank], list[_Bank]]] = [([], []) for _ in range(layers)]
    for (layer_index, surface, _), (total, squares) in sorted(totals.items(), key=lambda item: item[0]):
        mean = total / tokens
        found[layer_index][surface].append(_Bank(mean, squares / tokens - mean * mean))
    return [(torch.cat(first), torch.cat(second)) for first, second in inputs], found
