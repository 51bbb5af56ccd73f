"""A scan against plain forwards over the same tokens: what measuring and collecting costs beside the pass itself.

The shape is the shipped one (6 layers, d = 256, Boolean values, half of the units named, vocabulary 8,192), with random
weights scaled so that operands are alive. A scan's step is the program's own: the pass, the loss, moments, histograms,
counts of ON per token and contexts. The baseline is one forward of the same windows with the logits of every position.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.measure import THREADS, Row, Timing, against
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer
from legible_core.naming.scan import Scan

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 6, 256, 8, 256, 8192
BATCH = 8
# The first batches fill every context slot; what counts is the pace of a long scan.
WARM, REPETITIONS = 24, 15
BOUND = 0.6


def make_model() -> Transformer:
    """The shipped shape with random weights; read rows are larger than at a start, so that operands are ON at times."""
    config = ModelConfig(
        n_layers=LAYERS,
        d_model=WIDTH,
        n_heads=HEADS,
        context=CONTEXT,
        vocab_size=VOCABULARY,
        attention=Attention("boolean", (HEADS,) * LAYERS),
        feed_forward=FeedForward(4 * WIDTH, 0.5, 0.125),
    )
    model = Transformer(config).eval().requires_grad_(False)
    model.initialise(torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if name.rsplit(".", 1)[-1] in ("bounded_values", "pair_a", "pair_b", "quantifier"):
            parameter.mul_(4.0)
    return model


def run() -> Iterator[Row]:
    """The row of this file."""
    torch.set_num_threads(THREADS)
    model = make_model()
    yield scanning(model).row(
        "scan",
        "tokens per second of a scan with contexts / a plain forward's",
        BOUND,
        per=BATCH * CONTEXT,
        unit="tok/s",
        direction="at least",
    )


def scanning(model: Transformer) -> Timing:
    """Batches of one scan, each against a forward over the same windows."""
    rounds = WARM + REPETITIONS
    # Zipf-like, as text is: the counts' cost depends on how many different tokens a batch holds.
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    ids = np.random.default_rng(0).choice(VOCABULARY, rounds * BATCH * CONTEXT, p=weights / weights.sum())
    scan = Scan(model, ids, "random", batch=BATCH, contexts=True)
    steps = scan.run()
    windows = iter([torch.from_numpy(piece.ids) for _, _, _, piece in scan._batches()])

    def forward(given: torch.Tensor) -> None:
        with torch.no_grad():
            model(given)

    return against(lambda _: next(steps), forward, windows, REPETITIONS, warm=WARM)
