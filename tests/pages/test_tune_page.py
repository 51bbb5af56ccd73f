"""Edited readings and their sliders on the pages: banner, links, form, redraw, permalink, bad input."""

from __future__ import annotations

import re

import pytest
from page_samples import SLUG, Site, links

from legible_core.interventions import Edit
from legible_core.interventions_text import edits_of_field, parse_edit
from legible_core.units import Unit

PROMPT = "it was the best of times"


def shown(site: Site, address: str) -> str:
    """A page's text once its jobs are done."""
    for _ in range(4):
        answer = site.client.get(address)
        if answer.status_code in (303, 307):
            address = answer.headers["location"]
        site.work()
    answer = site.client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.text


def edited(site: Site, *texts: str) -> str:
    """The explicit address of the prompt's reading under edits."""
    answer = site.client.post(f"/models/{SLUG}/readings", data={"prompt": PROMPT, "edits": "\n".join(texts)})
    assert answer.status_code == 303, answer.text
    site.work()
    answer = site.client.get(answer.headers["location"])
    return answer.headers["location"]


@pytest.fixture
def sliders(site: Site) -> str:
    return site.read(PROMPT).replace("?", "/tune?")


def test_an_edited_reading_says_so_on_top_and_leads_to_the_unedited_one(site: Site) -> None:
    address = edited(site, "L1.u5:scale=3", "L0.p2.A:flip@1")
    page = shown(site, address)
    assert "Read under edits" in page
    assert "<code>L1.u5:scale=3</code>" in page
    assert "<code>L0.p2.A:flip@1</code>" in page
    assert any("component=L1.u5" in link for link in links(page))
    plain = site.read(PROMPT)
    assert plain in links(page)
    assert "Read under" not in shown(site, plain)
    # What is made from the address keeps the edits: the JSON, the terminal, Python, another target, a close-up.
    twin = site.client.get(address.replace("?", ".json?")).json()
    assert [Edit.from_json(edit) for edit in twin["edits"]] == [
        parse_edit("L1.u5:scale=3"),
        parse_edit("L0.p2.A:flip@1"),
    ]
    assert "--edit L1.u5:scale=3" in page
    assert "edits=[&#39;L1.u5:scale=3&#39;, &#39;L0.p2.A:flip@1&#39;]" in page
    other = shown(site, address.partition("&target")[0] + "&target=7&component=L1.u40")
    assert "Read under edits" in other
    comparison = next(link for link in links(page) if "/compare?" in link and "right=" in link)
    assert "different edits: none on the left, L1.u5:scale=3, L0.p2.A:flip@1 on the right" in shown(site, comparison)


def test_why_and_values_of_an_edited_prompt(site: Site) -> None:
    address = edited(site, "L0.p2.A:flip")
    digest = re.search(r"[0-9a-f]{64}", address)
    assert digest is not None
    assert "pre-activation" in shown(site, f"/models/{SLUG}/readings/{digest[0]}/why/L1.p2.A?at=3")
    answer = site.client.get(f"/models/{SLUG}/values/{digest[0]}?components=L0.u1")
    assert answer.status_code == 400
    assert "unedited checkpoint" in answer.text


def test_the_sliders_show_the_leading_components_and_both_sides(site: Site, sliders: str) -> None:
    page = shown(site, sliders)
    names = re.findall(r'name="scale:(L[^"]+)"', page)
    channels = [name for name in names if ".c" in name]
    assert 8 <= len(names) - len(channels) <= 12
    assert len(set(names)) == len(names)
    heads = [name for name in names if re.fullmatch(r"L\d\.h\d", name)]
    assert heads
    assert {name.rpartition(".")[0] for name in channels} == set(heads)
    assert all(1 <= sum(name.startswith(f"{head}.c") for name in channels) <= 3 for head in heads)
    assert page.count('class="gauge"') >= 20
    before, after = (re.search(rf'id="tune-{side}-probability">([^<]+)<', page) for side in ("before", "after"))
    assert before is not None
    assert after is not None
    assert before[1] == after[1]


def test_a_move_is_redrawn_and_shared_and_the_address_restores_it(site: Site, sliders: str) -> None:
    page = shown(site, sliders)
    path, _, query = sliders.partition("?")
    place = dict(pair.split("=") for pair in query.split("&"))
    unit = re.findall(r'name="scale:(L\d\.u\d+)"', page)[0]
    fields = {**place, f"scale:{unit}": "3.5", "scope": "here", "rest": "L1.residual:add=0~" + ZERO}
    answer = site.client.post(f"{path}/redraw", data=fields)
    assert answer.status_code == 202, answer.text
    site.work()
    drawn = site.client.post(f"{path}/redraw", data=fields).json()
    position = place["position"]
    assert drawn["edits"] == ["L1.residual:add=0~" + ZERO, f"{unit}:scale=3.5@{position}"]
    assert drawn["after"]["target"]["logit"] != drawn["before"]["target"]["logit"]
    assert drawn["said"]["after"]["rank"] == drawn["after"]["target"]["rank"]
    # Nothing of it is stored until it is shared.
    assert site.client.get(f"/models/{SLUG}/readings/{drawn['digest']}").status_code == 404
    answer = site.client.post(path, data=fields)
    assert answer.status_code == 303
    assert drawn["digest"] in answer.headers["location"]
    restored = shown(site, answer.headers["location"])
    assert re.search(rf'name="scale:{re.escape(unit)}" step="any" value="3.5"', restored)
    assert 'value="here" checked' in restored
    assert "L1.residual:add=0" in restored
    assert f'id="tune-after-probability">{drawn["said"]["after"]["probability"]}<' in restored
    site.forget_pages()
    assert "Read under edits" in shown(site, answer.headers["location"].replace("/tune?", "?"))
    twin = site.client.get(answer.headers["location"].replace("/tune?", "/tune.json?")).json()
    assert twin["after"]["target"] == pytest.approx(drawn["after"]["target"])


ZERO = "AAAA" * 42 + "AAA="  # 32 zeros; 128 bytes leave 2 behind the last three


def test_operands_are_set_clamped_and_flipped_by_the_form(site: Site, sliders: str) -> None:
    shown(site, sliders)
    path, _, query = sliders.partition("?")
    place = dict(pair.split("=") for pair in query.split("&"))
    atoms = ["L0.p1.A", "L1.p2.B"]
    fields = {**place, f"choice:{atoms[0]}": "clamp", f"low:{atoms[0]}": "0.1", f"high:{atoms[0]}": "0.2"}
    fields |= {f"choice:{atoms[1]}": "flip", "choice:L0.p3.B": "set", "low:L0.p3.B": "1"}
    address = site.client.post(path, data=fields).headers["location"]
    restored = shown(site, address)
    for atom, choice in ((atoms[0], "clamp"), (atoms[1], "flip"), ("L0.p3.B", "set")):
        chosen = re.search(rf'name="choice:{re.escape(atom)}".*?<option selected>([^<]+)<', restored, re.DOTALL)
        assert chosen is not None
        assert chosen[1] == choice
    # A component that no slider showed before has one now, because the edits name it; a number comes back whole.
    fields = {**place, "scale:L0.u0": "0", "scale:L0.h3": "2", "scale:L0.h3.c1": "1.2345678901"}
    address = site.client.post(path, data=fields).headers["location"]
    again = shown(site, address)
    assert 'name="scale:L0.h3" step="any" value="2"' in again
    assert 'name="scale:L0.h3.c1" step="any" value="1.2345678901"' in again
    # What the page holds, sent as it is, is the same address.
    names = re.findall(r'name="(scale:[^"]+)" step="any" value="([^"]+)"', again)
    assert site.client.post(path, data={**place, **dict(names)}).headers["location"] == address


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale:L0.u3": "lots"}, "no number"),
        ({"scale:L0.u3": "nan"}, "not a finite number"),
        ({"scale:L0.u3": "1_000"}, "'1_000' for L0.u3 is no number; give one such as 0.5 or 1e3, in the digits 0 to 9"),
        ({"scale:L0.u3": "٣"}, "is no number"),
        ({"scale:L0.h1.c99": "2"}, "channel 99 of edit L0.h1.c99 does not exist"),
        ({"rest": "L0.u3:scale=1_000"}, "is no edit"),
        ({"scale:L9.u3": "2"}, "layer 9 of edit L9.u3 does not exist"),
        ({"choice:L0.p1.A": "set", "low:L0.p1.A": "1.5"}, "membership between 0 and 1"),
        ({"choice:L0.p1.A": "clamp", "low:L0.p1.A": "0.5"}, "no number"),
        ({"rest": "L0.u3:zero@99"}, "past the prompt"),
        ({"rest": "nonsense"}, "is no edit"),
        ({"position": "first"}, "no whole number"),
        ({"choice:L0.p1.A": "nonsense"}, "'nonsense'; send as read or flip or set or clamp, or leave it out"),
        ({"scope": "there"}, "scope is 'there'; send all or here"),
        ({"scale:L0_u3": "2"}, "no field 'scale:L0_u3'; did you mean scale:ID"),
    ],
)
def test_bad_moves_are_one_sentence(shared: Site, fields: dict[str, str], words: str) -> None:
    path = shared.read(PROMPT).partition("?")[0] + "/tune"
    for address in (path, f"{path}/redraw"):
        answer = shared.client.post(address, data=fields, headers={"accept": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text
        assert re.search(words, answer.json()["error"]["message"])


def test_a_move_that_overflows_says_in_which_layer(site: Site, sliders: str) -> None:
    path = sliders.partition("?")[0]
    fields = {"rest": "L1.u40:set=1e38"}
    site.client.post(f"{path}/redraw", data=fields)
    site.work()
    answer = site.client.post(f"{path}/redraw", data=fields, headers={"accept": "application/json"})
    assert answer.status_code == 422
    assert "overflows float32 in layer 1" in answer.json()["error"]["message"]
    page = shown(site, site.client.post(path, data=fields).headers["location"])
    assert "overflows float32 in layer 1" in page
    assert edits_of_field("") == ()
    assert edits_of_field('["L1.u40:zero", {"component": "L1.u41", "operation": "zero"}]') == (
        Edit(Unit(1, 40), "zero"),
        Edit(Unit(1, 41), "zero"),
    )
