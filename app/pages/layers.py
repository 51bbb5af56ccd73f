"""A layer: all its units in one dense table, sorted and filtered by the address; counts by class on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from app.pages.formula import Piece
from app.pages.named import Row, names_of, unit_rows
from app.pages.view import page, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import NotFound
from legible_core.registry import Checkpoint
from legible_core.units import GLYPHS, KINDS, Kind, Unit

router = APIRouter(prefix="/models/{slug}/layers", default_response_class=HTMLResponse)

Sort = Literal["unit", "crisp", "on", "kind", "label", "agreement", "half_life"]
CLASSES = ("SELECTIVE", "FUZZY", "CONSTANT")
COLUMNS: tuple[tuple[Sort, str], ...] = (
    ("unit", "unit"), ("kind", "kind"), ("label", "detects → promotes"), ("crisp", "crisp"), ("on", "ON"),
    ("agreement", "agreement"), ("half_life", "half-life"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    sort: Sort
    order: Literal["up", "down"]
    kind: str | None
    cls: str | None
    nameable: bool
    text: str

    def query(self) -> dict[str, Any]:
        return {
            "sort": None if self.sort == "unit" else self.sort,
            "order": None if self.order == _usual(self.sort) else self.order,
            "kind": self.kind,
            "class": self.cls,
            "nameable": 1 if self.nameable else None,
            "q": self.text or None,
        }


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    href: str
    count: int | None
    current: bool


@dataclass(frozen=True, slots=True)
class Heading:
    name: str
    href: str
    current: bool
    down: bool


@dataclass(frozen=True, slots=True)
class HeadLink:
    name: str
    href: str
    selective: float | None


@dataclass(frozen=True, slots=True)
class LayerPage:
    title: str
    slug: str
    layer: int
    n_layers: int
    missing: str | None
    counts: tuple[tuple[str, int], ...]
    kinds: tuple[Chip, ...]
    classes: tuple[Chip, ...]
    headings: tuple[Heading, ...]
    heads: tuple[HeadLink, ...]
    rows: tuple[Row, ...]
    total: int
    text: str
    fields: tuple[tuple[str, str], ...]


def chosen(
    sort: Annotated[Sort, Query()] = "unit",
    order: Annotated[Literal["up", "down"] | None, Query()] = None,
    kind: Annotated[Kind | None, Query()] = None,
    cls: Annotated[Literal["SELECTIVE", "FUZZY", "CONSTANT"] | None, Query(alias="class")] = None,
    nameable: Annotated[bool, Query(description="alive, ON on 0.5-20 %, agreement 0.8 or more")] = False,
    q: Annotated[str, Query(max_length=80, description="part of a name")] = "",
) -> Chosen:
    return Chosen(sort, order or _usual(sort), kind, cls, nameable, q.strip())


@router.get("/{layer}.json")
def layer_json(
    slug: str, layer: int, chosen: Annotated[Chosen, Depends(chosen)], request: Request,
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """The JSON twin: the same rows in the same order."""
    made = _layer(services.catalogue.get(slug), layer, chosen, urls_for(request))
    return twin({key: getattr(made, key) for key in ("title", "slug", "layer", "missing", "counts", "total", "rows")})


@router.get("/{layer}")
def layer(
    slug: str, layer: int, chosen: Annotated[Chosen, Depends(chosen)], request: Request,
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """All units of a layer."""
    return page(request, "layer.html", _layer(services.catalogue.get(slug), layer, chosen, urls_for(request)))


def _layer(checkpoint: Checkpoint, layer: int, chosen: Chosen, urls: Urls) -> LayerPage:
    check_layer(checkpoint, layer)
    names, missing = names_of(checkpoint)
    every = unit_rows(names, layer) if names is not None else bare_rows(checkpoint, layer)
    rows = [row for row in every if _passes(row, chosen)]
    rows.sort(key=_key(chosen.sort), reverse=False)
    if chosen.order == "down":
        rows.reverse()
    # What is undefined stands last in both directions.
    rows.sort(key=lambda row: _value(row, chosen.sort) is None)

    def href(**changes: Any) -> str:
        return urls.layer(checkpoint.slug, layer, **replace(chosen, **changes).query())

    counts = Counter(row.cls for row in every)
    kinds = Counter(row.kind for row in every)
    heads = () if names is None else tuple((names.legibility["layers"][layer].get("heads")) or ())
    return LayerPage(
        title=f"Layer {layer} of {checkpoint.slug}",
        slug=checkpoint.slug,
        layer=layer,
        n_layers=checkpoint.config.n_layers,
        missing=missing,
        counts=tuple((name, counts[name]) for name in CLASSES),
        kinds=(
            Chip("all kinds", href(kind=None), len(every), chosen.kind is None),
            *(
                Chip(f"{GLYPHS[kind]} {kind}", href(kind=kind), kinds[kind], chosen.kind == kind)
                for kind in KINDS
                if kinds[kind]
            ),
        ),
        classes=()
        if names is None
        else (
            Chip("all classes", href(cls=None, nameable=False), None, chosen.cls is None and not chosen.nameable),
            *(Chip(name, href(cls=name), counts[name], chosen.cls == name) for name in CLASSES),
            Chip(
                "nameable", href(nameable=not chosen.nameable), sum(row.nameable for row in every), chosen.nameable
            ),
        ),
        headings=tuple(_heading(chosen, sort, name, href) for sort, name in COLUMNS),
        heads=tuple(
            HeadLink(
                f"h{head}",
                urls.head(checkpoint.slug, f"L{layer}.h{head}"),
                heads[head] if head < len(heads) else None,
            )
            for head in range(checkpoint.config.n_heads)
        ),
        rows=tuple(rows),
        total=len(every),
        text=chosen.text,
        fields=tuple((name, str(value)) for name, value in chosen.query().items() if value is not None and name != "q"),
    )


def bare_rows(checkpoint: Checkpoint, layer: int) -> tuple[Row, ...]:
    """What is read off the config alone, where no scan has named anything."""
    layout = checkpoint.config.feed_forward
    rows = []
    for unit in range(layout.d_ff):
        kind = layout.kind(unit)
        operands = f"p{layout.pair(unit)}.A {GLYPHS[kind]} p{layout.pair(unit)}.B" if unit < 2 * layout.n_pairs else ""
        pieces = (Piece(operands, token=True),) if operands else ()
        rows.append(
            Row(str(Unit(layer, unit)), unit, kind, GLYPHS[kind], pieces, None, None, None, None, None, None, False)
        )
    return tuple(rows)


def check_layer(checkpoint: Checkpoint, layer: int) -> None:
    """NotFound when the checkpoint has no such layer."""
    count = checkpoint.config.n_layers
    if not 0 <= layer < count:
        raise NotFound(f"There is no layer {layer} in {checkpoint.slug}; it has layers 0 to {count - 1}.")


def _usual(sort: str) -> Literal["up", "down"]:
    return "up" if sort in ("unit", "kind", "label") else "down"


def _passes(row: Row, chosen: Chosen) -> bool:
    if chosen.kind is not None and row.kind != chosen.kind:
        return False
    if chosen.cls is not None and row.cls != chosen.cls:
        return False
    if chosen.nameable and not row.nameable:
        return False
    return not chosen.text or chosen.text.lower() in " ".join(piece.text for piece in row.formula).lower()


def _value(row: Row, sort: Sort) -> Any:
    match sort:
        case "unit":
            return row.index
        case "kind":
            return KINDS.index(row.kind)
        case "label":
            return " ".join(piece.text for piece in row.formula).lower() or None
        case _:
            return getattr(row, sort)


def _key(sort: Sort) -> Callable[[Row], Any]:
    def key(row: Row) -> Any:
        value = _value(row, sort)
        return (value is None, "" if value is None and sort == "label" else 0 if value is None else value)

    return key


def _heading(chosen: Chosen, sort: Sort, name: str, href: Callable[..., str]) -> Heading:
    current = chosen.sort == sort
    usual = _usual(sort)
    other: Literal["up", "down"] = "down" if chosen.order == "up" else "up"
    return Heading(name, href(sort=sort, order=other if current else usual), current, chosen.order == "down")
