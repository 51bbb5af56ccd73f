"""The figures of a model page, each with its table, its data as CSV and JSON, and a name for its exported images.

    GET /models/{slug}/figures/{id}.csv, .json

The perplexity of the same checkpoint on the same text is in every figure, table and file: a collapsed model reads as
perfectly legible.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from app.figures import composition_figure, half_life_figure, heatmap_figure, lines_figure, per_layer_figure
from app.pages.named import names_of
from app.pages.view import percent, plain, twin
from app.services import Services, services
from app.urls import Urls
from legible_core.errors import NotFound
from legible_core.figures import perplexity_text
from legible_core.naming import tables as papers
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint

router = APIRouter(prefix="/models/{slug}/figures")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table, where it leads, and whether it is a number."""

    text: str
    href: str | None = None
    number: bool = True


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's drawing (None where the table is the figure), its table, and where its data is.

    file: the name that an exported image gets, without its ending.
    """

    id: str
    caption: str
    note: str
    data: str | None
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    csv: str
    json: str
    file: str
    embed: str


def figures_of(checkpoint: Checkpoint, names: Names, urls: Urls) -> tuple[Figure, ...]:
    """Every figure of which something is defined, in the papers' order.

    `embed` is the figure's address for an <iframe>.
    """
    under = beside(names)
    return tuple(_figure(checkpoint, names, table, under, urls) for table in papers.tables(names))


def beside(names: Names) -> str:
    """The quality that stands beside every figure."""
    corpus = names.meta.get("corpus") or {}
    perplexity = names.quality.get("perplexity")
    if not isinstance(perplexity, int | float) or not math.isfinite(perplexity):
        return "perplexity not measured"
    if corpus.get("sampled") is not None:
        return "measured on the checkpoint's own text: no perplexity"
    return f"perplexity {perplexity_text(perplexity)} on {corpus.get('name', 'the same text')}"


@router.get("/{figure}.csv")
def figure_csv(slug: str, figure: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A figure's table as CSV: shares from 0 to 1, an empty cell where something is undefined."""
    checkpoint, names, table = _find(services, slug, figure)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*table.columns, "perplexity", "checkpoint"])
    quality = [quality_of(names).get("perplexity"), checkpoint.hash]
    for row in table.rows:
        writer.writerow([_inert(cell) for cell in (*row, *quality)])
    name = f'attachment; filename="{_file(slug, table.id)}.csv"'
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers={"content-disposition": name})


@router.get("/{figure}.json")
def figure_json(slug: str, figure: str, services: Annotated[Services, Depends(services)]) -> Response:
    """A figure's table as JSON, with the quality and the text it was measured on; null where undefined."""
    checkpoint, names, table = _find(services, slug, figure)
    body = {
        "checkpoint": checkpoint.hash,
        "slug": slug,
        "figure": table.id,
        "title": table.title,
        "note": table.note,
        "quality": quality_of(names),
        "corpus": names.meta.get("corpus"),
        "columns": list(table.columns),
        "rows": table.records(),
    }
    return twin(body | ({"memory": papers.memory(names)} if table.id == "half-lives" else {}))


def _find(services: Services, slug: str, figure: str) -> tuple[Checkpoint, Names, papers.Table]:
    checkpoint = services.catalogue.get(slug)
    names, missing = names_of(checkpoint)
    if names is None:
        raise NotFound(missing or f"{slug} has no figures yet.")
    found = {table.id: table for table in papers.tables(names)}
    if figure not in found:
        raise NotFound(f"{slug} has no figure {figure[:40]!r}; it has {', '.join(found)}.")
    return checkpoint, names, found[figure]


def quality_of(names: Names) -> dict[str, Any]:
    """The loss on the scanned text; empty on the checkpoint's own text, where it measures nothing."""
    return {} if (names.meta.get("corpus") or {}).get("sampled") is not None else names.quality


def _file(slug: str, figure: str) -> str:
    return f"{slug}-{figure}"


def _inert(cell: Any) -> Any:
    """A spreadsheet takes =, +, - and @ at the start of a text for a formula; a quote in front keeps it text."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


# ---- on the page -----------------------------------------------------------------------------------------------------


def _figure(checkpoint: Checkpoint, names: Names, table: papers.Table, under: str, urls: Urls) -> Figure:
    drawn = _drawing(names, table, under)
    note = table.note
    if table.id == "half-lives":
        note = f"{_remembered(names)} {note}"
    return Figure(
        id=table.id,
        caption=table.title,
        note=note,
        data=None if drawn is None else json.dumps(plain(drawn)),
        head=tuple(_head(table)),
        rows=tuple(_row(checkpoint, table, row, urls) for row in table.rows),
        csv=urls.model_figure(checkpoint.slug, table.id, "csv"),
        json=urls.model_figure(checkpoint.slug, table.id, "json"),
        file=_file(checkpoint.slug, table.id),
        embed=urls.model(checkpoint.slug, figure=table.id, embed="figure,table"),
    )


def _drawing(names: Names, table: papers.Table, under: str) -> dict[str, Any] | None:
    rows = table.records()
    title = table.title
    match table.id:
        case "selective":
            lines = {name: [row[name] for row in rows] for name in table.columns[1:]}
            shown: dict[str, Any] = {name: part for name, part in lines.items() if any(v is not None for v in part)}
            return lines_figure([str(row["layer"]) for row in rows], shown, title, under)
        case "value-channels" | "operands":
            layers: list[Any] = [row for row in rows if row["layer"] != "all"]
            return per_layer_figure(layers, title, under)
        case "composition":
            bars: list[Any] = rows
            return composition_figure([str(row["surface"]) for row in rows], bars, title, under)
        case "heads":
            cells: list[Any] = [list(row[1:]) for row in table.rows]
            return heatmap_figure(cells, title, under)
        case "half-lives":
            found = papers.decays(names)
            return half_life_figure(found["existential"], found["proportion"], title, f"tokens · {under}")
    return None


def _head(table: papers.Table) -> list[str]:
    return ["half-life, tokens", *table.columns[2:]] if table.id == "half-lives" else list(table.columns)


def _row(checkpoint: Checkpoint, table: papers.Table, row: tuple[papers.Cell, ...], urls: Urls) -> tuple[Cell, ...]:
    if table.id == "half-lives":
        low, high, *counts = row
        span = f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
        return (Cell(span, number=False), *(Cell(f"{count:,}") for count in counts))
    cells = []
    for column, value in zip(table.columns, row, strict=True):
        href = None
        if column == "head":
            href = urls.head(checkpoint.slug, value)
        elif column == "layer" and value != "all":
            href = urls.layer(checkpoint.slug, int(str(value)[1:]))
        cells.append(Cell(_text(value, column in table.shares), href, not isinstance(value, str)))
    return tuple(cells)


def _text(value: papers.Cell, share: bool) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return percent(float(value), 1) if share else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _remembered(names: Names) -> str:
    """The median half-life and the share of latches, in words."""
    found = papers.memory(names)
    if found is None:
        return ""
    words = {"all": "of all", "existential": "of ∃", "proportion": "of %"}
    medians = ", ".join(f"{part['median']:.1f} {words[sort]}" for sort, part in found.items())
    latches = ", ".join(f"{percent(part['latches'], 1)} {words[sort]}" for sort, part in found.items())
    return f"Median half-life {medians}; latches {latches}."
