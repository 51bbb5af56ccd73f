"""A layer: its units in one dense table, sorted, filtered and cut into pages by the address; counts by class on top."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import Convertor, register_url_convertor

from app.names_index import stamp_of
from app.pages.kept import asked, kept
from app.pages.layer_table import Filters, Range, Sort, layer_table
from app.pages.named import Row, names_of
from app.pages.parts import is_embed
from app.pages.view import html, page, twin
from app.services import Services, services
from app.services import services as services_of
from app.urls import Urls, urls_for
from legible_core.errors import NotFound
from legible_core.reads import opens
from legible_core.registry import Checkpoint
from legible_core.units import GLYPHS, KINDS, Kind, Unit

router = APIRouter(prefix="/models/{slug}/layers", default_response_class=HTMLResponse)

PAGE = 100
LABELS = 40
MAX_PAGE = 10_000
CLASSES = ("SELECTIVE", "FUZZY", "CONSTANT")
COLUMNS: tuple[tuple[Sort, str], ...] = (
    ("unit", "unit"), ("kind", "kind"), ("label", "detects → promotes"), ("crisp", "crisp"), ("on", "ON"),
    ("agreement", "agreement"), ("half_life", "half-life"),
)  # fmt: skip


PLAIN_COLUMNS: tuple[tuple[Sort, str], ...] = (
    ("unit", "unit"), ("kind", "kind"), ("label", "most active on → promotes"), ("mean", "mean"), ("most", "max"),
    ("above", "above 0"), ("agreement", "agreement"),
)  # fmt: skip
RANGES = ("mean", "most", "above", "agreement")


class Asked(BaseModel):
    """The query of the page's address; what is not named takes its usual value and is left out of addresses."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    sort: Sort = "unit"
    order: Literal["up", "down"] | None = None
    kind: Kind | None = None
    cls: Literal["SELECTIVE", "FUZZY", "CONSTANT"] | None = Field(default=None, alias="class")
    nameable: bool = Field(default=False, description="alive, ON on 0.5-20 %, agreement 0.8 or more")
    label: str | None = Field(default=None, max_length=100, description="a class label, on either side")
    half_min: float | None = Field(default=None, ge=0, description="half-life in tokens, at least")
    half_max: float | None = Field(default=None, ge=0, description="half-life in tokens, at most")
    mean_min: float | None = Field(default=None, allow_inf_nan=False, description="of an ordinary model's units")
    mean_max: float | None = Field(default=None, allow_inf_nan=False)
    most_min: float | None = Field(default=None, allow_inf_nan=False, description="their maximum, at least")
    most_max: float | None = Field(default=None, allow_inf_nan=False)
    above_min: float | None = Field(default=None, ge=0, le=100, description="per cent of tokens above 0")
    above_max: float | None = Field(default=None, ge=0, le=100)
    agreement_min: float | None = Field(default=None, ge=0, le=1)
    human: bool = Field(default=False, description="named or noted by people, itself or an operand")
    q: str = Field(default="", max_length=80, description="part of a name")
    page: int = Field(default=1, ge=1, le=MAX_PAGE)

    @property
    def down(self) -> bool:
        return (self.order or usual(self.sort)) == "down"

    def filters(self, human: frozenset[int]) -> Filters:
        label = self.label.strip() if self.label else None
        return Filters(
            self.kind, self.cls, self.nameable, label or None, self.half_min, self.half_max, self.q.strip(),
            human if self.human else None, self._ranges(),
        )  # fmt: skip

    def _ranges(self) -> tuple[Range, ...]:
        def end(name: str) -> float | None:
            asked: float | None = getattr(self, name, None)
            # Shares are asked for in per cent.
            return asked / 100 if asked is not None and name.startswith("above") else asked

        found = ((name, end(f"{name}_min"), end(f"{name}_max")) for name in RANGES)
        return tuple((name, low, high) for name, low, high in found if low is not None or high is not None)

    def query(self, **changes: Any) -> dict[str, Any]:
        """The address's query after some changes; a change of anything but the page leads to the first page."""
        changed = self.model_copy(update={"page": 1, **changes})
        return {
            "sort": None if changed.sort == "unit" else changed.sort,
            "order": None if changed.order in (None, usual(changed.sort)) else changed.order,
            "kind": changed.kind,
            "class": changed.cls,
            "nameable": 1 if changed.nameable else None,
            "human": 1 if changed.human else None,
            "label": changed.label or None,
            "half_min": _short(changed.half_min),
            "half_max": _short(changed.half_max),
            **{name: _short(getattr(changed, name)) for name in NUMBERS},
            "q": changed.q.strip() or None,
            "page": changed.page if changed.page > 1 else None,
        }


NUMBERS = (
    "mean_min", "mean_max", "most_min", "most_max", "above_min", "above_max", "agreement_min",
)  # fmt: skip


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
    """`passing` units pass the filters, of `total`; `rows` are those from `first` on, counted from 1."""

    title: str
    slug: str
    layer: int
    n_layers: int
    missing: str | None
    plain: bool
    counts: tuple[tuple[str, int], ...]
    human: Chip
    kinds: tuple[Chip, ...]
    classes: tuple[Chip, ...]
    headings: tuple[Heading, ...]
    heads: tuple[HeadLink, ...]
    rows: tuple[Row, ...]
    total: int
    passing: int
    first: int
    page: int
    pages: int
    before: str | None
    after: str | None
    clear: str | None
    labels: tuple[tuple[str, int], ...]
    people: dict[str, tuple[str, ...]]
    asked: Asked
    fields: tuple[tuple[str, str], ...]


JSON_FIELDS = (
    "title", "slug", "layer", "missing", "counts", "total", "passing", "first", "page", "pages", "rows", "people",
)  # fmt: skip


class Number(Convertor[int]):
    """A whole number in an address. Starlette's own raises for one of thousands of digits, where no error is caught."""

    regex = "[0-9]{1,9}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


def setup(app: FastAPI) -> None:
    """A plain route before all others: for a page that is kept, the way to it was half of its time."""
    register_url_convertor("layer", Number())
    app.router.add_route("/models/{slug}/layers/{layer:layer}", _plain, methods=["GET"], include_in_schema=False)
    for form in ("", ".json"):
        path = f"/models/{{slug}}/layers/L{{layer:layer}}{form}"
        app.router.add_route(path, _by_id, methods=["GET"], include_in_schema=False)


@router.get("/{layer}.json")
def layer_json(
    slug: str, layer: int, asked_: Annotated[Asked, Query()], request: Request,
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """The JSON twin: the same rows in the same order, page by page."""
    made = _layer(services, services.catalogue.get(slug), layer, asked(Asked, request), urls_for(request))
    return twin({key: getattr(made, key) for key in JSON_FIELDS})


@router.get("/{layer}")
async def layer(slug: str, layer: int, asked_: Annotated[Asked, Query()], request: Request) -> Response:
    """The units of a layer."""
    return await _kept(request, layer)


async def _plain(request: Request) -> Response:
    return await _kept(request, request.path_params["layer"])


async def _by_id(request: Request) -> Response:
    """A layer named as in the ids of its units and heads, L0: off to its own address, with what was asked."""
    urls, asked = urls_for(request), request.url.query
    address = urls.layer(request.path_params["slug"], request.path_params["layer"])
    if request.url.path.endswith(".json"):
        address = urls.json(address)
    return RedirectResponse(f"{address}?{asked}" if asked else address, status_code=303)


async def _kept(request: Request, layer: int) -> Response:
    services, slug = services_of(request), request.path_params["slug"]

    def mark() -> Any:
        checkpoint = services.catalogue.get(slug)
        named = (stamp_of(checkpoint.path), checkpoint.names_state)
        return (checkpoint.hash, *named, services.notes.mark(checkpoint.hash))

    def make() -> bytes | Response:
        made = _layer(services, services.catalogue.get(slug), layer, asked(Asked, request), urls_for(request))
        return page(request, "layer.html", made) if is_embed(request) else html(request, "layer.html", made).encode()

    return await kept(request, mark, make)


def _layer(services: Services, checkpoint: Checkpoint, layer: int, asked: Asked, urls: Urls) -> LayerPage:
    check_layer(checkpoint, layer)
    names, missing = names_of(checkpoint)
    table = layer_table(checkpoint.config, names, layer)
    people = _people(services, checkpoint, layer)
    named = frozenset(unit for unit, _ in people)
    places = table.chosen(asked.filters(named), asked.sort, down=asked.down)
    pages = max(1, -(-len(places) // PAGE))
    page = min(asked.page, pages)
    start = (page - 1) * PAGE

    def href(**changes: Any) -> str:
        return urls.layer(checkpoint.slug, layer, **asked.query(**changes))

    plain = names is not None and names.plain is not None
    classes, kinds, nameable = table.counts()
    heads = () if names is None else tuple((names.legibility["layers"][layer].get("heads")) or ())
    query = asked.query()
    filtered = any(query[name] is not None for name in query if name not in ("sort", "order", "page"))
    return LayerPage(
        title=f"Layer {layer} of {checkpoint.slug}",
        slug=checkpoint.slug,
        layer=layer,
        n_layers=checkpoint.config.n_layers,
        missing=missing,
        plain=plain,
        counts=() if plain else tuple((name, classes[name]) for name in CLASSES),
        human=Chip("named by people", href(human=not asked.human), len(named), asked.human),
        kinds=(
            Chip("all kinds", href(kind=None), len(table), asked.kind is None),
            *(
                Chip(f"{GLYPHS[kind]} {kind}", href(kind=kind), kinds[kind], asked.kind == kind)
                for kind in KINDS
                if kinds[kind]
            ),
        ),
        classes=()
        if names is None or plain
        else (
            Chip("all classes", href(cls=None, nameable=False), None, asked.cls is None and not asked.nameable),
            *(Chip(name, href(cls=name), classes[name], asked.cls == name) for name in CLASSES),
            Chip("nameable", href(nameable=not asked.nameable), nameable, asked.nameable),
        ),
        headings=tuple(_heading(asked, sort, name, href) for sort, name in (PLAIN_COLUMNS if plain else COLUMNS)),
        heads=tuple(
            HeadLink(
                f"h{head}",
                urls.head(checkpoint.slug, f"L{layer}.h{head}"),
                heads[head] if head < len(heads) else None,
            )
            for head in range(checkpoint.config.n_heads)
        ),
        rows=table.rows(places[start : start + PAGE]),
        total=len(table),
        passing=len(places),
        first=start + 1 if places else 0,
        page=page,
        pages=pages,
        before=href(page=page - 1) if page > 1 else None,
        after=href(page=page + 1) if page < pages else None,
        clear=urls.layer(checkpoint.slug, layer, sort=query["sort"], order=query["order"]) if filtered else None,
        labels=tuple(table.labels()[:LABELS]),
        people={f"L{layer}.u{unit}": said for unit, said in people},
        asked=asked,
        fields=tuple(
            (name, str(value))
            for name, value in query.items()
            if value is not None and name not in ("q", "label", "half_min", "half_max", *NUMBERS)
        ),
    )


def _people(services: Services, checkpoint: Checkpoint, layer: int) -> list[tuple[int, tuple[str, ...]]]:
    """The units of a layer of which people say something, themselves or their operands, and the names they give."""
    notes = services.notes.layer(checkpoint.hash, layer)
    if not notes:
        return []
    found = []
    for unit in range(checkpoint.config.feed_forward.d_ff):
        parts = [str(part) for part in (Unit(layer, unit), *opens(checkpoint.config, Unit(layer, unit)))]
        names = [notes[part].name or "noted" for part in parts if part in notes]
        if names:
            found.append((unit, tuple(dict.fromkeys(names))))
    return found


def check_layer(checkpoint: Checkpoint, layer: int) -> None:
    """NotFound when the checkpoint has no such layer."""
    count = checkpoint.config.n_layers
    if not 0 <= layer < count:
        raise NotFound(f"There is no layer {layer} in {checkpoint.slug}; it has layers 0 to {count - 1}.")


def usual(sort: str) -> Literal["up", "down"]:
    """The order that a column has until it is turned round."""
    return "up" if sort in ("unit", "kind", "label") else "down"


def _heading(asked: Asked, sort: Sort, name: str, href: Callable[..., str]) -> Heading:
    current = asked.sort == sort
    other: Literal["up", "down"] = "up" if asked.down else "down"
    return Heading(name, href(sort=sort, order=other if current else usual(sort)), current, asked.down)


def _short(number: float | None) -> str | None:
    return None if number is None else repr(number).removesuffix(".0")
