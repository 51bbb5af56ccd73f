"""Findings pages: items by their addresses, in order, with a text that runs nothing."""

from __future__ import annotations

import pytest
from page_samples import HOSTILE, SLUG, Site, parsed

UNIT = f"/models/{SLUG}/units/L1.u3"
HEAD = f"/models/{SLUG}/heads/L0.h1"


def begin(site: Site, items: str, **fields: str):  # type: ignore[no-untyped-def]
    given = {"title": "Two nots", "text": "", "author": "Ada", "items": items, **fields}
    return site.client.post("/findings", data=given)


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_a_findings_page_has_text_and_items_in_order(site: Site) -> None:
    reading = site.read("it was the best of times")
    made = begin(site, f"{UNIT}#people\nhttp://127.0.0.1:8321{reading}\n\n{HEAD}", text=f"**bold** {HOSTILE}")
    assert made.status_code == 303, made.text
    address = made.headers["location"]
    page = site.client.get(address)
    assert "<strong>bold</strong>" in page.text
    assert HOSTILE not in page.text
    assert "alert(1)" in visible(page.text)
    hrefs = [attrs["href"] for tag, attrs in parsed(page.text).tags if tag == "a" and "/models/" in attrs["href"]]
    assert hrefs[-3:] == [UNIT, reading, HEAD]
    assert all(site.client.get(href).status_code == 200 for href in hrefs[-3:])
    assert "Two nots" in visible(site.client.get("/").text)
    twin = site.client.get(f"{address}.json").json()
    assert [item["component"] for item in twin["items"]] == ["L1.u3", None, "L0.h1"]

    site.services.store.delete(twin["items"][1]["digest"])
    after = visible(site.client.get(address).text)
    assert "was deleted" in after
    assert "best of times" not in after
    edit = site.client.get(f"{address}/edit")
    assert reading.replace("&", "&amp;") in edit.text


def test_adding_from_another_page(site: Site) -> None:
    first = begin(site, UNIT).headers["location"]
    choose = site.client.get("/findings/add", params={"item": HEAD})
    assert "add it here" in choose.text
    for _ in range(2):
        assert site.client.post(f"{first}/add", data={"item": HEAD, "author": "Bob"}).status_code == 303
    found = site.client.get(f"{first}.json").json()
    assert [item["component"] for item in found["items"]] == ["L1.u3", "L0.h1"]
    assert found["author"] == "Bob"
    assert f"/findings/add?item={UNIT.replace('/', '%2F')}" in site.client.get(UNIT).text


def test_the_second_of_two_edits_sees_both(site: Site) -> None:
    address = begin(site, UNIT).headers["location"]
    fields = {"revision": "1", "title": "Bob's", "text": "bob wrote this", "items": HEAD, "author": "Bob"}
    assert site.client.post(address, data=fields).status_code == 303
    told = site.client.post(address, data={**fields, "title": "Ada's", "text": "ada wrote that", "author": "Ada"})
    assert told.status_code == 409
    words = visible(told.text)
    assert "Bob changed this collection" in words
    assert "bob wrote this" in words
    assert "ada wrote that" in words
    assert 'name="revision" value="2"' in told.text


@pytest.mark.parametrize(
    ("item", "status", "said"),
    [
        ("https://evil.example/models/tiny/units/L0.u0", 422, "no reading, unit or head"),
        ("/jobs", 422, "no reading, unit or head"),
        ("javascript:alert(1)", 422, "no reading, unit or head"),
        (f"/models/{SLUG}/units/L9.u0", 404, "no layer 9"),
        (f"/models/{SLUG}/heads/L0.h9", 404, "no head 9"),
        ("/models/nowhere/units/L0.u0", 404, "nowhere"),
        (f"/models/{SLUG}/readings/{'0' * 64}", 404, "not stored here"),
        (f"/models/{SLUG}/readings/{'0' * 64}?position=x", 400, "unusable position"),
    ],
)
def test_items_that_cannot_be_held(shared: Site, item: str, status: int, said: str) -> None:
    answer = begin(shared, item, text="kept")
    assert answer.status_code == status
    assert said in visible(answer.text)
    assert "kept" in answer.text


def test_deleting_a_collection_keeps_what_it_held(site: Site) -> None:
    address = begin(site, UNIT).headers["location"]
    assert site.client.post(f"{address}/delete").headers["location"] == "/findings"
    assert site.client.get(address).status_code == 404
    assert "no collection" in site.client.get(address).text
