"""The keyboard alone: past the menu, through a figure by arrows, into a sheet and out; what comes later is said."""

from __future__ import annotations

import os
import re
import signal

from focus_samples import in_the_way
from journey_samples import SLUG, Server, eventually
from playwright.sync_api import Browser, Page, expect

READ = re.compile(r"/readings/[0-9a-f]{64}\?position=\d+&target=\d+$")
TIMEOUT = 60_000
FOCUSED = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"


def test_a_reading_by_keyboard_alone(page: Page, shared: Server) -> None:
    page.goto(shared.address)
    page.locator(f'input[value="{SLUG}"]').check()
    page.locator("#prompt").focus()
    page.keyboard.type("It was the age of the best")
    workers = eventually(lambda: [w["pid"] for w in shared.json("/jobs.json")["workers"] if w["alive"]])
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        page.keyboard.press("Enter")
        page.get_by_role("button", name="cancel").focus()
        for _ in range(2):
            with page.expect_response(re.compile("/readings/")):
                pass  # the page asks again
        assert page.evaluate(FOCUSED) == "cancel", "what is asked anew keeps the focus"
        page.reload()
        expect(page.get_by_role("button", name="cancel")).to_be_visible()  # the same job goes on
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    page.wait_for_url(READ, timeout=TIMEOUT)
    expect(page.locator("#said")).to_contain_text("The reading is here. It reads ", timeout=TIMEOUT)
    expect(page.locator("[data-then]")).to_have_count(0, timeout=TIMEOUT)
    assert in_the_way(page) == []

    figure_by_arrows(page)
    sheets(page)


def figure_by_arrows(page: Page) -> None:
    """The skip link passes the menu; a figure is one stop, its cells are reached by arrows, and Tab leaves it."""
    page.evaluate("scrollTo(0, 0)")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    heads = page.locator(".figure svg").first
    heads.locator('a[tabindex="0"]').focus()
    assert page.evaluate(FOCUSED).startswith("L0.h0 ")
    for key, head in (("ArrowRight", "L0.h1"), ("ArrowDown", "L1.h1"), ("End", "L2.h3"), ("ArrowUp", "L1.h3")):
        page.keyboard.press(key)
        assert page.evaluate(FOCUSED).startswith(f"{head} ")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('svg')?.getAttribute('aria-label')") != heads.get_attribute(
        "aria-label"
    )
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUSED).startswith("L1.h3 "), "it comes back to where it was"


def sheets(page: Page) -> None:
    """Escape closes a sheet and gives the focus back; Tab out of it closes it; keys of one letter can be left out."""
    opener = page.locator("details.menu > summary", has_text="cite")
    opener.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.sheet') !== null")
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    expect(page.locator("details.menu[open]")).to_have_count(0)
    page.keyboard.press("Enter")
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(page.locator("details.menu[open]")).to_have_count(0)
    page.locator("#keys-open").focus()
    page.keyboard.press("Enter")
    page.locator("#keys-letters").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#keys-open")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#keys-open")).to_be_focused()
    page.evaluate("localStorage.removeItem('legible-keys')")
    page.goto("about:blank")


def test_what_stands_in_the_way_is_found(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(
        "<main><h1>x</h1><h3>y</h3><button id=a tabindex=3>b</button><a href=x style='outline: none'>c</a>"
        "<label for=none>d</label><p id=a>e</p><svg aria-label=f width=9 height=9><a href=x><rect width=9 height=9 "
        "stroke=red stroke-width=2 /></a><a href=y><rect width=9 height=9 stroke=red stroke-width=2 /></a></svg></main>"
    )
    found = " ".join(in_the_way(page))
    for said in (
        "comes before", "shows no focus: <a", "is not one stop: f", "skips a level of headings: <h3",
        "two elements are #a", "names #none",
    ):  # fmt: skip
        assert said in found, found
    page.close()
