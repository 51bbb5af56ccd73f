"""The numbers behind the figures of a unit's page, as CSV and JSON.

GET /models/{slug}/units/{unit}/figures/{figure}.csv, .json

histogram-A, -B, -m, -value   values of an operand over the scan: from, to, share of tokens; of an ordinary unit
                              the number of tokens too, and no end where the outermost bins are open
active, suppresses            of an ordinary unit: the tokens on which it is strongest, and those it lowers most
promotes                      rank, token, weight; the unit's place among the components that list the token
decay                         what is left of an ON after n tokens
reach                         the most that a membership changed n tokens back changes the unit now
history                       what the unit was at each snapshot of the training, where a history is stored
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from app.pages.export import inert
from app.pages.limits import REACHES
from app.pages.model_figures import quality_of
from app.pages.named import component_of, names_of, operands_of
from app.pages.unit_history import history_rows
from app.pages.units import find_unit
from app.pages.view import twin
from app.services import Services, services
from legible_core.errors import NotFound
from legible_core.intervals import reach
from legible_core.naming.names import ComponentName, Names
from legible_core.naming.plain import UnitValues
from legible_core.registry import Checkpoint
from legible_core.units import Unit

router = APIRouter(prefix="/models/{slug}/units/{unit}/figures")

PLAIN_TOKENS = 256  # as many as a list holds
CURVE = 128  # tokens, as the figure draws them

Row = dict[str, Any]


@router.get("/{figure}.csv")
def unit_figure_csv(slug: str, unit: str, figure: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A figure's numbers as CSV, beside the perplexity and hash of the checkpoint."""
    checkpoint, component, names, rows = _find(services, slug, unit, figure)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*rows[0], "perplexity", "checkpoint"])
    for row in rows:
        cells = [*row.values(), quality_of(names).get("perplexity"), checkpoint.hash]
        writer.writerow([inert(cell) if isinstance(cell, str) else cell for cell in cells])
    name = f'attachment; filename="{slug}-{component}-{figure}.csv"'
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers={"content-disposition": name})


@router.get("/{figure}.json")
def unit_figure_json(slug: str, unit: str, figure: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A figure's numbers as JSON, with the quality and the text that it was measured on."""
    checkpoint, component, names, rows = _find(services, slug, unit, figure)
    return twin(
        {
            "checkpoint": checkpoint.hash, "slug": slug, "id": str(component), "figure": figure,
            "quality": quality_of(names), "corpus": names.meta.get("corpus"), "rows": rows,
        }
    )  # fmt: skip


def _find(services: Services, slug: str, unit: str, figure: str) -> tuple[Checkpoint, Unit, Names, list[Row]]:
    checkpoint, component = find_unit(services, slug, unit)
    names, missing = names_of(checkpoint)
    name = component_of(names, component)
    if names is None or name is None:
        raise NotFound(missing or f"{component} has no name, and so no figures.")
    found = figures_of(checkpoint, names, component, name)
    if figure not in found:
        raise NotFound(f"{component} has no figure {figure[:40]!r}; it has {', '.join(found)}.")
    return checkpoint, component, names, found[figure]


def figures_of(checkpoint: Checkpoint, names: Names, unit: Unit, name: ComponentName) -> dict[str, list[Row]]:
    """Every figure of a unit's page with its numbers; only those that its kind has."""
    kind = checkpoint.config.feed_forward.kind(unit.unit)
    operands = operands_of(names, name)
    found = {
        f"histogram-{side_of(operand.id, str(unit))}": _histogram(operand.histogram) for operand in operands
    }  # fmt: skip
    if names.plain is not None:
        found |= _plain(names.plain.unit(unit, PLAIN_TOKENS))
    places = names.promote_places(unit)
    promotes = [
        {"rank": rank, "id": token.id, "token": token.display, "weight": token.weight, "place": place, "of": count}
        for rank, (token, (place, count)) in enumerate(zip(name.promotes, places, strict=True), 1)
    ]
    if promotes:
        found["promotes"] = promotes
    if name.decay is not None:
        found["decay"] = [{"tokens": n, "left": name.decay**n} for n in range(CURVE + 1)]
        found["reach"] = [{"tokens_back": back, "at_most": reach(kind, name.decay, back)} for back in REACHES]
    if history := history_rows(checkpoint, unit):
        found["history"] = history
    return found


def _plain(values: UnitValues) -> dict[str, list[Row]]:
    """The figures of an ordinary model's unit."""
    rows: list[Row] = [
        {"from": part.start, "to": part.stop, "tokens": part.count, "share": part.count / values.tokens}
        for part in values.histogram
    ]
    active: list[Row] = [
        {
            "rank": rank, "id": token.id, "token": token.display, "lift": token.lift, "strongest": token.count,
            "seen": token.seen, "mean": token.mean,
        }
        for rank, token in enumerate(values.detect, 1)
    ]  # fmt: skip
    suppresses: list[Row] = [
        {"rank": rank, "id": token.id, "token": token.display, "weight": token.weight}
        for rank, token in enumerate(values.suppresses, 1)
    ]
    found = {"histogram-value": rows, "active": active, "suppresses": suppresses}
    return {name: rows for name, rows in found.items() if rows}


def side_of(operand: str, unit: str) -> str:
    """What an operand is called beside its unit: A, B or m; `value` where a unit is its own operand."""
    return "value" if operand == unit else operand.rpartition(".")[2]


def _histogram(shares: Sequence[float]) -> list[Row]:
    count = len(shares)
    return [{"from": i / count, "to": (i + 1) / count, "share": share} for i, share in enumerate(shares)]
