"""All units of a layer as columns that the layer's page sorts, filters and cuts into pages; imports no torch.

    table = layer_table(checkpoint, names, 5)
    places = table.chosen(Filters(kind="difference", cls="SELECTIVE"), sort="agreement", down=True)
    table.rows(places[:100])

A filter is a field of `Filters` and a line in `LayerTable._passing`; what is asked of thousands of units is a
comparison of arrays, and only the rows that are shown become objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.pages.formula import GUESS, Piece, tokens
from app.pages.named import Row
from legible_core.config import ModelConfig
from legible_core.legibility import Legibility
from legible_core.naming.columns import Columns, columns
from legible_core.naming.names import Names
from legible_core.naming.records import mostly_on
from legible_core.units import GLYPHS, KINDS, PLAIN_NAMES, Unit

Sort: TypeAlias = Literal["unit", "crisp", "on", "kind", "label", "agreement", "half_life", "mean", "most", "above"]
Range: TypeAlias = tuple[str, float | None, float | None]
Floats: TypeAlias = NDArray[np.float64]
PLAIN: tuple[Sort, ...] = ("mean", "most", "above")  # what a scan measures of an ordinary model's units


@dataclass(frozen=True, slots=True)
class Filters:
    """What a unit must be to be shown; None leaves it open. `label`: a class on either side; `text`: part of a name.

    `units`: by number. `ranges`: of an ordinary model's units, (statistic, at least, at most).
    """

    kind: str | None = None
    cls: str | None = None
    nameable: bool = False
    label: str | None = None
    above: float | None = None
    below: float | None = None
    text: str = ""
    units: frozenset[int] | None = None
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, eq=False)
class LayerTable:
    """`sides`: the labels of A, B and the promote list of each unit. NaN is undefined and stands last in any order."""

    layer: int
    kind: tuple[str, ...]
    cls: tuple[str | None, ...]
    formula: tuple[tuple[Piece, ...], ...]
    label: tuple[str | None, ...]
    sides: tuple[frozenset[str], ...]
    text: tuple[str, ...]
    values: dict[str, Floats]
    nameable: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)

    def chosen(self, filters: Filters, sort: Sort, *, down: bool) -> list[int]:
        """The units that pass, in order; equal ones by their number."""
        places = np.flatnonzero(self._passing(filters))
        # What a table lacks is asked for by an address of another model's: nothing is put in order by it.
        values = self.values.get(sort, self.values["unit"])[places]
        order = np.argsort(-values if down else values, kind="stable")  # NaN sorts last either way
        return [int(place) for place in places[order]]

    def rows(self, places: Iterable[int]) -> tuple[Row, ...]:
        return tuple(self._row(place) for place in places)

    def counts(self) -> tuple[Counter[str | None], Counter[str], int]:
        """Units by class, by kind, and how many are nameable."""
        return Counter(self.cls), Counter(self.kind), int(self.nameable.sum())

    def labels(self) -> list[tuple[str, int]]:
        """The labels of this layer with the number of units that have them on either side, the most frequent first."""
        found = Counter(label for sides in self.sides for label in sides)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))

    def _passing(self, filters: Filters) -> NDArray[np.bool_]:
        passing = np.ones(len(self), dtype=np.bool_)
        if filters.kind is not None:
            passing &= self.values["kind"] == KINDS.index(filters.kind)
        if filters.cls is not None:
            passing &= _flags(cls == filters.cls for cls in self.cls)
        if filters.nameable:
            passing &= self.nameable
        if filters.label is not None:
            wanted = filters.label.casefold()
            passing &= _flags(wanted in sides for sides in self.sides)
        half_life = self.values["half_life"]
        if filters.above is not None:
            passing &= half_life >= filters.above
        if filters.below is not None:
            passing &= half_life <= filters.below
        for name, low, high in filters.ranges:
            values = self.values.get(name, np.full(len(self), np.nan))
            passing &= (low is None) | (values >= (-np.inf if low is None else low))
            passing &= (high is None) | (values <= (np.inf if high is None else high))
        if filters.units is not None:
            passing &= _flags(unit in filters.units for unit in range(len(self)))
        if filters.text:
            part = filters.text.casefold()
            passing &= _flags(part in text for text in self.text)
        return passing

    def _row(self, place: int) -> Row:
        crisp, on, agreement, half_life, *plain = (
            None if name not in self.values or np.isnan(self.values[name][place]) else float(self.values[name][place])
            for name in ("crisp", "on", "agreement", "half_life", *PLAIN)
        )
        kind = self.kind[place]
        return Row(
            str(Unit(self.layer, place)), place, kind, GLYPHS[kind], self.formula[place], self.label[place],
            self.cls[place], crisp, on, agreement, half_life, bool(self.nameable[place]), *plain,
        )  # fmt: skip


def layer_table(config: ModelConfig, names: Names | None, layer: int) -> LayerTable:
    """The table of a layer; without names it holds what the config alone says."""
    return _named(names, layer) if names is not None else _bare(config, layer)


@lru_cache(maxsize=24)
def _named(names: Names, layer: int) -> LayerTable:
    table = columns(names, layer)
    of = table.components
    units = range(of.first_unit, len(of.ids))
    formulas = tuple((_formula if names.plain is None else _guess)(table, place) for place in units)
    texts = tuple(" ".join(piece.text for piece in pieces).casefold() for pieces in formulas)
    plain = names.plain
    measured: dict[str, Floats] = {} if plain is None else {name: plain.column(layer, name) for name in PLAIN}
    values = {name: getattr(of, name)[of.first_unit :] for name in ("crisp", "on", "agreement", "half_life")}
    return LayerTable(
        layer=layer,
        kind=of.kind[of.first_unit :],
        cls=of.cls[of.first_unit :],
        formula=formulas,
        label=tuple(shown or None for shown in of.shown[of.first_unit :]),
        sides=tuple(_sides(table, place) for place in units),
        text=texts,
        values={**values, **measured, **_orders(of.kind[of.first_unit :], texts)},
        nameable=of.nameable[of.first_unit :],
    )


@lru_cache(maxsize=8)
def _bare(config: ModelConfig, layer: int) -> LayerTable:
    layout = config.feed_forward
    kinds = tuple(layout.kind(unit) for unit in range(layout.d_ff))
    formulas = tuple(
        (Piece(f"p{layout.pair(unit)}.A {GLYPHS[kind]} p{layout.pair(unit)}.B", token=True),)
        if unit < 2 * layout.n_pairs
        else ()
        for unit, kind in enumerate(kinds)
    )
    texts = tuple(" ".join(piece.text for piece in pieces).casefold() for pieces in formulas)
    undefined = np.full(len(kinds), np.nan)
    values = dict.fromkeys(("crisp", "on", "agreement", "half_life"), undefined)
    nothing: tuple[None, ...] = (None,) * len(kinds)
    return LayerTable(
        layer, kinds, nothing, formulas, nothing, (frozenset(),) * len(kinds), texts,
        {**values, **_orders(kinds, texts)}, np.zeros(len(kinds), dtype=np.bool_),
    )  # fmt: skip


def _orders(kinds: Sequence[str], texts: Sequence[str]) -> dict[str, Floats]:
    """By number, by kind and by name, as numbers to sort by."""
    place = {text: float(index) for index, text in enumerate(sorted(set(texts)))}
    return {
        "unit": np.arange(len(kinds), dtype=np.float64),
        "kind": np.array([KINDS.index(kind) for kind in kinds], dtype=np.float64),
        "label": np.array([place[text] if text else np.nan for text in texts], dtype=np.float64),
    }


def _formula(table: Columns, place: int) -> tuple[Piece, ...]:
    """The formula without its evidence, which the unit's page gives."""
    of, operands, kind = table.components, table.operands, table.components.kind[place]
    a, b = int(of.a[place]), int(of.b[place])
    read = [
        Piece(
            operands.shown[i],
            measured=operands.shown[i] != operands.ids[i],
            note=mostly_on(float(operands.on[i]), constant=operands.cls[i] == Legibility.CONSTANT),
        )
        for i in (a, b)
        if i >= 0
    ]
    glyph = Piece(GLYPHS[kind], operator=True)
    if len(read) == 2:
        found = (read[0], glyph, read[1])
    elif kind in ("existential", "proportion"):
        found = (glyph, read[0], Piece(f"({tokens(float(of.half_life[place]))})"))
    elif read:
        found = (glyph, read[0])  # type: ignore[assignment]
    else:
        found = (Piece(PLAIN_NAMES.get(kind, kind)),)  # type: ignore[assignment]
    return (*found, Piece("→", operator=True), Piece(of.shown[place])) if of.shown[place] else found


def _guess(table: Columns, place: int) -> tuple[Piece, ...]:
    """An ordinary unit's name: what it is most active on and what it promotes, marked as a guess."""
    detects, promotes = table.operands.shown[int(table.components.a[place])], table.components.shown[place]
    found = (GUESS, Piece(detects or "?", measured=True))
    return (*found, Piece("→", operator=True), Piece(promotes)) if promotes else found


def _sides(table: Columns, place: int) -> frozenset[str]:
    of, operands = table.components, table.operands
    labels = [operands.label[i] for i in (int(of.a[place]), int(of.b[place])) if i >= 0]
    return frozenset(label.casefold() for label in (*labels, of.promotes[place]) if label is not None)


def _flags(passing: Iterable[bool]) -> NDArray[np.bool_]:
    return np.fromiter(passing, dtype=np.bool_)
