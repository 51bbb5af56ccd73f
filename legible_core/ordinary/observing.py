"""Running an ordinary model over windows of a text, and looking at its units layer by layer as it runs.

    residual = observe_units(model, ids, take)                   # take(layer, values (b, t, f)) is called once a layer
    for windows in sample(plain, config, 131_072, begin=None):   # text that the model writes itself

What is looked at is the input of the map that writes into the residual stream, as in a reading: the activation, and of
a gated unit act(gate)·up. Each layer's values are let go before the next one's are made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from legible_core.adapters.model import OrdinaryModel
from legible_core.config import ModelConfig
from legible_core.naming.observe import Ints
from legible_core.naming.sample import ROWS, check_tokens, drawn, first_tokens

# Tokens of the text in one window; the context of most ordinary models is many times what one batch can hold.
WINDOW = 256


def window_of(config: ModelConfig, begin: int | None) -> int:
    """Tokens of the text in one window: the context less the token that begins it, but at most WINDOW."""
    return max(1, min(config.context - (begin is not None), WINDOW))


@torch.no_grad()
def observe_units(
    model: OrdinaryModel, ids: Int[Tensor, "b t"], take: Callable[[int, Float[Tensor, "b t f"]], None]
) -> Float[Tensor, "b t d"]:
    """The final residual stream, float32, of windows that are read in one forward; `take` sees every unit's value."""
    seen: list[Tensor] = []

    def unit_hook(layer: int) -> Callable[[Tensor, Any], None]:
        return lambda value, hook: take(layer, value.float())

    hooks: list[tuple[str, Any]] = [
        (f"blocks.{layer}.mlp.out.hook_in", unit_hook(layer)) for layer in range(model.config.n_layers)
    ]
    hooks.append(("ln_final.hook_in", lambda value, hook: seen.append(value.float())))
    model.bridge.run_with_hooks(ids, return_type=None, fwd_hooks=hooks, use_cache=False, **_few_logits(model))
    return seen[0]


def losses(model: OrdinaryModel, residual: Float[Tensor, "b t d"], targets: Ints) -> NDArray[np.float64]:
    """The loss of each target (b, t) in nats, behind the soft-cap; NaN where the target is -100."""
    wanted = torch.from_numpy(np.ascontiguousarray(targets)).to(residual.device)
    found = []
    for x, y in zip(residual, wanted, strict=True):  # the logits of one window alone are in memory
        logits = model.final_logits(model.logits(x))
        found.append(logits.logsumexp(dim=-1) - logits.gather(-1, y.clamp(min=0)[:, None])[:, 0])
    made: NDArray[np.float64] = torch.stack(found).double().cpu().numpy()
    return np.where(targets == -100, np.nan, made)


@torch.no_grad()
def sample(
    plain: Any,
    config: ModelConfig,
    tokens: int,
    *,
    begin: int | None,
    seed: int = 0,
    end: int | None = None,
    rows: int = ROWS,
) -> Iterator[Ints]:
    """Windows of text that the model draws from its own distribution, (at most `rows`, window), as `naming.sample`.

    plain: Hugging Face's own model, before the bridge is put over it, which does not keep its cache. begin: the token
    that the tokenizer puts before every text, which then stands before each window too and is no part of it. Without
    one a window begins with the end-of-text token `end`, or with a token drawn evenly.
    """
    check_tokens(tokens)
    length = window_of(config, begin)
    left = 2 * -(-tokens // (2 * length))
    generator = np.random.default_rng(seed)
    while left:
        count = min(rows, left)
        yield _windows(plain, config.vocab_size, generator, count, length, begin, end)
        left -= count


def _windows(
    plain: Any,
    vocabulary: int,
    generator: np.random.Generator,
    count: int,
    length: int,
    begin: int | None,
    end: int | None,
) -> Ints:
    # Releases of the library differ in what they call a cache.
    known = inspect.signature(plain.forward).parameters
    called = "cache" if "cache" in known else "past_key_values"
    ids: Ints = np.empty((count, length), np.int64)
    given = np.full(count, begin) if begin is not None else first_tokens(generator, count, end, vocabulary)
    ids[:, 0] = given
    cache = None
    for position in range(int(begin is None), length):
        one = torch.from_numpy(given[:, None]).to(plain.device)
        out = plain(input_ids=one, use_cache=True, **({} if cache is None else {called: cache}))
        cache = out[called]
        given = ids[:, position] = drawn(out.logits[:, -1].float(), generator)
    return ids


def _few_logits(model: OrdinaryModel) -> dict[str, int]:
    """What keeps the model from making all its logits, which nothing here asks for, where its family knows how."""
    known = inspect.signature(model.bridge.original_model.forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in known else {}


__all__ = ["losses", "observe_units", "sample", "window_of"]
