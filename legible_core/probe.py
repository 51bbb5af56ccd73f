"""What a cached pass leaves behind of the components that are watched; no value is computed twice for it.

probe = Probe(model, components)
with probe.attached():
    model.residual(ids, cache=cache, observed=probe)      # any number of passes
values = probe.values(cache)                              # (tokens of these passes, components)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.model.transformer import Cache, Observed, Transformer
from legible_core.reads import read_of
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit


class Probe(Observed):
    """Keeps what passes made in the layers that are watched, and takes the watched columns out of several at once.

    Given to `Transformer.residual` as `observed`, inside `attached()`, which hears the hidden vectors of layers with
    watched units that have no rails: a pass does not report those by itself.
    """

    def __init__(self, model: Transformer, components: Sequence[Component]) -> None:
        super().__init__()
        self.model = model
        columns: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for place, component in enumerate(components):
            layer, source, column = _source(model, component)
            columns.setdefault((layer, source), []).append((place, column))
        device = model.token_embedding.device
        self._plan = {
            key: torch.tensor([column for _, column in places], device=device) for key, places in columns.items()
        }
        order = [place for places in columns.values() for place, _ in places]
        self._back = np.argsort(np.array(order, np.int64))
        # The write matrices of the watched heads, (heads, dh, d): their norms are asked again and again.
        self._writes = {
            layer: self._write(layer, columns) for (layer, source), columns in self._plan.items() if source == "head"
        }
        # What each watched layer made, pass by pass: (operands, combined values, z), (operands, bounded units), hidden.
        self._heads: dict[int, list[Any]] = {layer: [] for layer, source in columns if source in _OF_HEADS}
        self._units: dict[int, list[Any]] = {layer: [] for layer, source in columns if source in _OF_UNITS}
        self._plain: dict[int, list[Any]] = {layer: [] for layer, source in columns if source == "plain"}
        self._attention = self._feed_forward = 0
        self._tokens = 0
        layout = model.config.feed_forward
        names = (["A", "B"] if layout.n_pairs else []) + (["m"] if layout.n_quantifiers else [])
        self._names = names + (["sigmoid"] if layout.n_bounded > layout.n_named else [])

    @contextmanager
    def attached(self) -> Iterator[None]:
        """For the length of one pass."""
        self._attention = self._feed_forward = 0
        handles = []
        for layer, kept in self._plain.items():
            module: Any = self.model.layers[layer].feed_forward
            handles.append(module.register_forward_hook(_hearing(kept)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def see_attention(self, operands: tuple[Tensor, ...], outputs: Tensor | None, heads: Tensor | None) -> None:
        if self._attention in self._heads:
            self._heads[self._attention].append((operands, outputs, heads))
        if not self._attention and heads is not None:
            self._tokens += heads.shape[1]
        self._attention += 1

    def see_feed_forward(self, operands: tuple[Tensor, ...], outputs: Tensor | None) -> None:
        if self._feed_forward in self._units:
            self._units[self._feed_forward].append((operands, outputs))
        self._feed_forward += 1

    def values(self, cache: Cache) -> NDArray[np.float32]:
        """(t, components) of the passes since the last call, which are let go.

        Linear channels are read off the values that the passes put into the cache.
        """
        found = [
            self._columns(layer, source, columns, cache).float() for (layer, source), columns in self._plan.items()
        ]
        joined: NDArray[np.float32] = torch.cat(found, dim=-1).cpu().numpy()
        for kept in (*self._heads.values(), *self._units.values(), *self._plain.values()):
            kept.clear()
        self.residuals.clear()
        self._tokens = 0
        return joined[:, self._back]

    def _columns(self, layer: int, source: str, columns: Tensor, cache: Cache) -> Tensor:
        """The chosen columns of one tensor of a layer, (t, columns)."""
        if source == "linear":
            values = cache.layers[layer].attention.values
            assert values is not None
            parts = [values[:, :, -self._tokens :].transpose(1, 2)]
        elif source == "plain":
            parts = self._plain[layer]
        elif source == "unit":
            parts = [outputs for _, outputs in self._units[layer]]
        elif source in self._names:
            place = self._names.index(source)
            parts = [operands[place] for operands, _ in self._units[layer]]
        elif source == "channel":
            parts = [outputs for _, outputs, _ in self._heads[layer]]
        elif source == "head":
            return self._norms(layer, columns)
        else:
            place = 1 if source == "head_b" else 0
            parts = [operands[place] for operands, _, _ in self._heads[layer]]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return whole[0].flatten(1).index_select(1, columns)

    def _norms(self, layer: int, heads: Tensor) -> Tensor:
        """The norm of what each of these heads writes, (t, heads)."""
        z = torch.cat([z for _, _, z in self._heads[layer]], dim=1)[0].index_select(1, heads)
        return torch.bmm(z.float().transpose(0, 1), self._writes[layer]).norm(dim=-1).T

    def _write(self, layer: int, heads: Tensor) -> Float[Tensor, "h w d"]:
        output = self.model.layers[layer].attention.output.detach().float()
        return output.unflatten(1, (self.model.config.n_heads, -1)).index_select(1, heads).permute(1, 2, 0).contiguous()


_OF_HEADS = ("head", "head_a", "head_b", "channel")
_OF_UNITS = ("unit", "A", "B", "m", "sigmoid")


def _hearing(kept: list[Any]) -> Any:
    """A hook that keeps the hidden vector of a feed-forward module's call."""

    def hook(_module: Any, _given: Any, out: Any) -> None:
        kept.append(out[0])

    return hook


def _source(model: Transformer, component: Component) -> tuple[int, str, int]:
    """Where in a pass a component's value is: the layer, which tensor, and the column of it with heads flattened."""
    config = model.config
    width, layout = config.d_head, config.feed_forward
    match component:
        case Head(layer, head):
            return layer, "head", head
        case Unit(layer, unit):
            return layer, "unit" if unit < layout.n_bounded else "plain", unit
        case Operand(layer, pair, side):
            return layer, side, pair
        case QuantifierOperand(layer, unit):
            return layer, "m", unit - layout.quantifiers.start
        case HeadOperand(layer, head, pair, side):
            return layer, "head_a" if side == "A" else "head_b", head * (width // 2) + pair
        case Channel(layer, head, channel) if config.is_bounded(layer, head):
            return layer, "channel", head * width + channel
        case Channel(layer, head, channel):
            return layer, "linear", head * width + channel
    read_of(config, component)
    raise AssertionError("unreachable")
