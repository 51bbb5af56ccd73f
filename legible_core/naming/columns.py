"""A layer's names as columns, for tables and for the search index; imports no torch.

    table = columns(names, 5)
    table.components.ids[7]          # "L5.h0.c7"; channels of bounded heads first, then every unit
    table.operands.label[3]          # "determiner", or None where no class passed the test

An ordinary model has no operands: there each unit stands among them as its own, with its detect list, the share of
tokens on which it is above 0 for `on`, and no class.

The same facts as `Names.component` and `Names.operand` give one by one, for a whole layer at once: 3,072 units take
milliseconds, where one object for each would take the better part of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from legible_core.legibility import CODES, Legibility
from legible_core.naming.names import Names
from legible_core.naming.plain import PlainValues
from legible_core.units import Channel, Component, Unit

Floats = NDArray[np.float64]

ALIVE = (0.005, 0.2)  # an operand that is ON on this share of the tokens can be named; see docs/names.md
AGREEMENT = 0.8


@dataclass(frozen=True, eq=False)
class OperandColumns:
    """One entry an operand, in the order of `ModelConfig.operands`; NaN where a figure is undefined.

    label: the class, or `never`, `always`, `constant 0.40`; None where no class passed the test. shown: what a formula
    says of it: its label, else its leading tokens quoted, else its id.
    """

    ids: tuple[str, ...]
    components: tuple[Component, ...]
    label: tuple[str | None, ...]
    shown: tuple[str, ...]
    cls: tuple[str, ...]
    on: Floats
    crisp: Floats
    agreement: Floats


@dataclass(frozen=True, eq=False)
class ComponentColumns:
    """One entry a component: the bounded heads' channels, head by head, then every unit, from `first_unit` on.

    a, b: places of its operands in the layer's `OperandColumns`, -1 where it has none. promotes: the class label of its
    promote list, or None; shown: the label, else the leading tokens quoted, else "". on: its own; crisp, agreement: the
    least of its operands'. half_life: NaN unless it is a quantifier. cls: None for what has no rails.
    """

    ids: tuple[str, ...]
    first_unit: int
    kind: tuple[str, ...]
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    promotes: tuple[str | None, ...]
    shown: tuple[str, ...]
    cls: tuple[str | None, ...]
    on: Floats
    crisp: Floats
    agreement: Floats
    nameable: NDArray[np.bool_]
    half_life: Floats


@dataclass(frozen=True, eq=False)
class Columns:
    operands: OperandColumns
    components: ComponentColumns


def columns(names: Names, layer: int) -> Columns:
    """The columns of one layer, 0 <= layer < n_layers."""
    operands = _operands(names, layer) if names.plain is None else _units(names, names.plain, layer)
    return Columns(operands, _components(names, layer, operands))


def operand_range(names: Names, layer: int) -> slice:
    """Where a layer's operands stand in the arrays; its units, of an ordinary model."""
    if names.plain is not None:
        return component_range(names, layer)
    return slice(*(int(x) for x in names._operand_start[layer : layer + 2]))


def component_range(names: Names, layer: int) -> slice:
    """Where a layer's components stand in the arrays."""
    return slice(*(int(x) for x in names._component_start[layer : layer + 2]))


def list_lengths(names: Names) -> NDArray[np.int64]:
    """How many tokens the detect list of each operand holds, over all layers."""
    side = "detect" if names.plain is None else "active"
    offsets: NDArray[np.int64] = names._arrays[f"{side}.offsets"].astype(np.int64)
    return offsets[1:] - offsets[:-1]


def lifts(names: Names, layer: int, leading: int) -> tuple[NDArray[np.int64], ...]:
    """A layer's leading detect tokens: (operand within the layer, rank from 1, token, lift, how often it was ON)."""
    of, where = names._arrays, operand_range(names, layer)
    side, counted = ("detect", "on") if names.plain is None else ("active", "count")
    offsets = of[f"{side}.offsets"][where.start : where.stop + 1].astype(np.int64)
    lengths = np.minimum(np.diff(offsets), leading)
    operand = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = offsets[:-1][operand] + place
    token, count = of[f"{side}.tokens"][entry].astype(np.int64), of[f"{side}.{counted}"][entry].astype(np.int64)
    base = (of["operand.base"][where] if names.plain is None else names.plain.base(where)).astype(np.float64)[operand]
    share = count / np.maximum(of["seen"][token].astype(np.float64), 1.0)
    lift = np.divide(share, base, out=np.full_like(share, np.inf), where=base > 0)
    return operand, place + 1, token, lift, count


def promotions(names: Names, layer: int, side: str = "promote") -> tuple[NDArray[np.int64], ...]:
    """A layer's promote lists (`side` "promote", or "rare"): (component within it, rank from 1, token, weight)."""
    where = component_range(names, layer)
    tokens, weights = (names._arrays[f"{side}.{name}"][where] for name in ("tokens", "weights"))
    rows, width = tokens.shape
    component, rank = np.repeat(np.arange(rows), width), np.tile(np.arange(1, width + 1), rows)
    return component, rank, tokens.reshape(-1).astype(np.int64), weights.reshape(-1).astype(np.float64)


# ---- details ---------------------------------------------------------------------------------------------------------


def _operands(names: Names, layer: int) -> OperandColumns:
    of, where = names._arrays, operand_range(names, layer)
    components = tuple(names.config.operands(layer))
    chosen = of["operand.label.class"][where].tolist()
    codes = names._operand_codes[where].tolist()
    means = of["operand.mean"][where].tolist()
    offsets = of["detect.offsets"][where.start : where.stop + 1].tolist()
    tokens = of["detect.tokens"]
    label: list[str | None] = []
    shown: list[str] = []
    for index, component in enumerate(components):
        said: str | None = None
        if codes[index] == 0:
            mean = means[index]
            said = "never" if mean < 0.1 else "always" if mean > 0.9 else f"constant {mean:.2f}"
        elif chosen[index] >= 0:
            said = names._classes[chosen[index]]
        label.append(said)
        leading = tokens[offsets[index] : min(offsets[index] + 3, offsets[index + 1])].tolist()
        shown.append(said or quoted(names, leading) or str(component))
    return OperandColumns(
        ids=tuple(str(component) for component in components),
        components=components,
        label=tuple(label),
        shown=tuple(shown),
        cls=tuple(str(CODES[code]) for code in codes),
        on=of["operand.on"][where].astype(np.float64),
        crisp=of["operand.crisp"][where].astype(np.float64),
        agreement=of["operand.agreement"][where].astype(np.float64),
    )


def _units(names: Names, plain: PlainValues, layer: int) -> OperandColumns:
    """An ordinary model's units in the place of operands."""
    of, where = names._arrays, component_range(names, layer)
    units = tuple(Unit(layer, unit) for unit in range(names.config.feed_forward.d_ff))
    label = tuple(names._classes[index] if index >= 0 else None for index in of["unit.label.class"][where].tolist())
    offsets, tokens = of["active.offsets"][where.start : where.stop + 1].tolist(), of["active.tokens"]
    leading = (tokens[start : min(start + 3, stop)].tolist() for start, stop in pairwise(offsets))
    return OperandColumns(
        ids=tuple(str(unit) for unit in units),
        components=units,
        label=label,
        shown=tuple(said or quoted(names, found) for said, found in zip(label, leading, strict=True)),
        cls=("",) * len(units),
        on=plain.column(layer, "above"),
        crisp=np.full(len(units), np.nan),
        agreement=plain.column(layer, "agreement"),
    )


def _components(names: Names, layer: int, operands: OperandColumns) -> ComponentColumns:
    of, where, config = names._arrays, component_range(names, layer), names.config
    channels = [
        Channel(layer, head, channel)
        for head in range(config.attention.n_special[layer])
        for channel in range(config.d_head)
    ]
    components: list[Component] = [*channels, *(Unit(layer, unit) for unit in range(config.feed_forward.d_ff))]
    place = {component: index for index, component in enumerate(operands.components)}
    read = [names._reads(component) for component in components]
    if names.plain is not None:
        read = [(kind, (component,)) for component, (kind, _) in zip(components, read, strict=True)]
    a = np.array([place[found[0]] if found else -1 for _, found in read], dtype=np.int64)
    b = np.array([place[found[1]] if len(found) > 1 else -1 for _, found in read], dtype=np.int64)
    chosen = of["component.label.class"][where].tolist()
    promotes = tuple(names._classes[index] if index >= 0 else None for index in chosen)
    leading = of["promote.tokens"][where][:, :3].tolist()
    codes = names._component_codes[where]
    alive = (np.array(operands.cls) != str(Legibility.CONSTANT)) & _between(operands.on, ALIVE)
    alive &= names.plain is None  # nothing ordinary is ever ON
    agreement = _least(operands.agreement, a, b)
    half_life = np.full(len(components), np.nan)
    layout = config.feed_forward
    decay = of["decay"][layer * layout.n_quantifiers : (layer + 1) * layout.n_quantifiers].astype(np.float64)
    with np.errstate(divide="ignore"):
        known = np.where(decay >= 1.0, np.inf, np.where(decay > 0, np.log(0.5) / np.log(np.maximum(decay, 0.0)), 0.0))
    start = len(channels) + layout.quantifiers.start
    half_life[start : start + layout.n_quantifiers] = known
    undefined = codes < 0
    return ComponentColumns(
        ids=tuple(str(component) for component in components),
        first_unit=len(channels),
        kind=tuple(kind for kind, _ in read),
        a=a,
        b=b,
        promotes=promotes,
        shown=tuple(label or quoted(names, tokens) for label, tokens in zip(promotes, leading, strict=True)),
        cls=tuple(None if code < 0 else str(CODES[code]) for code in codes.tolist()),
        on=np.where(undefined, np.nan, of["component.on"][where].astype(np.float64)),
        crisp=_least(operands.crisp, a, b),
        agreement=agreement,
        nameable=_both(alive, a, b) & (agreement >= AGREEMENT),
        half_life=half_life,
    )


def quoted(names: Names, tokens: list[int]) -> str:
    """The leading tokens in quotes, which stand where no class label does; "" for none."""
    return ", ".join(f"“{names.display(token)}”" for token in tokens)


def _between(values: Floats, ends: tuple[float, float]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (values >= ends[0]) & (values <= ends[1])
    return found


def _least(values: Floats, a: NDArray[np.int64], b: NDArray[np.int64]) -> Floats:
    """The least of a component's operands' values; NaN where it has none or one of them is undefined."""
    padded = np.append(values, np.nan)
    least: Floats = np.where(b >= 0, np.minimum(padded[a], padded[b]), padded[a])
    return least


def _both(flags: NDArray[np.bool_], a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    padded = np.append(flags, False)
    found: NDArray[np.bool_] = padded[a] & ((b < 0) | padded[b])
    return found
