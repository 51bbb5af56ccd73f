"""A child's page: its parent, its edits, its comparison with the parent; the parent's page lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_samples import SLUG, Site, parsed

from app.commands.models import add_checkpoint
from legible_core.checkpoint import write_card
from legible_core.child import save_child
from legible_core.folder import Card
from legible_core.interventions_text import parse_edit
from legible_core.registry import Checkpoint

EDITS = ["L1.u3:zero", "L0.p2.B:flip", "L1.h0:scale=0.5", "L1.u19.m:flip"]


@pytest.fixture
def child(site: Site, tmp_path: Path) -> Checkpoint:
    saved = save_child(site.checkpoint, tuple(parse_edit(text) for text in EDITS), tmp_path / "quiet")
    return add_checkpoint(site.services, saved.path, "quiet")


def text_of(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_a_child_shows_its_parent_and_edits_and_compares_the_two(site: Site, child: Checkpoint) -> None:
    page = site.client.get("/models/quiet").text
    said = text_of(page)
    assert "An edited child" in said
    assert all(edit in said for edit in EDITS)
    for href in ("units/L1.u3", "units/L0.u2", "heads/L1.h0", "units/L1.u19"):
        assert f'href="/models/{SLUG}/{href}"' in page
    assert re.search(rf'href="/models/{SLUG}"', page)
    data = site.client.get("/models/quiet.json").json()
    assert data["family"]["origin"]["parent_hash"] == site.checkpoint.hash
    assert [edit["text"] for edit in data["family"]["origin"]["edits"]] == EDITS
    parent = site.client.get(f"/models/{SLUG}").text
    assert 'href="/models/quiet"' in parent
    assert "4 edits, first L1.u3:zero" in text_of(parent)
    answer = site.client.post("/models/quiet/against-parent", data={"prompt": "it was the best"})
    assert answer.status_code == 303
    site.client.get(answer.headers["location"])
    site.work()
    answer = site.client.get(answer.headers["location"])
    if answer.status_code == 303:
        answer = site.client.get(answer.headers["location"])
    assert answer.status_code == 200
    assert "quiet" in answer.text
    assert SLUG in answer.text
    assert "edited forms of one another" in answer.text
    address = answer.request.url.path + ".json?" + answer.request.url.query.decode()
    found = site.client.get(address).json()
    assert found["components"][0]["difference"] == pytest.approx(
        found["components"][0]["right"] - found["components"][0]["left"]
    )
    assert abs(found["residual"]) <= found["tolerance"], "the components' differences make up the values'"


def test_a_parent_that_is_gone_and_a_torn_card_are_said(site: Site, child: Checkpoint) -> None:
    card = Card({**child.card.fields, "parent": "0" * 64, "parent_slug": "lost<b>"})
    write_card(child.path, card)
    site.services.catalogue.refresh()
    page = site.client.get("/models/quiet").text
    assert "lost&lt;b&gt; <span" in page
    assert "not here any more" in page
    assert "against-parent" not in page
    answer = site.client.post("/models/quiet/against-parent", data={"prompt": "it was"})
    assert answer.status_code == 404
    write_card(child.path, Card({**child.card.fields, "edits": "no list"}))
    site.services.catalogue.refresh()
    assert "its edits cannot be read" in text_of(site.client.get("/models/quiet").text)
    answer = site.client.post(f"/models/{SLUG}/against-parent", data={"prompt": "it was"})
    assert answer.status_code == 404
    assert "is no child checkpoint" in answer.text
