"""Causal checks: the column on a reading, the views of their page, the JSON twins, and what cannot be asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page_samples import SLUG, Site, parsed, title

from app.figures import signed, telling

PROMPT = "it was the age of wisdom it was the"
DOCUMENT = (Path(__file__).parents[2] / "docs" / "causal.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(shared: Site) -> Site:
    return shared


@pytest.fixture(scope="module")
def address(site: Site) -> str:
    return site.read(PROMPT)


def causal(address: str, end: str = "", **query: str) -> str:
    path, _, where = address.partition("?")
    return f"{path}/causal{end}?{where}" + "".join(f"&{name}={value}" for name, value in query.items())


def fields(data: Any) -> set[str]:
    """Every key of a document, those of components and kinds aside."""
    if isinstance(data, list):
        return set().union(*map(fields, data)) if data else set()
    if not isinstance(data, dict):
        return set()
    return set(data) | set().union(*(fields(value) for name, value in data.items() if name != "kinds"))


def done(site: Site, address: str) -> tuple[str, dict[str, Any]]:
    """A view once the worker has been there: its page and its document."""
    path, _, query = address.partition("?")
    waiting = site.client.get(address)
    assert waiting.status_code == 200
    site.work()
    page = site.client.get(address).text
    assert 'hx-trigger="every' not in page
    data = site.client.get(f"{path}.json?{query}").json()
    assert [name for name in sorted(fields(data)) if f"`{name}`" not in DOCUMENT] == [], "every field is documented"
    for tag, attrs in parsed(page).tags:
        assert tag != "style"
        assert "style" not in attrs
    return page, data


def test_the_column_is_asked_for_made_once_and_then_stays(site: Site, address: str) -> None:
    page = site.client.get(address).text
    assert '<th scope="col">removed</th>' not in page
    asks = re.search(r'hx-get="([^"]+checks=1)" hx-trigger="load"', page)
    assert asks is not None
    assert site.services.queue.about(address.partition("?")[0].rpartition("/")[2], "check") == []
    asking = asks[1].replace("&amp;", "&")
    waiting = site.client.get(asking).text
    assert 'id="checks-wait"' in waiting
    assert 'hx-trigger="every' in waiting
    site.work()
    site.client.app.state.reading_pages.clear()  # a kept page is trusted for a second
    for where in (asking, address):
        page = site.client.get(where).text
        assert '<th scope="col">removed</th>' in page
        assert 'hx-trigger="load"' not in page
    _, data = done(site, causal(address))
    text = "".join(parsed(page).text)
    for row in data["checks"][:5]:
        said = signed(row["total"]) if row["agrees"] else telling(row["total"])
        assert f"{said} {'✓' if row['agrees'] else '⚠'}" in text
    assert len(site.services.queue.about(address.partition("?")[0].rpartition("/")[2], "check")) == 1
    assert "No band was measured" in page


def test_every_view_is_a_page_and_a_document(site: Site, address: str) -> None:
    page, data = done(site, causal(address))
    assert "By half of the stack" in page
    assert {half["half"] for half in data["halves"]} >= {"all"}
    page, data = done(site, causal(address, view="necessity"))
    assert [row["k"] for row in data["rows"]] == [1, 2, 4, 8, 16, 32, 64]
    assert "random sets" in page
    page, data = done(site, causal(address, view="sufficiency"))
    assert f"{data['size']:,}" in page
    assert "Prefixes of the ranking" in page
    page, data = done(site, causal(address, view="path", first="L0.h1", second="L1.u3"))
    assert "L0.h1" in title(page) or "causal path" in page
    assert data["effect"] == pytest.approx(data["direct"] + data["through"] + data["other"])
    page, data = done(site, causal(address, view="sources", operand="L1.p2.A"))
    assert f"{data['credited']['n']} leading sources" in "".join(parsed(page).text)
    jobs = site.client.get("/jobs").text
    assert "causal path L0.h1 L1.u3 of" in jobs
    for view in ("path", "sources"):
        form = site.client.get(causal(address, view=view))
        assert form.status_code == 200
        assert "<form" in form.text


def test_an_edited_reading_is_asked_the_same_and_its_command_has_the_edits(site: Site) -> None:
    answer = site.client.post(f"/models/{SLUG}/readings", data={"prompt": PROMPT, "edits": "L1.u5:scale=3"})
    site.work()
    address = site.client.get(answer.headers["location"]).headers["location"]
    page, data = done(site, causal(address, view="sufficiency"))
    assert data["size"] <= data["prefix"] <= data["components"]
    assert "Asked of the reading" not in site.client.get(causal(site.read(PROMPT))).text
    assert "Asked of the reading under an edit: <code>L1.u5:scale=3</code>." in page
    words = re.search(r"<pre>(legible sufficiency [^<]+)</pre>", page)
    assert words is not None
    assert words[1].endswith("--edit L1.u5:scale=3")
    mean = site.client.get(causal(address, view="necessity", relative_to="mean")).text
    assert "--relative-to mean --edit L1.u5:scale=3</pre>" in mean


def test_what_cannot_be_asked_is_one_sentence(site: Site, address: str) -> None:
    for query, status, words in (
        ({"view": "nonsense"}, 422, "view"),
        ({"view": "path", "first": "L0.h1", "second": "L9.u0"}, 404, "no layer 9"),
        ({"view": "sources", "operand": "L1.u0"}, 404, "made of operands"),
        ({"view": "path", "first": "x", "second": "L1.u0"}, 400, "no component id"),
    ):
        answer = site.client.get(causal(address, ".json", **query))
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"]
    assert site.client.get(causal(address, ".json", view="path")).status_code == 400
    wrong = causal(address, view="path", first="L1.u0", second="L0.h1")
    site.client.get(wrong)
    site.work()
    page = site.client.get(wrong).text
    assert "is not later than" in page
    assert "try again" in page
