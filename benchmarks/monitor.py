"""What monitors cost over plain generation, at the shape of the shipped checkpoint and at GPT-2 small's.

Ours is `watched`: eight monitors over 32 components (units, operands, channels, head norms), every token of the prompt
and of the continuation flagged, the last one read too. The baseline is `continuation` with the same prompt, length and
seed; both write the same tokens, which is checked. Because the bound is 5 %, processor time is taken, and the two sides
go on in turn, token by token, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.measure import THREADS, Row, Timing
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.generate import continuation
from legible_core.model import Transformer
from legible_core.monitor import Condition, Monitor
from legible_core.sampling import Sampling
from legible_core.units import Channel, Component, Head, Operand, Unit
from legible_core.watching import Watch, watched

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
        monitors, sampling, given = make_monitors(layers), Sampling(tokens, 1.0, 1), prompts(vocabulary)
        timing = Timing([], [])
        for index in range(10 if name == "shipped" else 4):
            ids = next(given)
            pair = in_turn(ours(model, monitors, ids, sampling), plain(model, ids, sampling))
            if index:  # the first is a warm-up
                timing.ours.append(pair[0])
                timing.baseline.append(pair[1])
        what = f"{tokens} tokens after {PROMPT} under 8 monitors of 32 components / the same generation without"
        yield timing.row(f"monitor-{name}", what, BOUND)


def ours(model: Transformer, monitors: list[Monitor], ids: list[int], sampling: Sampling) -> Iterator[int | None]:
    """Generation under the monitors: a token each, then None when the last one is flagged."""
    watch = Watch(model, monitors)
    for step in watched(watch, ids, sampling):
        yield None if step.written is None else step.written.id


def plain(model: Transformer, ids: list[int], sampling: Sampling) -> Iterator[int | None]:
    """Generation without."""
    for written in continuation(model, ids, sampling):
        yield written.id


def in_turn(ours: Iterator[int | None], baseline: Iterator[int | None]) -> tuple[float, float]:
    """Processor seconds of both, a token of each at a time, each first every other time."""
    seconds, tokens = [0.0, 0.0], 0
    sides = ours, baseline
    ended = [False, False]
    while not all(ended):
        found: list[int | None] = [None, None]
        for side in (0, 1) if tokens % 2 else (1, 0):
            started = time.process_time()
            found[side] = next(sides[side], None)
            seconds[side] += time.process_time() - started
            ended[side] = found[side] is None
        if found[0] != found[1]:
            raise AssertionError("watched and plain generation wrote different tokens")
        tokens += 1
    return seconds[0], seconds[1]


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
