"""From an ordinary model's finished scan to its names: statistics, detect lists, promoted and suppressed tokens.

    write_ordinary_names(folder, scan, tokenizer)     # names.json, names.safetensors, as those of a legible checkpoint

A unit's strongest positions stand where an operand's ON positions stand in a legible checkpoint's names: the same
lists, tests, labels and agreement are made of them, and docs/ordinary.md says what that can and cannot mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legible_core import __version__
from legible_core.adapters.model import OrdinaryModel
from legible_core.attribution import optional
from legible_core.errors import LegibleError
from legible_core.legibility import HISTOGRAM_BINS, Surface
from legible_core.naming import names as store
from legible_core.naming import promote as promoting
from legible_core.naming.assemble import MIN_SEEN, store_names, thresholds
from legible_core.naming.bins import HIGH, LOW
from legible_core.naming.detect import MIN_COUNT, MIN_HELD_OUT, one_list
from legible_core.naming.label import ClassLabel, Population, as_columns, label_lists
from legible_core.naming.lexicon import BEGINNING, CLASSES, beginnings, membership
from legible_core.naming.observe import Ints
from legible_core.ordinary.scan import MOST, RARITY, OrdinaryScan, UnitState
from legible_core.tokens import Tokenizer

Floats = NDArray[np.float64]
Pause = Callable[[], None]
GOOD = 0.8  # an agreement that is counted as good in the summary


@dataclass(frozen=True)
class Active:
    """One unit's detect list, best first: tokens, how many of its strongest positions are on each, its mean there."""

    tokens: Ints
    count: Ints
    mean: Floats
    agreement: float
    strongest: int


def write_ordinary_names(
    folder: Path | str, scan: OrdinaryScan, tokenizer: Tokenizer, *, between: Pause | None = None
) -> store.Names:
    """Make the names of a finished scan and put them into the folder, whole or not at all; see `write_names`."""
    return store_names(folder, *assemble(scan, tokenizer, between=between))


def assemble(
    scan: OrdinaryScan, tokenizer: Tokenizer, *, between: Pause | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The two files of an ordinary model's names, as JSON object and arrays; see docs/ordinary.md."""
    if not scan.complete:
        raise LegibleError("The scan is not finished, so there is nothing to name yet.", code="unfinished")
    pause = between or (lambda: None)
    lists: list[Active] = []
    held_out = np.bincount(scan.parts[1], minlength=len(scan.seen))
    for layer in scan.layers:
        lists += _lists(scan, layer, held_out)
        pause()
    total_seen = scan.seen + held_out
    often = total_seen >= MIN_SEEN
    promoted = [_promote(scan.model, part, often, pause) for part in scan.model.layers]

    texts = ["" if tokenizer.is_special(token) else tokenizer.text(token) for token in range(len(scan.seen))]
    table = membership(texts)
    table[:, CLASSES.index(BEGINNING)] |= beginnings(scan.parts[0], texts)
    listable, ranked = np.flatnonzero(scan.seen >= MIN_COUNT), np.flatnonzero(often)
    detect_labels, promote_labels = label_lists(
        [
            (
                [(part.tokens, part.count) for part in lists],
                Population(listable, scan.seen[listable], table[listable]),
            ),
            (
                [pair for part in promoted for pair in zip(part.tokens, part.weights, strict=True)],
                Population(ranked, total_seen[ranked], table[ranked]),
            ),
        ],
        between=pause,
    )
    arrays = _arrays(scan, lists, promoted, detect_labels, promote_labels, often)
    used = [arrays[f"{side}.tokens"].ravel() for side in ("active", "promote", "rare", "suppress")]
    meta: dict[str, Any] = {
        "schema": store.SCHEMA,
        "made_by": f"legible {__version__}",
        "checkpoint": scan.checkpoint_hash,
        "corpus": asdict(scan.corpus),
        "quality": scan.quality,
        "thresholds": thresholds()
        | {"strongest_rarity": RARITY, "strongest_most": MOST, "strongest_least": MIN_HELD_OUT}
        | {"bins_per_octave": 2, "bins_from_octave": LOW, "bins_to_octave": HIGH},
        "legibility": _undefined(scan),
        "values": _summary(scan, lists, detect_labels),
        "config": scan.model.config.to_json(),
        "classes": list(CLASSES),
        "tokens": {str(int(token)): tokenizer.display(int(token)) for token in np.unique(np.concatenate(used))},
    }
    return meta, arrays


def _lists(scan: OrdinaryScan, layer: UnitState, held_out: Ints) -> list[Active]:
    """The detect list of each unit of a layer, from the naming half, and its agreement on the held-out half."""
    ids = np.concatenate(scan.parts)
    naming, unseen = ((found.positions, found.values) for found in layer.strongest)
    totals = [len(part) for part in scan.parts]
    made = []
    for positions, values, later in zip(*naming, unseen[0], strict=True):
        there = positions >= 0
        tokens, which = np.unique(ids[positions[there]], return_inverse=True)
        count = np.bincount(which, minlength=len(tokens))
        mean = np.bincount(which, weights=values[there], minlength=len(tokens)) / np.maximum(count, 1)
        known = scan.seen[tokens] >= MIN_COUNT
        tokens, count, mean = tokens[known], count[known], mean[known]
        hits = int(there.sum())
        chosen = one_list(scan.seen[tokens].astype(np.float64), count.astype(np.float64), hits, totals[0])[0]
        agreed = _agreement(tokens[chosen], ids[later[later >= 0]], held_out, totals[1])
        made.append(Active(tokens[chosen], count[chosen], mean[chosen], agreed, hits))
    return made


def _agreement(listed: Ints, strongest: Ints, held_out: Ints, total: int) -> float:
    """Balanced accuracy of "the token is in the list" for "it is a strongest position", on text that made no list.

    strongest: the tokens at the unit's strongest positions there. NaN with fewer than MIN_HELD_OUT of them, or of the
    others; 0.5 for an empty list.
    """
    hits = len(strongest)
    if hits < MIN_HELD_OUT or total - hits < MIN_HELD_OUT:
        return float("nan")
    caught = int(np.isin(strongest, listed).sum())
    return 0.5 + 0.5 * (caught / hits - (int(held_out[listed].sum()) - caught) / (total - hits))


def _promote(model: OrdinaryModel, part: Any, often: NDArray[np.bool_], pause: Pause) -> promoting.Promoted:
    """What the write columns of one layer's units promote and suppress, behind a norm's gain where one follows."""
    columns, gain = part.feed_forward.down, optional(part.feed_forward, "post_gain")
    step = max(1, promoting.CHUNK_NUMBERS // len(often))
    found = []
    for start in range(0, columns.shape[1], step):
        chunk = columns[:, start : start + step].float()
        chunk = chunk if gain is None else chunk * gain.float()[:, None]
        found.append(promoting.promote(model, chunk, often, suppressed=True))
        pause()
    names = ("tokens", "weights", "rare", "rare_weights", "suppressed", "suppressed_weights")
    return promoting.Promoted(*(np.concatenate([getattr(one, name) for one in found]) for name in names))


def _arrays(
    scan: OrdinaryScan,
    lists: list[Active],
    promoted: list[promoting.Promoted],
    detect_labels: list[ClassLabel | None],
    promote_labels: list[ClassLabel | None],
    often: NDArray[np.bool_],
) -> dict[str, NDArray[Any]]:
    config, rows = scan.model.config, len(lists)
    ids: type[np.unsignedinteger[Any]] = np.uint16 if config.vocab_size <= 1 << 16 else np.uint32
    moments = [layer.values.moments for layer in scan.layers]
    none = np.zeros(0, np.float32)
    arrays: dict[str, NDArray[Any]] = {
        "seen": scan.seen.astype(np.uint32),
        "often": often.astype(np.uint8),
        "decay": none,
        "detect.offsets": np.zeros(1, np.uint32),
        "detect.tokens": np.zeros(0, ids),
        "detect.on": np.zeros(0, np.uint32),
        "operand.histogram": np.zeros((0, HISTOGRAM_BINS), np.float16),
        "unit.mean": np.concatenate([part.mean for part in moments]),
        "unit.variance": np.concatenate([part.variance for part in moments]),
        "unit.above": np.concatenate([part.on_share for part in moments]),
        "unit.least": np.concatenate([layer.values.least for layer in scan.layers]),
        "unit.most": np.concatenate([layer.values.most for layer in scan.layers]),
        "unit.histogram": np.concatenate([layer.values.bins for layer in scan.layers]).astype(np.uint32),
        "unit.agreement": np.array([part.agreement for part in lists]),
        "unit.strongest": np.array([part.strongest for part in lists], np.uint16),
        "active.offsets": np.cumsum([0, *(len(part.tokens) for part in lists)]).astype(np.uint32),
        "active.tokens": np.concatenate([part.tokens for part in lists]).astype(ids),
        "active.count": np.concatenate([part.count for part in lists]).astype(np.uint16),
        "active.mean": np.concatenate([part.mean for part in lists]),
    }
    for side, tokens, weights in (
        ("promote", "tokens", "weights"),
        ("rare", "rare", "rare_weights"),
        ("suppress", "suppressed", "suppressed_weights"),
    ):
        arrays[f"{side}.tokens"] = np.concatenate([getattr(part, tokens) for part in promoted]).astype(ids)
        arrays[f"{side}.weights"] = np.concatenate([getattr(part, weights) for part in promoted])
    for side, labels in (("operand", []), ("unit", detect_labels), ("component", promote_labels)):
        arrays |= {f"{side}.label.{name}": column for name, column in as_columns(labels).items()}
    arrays |= {f"operand.{name}": none for name in ("mean", "variance", "crisp", "on", "base", "agreement")}
    arrays |= {f"component.{name}": np.full(rows, np.nan) for name in ("mean", "variance", "crisp", "on")}
    return {
        key: np.ascontiguousarray(value.astype(np.float32) if value.dtype == np.float64 else value)
        for key, value in arrays.items()
    }


def _undefined(scan: OrdinaryScan) -> dict[str, Any]:
    """The rows of the papers' tables, all of them undefined: nothing of an ordinary model has rails."""
    config = scan.model.config
    layer = {**Surface(None, None, None, (None,) * config.n_heads).to_json(), "names": None}
    return {"layers": [layer] * config.n_layers, "all": {**Surface(None, None, None).to_json(), "names": None}}


def _summary(scan: OrdinaryScan, lists: list[Active], labels: list[ClassLabel | None]) -> dict[str, Any]:
    """Per layer and over all units: never above 0, median share above 0, labelled, and agreement of GOOD or more."""
    above = np.concatenate([layer.values.moments.on_share for layer in scan.layers])
    agreed = np.array([part.agreement for part in lists])
    labelled = np.array([label is not None for label in labels])

    def row(where: slice) -> dict[str, float]:
        return {
            "units": len(above[where]),
            "never": float((above[where] == 0).mean()),
            "above": float(np.median(above[where])),
            "labelled": float(labelled[where].mean()),
            "agreement": float((np.nan_to_num(agreed[where]) >= GOOD).mean()),
        }

    width = scan.model.config.feed_forward.d_ff
    layers = [row(slice(start, start + width)) for start in range(0, len(above), width)]
    return {"layers": layers, "all": row(slice(None))}


__all__ = ["assemble", "write_ordinary_names"]
