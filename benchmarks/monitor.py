"""What monitors cost over plain generation, at the shape of the shipped checkpoint and at GPT-2 small's.

Ours is `watched`: eight monitors over 32 components (units, operands, channels, head norms), every token of the prompt
and of the continuation flagged, the last one read too. The baseline is `continuation` with the same prompt, length and
seed; both write the same tokens, which is checked. Processor time, because the bound is 5 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.measure import THREADS, Row, against
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.generate import continuation
from legible_core.model import Transformer
from legible_core.monitor import Condition, Monitor
from legible_core.sampling import Sampling
from legible_core.units import Channel, Component, Head, Operand, Unit
from legible_core.watching import Watch, watched

Side = Callable[[list[int]], list[int]]

BOUND = 1.05
PROMPT = 32
SHAPES = {
    "shipped": (6, 256, 8, 4096, 128, 64),
    "gpt2": (12, 768, 12, 50257, 1024, 96),
}


def run() -> Iterator[Row]:
    """One row for each shape; ratio of times, at most 1.05."""
    torch.set_num_threads(THREADS)
    for name, (layers, width, heads, vocabulary, context, tokens) in SHAPES.items():
        config = ModelConfig(
            n_layers=layers,
            d_model=width,
            n_heads=heads,
            context=context,
            vocab_size=vocabulary,
            attention=Attention("boolean", (heads,) * layers),
            feed_forward=FeedForward(4 * width, 0.5, 0.125),
        )
        model = Transformer(config).eval().requires_grad_(False)
        model.initialise(torch.Generator().manual_seed(0))
        ours, plain = sides(model, make_monitors(layers), Sampling(tokens, 1.0, 1))
        given = prompts(vocabulary)
        first = next(given)
        if ours(first) != plain(first):
            raise AssertionError("watched and plain generation wrote different tokens")
        what = f"{tokens} tokens after {PROMPT} under 8 monitors of 32 components / the same generation without"
        timing = against(ours, plain, given, 15 if name == "shipped" else 5, clock=time.process_time)
        yield timing.row(f"monitor-{name}", what, BOUND)


def sides(model: Transformer, monitors: list[Monitor], sampling: Sampling) -> tuple[Side, Side]:
    """Generation under the monitors, and without."""

    def ours(ids: list[int]) -> list[int]:
        watch = Watch(model, monitors)
        return [step.written.id for step in watched(watch, ids, sampling) if step.written is not None]

    def plain(ids: list[int]) -> list[int]:
        return [written.id for written in continuation(model, ids, sampling)]

    return ours, plain


def make_monitors(layers: int) -> list[Monitor]:
    """Eight monitors of four components each, spread over the layers and over every sort."""
    made = []
    for index in range(8):
        layer = index * layers // 8
        parts: list[Component] = [
            Operand(layer, 3 + index, "A"),
            Unit(layer, 20 + index),
            Head(layer, index % 4),
            Channel(layer, 1, index),
        ]
        first, *others = parts
        made.append(Monitor(f"m{index}", (Condition(first, above=0.5, run=2), *(Condition(c) for c in others))))
    return made


def prompts(vocabulary: int) -> Iterator[list[int]]:
    """Other random ids every time."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(vocabulary, (PROMPT,), generator=generator).tolist()
