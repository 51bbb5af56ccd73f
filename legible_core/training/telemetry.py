"""The reads of "Legible-by-Construction" appendix A.2, of a checkpoint and, every so many steps, of a run.

    static_read(model)          off the weights: output-projection columns per head, half-lives, the final gain
    forward_read(model, ids)    on a text: saturation, ON, crispness and CONSTANT of the operands, each head's write
                                into the residual, the residual at the final norm
    Telemetry                   both, as one line of RUN/telemetry.jsonl every N steps; what happens, in events.jsonl

The forward read is a pass of its own without gradient over the first contexts of the step's batch. It draws no random
number and writes nothing that training reads, so a run has the same losses, bit for bit, with and without it.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from legible_core.legibility import MIN_VARIANCE, RAIL
from legible_core.model import Observed, Transformer
from legible_core.model.quantifiers import half_life
from legible_core.training.guard import Guard

# Pinned this close to a rail a sigmoid has next to no gradient (A.2).
SATURATED = 0.02
# A quantifier that remembers this long is a latch.
LATCH_TOKENS = 32
# λ = 1 in float32 never forgets; JSON has no infinity.
LONGEST = 1e9
# What one reading costs is a pass over so many tokens; every 25 steps that is below 2 % of the time (docs/training.md).
READ_TOKENS = 2048
# Tokens read at once (a context at least): a pass keeps what all its layers made.
AT_ONCE = 512
EVERY_STEPS = 25


class Telemetry:
    """Writes a run's readings and events; numbers are those of its steps, from 1.

    every: steps between two readings, 0 for none. The loop cuts both files to its state when it resumes, so that every
    number stands there once.
    """

    def __init__(self, folder: Path, model: Transformer, every: int = EVERY_STEPS) -> None:
        self.folder, self.model, self.every = folder, model, every

    def after(self, number: int, last: int, guard: Guard, contexts: Callable[[int], Int[Tensor, "b t"]]) -> None:
        """Note a spike of step `number`, and read the model when it is due (also at `last`).

        contexts(n): the first n contexts of that step's batch, each with the token that follows it.
        """
        if guard.spike is not None:
            self.event(number, "spike", guard.spike)
        if not self.every or (number % self.every and number != last):
            return
        started = time.perf_counter()
        count = max(1, READ_TOKENS // self.model.config.context)
        line: dict[str, Any] = {"number": number, **read(self.model, contexts(count)[:, :-1])}
        line["seconds"] = round(time.perf_counter() - started, 4)
        self._write("telemetry.jsonl", line)

    def event(self, number: int, event: str, text: str) -> None:
        """What happened at a step, as a line: `spike`, or `diverged` for the one at which the guard stopped the run."""
        self._write("events.jsonl", {"number": number, "event": event, "text": text})

    def _write(self, name: str, line: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


def read(model: Transformer, *texts: Int[Tensor, "b t"]) -> dict[str, Any]:
    """Both reads in one JSON object: `tokens`, `residual_rms`, `gain_norm` and, by layer, what the two found."""
    static, forward = static_read(model), forward_read(model, *texts)
    layers = [one | other for one, other in zip(forward.pop("layers"), static.pop("layers"), strict=True)]
    return {**forward, **static, "layers": layers}


@torch.no_grad()
def static_read(model: Transformer) -> dict[str, Any]:
    """What the weights alone say.

    `gain_norm`: ‖γ‖ of the final norm, whose fall goes with a divergence (A.3). Per layer: `columns`, each head's mean
    column norm of W_O; `columns_ratio`, conventional heads : bounded ones, None without both; `half_life` of the
    quantifiers in tokens: median, min, max and the share of latches, None without quantifiers.
    """
    layers = []
    for layer in model.layers:
        attention = layer.attention
        columns = attention.output.float().norm(dim=0).unflatten(0, (attention.n_heads, attention.d_head)).mean(1)
        lives = [min(LONGEST, half_life(decay)) for decay in layer.feed_forward.decay.tolist()]
        layers.append(
            {
                "columns": numbers(columns),
                "columns_ratio": _ratio(columns, attention.n_special),
                "half_life": {
                    "median": number(statistics.median(lives)),
                    "min": number(min(lives)),
                    "max": number(max(lives)),
                    "latches": number(sum(life >= LATCH_TOKENS for life in lives) / len(lives)),
                }
                if lives
                else None,
            }
        )
    return {"gain_norm": number(model.final_norm.gain.float().norm().item()), "layers": layers}


@torch.no_grad()
def forward_read(model: Transformer, *texts: Int[Tensor, "b t"]) -> dict[str, Any]:
    """What the model does on texts of ids, at most a context long; on the model's device, in its compute dtype.

    `tokens` read; `residual_rms` of the stream that enters the final norm. Per layer: `attention` and `feed_forward`,
    the operands' `channels`, `saturated` (within 0.02 of a rail), `crisp`, `on` (section 4.1, pooled over tokens and
    channels) and `constant` (share of channels whose variance on these tokens is below 0.003), None where there are no
    operands; `bounded_heads`, how many, the first ones; `write`, the mean norm of what each head adds to the residual;
    `write_ratio`, conventional : bounded.
    """
    device = model.token_embedding.device
    config = model.config
    banks = [(_Bank(), _Bank()) for _ in model.layers]
    writes = [torch.zeros(config.n_heads, dtype=torch.float64, device=device) for _ in model.layers]
    grams = [head_grams(layer.attention.output, config.n_heads) for layer in model.layers]
    squares, tokens = 0.0, 0
    for ids in (part for text in texts for part in text.split(max(1, AT_ONCE // max(1, text.shape[1])))):
        seen = Observed()
        residual = model.residual(ids.to(device), observed=seen)
        tokens += ids.numel()
        squares += residual.double().square().mean(-1).sum().item()
        for index, gram in enumerate(grams):
            z = seen.heads[index].float().flatten(0, 1)
            norms = torch.einsum("thi,hij,thj->th", z, gram, z).clamp(min=0).sqrt()
            writes[index] += norms.double().sum(0)
            surfaces = (seen.attention_operands[index], seen.feed_forward_operands[index])
            for bank, operands in zip(banks[index], surfaces, strict=True):
                for place, values in enumerate(operands):
                    bank.add(place, values.flatten(2).flatten(0, 1).float())
    layers = [
        {
            "attention": banks[index][0].summary(),
            "feed_forward": banks[index][1].summary(),
            "bounded_heads": config.attention.n_special[index],
            "write": numbers(mean := writes[index] / max(1, tokens)),
            "write_ratio": _ratio(mean, config.attention.n_special[index]),
        }
        for index in range(config.n_layers)
    ]
    rms = math.sqrt(squares / max(1, tokens)) if math.isfinite(squares) else math.nan
    return {"tokens": tokens, "residual_rms": number(rms), "layers": layers}


@dataclass
class _Bank:
    """One surface's operands over the texts: counts, and sums per channel for their variance."""

    count: int = 0
    saturated: int = 0
    crisp: int = 0
    on: int = 0
    tokens: int = 0
    sums: dict[int, Tensor] = field(default_factory=dict)

    def add(self, place: int, values: Float[Tensor, "t c"]) -> None:
        """Values of the operands that stand at `place` of the layer's tuple (A, B, m, ...)."""
        self.count += values.numel()
        near = (values - 0.5).abs_()
        self.saturated += int((near > 0.5 - SATURATED).sum())
        self.crisp += int((near > 0.5 - RAIL).sum())
        self.on += int((values > 1.0 - RAIL).sum())
        wide = values.double()
        sums = torch.stack([wide.sum(0), wide.square().sum(0)])
        self.sums[place] = self.sums[place] + sums if place in self.sums else sums
        self.tokens += len(values) if place == 0 else 0

    def summary(self) -> dict[str, Any] | None:
        if not self.count:
            return None
        constant = channels = 0
        for sums in self.sums.values():
            mean, square = sums / self.tokens
            constant += int((square - mean * mean < MIN_VARIANCE).sum())
            channels += len(mean)
        return {
            "channels": channels,
            "saturated": number(self.saturated / self.count),
            "crisp": number(self.crisp / self.count),
            "on": number(self.on / self.count),
            "constant": number(constant / channels),
        }


def head_grams(output: Float[Tensor, "d e"], heads: int) -> Float[Tensor, "h dh dh"]:
    """W_hᵀW_h of each head's columns of W_O, so that ‖W_h z‖² = zᵀ(W_hᵀW_h)z costs no residual vector."""
    blocks = output.float().unflatten(1, (heads, -1))
    return torch.einsum("dhi,dhj->hij", blocks, blocks)


def _ratio(per_head: Float[Tensor, " h"], bounded: int) -> float | None:
    """Mean of the conventional heads over the mean of the bounded ones, which stand first; None without both."""
    if not 0 < bounded < len(per_head):
        return None
    below = per_head[:bounded].mean().item()
    return number(per_head[bounded:].mean().item() / below) if below > 0 else None


def numbers(values: Tensor) -> list[float | None]:
    """As `number`, each."""
    return [number(value) for value in values.tolist()]


def number(value: float) -> float | None:
    """Five digits; None for what is not finite, which JSON lacks."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
