"""Selectivity pressures on bounded operands.

"Legible-by-Construction" section 3.6: sparsity λ_s |v| pulls a membership off, crispness λ_c v(1-v) pushes it to the
nearer rail. Each is the mean over a surface's tokens and channels, summed over layers and surfaces (docs/decisions.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.model import Observed
from legible_core.model.set_operators import Asked
from legible_core.training.distributed import mean_of

Regime: TypeAlias = Literal["none", "sparsity", "crispness", "both"]
Target: TypeAlias = Literal["operands", "outputs"]
# λ: one number for all layers, or one per layer.
Strength: TypeAlias = float | tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """From `tokens` training tokens on, these strengths hold instead of the earlier ones; each as in `Pressure`."""

    tokens: int
    sparsity: Strength = 0.0
    crispness: Strength = 0.0
    floor: float = 0.0


@dataclass(frozen=True)
class Pressure:
    """One surface's pressure.

    sparsity, crispness: λ_s and λ_c, one number for all layers or one per layer. `start_tokens` and `ramp_tokens` say
    when sparsity begins and over how many tokens it rises linearly to its full strength. `later` holds stages that
    change the strengths as training goes on, in order: what shapes operands early can starve them when it goes on. A
    channel whose mean over the batch lies within `floor` of a rail is not pressed: under an optimiser that normalises
    its step, even a vanishing push keeps a dead operand dead. The regime decides which of the two act; a strength
    without its regime is refused, so that a recipe says what it does.
    """

    regime: Regime = "none"
    sparsity: Strength = 0.0
    crispness: Strength = 0.0
    target: Target = "operands"
    start_tokens: int = 0
    ramp_tokens: int = 0
    floor: float = 0.0
    later: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if self.regime not in get_args(Regime):
            raise _bad(f"regime {self.regime!r} does not exist; use none, sparsity, crispness or both")
        if self.target not in get_args(Target):
            raise _bad(f"target {self.target!r} does not exist; use operands or outputs")
        for each in self.strengths():
            if any(not isinstance(s, int | float) or isinstance(s, bool) or not 0 <= s < 1e6 for s in _as_tuple(each)):
                raise _bad(
                    "sparsity and crispness must be a finite number of at least 0 and below 1e6, or a list with one "
                    "per layer"
                )
        if any(not 0 <= floor < 0.5 for floor in [self.floor, *(stage.floor for stage in self.later)]):
            raise _bad("floor must be at least 0 and below 0.5")
        if [stage.tokens for stage in self.later] != sorted({max(1, stage.tokens) for stage in self.later}):
            raise _bad("the stages in `later` must stand in order of their tokens, each after the start of training")
        for name, active in (("sparsity", ("sparsity", "both")), ("crispness", ("crispness", "both"))):
            value = getattr(self, name)
            if (self.regime in active) != any(s > 0 for s in _as_tuple(value)):
                raise _bad(f"regime {self.regime} and {name} = {value} contradict each other")
            for stage in self.later:
                if self.regime not in active and any(s > 0 for s in _as_tuple(getattr(stage, name))):
                    raise _bad(f"regime {self.regime} has no {name}, but the stage at {stage.tokens} tokens has")

    def floor_at(self, tokens: int) -> float:
        """The floor that holds after `tokens` training tokens."""
        floor = self.floor
        for stage in self.later:
            if tokens >= stage.tokens:
                floor = stage.floor
        return floor

    def strengths(self) -> list[Strength]:
        """Every sparsity and crispness of the start and of the stages."""
        found = [self.sparsity, self.crispness]
        for stage in self.later:
            found += [stage.sparsity, stage.crispness]
        return found

    def strength(self, name: Literal["sparsity", "crispness"], layer: int, tokens: int) -> float:
        """λ of a layer after `tokens` training tokens."""
        full = _of_layer(getattr(self, name), layer)
        for stage in self.later:
            if tokens >= stage.tokens:
                full = _of_layer(getattr(stage, name), layer)
        if name == "crispness" or (not self.start_tokens and not self.ramp_tokens):
            return full
        if tokens < self.start_tokens:
            return 0.0
        return full * min(1.0, (tokens - self.start_tokens) / self.ramp_tokens) if self.ramp_tokens else full


def pressure_loss(observed: Observed, attention: Pressure, feed_forward: Pressure, tokens: int) -> Tensor | None:
    """The sum of both surfaces' penalties over layers, or None when nothing presses."""
    total: Tensor | None = None
    for layer, atoms in enumerate(observed.feed_forward_operands):
        operands, outputs = observed.attention_operands[layer], observed.attention_outputs[layer]
        total = _press(total, attention, layer, tokens, operands, outputs)
        total = _press(total, feed_forward, layer, tokens, atoms, observed.feed_forward_outputs[layer])
    return total


class Pressing(Observed):
    """Presses each surface of each layer as soon as the forward has made it; `penalty` is what `pressure_loss` gives.

    So the values are still in the processor's cache, and the backward makes each penalty's gradient just before the
    layer that it belongs to, instead of all of them at its start, to be held until their turn.
    """

    def __init__(self, attention: Pressure, feed_forward: Pressure, tokens: int) -> None:
        super().__init__()
        self.attention, self.feed_forward, self.tokens = attention, feed_forward, tokens
        self.outputs = "outputs" in (attention.target, feed_forward.target)
        self.penalty: Tensor | None = None

    def see_attention(self, operands: tuple[Tensor, ...], outputs: Tensor | None, heads: Tensor | None) -> None:
        layer = len(self.attention_operands)
        super().see_attention(operands, outputs, heads)
        self.penalty = _press(self.penalty, self.attention, layer, self.tokens, operands, outputs)

    def see_feed_forward(self, operands: tuple[Tensor, ...], outputs: Tensor | None) -> None:
        layer = len(self.feed_forward_operands)
        super().see_feed_forward(operands, outputs)
        self.penalty = _press(self.penalty, self.feed_forward, layer, self.tokens, operands, outputs)


def _press(
    total: Tensor | None,
    pressure: Pressure,
    layer: int,
    tokens: int,
    operands: tuple[Tensor, ...],
    outputs: Tensor | None,
) -> Tensor | None:
    """`total` with one surface's penalty added, where there is something that presses and something to press."""
    values = operands
    if pressure.target == "outputs":
        values = () if outputs is None else (outputs,)
    count = sum(value.numel() for value in values)
    sparsity = pressure.strength("sparsity", layer, tokens)
    crispness = pressure.strength("crispness", layer, tokens)
    if not count or not (sparsity or crispness):
        return total
    # Operands that stand in one tensor are pressed in one operation.
    joint = getattr(values, "joint", None)
    asked = None if joint is None else values.asked  # type: ignore[attr-defined]
    for value in values if joint is None else (joint,):
        term = _Penalty.apply(value, sparsity / count, crispness / count, pressure.floor_at(tokens), asked)
        total = term if total is None else total + term
    return total


class _Penalty(torch.autograd.Function):
    """Σ s|v| + c v(1-v) for v in [0,1] (b, t, ...channels), with its gradient s + c(1-2v) made in one pass.

    Channels whose mean over b and t is within `floor` of 0 or 1 are left out, of the value and of the gradient. With
    `asked` the gradient is not given here but left to the operators that made v.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, value: Tensor, sparsity: float, crispness: float, floor: float, asked: Asked | None
    ) -> Tensor:
        pressed: Tensor | None = None
        if floor > 0:
            total = value.sum((0, 1), dtype=torch.float32)
            # Over all processes of a run, so that each spares the channels that one process would.
            mean = mean_of(total) / (value.shape[0] * value.shape[1])
            pressed = ((mean >= floor) & (mean <= 1 - floor)).to(value.dtype)
            total = (total * pressed).sum()
            squares = (value.float().square().sum((0, 1)) * pressed).sum() if crispness else 0.0
        else:
            total = value.sum(dtype=torch.float32)
            squares = _square_sum(value) if crispness else 0.0
        ctx.save_for_backward(value, pressed)
        ctx.strengths, ctx.asked = (sparsity, crispness), asked
        return (sparsity + crispness) * total - crispness * squares

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        value, pressed = ctx.saved_tensors
        sparsity, crispness = ctx.strengths
        # One number per channel, of which the mask is a factor, so that one pass makes the whole gradient. They stand
        # in memory even where all are the same: one number spread over the channels is slow to read on a processor.
        base = grad.to(value.dtype).repeat(value.shape[2:]) if pressed is None else pressed * grad
        terms = base * (sparsity + crispness), base * (-2.0 * crispness)
        if ctx.asked is not None:
            ctx.asked.add(*terms)
            return (None,) * 5
        return torch.addcmul(*terms, value), None, None, None, None


def _square_sum(value: Tensor) -> Tensor:
    if value.dtype == torch.float32 and value.is_contiguous():
        return torch.dot(value.view(-1), value.view(-1))
    return value.float().square().sum()


def _as_tuple(value: Strength) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _of_layer(value: Strength, layer: int) -> float:
    return float(value[layer] if isinstance(value, tuple) else value)


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The pressure is not usable: {reason}.", code="bad_recipe")
