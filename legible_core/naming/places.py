"""Where each operand and component stands in the arrays of a names or contexts file; imports no torch.

Operands stand in the order of `ModelConfig.operands`, layer by layer. Components of a layer are the bounded heads'
channels, head by head, then every unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from legible_core.adapters.config import OrdinaryConfig
from legible_core.config import ModelConfig
from legible_core.units import Channel, Component, HeadOperand, Operand, QuantifierOperand, Unit


def config_of(data: Any) -> ModelConfig:
    """The config that a names or contexts file holds, of a legible checkpoint or an ordinary model."""
    ordinary = isinstance(data, dict) and data.get("format") == "ordinary"
    return OrdinaryConfig.from_json(data) if ordinary else ModelConfig.from_json(data)


def starts(config: ModelConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each layer's operands and components start in the arrays; the last entry is their number."""
    layout = config.feed_forward
    channels = np.array(config.attention.n_special, np.int64) * config.d_head
    operands = channels + layout.n_operands
    components = channels + layout.d_ff
    return (
        np.concatenate([[0], np.cumsum(operands)]).astype(np.int64),
        np.concatenate([[0], np.cumsum(components)]).astype(np.int64),
    )


def operand_within(config: ModelConfig, component: Component) -> int | None:
    """The place of an operand (membership channels and sigmoid units are their own); None for anything else."""
    layer = getattr(component, "layer", -1)
    if not 0 <= layer < config.n_layers:
        return None
    heads = config.attention.n_special[layer]
    base, half, pairs = heads * config.d_head, config.d_head // 2, config.feed_forward.n_pairs
    value, quantifiers = config.attention.value, config.feed_forward.quantifiers
    match component:
        case Channel(_, head, channel) if value == "membership" and head < heads and channel < config.d_head:
            return head * config.d_head + channel
        case HeadOperand(_, head, pair, side) if value == "boolean" and head < heads and pair < half:
            return head * config.d_head + (pair if side == "A" else half + pair)
        case Operand(_, pair, side) if pair < pairs:
            return base + (pair if side == "A" else pairs + pair)
        case QuantifierOperand(_, unit) if quantifiers.start <= unit < quantifiers.stop:
            return base + 2 * pairs + unit - quantifiers.start
        case Unit(_, unit) if config.feed_forward.n_named <= unit < config.feed_forward.n_bounded:
            return base + 2 * pairs + unit - quantifiers.start
    return None


def component_within(config: ModelConfig, component: Component) -> int | None:
    """The place of a bounded head's channel or a unit among its layer's components; None for anything else."""
    layer = getattr(component, "layer", -1)
    if not 0 <= layer < config.n_layers:
        return None
    heads = config.attention.n_special[layer]
    match component:
        case Channel(_, head, channel) if head < heads and channel < config.d_head:
            return head * config.d_head + channel
        case Unit(_, unit) if unit < config.feed_forward.d_ff:
            return heads * config.d_head + unit
    return None
