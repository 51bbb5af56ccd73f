"""Running a model over a corpus and looking at its memberships: windows, halves, and one batch's values."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from legible_core.model.set_operators import Operands
from legible_core.model.transformer import Transformer

Ints = NDArray[np.int64]
# Positions whose logits are in memory at once; more do not make their product faster.
LOGITS = 256


@dataclass(frozen=True)
class LayerValues:
    """One layer's memberships over a batch, tokens flattened to n; float32, on the model's device, mostly not copied.

    operand_parts: side by side they are the operands in the order of `config.operands(layer)`, the heads' first; a part
    that would have no column is left out. channels: the bounded heads' combined values, head by head. hidden: all
    hidden units, of which the first `n_units` have rails: the named ones, and sigmoid units.
    """

    operand_parts: tuple[Float[Tensor, "n _"], ...]
    channels: Float[Tensor, "n c"]
    hidden: Float[Tensor, "n f"]
    n_units: int

    @property
    def surfaces(self) -> tuple[Tensor, ...]:
        """The parts of the operands, the channels, and all hidden units."""
        return (*self.operand_parts, self.channels, self.hidden)

    @cached_property
    def operands(self) -> Float[Tensor, "n o"]:
        """All operands in one tensor."""
        if len(self.operand_parts) == 1:
            return self.operand_parts[0]
        return torch.cat(self.operand_parts, dim=-1) if self.operand_parts else self.channels[:, :0]

    @property
    def units(self) -> Float[Tensor, "n u"]:
        """The units that have rails."""
        return self.hidden[:, : self.n_units]


@dataclass(frozen=True)
class Batch:
    """Windows of one length: ids (b, t) that are read, and the next ids (b, t); a last window may lack its last one."""

    ids: Ints
    targets: Ints


def halves(ids: Ints, end_of_document: int | None) -> tuple[Ints, Ints]:
    """The naming half and the held-out half of a token stream.

    Cut at the document end nearest the middle, so that no document is in both; at the middle token when no document
    ends in the middle half of the stream.
    """
    middle = len(ids) // 2
    ends = np.flatnonzero(ids == end_of_document) + 1 if end_of_document is not None else np.zeros(0, np.int64)
    ends = ends[(ends > len(ids) // 4) & (ends < len(ids) - len(ids) // 4)]
    cut = int(ends[np.argmin(np.abs(ends - middle))]) if ends.size else middle
    return ids[:cut], ids[cut:]


def batches(ids: Ints, length: int, size: int) -> Iterator[Batch]:
    """Cut a stream into windows of `length` tokens, `size` at a time, each token read once; a shorter tail comes last.

    The target of a window's last token is the first one of the next window; the stream's last token has none (-100).
    """
    following = np.concatenate([ids[1:], [-100]]).astype(np.int64)
    full = len(ids) // length * length
    for start in range(0, full, length * size):
        stop = min(start + length * size, full)
        yield Batch(ids[start:stop].reshape(-1, length), following[start:stop].reshape(-1, length))
    if full < len(ids):
        yield Batch(ids[full:][None], following[full:][None])


def window_starts(count: int, length: int, wanted: int) -> Ints:
    """Where windows of `length` tokens begin: `wanted`, evenly spaced over a stream of `count`, or all that it has."""
    available = count // length
    return np.linspace(0, available - 1, min(wanted, available)).astype(np.int64) * length


def spread(ids: Ints, length: int, tokens: int) -> Ints:
    """About `tokens` tokens of a stream as whole windows evenly spaced over it, joined."""
    wanted = max(1, tokens // length)
    if wanted >= len(ids) // length:
        return ids
    return np.concatenate([ids[start : start + length] for start in window_starts(len(ids), length, wanted)])


def observe(model: Transformer, batch: Batch) -> tuple[list[LayerValues], NDArray[np.float64]]:
    """Every layer's memberships, and the negative log-likelihood (nats) of each target, NaN where there is none."""
    layers: list[LayerValues] = []
    losses = observe_each(model, batch, lambda _, values: layers.append(values))
    return layers, losses


@torch.no_grad()
def observe_each(model: Transformer, batch: Batch, take: Callable[[int, LayerValues], None]) -> NDArray[np.float64]:
    """As `observe`, but `take(layer, values)` sees a layer's values before the next layer's are made.

    What it does not keep is let go, so the next layer finds its memory where this one's was.
    """
    ids = torch.from_numpy(np.ascontiguousarray(batch.ids)).to(model.token_embedding.device)
    count, numbers = ids.numel(), itertools.count()
    heads: list[tuple[tuple[Tensor, ...], Tensor | None]] = []

    def after_attention(_module: Any, _given: Any, out: Any) -> None:
        heads.append(out[1:])

    def after_units(module: Any, _given: Any, out: Any) -> None:
        atoms, combined = heads.pop()
        hidden = _flat(out[0], count)
        parts = tuple(_flat(_joint(operands), count) for operands in (atoms, out[1]) if operands)
        channels = hidden[:, :0] if combined is None else _flat(combined, count)
        take(next(numbers), LayerValues(parts, channels, hidden, module.layout.n_bounded))

    modules: list[Any] = list(model.layers)
    handles = [layer.attention.register_forward_hook(after_attention) for layer in modules]
    handles += [layer.feed_forward.register_forward_hook(after_units) for layer in modules]
    try:
        residual = model.residual(ids)
    finally:
        for handle in handles:
            handle.remove()
    return _losses(model, residual, batch.targets)


@contextlib.contextmanager
def hidden_values(model: Transformer) -> Iterator[list[Tensor | None]]:
    """Each layer's hidden vector of the pass made inside, GELU units too, which a pass does not report by itself."""
    found: list[Tensor | None] = []
    modules: list[Any] = [layer.feed_forward for layer in model.layers]
    handles = [module.register_forward_hook(lambda _module, _given, out: found.append(out[0])) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _losses(model: Transformer, residual: Tensor, targets: Ints) -> NDArray[np.float64]:
    """Log-sum-exp less the target's own logit, some positions at a time, so that their logits alone are in memory."""
    wanted = torch.from_numpy(np.ascontiguousarray(targets)).to(residual.device)
    losses = []
    for x, y in zip(residual.flatten(0, 1).split(LOGITS), wanted.flatten().split(LOGITS), strict=True):
        logits = model.logits(x)
        losses.append(F.cross_entropy(logits, y.clamp(min=0), reduction="none"))
    found: NDArray[Any] = torch.cat(losses).view_as(wanted).double().cpu().numpy()
    return np.where(targets == -100, np.nan, found)


def _joint(operands: tuple[Tensor, ...]) -> Tensor:
    """Operands side by side: the tensor that they are parts of, where there is one."""
    if isinstance(operands, Operands):
        return operands.joint
    return operands[0] if len(operands) == 1 else torch.cat(operands, dim=-1)


def _flat(values: Tensor, count: int) -> Float[Tensor, "n w"]:
    return values.reshape(count, -1).float()
