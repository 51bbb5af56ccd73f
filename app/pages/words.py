"""The words of docs/glossary.md, and the `?` beside a word on a page.

    {{ term("SELECTIVE") }}            SELECTIVE?    the ? shows the entry's first sentence and leads to the entry
    {{ term("crispness", "crisp") }}   crisp?

A word without an entry is an error of the template that asks for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from app.paths import glossary_path


@dataclass(frozen=True, slots=True)
class Entry:
    """A word, its anchor, its first sentence, and its paragraphs."""

    word: str
    anchor: str
    short: str
    paragraphs: tuple[str, ...]


@pass_context
def term(context: Context, word: str, shown: str | None = None) -> Markup:
    """The word with a link to its entry beside it. Raises KeyError for a word that the glossary lacks."""
    entry = entries()[word.lower()]
    link = Markup('{shown}<a class="help" href="{address}" aria-label="What {word} means" data-ev="{short}">?</a>')
    address = context["urls"].help(entry.anchor)
    return link.format(shown=word if shown is None else shown, address=address, word=entry.word, short=entry.short)


@lru_cache(maxsize=1)
def entries() -> dict[str, Entry]:
    """Every entry by its word in small letters, in the file's order."""
    parts = re.split(r"^## (.+)$", glossary_path().read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for word, text in zip(parts[1::2], parts[2::2], strict=True):
        paragraphs = tuple(_plain(part) for part in text.strip().split("\n\n"))
        anchor = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
        found[word.lower()] = Entry(word, anchor, _first_sentence(paragraphs[0]), paragraphs)
    return found


def _plain(text: str) -> str:
    """A paragraph of the file as words: its lines joined, links and code marks as their text."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(text.split())).replace("`", "")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z×])", text, maxsplit=1)[0]
