"""The re-run where no batch is possible: one plain edited forward for each row, same answers, same interface.

For readings that have edits of their own (they may change earlier positions, weights and memories) and for ordinary
models, whose layers are another library's. It is also what the tests hold the batched re-run to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from legible_core.attribution import optional
from legible_core.axes import Float
from legible_core.causal.kept import kept_rows
from legible_core.causal.rerun import Outcome, Plan, Sublayer
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.trace import Trace
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

NAMES: dict[str, Any] = {
    "heads": lambda layer, at: Head(layer, *at),
    "channels": lambda layer, at: Channel(layer, *at),
    "units": lambda layer, at: Unit(layer, *at),
}


class PlainRerun:
    """Re-runs of one position of a trace by whole forwards, on top of the edits that the trace was made with."""

    def __init__(self, model: Any, trace: Trace, position: int) -> None:
        self.model = model
        self.trace = trace
        self.position = position

    @torch.no_grad()
    def run(self, plan: Plan, *, own: bool = False) -> Outcome:
        """As `Rerun.run`; the rows that keep a set and zero all else are made in one batch, and have no other edit."""
        if plan.kept:
            assert len(plan.kept) == plan.n_rows
            assert not plan.layers
            assert not own
            channels, units = (torch.stack(masks) for masks in zip(*plan.kept.values(), strict=True))
            like = self.trace.residual
            rows = kept_rows(self.model, self.trace, self.position, channels.to(like.device), units.to(like.device))
            return Outcome(rows, None)
        final, written = [], []
        for row in range(plan.n_rows):
            trace = self._traced(plan, row)
            final.append(trace.residual[self.position])
            if own:
                written.append(self._own(plan, row, trace))
        return Outcome(torch.stack(final), torch.stack(written) if own else None)

    @torch.no_grad()
    def entering(self, plan: Plan, layer: int, sublayer: Sublayer) -> Float[Tensor, "n d"]:
        """As `Rerun.entering`."""
        traces = (self._traced(plan, row) for row in range(plan.n_rows))
        return torch.stack([getattr(trace.layers[layer], f"{sublayer}_in")[self.position] for trace in traces])

    def _traced(self, plan: Plan, row: int) -> Trace:
        if plan.starts[row] is None:
            return self.trace
        edits = edits_of(plan, row, self.position, self.model.config)
        made: Trace = self.model.trace(self.trace.ids, (*self.trace.edits, *edits))
        return made

    def _own(self, plan: Plan, row: int, trace: Trace) -> Float[Tensor, " d"]:
        """What the row's first edits wrote otherwise, at its first layer."""
        first = plan.starts[row]
        if first is None:
            return torch.zeros_like(self.trace.residual[self.position])
        name, values, matrix = (
            ("attention", "z", "output") if row in plan.in_attention else ("feed_forward", "hidden", "down")
        )
        layer: Any = self.model.layers[first]
        part, recorded = getattr(layer, name), self.trace.layers[first]
        was, now = (getattr(t.layers[first], values)[self.position].float().flatten() for t in (self.trace, trace))
        wrote: Tensor = getattr(part, matrix).float() @ (now - was)
        gain, divisor = optional(part, "post_gain"), getattr(recorded, f"{name}_divisor", None)
        wrote = wrote if gain is None else wrote * gain.float()
        return wrote if divisor is None else wrote / divisor[self.position]


def edits_of(plan: Plan, row: int, position: int, config: ModelConfig) -> list[Edit]:
    """One row of a plan in the vocabulary of edits, at the read position."""
    where = (position,)
    found: list[Edit] = []
    for layer, changes in sorted(plan.layers.items()):
        for name, make in NAMES.items():
            found += [_edit(make(layer, at), f, o, where) for at, f, o in _entries(getattr(changes, name), row)]
        for name, affine in changes.head_atoms.items():
            for (head, index), factor, offset in _entries(affine, row):
                part = HeadOperand(layer, head, index, "A" if name == "head_a" else "B")
                found.append(_edit(part, factor, offset, where))
        for name, affine in changes.atoms.items():
            for (index,), factor, offset in _entries(affine, row):
                atom: Component = QuantifierOperand(layer, config.feed_forward.quantifiers.start + index)
                if name != "quantifier":
                    atom = Operand(layer, index, "A" if name == "pair_a" else "B")
                found.append(_edit(atom, factor, offset, where))
        for other, unit, side in changes.flips:
            if other == row and config.feed_forward.kind(unit) in ("existential", "proportion"):
                found.append(Edit(QuantifierOperand(layer, unit), "flip", None, where))
            elif other == row:
                found.append(Edit(Unit(layer, unit), "flip_a" if side == "A" else "flip_b", None, where))
    return found


def _entries(affine: Any, row: int) -> Iterator[tuple[tuple[int, ...], float, float]]:
    for other, at, factor, offset in zip(affine.rows, affine.at, affine.factors, affine.offsets, strict=True):
        if other == row:
            yield at, factor, offset


def _edit(component: Any, factor: float, offset: float, where: tuple[int, ...]) -> Edit:
    if factor == -1.0 and offset == 1.0 and not isinstance(component, Head):
        return Edit(component, "flip", None, where)
    if factor == 0.0:
        return Edit(component, "set", offset, where) if offset else Edit(component, "zero", None, where)
    if offset == 0.0:
        return Edit(component, "scale", factor, where)
    raise LegibleError(f"{component} · {factor:g} + {offset:g} is no edit of the vocabulary.", code="bad_edit")
