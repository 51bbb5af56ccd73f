"""What every experiment measures an edit by: a token's rank where it was aimed and elsewhere, and the held-out loss.

    text = HeldOut.of(ids, length=128, windows=16)
    before = outcome(model, text, target)
    after = outcome(model, text, target, edits)
    aimed = text.current(token)                                  # (w, t) where the edit is meant to act
    np.median(after.ranks[aimed]), after.loss - before.loss      # "Through the Looking Glass" section 4

A rank counts from 1 over the whole vocabulary. Loss is the mean negative log-likelihood in nats of every next token of
the windows, at the aimed positions too, so an edit that overrides a prediction pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.model.transformer import Transformer
from legible_core.naming.observe import spread

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
BATCH = 8


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Windows of a text that nothing was measured on. ids, targets: (w, t); the last target of the text is -100."""

    ids: Int[Tensor, "w t"]
    targets: Int[Tensor, "w t"]

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
    device = model.token_embedding.device
    ranks, total, count = [], 0.0, 0
    for start in range(0, len(text.ids), BATCH):
        ids, targets = (part[start : start + BATCH].to(device) for part in (text.ids, text.targets))
        residual = model.residual(ids, edits)
        for x, y in zip(residual, targets, strict=True):
            logits = model.logits(x)
            ranks.append((logits > logits[:, target : target + 1]).sum(dim=-1) + 1)
            known = y >= 0
            picked = logits.gather(-1, y.clamp(min=0)[:, None])[:, 0]
            total += float((logits.logsumexp(dim=-1) - picked)[known].double().sum())
            count += int(known.sum())
    return Outcome(total / count, torch.stack(ranks).cpu().numpy())


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
