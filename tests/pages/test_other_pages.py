"""Home, checkpoints, layers, units, heads and jobs: titles, twins, sorting and filters, and what does not exist."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path

import pytest
from page_samples import HOSTILE, SLUG, Site, links, make_checkpoint, open_site, parsed, title

from app.handlers import pick_device
from app.pages.home import most_nameable
from app.pages.models import Figure, _card_fact
from legible_core.checkpoint import write_card
from legible_core.folder import Card
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint, open_checkpoint

READ_FIRST = [
    ({"a": ("0.45", "75"), "b": ("0.44", "70"), "c": ("0.13", "60")}, "b"),
    ({"a": ("0.45", "75"), "b": ("0.40", "70")}, "a"),
    ({"a": ("0.45", ""), "b": ("0.44", "70")}, "b"),
    ({"a": ("", "70"), "b": ("", "60")}, "b"),
]
ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "/": "Read a prediction",
    "/models": "Checkpoints",
    f"/models/{SLUG}": f"{SLUG}: checkpoint",
    f"/models/{SLUG}/layers/1": "Layer 1 of tiny",
    f"/models/{SLUG}/units/L0.u3": "L0.u3",
    f"/models/{SLUG}/heads/L1.h0": "Head L1.h0",
    "/jobs": "Jobs",
}


@pytest.mark.parametrize(("url", "said"), PAGES.items())
def test_pages_say_what_they_show_and_have_a_twin(shared: Site, url: str, said: str) -> None:
    page = shared.client.get(url)
    assert page.status_code == 200
    assert said in title(page.text)
    assert page.headers["content-type"].startswith("text/html")
    twin = shared.client.get("/index.json" if url == "/" else f"{url}.json")
    assert twin.status_code == 200
    assert twin.headers["content-type"] == "application/json"
    assert twin.json()


@pytest.mark.parametrize(("url", "said"), PAGES.items())
def test_nothing_is_inline_and_nothing_comes_from_outside(shared: Site, url: str, said: str) -> None:
    page = shared.client.get(url)
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for tag, attrs in parsed(page.text).tags:
        assert tag != "style"
        assert "style" not in attrs
        if tag == "script":
            assert attrs.get("src") or attrs.get("type") == "application/json"
    assert not [link for link in links(page.text) if re.match(r"(?i)\w+:|//", link)]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/models/other", "There is no checkpoint 'other'"),
        ("/models/other/units/L0.u0", "There is no checkpoint 'other'"),
        (f"/models/{SLUG}/layers/2", "it has layers 0 to 1"),
        (f"/models/{SLUG}/layers/2.0", "it has layers 0 to 1"),
        (f"/models/{SLUG}/layers/{'9' * 400}", "it has layers 0 to 1"),
        (f"/models/{SLUG}/units/L0.u48", "a layer of this checkpoint has units 0 to 47"),
        (f"/models/{SLUG}/units/L5.u0", "There is no layer 5"),
        (f"/models/{SLUG}/heads/L0.h4", "There is no head 4"),
        (f"/models/{SLUG}/heads/L0.u1", "is no head"),
        (f"/models/{SLUG}/units/L0.h1", "is no unit"),
        (f"/models/{SLUG}/readings/{'0' * 64}", "There is no reading 000000000000"),
        ("/jobs/12345", "There is no job 12345"),
        (f"/jobs/{2**31}", "There is no job 2147483648"),
        (f"/jobs/{2**63}", "There is no job 9223372036854775808"),
        ("/nowhere", "There is no page at /nowhere"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_one_sentence(shared: Site, url: str, said: str) -> None:
    page = shared.client.get(url)
    assert page.status_code == 404
    assert said in "".join(parsed(page.text).text)
    assert "Not found" in title(page.text)
    twin = shared.client.get(f"{url}.json")
    assert twin.status_code == 404
    assert set(twin.json()["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "url",
    [
        f"/models/{SLUG}/layers/0?sort=size",
        f"/models/{SLUG}/layers/0?kind=big",
        f"/models/{SLUG}/layers/x",
        "/jobs/x",
        f"/models/{SLUG}/layers/{'9' * 4400}",
    ],
)
def test_bad_query_values(shared: Site, url: str) -> None:
    answer = shared.client.get(url)
    assert answer.status_code == 422
    assert "is not usable" in "".join(parsed(answer.text).text)


def rows(site: Site, query: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = site.client.get(f"/models/{SLUG}/layers/0.json?{query}").json()["rows"]
    return found


@pytest.mark.parametrize("form", ["", ".json"])
@pytest.mark.parametrize("query", ["", "?sort=crisp&kind=difference&q=%C3%A9"])
def test_a_layer_by_its_id(shared: Site, form: str, query: str) -> None:
    answer = shared.client.get(f"/models/{SLUG}/layers/L1{form}{query}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/models/{SLUG}/layers/1{form}{query}")
    assert shared.client.get(answer.headers["location"]).status_code == 200
    absent = shared.client.get(f"/models/{SLUG}/layers/L7{form}", follow_redirects=True)
    assert absent.status_code == 404
    assert "it has layers 0 to 1" in absent.text


def test_layer_table_sorts_and_filters(shared: Site) -> None:
    every = rows(shared, "")
    assert [row["index"] for row in every] == list(range(48))
    for sort in ("crisp", "on", "agreement"):
        values = [row[sort] for row in rows(shared, f"sort={sort}")]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=True)
        assert values[: len(known)] == known, "undefined stands last"
        upward = [row[sort] for row in rows(shared, f"sort={sort}&order=up")]
        assert [value for value in upward if value is not None] == sorted(known)
        assert upward[: len(known)] == sorted(known)
    kinds = [row["kind"] for row in rows(shared, "sort=kind&order=down")]
    assert kinds[0] == "gelu"
    assert {row["kind"] for row in rows(shared, "kind=difference")} == {"difference"}
    selective = rows(shared, "class=SELECTIVE")
    assert selective
    assert {row["cls"] for row in selective} == {"SELECTIVE"}
    page = shared.client.get(f"/models/{SLUG}/layers/0?sort=crisp&kind=difference").text
    assert 'aria-sort="descending"' in page
    assert "sort=crisp" in "".join(links(page)), "chips keep the order that was chosen"
    assert page.count("<tr>") - 1 == len(rows(shared, "sort=crisp&kind=difference"))


def test_unit_page_is_the_names_file(shared: Site) -> None:
    names = Names.load(shared.checkpoint.path)
    assert names is not None
    from legible_core.units import Unit

    for unit in (0, 12, 19, 22, 40):
        name = names.component(Unit(0, unit))
        page = shared.client.get(f"/models/{SLUG}/units/L0.u{unit}").text
        text = "".join(parsed(page).text)
        for token in name.promotes:
            assert token.display in text
        for operand in name.operands:
            assert operand in text
        if name.decay is not None:
            assert f"{name.decay:.4f}" in text
        twin = shared.client.get(f"/models/{SLUG}/units/L0.u{unit}.json").json()
        assert twin["name"]["formula"] == name.formula
        assert twin["checkpoint"] == shared.checkpoint.hash


def test_measured_is_italic_and_read_off_the_weights_is_not(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}/layers/0?kind=intersection").text
    row = re.search(r"<td>(<i>.*?)</td>", page)
    assert row is not None
    before, _, after = row[1].partition("→")
    assert "<i>" in before
    assert "<i>" not in after


def test_head_page_keeps_looks_and_finds_apart(site: Site) -> None:
    site.read("it was the best of times")
    first = site.client.get(f"/models/{SLUG}/heads/L0.h1")
    assert 'hx-trigger="every' in first.text
    site.work()
    page = site.client.get(f"/models/{SLUG}/heads/L0.h1").text
    assert page.index('id="looks"') < page.index('id="finds"')
    assert page.count('aria-current="true"') >= 2, "the thumbnail marks this head, the strip the position"
    linear = site.client.get(f"/models/{SLUG}/heads/L1.h3")
    assert "its legibility is undefined" in linear.text
    assert "<td>c0" not in linear.text


def test_unit_over_the_tokens_of_a_reading(site: Site) -> None:
    address = site.read("it was the best of times")
    digest = address.partition("?")[0].rpartition("/")[2]
    query = address.partition("?")[2]
    url = f"/models/{SLUG}/units/L0.u20?reading={digest}&{query}"
    assert site.client.get(url).status_code == 200
    site.work()
    page = site.client.get(url).text
    assert re.search(r'title="\d+: value [0-9.]+"', page)


def test_unit_page_lists_the_readings_where_it_mattered(site: Site) -> None:
    address = site.read("it was the best of times")
    data = site.client.get(address.replace("?", ".json?")).json()
    inside = next(c["id"] for c in data["top"] if c["kind"] != "head")
    named = {c["id"] for c in data["top"]}
    outside = next(f"L0.u{unit}" for unit in range(48) if f"L0.u{unit}" not in named)
    assert f"{address}&component={inside}" in links(site.client.get(f"/models/{SLUG}/units/{inside}").text)
    assert "Where it mattered" not in site.client.get(f"/models/{SLUG}/units/{outside}").text


def test_model_page_gives_every_figure_its_table(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}").text
    blocks = re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', page, re.DOTALL)
    assert {name for name, _ in blocks} >= {"operands", "value-channels", "heads", "half-lives"}
    for _, block in blocks:
        figure = json.loads(block)
        assert figure["data"]
    assert page.count("<figure id=") == page.count(": table</summary>") >= len(blocks)
    assert "loss (nats a token)" in page, "no legibility figure without the quality"
    card = {
        "tokens": "614400", "decay_tokens": "1310720", "crisp": "0.4899", "on": "x", "seed": "1234567",
        "wikitext2_word_perplexity": "943235.44", "wikitext2_word_perplexity_se": "25011.52",
        "wikitext2_byte_perplexity": "13.1234",
    }  # fmt: skip
    facts = {fact.name: fact.value for fact in (_card_fact(key, card) for key in card)}
    assert list(facts.values())[:5] == ["614,400", "1,310,720", "49.0 %", "x", "1234567"]
    assert list(facts.values())[5:] == ["943,235", "25,012", "13.1234"]
    assert facts["tokens trained"] == "614,400"
    assert HOSTILE not in page
    names = Names.load(shared.checkpoint.path)
    assert names is not None
    heat = next(json.loads(block) for name, block in blocks if name == "heads")
    assert heat["data"][0]["z"] == [layer["heads"] for layer in names.legibility["layers"]]
    assert heat["data"][0]["z"][1][3] is None, "a linear head is undefined, not 0"


def test_an_unscanned_checkpoint_says_so(tmp_path: Path) -> None:
    bare = open_site(tmp_path / "data", make_checkpoint(tmp_path / "models", scan=False))
    try:
        for path in ("", "/layers/0", "/units/L0.u3", "/heads/L0.h0"):
            page = bare.client.get(f"/models/{SLUG}{path}")
            assert page.status_code == 200
            assert f"legible scan {SLUG}" in page.text
    finally:
        bare.services.close()


def test_a_checkpoint_that_is_refused_is_listed_with_its_reason(site: Site, tmp_path: Path) -> None:
    broken = make_checkpoint(tmp_path / "models", "broken", scan=False)
    site.services.store.add_checkpoint("broken", broken.hash, str(broken.path))
    (broken.path / "model.safetensors").write_bytes(b"nothing")
    site.services.catalogue.refresh()
    for url in ("/", "/models"):
        assert "The checkpoint broken is refused" in "".join(parsed(site.client.get(url).text).text)
    assert site.client.get("/models/broken").status_code == 422


def test_examples_come_from_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "models", scan=False)
    rows = [{"prompt": "it was <b>", "target": 7, "token": "·worst", "probability": 0.25, "rank": 3}]
    file = checkpoint.path / "examples.json"
    file.write_text(json.dumps({"checkpoint": checkpoint.hash, "examples": rows}), encoding="utf-8")
    own = open_site(tmp_path / "data", checkpoint)
    try:
        text = "".join(parsed(own.client.get(f"/?model={SLUG}").text).text)
        assert "it was <b>" in text
        assert "probability 0.25, rank 3" in text
        asked = {"model": SLUG, "example": "0"}
        assert own.client.post("/", data=asked).headers["location"].endswith("&target=7")
        assert own.client.post("/", data={**asked, "example": "1"}).status_code == 404
        for broken in ("[3]", "{", json.dumps({"checkpoint": "0" * 64, "examples": rows})):
            file.write_text(broken, encoding="utf-8")
            page = own.client.get(f"/?model={SLUG}").text
            assert "It was the best of times, it was the" in page
            assert "rank 3" not in page
    finally:
        own.services.close()


def test_home_keeps_a_prompt_that_starts_with_a_line_break(shared: Site) -> None:
    page = shared.client.get("/", params={"prompt": "\nit was"}).text
    assert re.search(r"<textarea[^>]*>\n\nit was</textarea>", page), "HTML drops the first line break of a text area"


def test_jobs_show_place_and_cancel(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt in ("it was", "she was"):
        site.client.post("/", data={"prompt": prompt, "model": SLUG})
    # More than a page holds: the counts are of all, and those on the second page have their place and their buttons.
    with monkeypatch.context() as patch:
        patch.setattr("app.pages.jobs.LISTED", 1)
        shown = site.client.get("/jobs")
        assert "0 running, 2 waiting. Jobs 1 to 1 of 2:" in shown.text
        assert '<a class="button" rel="next" href="/jobs?page=2">' in shown.text
        second = site.client.get("/jobs.json?page=2").json()
        assert [second[name] for name in ("total", "waiting", "page", "pages", "after")] == [2, 2, 2, 2, None]
        assert [job["place"] for job in second["jobs"]] == [2]
        assert 'name="back" value="/jobs?page=2"' in site.client.get("/jobs?page=2").text
        assert [job["id"] for job in site.client.get("/jobs.json?page=9").json()["jobs"]] == [second["jobs"][0]["id"]]
    page = "".join(parsed(site.client.get("/jobs").text).text)
    assert "waiting, place 1" in page
    assert page.count(f"“it was” {SLUG}") == page.count(f"“she was” {SLUG}") == 1
    assert {job["model"] for job in site.client.get("/jobs.json").json()["jobs"]} == {SLUG}
    assert "waiting, place 2" in page
    assert "No worker is alive" in page
    first = site.services.queue.list()[0]
    assert site.client.post(f"/jobs/{first.id}/cancel").status_code == 303
    after = site.client.get(f"/jobs/{first.id}").text
    assert "cancelled" in after
    assert "try again" in after
    assert site.client.post(f"/jobs/{first.id}/cancel").status_code == 409
    running = site.services.queue.claim("somebody", ["read"])
    assert running is not None
    for done in (2, 4):
        time.sleep(0.01)
        site.services.queue.progress(running, stage="run", done=done, total=8)
        (line,) = [job for job in site.client.get("/jobs.json").json()["jobs"] if job["id"] == running.id]
        assert (line["left"] is None) == (done == 2), "a pace needs something done since the work began"
    shown = site.client.get(f"/jobs/{running.id}").text
    assert " left " in shown
    assert "<td>under way</td>" in shown
    site.services.queue.cancel(running.id)
    after = site.client.get(f"/jobs/{running.id}").text
    assert ", stops after the batch in hand" in after
    assert f'hx-get="/jobs/{running.id}"' in after, "it asks again until the job has ended"
    assert "stopping" in site.client.get("/jobs").text


def test_a_job_that_is_done_says_so_and_a_pair_shows_where_it_parts(site: Site) -> None:
    start = "It was said of the keys to the cabinet that they "
    queue = site.services.queue
    asked = {"slug": SLUG, "good": f"{start}were lost.", "bad": f"{start}was lost."}
    job = queue.claim("somebody", [queue.submit("pair", "p" * 64, asked).kind])
    assert job is not None
    queue.progress(job, stage="run", done=4, total=6)
    assert "4 of 6" in site.client.get("/jobs").text
    assert queue.finish(job, {})
    page = " ".join(" ".join(parsed(site.client.get("/jobs").text).text).split())
    assert "4 of 6" not in page
    assert f"pair “…that they were lost.”, “…that they was lost.” {SLUG} done" in page
    (line,) = site.client.get("/jobs.json").json()["jobs"]
    assert (line["state"], line["done"], line["total"]) == ("done", None, None)


def test_the_jobs_page_shows_the_device_in_use(scanned: Checkpoint, tmp_path: Path) -> None:
    own = open_site(tmp_path / "data", scanned, device="auto")
    try:
        own.worker._hello()
        assert own.client.get("/jobs.json").json()["workers"][0]["device"] == "auto"
        assert "chosen with the first model" in own.client.get("/jobs").text
        own.read("it was")
        assert own.client.get("/jobs.json").json()["workers"][0]["device"] == pick_device("auto").partition(" ")[0]
    finally:
        own.services.close()


def test_under_a_root_path_every_address_has_it(scanned: Checkpoint, tmp_path: Path) -> None:
    below = open_site(tmp_path / "data", scanned, root_path="/tools/legible")
    try:
        for path in ("/", "/models", "/jobs", *(f"/models/{SLUG}{part}" for part in ("", "/layers/0", "/units/L0.u3"))):
            page = below.client.get(f"/tools/legible{path}")
            assert page.status_code == 200
            for link in links(page.text):
                assert link.startswith(("/tools/legible/", "#", "?")), (path, link)
        answer = below.client.post("/tools/legible/", data={"prompt": "it was", "model": SLUG})
        assert answer.headers["location"].startswith("/tools/legible/models/")
        below.work()
        reading = below.client.get(answer.headers["location"])
        assert reading.status_code == 303
        page = below.client.get(reading.headers["location"])
        assert all(link.startswith(("/tools/legible/", "#", "?")) for link in links(page.text))
    finally:
        below.services.close()


@pytest.mark.parametrize("room", ["static", "tests"])
def test_vendored_files_are_unmodified(room: str) -> None:
    folder = ROOT / room / "vendor"
    table = (folder / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| (\S+\.js) \|.*\| ([0-9a-f]{64}) \|$", table, re.MULTILINE))
    assert set(listed) == {path.name for path in folder.glob("*.js")}
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert (folder / name.replace(".min.js", ".LICENSE")).is_file()


def test_plotly_is_served_compressed_and_only_where_it_is_needed(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}").text
    address = next(link for link in links(page) if "plotly.min.js" in link)
    assert not any("plotly.min.js" in link for link in links(shared.client.get("/").text))
    answer = shared.client.get(address, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "max-age" in answer.headers["cache-control"]
    again = shared.client.get(address, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


def test_figures_are_typed() -> None:
    named = {"id", "caption", "note", "data", "head", "rows", "csv", "json", "file", "embed"}
    assert Figure.__dataclass_fields__.keys() == named


@pytest.mark.parametrize(("cards", "chosen"), READ_FIRST)
def test_a_newcomer_meets_the_best_of_those_that_read_about_equally_well(
    tmp_path: Path, cards: dict[str, tuple[str, str]], chosen: str
) -> None:
    found = []
    for seed, (slug, (nameable, perplexity)) in enumerate(cards.items()):
        checkpoint = make_checkpoint(tmp_path, slug, scan=False, seed=seed)
        fields = {"nameable": nameable, "perplexity": perplexity}
        write_card(checkpoint.path, Card({key: value for key, value in fields.items() if value}))
        found.append(open_checkpoint(checkpoint.path))
    best = most_nameable(found)
    assert best is not None
    assert best.slug == chosen
    assert most_nameable([]) is None
