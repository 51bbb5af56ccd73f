"""Why was it on: the page, its twin, the way further upstream, and what cannot be asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_samples import SLUG, Site, links, parsed, title

PROMPT = "it was the best of times it was the"


@pytest.fixture(scope="module")
def site(shared: Site) -> Site:
    return shared


@pytest.fixture(scope="module")
def digest(site: Site) -> str:
    return site.read(PROMPT).partition("?")[0].rpartition("/")[2]


def why(digest: str, operand: str, query: str = "?at=4", end: str = "") -> str:
    return f"/models/{SLUG}/readings/{digest}/why/{operand}{end}{query}"


def test_the_page_waits_for_the_worker_and_then_closes_the_sum(site: Site, digest: str) -> None:
    first = site.client.get(why(digest, "L1.p3.A"))
    assert first.status_code == 200
    assert 'hx-trigger="every' in first.text
    assert site.client.get(why(digest, "L1.p3.A", end=".json")).status_code == 202
    site.work()
    page = site.client.get(why(digest, "L1.p3.A")).text
    data = site.client.get(why(digest, "L1.p3.A", end=".json")).json()
    assert "Why L1.p3.A" in title(page)
    assert 'hx-trigger="every' not in page
    text = "".join(parsed(page).text)
    assert re.search(r"operand\s+L1\.p3\.A .* at token \d+, of L1\.u3\.", text)
    for words in ("Strongest sources", "token embedding", "residual", "pre-activation", "why was that on?"):
        assert words in text
    assert f"= {data['activation']:.3f}" in text
    assert len(data["heads"]) == 2
    assert len(data["units"]) == 1
    total = sum(map(sum, data["heads"])) + sum(map(sum, data["units"])) + sum(t["value"] for t in data["floor"])
    assert total == pytest.approx(data["sum"], abs=1e-4)
    assert abs(data["residual"]) <= data["tolerance"]
    document = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    assert [name for name in data if f"`{name}`" not in document] == [], "every field is documented"
    assert "<svg" in page
    assert len(page) < 150_000
    for tag, attrs in parsed(page).tags:
        assert tag != "style"
        assert "style" not in attrs


def test_every_source_leads_one_click_further_upstream(site: Site, digest: str) -> None:
    site.client.get(why(digest, "L1.p3.A"))
    site.work()
    page = site.client.get(why(digest, "L1.p3.A")).text
    further = sorted(link for link in links(page) if f"/{digest}/why/" in link and "/why/L1.p3.A" not in link)
    assert further
    for link in further[:6]:
        assert site.client.get(link).status_code == 200, link
    site.work()
    for link in further[:6]:
        assert "residual" in site.client.get(link).text, link
    below = [link for link in further if re.search(r"/why/L0\.u\d+\.m\?at=\d+", link)]
    assert below, "a quantifier's m is asked at the tokens it remembers"


def test_a_head_among_the_sources_opens_into_what_it_gathered(site: Site, digest: str) -> None:
    address = why(digest, "L1.p3.A", "?at=6&component=L0.h1")
    site.client.get(address)
    site.work()
    page = site.client.get(address).text
    text = "".join(parsed(page).text)
    assert "Where it looks" in text
    assert "A∧¬B" in text
    into = [link for link in links(page) if re.search(r"/why/L0\.h1\.p\d\.[AB]\?at=\d", link)]
    assert into, "the operands at the attended tokens can be asked in turn"
    site.client.get(into[0])
    site.work()
    deeper = site.client.get(into[0]).text
    assert "Nothing but the embeddings lies upstream of it" in deeper


def test_the_reading_and_its_head_panel_lead_to_it(site: Site, digest: str) -> None:
    address = site.read(PROMPT)
    page = site.client.get(f"{address}&component=L0.u3").text
    site.work()
    page = site.client.get(f"{address}&component=L0.u3").text
    assert any(re.search(rf"/{digest}/why/L0\.p3\.A\?at=\d+$", link) for link in links(page))
    site.client.get(f"{address}&component=L0.h1")
    site.work()
    page = site.client.get(f"{address}&component=L0.h1").text
    assert any(re.search(r"/why/L0\.h1\.p\d\.B\?at=\d+$", link) for link in links(page))
    assert len(page) < 150_000


def test_without_a_position_it_is_the_last_token(site: Site, digest: str) -> None:
    answer = site.client.get(why(digest, "L1.p3.A", ""))
    assert answer.status_code == 303
    assert re.search(r"\?at=\d+$", answer.headers["location"])


@pytest.mark.parametrize(
    ("operand", "query", "status", "said"),
    [
        ("L1.u3", "?at=4", 404, "ask for L1.p3.A or L1.p3.B"),
        ("L1.p99.A", "?at=4", 404, "pairs 0 to 8"),
        ("L7.p0.A", "?at=4", 404, "layers 0 to 1"),
        ("L1.h3.p0.A", "?at=4", 404, "is linear, with channels L1.h3.c0 to c7"),
        ("L1.h0", "?at=4", 404, "L1.h0.p0.A to L1.h0.p3.B"),
        ("nonsense", "?at=4", 400, "is no component id"),
        ("%00", "?at=4", 400, "is no component id"),
        ("L1.p3.A", "?at=999", 400, "its tokens have positions"),
        ("L1.p3.A", "?at=-1", 422, "is not usable"),
        ("L1.p3.A", "?at=4&component=L1.u3", 404, "is not upstream of L1.p3.A"),
        ("L1.p3.A", "?at=4&component=L0.u99", 404, "units 0 to 47"),
    ],
)
def test_what_cannot_be_asked(site: Site, digest: str, operand: str, query: str, status: int, said: str) -> None:
    for end in ("", ".json"):
        answer = site.client.get(why(digest, operand, query, end))
        assert answer.status_code == status
        text = "".join(parsed(answer.text).text) if not end else answer.json()["error"]["message"]
        text = re.sub(r"its \d+ tokens", "its tokens", text)
        assert said in text, text


def test_an_unknown_prompt_and_a_deleted_one(site: Site) -> None:
    assert site.client.get(why("0" * 64, "L1.p3.A")).status_code == 404
    gone = site.read("she was the worst of times").partition("?")[0].rpartition("/")[2]
    site.client.get(why(gone, "L1.p3.A"))
    site.client.post(f"/models/{SLUG}/readings/{gone}/delete")
    assert site.client.get(why(gone, "L1.p3.A")).status_code == 404
    assert not site.services.queue.about(gone)


def test_an_answer_that_was_forgotten_is_made_again(site: Site, digest: str) -> None:
    from sqlalchemy import null, update

    from app.tables import JobRow

    site.client.get(why(digest, "L1.p5.B"))
    site.work()
    with site.services.store.database.write() as connection:
        connection.execute(update(JobRow).where(JobRow.kind == "why").values(result=null()))
    assert 'hx-trigger="every' in site.client.get(why(digest, "L1.p5.B")).text
    site.work()
    assert "residual" in site.client.get(why(digest, "L1.p5.B")).text
