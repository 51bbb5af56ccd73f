"""A slider moves, the distribution moves with it; the permalink opened elsewhere shows the same sliders and numbers."""

from __future__ import annotations

import re
from typing import Any

from journey_samples import SLUG, Server
from playwright.sync_api import Browser, Page, expect

TIMEOUT = 90_000
PROMPT = "It was the worst of times, it was the"
PARTS = ("tune-chances", "tune-edits", "tune-after-probability", "tune-after-rank", "tune-after-text")


def seen(page: Page) -> dict[str, Any]:
    """The numbers of both sides and where every control stands."""
    found: dict[str, Any] = {name: page.locator(f"#{name}").inner_text() for name in PARTS}
    found["controls"] = page.locator("#tune").evaluate(
        "f => [...f.elements].filter(e => e.name).map(e => [e.name, e.type === 'radio' ? e.checked : e.value])"
    )
    return found


def test_a_slider_moves_the_distribution_and_the_permalink_restores_both(
    page: Page, browser: Browser, shared: Server
) -> None:
    page.goto(shared.address)
    page.locator("#prompt").fill(PROMPT)
    page.locator(f'input[value="{SLUG}"]').check()
    page.locator("#prompt").press("Enter")
    expect(page.locator(".sum")).to_be_visible(timeout=TIMEOUT)
    page.get_by_role("link", name="tune", exact=True).click()
    slider = page.locator("#tune input[type=range]").first
    expect(slider).to_be_visible(timeout=TIMEOUT)
    before = seen(page)

    slider.fill("4")
    expect(page.locator("#tune-edits")).to_contain_text("scale=4", timeout=TIMEOUT)
    assert page.locator("#tune-chances").inner_text() != before["tune-chances"]
    undo = page.locator("#tune-undo")
    undo.click()
    expect(page.locator("#tune-edits")).to_have_text("none", timeout=TIMEOUT)
    assert seen(page)["tune-chances"] == before["tune-chances"]
    expect(undo).to_be_disabled()
    slider.fill("4")
    expect(page.locator("#tune-edits")).to_contain_text("scale=4", timeout=TIMEOUT)

    page.get_by_role("button", name="share").click()
    page.wait_for_url(re.compile(r"/readings/[0-9a-f]{64}/tune\?position=\d+&target=\d+$"), timeout=TIMEOUT)
    expect(slider).to_have_value("4", timeout=TIMEOUT)
    page.get_by_role("button", name="copy address").click()
    expect(page.get_by_role("button", name="address copied")).to_be_visible()
    address = page.evaluate("navigator.clipboard.readText()")
    assert address == page.url
    shared = seen(page)
    assert shared["tune-chances"] != before["tune-chances"]

    other = browser.new_context(viewport={"width": 390, "height": 844})
    elsewhere = other.new_page()
    elsewhere.goto(address)
    expect(elsewhere.locator("#tune input[type=range]").first).to_have_value("4", timeout=TIMEOUT)
    assert seen(elsewhere) == shared
    assert elsewhere.evaluate("document.documentElement.scrollWidth") <= 390
    other.close()

    plain = browser.new_context(java_script_enabled=False)
    scriptless = plain.new_page()
    scriptless.goto(address)
    number = scriptless.locator("#tune input[type=number]").first
    assert number.input_value() == "4"
    number.fill("0")
    scriptless.get_by_role("button", name="share").click()
    expect(scriptless.locator("#tune-edits")).to_contain_text("scale=0", timeout=TIMEOUT)
    plain.close()
