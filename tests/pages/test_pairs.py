"""Minimal pairs: the evaluation's own sums, aligned tokens, a fork whose sum closes, and what is refused."""

from __future__ import annotations

import pytest
from page_samples import HOSTILE, SLUG, Site, links, parsed

from app.pages.pairs_examples import EXAMPLES
from legible_core.checkpoint import load
from legible_core.evaluation.encode import Encoder
from legible_core.evaluation.scoring import Scorer
from legible_core.tokens import Tokenizer

GOOD, BAD = "he was the best of them", "he was the worst of them"


def address(good: str, bad: str, form: str = "") -> str:
    from app.urls import Urls

    return Urls().pairs(SLUG, form, good=good, bad=bad)


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_sums_are_the_evaluations_and_the_fork_closes(site: Site) -> None:
    waiting = site.client.get(address(GOOD, BAD))
    assert 'hx-trigger="every' in waiting.text
    assert site.client.get(address(GOOD, BAD, "json")).status_code == 202
    site.work()
    data = site.client.get(address(GOOD, BAD, "json")).json()
    encoder = Encoder(Tokenizer.load(site.checkpoint.tokenizer_path), 64)
    groups = [encoder.pair("", f" {text}") for text in (GOOD, BAD)]
    scores = dict(done for batch in Scorer(load(site.checkpoint)).run(groups) for done in batch)
    for index, name in enumerate(("good", "bad")):
        assert data[name]["loglik"] == pytest.approx(sum(s.loglik for s in scores[index]), abs=1e-4)
        assert sum(t[f"{name}_log"] or 0 for t in data["tokens"]) == pytest.approx(data[name]["loglik"])
    assert data["difference"] == pytest.approx(data["good"]["loglik"] - data["bad"]["loglik"])
    fork = data["fork"]
    assert (fork["good"], fork["bad"]) == ("·best", "·worst")
    assert abs(fork["value"] - fork["sum"]) < 1e-4
    logs = next(t for t in data["tokens"] if t["good"] == "·best")
    assert fork["value"] == pytest.approx(logs["good_log"] - logs["bad_log"], abs=1e-5)
    reading = site.client.get(fork["href"].replace("?", ".json?")).json()
    assert reading["relative_to"] == "contrast"
    assert reading["value"] == fork["value"]
    assert [c["id"] for c in reading["top"]] == [c["id"] for c in fork["components"]]
    page = site.client.get(address(GOOD, BAD))
    assert 'hx-trigger="every' not in page.text
    assert fork["href"] in links(page.text)
    assert page.text.count('<tr aria-current="true">') == 1
    both = next(link for link in links(page.text) if link.startswith("/compare?left="))
    site.client.get(both)
    site.work()
    assert site.client.get(both).status_code == 200
    assert len([job for job in site.services.queue.list() if job.kind == "pair"]) == 1


def test_sentences_of_different_length_are_aligned(site: Site) -> None:
    good, bad = "he was more than wise", "he was than wise"
    site.client.get(address(good, bad))
    site.work()
    rows = site.client.get(address(good, bad, "json")).json()["tokens"]
    assert any(row["good"] == "·more" and row["bad"] is None for row in rows)
    assert [row["good"] for row in rows if row["same"]] == [row["bad"] for row in rows if row["same"]]
    assert rows[-1]["same"], "what follows stands beside itself again"


def test_a_sentence_that_begins_the_other_has_no_fork(site: Site) -> None:
    site.client.get(address("he was", "he was wise"))
    site.work()
    page = site.client.get(address("he was", "he was wise"))
    assert "One sentence begins the other" in visible(page.text)
    assert site.client.get(address("he was", "he was wise", "json")).json()["fork"] is None


def test_deleting_forgets_both_sentences(site: Site) -> None:
    site.client.get(address("a secret of hers", "a secret of his"))
    site.work()
    fork = site.client.get(address("a secret of hers", "a secret of his", "json")).json()["fork"]["href"]
    assert site.client.get(fork).status_code == 200
    assert "secret" in site.client.get("/jobs").text
    fields = {"good": "a secret of hers", "bad": "a secret of his"}
    assert site.client.post(f"/models/{SLUG}/pairs/delete", data=fields).status_code == 303
    assert "secret" not in site.client.get("/jobs").text + site.client.get("/").text
    assert site.client.get(fork).status_code == 404


def test_a_fork_whose_reading_was_deleted_is_made_again(site: Site) -> None:
    site.client.get(address(GOOD, BAD))
    site.work()
    fork = site.client.get(address(GOOD, BAD, "json")).json()["fork"]["href"]
    site.client.post(f"{fork.partition('?')[0]}/delete")
    assert 'hx-trigger="every' in site.client.get(address(GOOD, BAD)).text
    site.work()
    assert site.client.get(fork).status_code == 200


def test_examples_are_pairs_that_open(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}/pairs")
    assert len({pair.phenomenon for pair in EXAMPLES}) == len(EXAMPLES) >= 12
    for pair in EXAMPLES:
        assert address(pair.good, pair.bad) in links(page.text)
        assert pair.good != pair.bad
    shared.client.get(address(EXAMPLES[0].good, EXAMPLES[0].bad))
    shared.work()
    assert "Token by token" in visible(shared.client.get(address(EXAMPLES[0].good, EXAMPLES[0].bad)).text)


@pytest.mark.parametrize(
    ("good", "bad", "status", "said"),
    [
        (GOOD, GOOD, 400, "Both sentences are the same"),
        ("x" * 401, BAD, 422, "good"),
    ],
)  # fmt: skip
def test_what_is_refused_at_once(shared: Site, good: str, bad: str, status: int, said: str) -> None:
    for form in ("", "json"):
        answer = shared.client.get(address(good, bad, form))
        assert answer.status_code == status
        assert said in answer.text
    empty = shared.client.get(address("", BAD, "json"))
    assert "The first sentence is empty" in empty.json()["error"]["message"]


def test_what_the_model_cannot_read_is_said_on_the_page(site: Site) -> None:
    site.client.get(address("it was " * 40, BAD))
    site.work()
    page = site.client.get(address("it was " * 40, BAD))
    assert "this checkpoint reads at most 64" in visible(page.text)
    assert "try again" in visible(page.text)


def test_another_site_starts_nothing(site: Site) -> None:
    for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        page = site.client.get(address(GOOD, BAD), headers=headers)
        assert page.status_code == 200
        assert f'value="{GOOD}"' in page.text
        assert site.client.get(address(GOOD, BAD, "json"), headers=headers).status_code == 404
    assert not site.services.queue.list()
    site.client.get(address(GOOD, BAD), headers={"sec-fetch-site": "same-origin"})
    site.work()
    page = site.client.get(address(GOOD, BAD), headers={"sec-fetch-site": "cross-site"})
    assert "Token by token" in visible(page.text), "what is there is shown"


def test_hostile_text_stays_text(site: Site) -> None:
    site.client.get(address(HOSTILE, "it was"))
    site.work()
    page = site.client.get(address(HOSTILE, "it was"))
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<script>alert" not in site.client.get("/jobs").text
