"""A real training in a process of its own, seen on its page: the step moves and the figures grow, without a reload."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from journey_samples import ROOT, WORDS, serving
from playwright.sync_api import Page, expect

TIMEOUT = 90_000
RECIPE = """
name = "live"
[model]
n_layers = 2
d_model = 16
n_heads = 4
context = 16
value = "membership"
special_fraction = 0.5
gelu_fraction = 0.5
quantifier_fraction = 0.25
[data]
train = "text.txt"
vocab_size = 280
held_out_tokens = 64
[schedule]
tokens = 1_280_000
warmup_tokens = 640
batch_tokens = 32
[attention_pressure]
regime = "both"
sparsity = 0.01
crispness = 0.1
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(WORDS)
    path = tmp_path / "live.toml"
    path.write_text(RECIPE)
    return path


def training(recipe: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEGIBLE_")}
    environment |= {"OMP_NUM_THREADS": "1", "LEGIBLE_DATA_DIR": str(recipe.parent / "data")}
    out = recipe.parent / "runs" / "live"
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", "train", str(recipe), "--out", str(out), "--telemetry-every", "5", *words],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def number(page: Page, id: str) -> int:
    return int(page.locator(id).inner_text().replace(",", ""))


def points(page: Page, figure: str) -> int:
    """How many points Plotly has drawn, all lines together."""
    return int(page.evaluate("id => document.getElementById(id).data.reduce((n, t) => n + t.x.length, 0)", figure))


def test_the_page_of_a_live_training_moves_without_a_reload(page: Page, recipe: Path) -> None:
    process = training(recipe)
    try:
        with serving(recipe.parent / "data") as server:
            follow(page, server.address, process)
            finish(page, recipe, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def follow(page: Page, address: str, process: subprocess.Popen[bytes]) -> None:
    page.goto(address + "/runs")
    expect(page.locator("#runs a")).to_have_text("live", timeout=TIMEOUT)
    page.locator("#runs a").click()
    page.evaluate("window.loadedOnce = true")
    expect(page.locator("#state")).to_have_text("training", timeout=TIMEOUT)
    # Both parts come by themselves, also where there was nothing to draw when the page was opened.
    expect(page.locator("#plot-loss .main-svg").first).to_be_visible(timeout=TIMEOUT)
    expect(page.locator("#plot-saturated .main-svg").first).to_be_visible(timeout=TIMEOUT)
    page.locator("#table-loss summary").click()
    step, drawn, readings = number(page, "#step"), points(page, "plot-loss"), points(page, "plot-saturated")
    page.wait_for_function(
        "([step, loss, readings]) => parseInt(document.getElementById('step').textContent.replace(',', '')) > step"
        " && document.getElementById('plot-loss').data.reduce((n, t) => n + t.x.length, 0) > loss"
        " && document.getElementById('plot-saturated').data.reduce((n, t) => n + t.x.length, 0) > readings",
        arg=[step, drawn, readings],
        timeout=TIMEOUT,
    )
    assert page.evaluate("window.loadedOnce"), "nothing was loaded again"
    assert page.locator("#table-loss").get_attribute("open") is not None, "a table that was opened stays open"
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390", timeout=TIMEOUT)
    page.set_viewport_size(size)
    assert process.poll() is None


def finish(page: Page, recipe: Path, process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C; then to a nearer end, where it says so."""
    process.terminate()
    assert process.wait(60) == 130
    expect(page.locator("#state")).to_have_text("stopped", timeout=TIMEOUT)
    log = recipe.parent / "runs" / "live" / "log.jsonl"
    steps = len(log.read_text().splitlines())
    recipe.write_text(RECIPE.replace("1_280_000", str((steps + 5) * 32)))
    again = training(recipe)
    assert again.wait(120) == 0
    expect(page.locator("#state")).to_have_text("finished", timeout=TIMEOUT)
    assert number(page, "#step") == steps + 5
    assert page.evaluate("window.loadedOnce"), "nothing was loaded again"
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    # The figures follow the window a moment later.
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390", timeout=TIMEOUT)
    picture = page.screenshot(path=recipe.parent / "run.png", full_page=True)
    assert len(picture) > 10_000
    page.goto("about:blank")  # it would ask on while the server stops
