"""A child checkpoint's parent and edits, and a checkpoint's children, on the model's page; the two compared.

POST /models/{slug}/against-parent      a prompt: both are read, and their comparison is opened
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.pages.asking import PromptForm, only_of, prompt_form, read_form
from app.pages.home import examples_of
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.lineage import Lineage, lineage
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Down, Head, HeadOperand, Operand, Residual, Unit

router = APIRouter(prefix="/models/{slug}")

SHOWN = 80  # characters of an edit; one with a vector is long


@dataclass(frozen=True, slots=True)
class EditLine:
    """An edit as text, and the page of what it changes, on the parent where that is here."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The parent of a child; `parent_href` is empty where it is not here any more."""

    parent: str
    parent_hash: str
    parent_href: str
    edits: tuple[EditLine, ...]
    compare: str
    prompt: str
    fault: str


@dataclass(frozen=True, slots=True)
class Child:
    slug: str
    href: str
    edits: int
    first: str


@dataclass(frozen=True, slots=True)
class Family:
    """Where a checkpoint comes from, if it is a child, and its own children that are here."""

    origin: Origin | None
    children: tuple[Child, ...]


@router.post("/against-parent")
def against_parent(
    slug: str,
    request: Request,
    form: Annotated[PromptForm, Depends(prompt_form)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """Read one prompt with a child and with its parent, and open the comparison of the two."""
    urls = urls_for(request)
    child = services.catalogue.get(slug)
    found = lineage(child)
    if found is None:
        raise NotFound(f"{child.slug} is no child checkpoint: its card names no parent.")
    parent = services.catalogue.get(found.parent)
    form = replace(only_of(child, form, services), prompt=form.prompt.replace("\r\n", "\n"))
    left, right = (read_form(services, urls, checkpoint, form) for checkpoint in (parent, child))
    return RedirectResponse(urls.compare(left=left, right=right), status_code=303)


def family_of(services: Services, urls: Urls, checkpoint: Checkpoint) -> Family:
    """Parent, edits and children; a card that cannot be read says so and costs the page nothing else."""
    children = []
    for other in services.catalogue.checkpoints():
        found = _safely(other)
        if isinstance(found, Lineage) and found.parent == checkpoint.hash:
            children.append(Child(other.slug, urls.model(other.slug), len(found.edits), clipped_edit(found.edits[0])))
    return Family(_origin(services, urls, checkpoint), tuple(children))


def related(services: Services, one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints descend by edits from one: then a number names the same unit in both."""
    return _ancestor(services, one) == _ancestor(services, other)


def _ancestor(services: Services, checkpoint: Checkpoint) -> str:
    """The hash of the first checkpoint of a line of children; of the last one known where a link is not here."""
    seen = {checkpoint.hash}
    while isinstance(found := _safely(checkpoint), Lineage) and found.parent not in seen:
        seen.add(found.parent)
        try:
            checkpoint = services.catalogue.get(found.parent)
        except LegibleError:
            return found.parent
    return checkpoint.hash


def clipped_edit(edit: Edit) -> str:
    """The edit's short text, its end cut off where a vector makes it long."""
    text = edit_text(edit)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _origin(services: Services, urls: Urls, checkpoint: Checkpoint) -> Origin | None:
    found = _safely(checkpoint)
    if found is None:
        return None
    if isinstance(found, LegibleError):
        return Origin("", "", "", (), "", "", found.message)
    try:
        parent = services.catalogue.get(found.parent)
    except LegibleError:
        parent = None
    lines = tuple(
        EditLine(clipped_edit(edit), "" if parent is None else _page_of(urls, parent, edit)) for edit in found.edits
    )
    return Origin(
        parent=found.slug if parent is None else parent.slug,
        parent_hash=found.parent,
        parent_href="" if parent is None else urls.model(parent.slug),
        edits=lines,
        compare="" if parent is None else urls.against_parent(checkpoint.slug),
        prompt=examples_of(checkpoint if parent is None else parent)[0].prompt,
        fault="",
    )


def _safely(checkpoint: Checkpoint) -> Lineage | LegibleError | None:
    try:
        return lineage(checkpoint)
    except LegibleError as error:
        return error


def _page_of(urls: Urls, parent: Checkpoint, edit: Edit) -> str:
    """The page of the unit or head that an edit changes; the layer's for what has no page of its own."""
    component = edit.component
    match component:
        case Unit():
            return urls.unit(parent.slug, component)
        case Operand(layer, pair, _):
            return urls.unit(parent.slug, Unit(layer, pair))
        case Head(layer, head) | Channel(layer, head, _) | HeadOperand(layer, head, _, _):
            return urls.head(parent.slug, Head(layer, head))
        case Residual(layer) | Down(layer):
            return urls.layer(parent.slug, min(layer, parent.config.n_layers - 1))
    return urls.unit(parent.slug, Unit(component.layer, component.unit))


__all__ = ["Family", "clipped_edit", "family_of", "related", "router"]
