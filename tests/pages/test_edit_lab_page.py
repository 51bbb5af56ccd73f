"""The page of the experiments on edits: what is stored, what is missing, what cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_samples import HOSTILE, SLUG, Site

from app.pages.edit_lab import QUESTIONS
from legible_core.editing.results import EXPERIMENTS, FILE, Experiment, Results, table


@pytest.fixture
def stored(site: Site) -> Iterator[Path]:
    """Two experiments beside the weights, with a hostile token in a cell."""
    made = Results(site.checkpoint.hash)
    for name in ("gains", "install"):
        rows = [[HOSTILE, 3.0, 0.97, "0.002 to −0.01"], ["L1.u3", -0.25, None, "–"]]
        rows += [["L1.h2.p1.A", 1.0, 0.5, "–"], ["L1.p3.A", 1.0, 0.5, "–"]]
        found = table("t", "Movement", ["edited", "nats", "own up", "95 %"], rows, f"Note {HOSTILE}", ("own up",))
        made = made.put(Experiment(name, "Said.", f"legible edit-lab {name} {SLUG}", {}, {"n": 1}, (found,)))
    path = made.save(site.checkpoint.path)
    yield path
    path.unlink()


def test_experiments_are_shown_and_the_missing_ones_named(site: Site, stored: Path) -> None:
    page = site.client.get(f"/models/{SLUG}/edit-lab").text
    for name in EXPERIMENTS:
        assert QUESTIONS[name] in page
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count('<td class="n">97 %</td>') == 2
    assert page.count('<td class="n">−0.250</td>') == 2
    assert page.count('<td class="n">0.002 to −0.01</td>') == 2
    assert page.count(f'<a href="/models/{SLUG}/units/L1.u3">L1.u3</a>') == 2
    assert page.count(f'<a href="/models/{SLUG}/heads/L1.h2">L1.h2.p1.A</a>') == 2
    assert "<td>L1.p3.A</td>" in page
    assert f"legible edit-lab circuit {SLUG} --corpus TEXT" in page
    assert f"legible edit-lab gains {SLUG} --corpus TEXT" not in page
    twin = site.client.get(f"/models/{SLUG}/edit-lab.json").json()
    assert [one["name"] for one in twin["experiments"]] == ["gains", "install"]
    assert twin["experiments"][0]["tables"][0]["rows"][1] == ["L1.u3", -0.25, None, "–"]
    assert twin["missing"] == ["rank-one", "circuit", "carried", "drive", "survival"]
    assert f'href="/models/{SLUG}/edit-lab"' in site.client.get(f"/models/{SLUG}").text


def test_without_results_the_page_says_how_to_make_them(site: Site) -> None:
    page = site.client.get(f"/models/{SLUG}/edit-lab").text
    assert page.count("--corpus TEXT") == len(EXPERIMENTS)
    (site.checkpoint.path / FILE).write_text("{}")
    try:
        assert "cannot be used: edit-lab.json is not of format" in site.client.get(f"/models/{SLUG}/edit-lab").text
        assert site.client.get(f"/models/{SLUG}/edit-lab.json").json()["refused"]
    finally:
        (site.checkpoint.path / FILE).unlink()
    assert site.client.get("/models/nobody/edit-lab").status_code == 404
