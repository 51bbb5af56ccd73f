"""A condition that is carried: a head looks for A earlier in the text, a unit two layers up answers B from then on.

"Through the Looking Glass" sections 4.3 and 4.5. The circuit of `circuit` fires where A is the current token; here it
is to fire at later positions, which do not hold A, so attention has to bring it there. Three things are installed in
one head of layer h, and the reader in layer h + 2 as there:

    value    a row that fires on A, in the head's quietest channel (of a Boolean head: pair)
    score    κ s (w·x) is added to the head's score of every earlier token x: w·x is 1 at a mean A and 0 or less on 99 %
             of the others, s the standard deviation of the head's own scores, for a κ has no meaning of its own
    write    a private random direction, of the channel's column

The score is one query coordinate held at κ s √d_h and one key coordinate that reads w; the pair of coordinates that the
head uses least makes room, so the model keeps its shape. No edit of the vocabulary names queries or keys, so a copy of
the model has them in its weights. With κ = 0 the attention is as trained, and the head is the one that carries A best.

Positions are sorted by what came before: *after* A (A stands earlier in the window and not here) and *before* it (not
yet, and not here). Where A is current is neither. Only these two are compared, on text that nothing was measured on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from legible_core.editing.channels import LEAST_GATHERED, Heads
from legible_core.editing.circuit import conditional, median_stream, writer_of
from legible_core.editing.install import Bench, Pair
from legible_core.editing.measure import Mask, Outcome, outcome, readout, reads
from legible_core.editing.site import QUANTILE, ReadRow, SiteKind, activity, quietest, read_row
from legible_core.errors import LegibleError
from legible_core.interventions import Edit, Vector
from legible_core.model.activations import FUNCTIONS
from legible_core.model.attention import Attention
from legible_core.model.linear import linears
from legible_core.model.transformer import Transformer

ABOVE = 2
KAPPAS, STRENGTHS, BETAS = (0.0, 2.0, 8.0), (1.0,), (4.0, 16.0)
# Distances to the last A: from each to below the next.
DISTANCES = (1, 2, 5, 17, 65)
SCORED = 8  # windows on which a head's own scores are measured


@dataclass(frozen=True)
class Carried:
    """One setting; ranks of B are medians after A and before it, on held-out text.

    kappa: 0 where the attention is as trained. gathered: what the head gathers after A less before it; apart: the same
    in pooled standard deviations; both on the text that keys are measured on. fires, rests: the reader's mean
    activation after A and before it. distances: by distance to the last A, B's median rank without the edit and with
    it, and the reader's mean activation (NaN where no position is so far). The halves alone are judged at the largest
    strength and β of each κ.
    """

    pair: Pair
    writer: int
    head: int
    kappa: float
    strength: float
    beta: float
    gathered: float
    apart: float
    fires: float
    rests: float
    before: float
    rank: float
    elsewhere_before: float
    elsewhere: float
    loss_before: float
    loss: float
    write_alone: float | None
    reader_alone: float | None
    distances: tuple[tuple[float, float, float], ...]

    @property
    def cost(self) -> float:
        return self.loss - self.loss_before

    @property
    def separation(self) -> float:
        """How many times better B ranks after A than before it."""
        return self.elsewhere / self.rank


def seen(ids: Int[Tensor, "w t"], token: int) -> tuple[Bool[Tensor, "w t"], Bool[Tensor, "w t"], Int[Tensor, "w t"]]:
    """Which positions stand after a token, which before its first occurrence, and how far back the last one is.

    A position that holds the token itself is neither; the distance is 0 there, and −1 before the first.
    """
    here = ids == token
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    last = torch.where(here, place, torch.full_like(place, -1)).cummax(dim=1).values
    distance = torch.where(last >= 0, place - last, torch.full_like(place, -1))
    return distance > 0, distance < 0, distance


# ---- the head --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def own_scores(heads: Heads, windows: int = SCORED) -> tuple[Float[Tensor, " h"], Int[Tensor, " h"]]:
    """Per head the deviation of its scores, over what each token may look at, and its least used coordinate."""
    part = heads.model.layers[heads.layer].attention
    x = heads.entering[: windows * heads.length].unflatten(0, (-1, heads.length)).to(part.output.dtype)
    q, k = (
        some.float().unflatten(-1, (part.n_heads, -1)).transpose(1, 2) for some in linears(part, ["query", "key"], x)
    )
    allowed = torch.ones(heads.length, heads.length, dtype=torch.bool, device=x.device).tril()
    spread = (q @ k.transpose(-1, -2) / math.sqrt(part.d_head))[:, :, allowed].transpose(0, 1).flatten(1).std(dim=1)
    used = q.square().mean(dim=(0, 2)) * k.square().mean(dim=(0, 2))
    return spread, used.argmin(dim=-1)


@torch.no_grad()
def looking(
    attention: Attention,
    mean: Float[Tensor, " d"],
    row: ReadRow,
    score: Float[Tensor, " h"],
    place: Int[Tensor, " h"],
    only: int | None = None,
) -> Attention:
    """A copy of a layer's attention whose heads (or one) score every token by score·(row·x) besides.

    mean: x̄ of what enters; x̄/(x̄·x̄) is near 1 on every state and holds the query coordinate up where there is no bias.
    """
    made = copy.deepcopy(attention)
    for head in range(made.n_heads) if only is None else [only]:
        at = head * made.d_head + int(place[head])
        height = float(score[head]) * math.sqrt(made.d_head)
        made.key[at] = row.row.to(made.key)
        if row.bias is None:
            made.query[at] = (height * mean / (mean @ mean)).to(made.query)
        else:
            made.query[at] = 0.0
            made.query_bias[at], made.key_bias[at] = height, row.bias  # type: ignore[operator]
    return made


def with_attention(model: Transformer, layer: int, attention: Attention) -> Transformer:
    """The model with another attention in one layer; everything else is shared with it, nothing copied."""

    def shallow(module: nn.Module) -> Any:
        made = copy.copy(module)
        made._modules = dict(module._modules)
        return made

    made, part = shallow(model), shallow(model.layers[layer])
    part.attention = attention
    made.layers = nn.ModuleList([part if place == layer else other for place, other in enumerate(model.layers)])
    return cast(Transformer, made)


@dataclass(frozen=True, eq=False)
class Wired:
    """A model whose head carries A, the edits of its value and write, and how well it carries."""

    model: Transformer
    edits: tuple[Edit, ...]
    head: int
    gathered: float
    apart: float


def wire(
    bench: Bench,
    heads: Heads,
    token: int,
    kappa: float,
    scores: tuple[Float[Tensor, " h"], Int[Tensor, " h"]],
    private: Float[Tensor, " d"],
) -> Wired:
    """The head that tells best, in standard deviations, whether A came before; its write arrives with length 1.

    Raises `LegibleError` when the text does not hold A both before and behind other tokens.
    """
    ids = bench.calibration.ids.to(heads.entering.device)
    here, (after, before) = (ids == token).flatten(), (mask.flatten() for mask in seen(ids, token)[:2])
    if not bool(after.any()) or not bool(before.any()):
        raise LegibleError(
            "The condition cannot be calibrated: the text needs positions after A and others before it.",
            code="corpus_too_short",
        )
    key = conditional(heads.entering, here)
    values = heads.read_rows(key, here)
    own = heads.model.layers[heads.layer].attention
    biased, mean = heads.model.config.linear_bias, heads.entering.mean(dim=0)
    row = read_row("relu", key, heads.entering, here, biased=biased, height=1.0)
    everywhere = looking(own, mean, row, kappa * scores[0], scores[1]) if kappa else own
    gathers = heads.gather(values, everywhere)
    rise = gathers[after].mean(dim=0) - gathers[before].mean(dim=0)
    pooled = ((gathers[after].var(dim=0) + gathers[before].var(dim=0)) / 2).sqrt().clamp(min=1e-12)
    head = int((rise / pooled).argmax())
    chosen = looking(own, mean, row, kappa * scores[0], scores[1], head) if kappa else own
    site = heads.sites[head]
    arrives = max(float(gathers[after, head].mean()), LEAST_GATHERED)
    edits = (*site.read(values[head]), *site.write(private / arrives))
    model = with_attention(heads.model, heads.layer, chosen) if kappa else heads.model
    return Wired(model, edits, head, float(rise[head]), float((rise / pooled)[head]))


# ---- both halves -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def carried(
    bench: Bench,
    pairs: Sequence[Pair],
    writer: int,
    *,
    kind: SiteKind,
    kappas: Sequence[float] = KAPPAS,
    strengths: Sequence[float] = STRENGTHS,
    betas: Sequence[float] = BETAS,
    quantile: float = QUANTILE,
    seed: int = 0,
    between: Callable[[int], None] | None = None,
) -> list[Carried]:
    """Build each circuit with its head in layer `writer`, over every κ, strength and β.

    Raises `LegibleError` when the reader's layer would not exist, or a κ is negative or no finite number.
    """
    model, text = bench.model, bench.text
    reader = writer_of(model.config, writer) + ABOVE
    for kappa in kappas:
        if not (math.isfinite(kappa) and kappa >= 0):
            raise LegibleError(f"κ is {kappa}; give a number that is 0 or more.", code="bad_options")
    ids = bench.calibration.ids
    site = quietest(model.config, reader, activity(model, ids, [reader])[reader], kind)
    clean = reads(model, bench.calibration, reader)
    heads = Heads.of(model, ids, writer)
    scores, size = own_scores(heads), median_stream(model, ids, writer)
    found: list[Carried] = []
    for token, target in pairs:
        private = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(seed + token))
        private = (private / private.norm()).to(clean.device)
        after, before = (mask.flatten().to(clean.device) for mask in seen(ids, token)[:2])
        told = after | before
        base = outcome(model, text, target)
        for kappa in kappas:
            wired = wire(bench, heads, token, kappa, scores, private)
            for strength in strengths:
                wiring = [_longer(edit, strength * size) for edit in wired.edits]
                written = reads(wired.model, bench.calibration, reader, wiring)
                key = conditional((written - clean)[told], after[told])
                biased = model.config.linear_bias
                row = read_row(site.activation, key, written[told], after[told], biased=biased, quantile=quantile)
                arriving = reads(wired.model, text, reader, wiring)
                fires = FUNCTIONS[site.activation](arriving @ row.row + (row.bias or 0.0)).cpu().numpy()
                for beta in betas:
                    answer = [*site.read(row), *site.write(beta / row.on * readout(model, target))]
                    both = outcome(wired.model, text, target, [*wiring, *answer])
                    alone: list[Outcome] = []
                    if (strength, beta) == (max(strengths), max(betas)):
                        alone = [outcome(wired.model, text, target, wiring), outcome(model, text, target, answer)]
                    facts = {
                        "pair": (token, target), "writer": writer, "head": wired.head, "kappa": kappa,
                        "strength": strength, "beta": beta, "gathered": wired.gathered, "apart": wired.apart,
                    }  # fmt: skip
                    found.append(_judged(bench, facts, base, both, alone, fires.reshape(tuple(text.ids.shape))))
                    if between is not None:
                        between(len(found))
    return found


def _longer(edit: Edit, length: float) -> Edit:
    """The write column made longer; the row stays."""
    if edit.operation != "column" or edit.vector is None:
        return edit
    return Edit(edit.component, "column", vector=Vector.of((edit.vector.array * np.float32(length)).tolist()))


def _judged(
    bench: Bench, facts: dict[str, Any], base: Outcome, both: Outcome, alone: Sequence[Outcome], fires: Any
) -> Carried:
    after, before, distance = (mask.numpy() for mask in seen(bench.text.ids, facts["pair"][0]))
    write, reader = [one.rank(after) for one in alone] if alone else (None, None)
    far = []
    for low, high in zip(DISTANCES, (*DISTANCES[1:], np.inf), strict=True):
        where: Mask = (distance >= low) & (distance < high)
        far.append((base.rank(where), both.rank(where), _mean(fires, where)))
    return Carried(
        **facts, fires=_mean(fires, after), rests=_mean(fires, before), before=base.rank(after), rank=both.rank(after),
        elsewhere_before=base.rank(before), elsewhere=both.rank(before), loss_before=base.loss, loss=both.loss,
        write_alone=write, reader_alone=reader, distances=tuple(far),
    )  # fmt: skip


def _mean(values: Any, where: Mask) -> float:
    return float(values[where].mean()) if where.any() else float("nan")
