"""Evaluating minimal pairs against plain batched forwards of the same tokens at the shipped shape.

The 67,000 pairs are drawn: random tokens with BLiMP's lengths and common beginnings as an 8,192-token vocabulary splits
them (12 tokens a sentence, 5.6 of a pair's first ones shared, the end of text among them). Of the batches that
`legible eval` would run, a sample is timed: forwards, log-probabilities, scores by item. The baseline runs the same
sentences through `model(ids)`, sorted by length and padded, in batches of the same size, and looks at no logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import THREADS, Row, against
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.evaluation import encode
from legible_core.evaluation.scoring import BATCH_TOKENS, Batch, Scorer
from legible_core.model import Transformer

PAIRS = 67_000
SAMPLE = 8
REPETITIONS = 5
SHAPE = ModelConfig(6, 256, 8, 256, 8192, Attention("boolean", (8,) * 6), FeedForward(1024, 0.5, 0.125))


def pairs(seed: int, share: bool) -> list[list[encode.Row]]:
    """Pairs whose rows begin alike (or not at all), every token after the first counted."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(PAIRS):
        length = int(np.clip(rng.gamma(6.0, 2.0), 3, 35))
        common = int(np.clip(rng.normal(4.6, 3.0), 0, length - 1)) if share else 0
        opening = rng.integers(1, 8192, common).tolist()
        rows = []
        for _ in range(2):
            first = 0 if share else int(rng.integers(1, 8192))
            rest = rng.integers(1, 8192, length - common + int(rng.integers(0, 2))).tolist()
            rows.append(encode.Row((first, *opening, *rest), len(opening) + len(rest)))
        found.append(rows)
    return found


def plain(model: Transformer, groups: list[list[encode.Row]]) -> None:
    """Every row on its own through the whole forward, in padded batches, longest first."""
    rows = sorted((row for group in groups for row in group), key=lambda row: -len(row.tokens))
    with torch.inference_mode():
        while rows:
            width = len(rows[0].tokens) - 1
            count = max(1, BATCH_TOKENS // width)
            ids = torch.zeros(len(rows[:count]), width, dtype=torch.long)
            for line, row in zip(ids, rows[:count], strict=True):
                line[: len(row.tokens) - 1] = torch.tensor(row.tokens[:-1])
            model(ids)
            rows = rows[count:]


def run() -> Iterator[Row]:
    """The rows of this file."""
    torch.set_num_threads(THREADS)
    model = Transformer(SHAPE)
    model.initialise(torch.Generator().manual_seed(0))
    model.eval()
    scorer = Scorer(model)
    for name, share, bound in (("evaluation", True, 0.8), ("evaluation-apart", False, None)):
        groups = pairs(0, share)
        plan = scorer.plan(groups)
        draw = np.random.default_rng(1)
        samples = [[plan[n] for n in draw.choice(len(plan), SAMPLE, replace=False)] for _ in range(REPETITIONS + 1)]
        chosen = [[groups[index] for batch in sample for index in batch.groups] for sample in samples]
        lengths = [sum(len(row.tokens) - 1 for rows in picked for row in rows) for picked in chosen[1:]]
        timing = against(
            partial(_score, scorer, samples, groups),
            partial(_plain, model, chosen),
            iter(range(len(samples))),
            REPETITIONS,
        )
        what = "tokens per second of evaluating minimal pairs / plain batched forwards of them"
        what += "" if share else ", where the pairs share nothing"
        yield timing.row(name, what, bound, per=float(np.mean(lengths)), unit="tok/s", direction="at least")


def _score(scorer: Scorer, samples: list[list[Batch]], groups: list[list[encode.Row]], number: int) -> None:
    for batch in samples[number]:
        scorer.score(batch, groups)


def _plain(model: Transformer, chosen: list[list[list[encode.Row]]], number: int) -> None:
    plain(model, chosen[number])
