"""Figure 1 beside figure 5: the papers' sentence read by the legible checkpoint and by its GELU twin, side by side."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from journey_samples import Server
from playwright.sync_api import Page, expect

SENTENCE = "It was the best of times, it was the"
READ = re.compile(r"/readings/[0-9a-f]{64}\?position=\d+&target=\d+$")
TIMEOUT = 120_000


def test_the_two_checkpoints_on_the_papers_sentence(page: Page, shared: Server, tmp_path: Path) -> None:
    page.goto(f"{shared.address}/?model=novel-legible")
    page.locator("#prompt").fill(SENTENCE)
    page.locator("#prompt").press("Enter")
    page.wait_for_url(READ, timeout=TIMEOUT)
    page.get_by_text("compare", exact=True).first.click()
    page.locator('.sheet select[name="model"]').first.select_option("novel-gelu")
    page.locator(".sheet form").first.get_by_role("button").click()
    page.wait_for_url(re.compile(r"/compare\?left="), timeout=TIMEOUT)
    page.reload()  # in the middle of it, and back and forward: the side is asked for once
    page.go_back()
    page.go_forward()
    sides = page.locator(".sides section h2")
    expect(sides.first).to_contain_text("novel-legible", timeout=TIMEOUT)
    expect(sides.nth(1)).to_contain_text("novel-gelu")
    expect(page.locator("main table").first).to_be_visible(timeout=TIMEOUT)  # both are read
    jobs = [(job["what"], job["href"] or "") for job in shared.json("/jobs.json")["jobs"]]
    assert sum(what.startswith("read ") and "/models/novel-gelu/" in href for what, href in jobs) == 1
    for width, name in ((1280, "wide"), (390, "narrow")):
        page.set_viewport_size({"width": width, "height": 900})
        picture = page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert len(picture) > 20_000  # a page with two figures, not an empty one
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
    document = shared.json(page.url.partition(shared.address)[2].replace("/compare?", "/compare.json?"))
    values = {side: document[side] for side in ("left", "right")}
    assert set(parse_qs(urlsplit(page.url).query)) >= {"left", "right"}
    page.goto("about:blank")  # so that nothing asks a server that has stopped
    text = {name: str(side) for name, side in values.items()}
    assert "novel-legible" in text["left"]
    assert "novel-gelu" in text["right"]
