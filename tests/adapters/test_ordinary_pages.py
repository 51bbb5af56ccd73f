"""An ordinary model in the workbench: its page says what it is and is not, its readings say what is a guess."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from family_samples import save

sys.path.append(str(Path(__file__).parents[1] / "pages"))
from page_samples import Site, open_site

from legible_core.monitor import Condition, Monitor
from legible_core.ordinary import adding

TEMPLATE = "{{ bos_token }}[{{ messages[0].content }}]"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A workbench with one ordinary model: capped logits, gated units, a template and a begin-of-text token."""
    root = tmp_path_factory.mktemp("pages")
    folder = save("gemma2", root / "capped", bos=True, template=TEMPLATE)
    made = open_site(root / "data", adding.add(folder, root / "data" / "ordinary", slug="tiny"))
    yield made
    made.services.close()


def text_of(site: Site, address: str) -> str:
    answer = site.client.get(address, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_its_page_says_what_it_is_and_shows_the_certificate(site: Site) -> None:
    page = text_of(site, "/models/tiny")
    for said in ("An ordinary model", "Parity certificate", "Hugging Face", "Gemma 2", "GeGLU", "soft-cap", "RMSNorm"):
        assert said in page, said
    assert '<h2 id="scan">' not in page
    assert "no legibility figure" not in page
    for refused in ("Judged on", "legible eval", "what edits do"):
        assert refused not in page, refused
    lab = text_of(site, "/models/tiny/edit-lab")
    assert "tiny is an ordinary model" in lab
    assert "legible edit-lab gains" not in lab
    assert "ordinary Gemma 2" in text_of(site, "/models")
    twin = site.client.get("/models/tiny.json").json()
    assert twin["ordinary"] is True
    assert twin["certificate"]["top_agrees"] == twin["certificate"]["positions"]
    assert "source" not in twin  # where things lie on this machine is nobody else's


def test_no_monitor_is_made_of_it(site: Site) -> None:
    form = {"name": "one", "model": "tiny", "conditions": "L1.u3 above 0"}
    refused = site.client.post("/monitors", data=form, headers={"accept": "application/json"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "ordinary")
    assert "this one is an ordinary model" in refused.json()["error"]["message"]
    form_page = text_of(site, "/monitors")
    assert ">novel-legible</option>" in form_page
    assert ">tiny</option>" not in form_page
    # What an older version stored takes no text.
    conditions = (Condition.parse_line(form["conditions"]),)
    old = site.services.monitors.save(
        None, base=0, checkpoint_hash=site.checkpoint.hash, slug="tiny", monitor=Monitor("old", conditions)
    )
    text_of(site, f"/monitors/{old.id}")
    assert site.client.post(f"/monitors/{old.id}/streams", data={"text": "It was"}).status_code == 422
    assert site.services.monitors.streams(old.id) == []


def test_a_reading_has_its_figures_and_marks_its_guesses(site: Site) -> None:
    address = site.read("It was the best of times")
    text_of(site, address)
    site.work()  # the panel's close-up
    page = text_of(site, address)
    assert "≈" in page
    assert "no legible share: an ordinary model" in page
    assert "logit before the soft-cap at 4" in page
    assert "SELECTIVE" not in re.sub(r"<title>.*?</title>", "", page)
    document = site.client.get(address.replace("?", ".json?")).json()
    assert document["shares"]["net"] is None
    assert document["tokens"][0]["id"] == 0  # the begin-of-text token, in sight
    assert document["logit_softcap"] == 4.0
    layer, unit = text_of(site, "/models/tiny/layers/1"), text_of(site, "/models/tiny/units/L1.u7")
    assert "geglu" in layer
    assert "GeGLU" in unit


def test_begin_of_text_and_template_are_chosen_on_the_home_page(site: Site) -> None:
    page = text_of(site, "/?model=tiny")
    assert 'name="bos"' in page
    assert 'name="chat"' in page

    def ids(place: str = "/", **fields: str) -> list[int]:
        answer = site.client.post(place, data={"prompt": "It", "model": "tiny", **fields})
        assert answer.status_code == 303, answer.text
        site.work()
        address = answer.headers["location"]
        return [token["id"] for token in site.client.get(address.replace("?", ".json?")).json()["tokens"]]

    plain = ids(bos="no")
    assert ids() == [0, *plain] == ids(bos="yes")
    in_template = ids(chat="1")
    assert in_template.count(0) == 1
    assert len(in_template) == len(plain) + 3  # begin of text, and the two brackets
    assert ids("/models/tiny/readings", bos="no") == plain
    assert ids("/models/tiny/readings", chat="1") == in_template


def test_what_needs_operands_is_refused_with_the_reason(site: Site) -> None:
    address = site.read("It was")
    digest = address.partition("/readings/")[2].partition("?")[0]
    answer = site.client.get(f"/models/tiny/readings/{digest}/why/L0.p3.A", follow_redirects=True)
    assert answer.status_code >= 400
    assert "Traceback" not in answer.text


def test_its_heads_and_units_are_removed_and_scaled_from_the_pages(site: Site) -> None:
    address = site.read("It was the best of times")
    base, _, query = address.partition("?")
    for part in ("causal", "tune"):
        site.client.get(f"{base}/{part}?{query}")
        site.work()
        answer = site.client.get(f"{base}/{part}.json?{query}")
        assert (answer.status_code, "job" in answer.json()) == (200, False), answer.text
    checks = site.client.get(f"{base}/causal.json?{query}").json()["checks"]
    assert any(check["removals"] for check in checks)
    site.client.app.state.reading_pages.clear()  # a kept page is trusted for a second
    assert text_of(site, address).count("removed") > 0
    site.client.get(f"{base}/causal?{query}&view=sufficiency")
    site.work()
    said = site.client.get(f"{base}/causal?{query}&view=sufficiency").text
    assert "of 192 units and channels" in re.sub(r"<[^>]+>|\s+", " ", said).replace("  ", " ")
    assert "sets were tried" in said
    assert "Traceback" not in said
