"""Bounds on pages: the panel's line without a worker, the unit's own page of them, a quantifier's reach."""

from __future__ import annotations

import re

import pytest
from page_samples import SLUG, Site, parsed

from app.pages.limits import between, order_said, reach_said
from legible_core.intervals import directions, reach
from legible_core.units import Unit

PROMPT = "it was the best of times it was the"


def text_of(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_the_panel_says_the_range_and_its_page_proves_more(site: Site) -> None:
    address = site.read(PROMPT)
    data = site.client.get(address.replace("?", ".json?", 1)).json()
    unit = next(
        row for row in data["top"] if row["kind"] in ("intersection", "difference") and row["activation"] > 0.01
    )
    waiting = len(site.services.queue.list())
    page = site.client.get(f"{address}&component={unit['id']}").text
    assert len(site.services.queue.list()) == waiting, "the reading itself says enough"
    slope = unit["value"] / unit["activation"]
    shown = re.search(r"Can write between (\S+) and (\S+) to", text_of(page))
    assert shown is not None
    low, high = (float(end.replace("−", "-")) for end in shown.groups())
    assert low <= min(0.0, slope) <= 0.0 <= max(0.0, slope) <= high
    assert high - low == pytest.approx(abs(slope), abs=2e-3)
    [link] = set(re.findall(rf'href="([^"]*/bounds/{re.escape(unit["id"])}[^"]*)"', page))
    link = link.replace("&amp;", "&")
    assert site.client.get(link.replace(f"/bounds/{unit['id']}", f"/bounds/{unit['id']}.json")).status_code == 202
    site.work()
    whole = text_of(site.client.get(link + "&radius=0.1").text)
    assert "Next." in whole or "Looking closer" in whole or "No worker" in whole
    jobs = site.client.get("/jobs.json").json()["jobs"]
    assert (f"bounds of {unit['id']} of “{PROMPT}”", link + "&radius=0.1") in [(j["what"], j["href"]) for j in jobs]
    site.work()
    whole = text_of(site.client.get(link + "&radius=0.1").text)
    assert f"can write between {shown[1]} and {shown[2]} to" in whole
    assert "While every coordinate stays within 0.1" in whole
    found = site.client.get(link.replace(f"/bounds/{unit['id']}", f"/bounds/{unit['id']}.json") + "&radius=0.1").json()
    assert found["value"] == pytest.approx(unit["value"])
    assert found["box"]["write"]["low"] <= found["value"] <= found["box"]["write"]["high"]
    assert found["pair"]["low"] <= found["write"]["low"]


def test_a_quantifiers_page_shows_its_reach(shared: Site) -> None:
    layout = shared.checkpoint.config.feed_forward
    for unit in (layout.existentials.start, layout.proportions.start):
        data = shared.client.get(f"/models/{SLUG}/units/L0.u{unit}.json").json()
        decay = data["name"]["decay"]
        rows = {row["back"]: row for row in data["reach"]}
        assert rows[4]["most"] == pytest.approx(reach(data["kind"], decay, 4))
        page = text_of(shared.client.get(f"/models/{SLUG}/units/L0.u{unit}").text)
        assert "Whatever a membership m was changed to" in page
        assert ("far into a text" in page) == (data["kind"] == "proportion")
        assert "rises with every m, past and present" in page
    plain = shared.client.get(f"/models/{SLUG}/units/L0.u{layout.n_named}").text
    assert "changed to this many tokens ago" not in plain
    assert "(proved)" not in plain


@pytest.mark.parametrize(
    ("unit", "query", "status", "said"),
    [
        ("L0.u40", "", 404, "has no rails"),
        ("L9.u0", "", 404, "layers 0 to 1"),
        ("L0.h0", "", 404, "is no unit"),
        ("L0.u0", "?radius=-1", 400, "finite number, 0 or larger"),
        ("L0.u0", "?radius=many", 400, "is no number"),
        ("L0.u0", "?radius=٣", 400, "is no number"),
        ("L0.u0", "?radius=nan", 400, "finite number, 0 or larger"),
        ("L0.u0", "?position=99", 400, "position"),
    ],
)
def test_what_has_no_bound_is_one_sentence(shared: Site, unit: str, query: str, status: int, said: str) -> None:
    digest = shared.read(PROMPT).partition("?")[0].rpartition("/")[2]
    answer = shared.client.get(f"/models/{SLUG}/readings/{digest}/bounds/{unit}.json{query}")
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_the_words() -> None:
    assert between({"low": -0.18131, "high": 0.0}) == "−0.182 and 0"
    assert between({"low": 0.0, "high": 0.2343}) == "0 and +0.235"
    from legible_core.config import Attention, FeedForward, ModelConfig

    config = ModelConfig(1, 8, 2, 8, 9, Attention("boolean", (2,)), FeedForward(16, 0.5, 0.5, "sigmoid"))
    said = [order_said(directions(config, Unit(0, unit))) for unit in (0, 2, 4, 8)]
    assert said == [
        "rises with A and B",
        "rises with A, falls with B",
        "rises with every m, past and present",
        "rises with its pre-activation",
    ]
    assert reach_said("existential", 1.0) == "a change of m never fades"
