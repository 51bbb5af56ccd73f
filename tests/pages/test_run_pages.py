"""The pages of training runs: what they say, that they stay small and cheap, and that hostile folders stay harmless."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import os
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from page_samples import HOSTILE, links, parsed, title
from run_samples import make_run, reading, write, write_steps

from app.main import create_app
from app.pages.run_view import stages
from app.run_figures import (
    LAYER_POINTS,
    PANELS,
    POINTS,
    Course,
    Mark,
    every,
    heads_figure,
    layers_figure,
    loss_figure,
    thin,
)
from app.settings import Settings


def client_of(folder: Path, *named: Path) -> TestClient:
    made = Settings.load(data_dir=folder, workers=0, runs=tuple(map(str, named)))
    return TestClient(create_app(made), base_url="http://127.0.0.1:8321", follow_redirects=False)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "one")
    branch = root / "one" / "decay-3840"
    branch.mkdir()
    write_steps(branch, 61, 70, 70)
    write(branch / "telemetry.jsonl", [reading(70, 3)])
    write(branch / "held_out.jsonl", [{"number": 70, "loss": 2.46111, "se": 0.04192, "tokens": 4096}])
    for log in (branch / "log.jsonl", root / "one" / "log.jsonl"):
        os.utime(log, (time.time() + 3600,) * 2)  # it counts as being written however long these tests take
    made = client_of(root / "data", root)
    yield made
    made.app.state.services.close()  # type: ignore[attr-defined]


def figures(html: str) -> dict[str, Any]:
    """The data of every figure of a page, as a browser reads it."""
    found = {}
    for match in re.finditer(r'<div id="data-([\w-]+)" hidden>(.*?)</div>', html, re.DOTALL):
        text = parsed(match[0]).text
        found[match[1]] = json.loads("".join(text))
    return found


def test_the_list_says_how_far_each_is(web: TestClient) -> None:
    html = web.get("/runs").text
    text = " ".join(" ".join(parsed(html).text).split())
    last = 4 + 3 * math.exp(-3)
    assert "last loss held-out loss cumulative perplexity last line" in text
    assert f"one training 3,840 6,400 {last:.3f} – {math.exp(last):.2f}" in text
    assert "decay-3840 finished (held-out loss 2.4611 ± 0.0419)" in text
    assert "/runs/one" in links(html)
    (line,) = web.get("/runs.json").json()["runs"]
    assert (line["tokens"], line["total"], line["state"]) == (3840, 6400, "training")
    assert line["last_loss"] == pytest.approx(last)
    assert line["cumulative_perplexity"] == pytest.approx(math.exp(last))
    assert line["held_out"] is None


def test_the_page_of_a_run(web: TestClient) -> None:
    html = web.get("/runs/one").text
    assert title(html) == "one: run · Legible"
    text = " ".join("".join(parsed(html).text).split())
    assert "3 layers, d = 24, 4 heads, context 32, membership values on 75% of the heads, ρ = 0.5" in text
    assert "60 of 100" in text
    assert f"with a horizon of 100; that mean is {4 + 3 * math.exp(-3):.3f} nats a token" in text
    assert "– measured where training ends" in text
    assert "2.4611 ± 0.0419" in text
    assert "perplexity 705.0 in one step" in text
    assert "new start for operands: 3 of the attention, 5 of the feed-forward" in text
    assert "pressure on the attention changes" in text
    assert "3 readings, the last of step 60 on 64 tokens of its batch. Branches are dotted." in text
    found = figures(html)
    every_head = {"write-heads", "columns-heads"}
    assert set(found) == {"loss", "perplexity", "model", *(panel.id for panel in PANELS), *every_head}
    for each in found:
        assert f'data-plotly="data-{each}"' in html
        assert f'id="table-{each}"' in html
    names = [trace["name"] for trace in found["loss"]["data"]]
    assert names == ["steps", "mean", "decay-3840: steps", "decay-3840: mean", "spikes", "events"]
    assert found["loss"]["layout"]["legend"]["yanchor"] == "top", "many names stand below: above is the title"
    assert "legend" not in found["perplexity"]["layout"]
    spike = found["loss"]["data"][4]
    assert (spike["x"], spike["text"]) == ([30 * 64], [f"spike at step 30: loss {4 + 3 * math.exp(-1.5) + 3:.2f}"])
    # Warm-up, stage and revival, each with an upright.
    assert sorted(shape["x0"] for shape in found["loss"]["layout"]["shapes"]) == [640, 1280, 40 * 64]
    assert "<script>" not in html.replace("<script src", "")
    assert " style=" not in html


def test_small_multiples_have_one_plot_a_layer(web: TestClient) -> None:
    found = figures(web.get("/runs/one/layers").text)
    for panel in PANELS:
        layout, data = found[panel.id]["layout"], found[panel.id]["data"]
        assert [note["text"] for note in layout["annotations"]] == ["L0", "L1", "L2"]
        assert {trace["yaxis"] for trace in data} == {"y", "y2", "y3"}
        assert {trace["line"]["dash"] for trace in data} == {"solid", "dot"}
        assert sum(trace["showlegend"] for trace in data) == len({trace["name"] for trace in data})
        assert layout["yaxis2"]["matches"] == "y"
    saturated = found["saturated"]["data"][0]
    assert saturated["y"] == [0.37, 0.37, 0.37]
    assert saturated["x"] == [20 * 64, 40 * 64, 60 * 64]


def test_tables_hold_what_figures_show(web: TestClient) -> None:
    html = web.get("/runs/one/layers").text
    table = html[html.index('<details id="table-write"') :].partition("</table>")[0]
    cells = parsed(table).text
    assert [cell for cell in cells if cell.strip()][:6] == [
        "Residual write of a head, mean norm: table", "layer", "figure", "step 20", "step 40", "step 60",
    ]  # fmt: skip
    assert "1.50" in cells
    assert "9.00" in cells


def test_one_runaway_head_is_seen(tmp_path: Path) -> None:
    """A mean over heads hides it: the line of the largest head, the cell of each head and their table do not."""
    folder = make_run(tmp_path / "a")
    last = reading(80, 3)
    last["layers"] = [copy.deepcopy(layer) for layer in last["layers"]]
    last["layers"][1]["write"] = [1.0, 441.0, 2.0, 9.0]
    last["layers"][2]["write"] = [1.0, 1.5, None, 9.0]
    write(folder / "telemetry.jsonl", [last])
    web = client_of(tmp_path / "data", folder)
    html = web.get("/runs/a/layers").text
    found = figures(html)
    lines = {trace["yaxis"]: trace for trace in found["write"]["data"] if trace["name"] == "largest head"}
    assert lines["y2"]["text"] == ["h3", "h3", "h3", "h1"]
    assert lines["y2"]["y"] == [9.0, 9.0, 9.0, 441.0]
    assert (lines["y3"]["text"][-1], lines["y3"]["y"][-1]) == ("h2", None), "a head that is no number is the largest"
    (cells,) = found["write-heads"]["data"]
    assert (cells["x"], cells["y"]) == (["h0", "h1", "h2", "h3"], ["L0", "L1", "L2"])
    assert cells["z"][1] == pytest.approx([math.log10(value) for value in (1, 441, 2, 9)], abs=1e-4)
    assert cells["z"][2][2] is None
    assert cells["text"][1] == ["1.0", "441", "2.0", "9.0"]
    assert cells["customdata"][1][1:] == ["bounded: 441", "bounded: 2", "conventional: 9"]
    assert found["write-heads"]["layout"]["title"]["text"] == "Residual write of each head, step 80"
    rows = table_rows(html, "write-heads")
    assert rows[0] == ["layer", "bounded, the first", "largest", "h0", "h1", "h2", "h3"]
    assert rows[2] == ["L1", "3 of 4", "h1 441.00", "1.00", "441.00", "2.00", "9.00"]
    assert rows[3] == ["L2", "3 of 4", "h2 –", "1.00", "1.50", "–", "9.00"]
    assert ["L1", "largest head", "h3 9.00", "h3 9.00", "h3 9.00", "h1 441.00"] in table_rows(html, "write")
    readings = list(csv.DictReader(io.StringIO(web.get("/runs/a/csv?of=telemetry").text)))
    assert [row["L1.write.h1"] for row in readings] == ["1.5", "1.5", "1.5", "441"]
    assert web.get("/runs/a.json").json()["courses"][0]["reading"]["layers"][1]["write.largest_head"] == 1
    web.app.state.services.close()  # type: ignore[attr-defined]


def table_rows(html: str, figure: str) -> list[list[str]]:
    table = html[html.index(f'<details id="table-{figure}"') :].partition("</table>")[0].partition("<thead>")[2]
    return [
        [re.sub("<.*", "", cell).strip() for cell in re.split("<t[hd][^>]*>", row)[1:]]
        for row in table.split("<tr>")[1:]
    ]


def test_every_head_of_layers_that_have_unequally_many() -> None:
    figure = heads_figure([[1.0, 1.1], [0.0]], [["bounded", "bounded"], ["bounded"]], "Heads")
    (cells,) = figure["data"]
    assert cells["z"] == [[0.0, pytest.approx(0.041393)], [0.0, None]], "nothing written is the palest"
    assert cells["zmax"] - cells["zmin"] == pytest.approx(math.log10(2), abs=1e-4), "heads about equal look equal"
    wide = heads_figure([[1.0] * 40], [["bounded"] * 40], "Heads")["data"][0]
    assert "texttemplate" not in wide


def test_json_and_csv(web: TestClient) -> None:
    found = web.get("/runs/one.json").json()
    assert found["recipe"]["name"] == "one"
    main, branch = found["courses"]
    assert (main["held_out"], branch["held_out"]["loss"]) == (None, 2.46111)
    assert (main["step"], main["steps"], main["branch"], branch["branch"]) == (60, 100, None, "decay-3840")
    assert main["reading"]["layers"][0]["write_ratio"] == 6.0
    assert [event["event"] for event in main["events"]] == ["spike", "revived"]
    answer = web.get("/runs/one/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="run-one-log.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["number"]) for row in rows] == list(range(1, 61))
    assert float(rows[29]["loss"]) > 7
    assert len(list(csv.reader(io.StringIO(web.get("/runs/one/csv?branch=decay-3840").text)))) == 11
    readings = list(csv.DictReader(io.StringIO(web.get("/runs/one/csv?of=telemetry").text)))
    assert [row["L2.half_life.max"] for row in readings] == ["90", "90", "90"]
    assert web.get("/runs/one/csv?branch=decay-1").status_code == 404
    assert web.get("/runs/one/csv?of=all").status_code == 422


@pytest.mark.parametrize("path", ["/runs", "/runs/one/now", "/runs/one/layers"])
def test_what_is_polled_answers_unchanged_while_nothing_changed(web: TestClient, path: str) -> None:
    first = web.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = web.get(path, headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


def test_a_step_changes_one_part_and_a_reading_the_other(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    web = client_of(tmp_path / "data", folder)
    tags = {part: web.get(f"/runs/a/{part}").headers["etag"] for part in ("now", "layers")}
    write_steps(folder, 61, 62, 100)
    now = web.get("/runs/a/now", headers={"if-none-match": tags["now"]})
    assert now.status_code == 200
    assert 'id="step">62<' in now.text
    assert web.get("/runs/a/layers", headers={"if-none-match": tags["layers"]}).status_code == 304
    write(folder / "telemetry.jsonl", [reading(62, 3)])
    assert "last of step 62" in web.get("/runs/a/layers", headers={"if-none-match": tags["layers"]}).text
    web.app.state.services.close()  # type: ignore[attr-defined]


def test_a_long_log_is_thinned_and_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", steps=5000, of=5000, every=25)
    web = client_of(tmp_path / "data", folder)
    html = web.get("/runs/a").text
    assert "Of every 13 steps the lowest and the highest are drawn; the csv has each." in html
    assert "Every 13th step is drawn" in html
    assert "Every 3rd reading is drawn" in html
    found = figures(html)
    loss = found["loss"]["data"][0]
    assert len(loss["x"]) <= 2 * POINTS
    assert 30 * 64 in loss["x"], "the spike is still there"
    assert max(len(trace["x"]) for trace in found["on"]["data"]) <= LAYER_POINTS + 1
    assert len(html) < 400_000
    assert len(web.get("/runs/a/csv").text.splitlines()) == 5001
    web.app.state.services.close()  # type: ignore[attr-defined]


def test_the_navigation_has_runs_only_where_there_are_some(tmp_path: Path, web: TestClient) -> None:
    bare = client_of(tmp_path / "data")
    for path in ("/", "/jobs", "/nowhere"):
        assert "/runs" not in links(bare.get(path).text)
        assert "/runs" in links(web.get(path).text)
    assert "No run is known here yet." in bare.get("/runs").text
    missing = bare.get("/runs/none")
    assert missing.status_code == 404
    assert "There is no run called" in missing.text
    bare.app.state.services.close()  # type: ignore[attr-defined]


def test_a_hostile_folder(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "evil <b>")
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["model"] |= {"value": HOSTILE, "n_layers": {"a": 1}, "d_model": "x", "context": None}
    recipe["schedule"] |= {"tokens": "many", "batch_tokens": -5, "warmup_tokens": []}
    recipe["attention_pressure"] = {"later": [1, {"tokens": "x"}], "start_tokens": HOSTILE}
    recipe[HOSTILE] = HOSTILE
    (folder / "recipe.json").write_text(json.dumps(recipe))
    write(folder / "events.jsonl", [{"number": 50, "event": "spike", "text": HOSTILE}])
    write(folder / "revived.jsonl", [{"number": 51, "revived": {HOSTILE: 1}}, {"number": 2, "revived": [1]}])
    write(folder / "log.jsonl", [{"number": 61, "loss": 1e308, "perplexity": "x", "tokens": -1}])
    write(folder / "telemetry.jsonl", [{"number": 61, "layers": [{"attention": [], "write": {}, "half_life": 3}] * 3}])
    web = client_of(tmp_path / "data", folder)
    for path in ("/runs", "/runs.json", "/runs/evil-b", "/runs/evil-b.json", "/runs/evil-b/csv?of=telemetry"):
        answer = web.get(path)
        assert answer.status_code == 200, path
        if "html" in answer.headers["content-type"]:
            assert "alert(1)</script>" not in answer.text
            tags = [name for name, _ in parsed(answer.text).tags]
            assert "b" not in tags
            assert tags.count("script") <= 6
    # Numbers beyond every float: they are no counts, and the list of all runs stays.
    huge = 10**400
    recipe["schedule"] |= {"tokens": huge, "batch_tokens": huge, "warmup_tokens": huge}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    for name in ("log", "telemetry", "events"):
        with (folder / f"{name}.jsonl").open("a") as file:
            line = {"number": huge, "loss": 1, "last": huge, "layers": [{}] * 3, "event": "spike", "text": "x"}
            file.write(json.dumps(line) + "\n")
    for path in ("/runs", "/runs.json", "/runs/evil-b", "/runs/evil-b.json", "/runs/evil-b/csv?of=telemetry"):
        assert web.get(path).status_code == 200, path
    # Plotly reads markup in what it draws: only words of ours get there.
    for figure in figures(web.get("/runs/evil-b").text).values():
        for trace in figure["data"]:
            assert "<script>" not in json.dumps([trace.get("text"), trace["name"]])
    web.app.state.services.close()  # type: ignore[attr-defined]


def test_stages_of_a_recipe() -> None:
    recipe = {
        "schedule": {"warmup_tokens": 100},
        "attention_pressure": {"start_tokens": 50, "later": [{"tokens": 400}]},
        "feed_forward_pressure": {"start_tokens": 0, "later": [{"tokens": 400}]},
    }
    assert stages(recipe) == [
        (50, "sparsity on the attention begins"), (100, "warm-up ends"),
        (400, "pressure on the attention changes, pressure on the feed-forward changes"),
    ]  # fmt: skip
    assert stages({"schedule": 3, "attention_pressure": [], "feed_forward_pressure": {"later": "x"}}) == []


@given(st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=300), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_thinning_keeps_every_span_s_extremes(values: list[float], points: int) -> None:
    kept, span = thin(values, points)
    assert kept == sorted(set(kept))
    assert len(kept) <= 2 * points + 2
    if span == 1:
        assert kept == list(range(len(values)))
        return
    for start in range(0, len(values), span):
        part = [value for value in values[start : start + span] if not math.isnan(value)]
        chosen = [values[i] for i in kept if start <= i < start + span]
        if part:
            assert (min(chosen), max(chosen)) == (min(part), max(part))


@given(st.integers(0, 1000), st.integers(1, 50))
def test_every_so_many_ends_with_the_last(count: int, points: int) -> None:
    chosen, step = every(count, points)
    assert len(chosen) <= points + 1
    assert chosen == sorted(set(chosen))
    assert not count or chosen[-1] == count - 1
    assert all(b - a <= step for a, b in pairwise(chosen))


def test_figures_of_runs_without_quantifiers_and_of_many_layers(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", layers=12, quantifiers=False)
    web = client_of(tmp_path / "data", folder)
    found = figures(web.get("/runs/a").text)
    assert not {"half-life", "latches"} & set(found)
    layout = found["on"]["layout"]
    assert len([key for key in layout if key.startswith("yaxis")]) == 12
    domains = [layout[f"yaxis{n or ''}"]["domain"] for n in (0, 4, 7, 10)]
    assert all(0 <= low < high <= 1 for low, high in domains)
    assert all(above[0] > below[1] for above, below in pairwise(domains))
    web.app.state.services.close()  # type: ignore[attr-defined]


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", steps=0)
    for name in ("events", "revived"):
        (folder / f"{name}.jsonl").unlink()
    web = client_of(tmp_path / "data", folder)
    text = " ".join("".join(parsed(web.get("/runs/a").text).text).split())
    assert "preparing: reading the text" in text
    assert "There is no step yet." in text
    assert "There is no reading yet" in text
    assert web.get("/runs/a.json").json()["courses"][0]["reading"] is None
    web.app.state.services.close()  # type: ignore[attr-defined]


def test_a_mark_outside_the_log_has_no_point() -> None:
    course = Course("", [1.0, 2.0], [64.0, 128.0], [5.0, 4.0], [150.0, 100.0])
    figure = loss_figure([course], [Mark(640, None, "later"), Mark(64, 5.0, "now")])
    assert figure["data"][-1]["x"] == [64]
    assert len(figure["layout"]["shapes"]) == 2
    lines = {key: np.full(2, np.nan) for line in PANELS[1].lines for key in (line.key, line.head) if key}
    assert layers_figure(PANELS[1], [("", [64.0, 128.0], [lines])], [])["data"] == []
