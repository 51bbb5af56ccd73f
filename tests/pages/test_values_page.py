"""Components over one's own text: stored, streamed in by parts, deleted; and texts and ids that are refused."""

from __future__ import annotations

import re

import pytest
import torch
from page_samples import SLUG, Site, links, parsed, sample_text, title

from app.pages.values_view import MAX_TEXT_BYTES, PART
from legible_core.checkpoint import load
from legible_core.reads import windows
from legible_core.units import parse
from legible_core.values import part_values

ASKED = "L1.u7,L0.p7.A,L0.u19.m,L1.h1.p2.B,L1.h1.c3,L1.h3.c0,L0.h2,L1.u47"


def post(site: Site, components: str, text: str) -> str:
    answer = site.client.post(f"/models/{SLUG}/values", data={"components": components, "text": text})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def test_a_short_text_has_the_models_own_values(site: Site) -> None:
    address = post(site, ASKED, "it was the best of times\n\tit was")
    first = site.client.get(address)
    assert 'hx-trigger="every' in first.text
    twin = address.replace("?", ".json?")
    waiting = site.client.get(twin)
    assert waiting.status_code == 202
    assert waiting.json()["components"][0]["values"][0] is None
    site.work()
    data = site.client.get(twin)
    assert data.status_code == 200
    found = data.json()
    assert [c["id"] for c in found["components"]] == ASKED.split(",")
    model = load(site.checkpoint)
    ids = [token["id"] for token in found["tokens"]]
    [expected] = part_values(model, ids, [parse(c) for c in ASKED.split(",")], windows(len(ids), 64))
    for row, wanted in zip(found["components"], expected, strict=True):
        torch.testing.assert_close(torch.tensor(row["values"]), wanted, atol=2e-6, rtol=1e-5)
    page = site.client.get(address).text
    assert 'hx-trigger="every' not in page
    assert "fit the context of 64" in "".join(parsed(page).text)
    assert "L1.u7" in title(page)
    assert page.count('<b class="t">') == len(ids)
    assert any(re.search(r"/why/L0\.p7\.A\?at=\d+", link) for link in links(page))
    assert not any("/why/L1.u7?" in link for link in links(page)), "a set operator reads nothing itself"
    table = site.client.get(f"{address}&view=table").text
    assert f"{expected[1][0]:.3f}" in table
    assert len(site.services.queue.about(found["digest"])) == 1, "looking again asks no worker"


def test_a_long_text_streams_in_by_parts_and_says_how_its_windows_overlap(site: Site) -> None:
    address = post(site, "L1.u7,L0.h2", sample_text(0, 700) + sample_text(1, 700))
    page = site.client.get(address).text
    count = len(re.findall(r'id="t\d', page))
    assert count == PART
    parts = page.count("…</a>")
    assert parts >= 3
    assert site.worker.work_once()
    page = site.client.get(address).text
    assert page.count("✓</a>") == 1
    assert page.count("…</a>") == parts - 1
    assert 'hx-trigger="every' in page
    assert '<i class="a' in page
    second = site.client.get(f"{address}&part=1").text
    assert '<i class="a' not in second
    site.work()
    page = site.client.get(f"{address}&part=1").text
    assert 'hx-trigger="every' not in page
    assert "windows of 64 tokens that start 32 after one another" in "".join(parsed(page).text)
    assert "/why/" not in page, "a sum belongs to a prompt that is read as a whole"
    assert len(page) < 150_000
    found = site.client.get(address.replace("?", ".json?")).json()
    ids = [token["id"] for token in found["tokens"]]
    rows = part_values(load(site.checkpoint), ids, [parse("L1.u7"), parse("L0.h2")], windows(len(ids), 64))
    expected = torch.cat(list(rows), dim=1)
    for row, wanted in zip(found["components"], expected, strict=True):
        torch.testing.assert_close(torch.tensor(row["values"]), wanted, atol=1e-5, rtol=1e-5)
    assert site.client.get(f"{address}&part={parts}").status_code == 404


def test_the_heaviest_page_stays_within_its_limit(site: Site) -> None:
    address = post(site, ASKED, sample_text(3, 700))
    site.work()
    for view in ("strip", "table"):
        page = site.client.get(f"{address}&view={view}")
        assert page.status_code == 200
        assert len(page.content) < 150_000, view


def test_the_text_is_forgotten_when_it_is_deleted(site: Site) -> None:
    address = post(site, "L1.u7", "she could have been a secret")
    site.work()
    path = address.partition("?")[0]
    assert site.client.post(f"{path}/delete").status_code == 303
    assert site.client.get(address).status_code == 404
    assert site.client.get(address.replace("?", ".json?")).status_code == 404
    assert site.services.store.prompt(path.rpartition("/")[2]) is None


def test_a_text_that_is_deleted_while_it_waits_leaves_nothing(site: Site) -> None:
    address = post(site, "L1.u7", "a text that goes")
    site.client.get(address)
    site.client.post(f"{address.partition('?')[0]}/delete")
    site.work()
    assert not [job for job in site.services.queue.list() if job.state == "failed"]


def test_the_prompt_of_a_reading_can_be_looked_at_as_well(site: Site) -> None:
    digest = site.read("it was the worst").partition("?")[0].rpartition("/")[2]
    page = site.client.get(f"/models/{SLUG}/values/{digest}?components=L0.u3")
    assert page.status_code == 200
    site.work()
    assert '<i class="a' in site.client.get(f"/models/{SLUG}/values/{digest}?components=L0.u3").text


def test_control_characters_and_markup_are_shown_and_not_obeyed(site: Site) -> None:
    text = "\x00\x1b[31m\u202eevil <script>alert(1)</script>\r\n\t"
    address = post(site, "L0.u3", text)
    site.work()
    page = site.client.get(address).text
    assert "<script>alert" not in page
    assert "⟨00⟩" in page
    assert "⟨1b⟩" in page
    stored = site.services.store.prompt(address.partition("?")[0].rpartition("/")[2])
    assert stored is not None
    assert stored.text == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("components", "text", "status", "said"),
    [
        ("", "a", 400, "Name at least one component"),
        (" , ", "a", 400, "Name at least one component"),
        (",".join(f"L0.u{i}" for i in range(9)), "a", 413, "at most 8 can be stacked"),
        ("L0.u99", "a", 404, "units 0 to 47"),
        ("L9.h0", "a", 404, "layers 0 to 1"),
        ("L0.p9.A", "a", 404, "pairs 0 to 8"),
        ("L1.h3.p0.A", "a", 404, "is linear, with channels"),
        ("embed.token", "a", 404, "part of the floor"),
        ("<b>", "a", 400, "is no component id"),
        ("L0.u1", "", 400, "The text is empty"),
        ("L0.u1", "x" * (MAX_TEXT_BYTES + 1), 413, "the limit is 32,768 bytes"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_sentence(site: Site, components: str, text: str, status: int, said: str) -> None:
    answer = site.client.post(f"/models/{SLUG}/values", data={"components": components, "text": text})
    assert answer.status_code == status
    assert said in "".join(parsed(answer.text).text)
    assert not site.services.queue.list()


def test_the_form_is_filled_in_from_the_address(site: Site) -> None:
    page = site.client.get(f"/models/{SLUG}/values", params={"components": "L0.u3", "text": "it <was>"})
    assert page.status_code == 200
    assert 'value="L0.u3"' in page.text
    assert "it &lt;was&gt;" in page.text
    assert not site.services.queue.list()
    assert site.client.get(f"/models/{SLUG}/values?components=L0.u99").status_code == 404
    assert site.client.get(f"/models/{SLUG}/values/{'0' * 64}?components=L0.u1").status_code == 404
