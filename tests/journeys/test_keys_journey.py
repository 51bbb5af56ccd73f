"""The keyboard on a layer's page, the search from anywhere, and a server that stops under a reading."""

from __future__ import annotations

import re
from pathlib import Path

from journey_samples import PROMPT, SLUG, Server, serving
from playwright.sync_api import Browser, Page, expect

READ = re.compile(r"/readings/[0-9a-f]{64}\?position=\d+&target=\d+$")
TIMEOUT = 60_000


def test_keys_walk_rows_open_them_and_search(page: Page, shared: Server) -> None:
    page.goto(f"{shared.address}/models/{SLUG}/layers/1?sort=unit")
    focused = "document.activeElement.textContent"
    for key, row in (("j", "u0"), ("j", "u1"), ("j", "u2"), ("k", "u1")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == row
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    expect(page.locator("dialog#keys")).to_contain_text("next and previous row")
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()
    assert page.evaluate(focused) == "u1", "the focus is where it was"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/units/L1\.u1$"))
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("L2.u7 j")
    assert page.locator("#search").input_value() == "L2.u7 j", "in a box a key is a letter"
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/search\?q=L2\.u7$"))
    page.get_by_role("link", name="L2.u7").first.click()
    page.wait_for_url(re.compile(r"/units/L2\.u7$"))
    keys_of_folded_rows(page, shared)
    page.goto("about:blank")  # a page that polls would complain of the server's end


def keys_of_folded_rows(page: Page, server: Server) -> None:
    """A row in a closed fold is passed over, and reached once the fold is open."""
    page.goto(f"{server.address}/models/novel-legible")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr') && document.activeElement.checkVisibility()")
    page.get_by_text("Both surfaces by layer: table").click()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "L0"
    assert page.evaluate("document.activeElement.checkVisibility()")


def test_a_server_that_stops_is_said_so_in_the_panel(browser: Browser, data_dir: Path) -> None:
    page = browser.new_page()  # its complaints about the silent server are right
    with serving(data_dir) as server:
        page.goto(server.address)
        page.locator("#prompt").fill(PROMPT)
        page.locator(f'input[value="{SLUG}"]').check()
        page.locator("#prompt").press("Enter")
        page.wait_for_url(READ, timeout=TIMEOUT)
        expect(page.locator("#panel h2")).to_be_visible()
    cell = page.locator('.figure a[href*="component=L0.h1"]').first
    cell.click()
    notice = page.locator("#panel #unreached")
    expect(notice).to_contain_text("The server does not answer", timeout=TIMEOUT)
    assert READ.search(page.url), "the address is still that of what is shown"
    with serving(data_dir, server.port):
        notice.get_by_role("button", name="try again").click()
        expect(page.locator("#panel h2")).to_contain_text("L0.h1", timeout=TIMEOUT)
        expect(page.locator("#unreached")).to_have_count(0)
    page.close()
