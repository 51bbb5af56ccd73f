"""For people: every page by axe-core's rules and by keyboard, the theme that stays chosen, pages without JavaScript."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from focus_samples import in_the_way
from journey_samples import PROMPT, SLUG, Server, eventually
from playwright.sync_api import Browser, Page, expect

AXE = Path(__file__).resolve().parents[1] / "vendor" / "axe.min.js"
READ = re.compile(r"/readings/[0-9a-f]{64}\?position=\d+&target=\d+$")
TIMEOUT = 60_000
GRAVE = ("serious", "critical")


def ask(page: Page, server: Server, path: str, **fields: str) -> str:
    """Post a form as its page would; the address that the answer leads to."""
    answer = page.request.post(server.address + path, form=fields, headers={"origin": server.address})
    assert answer.ok, answer.text()
    return answer.url


# What sticks out at the right, unless it lies in something that scrolls by itself.
WIDE = """[...document.querySelectorAll('body *')]
    .filter(e => e.getBoundingClientRect().right > 390.5)
    .filter(e => {
        for (let p = e; (p = p.parentElement);) if (getComputedStyle(p).overflowX != 'visible') return false;
        return true;
    })
    .map(e => e.outerHTML.slice(0, 160))"""


def pages_of(page: Page, server: Server) -> dict[str, str]:
    """The address of every page, once what it shows has been made: a scan, a reading, its panels, a text's values."""
    base = f"{server.address}/models/{SLUG}"
    ask(page, server, f"/models/{SLUG}/scans", sample="1024")
    page.goto(ask(page, server, f"/models/{SLUG}/readings", prompt=PROMPT))
    page.wait_for_url(READ, timeout=TIMEOUT)
    reading = page.url
    digest = reading.partition("/readings/")[2].partition("?")[0]
    values = ask(page, server, f"/models/{SLUG}/values", text=PROMPT, components="L1.u3,L1.h2")
    settled = f"{base}/readings/{digest}/why/L1.p3.A?at=9"
    page.goto(settled)
    expect(page.locator(".sum")).to_contain_text("residual", timeout=TIMEOUT)
    kept = people_of(page, server, reading) | acting_of(page, server, reading)
    eventually(lambda: all(j["state"] in ("done", "failed") for j in server.json("/jobs.json")["jobs"]), 180)
    return kept | {
        "home": server.address, "models": f"{server.address}/models", "model": base, "layer": f"{base}/layers/1",
        "unit": f"{base}/units/L1.u3", "quantifier": f"{base}/units/L1.u30", "head": f"{base}/heads/L1.h2",
        "reading": reading, "unit panel": f"{reading}&component=L1.u3", "head panel": f"{reading}&component=L1.h2",
        "why": settled, "values": f"{base}/values", "values of a text": values,
        "search": f"{server.address}/search", "found": f"{server.address}/search?q=it",
        "refused search": f"{server.address}/search?q=foo%3Abar", "jobs": f"{server.address}/jobs",
        "job": f"{server.address}/jobs/1", "runs": f"{server.address}/runs", "words": f"{server.address}/help",
        "error": f"{server.address}/nowhere",
    }  # fmt: skip


def people_of(page: Page, server: Server, reading: str) -> dict[str, str]:
    """What people make of a reading: beside another, gone on with, as a pair, named, collected, in other pages."""
    base, here = f"/models/{SLUG}", reading.removeprefix(server.address)
    going = ask(page, server, f"{base}/generate", prompt=PROMPT, tokens="4", temperature="0", seed="0")
    other = ask(page, server, f"{base}/readings", prompt="It was the age of wisdom, it was the")
    page.goto(other)
    page.wait_for_url(READ, timeout=TIMEOUT)
    sides = urlencode({"left": here, "right": page.url.removeprefix(server.address)})
    said = {"revision": "0", "name": "age nouns", "text": "On after *the*.\nTwice.", "author": "Ada"}
    noted = ask(page, server, f"{base}/notes/L1.u3", **said)
    finding = ask(
        page, server, "/findings", title="What leads", author="Ada", items=f"{here}\n{base}/units/L1.u3",
        text="## Two things\n\n- one\n- `two`\n\n| a | b |\n| --- | --- |\n| 1 | 2 |",
    )  # fmt: skip
    pair = f"{server.address}{base}/pairs?" + urlencode({"good": "It was the best", "bad": "It was the worst"})
    for address in (going, pair):
        page.goto(address)
        expect(page.locator("#goes-on[hx-get], #pair[hx-get]")).to_have_count(0, timeout=TIMEOUT)
    return {
        "comparison": f"{server.address}/compare?{sides}", "comparisons": f"{server.address}/compare",
        "generation": going, "generate": f"{server.address}{base}/generate", "pair": pair,
        "note": noted, "notes": f"{server.address}{base}/notes", "finding": finding,
        "finding's form": f"{finding}/edit", "findings": f"{server.address}/findings",
        "embedded reading": f"{reading}&embed=prompt,figure,table,sum", "embedded panel": f"{reading}&embed=panel",
        "embedded figures": f"{server.address}{base}?embed=figure,table",
    }  # fmt: skip


def acting_of(page: Page, server: Server, reading: str) -> dict[str, str]:
    """What tests a reading and acts on it, asked for once each; the shipped checkpoint's measurements; a run's page."""
    part, _, query = reading.partition("?")
    causal = f"{part}/causal?{query}&view="
    monitor = ask(page, server, "/monitors", model=SLUG, name="often on", conditions="L1.p3.A above 0.3")
    stream = ask(page, server, f"{monitor.removeprefix(server.address)}/streams", text=PROMPT)
    made = {
        "sliders": f"{part}/tune?{query}", "accounting": f"{part}/account?{query}",
        "bounds": f"{part}/bounds/L1.u30?{query}&radius=0.1", "path": f"{causal}path&first=L0.h1&second=L1.u3",
        "sources": f"{causal}sources&operand=L1.p3.A",
    } | {view: f"{causal}{view}" for view in ("checks", "necessity", "sufficiency")}  # fmt: skip
    for address in made.values():
        assert page.request.get(address).ok
    shipped = f"{server.address}/models/novel-legible"
    return made | {
        "monitors": f"{server.address}/monitors", "monitor": monitor, "monitor's form": f"{monitor}/edit",
        "stream": stream, "edit lab": f"{shipped}/edit-lab", "measured model": shipped,
        "run": f"{server.address}/runs/seen",
    }  # fmt: skip


def test_every_page_in_both_themes_and_on_a_telephone(browser: Browser, shared: Server) -> None:
    # The error page complains, rightly; with less motion nothing is paler while a page asks for news of itself.
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    axe = AXE.read_text(encoding="utf-8")
    wrong: list[str] = []
    for name, address in pages_of(page, shared).items():
        page.goto(address)
        page.evaluate(axe)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            expect(page.locator(".htmx-request")).to_have_count(0)
            wrong += [f"{name}, {scheme}: {said}" for said in findings(page, only_colours=scheme == "dark")]
        if "embed" not in address:
            wrong += [f"{name}: {said}" for said in in_the_way(page)]
        page.set_viewport_size({"width": 390, "height": 844})
        width = settled_width(page)
        wrong += [f"{name}: {width} pixels wide on a telephone: {page.evaluate(WIDE)}"] if width > 390 else []
        page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("about:blank")
    page.close()
    assert not wrong, "\n".join(wrong)


def settled_width(page: Page) -> int:
    """How wide the page is once its figures have been drawn anew."""
    for _ in range(50):
        if page.evaluate("document.documentElement.scrollWidth") <= 390:
            break
        page.wait_for_timeout(100)
    return int(page.evaluate("document.documentElement.scrollWidth"))


def findings(page: Page, only_colours: bool = False) -> list[str]:
    """What axe-core calls serious or critical; the colours are all that another theme changes."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    options |= {"runOnly": ["color-contrast", "link-in-text-block"]} if only_colours else {}
    found: list[dict[str, Any]] = page.evaluate("o => axe.run(o).then(r => r.violations)", options)
    return [
        f"{rule['id']} at {node['html'][:160]}"
        for rule in found
        if rule["impact"] in GRAVE
        for node in rule["nodes"][:2]
    ]


def test_axe_finds_what_is_wrong(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content('<html lang="en"><title>x</title><main><h1>x</h1><button></button><img src="data:,"></main>')
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert {said.partition(" ")[0] for said in findings(page)} == {"button-name", "image-alt"}
    page.close()


def test_the_theme_stays_as_chosen(page: Page, shared: Server) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    page.goto(shared.address)
    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert dark != light, "by default the system decides"
    page.locator("#theme").select_option("light")
    assert paper() == light
    page.goto(shared.address + "/models")
    assert (paper(), page.locator("#theme").input_value()) == (light, "light")
    page.locator("#theme").select_option("dark")
    page.emulate_media(color_scheme="light")
    page.reload()
    assert paper() == dark
    page.locator("#theme").select_option("system")
    assert paper() == light
    page.goto("about:blank")


def test_without_javascript_a_reading_is_asked_for_waited_for_and_shown(browser: Browser, shared: Server) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(shared.address)
    expect(page.locator("#theme")).to_be_hidden()
    page.locator("#prompt").fill("It was the age of folly, it was the")
    page.locator(f'input[value="{SLUG}"]').check()
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator("h1")).to_contain_text("reading")
    page.wait_for_url(READ, timeout=TIMEOUT)  # by the waiting page's own refresh
    expect(page.locator(".sum")).to_contain_text("residual")
    expect(page.locator(".contributors tbody tr").first).to_be_visible()
    expect(page.locator(".figure svg").first).to_be_visible()
    expect(page.get_by_role("button", name="copy text")).to_be_hidden()
    page.locator('.contributors a[href*=".u"]').first.click()
    expect(page.locator("#panel h2")).to_be_visible()
    page.locator(".strip a").nth(2).click()
    page.wait_for_url(re.compile(r"position=2&target=\d+$"), timeout=TIMEOUT)
    page.goto(f"{shared.address}/models/{SLUG}/units/L1.u9")
    # Who is like it is found by the worker; the page asks again by itself.
    expect(page.locator("#similar table").first).to_be_visible(timeout=TIMEOUT)
    context.close()


SELECT = """([first, last]) => {
  const all = document.querySelectorAll('.strip .t'), range = document.createRange();
  range.setStart(all[first].firstChild, 0);
  range.setEnd(all[last].firstChild, all[last].firstChild.length);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}"""


def test_tokens_copy_as_the_real_text_and_say_their_ids(page: Page, shared: Server) -> None:
    text = "It was\tthe · worst\n“é日”"
    page.goto(ask(page, shared, f"/models/{SLUG}/readings", prompt=text))
    page.wait_for_url(READ, timeout=TIMEOUT)
    chips = page.locator(".strip .t")
    shown = chips.all_inner_texts()
    assert {"⇥", "↵"} <= set("".join(shown))
    assert "⟨" in "".join(shown), "bytes of a character split over tokens"

    def copied(first: int, last: int) -> str:
        page.evaluate(SELECT, [first, last])
        page.keyboard.press("Control+c")
        return str(page.evaluate("navigator.clipboard.readText()"))

    assert copied(0, len(shown) - 1) == text
    assert copied(1, 1) == shown[1].replace("·", " ")
    assert copied(0, 2) == text[: len("".join(shown[:3]))]
    chips.nth(1).focus()
    expect(page.locator("#tip")).to_have_text(re.compile(r"^1: token \d+$"))
    page.goto("about:blank")


def test_the_tour_comes_once_is_walked_by_keyboard_and_comes_again_when_asked(page: Page, shared: Server) -> None:
    page.goto(shared.address)
    tour = page.locator("#tour")
    expect(tour).to_be_visible()
    expect(page.locator("#prompt")).to_be_focused()  # it takes no focus from the prompt
    expect(tour.locator(".count")).to_have_text("1 of 4")
    tour.get_by_role("button", name="next").focus()
    for _ in range(3):
        page.keyboard.press("Enter")
    expect(tour.locator(".count")).to_have_text("4 of 4")
    page.keyboard.press("Escape")
    expect(tour).to_be_hidden()
    expect(page.locator("#tour-open")).to_be_focused()
    page.reload()
    expect(page.locator("#tour-open")).to_be_visible()
    expect(tour).to_be_hidden()
    page.locator("#tour-open").click()
    expect(tour.locator("[data-step]").first).to_be_visible()
    tour.get_by_role("button", name="close the tour").click()
    expect(tour).to_be_hidden()
    page.goto("about:blank")


def test_a_wide_screen_and_reduced_motion(browser: Browser, shared: Server) -> None:
    """3840 pixels: lines stay short enough to read and nothing sticks out; reduced motion: nothing moves by itself."""
    context = browser.new_context(viewport={"width": 3840, "height": 2160}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(ask(page, shared, f"/models/{SLUG}/readings", prompt=PROMPT))
    page.wait_for_url(READ, timeout=TIMEOUT)
    for address in (page.url, f"{shared.address}/models/{SLUG}", f"{shared.address}/help", shared.address):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 3840
        longest = page.evaluate(
            """Math.max(0, ...[...document.querySelectorAll('main p')].filter(e => e.innerText.length > 200)
                .map(e => e.getBoundingClientRect().width / parseFloat(getComputedStyle(e).fontSize)))"""
        )
        assert longest <= 110, f"{address}: a paragraph {longest:.0f} em wide"
        moving = page.evaluate(
            """[...document.querySelectorAll('*')].filter(e => {
                const s = getComputedStyle(e);
                return [s.transitionDuration, s.animationDuration].some(
                    t => t.split(',').some(one => parseFloat(one) > 0.01));
            }).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert moving == []
    page.goto("about:blank")
    context.close()
