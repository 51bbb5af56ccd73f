"""A checkpoint goes on with a text, token by token, and then says which unit led each token.

    for token in continuation(model, ids, Sampling(32), stop={0}): ...      # with the key-value cache
    leading(engine, ids + written, first=len(ids))                          # one trace for all of them

The tokens are chosen from logits of the cached forward; what is said of each is a full reading's sum, which closes or
raises `NotExact`, off one trace of the whole text.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from legible_core.errors import NotExact
from legible_core.readable import Readable
from legible_core.reading import ReadingRequest
from legible_core.sampling import Sampling
from legible_core.units import Unit

if TYPE_CHECKING:
    from legible_core.pipeline import Engine


@dataclass(frozen=True, slots=True)
class Written:
    """A token that was chosen, with its probability at temperature 1 and its rank there."""

    id: int
    probability: float
    rank: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The unit that pushed a token's logit most, and by how much; `named` where its formula is read off the weights."""

    unit: str
    term: float
    value: float
    named: bool


@torch.no_grad()
def continuation(
    model: Readable, ids: Sequence[int], sampling: Sampling, *, done: Sequence[int] = (), stop: Container[int] = ()
) -> Iterator[Written]:
    """The tokens after `ids` and those already `done`, until `sampling.tokens` are there or one of `stop` is written.

    Raises `NotExact` where the model gives no finite probabilities.
    """
    if done and done[-1] in stop:
        return
    device = model.token_embedding.device
    cache: Any = model.new_cache()
    given = [*ids, *done]
    for place in range(len(done), sampling.tokens):
        residual = model.residual(torch.tensor([given], device=device), cache=cache)[0, -1]
        written = choose(model.logits(residual), sampling, place)
        yield written
        if written.id in stop:
            return
        given = [written.id]


def choose(logits: Float[Tensor, " v"], sampling: Sampling, place: int) -> Written:
    """The token of the continuation's `place`: the leading one (of a tie the lowest id), or a draw."""
    values = logits.double().cpu()
    if not bool(torch.isfinite(values).all()):
        raise NotExact("The model's logits are not all finite numbers, so it cannot go on.", code="not_finite")
    if sampling.greedy:
        index = int((values == values.max()).nonzero()[0])
    else:
        reached = torch.softmax(values / sampling.temperature, dim=0).cumsum(0)
        drawn = np.random.default_rng([sampling.seed, place]).random() * float(reached[-1])
        index = min(int(torch.searchsorted(reached, drawn, right=True)), len(values) - 1)
    probability = float(torch.softmax(values, dim=0)[index])
    return Written(index, probability, int((values > values[index]).sum()) + 1)


def leading(engine: Engine, ids: Sequence[int], position: int) -> Leading:
    """What led to the token after `position` of a text: the named unit with the greatest term, else any unit.

    The terms are those of that token's reading at that position; the engine keeps the text's trace between calls.
    """
    request = ReadingRequest(
        engine.checkpoint.hash, tuple(ids), position=position, target=ids[position + 1], dtype=engine.dtype
    )
    terms = engine.solve(request).terms
    named = engine.config.feed_forward.n_named
    units = terms.units[:, :named] if named else terms.units
    layer, unit = np.unravel_index(int(units.argmax()), units.shape)
    return Leading(str(Unit(int(layer), int(unit))), float(units[layer, unit]), terms.value, bool(named))
