"""The papers' tables and figures of a checkpoint, as tables of numbers, from its names alone; imports no torch.

    for table in tables(names):
        table.id, table.title, table.columns, table.rows

    value-channels   "Legible-by-Construction" table 1: crispness and ON of the heads' operands, classes of the values
    operands         its table 5: the feed-forward layer's operands
    selective        its figures 2a and 3: both surfaces by layer
    composition      its figure 2b: SELECTIVE, FUZZY, CONSTANT of each surface
    heads            its figure 4, left: the SELECTIVE share of every head
    deep-heads       its figure 4, right: deep heads with a readily nameable channel, by category
    half-lives       half-lives of the quantifiers; their medians and the share of latches are `memory(names)`

Shares are between 0 and 1. What is undefined (linear heads, units without rails) is None, never 0, and a table without
anything defined is left out. No such figure means anything without the quality of the same checkpoint on the same text:
`Names.quality`, which whoever shows a table puts beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from legible_core.legibility import Legibility
from legible_core.naming.names import Names
from legible_core.naming.records import ComponentName, OperandName
from legible_core.units import Unit, parse

Cell = str | int | float | None

# A latch remembers for this many tokens or more.
LATCH = 32.0
EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LATCH, 64.0, 128.0, 256.0, 1024.0, math.inf)
# The panel of figure 4: what a category holds of the labels' classes.
CATEGORIES = {
    "modality": ("modal", "certainty"),
    "time": ("time", "frequency", "age"),
    "place": ("place", "location", "nationality"),
    "quantity": ("number", "quantity", "size", "money"),
    "action verbs": ("action verb", "motion verb", "posture verb", "begin or end verb", "verb of having"),
    "cognition and speech": ("cognition verb", "perception verb", "speech verb", "emotion verb", "mind", "feeling"),
    "people": ("person name", "title", "kinship", "person", "body part"),
    "comparison": ("comparative", "superlative", "degree word", "sameness or difference"),
    "things": ("animal", "nature", "clothing", "food", "furniture", "government", "war", "religion", "writing", "work"),
}
MIN_AGREEMENT = 0.8
SHOWN = 5


@dataclass(frozen=True)
class Table:
    """One figure's numbers. `shares` are the columns to show as per cent; `note` says what is counted."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shares: frozenset[str]
    note: str

    def records(self) -> list[dict[str, Cell]]:
        """Rows by the columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


CLASSES = ("SELECTIVE", "CONSTANT", "FUZZY")


def tables(names: Names) -> list[Table]:
    """Every table of which something is defined."""
    made = (selective, value_channels, operands, composition, heads, deep_heads, half_lives)
    return [table for table in (make(names) for make in made) if table is not None]


def value_channels(names: Names) -> Table | None:
    """Table 1: crispness and ON of the bounded heads' operands, the three classes of their combined values."""
    columns = ("layer", "value channels", "operands", "operands crisp", "operands ON", *CLASSES)
    rows = []
    for name, layer in _layers(names):
        value, atoms = layer.get("value") or {}, layer.get("head_operands") or {}
        classes = [value.get(key) for key in ("selective", "constant", "fuzzy")]
        counts = value.get("channels"), atoms.get("channels")
        rows.append((name, *counts, atoms.get("crisp"), atoms.get("on"), *classes))
    note = "Crisp and ON are shares of tokens and operands; the classes are shares of the channels that W_O reads."
    return _table("value-channels", "Attention: value channels by layer", columns, rows, columns[3:], note)


def operands(names: Names) -> Table | None:
    """Table 5: all of it on the feed-forward layer's operands."""
    columns = ("layer", "operands", "crisp", "ON", *CLASSES)
    keys = ("channels", "crisp", "on", "selective", "constant", "fuzzy")
    rows = [(name, *((layer.get("operands") or {}).get(key) for key in keys)) for name, layer in _layers(names)]
    note = "Crisp and ON are shares of tokens and operands; the classes are shares of operands."
    return _table("operands", "Feed-forward: operands by layer", columns, rows, columns[2:], note)


def selective(names: Names) -> Table | None:
    """Figures 2a and 3: SELECTIVE on both surfaces by layer, and how crisp the feed-forward operands are."""
    columns = ("layer", "value channels SELECTIVE", "operands SELECTIVE", "operands crisp")
    rows = []
    for name, layer in _layers(names, pooled=False):
        value, atoms = layer.get("value") or {}, layer.get("operands") or {}
        rows.append((name, value.get("selective"), atoms.get("selective"), atoms.get("crisp")))
    note = "Value channels of the attention; operands of the feed-forward layer."
    return _table("selective", "Both surfaces by layer", columns, rows, columns[1:], note)


def composition(names: Names) -> Table | None:
    """Figure 2b: what the channels and operands of the whole model are."""
    columns = ("surface", "channels", *CLASSES)
    pooled = names.legibility.get("all") or {}
    surfaces = (
        ("attention values", "value"),
        ("attention operands", "head_operands"),
        ("feed-forward operands", "operands"),
    )
    rows = []
    for name, key in surfaces:
        row = pooled.get(key) or {}
        if row:
            rows.append((name, *(row.get(field) for field in ("channels", "selective", "constant", "fuzzy"))))
    return _table("composition", "Composition", columns, rows, columns[2:], "Over all layers.")


def heads(names: Names) -> Table | None:
    """Figure 4, left: the SELECTIVE share of each bounded head's value channels."""
    shares = [list(layer.get("heads") or []) for _, layer in _layers(names, pooled=False)]
    if not any(share is not None for row in shares for share in row):
        return None
    columns = ("layer", *(f"h{head}" for head in range(len(shares[0]))))
    rows = [(f"L{layer}", *row) for layer, row in enumerate(shares)]
    note = "A head with a linear value has no rails, so it is undefined."
    return _table("heads", "SELECTIVE share of each head's value channels", columns, rows, columns[1:], note)


def deep_heads(names: Names) -> Table | None:
    """Figure 4, right: of each head of the deep half the channel that is nameable best, where one is."""
    columns = ("category", "head", "tokens", "label", "agreement", "ON", "channel", "operand")
    order = {category: number for number, category in enumerate(CATEGORIES)}
    found = sorted(_nameable_heads(names), key=lambda row: (order[str(row[0])], -float(row[4] or 0.0), str(row[1])))
    note = (
        f"One SELECTIVE channel a head, the deeper half of the layers: its operand's label is a content category and "
        f"agreement is {MIN_AGREEMENT} or more. The head's other channels may be functional, and other heads may be "
        "nameable by another threshold."
    )
    return _table("deep-heads", "Readily nameable deep heads", columns, found, ("agreement", "ON"), note)


def half_lives(names: Names) -> Table | None:
    """How many quantifiers have which half-life."""
    found = decays(names)
    if not any(found.values()):
        return None
    columns = ("half-life from", "to", "∃ existential", "% proportion")
    rows = [
        (low, None if math.isinf(high) else high, *(sum(low <= x < high for x in part) for part in found.values()))
        for low, high in pairwise(EDGES)
    ]
    # An infinite half-life (a decay of 1) stands in the last row.
    endless = [sum(math.isinf(x) for x in part) for part in found.values()]
    rows[-1] = (*rows[-1][:2], *(int(n or 0) + more for n, more in zip(rows[-1][2:], endless, strict=True)))
    note = f"In tokens. A latch has a half-life of {LATCH:g} tokens or more; every quantifier starts as one."
    return _table("half-lives", "Half-lives of the quantifiers", columns, rows, (), note)


def memory(names: Names) -> dict[str, Any] | None:
    """Median half-life in tokens and share of latches, of all quantifiers and of each sort; None without any."""
    found = decays(names)
    every = [x for part in found.values() for x in part]
    if not every:
        return None
    return {sort: remembering(part) for sort, part in (("all", every), *found.items()) if part}


def remembering(half_lives: Sequence[float]) -> dict[str, Any] | None:
    """How many quantifiers, their median half-life in tokens and the share of latches; None without any."""
    if not half_lives:
        return None
    latches = sum(x >= LATCH for x in half_lives) / len(half_lives)
    return {"quantifiers": len(half_lives), "median": median(half_lives), "latches": latches}


def decays(names: Names) -> dict[str, list[float]]:
    """Every quantifier's half-life in tokens, by sort."""
    layout = names.config.feed_forward
    found: dict[str, list[float]] = {"existential": [], "proportion": []}
    for layer in range(names.config.n_layers):
        for part, units in zip(found.values(), (layout.existentials, layout.proportions), strict=True):
            part.extend(names.component(Unit(layer, u)).half_life or 0.0 for u in range(units.start, units.stop))
    return found


# ---- the panel of deep heads -----------------------------------------------------------------------------------------


def _nameable_heads(names: Names) -> Iterator[tuple[Cell, ...]]:
    config = names.config
    where = {label: category for category, labels in CATEGORIES.items() for label in labels}
    for layer in range(config.n_layers // 2, config.n_layers):
        for head in range(config.attention.n_special[layer]):
            best: tuple[float, ComponentName, OperandName] | None = None
            for channel in names.channels(layer, head):
                if channel.cls != Legibility.SELECTIVE:
                    continue
                # A∩B and A∖B are ON only where A is: what the channel detects is A, narrowed by B.
                operand = names.operand(parse(channel.operands[0]), SHOWN)
                label, agreement = operand.label, operand.agreement or 0.0
                named = label is not None and label.kind == "class" and label.text in where
                if named and agreement >= MIN_AGREEMENT and (best is None or agreement > best[0]):
                    best = (agreement, channel, operand)
            if best is not None:
                agreement, channel, operand = best
                assert operand.label is not None
                tokens = " ".join(token.display for token in operand.detect[:SHOWN])
                category = where[operand.label.text]
                place = f"L{layer}.h{head}"
                yield (category, place, tokens, operand.label.text, agreement, operand.on, channel.id, operand.id)


def _layers(names: Names, pooled: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, layer in enumerate(names.legibility.get("layers") or []):
        yield f"L{index}", layer
    if pooled:
        yield "all", names.legibility.get("all") or {}


def _table(
    id: str, title: str, columns: tuple[str, ...], rows: list[Any], shares: tuple[str, ...], note: str
) -> Table | None:
    """The table, or None when no number in it is defined."""
    if not any(cell is not None for row in rows for cell in row[1:]):
        return None
    return Table(id, title, columns, tuple(tuple(row) for row in rows), frozenset(shares), note)
