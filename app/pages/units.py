"""A unit: what it detects and what it promotes, two columns; a quantifier adds its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.figures import decay_curve, histogram
from app.leading import readings_led_by
from app.pages.contexts import AskedContext, Context, asked_context, context_of
from app.pages.formula import Piece, operand_piece, plain, promote_piece
from app.pages.home import Card, reading_cards
from app.pages.layers import check_layer
from app.pages.named import component_of, names_of, operands_of, pieces_of
from app.pages.panel import KIND_NAMES
from app.pages.view import page, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.naming.names import ComponentName, Label, OperandName, Promotion
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, GLYPHS, PLAIN_NAMES, Unit, parse

router = APIRouter(prefix="/models/{slug}/units", default_response_class=HTMLResponse)

MATTERED = 8


@dataclass(frozen=True, slots=True)
class OperandColumn:
    """One operand on the detect side: label, tokens with lift, histogram against the rails, statistics."""

    name: Piece
    evidence: OperandName
    bars: Markup


@dataclass(frozen=True, slots=True)
class UnitPage:
    title: str
    slug: str
    id: str
    layer: int
    kind: str
    glyph: str
    kind_name: str
    unbounded: str | None
    formula: tuple[Piece, ...]
    missing: str | None
    operand_ids: tuple[str, ...]
    operands: tuple[OperandColumn, ...]
    promote: Piece | None
    label: Label | None
    promotes: tuple[Promotion, ...]
    rare: tuple[Promotion, ...]
    name: ComponentName | None
    curve: Markup | None
    decay: float | None
    half_life: float | None
    context: Context
    mattered: tuple[Card, ...]
    before: str | None
    after: str | None


@router.get("/{unit}.json")
def unit_json(slug: str, unit: str, services: Annotated[Services, Depends(services)]) -> Response:
    """The JSON twin: the unit's name with all its evidence."""
    checkpoint, component = _find(services, slug, unit)
    names, missing = names_of(checkpoint)
    name = component_of(names, component)
    operands = operands_of(names, name) if names is not None and name is not None else ()
    return twin(
        {
            "id": str(component),
            "slug": slug,
            "checkpoint": checkpoint.hash,
            "kind": checkpoint.config.feed_forward.kind(component.unit),
            "name": None if name is None else name.to_json(),
            "operands": [operand.to_json() for operand in operands],
            "missing": missing,
        }
    )


@router.get("/{unit}")
def unit(
    slug: str,
    unit: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    asked: Annotated[AskedContext, Depends(asked_context)],
) -> Response:
    """One unit."""
    checkpoint, component = _find(services, slug, unit)
    return page(request, "unit.html", _unit(services, checkpoint, component, asked, urls_for(request)))


def _find(services: Services, slug: str, text: str) -> tuple[Checkpoint, Unit]:
    checkpoint = services.catalogue.get(slug)
    component = parse(text)
    if not isinstance(component, Unit):
        raise LegibleError(f"{text[:40]} is no unit; a unit is written like L0.u0.", code="bad_component", status=404)
    check_layer(checkpoint, component.layer)
    checkpoint.config.feed_forward.kind(component.unit)
    return checkpoint, component


def _unit(services: Services, checkpoint: Checkpoint, unit: Unit, asked: AskedContext, urls: Urls) -> UnitPage:
    config, layout = checkpoint.config, checkpoint.config.feed_forward
    kind = layout.kind(unit.unit)
    names, missing = names_of(checkpoint)
    name = component_of(names, unit)
    pieces: tuple[Piece, ...] = ()
    columns: tuple[OperandColumn, ...] = ()
    if names is not None and name is not None:
        pieces = pieces_of(names, name)
        columns = tuple(
            OperandColumn(operand_piece(o), o, histogram(o.histogram, f"How often {o.id} takes each value"))
            for o in operands_of(names, name)
        )
    decay = name.decay if name is not None else None

    def address(**query: Any) -> str:
        return urls.unit(checkpoint.slug, unit, **query)

    title = f"{GLYPHS[kind]} {unit}" + (f" {plain(pieces)}" if pieces else "") + f" · {checkpoint.slug}"
    return UnitPage(
        title=title,
        slug=checkpoint.slug,
        id=str(unit),
        layer=unit.layer,
        kind=kind,
        glyph=GLYPHS[kind],
        kind_name=KIND_NAMES[kind],
        unbounded=None if kind in BOUNDED else f"A {PLAIN_NAMES[kind]} unit",
        formula=pieces,
        missing=missing,
        operand_ids=_operand_ids(kind, unit, layout.pair(unit.unit) if unit.unit < 2 * layout.n_pairs else 0),
        operands=columns,
        promote=promote_piece(name.promotes, name.label) if name is not None else None,
        label=name.label if name is not None else None,
        promotes=name.promotes if name is not None else (),
        rare=name.rare if name is not None else (),
        name=name,
        curve=decay_curve(decay) if decay is not None else None,
        decay=decay,
        half_life=name.half_life if name is not None else None,
        mattered=reading_cards(
            urls,
            [led.card for led in readings_led_by(services.store.database, checkpoint.hash, str(unit), MATTERED)],
            component=str(unit),
        ),
        context=context_of(services, urls, checkpoint, unit, asked, address),
        before=urls.unit(checkpoint.slug, Unit(unit.layer, unit.unit - 1)) if unit.unit else None,
        after=urls.unit(checkpoint.slug, Unit(unit.layer, unit.unit + 1))
        if unit.unit + 1 < config.feed_forward.d_ff
        else None,
    )


def _operand_ids(kind: str, unit: Unit, pair: int) -> tuple[str, ...]:
    if kind in ("intersection", "difference"):
        return (f"L{unit.layer}.p{pair}.A", f"L{unit.layer}.p{pair}.B")
    if kind == "sigmoid":
        return (str(unit),)
    return (f"L{unit.layer}.u{unit.unit}.m",) if kind in BOUNDED else ()
