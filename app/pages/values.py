"""Any unit, operand, channel or head on one's own text: its value on every token, several stacked for comparison.

    GET  /models/{slug}/values?components=&text=                       the form; nothing runs yet
    POST /models/{slug}/values                                         stores the text, answers with its address
    GET  /models/{slug}/values/{digest}?components=&page=              …/{digest}.json
    POST /models/{slug}/values/{digest}/delete

A text is stored as a prompt is. It is looked at in parts of `PART` tokens, one job each, which stream in as they
finish; a part is read in windows of the context (`legible_core.reads.windows`), and the page says how they overlap.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.jobs import Job
from app.pages.asking import dtype_of, encode, find_prompt
from app.pages.forms import form_of
from app.pages.values_view import (
    MAX_COMPONENTS,
    MAX_TEXT_BYTES,
    PART,
    Looked,
    displays_of,
    form_page,
    values_page,
    windowed,
)
from app.pages.view import page, twin
from app.services import Services, services
from app.texts import newest_jobs, put_text
from app.urls import urls_for
from legible_core.errors import LegibleError, NotFound, TooLarge
from legible_core.reads import check_component, measure, unpack_rows
from legible_core.registry import Checkpoint
from legible_core.tokens import check_text
from legible_core.units import Component, parse

router = APIRouter(prefix="/models/{slug}/values", default_response_class=HTMLResponse)

# Below a reading's, so that one in between does not wait for a long text.
PRIORITY = 50


# A text over the limit must reach its error, which says the limit and the size.
values_form = form_of("A text", ("components", "text"), "the fields components and text")


@router.get("")
def ask(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    components: Annotated[str, Query(max_length=400, description="ids divided by commas: L4.u7,L4.p7.A")] = "",
    text: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """The form, filled in with what the address names."""
    checkpoint = services.catalogue.get(slug)
    chosen = parse_components(checkpoint, components) if components.strip() else ()
    return page(request, "values.html", form_page(checkpoint, chosen, text))


@router.post("")
def start(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[dict[str, str], Depends(values_form)],
) -> Response:
    """Store the text; answers with the address under which its values appear."""
    checkpoint = services.catalogue.get(slug)
    components = parse_components(checkpoint, form.get("components", ""))
    text = check_text(form.get("text", ""), "The text", MAX_TEXT_BYTES)
    if not text:
        raise LegibleError("The text is empty; type at least one character.", code="empty_text")
    ids = list(encode(services, checkpoint, text)[0])
    if not ids:
        raise LegibleError("The text has no token in this checkpoint's vocabulary; type another.", code="empty_text")
    database = services.store.database
    digest = put_text(database, checkpoint.hash, ids, text, slug=checkpoint.slug, dtype=dtype_of(services, checkpoint))
    address = urls_for(request).values(checkpoint.slug, digest, components=",".join(map(str, components)))
    return RedirectResponse(address, status_code=303)


@router.get("/{digest}.json")
def values_json(
    slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)],
    components: Annotated[str, Query(max_length=400)] = "",
) -> Response:  # fmt: skip
    """Every value so far (null where a part is not there yet), token by token; 202 until all are there."""
    looked = _look(services, digest, components)
    rows: list[list[float | None]] = [[] for _ in looked.components]
    for (first, last), found in zip(looked.spans, looked.values, strict=True):
        for index, row in enumerate(rows):
            row += [None] * (last - first) if found is None else [round(float(v), 6) for v in found[index]]
    config = looked.checkpoint.config
    displays = displays_of(services, looked, range(len(looked.prompt.ids)))
    data = {
        "digest": digest,
        "slug": looked.checkpoint.slug,
        "checkpoint": looked.checkpoint.hash,
        "context": config.context,
        "windows": windowed(looked),
        "tokens": [{"id": i, "display": d} for i, d in zip(looked.prompt.ids, displays, strict=True)],
        "components": [
            {"id": str(c), "value": measure(config, c), "values": row}
            for c, row in zip(looked.components, rows, strict=True)
        ],
        "done": looked.done,
        "parts": len(looked.spans),
    }
    return twin(data, status=200 if looked.done == len(looked.spans) else 202)


@router.get("/{digest}")
def values(
    slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)],
    components: Annotated[str, Query(max_length=400)] = "",
    part: Annotated[int, Query(ge=0, description="0-based stretch of the text")] = 0,
    view: Annotated[Literal["strip", "table"], Query()] = "strip",
) -> Response:  # fmt: skip
    """The components over one stretch of the text; the other stretches are looked at meanwhile."""
    urls = urls_for(request)
    if not components.strip():
        prompt = find_prompt(services, digest)
        checkpoint = services.catalogue.get(prompt.checkpoint_hash)
        return page(request, "values.html", form_page(checkpoint, (), prompt.text))
    looked = _look(services, digest, components)
    if part >= len(looked.spans):
        raise NotFound(f"There is no part {part} of this text; it has parts 0 to {len(looked.spans) - 1}.")
    return page(request, "values.html", values_page(services, urls, looked, part, view == "table"))


@router.post("/{digest}/delete")
def delete(slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Forget the text with everything that was made of it."""
    services.store.delete(digest)
    return RedirectResponse(
        urls_for(request).values(slug), status_code=303, headers={"clear-site-data": '"cache"'}
    )  # fmt: skip


def parse_components(checkpoint: Checkpoint, text: str) -> tuple[Component, ...]:
    """The components that a list of ids names, each once; LegibleError in one sentence for what is not there."""
    ids = list(dict.fromkeys(part for part in text.replace(",", " ").split() if part))
    if not ids:
        raise LegibleError(
            "Name at least one component, such as L0.u0 (unit), L0.p0.A (operand), L0.h0.c0 (channel) or L0.h0 (head).",
            code="bad_component",
        )
    if len(ids) > MAX_COMPONENTS:
        raise TooLarge(f"{len(ids)} components are named; at most {MAX_COMPONENTS} can be stacked.")
    found = tuple(parse(part) for part in ids)
    for component in found:
        check_component(checkpoint.config, component)
    return found


def _look(services: Services, digest: str, components: str) -> Looked:
    """Everything known of the text so far; the jobs of what is missing are in SQL when this returns."""
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    chosen = parse_components(checkpoint, components)
    count = len(prompt.ids)
    spans = tuple((first, min(first + PART, count)) for first in range(0, count, PART))
    stored = services.store.prompt(digest)
    if stored is None:
        raise NotFound("This prompt is not stored yet; read it first.")
    if stored.edits:
        raise LegibleError(
            "Values over a text are of the unedited checkpoint, and this prompt was read with edits; "
            "read the prompt without them for its values.",
            code="edited",
        )
    listed = ",".join(map(str, chosen))
    keys = [f"values:{digest}:{first}:{listed}" for first, _ in spans]
    known = newest_jobs(services.store.database, keys)
    jobs: list[Job] = []
    values: list[np.ndarray | None] = []
    for key, (first, last) in zip(keys, spans, strict=True):
        job = known.get(key)
        if job is None or (job.state == "done" and job.result is None):
            payload = {
                "digest": digest, "slug": prompt.slug, "components": listed.split(","), "first": first, "last": last
            }  # fmt: skip
            job = services.queue.submit("values", key, payload, priority=PRIORITY, subject=digest)
        result = job.result if job.state == "done" else None
        jobs.append(job)
        values.append(None if result is None else unpack_rows(result["values"], (len(chosen), last - first)))
    return Looked(checkpoint, prompt, chosen, spans, tuple(jobs), tuple(values))
