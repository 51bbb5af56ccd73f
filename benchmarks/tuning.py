"""A redraw while a slider moves, against one plain forward of the prompt, on the checkpoint that ships.

Ours is `Engine.tune` as the page asks it while a slider moves: another factor each time, so that nothing of one redraw
serves the next; the next-token distribution before and after, and the continuation's tokens that its passes give. The
unedited prompt was read before, as it was on the page. Baseline is `Transformer.trace` and the read position's logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.measure import THREADS, Row, against
from legible_core.api import load
from legible_core.interventions import Edit
from legible_core.pipeline import Engine
from legible_core.reading import ReadingRequest
from legible_core.units import Unit, parse

MODEL = "novel-legible"
PROMPT = "It was the best of times, it was the"
LENGTHS = (10, 128)
BOUND, COUNT = 3.0, 15


def run() -> Iterator[Row]:
    """The leading unit of the reading, and the dearest case, a unit of layer 0."""
    torch.set_num_threads(THREADS)
    engine = load(MODEL)
    assert engine.tokenizer is not None
    for length in LENGTHS:
        ids = (tuple(engine.tokenizer.encode(PROMPT)) * length)[:length]
        request = ReadingRequest(engine.checkpoint.hash, ids)
        top = engine.read(request).top
        leading = next(parse(row.id) for row in top if row.kind != "head")
        assert isinstance(leading, Unit)
        for name, unit in (("leading", leading), ("layer-0", Unit(0, 0))):
            factors = (0.05 + 0.01 * step for step in range(1000))
            timing = against(partial(_redraw, engine, request, unit), partial(_forward, engine, ids), factors, COUNT)
            what = f"a redraw of {length} tokens, scaling {unit} / one plain forward"
            yield timing.row(f"tune-{length}-{name}", what, BOUND)


def _redraw(engine: Engine, request: ReadingRequest, unit: Unit, factor: float) -> None:
    engine.tune(request, [Edit(unit, "scale", factor)])


def _forward(engine: Engine, ids: tuple[int, ...], _: float) -> torch.Tensor:
    trace = engine.model.trace(torch.tensor(ids))
    return engine.model.logits_at(trace, len(ids) - 1)
