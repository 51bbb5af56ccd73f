"""Gain edits: a component made louder moves the tokens that its write column names, and no others.

"Through the Looking Glass" section 4.1, table 20: multiply one component's activation at the position that is predicted
by α and run the model again. Three movements are read together: on the tokens that the component's own write column
promotes, on those that the other components edited at the same prediction promote, and on a random draw of as many
tokens. A movement is a change of the mean logit of a set, less the change of the mean over the vocabulary.

A scope is signed: a channel or GELU unit that is negative at the position promotes what its column demotes. Unsigned
scopes are reported beside, to show what the sign is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from legible_core.causal.rerun import Plan, Rerun
from legible_core.editing.measure import HeldOut
from legible_core.editing.results import Experiment, table
from legible_core.errors import LegibleError
from legible_core.model.transformer import Transformer
from legible_core.naming.promote import promotion
from legible_core.trace import Trace
from legible_core.units import Channel, Unit

ALPHAS = (2.0, 4.0, 8.0)
TOP = 20
# A component is drawn among those that write most at the position: this share of its sort in its layer.
LOUDEST = 0.05
OFTEN = 5
FIRST = 8  # positions before this one have seen too little text to be predictions of interest


@dataclass(frozen=True)
class GainEdit:
    """One edit: movements of the centred logit (see above) on each set of tokens; unsigned: on the unsigned scope."""

    component: Unit | Channel
    kind: str
    alpha: float
    activation: float
    own: float
    unsigned: float
    others: float
    random: float


@torch.no_grad()
def gain_edits(
    model: Transformer,
    text: HeldOut,
    *,
    predictions: int = 30,
    alphas: Sequence[float] = ALPHAS,
    top: int = TOP,
    seed: int = 0,
    between: Callable[[int], None] | None = None,
) -> list[GainEdit]:
    """Edit one unit and one channel of every layer at each of some predictions of a text, with each α.

    Raises `LegibleError` for an α that is no finite number, a text in which fewer than 2·top tokens are frequent, and
    an edit whose logits are not finite.
    """
    if not alphas or not all(math.isfinite(alpha) for alpha in alphas):
        raise LegibleError("Every gain must be a finite number, such as 2, 4 or 8.", code="bad_options")
    generator = torch.Generator().manual_seed(seed)
    often = (torch.bincount(text.ids.reshape(-1), minlength=model.config.vocab_size) >= OFTEN).nonzero()[:, 0]
    if len(often) < 2 * top:
        raise LegibleError(
            f"Only {len(often)} tokens occur {OFTEN} times or more in the text, too few for sets of {top}; give more "
            "text, or smaller sets.",
            code="corpus_too_short",
        )
    windows, length = text.ids.shape
    found: list[GainEdit] = []
    for number in range(predictions):
        window = int(torch.randint(windows, (), generator=generator))
        position = int(torch.randint(min(FIRST, length - 1), length, (), generator=generator))
        trace = model.trace(text.ids[window, : position + 1].to(model.token_embedding.device))
        chosen = drawn(model, trace, position, generator)
        found += _edits(model, trace, position, chosen, alphas, often, top, generator)
        if between is not None:
            between(number + 1)
    return found


def drawn(
    model: Transformer, trace: Trace, position: int, generator: torch.Generator
) -> list[tuple[Unit | Channel, float]]:
    """A unit and a channel of every layer, each at random among those that write most there, with their activations."""
    chosen: list[tuple[Unit | Channel, float]] = []
    for layer, part in enumerate(model.layers):
        recorded = trace.layers[layer]
        hidden, z = recorded.hidden[position].float(), recorded.z[position].float()
        unit = _draw(hidden.abs() * part.feed_forward.down.float().norm(dim=0), generator)
        channel = _draw(z.flatten().abs() * part.attention.output.float().norm(dim=0), generator)
        width = model.config.d_head
        chosen.append((Unit(layer, unit), float(hidden[unit])))
        chosen.append((Channel(layer, channel // width, channel % width), float(z.flatten()[channel])))
    return chosen


def _draw(weight: Float[Tensor, " n"], generator: torch.Generator) -> int:
    loudest = weight.topk(max(1, round(LOUDEST * len(weight)))).indices
    return int(loudest[torch.randint(len(loudest), (), generator=generator)])


def _edits(
    model: Transformer,
    trace: Trace,
    position: int,
    chosen: Sequence[tuple[Unit | Channel, float]],
    alphas: Sequence[float],
    often: Int[Tensor, " o"],
    top: int,
    generator: torch.Generator,
) -> list[GainEdit]:
    columns = torch.stack([write_column(model, component) for component, _ in chosen], dim=1)
    weights = promotion(model, columns)[:, often]
    signs = torch.tensor([math.copysign(1.0, value) for _, value in chosen], device=weights.device)
    scopes = often[(weights * signs[:, None]).topk(top, dim=1).indices]
    unsigned = often[weights.topk(top, dim=1).indices]
    plan = Plan(len(chosen) * len(alphas))
    for row, (component, _) in enumerate(chosen):
        for place, alpha in enumerate(alphas):
            at = row * len(alphas) + place
            if isinstance(component, Unit):
                plan.unit(at, component.layer, component.unit, alpha)
            else:
                plan.channel(at, component.layer, component.head, component.channel, alpha)
    edited = model.logits(Rerun(model, trace, position).run(plan).residual)
    if not torch.isfinite(edited).all():
        worst = chosen[int((~torch.isfinite(edited)).any(dim=1).nonzero()[0, 0]) // len(alphas)][0]
        raise LegibleError(
            f"With a gain of {max(alphas, key=abs):g} on {worst} the logits are not finite; use smaller gains.",
            code="not_finite",
        )
    moved = edited - model.logits(trace.residual[position])
    moved -= moved.mean(dim=1, keepdim=True)
    found = []
    for row, (component, activation) in enumerate(chosen):
        mine = _among(scopes[row], model.config.vocab_size)
        theirs = torch.zeros_like(mine)
        theirs[torch.cat([scopes[:row].flatten(), scopes[row + 1 :].flatten()])] = True
        theirs &= ~mine
        rest = often[~mine[often]]
        random = rest[torch.randperm(len(rest), generator=generator)[:top].to(rest.device)]
        for place, alpha in enumerate(alphas):
            change = moved[row * len(alphas) + place]
            found.append(
                GainEdit(
                    component,
                    "channel" if isinstance(component, Channel) else model.config.feed_forward.kind(component.unit),
                    alpha,
                    activation,
                    float(change[mine].mean()),
                    float(change[unsigned[row]].mean()),
                    float(change[theirs].mean()) if bool(theirs.any()) else 0.0,
                    float(change[random].mean()),
                )
            )
    return found


def write_column(model: Transformer, component: Unit | Channel) -> Float[Tensor, " d"]:
    """What one unit of a component's activation adds to the residual stream."""
    layer = model.layers[component.layer]
    if isinstance(component, Unit):
        return layer.feed_forward.down[:, component.unit].float()
    return layer.attention.output[:, component.head * model.config.d_head + component.channel].float()


def _among(tokens: Int[Tensor, " n"], size: int) -> Bool[Tensor, " v"]:
    mask = torch.zeros(size, dtype=torch.bool, device=tokens.device)
    mask[tokens] = True
    return mask


# ---- what is told ----------------------------------------------------------------------------------------------------

COLUMNS = ["edited", "α", "edits", "own tokens", "± se", "own up", "others' tokens", "own > |others|", "random draw"]
SHARES = ("own up", "own > |others|")


def experiment(edits: Sequence[GainEdit], command: str, settings: dict[str, Any], where: str) -> Experiment:
    """Table 20 of these edits: units and channels by α, then kinds of unit and layers at the largest α."""
    alphas = sorted({edit.alpha for edit in edits})
    units = [edit for edit in edits if isinstance(edit.component, Unit)]
    channels = [edit for edit in edits if isinstance(edit.component, Channel)]
    rows = [
        _row(name, alpha, [edit for edit in group if edit.alpha == alpha], unsigned)
        for name, group, unsigned in (
            ("units", units, False),
            ("channels, signed", channels, False),
            ("channels, unsigned", channels, True),
        )
        for alpha in alphas
    ]
    loudest = [edit for edit in edits if edit.alpha == alphas[-1]]
    sorts = sorted({e.kind for e in loudest}, key=lambda kind: (kind == "channel", kind))
    kinds = [_row(kind, alphas[-1], [e for e in loudest if e.kind == kind]) for kind in sorts]
    layers = [
        _row(f"L{layer}", alphas[-1], [e for e in loudest if e.component.layer == layer])
        for layer in sorted({e.component.layer for e in loudest})
    ]
    negative = sum(edit.activation < 0 for edit in channels) / max(1, len(channels))
    summary = {row[0]: dict(zip(COLUMNS[1:], row[1:], strict=True)) for row in rows if row[1] == alphas[-1]}
    return Experiment(
        "gains",
        f"One component's activation multiplied by α at the predicted position, {len(edits) // len(alphas)} components "
        f"at {where}. Movements are of the mean logit of a set of tokens, less the vocabulary's.",
        command,
        settings,
        {"largest": summary, "negative_channels": negative},
        (
            table(
                "gains",
                "Movement by gain",
                COLUMNS,
                rows,
                "Own tokens: what the write column promotes there, by the sign of the activation. Others' tokens: what "
                "the other components edited at the same prediction promote. Unsigned: the column's promotions "
                f"whatever the sign; {100 * negative:.0f} % of the channels were negative.",
                SHARES,
            ),
            table("gains-kinds", f"By kind, α = {alphas[-1]:g}", COLUMNS, kinds, "", SHARES),
            table("gains-layers", f"By layer, α = {alphas[-1]:g}", COLUMNS, layers, "", SHARES),
        ),
    )


def _row(name: str, alpha: float, edits: Sequence[GainEdit], unsigned: bool = False) -> list[Any]:
    own = np.array([edit.unsigned if unsigned else edit.own for edit in edits])
    others, random = (np.array([getattr(edit, key) for edit in edits]) for key in ("others", "random"))
    if not len(own):
        return [name, alpha, 0, *[None] * 6]
    error = own.std(ddof=1) / math.sqrt(len(own)) if len(own) > 1 else None
    specific = (own > np.abs(others)).mean()
    return [name, alpha, len(own), own.mean(), error, (own > 0).mean(), others.mean(), specific, random.mean()]
