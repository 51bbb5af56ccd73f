"""A unit: what it detects and what it promotes, two columns; a quantifier adds its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.figures import decay_curve, histogram
from app.leading import readings_led_by
from app.pages.accounted import HelpedView, helped_by
from app.pages.asking import dtype_of
from app.pages.contexts import AskedContext, Context, Shaded, asked_context, context_of
from app.pages.corpus_contexts import Strips, contexts_of, strips_of
from app.pages.detail import state_of
from app.pages.formula import Piece, active_piece, operand_piece, plain, promote_piece
from app.pages.home import Card, reading_cards
from app.pages.layers import check_layer
from app.pages.limits import REACHES, order_said
from app.pages.named import component_of, names_of, operands_of, pieces_of
from app.pages.panel import KIND_NAMES
from app.pages.people import People, people_of
from app.pages.unit_history import HistoryView, history_json, history_of
from app.pages.view import page, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from app.value_figures import signed_histogram
from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.intervals import directions, reach, tokens_until
from legible_core.naming.names import ComponentName, Label, Names, OperandName, Promotion
from legible_core.naming.plain import UnitValues
from legible_core.reads import opens, recall
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
    contexts: Strips | None


@dataclass(frozen=True, slots=True)
class Promoted:
    """A promoted token: its weight, and the unit's place among all components whose list holds the token."""

    token: Promotion
    place: int
    of: int


@dataclass(frozen=True, slots=True)
class Alike:
    """A unit like this one."""

    id: str
    href: str
    glyph: str
    formula: tuple[Piece, ...]
    cosine: float
    overlap: float | None


@dataclass(frozen=True, slots=True)
class Similar:
    """Units that write alike and units that detect alike; until the worker has compared them, `message`."""

    writes: tuple[Alike, ...]
    detects: tuple[Alike, ...]
    message: str
    poll: str
    retry: str


@dataclass(frozen=True, slots=True)
class Mattered:
    """A reading that this unit led."""

    card: Card
    place: int
    term: float
    target_rank: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What each token of the context left of a quantifier's value at the marked one; the parts add up to `value`."""

    tokens: tuple[Shaded, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The most that a membership changed `back` tokens ago changes a quantifier now, in any text and in a long one."""

    back: int
    most: float
    settled: float


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
    promotes: tuple[Promoted, ...]
    rare: tuple[Promotion, ...]
    helped: HelpedView | None
    name: ComponentName | None
    curve: Markup | None
    decay: float | None
    half_life: float | None
    order: str
    reaches: tuple[Reached, ...]
    forgotten: int | None
    context: Context
    own_contexts: Strips | None
    values: UnitValues | None
    active: Piece | None
    bars: Markup | None
    memory: Memory | None
    whys: tuple[tuple[str, str], ...]
    history: HistoryView
    similar: Similar
    mattered: tuple[Mattered, ...]
    values_href: str
    people: People
    before: str | None
    after: str | None


@router.get("/{unit}.json")
def unit_json(slug: str, unit: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The JSON twin: the unit's name with all its evidence."""
    checkpoint, component = find_unit(services, slug, unit)
    names, missing = names_of(checkpoint)
    name = component_of(names, component)
    operands = operands_of(names, name) if names is not None and name is not None else ()
    contexts = contexts_of(checkpoint)
    led = readings_led_by(services.store.database, checkpoint.hash, str(component), MATTERED)
    return twin(
        {
            "id": str(component),
            "slug": slug,
            "checkpoint": checkpoint.hash,
            "kind": checkpoint.config.feed_forward.kind(component.unit),
            "name": None if name is None else name.to_json(),
            "operands": [operand.to_json() for operand in operands],
            "values": None if names is None or names.plain is None else names.plain.unit(component).to_json(),
            "promotes": _promoted(names, component, name),
            "helped": helped_by(checkpoint, component, names),
            "history": history_json(checkpoint, component),
            "contexts": {
                str(part): strips_of(contexts, part)
                for part in dict.fromkeys((*opens(checkpoint.config, component), component))
            },
            "readings": [
                {
                    "digest": row.card.digest,
                    "position": row.card.position,
                    "target": row.card.target,
                    "place": row.place,
                    "term": row.term,
                    "target_rank": row.target_rank,
                }
                for row in led
            ],
            "people": people_of(services, urls_for(request), request, checkpoint, component),
            "missing": missing,
            "order": [
                {"operand": str(operand), "way": "rises" if way > 0 else "falls"}
                for operand, way in directions(checkpoint.config, component)
            ],
            "reach": _reaches(
                checkpoint.config.feed_forward.kind(component.unit), None if name is None else name.decay
            ),
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
    checkpoint, component = find_unit(services, slug, unit)
    return page(request, "unit.html", _unit(services, request, checkpoint, component, asked))


def find_unit(services: Services, slug: str, text: str) -> tuple[Checkpoint, Unit]:
    """The unit that an address names; LegibleError (404) where there is none."""
    checkpoint = services.catalogue.get(slug)
    component = parse(text)
    if not isinstance(component, Unit):
        raise LegibleError(f"{text[:40]} is no unit; a unit is written like L0.u0.", code="bad_component", status=404)
    check_layer(checkpoint, component.layer)
    checkpoint.config.feed_forward.kind(component.unit)
    return checkpoint, component


def _unit(services: Services, request: Request, checkpoint: Checkpoint, unit: Unit, asked: AskedContext) -> UnitPage:
    urls = urls_for(request)
    config, layout = checkpoint.config, checkpoint.config.feed_forward
    kind = layout.kind(unit.unit)
    names, missing = names_of(checkpoint)
    name = component_of(names, unit)
    pieces: tuple[Piece, ...] = ()
    columns: tuple[OperandColumn, ...] = ()
    contexts = contexts_of(checkpoint)
    if names is not None and name is not None:
        pieces = pieces_of(names, name)
        columns = tuple(
            OperandColumn(
                operand_piece(o),
                o,
                histogram(o.histogram, f"How often {o.id} takes each value"),
                strips_of(contexts, parse(o.id)),
            )
            for o in operands_of(names, name)
        )
    decay = name.decay if name is not None else None

    def address(**query: Any) -> str:
        return urls.unit(checkpoint.slug, unit, **query)

    context = context_of(services, urls, checkpoint, unit, asked, address)
    values = None if names is None or names.plain is None else names.plain.unit(unit)
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
        promotes=_promoted(names, unit, name),
        rare=name.rare if name is not None else (),
        helped=helped_by(checkpoint, unit, names),
        name=name,
        curve=decay_curve(decay) if decay is not None else None,
        decay=decay,
        half_life=name.half_life if name is not None else None,
        order=order_said(directions(config, unit)),
        reaches=_reaches(kind, decay),
        forgotten=None if decay is None else tokens_until(kind, decay),
        mattered=_mattered(services, urls, checkpoint, unit),
        context=context,
        own_contexts=None if kind == "sigmoid" else strips_of(contexts, unit, bounded=kind in BOUNDED),
        values=values,
        active=None if values is None else active_piece(values),
        bars=None if values is None else signed_histogram(values.histogram, f"How often {unit} takes each value"),
        memory=_memory(kind, context),
        whys=_whys(urls, checkpoint, unit, context),
        history=history_of(checkpoint, unit, names),
        similar=_similar(services, urls, checkpoint, names, unit, urls.unit(checkpoint.slug, unit)),
        values_href=urls.values(checkpoint.slug, components=",".join([str(unit), *_read_by(config, unit)])),
        people=people_of(services, urls, request, checkpoint, unit),
        before=urls.unit(checkpoint.slug, Unit(unit.layer, unit.unit - 1)) if unit.unit else None,
        after=urls.unit(checkpoint.slug, Unit(unit.layer, unit.unit + 1))
        if unit.unit + 1 < config.feed_forward.d_ff
        else None,
    )


def _read_by(config: ModelConfig, unit: Unit) -> list[str]:
    return [str(operand) for operand in opens(config, unit)]


def _promoted(names: Names | None, unit: Unit, name: ComponentName | None) -> tuple[Promoted, ...]:
    if names is None or name is None:
        return ()
    places = names.promote_places(unit)
    return tuple(Promoted(token, *place) for token, place in zip(name.promotes, places, strict=True))


def _mattered(services: Services, urls: Urls, checkpoint: Checkpoint, unit: Unit) -> tuple[Mattered, ...]:
    found = readings_led_by(services.store.database, checkpoint.hash, str(unit), MATTERED)
    cards = reading_cards(urls, [led.card for led in found], component=str(unit))
    return tuple(
        Mattered(card, led.place, led.term, led.target_rank) for card, led in zip(cards, found, strict=True)
    )  # fmt: skip


def _reaches(kind: str, decay: float | None) -> tuple[Reached, ...]:
    """A quantifier's reach (docs/bounds.md); () for other units, and without names, which hold the decay."""
    if decay is None:
        return ()
    settled = 1.0 if kind == "existential" else 1.0 - decay
    return tuple(Reached(back, reach(kind, decay, back), decay**back * settled) for back in REACHES)


def _memory(kind: str, context: Context) -> Memory | None:
    """A quantifier's memory over the tokens of the context, up to the marked one."""
    result = context.result
    if result is None or kind not in ("existential", "proportion"):
        return None
    position = int(result["position"])
    m = [float(value) for value in result["operands"][0]["values"][: position + 1]]
    left = recall(kind, m, float(result["decay"]))
    value = sum(left)
    tokens = tuple(
        Shaded(
            token.display,
            min(4, round(4 * part / value)) if value > 0 else 0,
            f"{index}: m {m[index]:.2f}, left {part:.3f}",
            index == position,
        )
        for index, (token, part) in enumerate(zip(context.strip, left, strict=False))
    )
    return Memory(tokens, value)


def _whys(urls: Urls, checkpoint: Checkpoint, unit: Unit, context: Context) -> tuple[tuple[str, str], ...]:
    """Links that say why each operand was on at the marked token of the context."""
    if context.result is None:
        return ()
    at = int(context.result["position"])
    return tuple(
        (str(operand), urls.why(checkpoint.slug, context.digest, operand, at=at))
        for operand in opens(checkpoint.config, unit) or (unit,)
    )


def _similar(
    services: Services, urls: Urls, checkpoint: Checkpoint, names: Names | None, unit: Unit, poll: str
) -> Similar:
    """The worker compares a unit with all others once for each scan; its answer is kept."""
    scanned = "-" if names is None else str(names.meta["corpus"].get("sha256"))[:16]
    key = f"similar:{checkpoint.hash}:{unit}:{scanned}"
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {
            "checkpoint": checkpoint.hash, "slug": checkpoint.slug, "dtype": dtype_of(services, checkpoint),
            "unit": str(unit),
        }  # fmt: skip
        job = services.queue.submit("similar", key, payload)
    if job.result is None:
        if job.active:
            return Similar((), (), state_of(services, job), poll, "")
        reason = str((job.error or {}).get("message", "It was cancelled."))
        return Similar((), (), reason, "", urls.job_part(job.id, "retry"))

    def alike(row: dict[str, Any]) -> Alike:
        other = parse(row["id"])
        assert isinstance(other, Unit)
        name = component_of(names, other)
        pieces = pieces_of(names, name) if names is not None and name is not None else ()
        glyph = GLYPHS[checkpoint.config.feed_forward.kind(other.unit)]
        return Alike(row["id"], urls.unit(checkpoint.slug, other), glyph, pieces, row["cosine"], row["overlap"])

    writes, detects = (tuple(alike(row) for row in job.result[side]) for side in ("writes", "detects"))
    return Similar(writes, detects, "", "", "")


def _operand_ids(kind: str, unit: Unit, pair: int) -> tuple[str, ...]:
    if kind in ("intersection", "difference"):
        return (f"L{unit.layer}.p{pair}.A", f"L{unit.layer}.p{pair}.B")
    if kind == "sigmoid":
        return (str(unit),)
    return (f"L{unit.layer}.u{unit.unit}.m",) if kind in BOUNDED else ()
