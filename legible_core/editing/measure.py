"""What every experiment measures an edit by: a token's rank where it was aimed and elsewhere, and the held-out loss.

    text = HeldOut.of(ids, length=128, windows=16)
    before = outcome(model, text, target)
    after = outcome(model, text, target, edits)
    aimed = text.current(token)                                  # (w, t) where the edit is meant to act
    np.median(after.ranks[aimed]), after.loss - before.loss      # "Through the Looking Glass" section 4

A rank counts from 1 over the whole vocabulary. Loss is the mean negative log-likelihood in nats of every next token of
the windows, at the aimed positions too, so an edit that overrides a prediction pays for it. A pass begins at the first
edited layer: the unedited stream that enters it is kept with the text, so a model's weights must stay as they are while
a text is judged on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.model.editing import by_layer, check_fits, edit_stream, fits
from legible_core.model.transformer import Transformer
from legible_core.naming.observe import spread

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
BATCH = 8
KEPT = 3


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Windows of a text that nothing was measured on. ids, targets: (w, t); the last target of the text is -100."""

    ids: Int[Tensor, "w t"]
    targets: Int[Tensor, "w t"]
    # The unedited streams that were asked for last, each with its model and the layer that it enters.
    _kept: list[tuple[Transformer, int, Tensor]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, ids: Ints, length: int, windows: int) -> HeldOut:
        """At most `windows` whole windows evenly spaced over a token stream.

        Raises `LegibleError` when the stream holds no whole window with a token after it.
        """
        following = np.concatenate([ids[1:], [-100]])
        if len(ids) <= length:
            raise LegibleError(
                f"The text has {len(ids)} tokens for what is held out; an experiment needs more than {length}.",
                code="corpus_too_short",
            )
        places = spread(np.arange(len(ids), dtype=np.int64), length, length * windows)
        places = places[: len(places) // length * length]
        made = [torch.from_numpy(np.ascontiguousarray(part[places].reshape(-1, length))) for part in (ids, following)]
        return cls(made[0], made[1])

    def current(self, token: int) -> Mask:
        """(w, t): where a token is the current one."""
        found: Mask = (self.ids == token).numpy()
        return found

    @property
    def tokens(self) -> int:
        return self.ids.numel()

    @torch.no_grad()
    def entering(self, model: Transformer, layer: int) -> Float[Tensor, "w t d"]:
        """The unedited residual stream before a layer; before the final norm for layer n_layers."""
        for known, place, stream in self._kept:
            if place == layer and _same_below(known, model, layer):
                return stream
        made = []
        for ids in self.ids.to(model.token_embedding.device).split(BATCH):
            x = model._embed(ids, 0, ())[0]
            for part in model.layers[:layer]:
                x = model._layer(part, x)[-1]
            made.append(x)
        self._kept[:] = [*self._kept[1 - KEPT :], (model, layer, torch.cat(made))]
        return self._kept[-1][2]


@dataclass(frozen=True, eq=False)
class Outcome:
    """loss: nats a token. ranks: (w, t) of the target token, from 1."""

    loss: float
    ranks: Ints

    def rank(self, where: Mask) -> float:
        """The median rank over some positions; NaN over none."""
        return float(np.median(self.ranks[where])) if where.any() else float("nan")


@torch.no_grad()
def outcome(model: Transformer, text: HeldOut, target: int, edits: Sequence[Edit] = ()) -> Outcome:
    """Run the windows under the edits; raises what the pass raises, activations that are not finite among it."""
    ranks, total, count = [], 0.0, 0
    for residual, targets in zip(residuals(model, text, edits), text.targets.split(BATCH), strict=True):
        for x, y in zip(residual, targets.to(residual.device), strict=True):
            logits = model.logits(x)
            ranks.append((logits > logits[:, target : target + 1]).sum(dim=-1) + 1)
            known = y >= 0
            picked = logits.gather(-1, y.clamp(min=0)[:, None])[:, 0]
            total += float((logits.logsumexp(dim=-1) - picked)[known].double().sum())
            count += int(known.sum())
    return Outcome(total / count, torch.stack(ranks).cpu().numpy())


@torch.no_grad()
def residuals(model: Transformer, text: HeldOut, edits: Sequence[Edit] = ()) -> Iterator[Float[Tensor, "b t d"]]:
    """The final residual stream under the edits, a few windows at a time; equal to `model.residual(ids, edits)`."""
    depth = model.config.n_layers
    for edit in edits:
        edit.check(model.config, text.ids.shape[1])
    first = min((edit.component.layer for edit in edits), default=depth)
    here = by_layer(edits, 0)
    for x in text.entering(model, first).split(BATCH):
        flags = []
        for layer in range(first, depth):
            x = model._layer(model.layers[layer], x, here.get(layer))[-1]
            flags.append(fits(x))
        if edits:
            x = edit_stream(x, here.get(depth))
            check_fits([*[torch.ones_like(fits(x))] * first, *flags, fits(x)], edits)
        yield x


def _same_below(one: Transformer, other: Transformer, layer: int) -> bool:
    """Whether two models share everything below a layer, as a model and a copy with one other attention do."""
    embeddings = one.token_embedding is other.token_embedding and one.position_embedding is other.position_embedding
    below = zip(one.layers[:layer], other.layers[:layer], strict=True)
    return one is other or (embeddings and all(mine is theirs for mine, theirs in below))


@torch.no_grad()
def reads(model: Transformer, text: HeldOut, layer: int, edits: Sequence[Edit] = ()) -> Float[Tensor, "n d"]:
    """The normed states that enter a layer's feed-forward at every position of a text, window after window.

    The edits are of this layer's attention or of layers below; the pass begins at the first of them and ends here.
    """
    first = min((edit.component.layer for edit in edits), default=layer)
    here = by_layer(edits, 0)
    found = []
    for x in text.entering(model, first).split(BATCH):
        for place in range(first, layer):
            x = model._layer(model.layers[place], x, here.get(place))[-1]
        middle = model._layer(model.layers[layer], x, here.get(layer))[2]
        found.append(model.layers[layer].feed_forward_norm(middle).flatten(0, 1))
    return torch.cat(found)


@torch.no_grad()
def states(
    model: Transformer, windows: Int[Tensor, "w t"], layer: int, edits: Sequence[Edit] = (), *, attention: bool = False
) -> Float[Tensor, "n d"]:
    """The normed states that enter a layer's feed-forward (or its attention) at every position, window after window."""
    part = model.layers[layer]
    norm: Any = part.attention_norm if attention else part.feed_forward_norm
    found: list[Tensor] = []
    handle = norm.register_forward_hook(lambda _module, _given, out: found.append(out.flatten(0, 1)))
    try:
        for start in range(0, len(windows), BATCH):
            model.residual(windows[start : start + BATCH].to(model.token_embedding.device), edits)
    finally:
        handle.remove()
    return torch.cat(found)


@torch.no_grad()
def gathered(
    model: Transformer,
    windows: Int[Tensor, "w t"],
    take: Callable[[int, Tensor, Tensor], Tensor],
    layers: Sequence[int],
    edits: Sequence[Edit] = (),
) -> list[Tensor]:
    """Per layer, `take(layer, z, hidden)` of every window, joined along the positions; z (t, h, dh), hidden (t, f)."""
    found: list[list[Tensor]] = [[] for _ in layers]
    for window in windows:
        trace = model.trace(window.to(model.token_embedding.device), edits)
        for place, layer in enumerate(layers):
            recorded = trace.layers[layer]
            found[place].append(take(layer, recorded.z.float(), recorded.hidden.float()))
    return [torch.cat(parts) for parts in found]


def readout(model: Transformer, token: int) -> Float[Tensor, " d"]:
    """U_B − Ū: a token's unembedding row less the mean over the vocabulary."""
    rows = model.unembedding_matrix.detach().float()
    return rows[token] - rows.mean(dim=0)


def budgets() -> tuple[float, ...]:
    """The loss budgets, in nats, at which a frontier is read."""
    return (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
