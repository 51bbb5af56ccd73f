"""What one takes away of a reading: CSV, one HTML file, a citation; all say what the JSON says and run nothing."""

from __future__ import annotations

import json
import re

import pytest
from page_samples import HOSTILE, Site, parsed

from app.figures import signed
from app.pages.citation import escaped
from app.pages.export import inert


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =cmd|' /C calc'!A0", "\uff1d1+1", "\uff0b1"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert inert(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "determiner ∖ *", "a=b", "∩ -x"])
def test_other_cells_stay_as_they_are(text: str) -> None:
    assert inert(text) == text


def test_a_cell_holds_no_nul() -> None:
    assert inert("a\x00=b") == "a\ufffd=b"


def test_the_file_is_the_reading_and_asks_for_nothing(shared: Site) -> None:
    address = shared.read(f"it was {HOSTILE}")
    answer = shared.client.get(address.replace("?", "/html?"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "attachment" in answer.headers["content-disposition"]
    assert '.html"' in answer.headers["content-disposition"]
    data = shared.client.get(address.replace("?", ".json?")).json()

    page = parsed(answer.text)
    tags = [tag for tag, _ in page.tags]
    assert "form" not in tags
    assert "link" not in tags
    assert "img" not in tags
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == ["application/json"]
    assert tags.count("svg") == 2
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    ids = {attrs["id"] for _, attrs in page.tags if attrs.get("id")}
    for _, attrs in page.tags:
        assert "src" not in attrs
        target = attrs.get("href", "#terms")
        assert target.startswith("#"), "no link leaves the file"
        assert target[1:] in ids
    kept = re.search(r'<script type="application/json" id="reading">(.*?)</script>', answer.text, re.DOTALL)
    assert kept is not None
    del data["stored"]  # of the row in the database, not of the reading
    assert json.loads(kept[1]) == data
    words = " ".join("".join(page.text).split())
    assert data["checkpoint"]["hash"] in words
    assert all(contributor["id"] in words for contributor in data["top"])
    assert all(signed(value) in words for layer in data["layers"] for value in layer["heads"])


def test_the_citation_names_weights_code_and_reading(shared: Site) -> None:
    address = shared.read("it was the 100% best_of {times} & $5 #1")
    answer = shared.client.get(address.replace("?", "/cite?"))
    assert answer.headers["content-type"].startswith("text/plain")
    line = answer.text
    stored = shared.services.store.find(address.split("/")[4].partition("?")[0])
    assert stored is not None
    assert line.count("\n") == 1
    assert line.startswith(f"@misc{{legible-{stored.digest[:10]}-")
    assert f"weights SHA-256 {shared.checkpoint.hash}" in line
    assert f"Legible {stored.code_version}" in line
    assert f"url={{http://127.0.0.1:8321{address}}}" in line
    assert r"100\% best\_of \{times\} \& \$5 \#1" in line
    bare = re.sub(r"\\.", "", line)
    assert bare.count("{") == bare.count("}")
    assert line == shared.client.get(address.replace("?", "/cite?")).text
    assert stored.code_version in shared.client.get(address).text


def test_what_tex_would_run_is_text() -> None:
    assert escaped("\\input{x}^~") == r"\textbackslash{}input\{x\}\textasciicircum{}\textasciitilde{}"


@pytest.mark.parametrize("part", ["csv", "html", "cite"])
def test_nothing_is_exported_of_what_is_not_stored(shared: Site, part: str) -> None:
    answer = shared.client.get(f"/models/tiny/readings/{'0' * 64}/{part}")
    assert answer.status_code == 404
    assert "not stored yet" in answer.text


@pytest.mark.parametrize("part", ["csv", "html", "cite"])
def test_exports_need_no_worker_and_no_checkpoint(site: Site, part: str) -> None:
    address = site.read("it was the best")
    site.services.store.remove_checkpoint("tiny")
    site.services.catalogue.refresh()
    assert site.client.get(address.replace("?", f"/{part}?")).status_code == 200
