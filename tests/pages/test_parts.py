"""Parts of every page inside another page: each line that is offered opens, acts on nothing and begins nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from page_samples import HOSTILE, SLUG, Site, make_checkpoint, open_site, parsed
from run_samples import make_run

from app.pages.parts import quiet, with_query
from legible_core.registry import Checkpoint

ORIGIN = "http://127.0.0.1:8321"
ACTING = {"form", "button", "input", "iframe", "textarea", "select", "dialog", "object"}


def words_of(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def offers(page: str) -> list[str]:
    """The addresses in the lines for an <iframe> that a page offers."""
    return [unescape(unescape(found)) for found in re.findall(r"<pre[^>]*>&lt;iframe src=&#34;(.*?)&#34;", page)]


def grouped(offered: list[str]) -> dict[str, list[str]]:
    """The parts that lines offer, by the page that they are of."""
    found: dict[str, list[str]] = {}
    for line in offered:
        whole, _, name = line.removeprefix(ORIGIN).rpartition("embed=")
        found.setdefault(whole.rstrip("?&"), []).append(name)
    return found


@pytest.fixture(scope="module")
def desk(scanned: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[str, str]]]:
    """A workbench with one page of every kind that has figures, all their work done: kind → address."""
    root = tmp_path_factory.mktemp("parts")
    make_run(root / "runs" / "one")
    site = open_site(root / "data", scanned, runs=(str(root / "runs"),))
    left = site.read(f"it was {HOSTILE}")
    right = site.read("it was the worst of times")
    base = right.partition("?")[0]
    monitor = site.client.post(
        "/monitors", data={"name": "of <b>times</b>", "model": SLUG, "conditions": "L1.p2.A above 0.35", "gate": "none"}
    ).headers["location"]
    written = site.client.post(f"/models/{SLUG}/generate", data={"prompt": "it was the", "tokens": "4"})
    over = site.client.post(f"/models/{SLUG}/values", data={"components": "L0.u3,L1.h1", "text": "it was the best"})
    query = right.partition("?")[2]
    pages = {
        "unit": f"/models/{SLUG}/units/L0.u3",
        "quantifier": f"/models/{SLUG}/units/L0.u18",
        "head": f"/models/{SLUG}/heads/L1.h0",
        "layer": f"/models/{SLUG}/layers/1?kind=difference",
        "compare": str(site.client.get("/compare", params={"left": left, "right": right}).url).removeprefix(ORIGIN),
        "generate": written.headers["location"],
        "pairs": f"/models/{SLUG}/pairs?good=it was the&bad=it was his".replace(" ", "%20"),
        "account": f"{base}/account?{query}",
        "checks": f"{base}/causal?{query}",
        "bounds": f"{base}/bounds/L0.u3?{query}&radius=0.1",
        "why": f"{base}/why/L0.p3.A?at=2",
        "tune": f"{base}/tune?{query}",
        "values": over.headers["location"],
        "monitor": monitor,
        "stream": site.client.post(f"{monitor}/streams", data={"text": "it was the best"}).headers["location"],
        "run": "/runs/one",
        "search": "/search?q=L0.u3",
    }
    for address in pages.values():
        site.client.get(address)
    site.work()
    yield site, pages
    site.services.close()


def test_every_part_that_a_page_offers_is_there_and_acts_on_nothing(desk: tuple[Site, dict[str, str]]) -> None:
    site, pages = desk
    jobs = len(site.services.queue.list(limit=500))
    for kind, address in pages.items():
        page = site.client.get(address)
        assert page.status_code == 200, kind
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        offered = offers(page.text)
        assert offered, kind
        assert len(set(offered)) == len(offered), kind
        for whole, names in grouped(offered).items():
            embed = site.client.get(with_query(whole, embed=",".join(names)))
            assert embed.status_code == 200, whole
            tags = parsed(embed.text).tags
            assert sum(tag == "section" and "aria-label" in attrs for tag, attrs in tags) >= len(names), whole
            assert not ACTING & {tag for tag, _ in tags}, whole
            assert not any(name.startswith(("hx-", "on")) for _, attrs in tags for name in attrs), whole
            drawn = "data-plotly" in embed.text
            assert ("script" in {tag for tag, _ in tags}) == drawn, whole
            policy = embed.headers["content-security-policy"]
            assert policy.endswith("frame-ancestors *")
            assert "form-action 'none'" in policy
            assert ("script-src" in policy) == drawn
            assert "<b>times" not in embed.text
            assert "alert(1)</script>" not in embed.text
    assert len(site.services.queue.list(limit=500)) == jobs


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("unit", "histogram-A histogram-B contexts-A promotes statistics similar context"),
        ("quantifier", "histogram-m decay reach"),
        ("head", "heads detects writes patterns context looks finds channels"),
        ("layer", "counts heads units"),
        ("compare", "left right sums predictions changes layers prompts"),
        ("generate", "strip table"),
        ("pairs", "verdict tokens units"),
        ("account", "mountain counts layers"),
        ("checks", "checks halves"),
        ("bounds", "write order box tokens"),
        ("why", "figure table"),
        ("tune", "chances"),
        ("values", "components values"),
        ("monitor", "rates conditions flagged drift"),
        ("stream", "rates flagged"),
        ("run", "figure-loss"),
    ],
)
def test_a_name_that_a_page_lacks_is_answered_with_those_it_has(
    desk: tuple[Site, dict[str, str]], kind: str, named: str
) -> None:
    site, pages = desk
    answer = site.client.get(with_query(pages[kind], embed="<script>x"), headers={"accept": "application/json"})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert message.startswith("This page has no part '<script>x' to embed; its parts are ")
    assert set(named.split()) <= set(message.rpartition(" are ")[2].rstrip(".").split(", "))
    page = site.client.get(with_query(pages[kind], embed="nothing"))
    assert page.headers["content-security-policy"].endswith("frame-ancestors 'none'")


def test_one_name_is_all_parts_that_begin_with_it(desk: tuple[Site, dict[str, str]]) -> None:
    site, pages = desk
    both = site.client.get(f"{pages['unit']}?embed=histogram")
    assert both.text.count("<svg") == 2
    one = site.client.get(f"{pages['unit']}?embed=histogram-B")
    assert one.text.count("<svg") == 1
    mixed = words_of(site.client.get(f"{pages['unit']}?embed=statistics,histogram-A").text)
    assert mixed.index("Statistics of") < mixed.index("Values of")
    assert "perplexity" in mixed, "a legibility figure stands beside the quality"


@pytest.mark.parametrize("path", ["/help", "/jobs", "/", "/models", "/findings", f"/models/{SLUG}/generate", "/runs"])
def test_a_page_without_parts_says_so(desk: tuple[Site, dict[str, str]], path: str) -> None:
    answer = desk[0].client.get(f"{path}?embed=figure", headers={"accept": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "There is nothing on this page to embed."


def test_an_embed_begins_nothing_and_says_what_is_not_made(site: Site) -> None:
    address = site.read("it was the best")
    base, _, query = address.partition("?")
    queue = site.services.queue
    jobs = len(queue.list())
    unit = site.client.get(f"/models/{SLUG}/units/L0.u3?embed=histogram,similar,context")
    assert unit.status_code == 200
    assert unit.text.count("an embed begins no work") == 2
    assert "<svg" in unit.text, "what needs no work is there"
    pair = f"/models/{SLUG}/pairs?good=it%20was&bad=it%20is"
    for whole in (f"{base}/account?{query}", f"{base}/causal?{query}", pair):
        answer = site.client.get(f"{whole}&embed=tokens", headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 404, whole
        assert "an embed begins no work; open the page itself first" in answer.text
    other = f"{base}?position=0&target=7"
    answer = site.client.get("/compare", params={"left": address, "right": other, "embed": "left"})
    assert answer.status_code == 404
    assert len(queue.list()) == jobs


def test_an_embed_of_what_still_runs_says_so_and_does_not_ask_again(site: Site) -> None:
    address = site.read("it was the best").replace("?", "/account?")
    assert 'hx-trigger="every' in site.client.get(address).text
    site.client.get(f"/models/{SLUG}/heads/L1.h0")
    jobs = len(site.services.queue.list())
    waits = site.client.get(f"{address}&embed=mountain")
    assert waits.status_code == 200
    assert "Work on this still runs" in waits.text
    assert "hx-" not in waits.text
    assert "refresh" not in waits.text
    part = site.client.get(f"/models/{SLUG}/heads/L1.h0?embed=patterns,heads")
    assert part.text.count("Work on this still runs") == 1
    assert len(site.services.queue.list()) == jobs
    site.work()
    assert "<svg" in site.client.get(f"{address}&embed=mountain").text


def test_an_embed_follows_where_its_page_went(desk: tuple[Site, dict[str, str]]) -> None:
    site, pages = desk
    left, right = re.findall(r"/models/tiny/readings/\w+", unescape(unescape(pages["compare"])).replace("%2F", "/"))
    moved = site.client.get("/compare", params={"left": left, "right": right, "embed": "left,sums"})
    assert moved.status_code == 303
    assert moved.headers["location"].endswith("embed=left,sums")
    assert site.client.get(moved.headers["location"]).status_code == 200


def test_the_line_names_the_root_path_and_no_token(scanned: Checkpoint, tmp_path: Path) -> None:
    site = open_site(tmp_path / "data", scanned, root_path="/legible")
    page = site.client.get(f"/legible/models/{SLUG}/layers/0?sort=on")
    assert f"{ORIGIN}/legible/models/{SLUG}/layers/0?sort=on&embed=units" in offers(page.text)
    site.services.close()


def test_what_acts_is_left_behind() -> None:
    html = (
        '<p hx-get="/x" title="a &lt; b">1 &amp; 2<button>go</button><form><p>no</p><input></form></p>'
        '<script>alert(1)</script><script type="application/json" id="d">{"a": "<"}</script><br/>'
        '<svg viewBox="0 0 1 1"/>'
    )
    assert quiet(html) == (
        '<p title="a &lt; b">1 &amp; 2</p><script type="application/json" id="d">{"a": "<"}</script><br/>'
        '<svg viewBox="0 0 1 1"/>'
    )
    assert with_query("/a?b=1&embed=x#y", embed="c,d") == "/a?b=1&embed=c,d"


def test_parts_of_a_checkpoint_without_names(tmp_path: Path) -> None:
    bare = make_checkpoint(tmp_path / "bare", scan=False)
    site = open_site(tmp_path / "data", bare)
    assert site.client.get(f"/models/{SLUG}/heads/L0.h0?embed=heads").status_code == 200
    answer = site.client.get(f"/models/{SLUG}/units/L0.u0?embed=histogram", headers={"accept": "application/json"})
    assert answer.status_code == 422
    site.services.close()
