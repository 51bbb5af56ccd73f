"""The layer-native token table: each layer's own picture of each token, in the frame its read rows stand in.

    table = measure_native(model, ids, candidates=512, end_of_document=0)
    table.save(path)                                    # one safetensors file
    table = NativeTable.load(path, checkpoint.hash)
    table.row(5, token) @ row                           # how much a read row of layer 5 answers to the token

Ẽ[l, t] = mean of the state that enters layer l's feed-forward, after its norm, gain and bias, over the positions of a
scan at which t is the current token, less the plain mean of those means over the candidate tokens ("Through the Looking
Glass" eq. 7). The candidates are the most frequent tokens of the scan. The scan is one pass in constant memory: sums in
float64 of (layers, candidates, d_model), whatever the length of the text.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from legible_core.errors import Corrupt, LegibleError, NotFound, Unavailable
from legible_core.model.transformer import Transformer
from legible_core.naming.observe import batches
from legible_core.replace import WRITE_ERRORS, save_arrays, write_reason

VERSION = "1"
CANDIDATES = 512
MIN_COUNT = 8
TENSORS = {"tokens", "counts", "table", "centre", "mean"}


@dataclass(frozen=True, eq=False)
class NativeTable:
    """Ẽ of every layer and candidate token, centred; units are those of the normed state.

    tokens: (c,) the candidates, most frequent first; counts: (c,) their occurrences. table: (l, c, d) float32, centred.
    centre: (l, d) the mean over candidates that was taken off. mean: (l, d) the mean state x̄ over all positions.
    meta: checkpoint, corpus, sha256 of the ids, tokens scanned.
    """

    tokens: NDArray[np.int64]
    counts: NDArray[np.int64]
    table: NDArray[np.float32]
    centre: NDArray[np.float32]
    mean: NDArray[np.float32]
    meta: dict[str, str]

    def row(self, layer: int, token: int) -> NDArray[np.float32]:
        """Ẽ[layer, token] (d,); raises `NotFound` for a token that is no candidate."""
        place = np.flatnonzero(self.tokens == token)
        if not place.size:
            raise NotFound(
                f"Token {token} is none of the {len(self.tokens)} candidates of the layer-native table; scan more text "
                "or more candidates."
            )
        found: NDArray[np.float32] = self.table[layer, int(place[0])]
        return found

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all; raises `Unavailable` when the disk does not take it."""
        arrays = {name: getattr(self, name) for name in sorted(TENSORS)}
        try:
            save_arrays(path, arrays, {"format": "legible-native", "version": VERSION, **self.meta})
        except WRITE_ERRORS as error:
            raise Unavailable(f"{path} cannot be written: {write_reason(error)}.", code="cannot_write") from None

    @classmethod
    def load(cls, path: Path, checkpoint_hash: str | None = None) -> NativeTable:
        """Read a stored table.

        Raises `NotFound` where there is none, `Corrupt` where the file is no such table, and `LegibleError` where it
        was measured on other weights than those of `checkpoint_hash`.
        """
        if not path.is_file():
            raise NotFound(f"There is no layer-native table at {path}; `legible native` makes one.")
        try:
            with safe_open(path, "np") as file:
                meta = dict(file.metadata() or {})
                if meta.get("format") != "legible-native" or meta.get("version") != VERSION:
                    raise Corrupt(f"{path} is no layer-native table of version {VERSION}; `legible native` makes one.")
                if set(file.keys()) != TENSORS:
                    raise Corrupt(f"{path} does not hold the tensors of a layer-native table; make it again.")
                arrays = {name: file.get_tensor(name) for name in TENSORS}
        except (SafetensorError, OSError, ValueError):
            raise Corrupt(f"{path} is no safetensors file; `legible native` makes one.") from None
        if checkpoint_hash is not None and meta.get("checkpoint") != checkpoint_hash:
            raise LegibleError(
                f"The layer-native table {path.name} was measured on the weights {meta.get('checkpoint', '')[:12]}…, "
                f"not on {checkpoint_hash[:12]}…; measure it on these with `legible native`.",
                code="other_weights",
            )
        layers, count, width = arrays["table"].shape if arrays["table"].ndim == 3 else (-1, -1, -1)
        shapes = {name: arrays[name].shape for name in ("tokens", "counts", "centre", "mean")}
        if shapes != {"tokens": (count,), "counts": (count,), "centre": (layers, width), "mean": (layers, width)}:
            raise Corrupt(f"The tensors of {path} do not fit each other; make the layer-native table again.")
        return cls(**arrays, meta={key: value for key, value in meta.items() if key not in ("format", "version")})


@torch.no_grad()
def measure_native(
    model: Transformer,
    ids: NDArray[np.int64],
    *,
    candidates: int = CANDIDATES,
    min_count: int = MIN_COUNT,
    batch: int = 8,
    end_of_document: int | None = None,
    corpus: str = "",
    checkpoint_hash: str = "",
    between: Callable[[int], None] | None = None,
) -> NativeTable:
    """Scan a token stream once and make the table.

    candidates: at most so many tokens, the most frequent of those seen `min_count` times or more; the end of a document
    is none of them. between: called with the tokens done after each batch.
    Raises `LegibleError` when no token is seen often enough, or the states are not finite.
    """
    config = model.config
    chosen, counts = candidate_tokens(ids, config.vocab_size, candidates, min_count, end_of_document)
    slot = np.full(config.vocab_size, len(chosen), np.int64)
    slot[chosen] = np.arange(len(chosen))
    device = model.token_embedding.device
    # The last row gathers all other tokens, so that the mean over all positions is there too.
    sums = torch.zeros(config.n_layers, len(chosen) + 1, config.d_model, dtype=torch.float64, device=device)
    done = 0
    for piece in batches(ids, config.context, batch):
        where = torch.from_numpy(slot[piece.ids.reshape(-1)]).to(device)
        with entering(model) as states:
            model.residual(torch.from_numpy(np.ascontiguousarray(piece.ids)).to(device))
        for layer, state in enumerate(states):
            sums[layer].index_add_(0, where, state.reshape(len(where), -1).double())
        done += piece.ids.size
        if between is not None:
            between(done)
    if not torch.isfinite(sums).all():
        raise LegibleError(
            "The states that enter the feed-forward layers are not finite on this text, so there is no table.",
            code="not_finite",
            status=422,
        )
    means = sums[:, :-1] / torch.from_numpy(counts).to(device)[None, :, None]
    centre = means.mean(dim=1)
    digest = hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").tobytes()).hexdigest()
    return NativeTable(
        tokens=chosen,
        counts=counts,
        table=_array(means - centre[:, None]),
        centre=_array(centre),
        mean=_array(sums.sum(dim=1) / len(ids)),
        meta={"checkpoint": checkpoint_hash, "corpus": corpus, "sha256": digest, "scanned": str(len(ids))},
    )


def candidate_tokens(
    ids: NDArray[np.int64], vocab_size: int, candidates: int, min_count: int, end_of_document: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The most frequent tokens of a stream, most frequent first, and how often each occurs."""
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        raise LegibleError(
            f"The corpus holds token {int(ids.max())}; the checkpoint has the tokens 0 to {vocab_size - 1}.",
            code="wrong_tokenizer",
        )
    counts = np.bincount(ids, minlength=vocab_size).astype(np.int64)
    if end_of_document is not None:
        counts[end_of_document] = 0
    order = np.argsort(-counts, kind="stable")[:candidates]
    order = order[counts[order] >= max(1, min_count)]
    if len(order) < 2:
        raise LegibleError(
            f"The corpus of {len(ids)} tokens holds fewer than two tokens {min_count} times or more; give more text.",
            code="corpus_too_short",
        )
    return order.astype(np.int64), counts[order]


def centre_of(
    states: Float[Tensor, "n d"], ids: Int[Tensor, "w t"], candidates: NDArray[np.int64]
) -> Float[Tensor, " d"]:
    """The mean over candidate tokens of each one's mean state, those that a text holds, each counted once.

    What a table's rows are centred by, for states that no table holds. states: one for each of `ids`, in their order.
    """
    flat = ids.flatten().to(states.device)
    chosen = torch.from_numpy(candidates).to(states.device)
    order = torch.argsort(chosen)
    place = torch.searchsorted(chosen[order], flat).clamp(max=len(chosen) - 1)
    known = chosen[order][place] == flat
    sums = torch.zeros(len(chosen), states.shape[-1], dtype=torch.float64, device=states.device)
    sums.index_add_(0, place[known], states[known].double())
    counts = torch.bincount(place[known], minlength=len(chosen))
    return (sums[counts > 0] / counts[counts > 0, None]).mean(dim=0).float()


@contextlib.contextmanager
def entering(model: Transformer) -> Iterator[list[Tensor]]:
    """The normed states (b, t, d) that enter each layer's feed-forward, of the one pass made inside; float32."""
    found: list[Tensor] = []
    modules: list[Any] = [layer.feed_forward_norm for layer in model.layers]
    handles = [module.register_forward_hook(lambda _module, _given, out: found.append(out)) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def native_path(data_dir: Path, checkpoint_hash: str) -> Path:
    """Where a checkpoint's table is kept when no other place is asked for."""
    return data_dir / "native" / f"{checkpoint_hash}.safetensors"


def _array(values: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.float().cpu().numpy()
    return found
