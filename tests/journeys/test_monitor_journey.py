"""A monitor in a browser: made, its hits as they come, its gate, two tabs; and the new forms without JavaScript."""

from __future__ import annotations

import re
from pathlib import Path

from journey_samples import PROMPT, SLUG, Server, serving
from playwright.sync_api import Browser, Page, expect

TIMEOUT = 60_000
TEXT = f"{PROMPT} worst of times, it was the age of wisdom"
CONDITION = "L1.p3.A above 0.5"
PATH = re.compile(r"of the effect of removing|m is undefined")
STREAM = re.compile(r"/monitors/\d+/streams/\d+$")


def test_a_monitor_flags_a_text_as_it_is_read_and_its_gate_stops_it(
    page: Page, browser: Browser, data_dir: Path
) -> None:
    with serving(data_dir) as server:
        monitor = made(page, server)
        first = watched(page, server, monitor)
        gate_stops(page, server, monitor, first)
        two_tabs(browser, monitor)
        without_javascript(browser, server)
        page.goto("about:blank")


def made(page: Page, server: Server) -> str:
    """From the bar to a saved monitor; its address."""
    page.goto(server.address)
    page.get_by_role("navigation", name="Site").get_by_role("link", name="Monitors").click()
    page.get_by_label("Name", exact=True).fill("often on")
    page.locator("select[name=model]").select_option(SLUG)
    page.get_by_label(re.compile("^Conditions")).fill(CONDITION)
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(re.compile(r"/monitors/\d+$"))
    expect(page.locator("h1")).to_have_text("often on")
    expect(page.locator("#watched")).to_contain_text("0 hits on 0 tokens")
    return page.url


def watched(page: Page, server: Server, monitor: str) -> int:
    """A text is sent; its hits appear on the page that is open. The number of the first flagged token."""
    page.get_by_label("text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Watch").click()
    page.wait_for_url(STREAM)
    page.evaluate("window.loadedOnce = true")
    expect(page.locator("#stream [role=status]")).to_contain_text("Read, ended", timeout=TIMEOUT)
    facts = server.json(page.url.removeprefix(server.address) + ".json")
    assert 0 < facts["hits"] < facts["tokens"]
    expect(page.locator("#stream .flagged b.t")).to_have_count(facts["hits"])
    expect(page.locator("#stream")).to_contain_text(f"{facts['hits']} hits on {facts['tokens']} tokens")
    assert page.evaluate("window.loadedOnce"), "the hits came without a reload"
    page.locator("#stream .flagged b.t").first.focus()
    expect(page.locator("#tip")).to_contain_text("L1.p3.A")
    page.go_back()
    page.reload()
    assert page.url == monitor
    expect(page.locator("#watched")).to_contain_text(f"{facts['hits']} hits on {facts['tokens']} tokens")
    page.locator("#watched").get_by_text("as a table").click()
    expect(page.locator("#watched tbody tr")).to_have_count(1)
    return int(facts["spans"][0]["token"])


def gate_stops(page: Page, server: Server, monitor: str, first: int) -> None:
    """The same text again, and one that the checkpoint writes: both end at their first hit."""
    page.get_by_role("link", name="edit", exact=True).click()
    page.get_by_label("stop the text").check()
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(monitor)
    expect(page.locator("main")).to_contain_text("A hit stops the text")
    for tokens in ("", "24"):
        page.get_by_label("text", exact=True).fill(TEXT)
        page.get_by_label(re.compile("go on for")).fill(tokens)
        page.get_by_role("button", name="Watch").click()
        page.wait_for_url(STREAM)
        expect(page.locator("#stream [role=status]")).to_contain_text("stopped", timeout=TIMEOUT)
        facts = server.json(page.url.removeprefix(server.address) + ".json")
        last = facts["spans"][-1]
        assert facts["tokens"] == last["token"] + last["count"], "nothing was read after the hit"
        # Where the text goes on, what was given to it is read to its end; the gate acts on what is written.
        assert (facts["tokens"], facts["hits"]) == (first + 1, 1) or tokens
        page.goto(monitor)


def two_tabs(browser: Browser, monitor: str) -> None:
    """What one tab changed or deleted the other is told of; nothing that was typed is lost."""
    one = browser.new_page()
    other = browser.new_page()
    for tab in (one, other):
        tab.goto(monitor + "/edit")
    one.get_by_label("Name", exact=True).fill("renamed")
    one.get_by_role("button", name="Save").click()
    expect(one.locator("h1")).to_have_text("renamed")
    other.get_by_label("Name", exact=True).fill("typed meanwhile")
    other.get_by_role("button", name="Save").click()
    expect(other.get_by_role("alert")).to_contain_text("Someone changed this monitor")
    expect(other.get_by_label("Name", exact=True)).to_have_value("typed meanwhile")
    other.goto(monitor)
    one.get_by_text("delete", exact=True).click()
    one.get_by_role("button", name="Delete the monitor").click()
    one.wait_for_url(re.compile(r"/monitors$"))
    expect(one.locator("main")).to_contain_text("The first one")
    other.get_by_label("text", exact=True).fill(TEXT)
    other.get_by_role("button", name="Watch").click()
    expect(other.locator("main")).to_contain_text("no monitor")
    for tab in (one, other):
        tab.close()


def without_javascript(browser: Browser, server: Server) -> None:
    """A monitor, a path and a box of inputs: their forms post, and a page that waits comes again by itself."""
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(server.address + "/monitors")
    page.get_by_label("Name", exact=True).fill("plain")
    page.locator("select[name=model]").select_option(SLUG)
    conditions = page.get_by_label(re.compile("^Conditions"))
    conditions.fill("L1.p3.A above 1.5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("L1.p3.A")
    assert (conditions.input_value(), page.locator("select[name=model]").input_value()) == ("L1.p3.A above 1.5", SLUG)
    conditions.fill(CONDITION)
    page.get_by_role("button", name="Save").click()
    page.get_by_label("text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Watch").click()
    expect(page.locator("#stream [role=status]")).to_contain_text("Read, ended", timeout=TIMEOUT)
    expect(page.locator("#stream .flagged b.t").first).to_be_visible()

    page.goto(server.address)
    page.locator("#prompt").fill(PROMPT)
    page.locator(f'input[value="{SLUG}"]').check()
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator(".sum")).to_contain_text("residual", timeout=TIMEOUT)
    reading, _, query = page.url.partition("?")
    page.goto(f"{reading}/causal?{query}&view=path")
    page.get_by_label("effect of").fill("L0.h1")
    page.get_by_label("through").fill("L1.u3")
    page.get_by_role("button", name="run").click()
    expect(page.locator("#desk")).to_contain_text(PATH, timeout=TIMEOUT)
    page.goto(f"{reading}/bounds/L1.u3?{query}")
    expect(page.locator("#box")).to_be_visible(timeout=TIMEOUT)
    page.get_by_label(re.compile("^radius")).fill("0.1")
    page.get_by_role("button", name="propagate").click()
    expect(page.locator("#desk")).to_contain_text("While every coordinate stays within 0.1", timeout=TIMEOUT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
