"""Running a model over a corpus and looking at its memberships: windows, halves, and one batch's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.model.transformer import Observed, Transformer

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LayerValues:
    """One layer's memberships over a batch, tokens flattened to n; float32, on the model's device.

    operands: in the order of `config.operands(layer)`. channels: the bounded heads' combined values, head by head.
    units: the hidden units that have rails: the named ones, and sigmoid units. hidden: all hidden units, where asked.
    """

    operands: Float[Tensor, "n o"]
    channels: Float[Tensor, "n c"]
    units: Float[Tensor, "n u"]
    hidden: Float[Tensor, "n f"] | None = None


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


def spread(ids: Ints, length: int, tokens: int) -> Ints:
    """About `tokens` tokens of a stream as whole windows evenly spaced over it, joined."""
    available, wanted = len(ids) // length, max(1, tokens // length)
    if wanted >= available:
        return ids
    starts = np.linspace(0, available - 1, wanted).astype(np.int64) * length
    return np.concatenate([ids[start : start + length] for start in starts])


@torch.no_grad()
def observe(
    model: Transformer, batch: Batch, *, hidden: bool = False
) -> tuple[list[LayerValues], NDArray[np.float64]]:
    """Memberships per layer, and the negative log-likelihood (nats) of each target, NaN where there is none.

    hidden: give every hidden unit's value too.
    """
    device = model.token_embedding.device
    ids = torch.from_numpy(np.ascontiguousarray(batch.ids)).to(device)
    seen = Observed()
    with hidden_values(model) if hidden else contextlib.nullcontext([None] * len(model.layers)) as found:
        residual = model.residual(ids, observed=seen)
    count = ids.numel()
    layers = [
        LayerValues(
            _flat([torch.cat(heads, dim=-1)] if heads else [], atoms, like=residual, count=count),
            _flat([] if value is None else [value], like=residual, count=count),
            _flat([units], like=residual, count=count),
            None if every is None else _flat([every], like=residual, count=count),
        )
        for heads, value, atoms, units, every in zip(
            seen.attention_operands,
            seen.attention_outputs,
            seen.feed_forward_operands,
            seen.feed_forward_outputs,
            found,
            strict=True,
        )
    ]
    return layers, _losses(model, residual, batch.targets)


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
    """Window by window, so that the logits of one alone are in memory; log-sum-exp less the target's own logit."""
    wanted = torch.from_numpy(np.ascontiguousarray(targets)).to(residual.device)
    losses = []
    for x, y in zip(residual, wanted, strict=True):
        logits = model.logits(x)
        losses.append(logits.logsumexp(dim=-1) - logits.gather(-1, y.clamp(min=0)[:, None])[:, 0])
    found: NDArray[Any] = torch.stack(losses).double().cpu().numpy()
    return np.where(targets == -100, np.nan, found)


def _flat(*groups: Any, like: Tensor, count: int) -> Float[Tensor, "n w"]:
    tensors = [tensor for group in groups for tensor in group]
    if not tensors:
        return like.new_zeros(count, 0, dtype=torch.float32)
    flat = [tensor.reshape(count, -1).float() for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
