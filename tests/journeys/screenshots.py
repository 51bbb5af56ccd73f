"""Pictures of every page, in both themes, at 1280 and 390 pixels, of the shipped checkpoint: docs/img/.

    python tests/journeys/screenshots.py            all pages (some minutes; needs Chromium)
    python tests/journeys/screenshots.py unit head  only these

Not part of the test run. Everything is made anew in a folder that is deleted afterwards: server, readings, values.
"""

from __future__ import annotations

import base64
import re
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from journey_samples import PROMPT, ROOT, Server, eventually, serving
from playwright.sync_api import Page, expect, sync_playwright

OUT = ROOT / "docs" / "img"
SLUG = "novel-legible"
SIZES = {1280: 800, 390: 844}
THEMES = ("light", "dark")
QUALITY = 55
LIMIT = 3_000_000
TIMEOUT = 300_000


def main(wanted: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script("localStorage.setItem('legible-tour', 'seen')")
        with serving(Path(folder)) as server:
            for name, address in pages_of(page, server).items():
                if not wanted or name in wanted:
                    picture(page, name, address)
            page.goto("about:blank")
        browser.close()
    files = sorted(OUT.glob("*.webp"))
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} pictures, {size / 1e6:.2f} MB in {OUT.relative_to(ROOT)}")
    return 0 if size <= LIMIT else 1


def pages_of(page: Page, server: Server) -> dict[str, str]:
    """Every page's address, once what it shows has been made."""
    base = f"{server.address}/models/{SLUG}"
    page.goto(server.address)
    page.locator("#prompt").fill(PROMPT)
    page.locator("#prompt").press("Enter")
    page.wait_for_url(re.compile(r"position=\d+&target=\d+$"), timeout=TIMEOUT)
    reading = page.url
    digest = reading.partition("/readings/")[2].partition("?")[0]
    found = page.locator(".contributors tbody tr").filter(has_text="∖").or_(
        page.locator(".contributors tbody tr").filter(has_text="∩")
    ).first.locator("a.mono").inner_text()  # fmt: skip
    unit = found.split()[-1]
    layer, _, number = unit.partition(".u")
    operand = f"{layer}.p{int(number) // 2}.A"
    head = page.locator('.figure a[href*=".h"]').last.get_attribute("href") or ""
    head = head.rpartition("component=")[2]
    why = f"{base}/readings/{digest}/why/{operand}?at=9"
    page.goto(why)
    expect(page.locator(".sum")).to_contain_text("residual", timeout=TIMEOUT)

    def ask(path: str, **fields: str) -> str:
        """Post a form as its page would; the address that the answer leads to."""
        return page.request.post(
            server.address + path, form=fields, headers={"origin": server.address}, timeout=TIMEOUT
        ).url

    model, here = f"/models/{SLUG}", reading.removeprefix(server.address)
    values = ask(f"{model}/values", text=PROMPT, components=f"{unit},{operand},{head}")
    going = ask(f"{model}/generate", prompt=PROMPT, tokens="16", temperature="0", seed="0")
    page.goto(ask(f"{model}/readings", prompt="It was the age of wisdom, it was the"))
    page.wait_for_url(re.compile(r"position=\d+&target=\d+$"), timeout=TIMEOUT)
    sides = urlencode({"left": here, "right": page.url.removeprefix(server.address)})
    sentences = {"good": "The cats that he saw are here.", "bad": "The cats that he saw is here."}
    pair = f"{base}/pairs?{urlencode(sentences)}"
    ask(f"{model}/notes/{unit}", revision="0", name="rare nouns", text="Leads here; see its neighbours.", author="Ada")
    finding = ask(
        "/findings", title="What leads in the first sentence", author="Ada", items=f"{here}\n{model}/units/{unit}",
        text="Two items, in the order in which they were found:\n\n- the reading\n- the unit that leads it",
    )  # fmt: skip
    for settled in (f"{base}/units/{unit}", f"{base}/heads/{head}", f"{reading}&component={head}", values, going, pair):
        page.goto(settled)
        expect(page.locator('[role="status"].state')).to_have_count(0, timeout=TIMEOUT)
    eventually(lambda: all(j["state"] == "done" for j in server.json("/jobs.json")["jobs"]), seconds=TIMEOUT / 1000)
    return {
        "home": server.address, "reading": f"{reading}&component={unit}", "reading-head": f"{reading}&component={head}",
        "unit": f"{base}/units/{unit}", "head": f"{base}/heads/{head}",
        "layer": f"{base}/layers/{layer[1:]}?sort=agreement",
        "model": base, "models": f"{server.address}/models", "why": why, "values": values,
        "search": f"{server.address}/search?q=%22+worst%22&side=promote",
        "compare": f"{server.address}/compare?{sides}", "generation": going, "pairs": pair,
        "notes": f"{base}/notes", "note": f"{base}/notes/{unit}", "findings": finding,
        "words": f"{server.address}/help", "jobs": f"{server.address}/jobs", "runs": f"{server.address}/runs",
        "error": f"{server.address}/nowhere",
    }  # fmt: skip


def picture(page: Page, name: str, address: str) -> None:
    """The page as it opens, four times."""
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.goto(address)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.wait_for_timeout(600)  # for Plotly to draw
            session = page.context.new_cdp_session(page)
            made = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
            (OUT / f"{name}-{width}-{theme}.webp").write_bytes(base64.b64decode(made["data"]))
            session.detach()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
