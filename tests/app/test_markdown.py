"""Markdown shows text and links, runs nothing, fetches nothing."""

from __future__ import annotations

import re

import pytest

from app.markdown import allowed, rendered


def test_what_it_is_for() -> None:
    html = rendered("# One\n\n*a* and **b**, `c`\n\n1. x\n\n| t | u |\n|---|---|\n| 1 | 2 |\n\n[p](/models/x?y=1)")
    for part in ("<h2>One</h2>", "<em>a</em>", "<strong>b</strong>", "<code>c</code>", "<ol>", "<table>"):
        assert part in html
    assert '<a href="/models/x?y=1" rel="noopener noreferrer nofollow">p</a>' in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<svg onload=alert(1)>",
        "<img src=x onerror=alert(1)>",
        "<iframe src=//x></iframe>",
        "a\n\n<style>*{display:none}</style>",
        "`<b>`",
        "![huge](https://example.org/9999999.png)",
        '![x"onload=alert(1)](/a.svg)',
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt&#58;alert(1))",
        "[x](data:text/html,<script>alert(1)</script>)",
        "[x]: javascript:alert(1)\n\n[x]",
        "<javascript:alert(1)>",
        "[x](//evil.example)",
        "[x](/\\evil.example)",
        "[x](http://me@evil.example)",
        '[x](/a "title\\" onclick=alert(1)")',
        "| a | b |\n|:--|---|\n| <b> | 2 |",
    ],
)
def test_nothing_runs_and_nothing_is_fetched(text: str) -> None:
    html = rendered(text)
    tags = re.findall(r"<\s*/?\s*([a-z0-9]+)", html, re.IGNORECASE)
    assert not {"script", "svg", "img", "iframe", "style", "b", "form", "input", "object"} & set(tags)
    for attributes in re.findall(r"<[a-z0-9]+\s([^>]*)>", html):
        names = re.findall(r"([a-z-]+)=\"", attributes)
        assert set(names) <= {"href", "rel", "title", "start", "class"}
    for href in re.findall(r'href="([^"]*)"', html):
        assert re.match(r"https?://[^@]+$|/[^/\\]", href), href


def test_headings_stand_below_the_one_that_the_text_stands_under() -> None:
    assert re.findall(r"<h\d>", rendered("# One\n\n### Two\n\n# Three", below=2)) == ["<h3>", "<h4>", "<h3>"]


def test_deep_and_long_texts_end() -> None:
    assert "<blockquote>" in rendered(">" * 5_000 + " x")
    rendered("[" * 20_000)
    rendered("*a " * 20_000)


@pytest.mark.parametrize("address", ["https://a.b/c", "http://a.b", "/models", "#x", "?a=1"])
def test_links_that_lead_somewhere(address: str) -> None:
    assert allowed(address)
