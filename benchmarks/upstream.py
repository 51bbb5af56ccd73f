"""Why an operand was on, at GPT-2-small shape: the whole upstream sum against the forward of the same prompt.

Ours is `attribute_read` and its check for an operand of the last layer, where most lies upstream, on the trace that a
reading leaves behind; the baseline is that trace, `Transformer.trace` of the prompt, which computes no logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measure import THREADS, Row, against
from benchmarks.reading import LAYERS, make_engine, prompts

# A prompt's length -> the most that the sum may cost, in forwards of it.
BOUNDS = {16: 0.5, 256: 0.1}


def run() -> Iterator[Row]:
    """The last layer's operands in turn, each at the last token of another prompt."""
    from legible_core.reads import read_of
    from legible_core.units import Operand
    from legible_core.upstream import attribute_read

    torch.set_num_threads(THREADS)
    model: Any = make_engine().model
    for length, bound in BOUNDS.items():

        def traced(length: int = length) -> Iterator[tuple[torch.Tensor, Any]]:
            for ids in prompts(length):
                tensor = torch.tensor(ids)
                yield tensor, model.trace(tensor)

        pairs = iter(range(model.config.feed_forward.n_pairs))

        def why(given: tuple[torch.Tensor, Any], length: int = length, pairs: Iterator[int] = pairs) -> None:
            read = read_of(model.config, Operand(LAYERS - 1, next(pairs), "A"))
            attribute_read(model, given[1], read, length - 1).check()

        def forward(given: tuple[torch.Tensor, Any]) -> None:
            model.trace(given[0])

        what = f"why an operand of layer {LAYERS - 1} was on, prompt of {length} tokens / its forward"
        yield against(why, forward, traced(), 9 if length < 100 else 5).row(f"why-{length}", what, bound)
