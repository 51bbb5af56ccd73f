"""Embeds: the parts that are asked for, framed by whom the setting says, without form, button or script."""

from __future__ import annotations

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
    for path in (address, "/", "/findings", f"/models/{SLUG}?embed=figure", f"{address}&embed=nothing"):
        assert "frame-ancestors 'none'" in shared.client.get(path).headers["content-security-policy"]


@pytest.mark.parametrize("asked", ["", "figure,all", "<script>", ","])
def test_unknown_parts_are_named(shared: Site, asked: str) -> None:
    address = shared.read("it was the age")
    answer = shared.client.get(address, params={"embed": asked, "position": "1", "target": "9"})
    assert answer.status_code == 422
    assert "its parts are prompt, figure, table, sum" in answer.text


def test_an_embed_begins_no_work(shared: Site) -> None:
    address = shared.read("it was the age of wisdom")
    before = len(shared.services.queue.list())
    answer = shared.client.get(address.partition("?")[0], params={"position": 0, "target": 1, "embed": "figure"})
    assert answer.status_code == 404
    assert "nothing of it can be embedded" in answer.text
    assert len(shared.services.queue.list()) == before


@pytest.mark.parametrize(
    ("setting", "said"), [("none", "'none'"), ("https://lab.example http://a.b:81", "https://lab.example http://a.b:81")]
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
