"""The parity certificate of an ordinary model: the same predictions as Hugging Face's own, and a sum that closes.

    reference = reference(hf, prompts)                 # before the bridge is put over the model
    certify(model, reference, "float32")               # what is stored and shown, or a refusal

Compared in the same dtype on the same device: the ten most probable tokens after every position of fixed prompts, the
largest difference of a log-probability over the whole vocabulary, and, to name where two models part, the residual
stream before each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legible_core.attribution import Attributor, Question
from legible_core.errors import LegibleError, NotExact
from legible_core.reading import Dtype

if TYPE_CHECKING:
    from legible_core.adapters.model import OrdinaryModel

# Texts that any tokenizer has tokens for; the second has rare words, the third digits and marks, the last code.
TEXTS = (
    "It was the best of times, it was the",
    "Mrs. Bennet deigned not to make any reply, but unable to contain herself, began",
    "In 1843 the sum was 12,500 pounds, 3 shillings & 6 pence; (see page",
    "def add(a, b):\n    return a +",
)
TOP = 10
# The largest difference of a log-probability, in nats. bfloat16 keeps 8 bits of every activation.
TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.1}
# The largest difference of the residual stream before a layer, as a share of its largest number there.
STREAM: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.05}


@dataclass(frozen=True)
class Row:
    """What the plain model gives on one prompt: log-probabilities (t, v), and the stream before each layer (t, d)."""

    ids: tuple[int, ...]
    logs: Tensor
    streams: tuple[Tensor, ...]


@torch.no_grad()
def reference(hf: Any, prompts: Sequence[Sequence[int]]) -> list[Row]:
    """The plain Hugging Face model on each prompt, one at a time."""
    device = next(hf.parameters()).device
    rows = []
    for ids in prompts:
        out = hf(torch.tensor([list(ids)], device=device), output_hidden_states=True, use_cache=False)
        streams = tuple(stream[0].float().cpu() for stream in out.hidden_states[:-1])
        rows.append(Row(tuple(ids), out.logits[0].float().cpu().double().log_softmax(-1), streams))
    return rows


@torch.no_grad()
def certify(model: OrdinaryModel, rows: Sequence[Row], dtype: Dtype) -> dict[str, Any]:
    """The certificate as it is stored; raises `NotExact` naming the first layer that differs, or the sum that does not
    close, when the model does not pass it."""
    attributor = Attributor(model, dtype)
    difference, agreeing, positions, worst, rounding = 0.0, 0, 0, 0.0, 0.0
    for row in rows:
        _check_finite(row)
        trace = model.trace(torch.tensor(row.ids, device=model.token_embedding.device))
        logits = model.logits(trace.residual)
        logs = model.final_logits(logits).cpu().double().log_softmax(-1)
        if not (_squares(trace.residual) and bool(torch.isfinite(logs).all())):
            raise _not_finite(f"what its last layer, {model.config.n_layers - 1}, or its final norm gives")
        here = float((logs - row.logs).abs().max())
        if not here <= TOLERANCE[dtype]:
            raise NotExact(
                f"The model is refused: read through TransformerLens it differs from Hugging Face by {here:.3g} in a "
                f"log-probability, over the tolerance {TOLERANCE[dtype]:g}; {_where(trace, row, dtype)}"
                + ("; bfloat16 rounds too much here: add it with --dtype float32." if dtype == "bfloat16" else "."),
                code="no_parity",
                status=422,
            )
        difference = max(difference, here)
        count = min(TOP, logs.shape[-1])
        agreeing += int((logs.topk(count).indices == row.logs.topk(count).indices).all(-1).sum())
        positions += len(row.ids)
        last = len(row.ids) - 1
        terms = attributor.attribute(trace, last, Question(int(logits[last].argmax())), logits[last])
        terms.check()
        worst = max(worst, abs(terms.residual) / terms.tolerance)
        rounding = max(rounding, abs(terms.floor.get("rounding", 0.0)) / terms.tolerance)
    return {
        "against": "Hugging Face transformers",
        "dtype": dtype,
        "device": str(model.token_embedding.device),
        "prompts": len(rows),
        "positions": positions,
        "top": min(TOP, model.config.vocab_size),
        "top_agrees": agreeing,
        "log_probability_difference": difference,
        "tolerance": TOLERANCE[dtype],
        "sum_residual_over_tolerance": worst,
        "rounding_over_tolerance": rounding,
        "versions": _versions(),
    }


def _check_finite(row: Row) -> None:
    """Raise where a stream of the plain model is so large that its square, which a norm takes, is not finite."""
    for index, stream in enumerate(row.streams):
        if not _squares(stream):
            raise _not_finite(f"what its layer {index - 1} adds to the stream" if index else "its embedding")


def _squares(stream: Tensor) -> bool:
    return bool(torch.isfinite(stream.float().square().sum(-1)).all())


def _not_finite(what: str) -> NotExact:
    return NotExact(
        f"The model is refused: {what} is not finite, or too large to be squared in float32; the weights are damaged, "
        "training diverged, or config.json is not theirs.",
        code="not_finite",
        status=422,
    )


def _where(trace: Any, row: Row, dtype: Dtype) -> str:
    """The first layer whose input differs, in words."""
    for index, (layer, theirs) in enumerate(zip(trace.layers, row.streams, strict=False)):
        off = float((layer.attention_in.float().cpu() - theirs).abs().max())
        if not off <= STREAM[dtype] * float(theirs.abs().max()):
            what = f"the first layer that differs is layer {index - 1}" if index else "the embeddings differ already"
            return f"{what} (by {off:.3g} in the stream)"
    return f"the first that differs is the last layer, {len(trace.layers) - 1}, or the final norm"


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "transformer-lens")}


__all__ = ["STREAM", "TEXTS", "TOLERANCE", "LegibleError", "Row", "certify", "reference"]
