"""From a finished scan to a names store: lists, agreement, promote sides, labels, the papers' tables."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as serialise

from legible_core import __version__, legibility
from legible_core.errors import LegibleError, Unavailable
from legible_core.legibility import Moments, Surface, head_shares, row_of
from legible_core.naming import detect as detecting
from legible_core.naming import label as labelling
from legible_core.naming import names as store
from legible_core.naming import promote as promoting
from legible_core.naming.detect import DetectLists, agreement, detect
from legible_core.naming.label import ClassLabel, Population, as_columns, label_lists
from legible_core.naming.lexicon import BEGINNING, CLASSES, beginnings, membership
from legible_core.naming.scan import LayerState, Scan
from legible_core.replace import WRITE_ERRORS, sync, write_reason
from legible_core.tokens import Tokenizer

# A token is ranked in a promote list when the whole scanned text holds it this often.
MIN_SEEN = 10
# Nameable: alive, ON on this share of the tokens, and with at least this agreement on unseen text.
ON_RANGE = (0.005, 0.2)
MIN_AGREEMENT = 0.8


def write_names(
    folder: Path | str, scan: Scan, tokenizer: Tokenizer, *, between: Callable[[], None] | None = None
) -> store.Names:
    """Make the names of a finished scan and put them into the folder, whole or not at all.

    between: called now and then, so that a worker can let a reading pass or notice that the job was cancelled.
    Raises `Unavailable` when the disk does not take the files.
    """
    return store_names(folder, *assemble(scan, tokenizer, between=between))


def store_names(folder: Path | str, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> store.Names:
    """Put the two files of a names store into the folder, whole or not at all; raises as `write_names`."""
    names = store.Names(meta, arrays)
    folder = Path(folder)
    drafts = [folder / f".{name}.{secrets.token_hex(6)}" for name in (store.ARRAYS, store.JSON)]
    try:
        drafts[0].write_bytes(serialise(arrays))
        drafts[1].write_text(store.to_json_text(meta), encoding="utf-8")
        for draft in drafts:
            sync(draft)
        # The pair cannot change in one step: without its JSON the store is absent, never half of each.
        (folder / store.JSON).unlink(missing_ok=True)
        os.replace(drafts[0], folder / store.ARRAYS)
        os.replace(drafts[1], folder / store.JSON)
        sync(folder)
    except WRITE_ERRORS as error:
        for draft in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        reason = write_reason(error)
        raise Unavailable(
            f"The names cannot be written to {folder}: {reason}; name another folder with --out."
        ) from None
    return names


def assemble(
    scan: Scan, tokenizer: Tokenizer, *, between: Callable[[], None] | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The two files of a names store, as JSON object and arrays; see docs/names.md."""
    if not scan.complete:
        raise LegibleError("The scan is not finished, so there is nothing to name yet.", code="unfinished")
    pause = between or (lambda: None)
    model = scan.model
    lists: list[DetectLists] = []
    agreed: list[NDArray[np.float64]] = []
    for layer in scan.layers:
        lists.append(detect(layer.counts[0]))
        agreed.append(agreement(lists[-1], layer.counts[1]))
        pause()
    total_seen = scan.seen + np.bincount(scan.parts[1], minlength=len(scan.seen))
    often = total_seen >= MIN_SEEN
    promoted = list(_promote(scan, often, pause))

    texts = ["" if tokenizer.is_special(token) else tokenizer.text(token) for token in range(len(scan.seen))]
    table = membership(texts)
    table[:, CLASSES.index(BEGINNING)] |= beginnings(scan.parts[0], texts)
    listable = np.flatnonzero(scan.seen >= detecting.MIN_COUNT)
    ranked = np.flatnonzero(often)
    token_lists = [(part.tokens[part.of(o)], part.on[part.of(o)]) for part in lists for o in range(part.count)]
    promote_lists = [pair for part in promoted for pair in zip(part.tokens, part.weights, strict=True)]
    detect_labels, promote_labels = label_lists(
        [
            (token_lists, Population(listable, scan.seen[listable], table[listable])),
            (promote_lists, Population(ranked, total_seen[ranked], table[ranked])),
        ]
    )
    pause()
    arrays = _arrays(scan, lists, agreed, promoted, detect_labels, promote_labels)
    arrays["often"] = often.astype(np.uint8)
    used = np.unique(np.concatenate([arrays[f"{side}.tokens"].ravel() for side in ("detect", "promote", "rare")]))
    meta: dict[str, Any] = {
        "schema": store.SCHEMA,
        "made_by": f"legible {__version__}",
        "checkpoint": scan.checkpoint_hash,
        "corpus": asdict(scan.corpus),
        "quality": scan.quality,
        "thresholds": thresholds(),
        "legibility": summary(scan.layers, agreed, detect_labels, model.config.n_heads, model.config.d_head),
        "config": model.config.to_json(),
        "classes": list(CLASSES),
        "tokens": {str(int(token)): tokenizer.display(int(token)) for token in used},
    }
    return meta, arrays


def thresholds() -> dict[str, Any]:
    """Every number that decided what a name says."""
    return {
        "rail": legibility.RAIL,
        "min_variance": legibility.MIN_VARIANCE,
        "min_crispness": legibility.MIN_CRISPNESS,
        "detect_min_count": detecting.MIN_COUNT,
        "detect_min_on": detecting.MIN_ON,
        "detect_min_z": detecting.MIN_Z,
        "detect_slack": detecting.SLACK,
        "detect_max_length": detecting.MAX_LENGTH,
        "min_held_out": detecting.MIN_HELD_OUT,
        "promote_min_seen": MIN_SEEN,
        "label_q": labelling.Q,
        "label_leading": labelling.LEADING,
        "label_min_overlap": labelling.MIN_OVERLAP,
        "label_min_share": labelling.MIN_SHARE,
        "nameable_on": list(ON_RANGE),
        "nameable_agreement": MIN_AGREEMENT,
    }


def _promote(scan: Scan, often: NDArray[np.bool_], pause: Callable[[], None]) -> Iterator[promoting.Promoted]:
    """Per layer, the promote lists of the bounded heads' channels and then of all units."""
    for channels, units in promoting.write_columns(scan.model):
        found = []
        for columns in (channels, units):
            step = max(1, promoting.CHUNK_NUMBERS // len(often))
            for start in range(0, columns.shape[1], step):
                found.append(promoting.promote(scan.model, columns[:, start : start + step], often))
                pause()
        yield promoting.Promoted(
            *(
                np.concatenate([getattr(part, name) for part in found])
                for name in ("tokens", "weights", "rare", "rare_weights")
            )
        )


def _arrays(
    scan: Scan,
    lists: list[DetectLists],
    agreed: list[NDArray[np.float64]],
    promoted: list[promoting.Promoted],
    detect_labels: list[ClassLabel | None],
    promote_labels: list[ClassLabel | None],
) -> dict[str, NDArray[Any]]:
    layers, config = scan.layers, scan.model.config
    ids: type[np.unsignedinteger[Any]] = np.uint16 if config.vocab_size <= 1 << 16 else np.uint32
    on = np.concatenate([part.on for part in lists])
    counts: type[np.unsignedinteger[Any]] = np.uint16 if on.max(initial=0) < 1 << 16 else np.uint32
    ends = np.cumsum(np.concatenate([part.lengths for part in lists]))
    naming = max(1, scan.corpus.naming)
    arrays: dict[str, NDArray[Any]] = {
        "seen": scan.seen.astype(np.uint32),
        "decay": np.concatenate(
            [scan.model.decay(index).float().cpu().numpy() for index in range(config.n_layers)]
        ).astype(np.float32),
        "detect.offsets": np.concatenate([[0], ends]).astype(np.uint32),
        "detect.tokens": np.concatenate([part.tokens for part in lists]).astype(ids),
        "detect.on": on.astype(counts),
        "operand.base": np.concatenate([layer.counts[0].on.sum(axis=0) / naming for layer in layers]),
        "operand.agreement": np.concatenate(agreed),
        "operand.histogram": np.concatenate(
            [
                layer.operands.bins.T / max(1, layer.operands.count)
                for layer in layers
                if layer.operands.bins is not None
            ]
        ).astype(np.float16),
        "promote.tokens": np.concatenate([part.tokens for part in promoted]).astype(ids),
        "promote.weights": np.concatenate([part.weights for part in promoted]).astype(np.float16),
        "rare.tokens": np.concatenate([part.rare for part in promoted]).astype(ids),
        "rare.weights": np.concatenate([part.rare_weights for part in promoted]).astype(np.float16),
    }
    for side, labels in (("operand", detect_labels), ("component", promote_labels)):
        arrays |= {f"{side}.label.{name}": column for name, column in as_columns(labels).items()}
    for name, statistic in (("mean", "mean"), ("variance", "variance"), ("crisp", "crispness"), ("on", "on_share")):
        arrays[f"operand.{name}"] = np.concatenate([getattr(layer.operands, statistic) for layer in layers])
        layout = config.feed_forward
        rest = np.full(layout.d_ff - layout.n_bounded, np.nan)
        parts = [(getattr(layer.channels, statistic), getattr(layer.units, statistic), rest) for layer in layers]
        arrays[f"component.{name}"] = np.concatenate([values for layer in parts for values in layer])
    return {
        key: np.ascontiguousarray(value.astype(np.float32) if value.dtype == np.float64 else value)
        for key, value in arrays.items()
    }


# ---- the papers' tables ----------------------------------------------------------------------------------------------


def summary(
    layers: list[LayerState],
    agreed: list[NDArray[np.float64]],
    labels: list[ClassLabel | None],
    n_heads: int,
    d_head: int,
) -> dict[str, Any]:
    """Per layer and over all layers: the rows of the papers' tables 1 and 5, and how many operands can be named."""
    split = [(layer.channels.width, layer.operands) for layer in layers]
    heads = [_part(moments, slice(0, width)) for width, moments in split]
    rest = [_part(moments, slice(width, None)) for width, moments in split]
    surfaces = [
        Surface(
            row_of([layer.channels]), row_of([head]), row_of([ff]), head_shares(layer.channels, n_heads, d_head)
        ).to_json()
        for layer, head, ff in zip(layers, heads, rest, strict=True)
    ]
    pooled = Surface(row_of([layer.channels for layer in layers]), row_of(heads), row_of(rest)).to_json()
    labelled = np.array([label is not None for label in labels])
    ends = np.cumsum([moments.width for _, moments in split])[:-1]
    names = [
        nameability(moments, agreement_, labelled_)
        for (_, moments), agreement_, labelled_ in zip(split, agreed, np.split(labelled, ends), strict=True)
    ]
    for surface, name in zip(surfaces, names, strict=True):
        surface["names"] = name
    every = [name for name in names if name is not None]
    count = sum(name["operands"] for name in every)
    pooled["names"] = (
        {"operands": count}
        | {key: sum(n[key] * n["operands"] for n in every) / count for key in every[0] if key != "operands"}
        if every
        else None
    )
    return {"layers": surfaces, "all": pooled}


def nameability(moments: Moments, agreed: NDArray[np.float64], labelled: NDArray[np.bool_]) -> dict[str, float] | None:
    """Shares of all operands: alive; alive and ON in range; that and agreement (nameable); that and a class label."""
    if not moments.width or not moments.count:
        return None
    alive = moments.classes() != 0
    ranged = alive & (moments.on_share >= ON_RANGE[0]) & (moments.on_share <= ON_RANGE[1])
    nameable = ranged & (np.nan_to_num(agreed) >= MIN_AGREEMENT)
    return {
        "operands": moments.width,
        "alive": float(alive.mean()),
        "in_range": float(ranged.mean()),
        "nameable": float(nameable.mean()),
        "labelled": float((nameable & labelled).mean()),
    }


def _part(moments: Moments, where: slice) -> Moments:
    """The statistics of some of the channels."""
    part = Moments(len(range(*where.indices(moments.width))), histogram=False)
    part.count = moments.count
    part.mean, part.squares = moments.mean[where], moments.squares[where]
    part.on, part.off = moments.on[where], moments.off[where]
    return part
