"""Pictures of every page, in both themes, at 1280 and 390 pixels, of the shipped checkpoint: docs/img/.

    python tests/journeys/screenshots.py            all pages (some minutes; needs Chromium)
    python tests/journeys/screenshots.py unit head  only these

The ordinary model is a tiny GPT-2 with random weights, the run 50 steps of recipes/tiny.toml, the child an edit of the
shipped checkpoint: pages of theirs show what is there, and no claim.

Not part of the test run. Everything is made anew in a folder that is deleted afterwards: server, readings, values.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
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
LIMIT = 4_000_000
TIMEOUT = 300_000
# What tests a reading and acts on it, other models, and a run: made only where one of them is wanted.
ACTING = ("tune", "causal", "bounds", "accounting", "monitors", "monitor", "edit-lab", "child", "ordinary", "run")


def main(wanted: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script("localStorage.setItem('legible-tour', 'seen')")
        acts = not wanted or not set(wanted).isdisjoint(ACTING)
        if acts:
            prepare(Path(folder))
        with serving(Path(folder)) as server:
            pages = {} if wanted and set(wanted) <= set(ACTING) else pages_of(page, server)
            pages |= acting_of(page, server) if acts else {}
            for name, address in pages.items():
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


def prepare(data_dir: Path) -> None:
    """A child of the shipped checkpoint, a tiny ordinary model and a run of 50 steps, made by the commands for them."""
    sys.path.append(str(ROOT / "tests" / "adapters"))
    from family_samples import save

    run = data_dir / "work" / "tiny"
    for words in (
        ("edit", SLUG, "--edit", "L2.u465:zero", "--edit", "L5.p3.B:flip", "--slug", "no-licensor"),
        ("add", str(save("gpt2", data_dir / "tiny-gpt2")), "--slug", "tiny-gpt2"),
        ("train", str(ROOT / "recipes" / "tiny.toml"), "--steps", "50", "--telemetry-every", "5", "--out", str(run)),
    ):
        environment = {**os.environ, "LEGIBLE_DATA_DIR": str(data_dir), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "app.cli", *words], cwd=ROOT, env=environment, check=True)


def acting_of(page: Page, server: Server) -> dict[str, str]:
    """The pages of ACTING, once a worker has made what they show."""

    def ask(path: str, **fields: str) -> str:
        answer = page.request.post(server.address + path, form=fields, headers={"origin": server.address})
        assert answer.ok, answer.text()
        return answer.url

    page.goto(ask(f"/models/{SLUG}/readings", prompt=PROMPT))
    page.wait_for_url(re.compile(r"position=\d+&target=\d+$"), timeout=TIMEOUT)
    part, _, query = page.url.partition("?")
    quantifier = page.locator(".contributors tbody tr").filter(has_text="∃").first.locator("a.mono").inner_text()
    made = {
        "tune": f"{part}/tune?{query}", "causal": f"{part}/causal?{query}", "accounting": f"{part}/account?{query}",
        "bounds": f"{part}/bounds/{quantifier.split()[-1]}?{query}&radius=0.05",
    }  # fmt: skip
    monitor = ask("/monitors", model=SLUG, name="word beginnings", conditions="L1.p3.A above 0.1\nL3.p212.A")
    text = (ROOT / "recipes" / "tiny.txt").read_text(encoding="utf-8")[:6000]
    ask(monitor.removeprefix(server.address) + "/streams", text=text)
    for address in made.values():
        page.goto(address)
        expect(page.locator('[role="status"].state')).to_have_count(0, timeout=TIMEOUT)
    eventually(lambda: all(j["state"] == "done" for j in server.json("/jobs.json")["jobs"]), seconds=TIMEOUT / 1000)
    models = f"{server.address}/models"
    return made | {
        "monitors": f"{server.address}/monitors", "monitor": monitor, "edit-lab": f"{models}/{SLUG}/edit-lab",
        "child": f"{models}/no-licensor", "ordinary": f"{models}/tiny-gpt2", "run": f"{server.address}/runs/tiny",
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
