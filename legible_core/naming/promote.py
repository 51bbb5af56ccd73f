"""The promote side: the tokens that a component's write column promotes, read off the weights.

A component that adds a·w to the residual stream adds a·⟨W_U[t] ⊙ γ, w - mean(w)⟩ / std(x) to the logit of token t (the
exact sum's term for it). Its promotion of t is that inner product, less its mean over the vocabulary: what raises every
token alike promotes none. The scale 1/std(x) is the reading's and left out here.

Tokens that the corpus hardly holds crowd such lists in small models (their rows of W_U are hardly trained), so the list
ranks tokens seen at least a stated number of times, and the others make a list of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.model.transformer import Transformer
from legible_core.readable import Readable

TOP = 20
TOP_RARE = 6
# Columns of one chunk times the vocabulary, in float32: 128 MiB, of which a handful are alive at once.
CHUNK_NUMBERS = 32 * 1024 * 1024


@dataclass(frozen=True)
class Promoted:
    """Top tokens of n write columns, best first. tokens, rare: (n, k) vocabulary ids; weights, rare_weights: (n, k).

    `rare` holds the tokens seen too seldom to be ranked with the others; k may be smaller than asked for in a small
    vocabulary. suppressed, suppressed_weights: (n, k) the lowest of those seen often, lowest first, where asked for.
    """

    tokens: NDArray[np.int64]
    weights: NDArray[np.float32]
    rare: NDArray[np.int64]
    rare_weights: NDArray[np.float32]
    suppressed: NDArray[np.int64] | None = None
    suppressed_weights: NDArray[np.float32] | None = None


@torch.no_grad()
def promotion(model: Readable, columns: Float[Tensor, "d n"]) -> Float[Tensor, "n v"]:
    """Every token's promotion by each write column, centred over the vocabulary; float32."""
    columns = columns.float()
    if model.final_norm.centred:  # an RMSNorm, which only ordinary models have, takes no mean away
        columns = columns - columns.mean(dim=0)
    direction = columns * model.final_norm.gain.float()[:, None]
    weights = direction.T @ model.unembedding_matrix.float().T
    weights -= weights.mean(dim=1, keepdim=True)
    return weights


def promote(
    model: Readable,
    columns: Float[Tensor, "d n"],
    often: NDArray[np.bool_],
    *,
    chunk: int | None = None,
    suppressed: bool = False,
) -> Promoted:
    """The top tokens of each column among those seen often, and among the others.

    often: (v,) whether a token was seen enough to be ranked. chunk: columns at a time, by default as many as keep the
    working memory under 512 MiB whatever the vocabulary. suppressed: the lowest ones too.
    """
    vocab_size = len(often)
    chunk = chunk or max(1, CHUNK_NUMBERS // vocab_size)
    ids = torch.arange(vocab_size, device=columns.device)
    ranked, others = (ids[torch.from_numpy(mask).to(ids.device)] for mask in (often, ~often))
    sides = [(ranked, TOP, True), (others, TOP_RARE, True), *([(ranked, TOP, False)] if suppressed else [])]
    parts: list[list[NDArray[Any]]] = [[] for _ in range(2 * len(sides))]
    for start in range(0, columns.shape[1], chunk):
        weights = promotion(model, columns[:, start : start + chunk])
        for side, (group, k, largest) in enumerate(sides):
            top = torch.topk(weights[:, group], min(k, len(group)), dim=1, largest=largest)
            parts[2 * side].append(group[top.indices].cpu().numpy())
            parts[2 * side + 1].append(top.values.cpu().numpy())
        del weights
    joined: list[Any] = [np.concatenate(part) if part else np.zeros((0, 0)) for part in parts]
    kinds = (np.int64, np.float32) * len(sides)
    return Promoted(*(part.astype(kind) for part, kind in zip(joined, kinds, strict=True)))


def write_columns(model: Transformer) -> Iterator[tuple[Float[Tensor, "d c"], Float[Tensor, "d f"]]]:
    """Per layer, the write columns of the bounded heads' channels (columns of W_O) and of all units (of W_down)."""
    layers: list[Any] = list(model.layers)
    for index, layer in enumerate(layers):
        bounded = model.config.attention.n_special[index] * model.config.d_head
        yield layer.attention.output[:, :bounded], layer.feed_forward.down
