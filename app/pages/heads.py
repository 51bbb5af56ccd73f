"""A head: its place among all, its channels, and over a text where it looks and what it finds there, kept apart."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.figures import attention_levels, thumbnail
from app.pages.asking import dtype_of, encode
from app.pages.contexts import AskedContext, Context, Shaded, asked_context, context_of
from app.pages.detail import Finding, findings, state_of
from app.pages.home import examples_of
from app.pages.layers import check_layer
from app.pages.named import Row, channel_rows, names_of
from app.pages.panel import Look
from app.pages.people import People, people_of
from app.pages.view import page, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.naming.names import Names
from legible_core.reads import opens
from legible_core.registry import Checkpoint
from legible_core.units import Head, parse

router = APIRouter(prefix="/models/{slug}/heads", default_response_class=HTMLResponse)

VALUES = {
    "linear": "linear value: no operands to name, its legibility is undefined",
    "membership": "membership value, each channel is its own operand",
    "boolean": "Boolean value, each pair of operands gives A ∩ B and A ∖ B",
}


@dataclass(frozen=True, slots=True)
class Word:
    """A label among a head's operands (what it detects) or write columns (what it writes), and which have it."""

    text: str
    measured: bool
    count: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Patterns:
    """The head's attention from the last token of each example prompt; `message` and `poll` until it is known."""

    strips: tuple[tuple[Shaded, ...], ...]
    message: str
    poll: str
    retry: str


@dataclass(frozen=True, slots=True)
class HeadPage:
    title: str
    slug: str
    id: str
    layer: int
    bounded: bool
    value_name: str
    thumbnail: Markup
    selective: float | None
    counts: tuple[tuple[str, int], ...]
    channels: tuple[Row, ...]
    d_head: int
    missing: str | None
    detects: tuple[Word, ...]
    writes: tuple[Word, ...]
    patterns: Patterns
    context: Context
    looks: tuple[Look, ...]
    finds: tuple[Finding, ...]
    values_href: str
    people: People


@router.get("/{head}.json")
def head_json(slug: str, head: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The JSON twin: every channel's name."""
    checkpoint, component = _find(services, slug, head)
    names, missing = names_of(checkpoint)
    channels = [] if names is None else [c.to_json() for c in names.channels(component.layer, component.head)]
    return twin(
        {
            "id": str(component),
            "slug": slug,
            "checkpoint": checkpoint.hash,
            "bounded": checkpoint.config.is_bounded(component.layer, component.head),
            "value": checkpoint.config.attention.value,
            "selective": _share(names, component),
            "detects": _detects(names, checkpoint, component),
            "writes": _writes(names, component),
            "channels": channels,
            "people": people_of(services, urls_for(request), request, checkpoint, component),
            "missing": missing,
        }
    )


@router.get("/{head}")
def head(
    slug: str,
    head: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    asked: Annotated[AskedContext, Depends(asked_context)],
) -> Response:
    """One head."""
    checkpoint, component = _find(services, slug, head)
    return page(request, "head.html", _head(services, request, checkpoint, component, asked))


def _find(services: Services, slug: str, text: str) -> tuple[Checkpoint, Head]:
    checkpoint = services.catalogue.get(slug)
    component = parse(text)
    if not isinstance(component, Head):
        raise LegibleError(f"{text[:40]} is no head; a head is written like L0.h0.", code="bad_component", status=404)
    check_layer(checkpoint, component.layer)
    count = checkpoint.config.n_heads
    if component.head >= count:
        raise NotFound(f"There is no head {component.head}; a layer of {slug} has heads 0 to {count - 1}.")
    return checkpoint, component


def _head(services: Services, request: Request, checkpoint: Checkpoint, head: Head, asked: AskedContext) -> HeadPage:
    urls = urls_for(request)
    config = checkpoint.config
    names, missing = names_of(checkpoint)
    bounded = config.is_bounded(head.layer, head.head)
    channels = channel_rows(names, head.layer, head.head) if names is not None else ()

    def address(**query: Any) -> str:
        return urls.head(checkpoint.slug, head, **query)

    context = context_of(services, urls, checkpoint, head, asked, address)
    displays = [token.display for token in context.strip]

    def why(operand: str, at: int) -> str:
        return urls.why(checkpoint.slug, context.digest, operand, at=at)

    looks, finds = findings(context.result, displays, names, why) if context.result is not None else ((), ())
    counts = Counter(row.cls for row in channels)
    return HeadPage(
        title=f"Head {head} · {checkpoint.slug}",
        slug=checkpoint.slug,
        id=str(head),
        layer=head.layer,
        bounded=bounded,
        value_name=VALUES[config.attention.value if bounded else "linear"],
        thumbnail=thumbnail(
            config.n_layers, config.n_heads, lambda name: urls.head(checkpoint.slug, name), _shares(names), str(head)
        ),
        selective=_share(names, head),
        counts=tuple((name, counts[name]) for name in ("SELECTIVE", "FUZZY", "CONSTANT")),
        channels=channels,
        d_head=config.d_head,
        missing=missing if bounded else None,
        detects=_detects(names, checkpoint, head),
        writes=_writes(names, head),
        patterns=_patterns(services, urls, checkpoint, head),
        context=context,
        looks=looks,
        finds=finds,
        values_href=urls.values(checkpoint.slug, components=head),
        people=people_of(services, urls, request, checkpoint, head),
    )


def _detects(names: Names | None, checkpoint: Checkpoint, head: Head) -> tuple[Word, ...]:
    """What a bounded head detects: the labels of its operands that have a class, the most frequent first."""
    if names is None or not checkpoint.config.is_bounded(head.layer, head.head):
        return ()
    operands = [names.operand(operand, 1) for operand in opens(checkpoint.config, head)]
    return _words([(o.label.text, o.id) for o in operands if o.label is not None and o.label.kind == "class"], True)


def _writes(names: Names | None, head: Head) -> tuple[Word, ...]:
    """What a bounded head writes: the labels of its channels' write columns that have a class."""
    channels = [] if names is None else list(names.channels(head.layer, head.head))
    return _words([(c.label.text, c.id) for c in channels if c.label is not None and c.label.kind == "class"], False)


def _words(labelled: list[tuple[str, str]], measured: bool) -> tuple[Word, ...]:
    found: dict[str, list[str]] = {}
    for text, id in labelled:
        found.setdefault(text, []).append(id.partition(".")[2].partition(".")[2])
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Word(text, measured, len(ids), tuple(ids)) for text, ids in ranked)


def _patterns(services: Services, urls: Urls, checkpoint: Checkpoint, head: Head) -> Patterns:
    """One job looks at all example prompts of the checkpoint, as they are read; its answer is kept like a close-up."""
    try:
        rows = [
            services.tokenizers.call(
                "describe", checkpoint.tokenizer_path, list(encode(services, checkpoint, example.prompt)[0])
            )
            for example in examples_of(checkpoint)
        ]
    except LegibleError as error:
        return Patterns((), error.message, "", "")
    rows = [row[-checkpoint.config.context :] for row in rows if row]
    ids = [[int(token["id"]) for token in row] for row in rows]
    named = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    key = f"patterns:{checkpoint.hash}:{head}:{named}"
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {
            "checkpoint": checkpoint.hash, "slug": checkpoint.slug, "dtype": dtype_of(services, checkpoint),
            "head": str(head), "prompts": ids,
        }  # fmt: skip
        job = services.queue.submit("patterns", key, payload)
    if job.result is not None:
        return Patterns(tuple(map(_pattern, rows, job.result["patterns"])), "", "", "")
    if job.active:
        return Patterns((), state_of(services, job), urls.head(checkpoint.slug, head), "")
    reason = str((job.error or {}).get("message", "It was cancelled."))
    return Patterns((), reason, "", urls.job_part(job.id, "retry"))


def _pattern(tokens: list[dict[str, Any]], weights: list[float]) -> tuple[Shaded, ...]:
    shades = attention_levels(weights)
    last = len(tokens) - 1
    return tuple(
        Shaded(str(token["display"]), shade, f"{index}: attention {weight:.1%}", index == last)
        for index, (token, shade, weight) in enumerate(zip(tokens, shades, weights, strict=True))
    )


def _shares(names: Names | None) -> dict[str, float]:
    """The SELECTIVE share of every bounded head, by id."""
    if names is None:
        return {}
    return {
        f"L{layer}.h{index}": float(share)
        for layer, row in enumerate(names.legibility["layers"])
        for index, share in enumerate(row.get("heads") or ())
        if share is not None
    }


def _share(names: Names | None, head: Head) -> float | None:
    return _shares(names).get(str(head))
