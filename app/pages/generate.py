"""A checkpoint goes on with a text, token by token, each a link to its reading with the unit that led it.

    GET  /models/{slug}/generate?prompt=                                    the form; nothing runs yet
    POST /models/{slug}/generate                                            stores the text, answers with the address
    GET  /models/{slug}/generate/{digest}?tokens=&temperature=&seed=        …/{digest}.json
    POST /models/{slug}/generate/{digest}/delete

The address holds all that decides the text, so it opens again for as long as the prompt is kept: a job that was
forgotten meanwhile is submitted once more and writes the same. The page polls while tokens come in.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.jobs import Job
from app.pages.asking import Prompt, dtype_of, encode, find_prompt
from app.pages.forms import form_of
from app.pages.formula import Piece
from app.pages.named import component_of, names_of, pieces_of
from app.pages.view import chance, clipped, page, twin
from app.pages.waiting import job_facts, unfinished
from app.services import Services, services
from app.texts import put_text
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.registry import Checkpoint
from legible_core.sampling import MAX_SEED, MAX_TEMPERATURE, MAX_TOKENS, Sampling
from legible_core.tokens import check_text
from legible_core.units import GLYPHS, Unit, parse

router = APIRouter(prefix="/models/{slug}/generate", default_response_class=HTMLResponse)

# Below a reading's, so that one in between does not wait for a long text.
PRIORITY = 50
LIMITS = (
    f"1 to {MAX_TOKENS} tokens, as far as the context has room; temperature 0 takes the most probable token each time, "
    f"up to {MAX_TEMPERATURE:g} draws from softmax(logits / temperature) with nothing cut off. "
    "It ends early at an end of text."
)


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token that was written; what led it is there once the text is complete."""

    position: int
    display: str
    href: str
    chance: str
    rank: int
    unit: str | None
    glyph: str
    unit_href: str
    formula: tuple[Piece, ...]
    term: float | None


@dataclass(frozen=True, slots=True)
class GeneratePage:
    title: str
    slug: str
    digest: str
    prompt: str
    tokens: int
    temperature: str
    seed: int
    limits: str
    said: str
    before: tuple[str, ...]
    written: tuple[TokenView, ...]
    text: str
    named: bool
    job: Job | None
    active: bool
    message: str
    reason: str
    poll: str
    json_href: str
    delete_href: str


class _Asked:
    """The settings in the query of an address."""

    def __init__(
        self,
        tokens: Annotated[int, Query(ge=1, le=MAX_TOKENS)] = 32,
        temperature: Annotated[float, Query(ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False)] = 0.0,
        seed: Annotated[int, Query(ge=0, le=MAX_SEED)] = 0,
    ) -> None:
        self.sampling = Sampling(tokens, temperature, seed)


# A text over the limit must reach its error, which says the limit and the size.
generate_form = form_of("A text to go on with", ("prompt", "tokens", "temperature", "seed"))


@router.get("")
def ask(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    prompt: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """The form, filled in with what the address names."""
    checkpoint = services.catalogue.get(slug)
    return page(request, "generate.html", _form(checkpoint, prompt))


@router.post("")
def start(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[dict[str, str], Depends(generate_form)],
) -> Response:
    """Store the text and submit the job; answers with the address under which the continuation appears."""
    checkpoint = services.catalogue.get(slug)
    text = check_text(form.get("prompt", ""))
    sampling = Sampling(
        int(_number(form, "tokens", "32")), _number(form, "temperature", "0"), int(_number(form, "seed", "0"))
    )
    ids = list(encode(services, checkpoint, text)[0])
    sampling.fit(len(ids), checkpoint.config.context)
    digest = put_text(
        services.store.database, checkpoint.hash, ids, text, slug=checkpoint.slug, dtype=dtype_of(services, checkpoint)
    )
    _job(services, find_prompt(services, digest), sampling)
    address = urls_for(request).generate(checkpoint.slug, digest, **_query(sampling))
    return RedirectResponse(address, status_code=303)


@router.get("/{digest}.json")
def generated_json(
    slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)],
    asked: Annotated[_Asked, Depends()],
) -> Response:  # fmt: skip
    """The tokens so far; 202 until the text is complete."""
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    sampling = asked.sampling.fit(len(prompt.ids), checkpoint.config.context)
    job = _job(services, prompt, asked.sampling)
    result = job.result or {}
    written = _written(services, urls_for(request), checkpoint, prompt, job)
    data = {
        "digest": digest,
        "slug": prompt.slug,
        "checkpoint": prompt.checkpoint_hash,
        "prompt": prompt.text,
        "settings": sampling,
        "complete": job.state == "done",
        "stopped": result.get("stopped", False),
        "reading": result.get("digest"),
        "tokens": [
            {**row, "display": token.display, "position": token.position, "href": token.href or None}
            for row, token in zip(result.get("tokens", ()), written, strict=True)
        ],
        "job": job_facts(services, job),
    }
    return twin(data) if job.state == "done" else unfinished(services, job, data)


@router.get("/{digest}")
def generated(
    slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)],
    asked: Annotated[_Asked, Depends()],
) -> Response:  # fmt: skip
    """The text with what was written after it so far."""
    urls = urls_for(request)
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    sampling = asked.sampling.fit(len(prompt.ids), checkpoint.config.context)
    job = _job(services, prompt, asked.sampling)
    query = _query(asked.sampling)
    rows = services.tokenizers.call("describe", checkpoint.tokenizer_path, list(prompt.ids))
    written = _written(services, urls, checkpoint, prompt, job)
    ids = [int(row["id"]) for row in (job.result or {}).get("tokens", ())]
    text = prompt.text + services.tokenizers.call("decode", checkpoint.tokenizer_path, ids) if ids else prompt.text
    active = job.active
    context = GeneratePage(
        title=f"“{clipped(prompt.text, 40)}” goes on · {checkpoint.slug}",
        slug=checkpoint.slug,
        digest=digest,
        prompt=prompt.text,
        tokens=asked.sampling.tokens,
        temperature=f"{asked.sampling.temperature:g}",
        seed=asked.sampling.seed,
        limits=LIMITS,
        said=_settings(sampling, asked.sampling),
        before=tuple(str(row["display"]) for row in rows),
        written=written,
        text=text,
        named=bool(checkpoint.config.feed_forward.n_named),
        job=job,
        active=active,
        message=_progress(services, job, len(written), sampling),
        reason=str((job.error or {}).get("message", "It was cancelled.")) if not active else "",
        poll=urls.generate(slug, digest, **query) if active else "",
        json_href=urls.json(urls.generate(slug, digest, **query)),
        delete_href=urls.generate(slug, digest, "delete"),
    )
    return page(request, "generate.html", context)


@router.post("/{digest}/delete")
def delete(slug: str, digest: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Forget the text, what was written after it, and every reading of either."""
    whole = {str((job.result or {}).get("digest", "")) for job in services.queue.about(digest, "generate")}
    services.store.delete(digest)
    for other in whole - {""}:
        with contextlib.suppress(NotFound):
            services.store.delete(other)
    address = urls_for(request).generate(slug)
    return RedirectResponse(address, status_code=303, headers={"clear-site-data": '"cache"'})


def _job(services: Services, prompt: Prompt, sampling: Sampling) -> Job:
    """The newest job of this continuation, submitted where there is none or its result is gone."""
    key = f"generate:{prompt.digest}:{sampling.tokens}:{sampling.temperature!r}:{sampling.seed}"
    job = services.queue.find(key)
    if job is not None and not (job.state == "done" and job.result is None):
        return job
    payload = {
        "digest": prompt.digest, "slug": prompt.slug, "text": prompt.text, "checkpoint": prompt.checkpoint_hash,
        "dtype": prompt.dtype, **_query(sampling),
        "temperature": sampling.temperature, "seed": sampling.seed,
    }  # fmt: skip
    return services.queue.submit("generate", key, payload, priority=PRIORITY, subject=prompt.digest)


def _query(sampling: Sampling) -> dict[str, Any]:
    """The settings as an address names them; greedy text has no seed."""
    if sampling.greedy:
        return {"tokens": sampling.tokens}
    return {"tokens": sampling.tokens, "temperature": repr(sampling.temperature), "seed": sampling.seed}


def _written(services: Services, urls: Urls, checkpoint: Checkpoint, prompt: Prompt, job: Job) -> tuple[TokenView, ...]:
    result: dict[str, Any] = job.result or {}
    rows: list[dict[str, Any]] = result.get("tokens", [])
    shown = services.tokenizers.call("describe", checkpoint.tokenizer_path, [int(row["id"]) for row in rows])
    names = names_of(checkpoint)[0]
    layout = checkpoint.config.feed_forward
    made = []
    for place, (row, token) in enumerate(zip(rows, shown, strict=True)):
        position = len(prompt.ids) + place
        unit, glyph, formula, unit_href = row.get("unit"), "", tuple[Piece, ...](), ""
        if unit is not None:
            part = parse(unit)
            assert isinstance(part, Unit)
            glyph = GLYPHS[layout.kind(part.unit)]
            name = component_of(names, part)
            formula = () if names is None or name is None else pieces_of(names, name)
            unit_href = urls.unit(checkpoint.slug, unit)
        href = ""
        if "digest" in result:
            href = urls.reading(
                checkpoint.slug, result["digest"], position=position - 1, target=row["id"], component=unit
            )
        made.append(
            TokenView(
                position, str(token["display"]), href, chance(float(row["probability"])), int(row["rank"]),
                unit, glyph, unit_href, formula, row.get("term"),
            )
        )  # fmt: skip
    return tuple(made)


def _progress(services: Services, job: Job, written: int, sampling: Sampling) -> str:
    """One sentence on where the job is; nothing once it ended."""
    if job.state == "waiting":
        if not any(worker.alive for worker in services.queue.workers()):
            return "No worker is alive yet; the text goes on as soon as one is."
        return f"Place {services.queue.place(job)} in the line."
    if job.state == "running" and job.stage == "load":
        return "Loading the checkpoint…"
    if job.state == "running":
        return f"{written} of at most {sampling.tokens} tokens…"
    return ""


def _settings(fitted: Sampling, asked: Sampling) -> str:
    said = "Greedy" if fitted.greedy else f"Temperature {fitted.temperature:g}, seed {fitted.seed}"
    said += f", at most {fitted.tokens} tokens"
    return said + (f" (the context has no room for {asked.tokens})." if fitted.tokens < asked.tokens else ".")


def _number(form: dict[str, str], name: str, default: str) -> float:
    """A typed number; which range it must be in is the settings' own matter."""
    typed = form.get(name, "").strip() or default
    try:
        value = float(typed) if name == "temperature" else int(typed)
    except (ValueError, OverflowError):
        raise LegibleError(
            f"The {name} {typed[:20]!r} is no number; leave it as {default}, or give another.", code=f"bad_{name}"
        ) from None
    return value


def _form(checkpoint: Checkpoint, prompt: str) -> GeneratePage:
    return GeneratePage(
        title=f"Go on with a text · {checkpoint.slug}", slug=checkpoint.slug, digest="", prompt=prompt, tokens=32,
        temperature="0", seed=0, limits=LIMITS, said="", before=(), written=(), text="", named=True, job=None,
        active=False, message="", reason="", poll="", json_href="", delete_href="",
    )  # fmt: skip
