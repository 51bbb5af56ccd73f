"""Text that a checkpoint writes itself, for contexts where there is no corpus to show.

Ancestral sampling: every token is drawn from the checkpoint's own distribution (temperature 1, nothing cut off), with
the key-value cache, many windows at once. A window is one context length and starts with the end-of-text token, as a
document does; where the vocabulary has none, with a token drawn evenly. The seed decides the text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.model.transformer import Transformer
from legible_core.naming.collect import Collector
from legible_core.naming.observe import Ints, batches, observe

ROWS = 64
MAX_TOKENS = 16 << 20


@torch.no_grad()
def sample(
    model: Transformer, tokens: int, *, seed: int = 0, end_of_document: int | None = None, rows: int = ROWS
) -> Iterator[Ints]:
    """Windows of sampled text, (at most `rows`, context) ids at a time, at least `tokens` in all.

    An even number of windows, so that the two halves of a scan are whole windows. Raises `LegibleError` for a number of
    tokens that is no number of tokens, and where the checkpoint gives no probabilities.
    """
    check_tokens(tokens)
    length = model.config.context
    left = 2 * -(-tokens // (2 * length))
    generator = np.random.default_rng(seed)
    while left:
        count = min(rows, left)
        yield _windows(model, generator, count, length, end_of_document)
        left -= count


def check_tokens(tokens: int) -> None:
    """Raise `LegibleError` for a number of tokens that cannot be sampled."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise LegibleError(
            f"{tokens:,} tokens cannot be sampled; ask for 1 to {MAX_TOKENS:,}.", code="bad_sample", status=422
        )


def _windows(model: Transformer, generator: np.random.Generator, count: int, length: int, end: int | None) -> Ints:
    device = model.token_embedding.device
    ids: Ints = np.empty((count, length), np.int64)
    ids[:, 0] = first_tokens(generator, count, end, model.config.vocab_size)
    cache = model.new_cache()
    for position in range(1, length):
        given = torch.from_numpy(ids[:, position - 1 : position]).to(device)
        ids[:, position] = drawn(model(given, cache=cache)[:, 0], generator)
    return ids


def first_tokens(generator: np.random.Generator, count: int, end: int | None, vocabulary: int) -> Ints:
    """What `count` windows begin with: the end-of-text token, or tokens drawn evenly where there is none."""
    return np.full(count, end, np.int64) if end is not None else generator.integers(0, vocabulary, count)


def drawn(logits: Float[Tensor, "n v"], generator: np.random.Generator) -> Ints:
    """A token drawn from each row's distribution; raises `LegibleError` where it is none."""
    # The first entry whose cumulative probability exceeds a draw from [0, 1).
    reached = torch.softmax(logits, dim=-1).double().cumsum(dim=-1)
    total = reached[:, -1:].cpu()
    if not bool(torch.isfinite(total).all()):
        raise LegibleError("The checkpoint gives no probabilities, so it cannot write a text.", code="not_finite")
    draws = torch.from_numpy(generator.random((len(logits), 1))) * total
    chosen = torch.searchsorted(reached, draws.to(logits.device), right=True)[:, 0]
    found: Ints = chosen.clamp_(max=logits.shape[1] - 1).cpu().numpy()
    return found


def collect(model: Transformer, ids: Ints, collector: Collector, *, batch: int = 8) -> Iterator[int]:
    """Look for contexts in a text without measuring anything else; yields how many tokens are done."""
    first = 0
    for piece in batches(ids, model.config.context, batch):
        found, _ = observe(model, piece)
        for layer, values in enumerate(found):
            collector.update(layer, first, (piece.ids.shape[0], piece.ids.shape[1]), values)
        first += piece.ids.size
        yield first
