"""Which units are like a unit: on the side that writes, and on the side that detects.

    similar_units(model, names, Unit(5, 263))     # {"writes": [...], "detects": [...]}, best first

Two units write alike when their write columns, each less its mean (which the next norm takes away), point the same way:
the cosine. They detect alike when their operands' detect lists hold the same tokens: the Jaccard index, averaged over
the operands in order, A with A and B with B; A∩B is symmetric, so for two intersections the better pairing counts. Only
units with equally many operands are compared there. One unit costs one matrix-vector product a layer and one pass over
the detect lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.config import ModelConfig
from legible_core.naming.places import operand_within, starts
from legible_core.readable import Readable
from legible_core.reads import opens
from legible_core.units import Unit

if TYPE_CHECKING:
    from legible_core.naming.names import Names

SHOWN = 8


def similar_units(model: Readable, names: Names | None, unit: Unit, shown: int = SHOWN) -> dict[str, Any]:
    """The `shown` units nearest on each side, every one with both measures; `overlap` is None where it is undefined.

    Overlap is undefined without names, for units without operands, and between one operand and two.
    """
    cosines = write_cosines(model, unit).numpy()
    overlaps = detect_overlaps(model.config, names, unit)
    own = (unit.layer, unit.unit)
    cosines[own] = -np.inf
    writes = _best(cosines, shown)
    detects: list[tuple[int, int]] = []
    if overlaps is not None:
        others = overlaps.copy()
        others[own] = np.nan
        detects = [place for place in _best(np.nan_to_num(others, nan=-1.0), shown) if others[place] > 0]

    def row(place: tuple[int, int]) -> dict[str, Any]:
        overlap = None if overlaps is None or np.isnan(overlaps[place]) else float(overlaps[place])
        return {"id": str(Unit(*place)), "cosine": float(cosines[place]), "overlap": overlap}

    return {"id": str(unit), "writes": [row(place) for place in writes], "detects": [row(place) for place in detects]}


@torch.no_grad()
def write_cosines(model: Readable, unit: Unit) -> Float[Tensor, "l f"]:
    """The cosine of a unit's centred write column with every unit's; 0 where either is all zeros."""
    own = model.layers[unit.layer].feed_forward.down[:, unit.unit].float()
    own = own - own.mean()
    own = own / own.norm().clamp_min(1e-30)
    rows = []
    for layer in model.layers:
        columns = layer.feed_forward.down.float()
        length = (columns - columns.mean(0)).norm(dim=0).clamp_min(1e-30)
        # `own` sums to nothing, so the columns' means drop out of the product.
        rows.append((own @ columns / length).cpu())
    return torch.stack(rows)


def detect_overlaps(config: ModelConfig, names: Names | None, unit: Unit) -> NDArray[np.float64] | None:
    """(L, f) mean Jaccard index of the operands' detect lists with those of `unit`; NaN where it is undefined."""
    operands = opens(config, unit)
    if names is not None and names.plain is not None:  # an ordinary unit has a list of its own
        shape = (config.n_layers, config.feed_forward.d_ff)
        return _jaccard(*names.plain.lists, config.vocab_size, unit.layer * shape[1] + unit.unit).reshape(shape)
    if names is None or not operands:
        return None
    offsets, tokens = names.detect_lists
    start = starts(config)[0]
    layout = config.feed_forward
    found = np.full((config.n_layers, layout.d_ff), np.nan)
    rows = [int(start[unit.layer]) + (operand_within(config, operand) or 0) for operand in operands]
    with_each = [_jaccard(offsets, tokens, config.vocab_size, row) for row in rows]
    pairs = layout.n_pairs
    for layer in range(config.n_layers):
        first = int(start[layer]) + config.attention.n_special[layer] * config.d_head
        a, b = slice(first, first + pairs), slice(first + pairs, first + 2 * pairs)
        if len(rows) == 1:
            found[layer, layout.quantifiers] = with_each[0][first + 2 * pairs :][: layout.n_quantifiers]
            continue
        straight = (with_each[0][a] + with_each[1][b]) / 2
        crossed = (with_each[0][b] + with_each[1][a]) / 2
        both = layout.kind(unit.unit) == "intersection"
        found[layer, layout.intersections] = np.maximum(straight, crossed) if both else straight
        found[layer, layout.differences] = straight
    return found


def _jaccard(offsets: NDArray[np.int64], tokens: NDArray[np.int64], vocabulary: int, row: int) -> NDArray[np.float64]:
    """The Jaccard index of one list with every list; 0 with an empty one."""
    mine = np.zeros(vocabulary, bool)
    mine[tokens[offsets[row] : offsets[row + 1]]] = True
    counted = np.concatenate([[0], np.cumsum(mine[tokens])])
    shared = counted[offsets[1:]] - counted[offsets[:-1]]
    union = mine.sum() + np.diff(offsets) - shared
    return np.divide(shared, union, out=np.zeros(len(shared)), where=union > 0)


def _best(values: NDArray[Any], count: int) -> list[tuple[int, int]]:
    """The places of the largest values, best first; equal ones in order of layer and unit."""
    order = np.argsort(-values, axis=None, kind="stable")[:count]
    return [(int(i) // values.shape[1], int(i) % values.shape[1]) for i in order]
