"""What people say is shown beside the machine's names everywhere, as text; colliding edits lose nothing."""

from __future__ import annotations

import json
import re

import pytest
from page_samples import HOSTILE, SLUG, Site, parsed

from app.pages import keeper
from app.pages.named import names_of
from app.pages.people import labels_of
from legible_core.units import parse

UNIT = "L1.u3"
SVG = '<svg onload=alert(1)><img src="https://example.org/huge.png" width=99999>'


def write(site: Site, component: str = UNIT, revision: int = 0, **fields: str):  # type: ignore[no-untyped-def]
    given = {"revision": str(revision), "name": "age nouns", "text": "", "author": "Ada", **fields}
    return site.client.post(f"/models/{SLUG}/notes/{component}", data=given)


def machine(site: Site) -> tuple[str, str]:
    """The first label that the machine gives the unit or an operand of it."""
    return labels_of(names_of(site.checkpoint)[0], parse(UNIT))[0]


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_a_name_and_note_stand_beside_the_machines_everywhere(site: Site) -> None:
    operand = machine(site)[0]
    reading = site.read("it was the best of times", component=UNIT)
    reading = reading if "component" in reading else f"{reading}&component={UNIT}"
    assert "age nouns" not in site.client.get(reading).text
    before = visible(site.client.get(f"/models/{SLUG}/units/{UNIT}").text)
    assert "Nobody has named" in before

    saved = write(site, text="after ' of'")
    assert saved.status_code == 303
    assert saved.headers["location"] == f"/models/{SLUG}/units/{UNIT}#people"
    write(site, operand, name="an operand's name")

    unit = visible(site.client.get(f"/models/{SLUG}/units/{UNIT}").text)
    assert "age nouns" in unit
    assert "after ' of'" in unit
    assert "an operand's name" in unit
    assert "Ada" in unit
    assert machine(site)[1] in unit, "the machine's name stays"
    twin = site.client.get(f"/models/{SLUG}/units/{UNIT}.json").json()
    assert [said["name"] for said in twin["people"]["said"]] == ["age nouns", "an operand's name"]

    panel = visible(site.client.get(reading).text)
    assert "age nouns" in panel
    layer = site.client.get(f"/models/{SLUG}/layers/1?human=1").text
    rows = re.findall(r'class="mono" href="[^"]*/units/(L1\.u\d+)"', layer)
    assert UNIT in rows
    assert len(rows) == 2, "the unit, and the other unit of the pair that reads the operand"
    assert "age nouns" in layer
    found = visible(site.client.get("/search?q=Nouns").text)
    assert "Named or noted by people" in found
    assert UNIT in found
    assert "age nouns" in visible(site.client.get(f"/models/{SLUG}/notes").text)


def test_heads_and_channels_have_notes(site: Site) -> None:
    assert write(site, "L0.h1").headers["location"].endswith("/heads/L0.h1#people")
    assert "age nouns" in site.client.get(f"/models/{SLUG}/heads/L0.h1").text
    address = write(site, "L0.h1.c2", name="a channel").headers["location"]
    assert address == f"/models/{SLUG}/notes/L0.h1.c2"
    assert "a channel" in site.client.get(address).text


def test_the_second_of_two_edits_sees_both_and_loses_nothing(site: Site) -> None:
    write(site)
    write(site, revision=1, name="Bob's name", author="Bob")
    told = write(site, revision=1, name="my name", text="my long note")
    assert told.status_code == 409
    page = parsed(told.text)
    words = visible(told.text)
    assert "Bob changed what is said of L1.u3 (revision 2)" in words
    assert "Bob's name" in words
    assert "my long note" in words
    fields = {a["name"]: a.get("value") for tag, a in page.tags if tag == "input" and a.get("name")}
    assert fields["name"] == "my name"
    assert fields["revision"] == "2", "saving again is meant"
    assert write(site, revision=2, name="my name", text="my long note").status_code == 303
    history = site.client.get(f"/models/{SLUG}/notes/{UNIT}.json").json()["revisions"]
    assert [row["name"] for row in history] == ["my name", "Bob's name", "age nouns"]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"author": ""}, 422, "Say who writes"),
        ({"author": "\u0410da"}, 422, "mixes Latin and Cyrillic"),
        ({"author": "A\u202eda", "text": "x" * 8001}, 413, "at most 8,000 characters"),
        ({"name": "x" * 121}, 413, "at most 120 characters"),
        ({"name": "", "text": ""}, 422, "both are empty"),
        ({"revision": "7"}, 409, "no revision 7"),
        ({"revision": "first", "text": ""}, 422, "is 'first', which is no number of a revision"),
    ],
)
def test_what_is_refused_stays_in_the_form(shared: Site, fields: dict[str, str], status: int, said: str) -> None:
    answer = shared.client.post(
        f"/models/{SLUG}/notes/L1.u9", data={"revision": "0", "name": "n", "author": "Ada", "text": "kept", **fields}
    )
    assert answer.status_code == status
    assert said in visible(answer.text)
    assert ("kept" in answer.text) or "text" in fields


def test_hostile_notes_are_text(site: Site) -> None:
    assert write(site, name=HOSTILE, text=f"{SVG}\n{HOSTILE}\x00\u202e", author="<b>Ada</b>").status_code == 303
    for path in (f"units/{UNIT}", f"notes/{UNIT}", "notes", "layers/1?human=1"):
        text = site.client.get(f"/models/{SLUG}/{path}").text
        tags = parsed(text).tags
        assert "<svg onload" not in text
        assert "example.org" not in str([attrs for tag, attrs in tags if tag == "img"])
        assert not [attrs for tag, attrs in tags if any(name.startswith("on") for name in attrs)]
        assert "alert(1)" in visible(text)
        assert "\u202e" not in text
    assert "alert(1)" in visible(site.client.get("/search?q=alert").text)


@pytest.mark.parametrize(
    ("component", "said"),
    [("L7.u0", "no layer 7"), ("L0.u999", "999"), ("L0.h9", "head 9"), ("norm.bias", "floor"), ("x", "component id")],
)
def test_components_that_the_checkpoint_lacks(shared: Site, component: str, said: str) -> None:
    for answer in (shared.client.get(f"/models/{SLUG}/notes/{component}"), write(shared, component)):
        assert 400 <= answer.status_code < 500
        assert said in answer.text


def test_votes_are_counted_and_only_for_what_the_machine_says(site: Site) -> None:
    part, label = machine(site)
    address = f"/models/{SLUG}/notes/{UNIT}/votes"
    for author, vote in (("Ada", "right"), ("Bob", "wrong"), ("Bob", "right")):
        assert site.client.post(address, data={"cast": f"{vote} {part} {label}", "author": author}).status_code == 303
    people = site.client.get(f"/models/{SLUG}/units/{UNIT}.json").json()["people"]
    ballot = next(row for row in people["ballots"] if row["component"] == part)
    assert dict(ballot["votes"]) == {"right": 2, "wrong": 0, "unclear": 0}
    stale = site.client.post(address, data={"cast": f"right {part} an older label", "author": "Ada"})
    assert stale.status_code == 409
    assert "no label" in stale.text
    assert site.client.post(address, data={"cast": f"maybe {part} {label}", "author": "Ada"}).status_code == 422


def test_the_browser_remembers_who_wrote(site: Site) -> None:
    answer = write(site, author="Ada Ünal")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert 'value="Ada Ünal"' in site.client.get(f"/models/{SLUG}/notes/{UNIT}").text


def test_a_file_goes_out_and_comes_back(site: Site) -> None:
    write(site, text="a note")
    document = site.client.get(f"/models/{SLUG}/notes.json")
    assert document.json()["version"] == 1
    address = f"/models/{SLUG}/notes/import"
    form = site.client.post(address, files={"file": ("notes.json", document.content, "application/json")})
    assert "0 notes added, 0 brought up to date, 1 known already" in visible(form.text)
    more = document.json()
    more["notes"].append({"component": "L0.u1", "revisions": [{"name": "new", "text": "", "author": "Cy", "at": 1.0}]})
    direct = site.client.post(address, content=json.dumps(more), headers={"content-type": "application/json"})
    assert direct.json()["added"] == 1
    assert "new" in site.client.get(f"/models/{SLUG}/units/L0.u1").text
    wrong = site.client.post(address, files={"file": ("n.json", json.dumps({**more, "version": 9}), "text/plain")})
    assert wrong.status_code == 422
    assert "written in version 9; this Legible reads version 1" in wrong.text
    for files, said in (
        ({"note": ("n.json", b"{}")}, "has no field 'note'; its fields are file."),
        ({"file": ("n.json", b"")}, "A file of notes is missing or empty; choose it in the form"),
        ({"file": ("n.json", b'{"slug": "\xff"}')}, "bytes that are not UTF-8 text"),
    ):
        assert said in visible(site.client.post(address, files=files).text)
    cut = form.request.content[:-4]
    answer = site.client.post(address, content=cut, headers={"content-type": form.request.headers["content-type"]})
    assert (answer.status_code, "cannot be read as multipart" in answer.text) == (400, True)


def test_another_site_can_write_nothing(site: Site) -> None:
    answer = site.client.post(
        f"/models/{SLUG}/notes/{UNIT}", data={"name": "x", "author": "Eve"}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert site.services.notes.everything(site.checkpoint.hash) == ([], [])


def test_what_another_process_stores_shows_at_the_next_look(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TRUST_SECONDS", 0.0)
    monkeypatch.setattr(keeper, "MAX_SECONDS", 1e9)
    part, label = machine(site)
    address = f"/models/{SLUG}/units/{UNIT}"
    while 'hx-trigger="every' in site.client.get(address).text:
        site.work()
    made = site.client.get(address).text
    asked = {"component": part, "label": label}
    notes, weights = site.services.notes, site.checkpoint.hash
    for author, vote in (("Ada", "right"), ("Bob", "right"), ("Ada", "wrong")):
        notes.vote(weights, **asked, author=author, vote=vote)  # not posted here, so nothing is emptied
        now = site.client.get(address).text
        assert now != made
        made = now
        assert site.client.get(address).text == made
    notes.save(weights, UNIT, base=0, name="age nouns", text="", author="Ada")
    assert "age nouns" in site.client.get(address).text
