"""The form "compare with…" of a reading: another prompt, token, position or checkpoint, or a stored reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.pages.home import Card, reading_cards
from app.pages.reading_view import Chosen
from app.services import Services
from app.urls import Urls
from legible_core.errors import LegibleError
from legible_core.reading import Summary, Token

RECENT = 12


@dataclass(frozen=True, slots=True)
class CompareForm:
    """What the form is filled in with; `left` is the permalink of what is compared."""

    left: str
    text: str
    target: str
    contrast: str
    checkpoints: tuple[str, ...]
    chosen: str


def compare_form(
    urls: Urls, summary: Summary, chosen: Chosen, *, slug: str, text: str, checkpoints: Sequence[str]
) -> CompareForm:
    """The form of a stored reading: everything as it is there, to be changed in one place."""
    return CompareForm(
        left=urls.reading(slug, summary.digest, **{**chosen.query(), "component": None}),
        text=text,
        target=typed(summary.target),
        contrast="" if summary.contrast is None else typed(summary.contrast),
        checkpoints=tuple(checkpoints),
        chosen=slug,
    )


def slugs(services: Services) -> tuple[str, ...]:
    """The checkpoints that can be chosen; none where the folders cannot be read."""
    try:
        return tuple(checkpoint.slug for checkpoint in services.catalogue.checkpoints())
    except LegibleError:
        return ()


def recent(services: Services, urls: Urls, left: str | None) -> tuple[Card, ...]:
    """The newest readings as links: to a comparison with `left`, or to the form of each where there is no left yet."""
    cards = services.store.readings(limit=RECENT)
    links = reading_cards(urls, cards)
    made = []
    for card in links:
        if card.href != left:
            href = urls.compare(left=card.href) if left is None else urls.compare(left=left, right=card.href)
            made.append(Card(href, card.text, card.target, card.probability, card.slug, card.said))
    return tuple(made)


def typed(token: Token) -> str:
    """How a person would type this token: its text, or its id where no text field could hold it."""
    exact = token.text.encode("utf-8", "surrogatepass").hex() == token.bytes
    return token.text if exact and token.text and token.text.isprintable() else f"id:{token.id}"
