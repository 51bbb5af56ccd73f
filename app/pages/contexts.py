"""A component over the tokens of a text that was read: which texts there are, and what the worker says of one.

context = context_of(services, urls, checkpoint, Head(5, 2), asked, address)
context.strip            # the tokens, shaded by attention or by the unit's value
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query

from app.figures import attention_levels
from app.pages.detail import detail_job, state_of
from app.pages.view import clipped
from app.services import Services
from app.store import ReadingCard, StoredReading
from app.urls import Urls
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, Head, Unit

OFFERED = 6


@dataclass(frozen=True, slots=True)
class AskedContext:
    """The reading named by a component's address; all None takes the newest one."""

    reading: str | None
    position: int | None
    target: int | None


def asked_context(
    reading: Annotated[str | None, Query(max_length=64, description="digest of a stored reading")] = None,
    position: Annotated[int | None, Query(ge=0)] = None,
    target: Annotated[int | None, Query(ge=0)] = None,
) -> AskedContext:
    return AskedContext(reading, position, target)


@dataclass(frozen=True, slots=True)
class Offer:
    """A text that was read, to see the component over it."""

    text: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Shaded:
    display: str
    shade: int
    said: str
    current: bool


@dataclass(frozen=True, slots=True)
class Context:
    """`result` is the worker's answer once there is one; until then `message`, and `poll` while it will come.

    `retry` is where to post when it failed, `href` the component's own page over this very text.
    """

    offers: tuple[Offer, ...]
    reading_href: str | None
    target: str
    strip: tuple[Shaded, ...]
    message: str
    poll: str
    retry: str
    result: dict[str, Any] | None
    digest: str = ""
    href: str = ""


def context_of(
    services: Services,
    urls: Urls,
    checkpoint: Checkpoint,
    component: Head | Unit,
    asked: AskedContext,
    address: Callable[..., str],
) -> Context:
    """The component over the asked text, else over the newest one that this checkpoint has read."""
    cards = _cards(services, checkpoint)
    stored = _stored(services, asked, cards)
    if stored is None or stored.checkpoint_hash != checkpoint.hash:
        return Context((), None, "", (), "Nothing of this checkpoint has been read yet.", "", "", None)
    offers = tuple(
        Offer(
            clipped(card.text, 48),
            address(reading=card.digest, position=card.position, target=card.target),
            card.digest == stored.digest,
        )
        for card in cards
    )
    chosen: dict[str, Any] = {"position": stored.position, "target": stored.target}
    own = address(reading=stored.digest, **chosen)
    href = urls.reading(checkpoint.slug, stored.digest, **chosen, component=str(component))
    prompt = services.store.prompt(stored.digest)
    reading = stored.reading()
    target = reading.summary.target.display
    job = detail_job(
        services, reading.summary, str(component), slug=stored.slug, text=prompt.text if prompt is not None else ""
    )
    if job.state == "done" and job.result is not None:
        strip = _strip(job.result, [token.display for token in reading.summary.tokens], stored.position)
        return Context(offers, href, target, strip, "", "", "", job.result, stored.digest, own)
    if job.active or job.state == "done":
        return Context(offers, href, target, (), state_of(services, job), own, "", None, href=own)
    reason = str((job.error or {}).get("message", "It was cancelled."))
    return Context(offers, href, target, (), reason, "", urls.job_part(job.id, "retry"), None, href=own)


def _cards(services: Services, checkpoint: Checkpoint) -> list[ReadingCard]:
    """The newest readings, one for each text."""
    found: dict[str, ReadingCard] = {}
    for card in services.store.readings(checkpoint_hash=checkpoint.hash, limit=40):
        if card.contrast is None and card.relative_to == "nothing":
            found.setdefault(card.digest, card)
    return list(found.values())[:OFFERED]


def _stored(services: Services, asked: AskedContext, cards: list[ReadingCard]) -> StoredReading | None:
    if asked.reading is not None:
        return services.store.find(asked.reading, position=asked.position, target=asked.target)
    if not cards:
        return None
    return services.store.find(cards[0].digest, position=cards[0].position, target=cards[0].target)


def _strip(result: dict[str, Any], displays: list[str], position: int) -> tuple[Shaded, ...]:
    """Attention from the read position for a head; a unit's own value at every token for a unit."""
    if result["kind"] == "head":
        values = [float(weight) for weight in result["pattern"]]
        shades = attention_levels(values)
        said = [f"attention {value:.1%}" for value in values]
    else:
        values = [float(value) for value in result["activations"]]
        bounded = result["kind"] in BOUNDED
        shades = [min(4, int(value * 5)) if bounded else 0 for value in values]
        if not bounded:
            shades = attention_levels([max(0.0, value) for value in values])
        said = [f"value {value:.2f}" for value in values]
    return tuple(
        Shaded(
            display,
            max(0, shades[index]) if index < len(shades) else 0,
            f"{index}: {said[index]}" if index < len(said) else f"{index}: after the read position",
            index == position,
        )
        for index, display in enumerate(displays)
    )
