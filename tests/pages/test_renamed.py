"""A reading whose checkpoint was scanned anew keeps its names, and says that others have come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_samples import SLUG, Site, open_site, parsed, sample_text

from app.pages.renamed import renamed
from app.scanning import finish, prepare
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.units import Channel, Unit, parse

SENTENCE = "The names are those that this reading was made with; "


@pytest.fixture(scope="module")
def site(scanned: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A workbench over a copy of the checkpoint, which may be scanned anew."""
    root = tmp_path_factory.mktemp("renamed")
    shutil.copytree(scanned.path, root / SLUG)
    made = open_site(root / "data", open_checkpoint(root / SLUG))
    yield made
    made.services.close()


def scan(site: Site, root: Path) -> None:
    """Name the checkpoint by another text."""
    text = root / "other.txt"
    words = sample_text(9, 3000).replace("best", "wisdom").replace("it was", "she could")
    text.write_text("<|endoftext|>".join([words, words[::-1]]), encoding="utf-8")
    found = prepare(site.checkpoint, text, root / "scans", device="cpu")
    for _ in found.run():
        pass
    finish(found, site.checkpoint, None)


def words_of(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def component_of(row: dict[str, Any]) -> Unit | Channel:
    found = parse(row["id"])
    assert isinstance(found, Unit | Channel)
    return found


def test_a_new_scan_is_said_and_changes_no_stored_name(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.pages.readings.TRUST_SECONDS", 0.0)  # a kept page is looked at again each time
    address = site.read("it was the best of times")
    twin = address.replace("?", ".json?")
    before = site.client.get(twin).json()
    first = site.client.get(address)
    compared = site.client.get("/compare", params={"left": address, "right": address})
    assert SENTENCE not in words_of(first.text)
    assert before["stored"]["renamed"] == 0
    assert SENTENCE.lower() not in words_of(compared.text).lower()

    scan(site, tmp_path)
    after = site.client.get(twin).json()
    count = after["stored"]["renamed"]
    assert after["top"] == before["top"], "what is stored does not change"
    names = Names.load(site.checkpoint.path)
    assert names is not None
    changed = 0
    for row in before["top"]:
        if row["kind"] == "head":
            labels = [(o["label"] or {}).get("text") for o in row["operands"]]
            bounded = row["operation"] != "linear"
            now = [names.component(component_of(c)).label if bounded else None for c in row["operands"]]
            changed += labels != [None if label is None else label.text for label in now]
        else:
            changed += row["formula"] != names.component(component_of(row)).formula
    assert 0 < count == changed

    page = words_of(site.client.get(address).text)
    are = "is" if count == 1 else "are"
    assert f"{SENTENCE}{count} of its {len(before['top'])} strongest contributors {are} named otherwise now." in page
    embed = words_of(site.client.get(f"{address}&embed=table").text)
    assert SENTENCE in embed
    assert SENTENCE in words_of(site.client.get(address.replace("?", "/html?")).text)
    beside = words_of(site.client.get("/compare", params={"left": address, "right": address}).text)
    assert f"On the left: {SENTENCE[:1].lower()}{SENTENCE[1:]}" in beside
    assert "On the right: the names" in beside

    unit = next(row for row in before["top"] if row["kind"] != "head" and row["formula"])
    assert site.client.get(f"/models/{SLUG}/units/{unit['id']}.json").json()["name"]["formula"] == str(
        names.component(component_of(unit)).formula
    ), "a unit's own page has the present name"


def test_a_checkpoint_without_names_has_none_that_differ(site: Site) -> None:
    address = site.read("it was the age")
    stored = site.services.store.find(address.split("/")[4].partition("?")[0])
    assert stored is not None
    assert renamed(stored.reading().summary, None) == 0
