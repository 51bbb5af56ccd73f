"""A place in a head: its quietest value channel, and which head gathers a key most sharply.

    heads = Heads.of(model, windows, layer)
    put = heads.sharpest(key, aimed)                 # of all heads' quietest channels the one that carries the key best
    edits = [*put.site.read(put.row), *put.site.write(column / put.at)]

A row in a value channel fires on the key where the key stands; what a head writes at a position is the mean of that
over the positions it looks at, weighted by attention, so it arrives diluted ("Through the Looking Glass" section 4.3).
Heads differ in how much of what they deliver is about the position they are at, so the row is put into one channel of
every head at once, and the head with the largest contrast is kept. A membership channel is σ of one row; the channels
of a Boolean head come in pairs that share operands, A⊙B + A⊙(1−B) = A, so the row is A's and both get the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from legible_core.config import ModelConfig
from legible_core.editing.measure import BATCH, states
from legible_core.editing.site import QUANTILE, ReadRow, Site, read_row
from legible_core.interventions import Edit
from legible_core.model.editing import by_layer
from legible_core.model.transformer import Transformer
from legible_core.units import Channel, HeadOperand

# A head that gathers next to nothing of its key would need an endless write.
LEAST_GATHERED = 0.02


@dataclass(frozen=True, eq=False)
class Gathered:
    """A row in a head's channel. at: what the head gathers where the key is, on average; contrast: that less elsewhere.

    Both are in the channel's own units, 0 to 1 in bounded heads.
    """

    site: Site
    row: ReadRow
    head: int
    at: float
    contrast: float

    @property
    def unit_write(self) -> float:
        """What a write column is divided by, so that it arrives once at a mean key; never below `LEAST_GATHERED`."""
        return max(self.at, LEAST_GATHERED)


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of one layer over a text.

    entering: (n, d) their normed input, n = windows × length, window after window.
    sites: of every head the channel (in a Boolean head the pair) that gathers least on the text.
    """

    model: Transformer
    layer: int
    length: int
    entering: Float[Tensor, "n d"]
    sites: tuple[Site, ...]

    @classmethod
    def of(cls, model: Transformer, windows: Int[Tensor, "w t"], layer: int) -> Heads:
        entering = states(model, windows, layer, attention=True)
        bare = cls(model, layer, windows.shape[1], entering, ())
        quiet = bare.z().abs().mean(dim=0)
        sites = tuple(quiet_site(model.config, layer, head, quiet[head]) for head in range(model.config.n_heads))
        return cls(model, layer, windows.shape[1], entering, sites)

    @torch.no_grad()
    def z(self, edits: Sequence[Edit] = (), attention: Any = None) -> Float[Tensor, "n h dh"]:
        """z of every head at every position, under edits of this layer's value rows; the layers below are as they are.

        attention: another attention module in place of the layer's own.
        """
        part = self.model.layers[self.layer].attention if attention is None else attention
        here = by_layer(edits, 0).get(self.layer)
        windows = self.entering.unflatten(0, (-1, self.length)).to(part.output.dtype)
        made = [part(some, None, here)[0].float().flatten(0, 1) for some in windows.split(BATCH)]
        return torch.cat(made)

    def read_rows(
        self, key: Float[Tensor, " d"], aimed: Bool[Tensor, " n"], quantile: float = QUANTILE
    ) -> list[ReadRow]:
        """The row that fires on a key, for every head's site; raises what `read_row` raises."""
        kinds = {site.activation for site in self.sites}
        biased = self.model.config.linear_bias
        made = {
            kind: read_row(kind, key, self.entering, aimed, biased=biased, quantile=quantile) for kind in sorted(kinds)
        }
        return [made[site.activation] for site in self.sites]

    def gather(self, rows: Sequence[ReadRow], attention: Any = None) -> Float[Tensor, "n h"]:
        """What each head gathers of its own site (a pair's two channels summed) with a row in every head at once."""
        edits = [edit for site, row in zip(self.sites, rows, strict=True) for edit in site.read(row)]
        z = self.z(edits, attention)
        carried = [
            z[:, head, [channel.channel for channel in site.writes if isinstance(channel, Channel)]].sum(dim=-1)
            for head, site in enumerate(self.sites)
        ]
        return torch.stack(carried, dim=1)

    def sharpest(self, key: Float[Tensor, " d"], aimed: Bool[Tensor, " n"], quantile: float = QUANTILE) -> Gathered:
        """The head that gathers a key most sharply, where it is aimed against elsewhere."""
        rows = self.read_rows(key, aimed, quantile)
        values = self.gather(rows)
        at, elsewhere = values[aimed].mean(dim=0), values[~aimed].mean(dim=0)
        head = int((at - elsewhere).argmax())
        return Gathered(self.sites[head], rows[head], head, float(at[head]), float(at[head] - elsewhere[head]))


def quiet_site(config: ModelConfig, layer: int, head: int, quiet: Float[Tensor, " dh"]) -> Site:
    """The channel of a head (of a Boolean head the pair) whose mean |z| is least."""
    half = config.d_head // 2
    if config.is_bounded(layer, head) and config.attention.value == "boolean":
        pair = int((quiet[:half] + quiet[half:]).argmin())
        both = (Channel(layer, head, pair), Channel(layer, head, half + pair))
        return Site(layer, HeadOperand(layer, head, pair, "A"), both, "sigmoid")
    channel = Channel(layer, head, int(quiet.argmin()))
    return Site(layer, channel, (channel,), "sigmoid" if config.is_bounded(layer, head) else "relu")
