"""The scan of an ordinary model: what each of its units does over a text, in one resumable pass.

    scan = OrdinaryScan(model, ids, corpus, begin=None, end_of_document=0, state=folder, contexts=True)
    for progress in scan.run():
        ...
    write_ordinary_names(folder, scan, tokenizer)

An ordinary unit has no rails, so it is never ON, crisp or SELECTIVE. What takes their place is measured here and
defined in docs/ordinary.md: moments, extremes and a histogram over fixed bins of its value; in each half of the text
its strongest positions, from which its detect list and that list's agreement are made; contexts of its largest and of
its lowest values. Shards, interruptions and their bits are those of any scan (`naming.resumable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legible_core.adapters.model import OrdinaryModel
from legible_core.naming import contexts as store
from legible_core.naming.best import WIDTH
from legible_core.naming.bins import BINS
from legible_core.naming.collect import POOL, RANDOM, Collector, probes_of
from legible_core.naming.detect import MIN_HELD_OUT
from legible_core.naming.observe import Batch, Ints
from legible_core.naming.resumable import Resumable
from legible_core.naming.strongest import Strongest, Values
from legible_core.ordinary.observing import losses, observe_units, window_of

# Strongest positions of a unit in each half: one in RARITY, so many at least, and so many at most.
RARITY, MOST = 100, 128


def strongest_of(tokens: int) -> int:
    """How many strongest positions of a half of so many tokens are kept."""
    return min(MOST, max(MIN_HELD_OUT, tokens // RARITY))


@dataclass
class UnitState:
    """What the scan gathers on one layer's units."""

    values: Values
    strongest: tuple[Strongest, Strongest]

    def update(self, values: Tensor, half: int, first: int) -> None:
        self.values.update(values)
        self.strongest[half].update(values, first)

    def merge(self, other: UnitState) -> None:
        self.values.merge(other.values)
        for mine, its in zip(self.strongest, other.strongest, strict=True):
            mine.merge(its)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        keys = {f"{prefix}.strongest{half}": found.keys for half, found in enumerate(self.strongest)}
        return {**self.values.arrays(prefix), **keys}

    def restored(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> UnitState:
        first, second = (self.strongest[half].restored(arrays, f"{prefix}.strongest{half}") for half in range(2))
        return UnitState(self.values.restored(arrays, prefix), (first, second))


class UnitCollector(Collector):
    """Contexts of units without rails: where they are largest above 0, lowest below 0, and above 0 at random."""

    CHOSEN: Mapping[store.Chosen, int] = {"strongest": POOL, "lowest": POOL, "random": RANDOM}
    RAILS = False

    @torch.no_grad()
    def look(self, layer: int, first: int, windows: Tensor) -> None:
        """Look at a layer's values (b, t, f) over a batch whose first token is at place `first`."""
        row = int(self.starts["component"][layer])
        self._strongest("component", row, windows, first, above=0.0)
        self._strongest("component", row, -windows, first, "lowest", above=0.0)
        self._random(
            "component", row, windows, first, *probes_of(first, (windows.shape[0], windows.shape[1])), above=0.0
        )


class OrdinaryScan(Resumable):
    """A resumable scan of one ordinary model over one token stream.

    begin: the token that the model's tokenizer puts before every text; it stands before each window, is measured at no
    place, and what follows it is no loss.
    """

    model: OrdinaryModel
    layers: list[UnitState]
    collector: UnitCollector | None

    def __init__(self, model: OrdinaryModel, ids: Ints, name: str, *, begin: int | None = None, **options: Any) -> None:
        """The options are those of `Resumable`."""
        self.begin = begin
        super().__init__(model, ids, name, **options)

    @property
    def window(self) -> int:
        return window_of(self.model.config, self.begin)

    @property
    def identity(self) -> dict[str, Any]:
        dtype = str(self.model.token_embedding.dtype)
        return {**super().identity, "window": self.window, "begin": self.begin, "dtype": dtype, "bins": BINS}

    def windows_of(self, places: Ints) -> Ints:
        """Where the window that holds each place of the text begins."""
        cut = len(self.parts[0])
        half = np.where(places < cut, 0, cut)
        found: Ints = half + (places - half) // self.window * self.window
        return found

    def _gathering(self, listable: Ints) -> list[UnitState]:
        width = self.model.config.feed_forward.d_ff
        slots = [strongest_of(len(part)) for part in self.parts]
        return [
            UnitState(Values(width), (Strongest(width, slots[0]), Strongest(width, slots[1])))
            for _ in range(self.model.config.n_layers)
        ]

    def _collecting(self) -> UnitCollector:
        return UnitCollector(self.model.config)

    def _look(self, half: int, first: int, piece: Batch) -> NDArray[np.float64]:
        ids = piece.ids if self.begin is None else np.pad(piece.ids, ((0, 0), (1, 0)), constant_values=self.begin)
        skipped = int(self.begin is not None)

        def take(layer: int, values: Tensor) -> None:
            windows = values[:, skipped:].contiguous()
            self.layers[layer].update(windows.view(-1, windows.shape[-1]), half, first)
            if self.collector is not None:
                self.collector.look(layer, first, windows)

        given = torch.from_numpy(np.ascontiguousarray(ids)).to(self.model.token_embedding.device)
        residual = observe_units(self.model, given, take)
        return losses(self.model, residual[:, skipped:], piece.targets)


def state_bytes(n_layers: int, d_ff: int, *, contexts: bool = True) -> int:
    """What a scan's state takes in memory at most, its text and the model aside."""
    values = 8 * 5 + 4 * 2 + 8 * BINS
    positions = 2 * MOST * 8
    slots = (2 * POOL + RANDOM) * (4 + 8 + 1 + 1 + 2 * WIDTH) if contexts else 0
    return n_layers * d_ff * (values + positions + slots)


__all__ = ["OrdinaryScan", "UnitCollector", "UnitState", "state_bytes", "strongest_of"]
