"""The numbers of the accounting's tables and figures, as CSV and JSON.

    GET /models/{slug}/accounting/{table}.csv, .json

A median stands between its quartiles, beside how many numbers it is of. The perplexity on the same text is in every
row of the CSV and at the head of the JSON: a collapsed model reads as n90 = 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from app.pages.accounted import accounting_of
from app.pages.export import inert
from app.pages.view import twin
from app.services import Services, services
from legible_core.accounting.records import (
    Accounting,
    Carriage,
    Counts,
    Depth,
    Part,
    Population,
    Quartiles,
    Reads,
    Writes,
)
from legible_core.errors import NotFound
from legible_core.registry import Checkpoint

router = APIRouter(prefix="/models/{slug}/accounting")

Row = dict[str, Any]


@router.get("/{table}.csv")
def accounted_csv(slug: str, table: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A table as CSV: shares from 0 to 1, an empty cell where nothing was measured."""
    checkpoint, population, rows = _find(services, slug, table)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*rows[0], "perplexity", "corpus", "checkpoint"])
    for row in rows:
        cells = [*row.values(), population.perplexity, population.corpus, checkpoint.hash]
        writer.writerow([inert(cell) if isinstance(cell, str) else cell for cell in cells])
    name = f'attachment; filename="{slug}-accounting-{table}.csv"'
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers={"content-disposition": name})


@router.get("/{table}.json")
def accounted_json(slug: str, table: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A table as JSON, with its population; null where nothing was measured."""
    checkpoint, population, rows = _find(services, slug, table)
    return twin({
        "checkpoint": checkpoint.hash, "slug": slug, "table": table, "population": population,
        "columns": list(rows[0]), "rows": rows,
    })  # fmt: skip


def _find(services: Services, slug: str, table: str) -> tuple[Checkpoint, Population, list[Row]]:
    checkpoint = services.catalogue.get(slug)
    stored, missing = accounting_of(checkpoint)
    if stored is None:
        raise NotFound(missing or f"{slug} has no accounting yet.")
    found = {name: made for name, made in _made(stored).items() if made[1]}
    if table not in found:
        raise NotFound(f"{slug}'s accounting has no table {table[:40]!r}; it has {', '.join(found) or 'none'}.")
    return checkpoint, *found[table]


def _made(stored: Accounting) -> dict[str, tuple[Population, list[Row]]]:
    """Population and rows of every table, by its id."""
    found: dict[str, tuple[Population, list[Row]]] = {}
    for part, tables in TABLES.items():
        measured = getattr(stored, part)
        if measured is not None:
            found |= {name: (measured.population, [_flat(row) for row in of(measured)]) for name, of in tables.items()}
    return found


def _flat(row: Row) -> Row:
    """Quartiles as columns of their own, parts as what is in them."""
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, Quartiles):
            found |= {f"{name}_{key}": getattr(value, key) for key in ("q1", "median", "q3", "n")}
        else:
            found[name] = value
    return found


def _fields(part: Part) -> Row:
    return {name: getattr(part, name) for name in type(part).model_fields}


def _counts(found: Counts) -> list[Row]:
    return [
        {"components": side, "of": total, "reach": level, "count": figure}
        for side, counted in (("channels", found.channels), ("heads", found.heads))
        for total, row in counted.counts.items()
        for level, figure in row.items()
    ]


def _depth(found: Depth) -> list[Row]:
    last = len(found.predicted) - 1
    nothing = Quartiles.of(())
    return [
        {
            "depth": i, "predicted": found.predicted[i], "current": found.current[i],
            "rank": found.ranks[i] if found.ranks else nothing, "leads": found.leading[i] if found.leading else None,
        }
        for i in range(last + 1)
    ]  # fmt: skip


def _members(found: Depth) -> list[Row]:
    other, rank = dict(found.running_other), dict(found.running_rank)
    nothing = Quartiles.of(())
    return [
        {"members": k, "cosine": figure, "other": other.get(k, nothing), "rank": rank.get(k, nothing)}
        for k, figure in found.running
    ]


def _reads(found: Reads) -> list[Row]:
    return [
        {"rows": kind.kind, "count": kind.rows, "reading": reading, "truth": truth, **_fields(row)}
        for kind in found.kinds
        for reading, side in (("layer-native", kind.native), ("vocabulary", kind.vocabulary))
        for truth, rows in side.items()
        for row in rows
    ]


def _ordering(found: Reads) -> list[Row]:
    return [{"activation": row.activation, **_fields(one)} for row in found.ordering for one in row.agreement]


def _writes(found: Writes) -> list[Row]:
    sides: Sequence[tuple[int | None, str, Part]] = [
        (None, "all", found.every), (None, "channels", found.attention), (None, "units", found.feed_forward),
        *((row.layer, kind, side) for row in found.layers
          for kind, side in (("channels", row.attention), ("units", row.feed_forward))),
    ]  # fmt: skip
    return [{"layer": layer, "sort": kind, **_fields(side)} for layer, kind, side in sides]


def _push(found: Counts) -> list[Row]:
    return [{"token": name, **_fields(push)} for name, push in found.push.items()]


def _carriage(found: Carriage) -> list[Row]:
    return [_fields(row) for row in found.layers]


TABLES: Mapping[str, Mapping[str, Callable[[Any], list[Row]]]] = {
    "counts": {
        "counts": _counts, "push": _push, "confidence": lambda found: [_fields(row) for row in found.confidence],
        "predictions": lambda found: [point._asdict() for point in found.points],
    },
    "depth": {
        "depth": _depth, "members": _members, "promoted": lambda found: [_fields(row) for row in found.layers],
    },
    "carriage": {"carriage": _carriage},
    "reads": {"reads": _reads, "ordering": _ordering},
    "writes": {"writes": _writes},
}  # fmt: skip
