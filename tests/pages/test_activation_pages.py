"""Pages of checkpoints whose plain units are sigmoid or ReLU: what a unit is said to be, and to detect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_samples import SLUG, Site, make_checkpoint, open_site, parsed

from legible_core.config import FeedForward

PLAIN = 30


@pytest.fixture(scope="module", params=["sigmoid", "relu"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    root = tmp_path_factory.mktemp(request.param)
    scanned = make_checkpoint(root / "models", units=FeedForward(48, 0.5, 0.25, request.param))
    site = open_site(root / "data", scanned)
    yield site, request.param
    site.services.close()


def said(site: Site, path: str) -> str:
    answer = site.client.get(f"/models/{SLUG}{path}")
    assert answer.status_code == 200
    return " ".join(" ".join(parsed(answer.text).text).split())


def test_the_unit_page_says_what_the_unit_is(plain: tuple[Site, str]) -> None:
    site, activation = plain
    page = said(site, f"/units/L0.u{PLAIN}")
    document = site.client.get(f"/models/{SLUG}/units/L0.u{PLAIN}.json").json()
    assert document["kind"] == activation
    if activation == "sigmoid":
        assert "a membership: its own operand" in page
        assert document["name"]["operands"] == [f"L0.u{PLAIN}"]
        assert document["operands"][0]["cls"] == document["name"]["cls"] is not None
        assert f"value L0.u{PLAIN}" in page
        assert page.count("crisp") >= 1
    else:
        assert "A ReLU unit has no operands and no rails: what it detects is undefined." in page
        assert document["name"]["cls"] is document["name"]["mean"] is None
        assert "Statistics" not in page


def test_the_layer_page_counts_and_filters_the_kind(plain: tuple[Site, str]) -> None:
    site, activation = plain
    rows = site.client.get(f"/models/{SLUG}/layers/0.json", params={"kind": activation}).json()["rows"]
    assert [row["index"] for row in rows] == list(range(24, 48))
    classes = {row["cls"] for row in rows}
    assert (None in classes) == (activation == "relu")


def test_the_model_page_and_a_reading_name_the_units(plain: tuple[Site, str]) -> None:
    site, activation = plain
    name = {"sigmoid": "sigmoid", "relu": "ReLU"}[activation]
    assert f"{name} beside them" in said(site, "")
    path = site.read("it was the best")
    page = " ".join(" ".join(parsed(site.client.get(path).text).text).split())
    assert ("sigmoid units" if activation == "sigmoid" else "ReLU") in page
    data = site.client.get(path.replace("?", ".json?")).json()
    assert activation in data["groups"]
    assert data["groups"]["gelu"] == 0


def test_a_plain_unit_over_the_tokens_of_a_reading(plain: tuple[Site, str]) -> None:
    site, _ = plain
    path = site.read("it was the worst")
    digest = path.partition("/readings/")[2].partition("?")[0]
    page = site.client.get(f"/models/{SLUG}/units/L1.u{PLAIN}", params={"reading": digest})
    assert page.status_code in (200, 303)
