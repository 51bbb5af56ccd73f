"""The scan: one pass over a corpus that measures legibility and gathers what names are made of.

    scan = Scan(model, ids, corpus, end_of_document=0, state=folder)    # takes up an interrupted scan's state
    for progress in scan.run():                                         # one item per batch; stop iterating to pause
        ...
    scan.save()                                                         # to go on another time
    write_names(folder, scan, tokenizer)                                # names.json, names.safetensors

    first, second = (Scan(..., shard=(i, 2)) for i in range(2))         # anywhere, at any time
    first.merge(second)                                                 # equals the scan of the whole

The stream is cut in a naming half, which lists and labels are made from, and a held-out half, on which alone their
agreement is measured. Memory does not grow with the corpus (its ids aside). Shards merge to the same counts and
contexts exactly, and to the same moments to float64 rounding. How it is interrupted and goes on is in `resumable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from legible_core.legibility import Moments
from legible_core.model.transformer import Transformer
from legible_core.naming.blocks import Groups, Surface, Team, count_on, join, measure
from legible_core.naming.detect import TokenCounts
from legible_core.naming.measure import take_in
from legible_core.naming.observe import Batch, Ints, LayerValues, observe_each
from legible_core.naming.resumable import BATCH, Corpus, Progress, Resumable

MOMENTS = ("operands", "channels", "units")


@dataclass
class LayerState:
    """What a scan gathers on one layer."""

    operands: Moments
    channels: Moments
    units: Moments
    counts: tuple[TokenCounts, TokenCounts]

    def update(self, ids: Ints, values: LayerValues, half: int) -> None:
        on = take_in(self.operands, values.operands)
        take_in(self.channels, values.channels)
        take_in(self.units, values.units)
        self.counts[half].count_tokens(ids)
        self.counts[half].count_on(ids, on.cpu().numpy())

    def measure(
        self, ids: Ints, groups: Groups, values: LayerValues, half: int, shape: tuple[int, int], team: Team, peaks: bool
    ) -> tuple[list[NDArray[np.float32]], list[Callable[[], None]]]:
        """`update` on a processor's threads, but for some steps, which are returned and may run at the same time.

        ids: of shape (windows * tokens,). groups: theirs in the counts. Gives each surface's peaks, if asked for, too.
        """
        on = torch.empty(len(ids), self.operands.width)
        masks = on.split([part.shape[1] for part in values.operand_parts], dim=1) if values.operand_parts else ()
        surfaces = [Surface(part, part.shape[1], mask) for part, mask in zip(values.operand_parts, masks, strict=True)]
        surfaces += [Surface(values.channels, values.channels.shape[1]), Surface(values.hidden, values.n_units)]
        found = measure(surfaces, shape, team, peaks=peaks)
        *operands, channels, hidden = found
        channels.add_to(self.channels)
        hidden.add_to(self.units)
        self.counts[half].count_tokens(ids)
        if not operands:
            self.operands.count += len(ids)
            return [part.peaks for part in found], []
        join(operands).add_to(self.operands)
        steps: list[Callable[[], None]] = [
            partial(count_on, self.counts[half], part, on) for part in groups.split(team.size)
        ]
        return [part.peaks for part in found], steps

    def merge(self, other: LayerState) -> None:
        for key in MOMENTS:
            getattr(self, key).merge(getattr(other, key))
        for counts, more in zip(self.counts, other.counts, strict=True):
            counts.merge(more)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for key in MOMENTS:
            found |= getattr(self, key).arrays(f"{prefix}.{key}")
        for half, counts in enumerate(self.counts):
            found |= counts.arrays(f"{prefix}.counts{half}")
        return found

    def restored(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> LayerState:
        moments = [Moments.from_arrays(arrays, f"{prefix}.{key}") for key in MOMENTS]
        for old, new in zip((self.operands, self.channels, self.units), moments, strict=True):
            if old.width != new.width:
                raise ValueError("these statistics are of different channels")
        counts = [table.restored(arrays, f"{prefix}.counts{half}") for half, table in enumerate(self.counts)]
        return LayerState(moments[0], moments[1], moments[2], (counts[0], counts[1]))


class Scan(Resumable):
    """A resumable scan of one legible checkpoint over one token stream."""

    model: Transformer
    layers: list[LayerState]

    @cached_property
    def _team(self) -> Team:
        return Team()

    def _gathering(self, listable: Ints) -> list[LayerState]:
        config, found = self.model.config, []
        for index in range(config.n_layers):
            channels = config.attention.n_special[index] * config.d_head
            width = channels + config.feed_forward.n_operands
            tables = [TokenCounts(listable, config.vocab_size, width) for _ in range(2)]
            found.append(
                LayerState(
                    Moments(width),
                    Moments(channels, histogram=False),
                    Moments(config.feed_forward.n_bounded, histogram=False),
                    (tables[0], tables[1]),
                )
            )
        return found

    def _look(self, half: int, first: int, piece: Batch) -> NDArray[np.float64]:
        ids = piece.ids.reshape(-1)
        shape = (piece.ids.shape[0], piece.ids.shape[1])
        # Every layer counts the same tokens.
        groups = Groups.of(self.layers[0].counts[half], ids)

        def take(index: int, values: LayerValues) -> None:
            layer, collector = self.layers[index], self.collector
            if values.hidden.device.type != "cpu":
                layer.update(ids, values, half)
                if collector is not None:
                    collector.update(index, first, shape, values)
                return
            peaks, steps = layer.measure(ids, groups, values, half, shape, self._team, collector is not None)
            if collector is not None:
                steps += collector.looks(index, first, shape, values, peaks)
            self._team.map(lambda step: step(), steps)

        return observe_each(self.model, piece, take)


__all__ = ["BATCH", "Corpus", "LayerState", "Progress", "Scan"]
