"""Causal checks at GPT-2-small shape: the batched re-run against one edited forward for each ablation.

The sweep removes every head and the 64 strongest units of one prediction, 208 ablations, and reads the target's logit
after each. The baseline is `Transformer.trace` with the one edit and the logits of the read position alone. It is timed
on every eighth ablation, evenly over heads, units and layers, and its time counted eightfold. The twenty checks of a
reading (each by zero, by its mean, and with its operands flipped; the halves of the stack together) stand against one
plain forward of the prompt; both sides have the reading's trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.measure import THREADS, Row, Timing, against
from benchmarks.reading import HASH, make_engine, prompts

UNITS, EVERY = 64, 8
# A prompt's length -> how many prompts are timed.
LENGTHS = {16: 5, 256: 2}
FASTER, CHECKS = 3.0, 6.0


def run() -> Iterator[Row]:
    """The sweep, then the checks, at each length."""
    torch.set_num_threads(THREADS)
    engine = make_engine()
    yield from sweep(engine)
    yield from checks(engine)


def sweep(engine: Any) -> Iterator[Row]:
    """All heads and the strongest units, batched and one by one."""
    from legible_core.causal.checks import Variant, effects_of
    from legible_core.causal.rerun import Rerun
    from legible_core.interventions import Edit
    from legible_core.reading import ReadingRequest

    for length, count in LENGTHS.items():
        timing = Timing([], [])
        for _, ids in zip(range(count + 1), prompts(length), strict=False):
            solved = engine.solve(ReadingRequest(HASH, ids))
            variants = [Variant("head", layer, head, "zero") for layer, head in np.ndindex(solved.terms.heads.shape)]
            strongest = np.argsort(-np.abs(solved.terms.units.ravel()), kind="stable")[:UNITS].tolist()
            width = engine.config.feed_forward.d_ff
            variants += [Variant("unit", unit // width, unit % width, "zero") for unit in strongest]
            started = time.perf_counter()
            effects, _ = effects_of(engine, solved, Rerun(engine.model, solved.trace, solved.position), variants, None)
            middle = time.perf_counter()
            for effect in effects[::EVERY]:
                edit = Edit(effect.variant.component, "set", 0.0, (solved.position,))
                trace = engine.model.trace(torch.tensor(ids), [edit])
                value = float(engine.model.logits_at(trace, solved.position)[solved.question.target])
                assert abs(value - solved.terms.value - effect.total) < 1e-2
            timing.ours.append(middle - started)
            timing.baseline.append(EVERY * (time.perf_counter() - middle))
        del timing.ours[0], timing.baseline[0]
        what = f"{len(variants)} ablations of one prediction, prompt of {length} tokens / one forward each"
        yield timing.row(f"causal-sweep-{length}", what, 1 / FASTER)


def checks(engine: Any) -> Iterator[Row]:
    """The twenty checks of a reading in plain forwards."""
    from legible_core.causal.bands import mean_activations
    from legible_core.causal.checks import check
    from legible_core.causal.records import Checks
    from legible_core.reading import ReadingRequest

    for length, count in LENGTHS.items():
        given = prompts(length)
        measured = Checks(HASH, {}, mean_activations(engine, [next(given)]), {})

        def known(given: Iterator[tuple[int, ...]] = given) -> Iterator[tuple[int, ...]]:
            for ids in given:
                engine.solve(ReadingRequest(HASH, ids))
                yield ids

        def checked(ids: tuple[int, ...], measured: Checks = measured) -> None:
            check(engine, ReadingRequest(HASH, ids), 20, measured)

        def forward(ids: tuple[int, ...]) -> None:
            with torch.no_grad():
                engine.model(torch.tensor([ids]))

        what = f"all checks of a reading of {length} tokens / one plain forward"
        yield against(checked, forward, known(), count).row(f"causal-checks-{length}", what, CHECKS)
