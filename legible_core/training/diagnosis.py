"""What "Legible-by-Construction" appendix A says of a reading: which figures were signs of a divergence there.

The paper read one diverged checkpoint (membership, 9 of 12 heads bounded, 12 layers, d = 768) beside healthy ones, so
a sign here is a likeness to that one, no proof. Saturation alone is none: crispness pins healthy operands to the rails
(A.3); it is one where the conventional heads of the same layer write many times what the bounded ones do (A.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from legible_core.config import ModelConfig
from legible_core.model import Transformer

Level: TypeAlias = Literal["note", "warning", "alarm"]

# A.2: in the diverged checkpoint 68, 99 and 79 % of the bounded channels saturated in layers 2-4, with writes 100-200
# times those of the bounded heads; in its healthy layers 3-38 % and 3-5 times. Column norms 1.34 times on average.
PAPER_SATURATED = 0.68
PAPER_HEALTHY_SATURATED = 0.38
PAPER_RATIO = 100.0
PAPER_HEALTHY_RATIO = 5.0
PAPER_COLUMNS = 1.34
PAPER_SPLIT = "the paper's membership model with 9 of 12 heads bounded diverged, those with 6 and with all 12 trained"


@dataclass(frozen=True)
class Sign:
    """One finding: `note` says how a figure stands to the paper's, `warning` and `alarm` are likenesses to its failure.

    layer is None for what holds for the whole model.
    """

    level: Level
    layer: int | None
    text: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def signs(config: ModelConfig, reading: dict[str, Any]) -> list[Sign]:
    """What of a reading (`telemetry.read`) is like the paper's failure, the gravest first; [] where nothing is."""
    found = _split(config)
    for index, layer in enumerate(reading["layers"]):
        found += _layer(index, layer)
    if reading["residual_rms"] is None or reading["gain_norm"] is None:
        found.append(Sign("alarm", None, "The residual or the final gain is not a finite number."))
    order = {"alarm": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda sign: (order[sign.level], -1 if sign.layer is None else sign.layer))


def _split(config: ModelConfig) -> list[Sign]:
    """A small unbounded minority: 0 < conventional < ½ of a layer's heads."""
    heads = config.n_heads
    small = [i for i, bounded in enumerate(config.attention.n_special) if 0 < heads - bounded < heads / 2]
    if not small or config.attention.value == "linear":
        return []
    where = "every layer" if len(small) == config.n_layers else f"layer{'s' * (len(small) > 1)} {_listed(small)}"
    free = heads - config.attention.n_special[small[0]]
    text = f"In {where} a minority of conventional heads ({free} of {heads}) stands beside bounded ones"
    if config.attention.value == "membership":
        return [Sign("warning", None, f"{text}: {PAPER_SPLIT} (A.1).")]
    return [Sign("note", None, f"{text}; the paper's Boolean model of 9 bounded and 3 conventional trained (A.4).")]


def _layer(index: int, layer: dict[str, Any]) -> list[Sign]:
    """The runaway write: saturated bounded heads and conventional ones that write for them."""
    found = []
    ratio, columns = layer["write_ratio"], layer["columns_ratio"]
    saturated = layer["attention"]["saturated"] if layer["attention"] else None
    if ratio is not None and saturated is not None and ratio > PAPER_HEALTHY_RATIO:
        grave = ratio >= PAPER_RATIO and saturated >= PAPER_SATURATED
        like = saturated > PAPER_HEALTHY_SATURATED
        text = (
            f"conventional heads write {ratio:.3g} times what bounded ones do (paper: 3-5 where healthy, 100-200 where "
            f"diverged) and {saturated:.0%} of the memberships are within 0.02 of a rail (paper: 3-38 %, 68-99 %)"
        )
        found.append(Sign("alarm" if grave else "warning" if like else "note", index, text + "."))
    if columns is not None and columns >= PAPER_COLUMNS:
        text = f"columns of W_O are {columns:.3g} times as long for conventional heads (paper: 1.34 where it diverged)"
        found.append(Sign("note", index, text + "."))
    return found


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


@torch.no_grad()
def own_text(
    model: Transformer, first: int, tokens: int, seed: int, progress: Callable[[int, int], None] | None = None
) -> Int[Tensor, "b t"] | None:
    """Contexts that the model writes by itself from token `first`, sampled at temperature 1; None where it cannot.

    At least `tokens` of them, in as few steps as eight texts at once allow. It cannot where a logit is not finite.
    """
    context = model.config.context
    length = min(context, max(2, -(-tokens // 8)))
    rows = max(1, -(-tokens // length))
    generator = torch.Generator().manual_seed(seed)
    device = model.token_embedding.device
    ids = torch.full((rows, 1), first, dtype=torch.long)
    cache = model.new_cache()
    for step in range(length - 1):
        logits = model(ids[:, -1:].to(device), cache=cache)[:, -1]
        if not logits.isfinite().all():
            return None
        drawn = torch.multinomial(logits.double().softmax(-1).cpu(), 1, generator=generator)
        ids = torch.cat([ids, drawn], dim=1)
        if progress is not None:
            progress(step + 2, length)
    return ids
