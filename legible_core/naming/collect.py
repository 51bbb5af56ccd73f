"""Collecting contexts while a scan runs: per operand and component the strongest positions, and random ON ones.

    collector = Collector(model.config)
    collector.update(layer, first, values)      # after each batch, layer by layer
    collector.merge(other)                      # two shards become one
    write_contexts(folder, collector, ids, source, ...)

Memory does not grow with the text. Of each window of the scan a component's strongest token is a candidate, so no two
contexts are of one window; the best `POOL` are kept, and from those the file takes the strongest of different documents
first. For random contexts `PROBES` positions of each window are drawn by a generator seeded with the window's place in
the text; of those on which a component is ON the ones with the highest drawn number are kept, which is a uniform draw,
the same under any sharding.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as serialise
from torch import Tensor

from legible_core import __version__
from legible_core.config import ModelConfig
from legible_core.errors import Unavailable
from legible_core.legibility import RAIL
from legible_core.naming import contexts as store
from legible_core.naming.best import AFTER, BEFORE, WIDTH, Best, Candidates
from legible_core.naming.contexts import Source
from legible_core.naming.observe import Ints, LayerValues
from legible_core.naming.places import starts
from legible_core.replace import WRITE_ERRORS, sync, write_reason
from legible_core.tokens import Tokenizer

STRONGEST, RANDOM = 4, 2
POOL = 2 * STRONGEST
PROBES = 16
HALF = 65504.0
WindowOf: TypeAlias = Callable[[Ints], Ints]
Peaks: TypeAlias = NDArray[np.float32]


class Collector:
    """The candidates of every operand and component of a model; see the head of this file.

    CHOSEN: the sorts of contexts in the order of the file, and how many candidates of each are kept. RAILS: whether
    values lie between 0 and 1, so that the file's steps are of that.
    """

    CHOSEN: Mapping[store.Chosen, int] = {"strongest": POOL, "random": RANDOM}
    RAILS = True

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.starts = dict(zip(("operand", "component"), starts(config), strict=True))
        self.best = {
            (side, chosen): Best(int(ends[-1]), slots)
            for side, ends in self.starts.items()
            for chosen, slots in self.CHOSEN.items()
        }

    @torch.no_grad()
    def update(self, layer: int, first: int, shape: tuple[int, int], values: LayerValues) -> None:
        """Look at a layer's values over a batch of `shape` (windows, tokens) whose first token is at place `first`."""
        for look in self.looks(layer, first, shape, values):
            look()

    def looks(
        self, layer: int, first: int, shape: tuple[int, int], values: LayerValues, peaks: Sequence[Peaks] | None = None
    ) -> list[Callable[[], None]]:
        """`update` in steps that may run at the same time.

        peaks: the largest values in each window (windows, width), of each of `values.surfaces`, where they are known.
        """
        drawn = probes_of(first, shape)
        steps: list[Callable[[], None]] = []

        def look(side: str, row: int, found: Tensor, rails: int, known: Peaks | None) -> None:
            windows = found.view(*shape, -1)
            self._strongest(side, row, windows, first, peaks=known)
            if rails:
                self._random(side, row, windows[..., :rails], first, *drawn)

        known_peaks: Sequence[Peaks | None] = peaks or [None] * len(values.surfaces)
        *parts, (channels, of_channels), (hidden, of_hidden) = zip(values.surfaces, known_peaks, strict=True)
        row = int(self.starts["operand"][layer])
        for part, known in parts:
            steps.append(partial(look, "operand", row, part, part.shape[1], known))
            row += part.shape[1]
        row = int(self.starts["component"][layer])
        if self.config.attention.value != "membership" and channels.shape[1]:
            steps.append(partial(look, "component", row, channels, channels.shape[1], of_channels))
        row += channels.shape[1]
        steps.append(partial(look, "component", row, hidden, values.n_units, of_hidden))
        return steps

    def _strongest(
        self,
        side: str,
        row: int,
        windows: Tensor,
        first: int,
        chosen: store.Chosen = "strongest",
        above: float = -HALF,
        peaks: Peaks | None = None,
    ) -> None:
        best = self.best[side, chosen]
        least = np.maximum(best.least[row : row + windows.shape[2]], above)
        highest = windows.amax(dim=1).float().cpu().numpy() if peaks is None else peaks
        window, component = np.nonzero(highest > least)
        if window.size:
            traces = _traces(windows, window, component)
            best.offer(_candidates(row + component, traces, first, window, traces.argmax(axis=1)))

    def _random(
        self,
        side: str,
        row: int,
        windows: Tensor,
        first: int,
        probes: Ints,
        keys: NDArray[np.float32],
        above: float = 1.0 - RAIL,
    ) -> None:
        best = self.best[side, "random"]
        least = best.least[row : row + windows.shape[2]]
        # Few can enter after a while: only probes that are drawn higher than the lowest of all that are kept.
        wanted = (keys > least.min()).any(axis=0) if least.size else np.zeros(PROBES, bool)
        probes, keys = probes[:, wanted], keys[:, wanted]
        place = torch.from_numpy(probes).to(windows.device)
        looked = windows[torch.arange(len(windows), device=windows.device)[:, None], place].float().cpu().numpy()
        score = np.where(looked > above, keys[:, :, None], np.float32(-np.inf))
        window, component = np.nonzero(score.max(axis=1, initial=-np.inf) > least)
        if window.size:
            probe = score[window, :, component].argmax(axis=1)
            traces = _traces(windows, window, component)
            found = _candidates(row + component, traces, first, window, probes[window, probe])
            found.score = keys[window, probe]
            best.offer(found)

    def merge(self, other: Collector) -> None:
        """Take in another shard's candidates."""
        for key, best in self.best.items():
            best.merge(other.best[key])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays."""
        return {
            name: array
            for (side, chosen), best in self.best.items()
            for name, array in best.arrays(f"contexts.{side}.{chosen}").items()
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `arrays`; raises KeyError or ValueError for another's."""
        for (side, chosen), best in self.best.items():
            best.restore(arrays, f"contexts.{side}.{chosen}")


def probes_of(first: int, shape: tuple[int, int]) -> tuple[Ints, NDArray[np.float32]]:
    """Positions looked at in each window, and a number in (0, 1) for each, from the windows' places alone."""
    draws = [np.random.default_rng(first + window * shape[1]) for window in range(shape[0])]
    probes = np.stack([draw.integers(0, shape[1], PROBES) for draw in draws])
    return probes, np.stack([draw.random(PROBES, np.float32) for draw in draws])


def _traces(windows: Tensor, window: Ints, component: Ints) -> NDArray[np.float32]:
    """The values of components over whole windows of (b, t, n): one row (t,) for each pair."""
    where = torch.from_numpy(window).to(windows.device), torch.from_numpy(component).to(windows.device)
    found: NDArray[np.float32] = windows.transpose(1, 2)[where].float().cpu().numpy()
    return found


def _candidates(rows: Ints, traces: NDArray[np.float32], first: int, window: Ints, token: Ints) -> Candidates:
    """What stands around these tokens of these windows, whose values are `traces`, scored by their own value."""
    length, line = traces.shape[1], np.arange(len(token))
    around = token[:, None] + np.arange(-BEFORE, AFTER + 1)
    inside = (around >= 0) & (around < length)
    values = traces[line[:, None], around.clip(0, length - 1)] * inside
    return Candidates(
        rows=rows,
        score=traces[line, token],
        position=first + window * length + token,
        left=np.minimum(token, BEFORE).astype(np.uint8),
        right=np.minimum(length - 1 - token, AFTER).astype(np.uint8),
        # Values without rails may be beyond a float16.
        values=values.clip(-HALF, HALF).astype(np.float16),
    )


# ---- to the file ---------------------------------------------------------------------------------------------------


def write_contexts(
    folder: Path | str,
    collector: Collector,
    ids: Ints,
    source: Source,
    tokenizer: Tokenizer,
    *,
    checkpoint_hash: str,
    end_of_document: int | None,
    window_of: WindowOf | None = None,
) -> store.Contexts:
    """Put the contexts of a finished pass over the text `ids` into the folder, whole or not at all.

    window_of: where the window that holds each place begins; with it what the model had read before is stored too.

    Raises `Unavailable` when the disk does not take the file.
    """
    meta, arrays = assemble_contexts(collector, ids, source, tokenizer, checkpoint_hash, end_of_document, window_of)
    folder = Path(folder)
    draft = folder / f".{store.FILE}.{secrets.token_hex(6)}"
    try:
        draft.write_bytes(serialise(arrays, metadata=store.metadata(meta)))
        sync(draft)
        os.replace(draft, folder / store.FILE)
        sync(folder)
    except WRITE_ERRORS as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        reason = write_reason(error)
        raise Unavailable(f"The contexts cannot be written to {folder}: {reason}.") from None
    return store.Contexts(meta, arrays)


def assemble_contexts(
    collector: Collector,
    ids: Ints,
    source: Source,
    tokenizer: Tokenizer,
    checkpoint_hash: str,
    end_of_document: int | None,
    window_of: WindowOf | None = None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays of contexts.safetensors; see docs/names.md."""
    documents = np.cumsum(ids == end_of_document) if end_of_document is not None else np.zeros(len(ids), np.int64)
    chosen: dict[str, dict[str, NDArray[Any]]] = {}
    needed = np.zeros(len(ids) + 1, bool)
    for side in collector.starts:
        chosen[side] = _cut(_joined(collector, side, documents), ids, end_of_document, collector.RAILS)
        start, length = chosen[side]["start"], chosen[side]["length"]
        for offset in range(WIDTH):
            needed[(start + offset)[length > offset]] = True
        if window_of is not None:
            begin = window_of(start)
            chosen[side]["before"] = np.where(length > 0, start - begin, 0).astype(np.uint16)
            opened = np.zeros(len(ids) + 2, np.int64)
            np.add.at(opened, begin[length > 0], 1)
            np.add.at(opened, start[length > 0], -1)
            needed |= np.cumsum(opened)[:-1] > 0
    places = np.cumsum(needed) - 1
    kinds: type[np.unsignedinteger[Any]] = np.uint16 if collector.config.vocab_size <= 1 << 16 else np.uint32
    pool = ids[needed[:-1]].astype(kinds)
    arrays: dict[str, NDArray[Any]] = {"pool": pool}
    for side, part in chosen.items():
        part["start"] = np.where(part["length"] > 0, places[part["start"]], 0).astype(np.uint32)
        arrays |= {f"{side}.{name}": np.ascontiguousarray(array) for name, array in part.items()}
    meta = {
        "schema": store.SCHEMA,
        "made_by": f"legible {__version__}",
        "checkpoint": checkpoint_hash,
        "source": source.to_json(),
        "config": collector.config.to_json(),
        **{str(name): min(slots, STRONGEST) for name, slots in collector.CHOSEN.items()},
        "width": WIDTH,
        "tokens": {str(int(token)): tokenizer.display(int(token)) for token in np.unique(pool)},
    }
    return meta, arrays


def _joined(collector: Collector, side: str, documents: Ints) -> dict[str, NDArray[Any]]:
    """What the file takes of a side, sort by sort: fields of `Best`, and the positions' own values as `peak`."""
    parts = []
    for chosen in collector.CHOSEN:
        best = collector.best[side, chosen]
        part = {name: getattr(best, name) for name in ("position", *_SHOWN)}
        if chosen != "random":
            part = _different_documents(best, documents)
        if chosen == "lowest":  # they are ranked, and kept, with the other sign
            part |= {"score": -part["score"], "values": -part["values"]}
        part["peak"] = part["values"][..., BEFORE].astype(np.float32) if chosen == "random" else part["score"]
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in ("position", "peak", *_SHOWN)}


_SHOWN = ("left", "right", "values")


def _different_documents(best: Best, documents: Ints) -> dict[str, NDArray[Any]]:
    """The STRONGEST of each row's candidates: of different documents as far as there are enough, best first."""
    of = np.where(best.position >= 0, documents[np.maximum(best.position, 0)], -1)
    again = np.zeros(best.position.shape, bool)
    for slot in range(1, best.slots):
        again[:, slot] = (of[:, :slot] == of[:, slot, None]).any(axis=1)
    order = np.lexsort((np.broadcast_to(np.arange(best.slots), again.shape), again), axis=1)[:, :STRONGEST]
    order.sort(axis=1)
    lines = np.arange(len(order))[:, None]
    return {name: getattr(best, name)[lines, order] for name in ("position", "score", *_SHOWN)}


def _cut(
    parts: dict[str, NDArray[Any]], ids: Ints, end_of_document: int | None, rails: bool
) -> dict[str, NDArray[Any]]:
    """Windows as they are stored: cut at the ends of the document, values in steps of their largest."""
    position, values = parts["position"], parts["values"].astype(np.float32)
    left, right = parts["left"].astype(np.int64), parts["right"].astype(np.int64)
    known = position >= 0
    if end_of_document is not None:
        # Not over an end before the position, and up to the end behind it.
        ends = np.concatenate([ids == end_of_document, [False]])
        open_left, open_right = known.copy(), known & ~ends[position]
        more_left, more_right = np.zeros_like(left), np.zeros_like(right)
        for step in range(1, BEFORE + 1):
            open_left &= (step <= left) & ~ends[np.maximum(position - step, 0)]
            more_left += open_left
        for step in range(1, AFTER + 1):
            open_right &= step <= right
            more_right += open_right
            open_right &= ~ends[np.minimum(position + step, len(ids))]
        left, right = more_left, more_right
    length = np.where(known, left + 1 + right, 0)
    columns = np.arange(WIDTH)
    shifted = np.take_along_axis(values, np.minimum(BEFORE - left[..., None] + columns, WIDTH - 1), axis=2)
    shifted = np.where(columns < length[..., None], shifted, 0.0)
    scale = np.maximum(np.abs(shifted).max(axis=2, initial=0.0), 1e-6)
    if rails:
        scale = np.where(scale <= 1.0, 1.0, scale)
    return {
        "start": np.where(known, position - left, 0),
        "length": length.astype(np.uint8),
        "at": np.where(known, left, 0).astype(np.uint8),
        "scale": scale.astype(np.float16),
        "peak": np.where(known, parts["peak"], 0.0).astype(np.float16 if rails else np.float32),
        "values": np.rint(shifted / scale[..., None] * store.STEPS).astype(np.int8),
    }
