"""The accounting of a reading: the page waits, then says the numbers of its JSON; what cannot be asked is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from page_samples import SLUG, Site, links, parsed, sample_text, title

from app.account_figures import Step, mountain, waterfall
from legible_core.accounting import records, written
from legible_core.accounting.measure import Plan, measure
from legible_core.checkpoint import load
from legible_core.tokens import Tokenizer

PROMPT = "it was the best of times it was the"


@pytest.fixture(scope="module")
def digest(shared: Site) -> str:
    return shared.read(PROMPT).partition("?")[0].rpartition("/")[2]


def account(digest: str, query: str = "", end: str = "") -> str:
    return f"/models/{SLUG}/readings/{digest}/account{end}{query}"


def test_the_page_waits_and_then_says_what_its_json_says(shared: Site, digest: str) -> None:
    first = shared.client.get(account(digest))
    assert first.status_code == 200
    assert 'hx-trigger="every' in first.text
    assert shared.client.get(account(digest, end=".json")).status_code == 202
    job = next(j for j in shared.client.get("/jobs.json").json()["jobs"] if j["state"] == "waiting")
    assert (job["what"], job["href"].partition("?")[0]) == (f"accounting of “{PROMPT}”", account(digest))
    shared.work()
    page = shared.client.get(account(digest)).text
    data = shared.client.get(account(digest, end=".json")).json()
    assert 'hx-trigger="every' not in page
    assert data["target"]["display"] in title(page)
    text = " ".join("".join(parsed(page).text).split())
    net = data["channels"]["net"]
    assert net + sum(row["value"] for row in data["floor"]) == pytest.approx(data["value"], abs=1e-4)
    if data["channels"]["counts"]["net"]["n90"] is None:
        assert "not positive" in text
    else:
        assert f"{data['channels']['counts']['net']['n90']} of {data['channels']['components']}" in text
    assert "perplexity" in text
    for row in data["opposing"][:3]:
        assert row["id"] in text
    assert "style=" not in page
    for tag, attrs in parsed(page).tags:
        assert tag != "style"
        assert not any(name.startswith("on") for name in attrs)


def test_every_token_of_the_prompt_and_every_target_can_be_accounted_for(shared: Site, digest: str) -> None:
    for query in ("?position=2", "?position=2&target=5", "?position=0&target=7"):
        shared.client.get(account(digest, query))
    shared.work()
    nets = []
    for query in ("?position=2", "?position=2&target=5", "?position=0&target=7"):
        data = shared.client.get(account(digest, query, ".json")).json()
        page = shared.client.get(account(digest, query)).text
        assert str(data["channels"]["components"]) in page
        nets.append(data["channels"]["net"])
        if data["members"]:
            members = [link for link in links(page) if "component=" in link]
            assert members
            assert shared.client.get(members[0]).status_code == 200
            [whole] = [link for link in links(page) if "by=heads" in link]
            by_head = shared.client.get(whole).text
            text = " ".join("".join(parsed(by_head).text).split())
            side = data["heads"]
            assert f"{side['counts']['net']['n90']} of {side['components']}" in text
            assert all(row["id"] in text for row in side["members"][:12])
            assert "--heads" in text
            assert [link for link in links(by_head) if "/account?" in link and "by=" not in link]
        else:
            assert "undefined" in page
    assert min(nets) < 0 < max(nets), "both a positive and another net are drawn here"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?position=99", "position"),
        ("?target=100000", "vocabulary"),
        ("?position=-1", "position"),
        ("?by=layers", "by"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(shared: Site, digest: str, query: str, said: str) -> None:
    answer = shared.client.get(account(digest, query, ".json"))
    assert answer.status_code in (400, 404, 422)
    assert said in answer.json()["error"]["message"]
    assert shared.client.get(account("0" * 64)).status_code == 404


def test_a_reading_leads_to_its_accounting(shared: Site) -> None:
    address = shared.read(PROMPT)
    shared.work()
    page = shared.client.get(address, follow_redirects=True).text
    assert [link for link in links(page) if "/account?" in link]


@pytest.fixture
def accounted(site: Site) -> Iterator[Site]:
    """The same checkpoint, accounted for over a short text."""
    checkpoint = site.checkpoint
    ids = np.asarray(Tokenizer.load(checkpoint.tokenizer_path).encode(sample_text(3, 1200)), np.int64)
    plan = Plan(("counts", "depth", "writes"), sample=24, floor=0.0)
    measure(load(checkpoint), ids, "held out", None, checkpoint.hash, checkpoint.path, plan, lambda *_: None)
    yield site
    for name in (records.FILE, written.FILE):
        (checkpoint.path / name).unlink()


def test_the_models_page_draws_its_accounting_and_leads_to_every_number(accounted: Site) -> None:
    page = accounted.client.get(f"/models/{SLUG}").text
    text = " ".join("".join(parsed(page).text).split())
    assert "held out" in text
    assert "n90 and the net against the model's confidence" in text
    there = [link for link in links(page) if "/accounting/" in link]
    tables = ("counts", "push", "confidence", "predictions", "depth", "members", "promoted", "writes")
    assert len(there) == 2 * len(tables)
    for link in there:
        answer = accounted.client.get(link)
        assert answer.status_code == 200, link
        assert "held out" in answer.text
    figures = re.findall(r'<svg[^>]*aria-label="([^"]*)"', page)
    assert sum("confidence" in label and "perplexity" in label for label in figures) == 2
    assert sum("Alignment with the readout" in label for label in figures) == 1
    assert "style=" not in page
    embedded = accounted.client.get(f"/models/{SLUG}?embed=accounting-confidence")
    assert embedded.status_code == 200
    assert embedded.text.count("<svg") == 2
    answer = accounted.client.get(f"/models/{SLUG}/accounting/reads.csv")
    assert answer.status_code == 404
    assert "; it has counts, " in answer.text
    data = accounted.client.get(f"/models/{SLUG}/accounting/reads.json").json()
    assert "no table 'reads'; it has counts, " in data["error"]["message"]
    unit = accounted.client.get(f"/models/{SLUG}/units/L1.u3").text
    assert "L1&#39;s 48 units" in unit or "L1's 48 units" in unit


def test_the_figures_end_at_the_net() -> None:
    drawn = str(waterfall([Step("L0.u1", 2.0, "/a?b=1&c=2"), Step("all others", -0.5)], 1.5, 1.35))
    assert drawn.count("<rect") == 2
    assert 'class="down"' in drawn
    assert "together +1.50" in drawn
    assert "/a?b=1&amp;c=2" in drawn
    shown = str(mountain([(0, 0.0), (3, 6.0), (5, 1.5)], 2, 1.5))
    assert "+6.0 after 3" in shown
    assert "net +1.50" in shown
    assert "n90 = 2" in shown
    assert "n90" not in str(mountain([(0, 0.0), (0, 0.0), (5, -1.5)], None, -1.5))
