"""The model page: every figure with its table, its data and the perplexity beside it; a scan queued from it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from page_samples import SLUG, Site, links, make_checkpoint, open_site, parsed, without_shipped

from app.pages.model_figures import _inert
from app.pages.scans import corpora_dir
from legible_core.checkpoint import write_card
from legible_core.folder import Card
from legible_core.naming.contexts import Contexts
from legible_core.naming.names import Names
from legible_core.naming.tables import tables
from legible_core.registry import open_checkpoint


@pytest.fixture(scope="module")
def names(scanned: object) -> Names:
    found = Names.load(scanned.path)  # type: ignore[attr-defined]
    assert found is not None
    return found


def test_each_figure_has_table_data_and_quality(shared: Site, names: Names) -> None:
    page = shared.client.get(f"/models/{SLUG}").text
    said = f"perplexity {names.quality['perplexity']:.2f} on corpus.txt"
    drawn = dict(re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', page, re.DOTALL))
    assert set(drawn) >= {"selective", "value-channels", "operands", "composition", "heads", "half-lives"}
    for table in tables(names):
        part = page[page.index(f'<figure id="{table.id}"') :]
        part = part[: part.index("</figure>")]
        assert said in part or said in json.dumps(json.loads(drawn[table.id])), table.id
        assert part.count("<tr>") == len(table.rows) + 1
        assert f"{SLUG}/figures/{table.id}.csv" in part
        assert f'data-export="{SLUG}-{table.id}"' in part
        if table.id in drawn:
            assert said in json.loads(drawn[table.id])["layout"]["xaxis"]["title"]["text"]


def test_a_figures_files_are_its_table(shared: Site, names: Names) -> None:
    for table in tables(names):
        answer = shared.client.get(f"/models/{SLUG}/figures/{table.id}.csv")
        assert answer.status_code == 200
        assert answer.headers["content-disposition"] == f'attachment; filename="{SLUG}-{table.id}.csv"'
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert len(rows) == len(table.rows)
        for row, expected in zip(rows, table.records(), strict=True):
            assert float(row.pop("perplexity")) == pytest.approx(names.quality["perplexity"])
            assert row.pop("checkpoint") == shared.checkpoint.hash
            for column, value in expected.items():
                assert row[column] == ("" if value is None else str(_inert(value)))
        twin = shared.client.get(f"/models/{SLUG}/figures/{table.id}.json").json()
        assert twin["quality"] == names.quality
        assert twin["corpus"]["name"] == "corpus.txt"
        assert twin["rows"] == json.loads(json.dumps(table.records()))
    assert shared.client.get(f"/models/{SLUG}/figures/half-lives.json").json()["memory"]["all"]["median"] > 0


def test_undefined_is_a_gap_and_never_zero(shared: Site, names: Names) -> None:
    rows = list(csv.DictReader(io.StringIO(shared.client.get(f"/models/{SLUG}/figures/heads.csv").text)))
    assert rows[1]["h2"] == rows[1]["h3"] == ""
    page = shared.client.get(f"/models/{SLUG}").text
    drawn = json.loads(re.findall(r'id="data-heads">(.*?)</script>', page, re.DOTALL)[0])
    assert drawn["data"][0]["z"][1][2:] == [None, None]


def test_an_unknown_figure_names_those_there_are(shared: Site) -> None:
    answer = shared.client.get(f"/models/{SLUG}/figures/nothing.json")
    assert answer.status_code == 404
    assert "it has selective" in answer.json()["error"]["message"]
    assert shared.client.get("/models/other/figures/heads.csv").status_code == 404


def test_a_spreadsheet_runs_no_cell() -> None:
    assert [_inert(x) for x in ("=1+1", "-x", "@a", "plain", 1.5, None)] == ["'=1+1", "'-x", "'@a", "plain", 1.5, None]


def test_a_checkpoint_without_names_has_no_figures(tmp_path: Path) -> None:
    own = open_site(tmp_path / "data", make_checkpoint(tmp_path / "models", scan=False))
    try:
        page = own.client.get(f"/models/{SLUG}").text
        assert "data-plotly" not in page
        assert "No scan has named this checkpoint" in page
        answer = own.client.get(f"/models/{SLUG}/figures/heads.json")
        assert answer.status_code == 404
        assert "legible scan" in answer.json()["error"]["message"]
        (own.checkpoint.path / "names.json").write_text("{}")
        assert "names.json without names.safetensors" in own.client.get(f"/models/{SLUG}.json").json()["missing"]
        assert "not scanned" in own.client.get("/models").text
    finally:
        own.services.close()


CARD = """# tiny

- Trained on 12.0M tokens. **Matched with others** in tokens,
  their order and batch; shipped as `tiny-12m` (`docs/training.md`).

An <img src=x onerror=alert(1)> & `<script>alert(2)</script>`, **<b>bold</b>**, [x](javascript:alert(3)).

| a | b |
| --- | --- |
| `c` | 1 |
"""


def test_the_cards_text_is_markdown_that_only_shows_text(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "models", scan=False)
    own = open_site(tmp_path / "data", write_card(made.path, Card({"loss": "5.5"}, CARD)))
    try:
        page = own.client.get(f"/models/{SLUG}").text
    finally:
        own.services.close()
    prose = re.findall(r'<div class="prose" dir="auto">(.*?)</div>', page, re.DOTALL)[0]
    assert "<strong>Matched with others</strong>" in prose
    assert "<code>tiny-12m</code> (<code>docs/training.md</code>)" in prose
    assert "<h3>tiny</h3>" in prose, "below the page's own heading of the card"
    assert "<td><code>c</code></td>" in prose
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; <code>&lt;script&gt;alert(2)&lt;/script&gt;</code>" in prose
    assert "<strong>&lt;b&gt;bold&lt;/b&gt;</strong>" in prose
    assert not re.search(r"<(img|script|b|a)\b", prose)
    assert "`" not in prose
    assert "**" not in prose


def facts_of(page: str, heading: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """The sentence under a heading, and what its list says: by name the class and the text of each value."""
    part = page[page.index(f"<h3>{heading}</h3>") :]
    part = part[: part.index("</dl>")]
    sentence = re.findall(r"<p[^>]*>(.*?)</p>", part)[0]
    rows = re.findall(r'<dt>(.*?)</dt><dd(?: class="(.*?)")?>(.*?)</dd>', part)
    return sentence, {name: (cls, value) for name, cls, value in rows}


def test_each_loss_of_a_card_says_of_which_text_it_is(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "models", scan=False)
    fields = {
        "tokens": "12001280", "held_out_loss": "4.2489", "held_out_loss_se": "0.0055", "loss": "4.3385",
        "measured_tokens": "686883", "half_life_median": "soon",
        "measured_on": "validation text that training did not see",
    }  # fmt: skip
    own = open_site(tmp_path / "data", write_card(made.path, Card(fields)))
    try:
        page = own.client.get(f"/models/{SLUG}").text
        said, facts = facts_of(page, "Figures on the card")
        assert said.startswith("On validation text that training did not see;")
        assert facts["loss (nats a token)"] == ("num", "4.3385"), "a number does not break"
        assert facts["measured on, tokens"] == ("num", "686,883")
        assert facts["median half-life, tokens"] == ("", "soon"), "what is no number may"
        said, facts = facts_of(page, "Held-out loss where training ended")
        assert said == "On the end of the training text, which training left out: not the text of the figures above."
        assert facts == {"loss (nats a token)": ("num", "4.2489"), "its standard error": ("num", "0.0055")}
        assert page.count("4.2489") == 1
        assert '<dd class="num">12,001,280</dd>' in page
        for address in ("/", "/models"):
            assert re.search(r"parameters, 12\.0M tokens, perplexity 76\.59", own.client.get(address).text), address
    finally:
        own.services.close()


def test_a_card_that_names_no_text_is_given_none(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}").text
    assert facts_of(page, "Figures on the card")[0] == "The card does not say on which text."
    assert "Held-out loss" not in page
    assert "parameters, perplexity" in shared.client.get("/models").text, "nor tokens that it does not say"


# ---- a scan from the page --------------------------------------------------------------------------------------------


@pytest.fixture
def own(scanned: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A workbench over a copy of the checkpoint that a scan may write to."""
    without_shipped(monkeypatch)
    folder = tmp_path / SLUG
    shutil.copytree(scanned.path, folder)  # type: ignore[attr-defined]
    return open_site(tmp_path / "data", open_checkpoint(folder))


def test_a_text_of_the_folder_is_scanned(own: Site) -> None:
    folder = corpora_dir(own.services.settings)
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("it was the best of times " * 200, encoding="utf-8")
    (folder / "image.png").write_bytes(b"no text")
    page = own.client.get(f"/models/{SLUG}").text
    assert "<option>mine.txt</option>" in page
    assert "image.png" not in page
    answer = own.client.post(f"/models/{SLUG}/scans", data={"corpus": "mine.txt"})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/jobs/")
    again = own.client.post(f"/models/{SLUG}/scans", data={"corpus": "mine.txt"})
    assert again.headers["location"] == answer.headers["location"], "the same scan waits once"
    own.work()
    assert own.client.get(answer.headers["location"] + ".json").json()["job"]["state"] == "done"
    contexts = Contexts.load(own.checkpoint.path, checkpoint_hash=own.checkpoint.hash)
    assert contexts is not None
    assert contexts.source.said == "mine.txt"
    assert "mine.txt" in own.client.get(f"/models/{SLUG}").text
    own.services.close()


def test_the_checkpoint_scans_its_own_text(own: Site) -> None:
    answer = own.client.post(f"/models/{SLUG}/scans", data={"sample": "1,000"})
    assert answer.status_code == 303
    own.work()
    job = own.client.get(answer.headers["location"] + ".json").json()["job"]
    assert job["state"] == "done", job
    contexts = Contexts.load(own.checkpoint.path)
    assert contexts is not None
    assert contexts.source.said == "sampled by this checkpoint"
    page = own.client.get(f"/models/{SLUG}").text
    assert "own text: no perplexity" in page, "a loss on its own text is shown as no measure of quality"
    own.services.close()


@pytest.mark.parametrize(
    ("form", "status", "said"),
    [
        ({"corpus": "../corpus.txt"}, 404, "There is no text"),
        ({"corpus": "/etc/passwd"}, 404, "There is no text"),
        ({"corpus": "corpus.txt", "sample": "1000"}, 422, "send corpus or sample, not both"),
        ({"sample": "many"}, 422, "is no number of tokens"),
        ({"sample": "10"}, 422, "give 1,000 to 2,000,000"),
        ({"sample": "99999999999999"}, 422, "give 1,000 to 2,000,000"),
    ],
)
def test_what_is_no_scan_is_one_sentence(own: Site, form: dict[str, str], status: int, said: str) -> None:
    answer = own.client.post(f"/models/{SLUG}/scans", data=form)
    assert answer.status_code == status
    assert said in "".join(parsed(answer.text).text)
    assert not own.services.queue.list()
    own.services.close()


def test_another_site_queues_nothing(own: Site) -> None:
    answer = own.client.post(
        f"/models/{SLUG}/scans", data={"sample": "1000"}, headers={"origin": "https://elsewhere.example"}
    )
    assert answer.status_code == 403
    assert not own.services.queue.list()
    assert f"/models/{SLUG}/scans" in links(own.client.get(f"/models/{SLUG}").text)
    own.services.close()


def test_a_link_out_of_the_folder_is_no_text(own: Site, tmp_path: Path) -> None:
    folder = corpora_dir(own.services.settings)
    folder.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "link.txt" not in own.client.get(f"/models/{SLUG}").text
    assert own.client.post(f"/models/{SLUG}/scans", data={"corpus": "link.txt"}).status_code == 404
    own.services.close()
