"""A model larger than its card: the layers' weights wait on the CPU, and each is on the card while it runs.

    waiting = Waiting(layers, device)      # from now on a layer's weights come before it runs and go after it
    waiting.end()                          # they stay on the CPU, as they were

Only what a layer owns moves; embeddings, final norm and unembedding stay on the card, where logits are made. The
numbers are the same to the last bit: nothing but the place of a tensor changes. What is on the card at any moment are
the parts outside the layers, one layer, and whatever write matrix a reading asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Weight:
    """One parameter of a module: where it hangs, its numbers on the CPU, and what stands there while it waits."""

    module: nn.Module
    name: str
    kept: Tensor
    empty: nn.Parameter

    def put(self, tensor: Tensor) -> None:
        self.module._parameters[self.name] = nn.Parameter(tensor, requires_grad=False)


class Waiting:
    """Layers that run on a device which does not hold their weights between two runs."""

    def __init__(self, layers: Iterable[nn.Module], device: torch.device) -> None:
        self.device = device
        self._weights: list[_Weight] = []
        self._hooks: list[Any] = []
        for layer in layers:
            here = [_weight(module, name) for module, name in _owned(layer)]
            for module in layer.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = buffer.to(device)
            self._hooks += [
                layer.register_forward_pre_hook(lambda *_, here=here: self._come(here)),
                # Also after an error: a card that ran out of memory gets it back.
                layer.register_forward_hook(lambda *_, here=here: _go(here), always_call=True),
            ]
            self._weights += here
            _go(here)

    @property
    def n_bytes(self) -> int:
        """What waits on the CPU, in bytes."""
        return sum(weight.kept.numel() * weight.kept.element_size() for weight in self._weights)

    def end(self) -> None:
        """Hang the weights back where they were."""
        for hook in self._hooks:
            hook.remove()
        for weight in self._weights:
            weight.put(weight.kept)

    def _come(self, weights: Sequence[_Weight]) -> None:
        for weight in weights:
            weight.put(weight.kept.to(self.device, non_blocking=True))


def move_rest(model: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> None:
    """Move what a model has outside its layers to a device, in place; tied parameters stay tied."""
    inside = {id(module) for layer in layers for module in layer.modules()}
    for module in model.modules():
        if id(module) in inside:
            continue
        for parameter in module._parameters.values():
            if parameter is not None and not parameter.is_meta:
                parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def layers_of(model: nn.Module, count: int) -> nn.ModuleList:
    """The list of a plain Hugging Face model's layers, which is the first that has so many."""
    return next(part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == count)


def _owned(layer: nn.Module) -> list[tuple[nn.Module, str]]:
    return [
        (module, name)
        for module in layer.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and not parameter.is_meta
    ]


def _weight(module: nn.Module, name: str) -> _Weight:
    kept: Any = module._parameters[name]
    return _Weight(
        module, name, kept.detach(), nn.Parameter(torch.empty_like(kept, device="meta"), requires_grad=False)
    )


def _go(weights: Sequence[_Weight]) -> None:
    for weight in weights:
        weight.module._parameters[weight.name] = weight.empty
