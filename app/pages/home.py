"""Home: the prompt box first; then the checkpoints, examples, and what was read before."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.collections import CollectionCard
from app.pages.asking import PromptForm, prompt_form, read_form
from app.pages.reading_view import Chosen
from app.pages.view import chance, clipped, page, percent, twin
from app.services import Services, services
from app.store import ReadingCard
from app.urls import Urls, urls_for
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.display import special_chip
from legible_core.errors import LegibleError
from legible_core.extras import how_to_install
from legible_core.figures import perplexity_text, short_count
from legible_core.registry import Checkpoint

router = APIRouter(default_response_class=HTMLResponse)

SHOWN = 12
EXAMPLES_FILE = "examples.json"
# Where a checkpoint brings no examples of its own; the first is the papers'.
EXAMPLES = (
    "It was the best of times, it was the",
    "I am very much obliged to",
    "He shook his",
    "In the middle of the",
    "She could not help",
    "At the end of the",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A line of the checkpoint picker: kind, size, quality, legible share."""

    slug: str
    said: str


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, and what this checkpoint makes of it where its folder says so; `target` is the token that is read."""

    prompt: str
    target: int | None = None
    token: str | None = None
    said: str | None = None


@dataclass(frozen=True, slots=True)
class TextChoices:
    """What can be chosen for an ordinary model's prompt: its begin-of-text token (None: it has none), its template."""

    slug: str
    bos: str | None
    default: bool
    chat: bool


@dataclass(frozen=True, slots=True)
class Card:
    href: str
    text: str
    target: str
    probability: float
    slug: str
    said: str


@dataclass(frozen=True, slots=True)
class CardList:
    name: str
    empty: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class HomePage:
    title: str
    prompt: str
    chosen: str | None
    checkpoints: tuple[Choice, ...]
    refused: tuple[str, ...]
    examples: tuple[Example, ...]
    lists: tuple[CardList, ...]
    findings: tuple[CollectionCard, ...]
    text: TextChoices | None


@router.get("/")
def home(
    request: Request,
    services: Annotated[Services, Depends(services)],
    model: Annotated[str | None, Query(max_length=100)] = None,
    prompt: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """The page that everything starts from."""
    return page(request, "home.html", _home(services, urls_for(request), model, prompt))


@router.get("/index.json")
def home_json(request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Its JSON twin."""
    return twin(_home(services, urls_for(request), None, ""))


@router.post("/")
def read(
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[PromptForm, Depends(prompt_form)],
) -> Response:
    """Accept a prompt: written to SQL before the answer, then off to the reading's own address."""
    checkpoint = _choose(services, form.model)
    if checkpoint is None:
        raise LegibleError("No checkpoint is here yet, so nothing can be read; add one with `legible add FOLDER`.")
    # A browser sends every line break of a text area as CRLF; the tokenizer turns it back into LF.
    target = None
    if form.example is not None:  # its button sends the prompt box along, whatever stands in it
        chosen = _example(checkpoint, form.example)
        form, target = replace(form, prompt=chosen.prompt), chosen.target
    address = read_form(services, urls_for(request), checkpoint, form, target=target)
    return RedirectResponse(address, status_code=303)


def _home(services: Services, urls: Urls, model: str | None, prompt: str) -> HomePage:
    entries = services.catalogue.entries()
    checkpoints = [entry.checkpoint for entry in entries if entry.checkpoint is not None]
    chosen = next((c for c in checkpoints if c.slug == model), None) or _default(checkpoints)
    recent = reading_cards(urls, services.store.readings(limit=SHOWN))
    collected = reading_cards(urls, services.store.readings(collected=True, limit=SHOWN))
    lists = [CardList("Recent readings", "None yet. What you read is kept here, and under its own address.", recent)]
    if collected:
        lists.append(CardList("Collected", "", collected))
    return HomePage(
        title="Read a prediction",
        prompt=prompt,
        chosen=chosen.slug if chosen is not None else None,
        checkpoints=tuple(Choice(c.slug, describe(c)) for c in checkpoints),
        refused=tuple(entry.error.message for entry in entries if entry.error is not None),
        examples=examples_of(chosen) if chosen is not None else (),
        lists=tuple(lists),
        findings=tuple(services.collections.newest(SHOWN)),
        text=_text_choices(chosen),
    )


def _text_choices(checkpoint: Checkpoint | None) -> TextChoices | None:
    """None for a legible checkpoint, whose prompts are read as typed."""
    if not isinstance(checkpoint, OrdinaryCheckpoint):
        return None
    bos = checkpoint.bos
    return TextChoices(
        checkpoint.slug,
        None if bos is None else special_chip(bos.text),
        bos is not None and bos.default,
        checkpoint.chat_template is not None,
    )


def _choose(services: Services, model: str | None) -> Checkpoint | None:
    return services.catalogue.get(model) if model else _default(services.catalogue.checkpoints())


def _default(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """Of those with legible units the one of `most_nameable`, else the first: for a newcomer to meet."""
    legible = [c for c in checkpoints if c.config.feed_forward.n_bounded]
    return most_nameable(legible) or next(iter(checkpoints), None)


def most_nameable(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """The checkpoint whose card gives the largest share of nameable operands; None of none.

    Of those whose share is within a tenth of the largest, the one with the lowest perplexity: they read equally well.
    """
    shares = [dict(legible_shares(checkpoint)).get("operands nameable", 0.0) for checkpoint in checkpoints]
    least = 0.9 * max(shares, default=0.0)
    near = [c for c, share in zip(checkpoints, shares, strict=True) if share >= least]
    return min(near, key=lambda c: math.inf if c.perplexity is None else c.perplexity, default=None)


def describe(checkpoint: Checkpoint) -> str:
    """Kind, size, tokens trained, and quality and legibility side by side, as far as its card gives them."""
    parts = [checkpoint.kind, f"{short_count(checkpoint.parameters)} parameters"]
    if checkpoint.tokens_trained is not None:
        parts.append(f"{short_count(checkpoint.tokens_trained)} tokens")  # a perplexity says little without them
    if checkpoint.perplexity is not None:
        parts.append(f"perplexity {perplexity_text(checkpoint.perplexity)}")
        # No legible figure without the quality beside it.
        parts += [f"{words} {percent(share)}" for words, share in legible_shares(checkpoint)]
    if checkpoint.ordinary and not can_be_read():
        parts.append(f"cannot be read here yet: it needs TransformerLens, {how_to_install('ordinary')}")
    return ", ".join(parts)


def can_be_read() -> bool:
    """Whether the libraries are here that ordinary models are read with."""
    return all(find_spec(name) is not None for name in ("transformer_lens", "transformers"))


def legible_shares(checkpoint: Checkpoint) -> list[tuple[str, float]]:
    """What the card says of the operands: shares between 0 and 1, passed over where it gives none or no number."""
    found = []
    for key, words in (("nameable", "operands nameable"), ("labelled", "labelled")):
        try:
            share = checkpoint.card.number(key)
        except LegibleError:
            continue
        if share is not None and 0 <= share <= 1:
            found.append((words, share))
    return found


def examples_of(checkpoint: Checkpoint) -> tuple[Example, ...]:
    """The checkpoint's own examples (examples.json beside its weights), else the general ones."""
    path = checkpoint.path / EXAMPLES_FILE
    try:
        found = _read_examples(path, checkpoint.hash, path.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = ()
    return found or tuple(Example(prompt) for prompt in EXAMPLES)


@lru_cache(maxsize=32)
def _read_examples(path: Path, checkpoint_hash: str, _modified: int) -> tuple[Example, ...]:
    found = json.loads(path.read_text(encoding="utf-8"))
    # Examples are facts about weights: those of others are not shown.
    rows = found["examples"] if found["checkpoint"] == checkpoint_hash else []
    return tuple(
        Example(
            str(row["prompt"]),
            None if row.get("target") is None else int(row["target"]),
            str(row["token"]),
            f"probability {chance(float(row['probability']))}, rank {int(row['rank'])}",
        )
        for row in rows[:6]
    )


def _example(checkpoint: Checkpoint, number: str) -> Example:
    """The example with this number in the list that the page showed."""
    listed = examples_of(checkpoint)
    if not number.isdecimal() or len(number) > 3 or not int(number) < len(listed):
        raise LegibleError(f"There is no example {number[:20]!r}; choose one on the home page.", status=404)
    return listed[int(number)]


def reading_cards(urls: Urls, cards: list[ReadingCard], component: str | None = None) -> tuple[Card, ...]:
    """Links to readings, each with its target; with `component` shown beside the figure."""
    return tuple(
        Card(
            href=urls.reading(
                c.slug,
                c.digest,
                **Chosen(c.position, c.target, c.contrast, c.relative_to, component).query(),
            ),
            text=clipped(c.text),
            target=c.target_display,
            probability=c.probability,
            slug=c.slug,
            said=_asked(c),
        )
        for c in cards
    )


def _asked(card: ReadingCard) -> str:
    """What was asked besides the target, where that is not the usual: several readings share one prompt."""
    parts = [] if card.position == card.n_tokens - 1 else [f"at position {card.position}"]
    if card.contrast is not None:
        parts.append("against another token")
    elif card.relative_to == "mean":
        parts.append("relative to the mean")
    return ", ".join(parts)
