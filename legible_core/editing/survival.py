"""How much of a written direction is still there at the end, and where it went, by depth and by sort of direction.

"Through the Looking Glass" section 4.4: a unit direction w is added to the stream before layer X at a tenth of the
positions, at a tenth of the median residual norm there. With Δ the change of the final residual stream,

    survival = mean over written positions of cos(Δ, w)
    spill = mean |Δ| at the other positions / mean |Δ| at the written ones
    seen = mean over written positions of |PᵀΔ| / |Δ|, P the leading principal directions of the centred unembedding

for four sorts of direction: private (random), native (a row of the layer-native table over the norm's gain), working (a
leading principal direction of the stream at X, with P projected out) and readout (U_B − Ū).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from legible_core.editing.install import Bench
from legible_core.editing.measure import readout
from legible_core.editing.results import Experiment, table
from legible_core.interventions import Edit, Vector
from legible_core.model.transformer import Transformer
from legible_core.units import Residual

SORTS = ("private", "native", "working", "readout")
WRITTEN, STRENGTH = 0.1, 0.1
VISIBLE = 64  # principal directions of the unembedding; a quarter of the width where that is less
LEADING = 8  # a working-state direction is one of so many


@dataclass(frozen=True)
class Write:
    """One written direction; undefined (NaN) where the write changed nothing at all."""

    sort: str
    layer: int
    survival: float
    spill: float
    seen: float


@torch.no_grad()
def survival(
    bench: Bench,
    layers: Sequence[int],
    *,
    draws: int = 4,
    windows: int = 4,
    seed: int = 0,
    between: Callable[[int], None] | None = None,
) -> list[Write]:
    """Write `draws` directions of each sort before each layer (X from 0 to n_layers), over some windows of the text."""
    model = bench.model
    generator = torch.Generator().manual_seed(seed)
    ids = bench.text.ids[:windows].to(model.token_embedding.device)
    visible = readout_directions(model)
    clean = model.residual(ids)
    found: list[Write] = []
    for layer in layers:
        stream = entering_stream(model, ids, layer)
        size = STRENGTH * float(stream.norm(dim=-1).median())
        for sort in SORTS:
            for _ in range(draws):
                w = direction(bench, sort, layer, stream, visible, generator)
                count = max(1, round(WRITTEN * ids.shape[1]))
                places = torch.randperm(ids.shape[1], generator=generator)[:count]
                where = tuple(sorted(places.tolist()))
                edit = Edit(Residual(layer), "add", size, where, vector=Vector.of(w.tolist()))
                found.append(_measured(sort, layer, model.residual(ids, [edit]) - clean, w, where, visible))
                if between is not None:
                    between(len(found))
    return found


def _measured(
    sort: str,
    layer: int,
    change: Float[Tensor, "w t d"],
    w: Float[Tensor, " d"],
    where: tuple[int, ...],
    visible: Float[Tensor, "d k"],
) -> Write:
    mask = torch.zeros(change.shape[1], dtype=torch.bool)
    mask[list(where)] = True
    written, rest = change[:, mask], change[:, ~mask]
    size = written.norm(dim=-1)
    cosine = (written @ w) / size
    seen = (written @ visible).norm(dim=-1) / size
    spill = float(rest.norm(dim=-1).mean() / size.mean()) if rest.numel() else float("nan")
    return Write(sort, layer, float(cosine.mean()), spill, float(seen.mean()))


def direction(
    bench: Bench,
    sort: str,
    layer: int,
    stream: Float[Tensor, "n d"],
    visible: Float[Tensor, "d k"],
    generator: torch.Generator,
) -> Float[Tensor, " d"]:
    """A unit direction of one sort for the stream before `layer`; before the final norm the table has no row."""
    model = bench.model
    if sort == "private":
        found = torch.randn(stream.shape[-1], generator=generator).to(stream.device)
    elif sort == "native":
        # The table's last layer stands for the place above it, which no feed-forward reads.
        at = min(layer, model.config.n_layers - 1)
        place = int(torch.randint(bench.native.table.shape[1], (), generator=generator))
        gain = model.layers[at].feed_forward_norm.gain.float()
        found = torch.from_numpy(bench.native.table[at, place]).to(stream.device) / gain
    elif sort == "working":
        centred = stream - stream.mean(dim=0)
        _, vectors = torch.linalg.eigh(centred.T @ centred)
        leading = vectors[:, -1 - int(torch.randint(LEADING, (), generator=generator))]
        found = leading - visible @ (visible.T @ leading)
    else:
        place = int(torch.randint(len(bench.native.tokens), (), generator=generator))
        found = readout(model, int(bench.native.tokens[place]))
    return found / found.norm()


@torch.no_grad()
def readout_directions(model: Transformer, count: int = VISIBLE) -> Float[Tensor, "d k"]:
    """The leading principal directions of the centred unembedding, orthonormal; at most a quarter of the width."""
    rows = model.unembedding_matrix.float()
    rows = rows - rows.mean(dim=0)
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    return vectors[:, -min(count, max(1, rows.shape[1] // 4)) :]


@torch.no_grad()
def entering_stream(model: Transformer, windows: Int[Tensor, "w t"], layer: int) -> Float[Tensor, "n d"]:
    """The residual stream before a layer at every position; before the final norm for layer n_layers."""
    found = []
    for window in windows:
        trace = model.trace(window)
        found.append(trace.residual if layer == model.config.n_layers else trace.layers[layer].attention_in)
    return torch.cat(found)


def experiment(
    model: Transformer, writes: Sequence[Write], command: str, settings: dict[str, Any], where: str
) -> Experiment:
    """One row a depth, with each sort's survival and spill."""
    layers = sorted({write.layer for write in writes})
    top = model.config.n_layers
    cell: dict[tuple[str, int], list[float]] = {}
    for sort in SORTS:
        for layer in layers:
            mine = [(w.survival, w.spill, w.seen) for w in writes if (w.sort, w.layer) == (sort, layer)]
            cell[sort, layer] = [float(value) for value in np.mean(mine, axis=0)]
    named = [f"L{layer}" if layer < top else "final norm" for layer in layers]
    tables = []
    for place, (id, title) in enumerate(
        (("survival", "Survival: cosine of the change with the write"),
         ("spill", "Spill: change elsewhere over change where written"),
         ("seen", "Share of the change that the readout sees"))
    ):  # fmt: skip
        rows = [
            [name, *[cell[sort, layer][place] for sort in SORTS]] for name, layer in zip(named, layers, strict=True)
        ]
        tables.append(table(id, title, ["written before", *SORTS], rows))
    width = model.config.d_model
    visible = min(VISIBLE, max(1, width // 4))
    first, last = layers[0], layers[-1]
    return Experiment(
        "survival",
        f"A direction added at {100 * WRITTEN:.0f} % of the positions at {100 * STRENGTH:.0f} % of the median residual "
        f"norm, {where}. The readout's {visible} leading directions hold {(visible / width) ** 0.5:.2f} of a random "
        "direction's length.",
        command,
        settings,
        {
            sort: {
                "first": dict(zip(("survival", "spill", "seen"), cell[sort, first], strict=True)),
                "last": dict(zip(("survival", "spill", "seen"), cell[sort, last], strict=True)),
            }
            for sort in SORTS
        },
        tuple(tables),
    )
