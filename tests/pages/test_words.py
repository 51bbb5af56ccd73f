"""The glossary: every word that a page explains has its entry, and the `?` leads to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_samples import Site, parsed

from app.pages.view import environment
from app.pages.words import entries
from app.urls import Urls

ROOT = Path(__file__).resolve().parents[2]
ASKED = re.compile(r"""\bterm\(\s*"([^"]+)\"""")
WORDS = ("SELECTIVE", "CONSTANT", "FUZZY", "crispness", "ON", "residual", "agreement", "lift", "half-life",
         "legible share", "floor", "term", "target rank", "operand", "perplexity")  # fmt: skip


def test_every_word_that_a_template_explains_has_an_entry() -> None:
    asked = {word for path in (ROOT / "templates").glob("*.html") for word in ASKED.findall(path.read_text())}
    assert len(asked) >= 8, "the templates explain their words"
    assert {word.lower() for word in asked | set(WORDS)} <= set(entries())


def test_entries_have_anchors_of_their_own_and_a_short_first_sentence() -> None:
    found = entries().values()
    assert len({entry.anchor for entry in found}) == len(entries())
    for entry in found:
        assert re.fullmatch(r"[a-z0-9-]+", entry.anchor)
        assert 20 < len(entry.short) <= 240, entry.word
        assert not set(entry.short) & set("`[]")


def test_links_of_the_glossary_lead_to_files_that_exist() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets
    assert all((ROOT / "docs" / target).is_file() for target in targets)


def test_a_word_without_an_entry_is_an_error() -> None:
    template = environment().from_string('{{ term("no such word") }}')
    with pytest.raises(KeyError):
        template.render(urls=Urls())


def test_the_mark_shows_the_sentence_and_leads_to_the_entry_under_a_root_path() -> None:
    made = environment().from_string('{{ term("half-life", "<lives>") }}').render(urls=Urls("/legible"))
    assert made.startswith("&lt;lives&gt;<a ")
    assert 'href="/legible/help#half-life"' in made
    assert 'data-ev="The number of tokens after which' in made


def test_the_page_holds_every_entry_and_has_a_twin(shared: Site) -> None:
    page = parsed(shared.client.get("/help").text)
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {entry.anchor for entry in entries().values()} <= ids
    twin = shared.client.get("/help.json").json()
    assert [entry["word"] for entry in twin["entries"]] == [entry.word for entry in entries().values()]


def test_commands_in_a_sentence_are_code_and_all_else_is_escaped() -> None:
    made = environment().from_string("{{ said | ticked }}")
    assert made.render(said="Not yet; `legible scan <x>` does.") == "Not yet; <code>legible scan &lt;x&gt;</code> does."
    assert made.render(said="A ` and <b>") == "A ` and &lt;b&gt;"
