"""The read rows of a model's feed-forward layers, and the states that meet them; legible and ordinary models alike.

    source = rows_of(model)
    measure_native(source.model, ids, ...)              # the layer-native token table
    for group in source.groups(layer): ...              # rows, biases, and the function that makes the operand
    source.substituted(contexts, candidates)            # every layer's input with each candidate at the end of each

A gated unit act(gate)·up has two rows and no single one, so it is read as the two operands that it is made of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from legible_core.accounting.passes import LONGEST
from legible_core.editing.native import entering
from legible_core.model.activations import FUNCTIONS
from legible_core.model.attention import KeyValues
from legible_core.model.quantifiers import QuantifierState
from legible_core.model.transformer import Cache, LayerCache, Transformer
from legible_core.naming.observe import Ints

Kind: TypeAlias = Literal["plain", "A", "B", "m", "gate", "up"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AT_ONCE = 64  # texts of an ordinary model that run at once


@dataclass(frozen=True)
class RowGroup:
    """Rows of one kind in one layer: (r, d) float32, biases (r,), and the activation that makes the operand."""

    kind: Kind
    rows: Tensor
    bias: Tensor | None
    function: Callable[[Tensor], Tensor]


def rows_of(model: Any, begin: int | None = None) -> LegibleRows | OrdinaryRows:
    """The rows of a model; `begin`: the token that an ordinary model's texts begin with."""
    return LegibleRows(model) if isinstance(model, Transformer) else OrdinaryRows(model, begin)


class LegibleRows:
    """Of a `Transformer`."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def groups(self, layer: int) -> Iterator[RowGroup]:
        """The read rows of a feed-forward layer, kind by kind."""
        part: Any = self.model.layers[layer].feed_forward
        layout = self.model.config.feed_forward
        names: list[tuple[Kind, str, int]] = [
            ("A", "pair_a", layout.n_pairs), ("B", "pair_b", layout.n_pairs),
            ("m", "quantifier", layout.n_quantifiers), ("plain", layout.activation, layout.n_plain),
        ]  # fmt: skip
        for kind, name, count in names:
            if count:
                bias = getattr(part, f"{name}_bias", None)
                function = FUNCTIONS[layout.activation] if kind == "plain" else torch.sigmoid
                yield RowGroup(kind, getattr(part, name).float(), None if bias is None else bias.float(), function)

    @torch.no_grad()
    def substituted(self, contexts: Ints, candidates: Ints) -> list[Tensor]:
        """Each layer's normed feed-forward input with every candidate at the end of every context: L of (c, v, d).

        contexts: (c, t) what stands before. One forward of each context, continued by all candidates at once.
        """
        model = self.model
        device = model.token_embedding.device
        tokens = torch.as_tensor(candidates, device=device)[:, None]
        found: list[list[Tensor]] = [[] for _ in model.layers]
        for context in torch.as_tensor(contexts, device=device):
            cache = model.new_cache()
            model.residual(context[None], cache=cache)
            with entering(model) as states:
                model.residual(tokens, cache=_widened(cache, len(tokens)))
            for layer, state in enumerate(states):
                found[layer].append(state[:, 0])
        return [torch.stack(states) for states in found]


class OrdinaryRows:
    """Of an ordinary model. `model` is what `measure_native` needs of one, over whole batches of equal rows.

    The states are the inputs of the linear maps that read them, so they are behind whatever norm the family has.
    """

    def __init__(self, model: Any, begin: int | None = None) -> None:
        self._model, self._begin = model, begin
        self._blocks = [block.mlp for block in model.bridge.blocks]
        first = begin is not None
        self.model: Any = SimpleNamespace(
            config=dataclasses.replace(model.config, context=min(model.config.context, LONGEST) - first),
            token_embedding=model.token_embedding,
            layers=[SimpleNamespace(feed_forward_norm=_Entry(getattr(mlp, "in"), int(first))) for mlp in self._blocks],
            residual=self._run,
        )

    def groups(self, layer: int) -> Iterator[RowGroup]:
        """The read rows of a feed-forward layer, kind by kind."""
        from transformers.activations import ACT2FN

        mlp = self._blocks[layer]
        function = ACT2FN[self._model.config.act]
        gate = getattr(mlp, "gate", None)
        if gate is not None:
            yield RowGroup("gate", *_reading(gate), function)
            yield RowGroup("up", *_reading(getattr(mlp, "in")), lambda z: z)
        else:
            yield RowGroup("plain", *_reading(getattr(mlp, "in")), function)

    @torch.no_grad()
    def substituted(self, contexts: Ints, candidates: Ints) -> list[Tensor]:
        """As of a legible model; every text is read from its start."""
        device = self._model.token_embedding.device
        tokens = torch.as_tensor(candidates, device=device)
        found: list[list[Tensor]] = [[] for _ in self._blocks]
        for context in torch.as_tensor(contexts, device=device):
            parts: list[list[Tensor]] = [[] for _ in self._blocks]
            for some in tokens.split(AT_ONCE):
                with entering(self.model) as states:
                    self._run(torch.cat([context.expand(len(some), -1), some[:, None]], 1))
                for layer, state in enumerate(states):
                    parts[layer].append(state[:, -1])
            for layer, states in enumerate(parts):
                found[layer].append(torch.cat(states))
        return [torch.stack(states) for states in found]

    @torch.no_grad()
    def _run(self, ids: Tensor) -> None:
        """One pass of rows (b, t) of equal length, the beginning put before each."""
        if self._begin is not None:
            ids = torch.nn.functional.pad(ids, (1, 0), value=self._begin)
        self._model.bridge.original_model.base_model(input_ids=ids, use_cache=False)


class _Entry:
    """A linear map as `entering` sees a norm: what goes into it stands for what comes out of a norm."""

    def __init__(self, part: Any, skip: int) -> None:
        self._part, self._skip = part, skip

    def register_forward_hook(self, take: Callable[[Any, Any, Tensor], None]) -> Any:
        def seen(_module: Any, given: tuple[Tensor, ...]) -> None:
            take(None, None, given[0][:, self._skip :].float())

        return self._part.original_component.register_forward_pre_hook(seen)


def _reading(part: Any) -> tuple[Tensor, Tensor | None]:
    """Rows (f, d) and biases (f,) of a linear map, float32."""
    from transformers.pytorch_utils import Conv1D

    module = part.original_component
    weight, bias = module.weight.detach().float(), getattr(module, "bias", None)
    return weight.T if isinstance(module, Conv1D) else weight, None if bias is None else bias.detach().float()


def _widened(cache: Cache, count: int) -> Cache:
    """The cache of one text, for `count` continuations of it at once."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.expand(count, *tensor.shape[1:])

    layers = []
    for layer in cache.layers:
        keys, values, state = layer.attention.keys, layer.attention.values, layer.quantifiers
        held = KeyValues(None if keys is None else wide(keys), None if values is None else wide(values))
        if state is not None:
            state = QuantifierState(wide(state.existential), wide(state.total), wide(state.count))
        layers.append(LayerCache(held, state))
    return Cache(layers, cache.length)
