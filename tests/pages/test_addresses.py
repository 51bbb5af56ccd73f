"""For random view states: address → page state → address is the identity, and the state comes back whole."""

from __future__ import annotations

from typing import Any, TypeVar, get_args
from urllib.parse import unquote, urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.datastructures import QueryParams

from app.pages import layers, readings, search
from app.pages.compare_sides import permalink
from app.pages.layer_table import Sort
from app.pages.reading_view import Chosen
from app.pages.why import asked_why
from app.urls import Urls
from legible_core.units import KINDS, Channel, Component, Head, Operand, Unit, parse

M = TypeVar("M", bound=BaseModel)
FEW = settings(max_examples=60, deadline=None)
URLS = st.sampled_from([Urls(), Urls("/legible")])
SLUGS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)
DIGESTS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
NUMBER = st.integers(0, 99_999)
HEADS = st.builds(Head, st.integers(0, 99), st.integers(0, 99))
UNITS = st.builds(Unit, st.integers(0, 99), st.integers(0, 9999))
TYPED = st.text(max_size=40)


def state(model: type[M], address: str) -> M:
    """The page's state, read from an address by the same parser and model as the page's."""
    return model.model_validate(dict(QueryParams(urlsplit(address).query)))


def path(urls: Urls, address: str) -> list[str]:
    """The segments below the root path."""
    return [unquote(part) for part in urlsplit(address).path.removeprefix(urls.root_path).split("/")[1:]]


@st.composite
def choices(draw: Any) -> Chosen:
    """Everything that a reading's page has in its address."""
    contrast = draw(st.none() | NUMBER)
    relative = "contrast" if contrast is not None else draw(st.sampled_from(["nothing", "mean"]))
    component = draw(st.none() | HEADS.map(str) | UNITS.map(str))
    return Chosen(draw(NUMBER), draw(NUMBER), contrast, relative, component)


@FEW
@given(URLS, SLUGS, DIGESTS, choices())
def test_reading(urls: Urls, slug: str, digest: str, chosen: Chosen) -> None:
    address = urls.reading(slug, digest, **chosen.query())
    asked = state(readings.Asked, address)
    usual = "nothing" if asked.contrast is None else "contrast"
    assert asked.position is not None
    assert asked.target is not None
    again = Chosen(asked.position, asked.target, asked.contrast, asked.relative_to or usual, asked.component)
    assert again == chosen
    assert urls.reading(*path(urls, address)[1::2], **again.query()) == address


@FEW
@given(URLS, SLUGS, DIGESTS, SLUGS, DIGESTS, choices(), choices())
def test_comparison(urls: Urls, slug: str, digest: str, slug2: str, digest2: str, one: Chosen, two: Chosen) -> None:
    sides = [urls.reading(slug, digest, **one.query()), urls.reading(slug2, digest2, **two.query())]
    address = urls.compare(left=sides[0], right=sides[1])
    query = QueryParams(urlsplit(address).query)
    assert [query["left"], query["right"]] == sides
    for name, side, chosen in (("left", slug, one), ("right", slug2, two)):
        found, hash_, asked = permalink(urls, name, query[name])
        assert (found, asked.position, asked.target) == (side, chosen.position, chosen.target)
        named = asked.model_dump(include={"position", "target", "contrast", "relative_to", "component"})
        assert urls.reading(found, hash_, **named) == query[name]
    assert urls.compare(left=query["left"], right=query["right"]) == address


HALF_LIFE = st.none() | st.floats(0, 1e9, allow_nan=False)
LAYER_STATES = st.builds(
    layers.Asked,
    sort=st.sampled_from(get_args(Sort)),
    order=st.sampled_from([None, "up", "down"]),
    kind=st.none() | st.sampled_from(KINDS),
    cls=st.sampled_from([None, "SELECTIVE", "FUZZY", "CONSTANT"]),
    nameable=st.booleans(),
    label=st.none() | TYPED,
    half_min=HALF_LIFE,
    half_max=HALF_LIFE,
    q=TYPED,
    page=st.integers(1, 400),
)


@FEW
@given(URLS, SLUGS, st.integers(0, 99), LAYER_STATES)
def test_layer(urls: Urls, slug: str, layer: int, asked: layers.Asked) -> None:
    address = urls.layer(slug, layer, **asked.query(page=asked.page))
    again = state(layers.Asked, address)
    assert (again.filters(frozenset()), again.sort, again.down, again.page) == (
        asked.filters(frozenset()), asked.sort, asked.down, asked.page,
    )  # fmt: skip
    assert urls.layer(slug, layer, **again.query(page=again.page)) == address


@FEW
@given(URLS, TYPED, st.sampled_from([None, "promote", "detect"]), st.integers(2, 100))
def test_search(urls: Urls, q: str, side: str | None, page: int) -> None:
    address = urls.search(q=q, side=side, page=page)
    again = state(search.Asked, address)
    assert (again.q, again.side, again.page) == (q, side, page)
    assert urls.search(q=again.q, side=again.side, page=again.page) == address


COMPONENTS = st.one_of(
    HEADS,
    UNITS,
    st.builds(Channel, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    st.builds(Operand, st.integers(0, 99), st.integers(0, 999), st.sampled_from(["A", "B"])),
)


@FEW
@given(URLS, SLUGS, DIGESTS, st.lists(COMPONENTS, min_size=1, max_size=6), NUMBER)
def test_values_components_and_why(urls: Urls, slug: str, digest: str, components: list[Component], at: int) -> None:
    listed = ",".join(map(str, components))
    address = urls.values(slug, digest, components=listed)
    found = [parse(part) for part in QueryParams(urlsplit(address).query)["components"].split(",")]
    assert found == components
    assert urls.values(slug, digest, components=",".join(map(str, found))) == address
    first = components[0]
    address = urls.why(slug, digest, first, at=at, component=listed.partition(",")[0])
    query = QueryParams(urlsplit(address).query)
    asked = asked_why(int(query["at"]), query["component"])
    assert parse(path(urls, address)[-1]) == first
    assert urls.why(slug, digest, first, at=asked.at, component=asked.component) == address


@FEW
@given(URLS, SLUGS, UNITS, HEADS, TYPED, SLUGS)
def test_components_home_and_runs(urls: Urls, slug: str, unit: Unit, head: Head, prompt: str, run: str) -> None:
    assert [parse(path(urls, urls.unit(slug, unit))[-1]), parse(path(urls, urls.head(slug, head))[-1])] == [unit, head]
    home = QueryParams(urlsplit(urls.home(model=slug, prompt=prompt)).query)
    assert urls.home(model=home["model"], prompt=home["prompt"]) == urls.home(model=slug, prompt=prompt)
    assert path(urls, urls.run(run)) == ["runs", run]
