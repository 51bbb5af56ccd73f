"""Unit and head pages: contexts, places among promoters, units alike, memory; what a head detects, what it writes."""

from __future__ import annotations

import re

import pytest
from page_samples import SLUG, Site, links, parsed

from legible_core.naming.contexts import Contexts
from legible_core.naming.names import Names
from legible_core.units import Head, Unit, parse

PROMPT = "it was the best of times it was the"


@pytest.fixture
def names(site: Site) -> Names:
    found = Names.load(site.checkpoint.path)
    assert found is not None
    return found


def text_of(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_a_unit_shows_who_is_like_it_once_the_worker_has_looked(site: Site, names: Names) -> None:
    url = f"/models/{SLUG}/units/L0.u3"
    assert 'id="similar"' in site.client.get(url).text
    assert len([job for job in site.services.queue.list() if job.kind == "similar"]) == 1
    site.work()
    page = site.client.get(url).text
    part = page[page.index('id="similar"') :]
    assert "hx-trigger" not in part[: part.index(">")]
    assert page.count("writes alike") == page.count("detects alike") == 1
    twin = f"L0.u{names.config.feed_forward.n_pairs + 3}"
    detects = part[part.index("detects alike") :]
    if any(names.operand(parse(f"L0.p3.{side}")).detect for side in "AB"):
        assert f"/models/{SLUG}/units/{twin}" in detects
    assert len(re.findall(r'href="/models/tiny/units/L\d\.u\d+"', part)) >= 8
    site.client.get(url)
    assert len([job for job in site.services.queue.list() if job.kind == "similar"]) == 1


def test_promotions_say_where_the_unit_ranks(shared: Site) -> None:
    names = Names.load(shared.checkpoint.path)
    assert names is not None
    page = text_of(shared.client.get(f"/models/{SLUG}/units/L0.u3").text)
    name = names.component(Unit(0, 3))
    for token, (place, count) in zip(name.promotes[:3], names.promote_places(Unit(0, 3)), strict=False):
        assert re.search(rf"{re.escape(token.display)}\s?[+−]?[\d.]+\s?{place} of {count}", page), token
    data = shared.client.get(f"/models/{SLUG}/units/L0.u3.json").json()
    assert data["promotes"][0]["place"] >= 1


def test_contexts_say_where_they_come_from_and_are_shaded(shared: Site) -> None:
    contexts = Contexts.load(shared.checkpoint.path, checkpoint_hash=shared.checkpoint.hash)
    assert contexts is not None, "a scan leaves contexts"
    unit = next(
        unit for unit in range(names_pairs(shared)) if contexts.contexts_of(parse(f"L0.p{unit}.A"))
    )  # fmt: skip
    page = shared.client.get(f"/models/{SLUG}/units/L0.u{unit}").text
    first = contexts.contexts_of(parse(f"L0.p{unit}.A"))[0]
    assert f"contexts, from {contexts.source.said}" in text_of(page) or contexts.source.said in text_of(page)
    assert f'title="{first.values[first.at]:.2f}" aria-current="true"' in page
    data = shared.client.get(f"/models/{SLUG}/units/L0.u{unit}.json").json()
    assert data["contexts"][f"L0.p{unit}.A"]["strips"][0]["peak"] == pytest.approx(first.peak)
    place = f"/models/{SLUG}/units/L0.u{unit}/contexts/L0.p{unit}.A"
    assert f'action="{place}/0"' in page
    address = shared.client.post(f"{place}/0").headers["location"]
    assert f"component=L0.u{unit}" in address
    shared.work()
    tokens = shared.client.get(address.replace("?", ".json?")).json()["tokens"]
    assert tuple(token["id"] for token in tokens) == first.read
    assert shared.client.post(f"{place}/999").status_code == 404


def names_pairs(site: Site) -> int:
    return site.checkpoint.config.feed_forward.n_pairs


def test_a_quantifiers_memory_over_a_context_adds_up(site: Site) -> None:
    address = site.read(PROMPT)
    digest, query = address.partition("?")[0].rpartition("/")[2], address.partition("?")[2]
    start = site.checkpoint.config.feed_forward.quantifiers.start
    for unit in (start, start + 5):
        url = f"/models/{SLUG}/units/L0.u{unit}?reading={digest}&{query}"
        site.client.get(url)
        site.work()
        page = site.client.get(url).text
        assert "Its memory at the marked token" in page
        assert any(re.search(rf"/{digest}/why/L0\.u{unit}\.m\?at=\d+$", link) for link in links(page))
        left = [float(value) for value in re.findall(r"m \d\.\d\d, left (\d\.\d+)", page)]
        value = re.search(r"part of its value, (\d\.\d+)", page)
        assert value is not None
        assert sum(left) == pytest.approx(float(value[1]), abs=0.02)
    assert "Its memory" not in site.client.get(f"/models/{SLUG}/units/L0.u3?reading={digest}&{query}").text


def test_the_readings_that_a_unit_led_have_its_term_and_the_targets_rank(site: Site) -> None:
    address = site.read(PROMPT)
    top = site.client.get(address.replace("?", ".json?")).json()["top"]
    place, led = next((i, c) for i, c in enumerate(top, 1) if c["kind"] != "head")
    page = site.client.get(f"/models/{SLUG}/units/{led['id']}").text
    assert f"{address}&component={led['id']}" in links(page)
    row = site.client.get(f"/models/{SLUG}/units/{led['id']}.json").json()["readings"][0]
    assert (row["place"], row["target_rank"]) == (place, led["target_rank"])
    assert row["term"] == pytest.approx(led["value"])


def test_a_head_keeps_what_it_detects_and_what_it_writes_apart(site: Site, names: Names) -> None:
    url = f"/models/{SLUG}/heads/L0.h1"
    page = site.client.get(url).text
    assert page.index("What it detects") < page.index("What it writes") < page.index("Over example prompts")
    detects, writes = page[page.index('id="det"') :], page[page.index('id="wri"') :]
    detects, writes = detects[: detects.index("</section>")], writes[: writes.index("</section>")]
    assert "<i>" not in writes, "what is read off the weights is upright"
    labels = [c.label.text for c in names.channels(0, 1) if c.label is not None and c.label.kind == "class"]
    for label in set(labels):
        assert label in writes
    data = site.client.get(f"{url}.json").json()
    assert sum(word["count"] for word in data["writes"]) == len(labels)
    linear = site.client.get(f"/models/{SLUG}/heads/L1.h3").text
    assert "What it detects" not in linear


def test_a_heads_pattern_over_the_example_prompts(site: Site) -> None:
    for head in (Head(0, 1), Head(1, 3)):
        url = f"/models/{SLUG}/heads/{head}"
        assert 'id="patterns"' in site.client.get(url).text
        site.work()
        page = site.client.get(url).text
        part = page[page.index('id="patterns"') :]
        part = part[: part.index("</section>")]
        assert part.count('role="group"') == 6
        for strip in part.split('role="group"')[1:]:
            shares = [float(share) for share in re.findall(r"attention ([\d.]+)%", strip)]
            assert sum(shares) == pytest.approx(100, abs=1.5)


def test_a_heads_attended_tokens_open_into_operand_values(site: Site) -> None:
    address = site.read(PROMPT)
    digest, query = address.partition("?")[0].rpartition("/")[2], address.partition("?")[2]
    url = f"/models/{SLUG}/heads/L0.h1?reading={digest}&{query}"
    site.client.get(url)
    site.work()
    page = site.client.get(url).text
    assert "A∧¬B" in page
    found = re.findall(r"/why/(L0\.h1\.p\d)\.A\?at=(\d+)\"[^>]*>([\d.]+)</a>", page)
    assert found
    row = re.search(
        r"\.A\?at=\d+\"[^>]*>([\d.]+)</a></td><td class=\"n\"><a [^>]*>([\d.]+)</a></td>"
        r"<td class=\"n\">([\d.]+)</td><td class=\"n\">([\d.]+)</td>",
        page,
    )
    assert row is not None
    a, b, both, without = map(float, row.groups())
    assert both == pytest.approx(a * b, abs=0.011)
    assert without == pytest.approx(a * (1 - b), abs=0.011)


def test_pages_stay_light(site: Site) -> None:
    site.read(PROMPT)
    for path in ("units/L0.u3", "units/L0.u20", "heads/L0.h1"):
        site.client.get(f"/models/{SLUG}/{path}")
        site.work()
        page = site.client.get(f"/models/{SLUG}/{path}")
        assert len(page.content) < 150_000
        for tag, attrs in parsed(page.text).tags:
            assert "style" not in attrs, tag
