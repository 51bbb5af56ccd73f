"""What edits do to a checkpoint: the experiments of `legible edit-lab`, as they are stored beside its weights.

    GET /models/{slug}/edit-lab, .json

Nothing is computed here: what was not measured yet says the command that measures it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse

from app.pages.view import page, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.editing.results import EXPERIMENTS, FILE, Experiment, Results, shown
from legible_core.errors import LegibleError
from legible_core.naming.tables import Cell, Table
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Head, HeadOperand, Unit, parse

router = APIRouter(prefix="/models/{slug}/edit-lab", default_response_class=HTMLResponse)

REFUSED = "{slug} is an ordinary model; these experiments need a checkpoint that is legible by construction."
# What each experiment asks, in words.
QUESTIONS = {
    "gains": "Does a louder component move the tokens that its write column names, and no others?",
    "install": "Can an association A → B that the model does not hold be put into one unit or channel, at what cost?",
    "rank-one": "The same associations as a rank-one update of a whole down-projection, beside one unit.",
    "circuit": "Can a head be made to fire on A, and a unit two layers up to answer B, over a random direction?",
    "carried": "Can a head be made to look for A earlier in the text, and a unit to answer B from then on?",
    "drive": "Can a trained unit be driven from two layers below, through the row that it already reads with?",
    "survival": "How much of a written direction is still there at the end, and how much was carried elsewhere?",
}


# An interval in words, "0.002 to 0.011", or none.
_RANGE = re.compile(r"[−0-9.,]+ to [−0-9.,]+|–")


@dataclass(frozen=True, slots=True)
class LabCell:
    """A cell's text, and where it leads when it names a unit or a head."""

    text: str
    href: str | None


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as text. numbers: which columns hold numbers, to the right."""

    id: str
    title: str
    head: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[LabCell, ...], ...]
    note: str


@dataclass(frozen=True, slots=True)
class Section:
    """An experiment; without tables it was not made, and `command` makes it."""

    id: str
    title: str
    question: str
    said: str
    command: str
    tables: tuple[ShownTable, ...]


@dataclass(frozen=True, slots=True)
class EditLabPage:
    title: str
    slug: str
    sections: tuple[Section, ...]
    missing: tuple[Section, ...]
    refused: str | None


@router.get(".json")
def edit_lab_json(slug: str, services: Annotated[Services, Depends(services)]) -> Response:
    """The stored experiments in full, as numbers."""
    checkpoint = services.catalogue.get(slug)
    stored, refused = stored_of(checkpoint)
    missing = _missing(checkpoint, stored)
    return twin({**stored.to_json(), "slug": checkpoint.slug, "missing": missing, "refused": refused})


@router.get("")
def edit_lab(slug: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Every experiment with its tables; those that were not made with the command that makes them."""
    checkpoint = services.catalogue.get(slug)
    stored, refused = stored_of(checkpoint)
    made = EditLabPage(
        title=f"{checkpoint.slug}: what edits do",
        slug=checkpoint.slug,
        sections=tuple(_section(experiment, checkpoint.slug, urls_for(request)) for experiment in stored.ordered()),
        missing=tuple(
            Section(name, EXPERIMENTS[name], QUESTIONS[name], "", command(name, checkpoint.slug), ())
            for name in _missing(checkpoint, stored)
        ),
        refused=refused,
    )
    return page(request, "edit_lab.html", made)


def stored_of(checkpoint: Checkpoint) -> tuple[Results, str | None]:
    """What is stored beside a checkpoint, and why a file that is there cannot be used."""
    if checkpoint.ordinary:
        return Results(checkpoint.hash), REFUSED.format(slug=checkpoint.slug)
    try:
        stamp = (checkpoint.path / FILE).stat().st_mtime_ns
    except OSError:
        return Results(checkpoint.hash), None
    try:
        return _load(checkpoint.path, checkpoint.hash, stamp), None
    except LegibleError as error:
        return Results(checkpoint.hash), f"The stored experiments cannot be used: {error.message.rstrip('.')}."


@lru_cache(maxsize=16)
def _load(path: Path, checkpoint_hash: str, _stamp: int) -> Results:
    return Results.load(path, checkpoint_hash)


def command(name: str, slug: str) -> str:
    """The command that makes an experiment."""
    return f"legible edit-lab {name} {slug} --corpus TEXT"


def _missing(checkpoint: Checkpoint, stored: Results) -> list[str]:
    if checkpoint.ordinary:  # no experiment takes one, so no command is said
        return []
    return [name for name in EXPERIMENTS if name not in stored.experiments]


def _section(experiment: Experiment, slug: str, urls: Urls) -> Section:
    return Section(
        experiment.name,
        experiment.title,
        QUESTIONS[experiment.name],
        experiment.said,
        experiment.command,
        tuple(_shown(table, slug, urls) for table in experiment.tables if table.rows),
    )


def _shown(table: Table, slug: str, urls: Urls) -> ShownTable:
    numbers = tuple(all(_is_number(row[column]) for row in table.rows) for column in range(len(table.columns)))
    rows = tuple(
        tuple(
            LabCell(shown(cell, column in table.shares), _href(cell, slug, urls))
            for column, cell in zip(table.columns, row, strict=True)
        )
        for row in table.rows
    )
    return ShownTable(table.id, table.title, table.columns, numbers, rows, table.note)


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or cell.endswith(" %") or _RANGE.fullmatch(cell) is not None


def _href(cell: Cell, slug: str, urls: Urls) -> str | None:
    """The page of the unit or head that a cell names by its id, or the head of a channel; tokens look otherwise."""
    if not isinstance(cell, str) or not cell.startswith("L"):
        return None
    try:
        component = parse(cell)
    except LegibleError:
        return None
    match component:
        case Unit():
            return urls.unit(slug, component)
        case Head(layer, head) | Channel(layer, head, _) | HeadOperand(layer, head, _, _):
            return urls.head(slug, Head(layer, head))
        case _:
            return None
