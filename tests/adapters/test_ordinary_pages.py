"""An ordinary model in the workbench: its page says what it is and is not, its readings say what is a guess."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import Result
from family_samples import save
from playwright.sync_api import Route, sync_playwright
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[1] / "pages"))
sys.path.append(str(Path(__file__).parents[1] / "journeys"))
from focus_samples import in_the_way
from journey_samples import chromium
from page_samples import Site, open_site, sample_text, without_shipped
from test_people_journey import AXE, findings

from app.cli import build
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.errors import LegibleError
from legible_core.monitor import Condition, Monitor
from legible_core.ordinary import adding

PROMPT = "It was the best of times, it was the"
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
    assert '<h2 id="scan">' in page
    assert "No scan has looked at this model&#39;s units yet" in page
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


def test_lists_say_that_it_cannot_be_read_where_its_libraries_are_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all("needs TransformerLens" not in text_of(site, address) for address in ("/", "/models"))
    monkeypatch.setattr("app.pages.home.find_spec", lambda name: None)
    site.client.app.state.kept_pages.clear()  # type: ignore[attr-defined]
    for address in ("/", "/models", "/models/tiny"):
        said = "cannot be read here yet: it needs TransformerLens, in the clone run pip install"
        assert said in text_of(site, address)
    site.client.app.state.kept_pages.clear()  # type: ignore[attr-defined]


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
    text_of(site, "/models/tiny/heads/L0.h0")
    [patterns] = [job.payload["prompts"] for job in site.services.queue.list() if job.kind == "patterns"]
    assert {prompt[0] for prompt in patterns} == {0}, "examples begin as they would be read"
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


def test_weights_written_over_while_they_are_loaded_are_not_read_under_the_old_hash(site: Site) -> None:
    site.read("It was the age")
    checkpoint = site.services.catalogue.get("tiny")
    assert isinstance(checkpoint, OrdinaryCheckpoint)
    weights = checkpoint.source / "model.safetensors"
    whole = weights.read_bytes()
    try:
        with weights.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([whole[-1] ^ 1]))
        answer = site.client.get(site.read("It was the age of"))
        assert "model.safetensors has changed since it was added; add it again." in answer.text
    finally:
        with weights.open("r+b") as file:  # truncating it would end a process that has it mapped
            file.write(whole)
    assert site.client.get(site.read("It was the best")).status_code == 200


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


def _press(site: Site, page: str, address: str) -> dict[str, Any]:
    """The JSON of the reading that a form of the page asks for."""
    assert f'action="{address}"' in page
    answer = site.client.post(address)
    assert answer.status_code == 303, answer.text
    site.work()
    found: dict[str, Any] = site.client.get(answer.headers["location"].replace("?", ".json?")).json()
    return found


def test_a_scan_gives_its_units_contexts_histograms_and_lists(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    without_shipped(monkeypatch)
    unscanned = text_of(site, "/models/tiny/units/L1.u7")
    assert "what it detects is undefined" in unscanned
    corpora = site.services.settings.data_dir / "corpora"
    corpora.mkdir(exist_ok=True)
    (corpora / "text.txt").write_text("<|endoftext|>".join(sample_text(seed, 250) for seed in range(4)))
    # Names of another model, copied there and cut off, are not used, and the page says so.
    for name, held in (("names.json", '{"checkpoint": "0"}'), ("names.safetensors", "cut")):
        (site.checkpoint.path / name).write_text(held)
    page = text_of(site, "/models/tiny")
    assert "belong to other weights" in page
    assert "text.txt" in page
    queued = site.client.post("/models/tiny/scans", data={"corpus": "text.txt"})
    assert queued.status_code == 303, queued.text
    site.work()
    page = text_of(site, "/models/tiny")
    assert "never above 0" in page
    assert "No scan has looked" not in page
    # The layer's table is sorted and filtered by what exists.
    layer = site.client.get("/models/tiny/layers/1.json?sort=most&above_min=10&above_max=90").json()
    assert 0 < layer["passing"] <= layer["total"] == 48
    most = [row["most"] for row in layer["rows"]]
    assert most == sorted(most, reverse=True)
    assert all(0.1 <= row["above"] <= 0.9 and row["on"] is row["crisp"] is row["cls"] is None for row in layer["rows"])
    assert site.client.get("/models/tiny/layers/1?mean_min=nan").status_code == 422
    table = text_of(site, "/models/tiny/layers/1?sort=mean")
    assert "never ON, crisp or SELECTIVE" in table
    assert "half-life" not in table
    # One unit: every token is counted once, and its extremes are those of its contexts.
    listed = next(row for row in layer["rows"] if "?" not in {piece["text"] for piece in row["formula"]})
    unit = site.client.get(f"/models/tiny/units/{listed['id']}.json").json()
    values = unit["values"]
    assert sum(part["count"] for part in values["histogram"]) == values["tokens"] > 1000
    assert unit["name"]["formula"].startswith("≈ ")
    assert unit["name"]["cls"] is None
    chosen = [strip["chosen"] for strip in unit["contexts"][listed["id"]]["strips"]]
    assert [chosen.count(name) for name in ("strongest", "lowest", "random")] == [4, 4, 2]
    page = text_of(site, f"/models/tiny/units/{listed['id']}")
    # A context is read as the scan had it: behind the begin-of-text token, up to the token it was chosen for.
    strip = unit["contexts"][listed["id"]]["strips"][0]
    reading = _press(site, page, f"/models/tiny/units/{listed['id']}/contexts/{listed['id']}/{strip['place']}")
    assert reading["tokens"][0]["id"] == 0
    assert reading["tokens"][-1]["display"] == next(t for t in strip["tokens"] if t["current"])["display"]
    for said in ("is most active on", "above 0, at random", "lowest", "act(gate)·up", "suppresses", "no operation"):
        assert said in page, said
    figures = f"/models/tiny/units/{listed['id']}/figures"
    for name in ("histogram-value", "active", "suppresses", "promotes"):
        assert site.client.get(f"{figures}/{name}.csv").status_code == 200, name
    # It is found by what it fires on and by what it promotes.
    for field, token in (("detects", values["detect"][0]), ("promotes", unit["promotes"][0]["token"])):
        text = site.services.tokenizers.call("describe", site.checkpoint.tokenizer_path, [token["id"]])[0]["text"]
        found = site.client.get("/search.json", params={"q": f"{field}:'{text}'", "page": 1}).json()
        assert listed["id"] in {row["id"] for group in found["groups"] for row in group["rows"]}, (field, found)
    # A reading has the names now, and still no legible share.
    document = site.client.get(site.read("It was the worst of times").replace("?", ".json?")).json()
    assert document["shares"]["net"] is None
    units = [part for part in document["top"] if part["kind"] == "geglu"]
    assert units
    assert all(part["formula"].startswith("≈ ") and part["class"] is None for part in units)


def test_it_is_scanned_in_the_terminal_on_its_own_text(site: Site, tmp_path: Path) -> None:
    def scan(*options: str) -> Result:
        folder = str(site.checkpoint.source)  # type: ignore[attr-defined]
        return CliRunner().invoke(build(), ["scan", folder, "--sample", "500", "--device", "cpu", *options])

    (tmp_path / "out").mkdir()
    place = ("--out", str(tmp_path / "out"))
    for options, said in (
        ((), "legible add"),
        (("--dtype", "int8", *place), "must be float32 or bfloat16"),
        (("--device", "bogus", *place), "The device 'bogus' cannot be used ("),
        (("--device", "meta", *place), "The device 'meta' cannot be used ("),
    ):
        error = scan(*options).exception
        assert isinstance(error, LegibleError)
        assert said in f"{error.message} {error.hint}"
    done = scan("--dtype", "bfloat16", *place)
    assert done.exit_code == 0, done.stderr
    for said in ("units have no rails", "its loss there is no measure", "sampled by this checkpoint, 504 tokens"):
        assert said in done.stdout
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"names.json", "names.safetensors", "contexts.safetensors"}
    # The states of one text in two dtypes do not overwrite each other.
    (tmp_path / "text.txt").write_text("It was the worst of times. " * 90)
    for count, dtype in enumerate(("float32", "bfloat16"), 1):
        shard = ("--corpus", str(tmp_path / "text.txt"), "--shard", "1/2", "--state", str(tmp_path / "states"))
        assert scan("--dtype", dtype, "--batch", "2", *shard, *place).exit_code == 0
        assert len(list((tmp_path / "states").glob("*/scan.json"))) == count


def test_its_pages_have_nothing_serious_and_every_control_by_keyboard(site: Site) -> None:
    """By axe-core's rules. Without a server: the application itself answers the browser's requests."""
    # Tests before this one hide the shipped checkpoints, which the catalogue remembers for some seconds.
    site.services.catalogue.refresh()
    posted = [
        site.client.post(f"/models/{slug}/readings", data={"prompt": PROMPT}) for slug in ("tiny", "novel-legible")
    ]
    site.work()
    reading, legible = (site.client.get(one.headers["location"]).headers["location"] for one in posted)
    pages = {
        "model": "/models/tiny", "layer": "/models/tiny/layers/1", "unit": "/models/tiny/units/L1.u3",
        "head": "/models/tiny/heads/L1.h2", "reading": f"{reading}&component=L1.u3",
        "beside a legible one": f"/compare?{urlencode({'left': legible, 'right': reading})}",
    }  # fmt: skip
    for address in pages.values():
        site.client.get(address)
    site.work()
    origin = str(site.client.base_url)

    def answer(route: Route) -> None:
        found = site.client.get(route.request.url.removeprefix(origin))
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")
        page.route("**/*", answer)
        for name, address in pages.items():
            page.goto(origin + address)
            page.evaluate(AXE.read_text(encoding="utf-8"))
            wrong += [f"{name}: {said}" for said in findings(page) + in_the_way(page)]
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
    assert wrong == []
