"""Carriage: how much of a layer's update is one fixed map of the state that enters it.

"Through the Looking Glass" section 2.6. With x the stream entering layer l at a position, and Δ = x' - x everything
that the layer writes there:

    linear     A = argmin Σ |Δ - x A|² + λ |A|²                      (ridge, over the positions of one half of the text)
    rotation   Q = U Vᵀ,  XᵀX' = U Σ Vᵀ,  Δ̂ = x Q - x               (orthogonal Procrustes, same positions)
    share s    mean |cos(Δ, Δ̂)| over the positions of the other half; shear = s(A) - s(Q)

The share is bounded by one however long the prediction is; R² is beside it. The test is by substitution: the layer's
output is replaced by the map's at the read position only, alone and with the true writes of the layer's one-hop members
added, the rest of the model computes, and the token is the same or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legible_core.accounting.counts import account
from legible_core.accounting.drawing import BEFORE, Drawing, Text
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Carriage, LayerCarriage
from legible_core.interventions import Edit, Vector
from legible_core.model.transformer import Cache, LayerCache, Transformer
from legible_core.naming.observe import Ints, halves
from legible_core.units import Residual

RIDGE = 1e-3
PER_DIMENSION = 24  # positions a dimension of the stream, to fit a d x d map; half as many score it


@dataclass(frozen=True)
class Maps:
    """Per layer the linear map A (d, d) and the rotation Q (d, d), float32: Δ̂ = x A and Δ̂ = x Q - x."""

    linear: list[Tensor]
    rotation: list[Tensor]
    fitted: int


@torch.no_grad()
def fit(
    reader: Reader, ids: Ints, length: int, positions: int, *, ridge: float = RIDGE,
    between: Callable[[int, int], None] | None = None,
) -> Maps:  # fmt: skip
    """Fit both maps of every layer over about so many positions, spread over the text; sums in float64.

    Of the positions that predictions are drawn from: a text's first token, whose state many models make huge, would
    weigh more than all others.
    """
    layers, width = reader.layout.n_layers, reader.model.config.d_model
    squares = [torch.zeros(width, width, dtype=torch.float64) for _ in range(layers)]
    products = [torch.zeros(width, width, dtype=torch.float64) for _ in range(layers)]
    done = 0
    for streams in _read(reader, ids, length, positions):
        for layer in range(layers):
            x = streams[layer].double().cpu()
            squares[layer] += x.T @ x
            products[layer] += x.T @ (streams[layer + 1].double().cpu() - x)
        done += len(streams[0])
        if between is not None:
            between(done, positions)
    linear, rotation = [], []
    for square, product in zip(squares, products, strict=True):
        loading = ridge * square.diagonal().mean()
        linear.append(torch.linalg.solve(square + loading * torch.eye(width, dtype=torch.float64), product).float())
        u, _, v = torch.linalg.svd(square + product)
        rotation.append((u @ v).float())
    return Maps(linear, rotation, done)


@torch.no_grad()
def score(reader: Reader, maps: Maps, ids: Ints, length: int, positions: int) -> tuple[list[dict[str, float]], int]:
    """share, r2 and rotation of every layer on other positions, and how many there were."""
    layers = reader.layout.n_layers
    sums = [dict.fromkeys(("share", "rotation", "error", "square"), 0.0) for _ in range(layers)]
    means = [torch.zeros(reader.model.config.d_model, dtype=torch.float64) for _ in range(layers)]
    done = 0
    for streams in _read(reader, ids, length, positions):
        for layer, found in enumerate(sums):
            x = streams[layer].float()
            update = streams[layer + 1].float() - x
            predicted = x @ maps.linear[layer].to(x.device)
            turned = x @ maps.rotation[layer].to(x.device) - x
            found["share"] += float(_cosines(update, predicted).abs().double().sum())
            found["rotation"] += float(_cosines(update, turned).abs().double().sum())
            found["error"] += float((update - predicted).double().square().sum())
            found["square"] += float(update.double().square().sum())
            means[layer] += update.double().sum(0).cpu()
        done += len(streams[0])
    rows = []
    for found, total in zip(sums, means, strict=True):
        around = found["square"] - float(total.square().sum()) / done
        rows.append({
            "share": found["share"] / done,
            "rotation": found["rotation"] / done,
            "r2": 1.0 - found["error"] / around if around > 0 else 0.0,
        })  # fmt: skip
    return rows, done


@torch.no_grad()
def substitute(reader: Reader, maps: Maps, drawing: Drawing) -> tuple[list[tuple[float, float]], int, int]:
    """Per layer how often the token stays when the map stands in for the layer, alone and with the one-hop writes.

    Also how many predictions were tested, and how many had no positive net.
    """
    layout = reader.layout
    same = np.zeros((layout.n_layers, 2))
    tested = not_positive = 0
    for drawn in drawing:
        passed = drawn.passed
        for place in drawn.places.tolist():
            where = torch.tensor([place], device=passed.residual.device)
            terms = reader.terms(passed, where, drawn.predicted.token[where])[0].double().cpu().numpy()
            members = account(terms).members
            if not members.size:
                not_positive += 1
                continue
            tested += 1
            start = place // drawing.length * drawing.length
            ids = passed.ids[start : place + 1][None]
            edited = _continued(reader.model, ids)
            token = int(drawn.predicted.token[place])
            depth = layout.layer(members)
            for layer in range(layout.n_layers):
                x = passed.streams[layer][place].float()
                update = passed.streams[layer + 1][place].float() - x
                instead = x @ maps.linear[layer].to(x.device)
                inside = members[depth == layer]
                with_set = instead + reader.writes(passed, place, inside).sum(0) if inside.size else instead
                for column, replaced in enumerate((instead, with_set)):
                    vector = Vector.of((replaced - update).cpu().numpy())
                    edit = Edit(Residual(layer + 1), "add", 1.0, positions=(ids.shape[1] - 1,), vector=vector)
                    same[layer, column] += int(edited(edit).argmax()) == token
    rates = same / max(1, tested)
    return [(float(row[0]), float(row[1])) for row in rates], tested, not_positive


def carry(
    reader: Reader,
    text: Text,
    *,
    end_of_document: int | None = None,
    floor: float,
    predictions: int = 100,
    positions: int | None = None,
    seed: int = 0,
    between: Callable[[int, int], None] | None = None,
) -> Carriage:
    """Everything of this module: maps fitted on the first half of the text, scored and tested on the second.

    positions: to fit on; by default PER_DIMENSION for each of the stream's. predictions: for the substitution test.
    Raises `LegibleError` for a text too short to be halved.
    """
    config = reader.model.config
    first, second = halves(text.ids, end_of_document)
    wanted = positions or PER_DIMENSION * config.d_model
    drawing = Drawing(reader, replace(text, ids=second), floor=floor, predictions=predictions, seed=seed)
    maps = fit(reader, first, drawing.length, wanted, between=between)
    rows, scored = score(reader, maps, second, drawing.length, wanted // 2)
    same, tested, not_positive = substitute(reader, maps, drawing)
    return Carriage(
        population=drawing.population(not_positive),
        fitted=maps.fitted,
        scored=scored,
        substituted=tested,
        ridge=RIDGE,
        layers=[
            LayerCarriage(
                layer=layer, share=row["share"], r2=row["r2"], rotation=row["rotation"],
                shear=row["share"] - row["rotation"], same=alone, same_with_set=with_set,
            )
            for layer, (row, (alone, with_set)) in enumerate(zip(rows, same, strict=True))
        ],
    )  # fmt: skip


def _read(reader: Reader, ids: Ints, length: int, positions: int) -> Iterator[list[Tensor]]:
    """The streams (n, d), L + 1 of them, at about so many positions that could be read, spread over a text."""
    before = min(BEFORE, length // 2)
    order = _spread(reader.count(len(ids), length), positions, length - before)
    for piece in reader.windows(ids, length, order=order):
        passed = reader.run(piece.ids)
        yield [x.unflatten(0, piece.ids.shape)[:, before:].flatten(0, 1) for x in passed.streams]


def _spread(count: int, positions: int, length: int) -> Ints:
    """Numbers of about enough windows for so many positions, evenly spread over `count` of them."""
    wanted = max(1, min(count, -(-positions // length)))
    return np.unique(np.linspace(0, max(0, count - 1), wanted).astype(np.int64))


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=1e-30)


def _continued(model: Any, ids: Tensor) -> Callable[[Edit], Tensor]:
    """Logits (v,) of the last of some tokens (1, t) under an edit there.

    A `Transformer` reads what stands before once and goes on from its cache; an ordinary model reads all again.
    """
    if not isinstance(model, Transformer):
        return lambda edit: model.logits(model.residual(ids, [edit])[0, -1])
    cache = model.new_cache()
    if ids.shape[1] > 1:
        model.residual(ids[:, :-1], cache=cache)
    return lambda edit: model(ids[:, -1:], [edit], cache=_copy(cache))[0, -1]


def _copy(cache: Cache) -> Cache:
    """A cache that may be continued without changing the other; keys and values are never written in place."""
    return Cache([LayerCache(replace(layer.attention), layer.quantifiers) for layer in cache.layers], cache.length)
