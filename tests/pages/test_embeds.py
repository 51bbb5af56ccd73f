"""Embeds: the parts that are asked for, framed by whom the setting says, without form, button or script."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from page_samples import HOSTILE, SLUG, Site, open_site, parsed

from app.settings import Settings
from legible_core.errors import LegibleError
from legible_core.registry import Checkpoint


def test_only_the_parts_that_are_asked_for(shared: Site) -> None:
    address = shared.read(f"it was {HOSTILE}")
    both = shared.client.get(f"{address}&embed=figure,table")
    assert both.status_code == 200
    tags = [tag for tag, _ in parsed(both.text).tags]
    assert not {"form", "button", "input", "script", "iframe", "textarea", "select"} & set(tags)
    assert tags.count("svg") == 2
    assert tags.count("table") == 1
    alone = [tag for tag, _ in parsed(shared.client.get(f"{address}&embed=sum").text).tags]
    assert not {"svg", "table"} & set(alone)
    words = "".join(parsed(shared.client.get(f"{address}&embed=prompt").text).text)
    assert "alert(1)" in words.replace("\n", "")
    hrefs = [attrs["href"] for tag, attrs in parsed(both.text).tags if tag == "a"]
    assert address in hrefs
    assert not [href for href in hrefs if "embed" in href]


def test_nothing_but_an_embed_may_be_framed(shared: Site) -> None:
    address = shared.read("it was the age")
    policy = shared.client.get(f"{address}&embed=figure").headers["content-security-policy"]
    assert "frame-ancestors *" in policy
    assert "form-action 'none'" in policy
    assert "script-src" not in policy
    assert "default-src 'none'" in policy
    for path in (address, "/", "/findings", f"/models/{SLUG}?embed=prompt", f"{address}&embed=nothing"):
        assert "frame-ancestors 'none'" in shared.client.get(path).headers["content-security-policy"]


@pytest.mark.parametrize("asked", ["", "figure,all", "<script>", ","])
def test_unknown_parts_are_named(shared: Site, asked: str) -> None:
    address = shared.read("it was the age")
    answer = shared.client.get(address, params={"embed": asked, "position": "1", "target": "9"})
    assert answer.status_code == 422
    assert "its parts are prompt, figure, table, sum, panel" in answer.text


def test_an_embed_begins_no_work(shared: Site) -> None:
    address = shared.read("it was the age of wisdom")
    before = len(shared.services.queue.list())
    answer = shared.client.get(address.partition("?")[0], params={"position": 0, "target": 1, "embed": "figure"})
    assert answer.status_code == 404
    assert "nothing of it can be embedded" in answer.text
    assert len(shared.services.queue.list()) == before


@pytest.mark.parametrize(
    ("setting", "said"),
    [("none", "'none'"), ("https://lab.example http://a.b:81", "https://lab.example http://a.b:81")],
)
def test_who_may_frame_is_a_setting(scanned: Checkpoint, tmp_path: Path, setting: str, said: str) -> None:
    site = open_site(tmp_path / "data", scanned, embed_from=setting)
    address = site.read("it was")
    policy = site.client.get(f"{address}&embed=figure").headers["content-security-policy"]
    assert policy.endswith(f"frame-ancestors {said}")
    site.services.close()


@pytest.mark.parametrize("setting", ["lab.example", "https://a.b; script-src *", "https://a.b/path", "* https://a.b"])
def test_a_setting_that_is_no_origin(setting: str) -> None:
    with pytest.raises(LegibleError, match="embed_from"):
        Settings.load(embed_from=setting)


def test_a_panel_shows_what_is_known_and_asks_for_nothing(site: Site) -> None:
    address = site.read("it was the best of times")
    top = site.client.get(address.replace("?", ".json?")).json()["top"]
    listed = next(row["id"] for row in top if row["kind"] != "head")
    embed = site.client.get(f"{address}&component={listed}&embed=panel")
    assert embed.status_code == 200
    tags = [tag for tag, _ in parsed(embed.text).tags]
    assert not {"form", "button", "input", "script", "iframe", "svg"} & set(tags)
    assert listed in "".join(parsed(embed.text).text)
    assert "hx-get" not in embed.text
    head = f"{address}&component=L1.h0"
    before = len(site.services.queue.list())
    assert "once it was looked at on the reading&#39;s page" in site.client.get(f"{head}&embed=panel").text
    assert len(site.services.queue.list()) == before
    assert site.client.get(head).status_code == 200
    assert "once it was looked at" in site.client.get(f"{head}&embed=panel").text, "a job that waits is not polled"
    site.work()
    site.forget_pages()
    page = site.client.get(head).text
    found = site.client.get(f"{head}&embed=panel").text
    assert "Where it looks" in found
    assert "once it was looked at" not in found
    offered = unescape(re.findall(r"&lt;iframe src=&#34;(.*?embed=panel)&", page)[0])
    assert unescape(offered).removeprefix("http://127.0.0.1:8321") == f"{head}&embed=panel"
    assert site.client.get(f"{address}&component=L9.h0&embed=panel").status_code == 404


def test_figures_of_a_model(shared: Site) -> None:
    model = f"/models/{SLUG}"
    page = shared.client.get(model).text
    shown = re.findall(r"<pre[^>]*>&lt;iframe src=&#34;(.*?)&#34;", page)
    offered = [unescape(unescape(found)).removeprefix("http://127.0.0.1:8321") for found in shown]
    assert len(offered) == page.count("<figure ") > 3
    drawn = 0
    for address in offered:
        embed = shared.client.get(address)
        assert embed.status_code == 200
        tags = parsed(embed.text).tags
        names = [tag for tag, _ in tags]
        assert not {"form", "button", "input", "iframe", "textarea", "select"} & set(names)
        assert names.count("table") == 1
        assert names.count("figure") == 1
        drawn += "data-plotly" in embed.text
        assert all(attrs.get("src", "/static/").startswith("/static/") for tag, attrs in tags if tag == "script")
        assert "perplexity" in "".join(parsed(embed.text).text)
        policy = embed.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "form-action 'none'" in policy
        assert policy.endswith("frame-ancestors *")
    assert drawn > 2
    table = shared.client.get(f"{model}?figure=operands&embed=table")
    assert "script" not in [tag for tag, _ in parsed(table.text).tags]
    assert "script-src" not in table.headers["content-security-policy"]
    assert shared.client.get(f"{model}?embed=figure").text.count("<figure ") == len(offered)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("embed=prompt", 422, "its parts are figure, table"),
        ("embed=", 422, "no part"),
        ("embed=figure&figure=nothing", 404, "it has "),
        ("embed=figure&figure=<script>alert(1)</script>", 404, "has no figure"),
    ],
)
def test_unknown_figures_are_named(shared: Site, query: str, status: int, said: str) -> None:
    answer = shared.client.get(f"/models/{SLUG}?{query}")
    assert answer.status_code == status
    assert said in "".join(parsed(answer.text).text)
    assert "<script>alert" not in answer.text
    assert answer.headers["content-security-policy"].endswith("frame-ancestors 'none'")
