"""The accounting of a prediction, and naming by writes, at GPT-2-small shape (9,216 channels and 36,864 units), random
weights.

One prediction: `accounting.one.document` of a prompt whose trace and logits are at hand, so what it costs beyond the
forward: projections of every write column, all terms, every count, the one-hop set. Against one plain forward of the
same model.

Naming: `accounting.writes.Naming` over windows of a text against plain forwards, logits included, of the same windows.
With random weights a one-hop set is larger than a trained model's, so the row is on the careful side.

Both are in processor time: other work on the machine falls on wall clocks, and a ratio of two should not show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.measure import THREADS, Row, against
from benchmarks.reading import HASH, VOCABULARY, make_engine, prompts
from legible_core.accounting.drawing import Text
from legible_core.accounting.one import document
from legible_core.accounting.passes import Reader
from legible_core.accounting.writes import Naming
from legible_core.reading import ReadingRequest

BEYOND, NAMING = 0.3, 0.5
LENGTH = 256
WINDOW = 128


def run() -> Iterator[Row]:
    """Both claims."""
    torch.set_num_threads(THREADS)
    engine = make_engine()

    def known() -> Iterator[tuple[int, ...]]:
        for ids in prompts(LENGTH):
            engine.forget()
            engine.run(ReadingRequest(HASH, ids))
            # The forward is kept, and nothing else: what depends on the token that is asked for is made anew.
            engine.attributor.forget()
            yield ids

    @torch.no_grad()
    def forward(ids: tuple[int, ...]) -> Any:
        return engine.model(torch.tensor([ids]))

    timing = against(lambda ids: document(engine, ReadingRequest(HASH, ids)), forward, known(), 9)
    what = f"accounting of one prediction of {LENGTH} tokens, beyond its forward / one plain forward"
    yield timing.row("account-one", what, BEYOND)

    reader = Reader(engine.model)

    def texts() -> Iterator[np.ndarray]:
        generator = np.random.default_rng(0)
        while True:
            yield generator.integers(0, VOCABULARY, 4 * WINDOW)

    def name(ids: np.ndarray) -> None:
        naming = Naming(reader, Text(ids, "random"), batch=4)
        naming.length, naming.before = WINDOW, 0
        for _ in naming.run():
            pass

    @torch.no_grad()
    def plain(ids: np.ndarray) -> Any:
        return engine.model(torch.from_numpy(ids.reshape(-1, WINDOW)))

    timing = against(name, plain, texts(), 5)
    what = "naming by writes / plain forwards over the same text, positions per second"
    yield timing.row("account-naming", what, NAMING, per=4 * WINDOW, unit="positions/s", direction="at least")
