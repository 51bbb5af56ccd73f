"""The reads of "Legible-by-Construction" appendix A.2 that an ordinary model has, in the shape of `telemetry.read`.

Its heads are all conventional and it has neither operands nor quantifiers, so rails, ratios and half-lives are
undefined for it; what its heads write, its output projections, the residual and the final gain are not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from legible_core.adapters.model import OrdinaryModel
from legible_core.training.telemetry import head_grams, number, numbers


@torch.no_grad()
def read(model: OrdinaryModel, *texts: Int[Tensor, " t"], skip: int = 0) -> dict[str, Any]:
    """`tokens`, `residual_rms`, `gain_norm` and by layer `columns` and `write` of each head; the rest is None.

    texts: each at most a context long; the first `skip` positions of each are read and not counted (a token that the
    tokenizer puts before every text is a sink of attention with writes of its own). Where a norm stands behind the
    sublayer, write and columns are what it lets through: under its gain, the write over its divisor as well.
    """
    heads = model.config.n_heads
    outputs = []
    for layer in model.layers:
        output = layer.attention.output.float()
        outputs.append(output * layer.attention.post_gain[:, None] if model.config.post_norms else output)
    grams = [head_grams(output, heads) for output in outputs]
    writes = [torch.zeros(heads, dtype=torch.float64, device=output.device) for output in outputs]
    squares, tokens = 0.0, 0
    for ids in texts:
        trace = model.trace(ids.to(model.token_embedding.device))
        counted = slice(skip, None)
        squares += trace.residual[counted].double().square().mean(-1).sum().item()
        tokens += len(ids) - skip
        for write, gram, seen in zip(writes, grams, trace.layers, strict=True):
            z = seen.z[counted].float()
            norms = torch.einsum("thi,hij,thj->th", z, gram, z).clamp(min=0).sqrt()
            if seen.attention_divisor is not None:
                norms = norms / seen.attention_divisor[counted, None]
            write += norms.double().sum(0)
    layers = [
        {
            "attention": None, "feed_forward": None, "bounded_heads": 0, "half_life": None,
            "write": numbers(write / max(1, tokens)), "write_ratio": None,
            "columns": numbers(output.norm(dim=0).unflatten(0, (heads, -1)).mean(1)), "columns_ratio": None,
        }
        for write, output in zip(writes, outputs, strict=True)
    ]  # fmt: skip
    rms = math.sqrt(squares / max(1, tokens)) if math.isfinite(squares) else math.nan
    gain = model.final_norm.gain.norm().item()
    return {"tokens": tokens, "residual_rms": number(rms), "gain_norm": number(gain), "layers": layers}
