"""Give dead operands a new start without changing what the model computes.

An operand that has become CONSTANT gets no gradient any more, so it stays dead. Its read row can be drawn anew, as
dictionary learning does with dead features, and because the two operations of a pair share their operands the function
can be kept: A∩B + A∖B = A, so a pair whose B is dead computes the same with any B once both write columns are equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legible_core.legibility import MIN_VARIANCE
from legible_core.model import Observed, Transformer
from legible_core.training.optimiser import Optimiser

# New write columns start at this share of the columns' usual size: near nothing, yet with a gradient for their row.
SMALL = 0.1
# Mean within this of 0 or 1: the operand is not merely constant but off or on for good.
RAIL = 0.05


@torch.no_grad()
def revive(
    model: Transformer, optimiser: Optimiser, batches: list[Tensor], generator: torch.Generator
) -> dict[str, int]:
    """Redraw the rows of operands that are CONSTANT over the batches, in place; how many by surface.

    batches: ids (b, t). Dead A, m or sigmoid unit at 0: a new row, and write columns near zero (they wrote nothing).
    Dead B: a new row, and both columns of the pair become the one that was in use. What is always ON and no B carries a
    constant that the model may need, and is left. The optimiser forgets the momentum of what was redrawn.
    """
    dead = _dead(model, batches)
    counts = {"attention": 0, "feed_forward": 0}
    for index, layer in enumerate(model.layers):
        name = f"layers.{index}"
        attention = layer.attention
        if len(dead[index][0]) == 2:
            half = attention.d_head // 2
            (a, on_a), (b, on_b) = dead[index][0]
            first = torch.arange(attention.n_special)[:, None] * attention.d_head + torch.arange(half)
            first = first.to(a.device).flatten()
            counts["attention"] += _pairs(
                (f"{name}.attention.bounded_values", first), (f"{name}.attention.bounded_values", first + half),
                f"{name}.attention.output", first, first + half,
                a, on_a, b, on_b, model, optimiser, generator,
            )  # fmt: skip
        layout = model.config.feed_forward
        operands = dead[index][1]
        device = model.token_embedding.device
        if layout.n_pairs:
            (a, on_a), (b, on_b) = operands[:2]
            rows = torch.arange(layout.n_pairs, device=device)
            counts["feed_forward"] += _pairs(
                (f"{name}.feed_forward.pair_a", rows), (f"{name}.feed_forward.pair_b", rows),
                f"{name}.feed_forward.down", rows, rows + layout.n_pairs,
                a, on_a, b, on_b, model, optimiser, generator,
            )  # fmt: skip
        if layout.n_quantifiers:
            bank = operands[2 if layout.n_pairs else 0]
            counts["feed_forward"] += _single(
                bank, f"{name}.feed_forward", "quantifier", layout.quantifiers.start, model, optimiser, generator
            )
        if layout.n_bounded > layout.n_named:
            counts["feed_forward"] += _single(
                operands[-1], f"{name}.feed_forward", layout.activation, layout.plain.start, model, optimiser, generator
            )
    return counts


def _single(
    bank: tuple[Tensor, Tensor],
    name: str,
    rows: str,
    start: int,
    model: Transformer,
    optimiser: Optimiser,
    generator: torch.Generator,
) -> int:
    """Revive operands that feed one unit each (m, sigmoid units); `start` is the place of the first one's unit."""
    dead, on = bank
    off = (dead & ~on).nonzero()[:, 0]
    _redraw_rows(model, optimiser, f"{name}.{rows}", off, generator)
    _redraw_columns(model, optimiser, f"{name}.down", off + start, generator)
    return len(off)


def _pairs(
    a_rows: tuple[str, Tensor],
    b_rows: tuple[str, Tensor],
    write: str,
    both: Tensor,
    without: Tensor,
    dead_a: Tensor,
    on_a: Tensor,
    dead_b: Tensor,
    on_b: Tensor,
    model: Transformer,
    optimiser: Optimiser,
    generator: torch.Generator,
) -> int:
    """Revive the operands of one surface's pairs; `both` and `without` are the columns of A∩B and A∖B."""
    off_a = dead_a & ~on_a
    silent = off_a.nonzero()[:, 0]
    _redraw_rows(model, optimiser, a_rows[0], a_rows[1][silent], generator)
    _redraw_columns(model, optimiser, write, torch.cat([both[silent], without[silent]]), generator)
    columns = model.get_parameter(write)
    for used, unused, chosen in ((both, without, dead_b & on_b), (without, both, dead_b & ~on_b)):
        where = (chosen & ~off_a).nonzero()[:, 0]
        columns[:, unused[where]] = columns[:, used[where]]
        optimiser.forget(write, columns=torch.cat([used[where], unused[where]]))
    revived_b = dead_b.nonzero()[:, 0]
    _redraw_rows(model, optimiser, b_rows[0], b_rows[1][revived_b], generator)
    return len(silent) + len(revived_b)


def _redraw_rows(model: Transformer, optimiser: Optimiser, name: str, rows: Tensor, generator: torch.Generator) -> None:
    weight = model.get_parameter(name)
    std = 0.6 / math.sqrt(weight.shape[1])
    weight[rows] = (torch.randn(len(rows), weight.shape[1], generator=generator) * std).to(weight)
    bias = dict(model.named_parameters()).get(f"{name}_bias")
    if bias is not None:
        bias[rows] = 0.0
    optimiser.forget(name, rows=rows)


def _redraw_columns(
    model: Transformer, optimiser: Optimiser, name: str, columns: Tensor, generator: torch.Generator
) -> None:
    weight = model.get_parameter(name)
    std = SMALL * weight.std().item()
    weight[:, columns] = (torch.randn(weight.shape[0], len(columns), generator=generator) * std).to(weight)
    optimiser.forget(name, columns=columns)


def _dead(model: Transformer, batches: list[Tensor]) -> list[tuple[list[tuple[Tensor, Tensor]], ...]]:
    """Per layer and surface, per operand bank: which operands are CONSTANT at a rail, and which are mostly ON."""
    layers = model.config.n_layers
    totals: dict[tuple[int, int, int], Tensor] = {}
    tokens = 0
    for ids in batches:
        seen = Observed()
        model.residual(ids, observed=seen)
        tokens += ids.numel()
        for layer in range(layers):
            for surface, banks in enumerate((seen.attention_operands[layer], seen.feed_forward_operands[layer])):
                for number, v in enumerate(banks):
                    v = v.double()
                    moments = torch.stack([v.sum((0, 1)), v.square().sum((0, 1))]).flatten(1)
                    key = (layer, surface, number)
                    totals[key] = totals[key] + moments if key in totals else moments
    found: list[tuple[list[tuple[Tensor, Tensor]], ...]] = [([], []) for _ in range(layers)]
    for (layer, surface, _), (total, squares) in sorted(totals.items(), key=lambda item: item[0]):
        mean = total / tokens
        # CONSTANT somewhere between the rails is another matter: such an operand scales what its pair writes.
        at_rail = (mean < RAIL) | (mean > 1 - RAIL)
        found[layer][surface].append(((squares / tokens - mean * mean < MIN_VARIANCE) & at_rail, mean > 0.5))
    return found
