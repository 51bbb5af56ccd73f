"""Minimal pairs: two sentences token by token, and the units that separate them where they part.

    GET  /models/{slug}/pairs                      the form and example pairs
    GET  /models/{slug}/pairs?good=&bad=           the pair; its job is submitted once, unless another site sent the
                                                   browser here: then the form is filled in; also pairs.json
    POST /models/{slug}/pairs/delete               forgets the sentences and the reading of their fork

At the first token in which the sentences differ there is a reading of one against the other after what they share: its
sum over components is the difference of the two logits, which is also that of their log-probabilities.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.jobs import Job
from app.pages.asking import dtype_of
from app.pages.forms import form_of
from app.pages.formula import Piece
from app.pages.named import names_of
from app.pages.pairs_examples import EXAMPLES, Pair
from app.pages.parts import is_embed
from app.pages.reading_view import contributor_formula
from app.pages.sum_line import SumLine, sum_line
from app.pages.view import clipped, page, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.store import StoredReading
from app.urls import Urls, urls_for
from legible_core.compare import align
from legible_core.errors import LegibleError, NotFound
from legible_core.registry import Checkpoint
from legible_core.tokens import check_text

router = APIRouter(prefix="/models/{slug}/pairs", default_response_class=HTMLResponse)

MAX_SENTENCE = 400
SHOWN = 20
Sentence = Annotated[str, Query(max_length=MAX_SENTENCE)]
PairForm = Annotated[dict[str, str], Depends(form_of("A pair", ("good", "bad"), "the fields good and bad"))]


@dataclass(frozen=True, slots=True)
class PairToken:
    """A place of both sentences; a side is None where it has nothing there. Natural logarithms."""

    good: str | None
    good_log: float | None
    bad: str | None
    bad_log: float | None
    same: bool
    fork: bool

    @property
    def difference(self) -> float | None:
        return None if self.good_log is None or self.bad_log is None else self.good_log - self.bad_log


@dataclass(frozen=True, slots=True)
class Separating:
    """A component with its term in the difference of the two logits; a positive one is for the good sentence."""

    id: str
    glyph: str
    term: float
    formula: tuple[Piece, ...]
    href: str


@dataclass(frozen=True, slots=True)
class Fork:
    """The first token in which the sentences differ, and what separates them there."""

    good: str
    bad: str
    value: float
    log_difference: float
    sum: SumLine
    rows: tuple[Separating, ...]
    href: str
    compare_href: str


@dataclass(frozen=True, slots=True)
class PairsPage:
    title: str
    slug: str
    good: str
    bad: str
    examples: tuple[tuple[Pair, str], ...]
    job: Job | None
    active: bool
    message: str
    reason: str
    poll: str
    tokens: tuple[PairToken, ...]
    good_sum: float
    bad_sum: float
    before: tuple[str, ...]
    fork: Fork | None
    json_href: str
    delete_href: str


@router.get("")
def pairs(
    slug: str, request: Request, services: Annotated[Services, Depends(services)], good: Sentence = "",
    bad: Sentence = "",
) -> Response:  # fmt: skip
    """The form, or what the checkpoint makes of a pair."""
    urls, checkpoint = urls_for(request), services.catalogue.get(slug)
    job = None
    if good.strip() and bad.strip():
        job = _job(services, checkpoint, good, bad, submit=not _from_elsewhere(request))
    return page(request, "pairs.html", _page(services, urls, checkpoint, good, bad, job))


@router.get(".json")
def pairs_json(
    slug: str, request: Request, services: Annotated[Services, Depends(services)], good: Sentence, bad: Sentence
) -> Response:
    """Its JSON twin: 202 until the pair is scored."""
    urls, checkpoint = urls_for(request), services.catalogue.get(slug)
    job = _job(services, checkpoint, good, bad, submit=not _from_elsewhere(request))
    if job is None:
        raise NotFound("This pair was not judged here yet; open its page and press Judge.")
    if job.state != "done":
        return unfinished(services, job)
    shown = _page(services, urls, checkpoint, good, bad, job)
    data = {
        "slug": slug,
        "checkpoint": checkpoint.hash,
        "good": {"text": good, "loglik": shown.good_sum},
        "bad": {"text": bad, "loglik": shown.bad_sum},
        "difference": shown.good_sum - shown.bad_sum,
        "tokens": [
            {"good": t.good, "good_log": t.good_log, "bad": t.bad, "bad_log": t.bad_log, "same": t.same}
            for t in shown.tokens
        ],
        "fork": None if shown.fork is None else {
            "good": shown.fork.good,
            "bad": shown.fork.bad,
            "value": shown.fork.value,
            "sum": shown.fork.sum.sum,
            "residual": shown.fork.sum.residual,
            "href": shown.fork.href,
            "components": [{"id": row.id, "term": row.term} for row in shown.fork.rows],
        },
    }  # fmt: skip
    return twin(data)


@router.post("/delete")
def delete(slug: str, request: Request, services: Annotated[Services, Depends(services)], form: PairForm) -> Response:
    """Forget the sentences, and the reading of what they share with everything that hangs on it."""
    checkpoint = services.catalogue.get(slug)
    subject = _subject(services, checkpoint, form.get("good", ""), form.get("bad", ""))
    forks = {str(((job.result or {}).get("fork") or {}).get("digest", "")) for job in services.queue.about(subject)}
    services.store.delete(subject)
    for digest in forks - {""}:
        with contextlib.suppress(NotFound):
            services.store.delete(digest)
    headers = {"clear-site-data": '"cache"'}
    return RedirectResponse(urls_for(request).pairs(checkpoint.slug), status_code=303, headers=headers)


def _subject(services: Services, checkpoint: Checkpoint, good: str, bad: str) -> str:
    """The name of a pair's work: what a deletion finds."""
    parts = ["pair", checkpoint.hash, dtype_of(services, checkpoint), good, bad]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _from_elsewhere(request: Request) -> bool:
    """Whether another site sent the browser here: it may show what there is, and start nothing.

    An embed starts nothing anyway, wherever it stands.
    """
    return not is_embed(request) and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _job(services: Services, checkpoint: Checkpoint, good: str, bad: str, *, submit: bool) -> Job | None:
    """The newest job of this pair; where there is none, or what it stored is gone, a new one if it may be submitted."""
    for name, text in (("first", good), ("second", bad)):
        check_text(text, f"The {name} sentence")
        if not text.strip():
            raise LegibleError(f"The {name} sentence is empty; give both.", code="empty_text")
    if good == bad:
        raise LegibleError("Both sentences are the same, so nothing separates them; change one.", code="same_text")
    subject = _subject(services, checkpoint, good, bad)
    job = services.queue.find(f"pair:{subject}")
    if job is not None and not (job.state == "done" and _gone(services, job)):
        return job
    if not submit:
        return None
    payload = {
        "checkpoint": checkpoint.hash, "dtype": dtype_of(services, checkpoint), "slug": checkpoint.slug,
        "good": good, "bad": bad,
    }  # fmt: skip
    return services.queue.submit("pair", f"pair:{subject}", payload, subject=subject)


def _gone(services: Services, job: Job) -> bool:
    """Whether the result was forgotten, or the reading of the fork deleted."""
    fork = (job.result or {}).get("fork")
    return job.result is None or (fork is not None and _reading(services, fork) is None)


def _reading(services: Services, fork: dict[str, Any]) -> StoredReading | None:
    return services.store.find(
        fork["digest"], position=fork["position"], target=fork["target"], contrast=fork["contrast"]
    )


def _page(services: Services, urls: Urls, checkpoint: Checkpoint, good: str, bad: str, job: Job | None) -> PairsPage:
    slug = checkpoint.slug
    result: dict[str, Any] | None = None if job is None or job.state != "done" else job.result
    active = job is not None and job.active
    tokens: tuple[PairToken, ...] = ()
    before: tuple[str, ...] = ()
    fork = None
    if result is not None:
        ours, theirs = result["good"], result["bad"]
        ids = [*result["before"], *(t[0] for t in (*ours, *theirs))]
        rows = services.tokenizers.call("describe", checkpoint.tokenizer_path, [int(i) for i in ids])
        shown = {int(row["id"]): str(row["display"]) for row in rows}
        before = tuple(shown[int(i)] for i in result["before"])
        tokens = _aligned(ours, theirs, shown, result["shared"])
        fork = _fork(services, urls, checkpoint, result, shown)
    return PairsPage(
        title=f"“{clipped(good, 40)}” · {slug}" if job is not None else f"Minimal pairs · {slug}",
        slug=slug,
        good=good,
        bad=bad,
        examples=tuple((pair, urls.pairs(slug, good=pair.good, bad=pair.bad)) for pair in EXAMPLES),
        job=job,
        active=active,
        message=_message(services, job) if job is not None and active else "",
        reason=str((job.error or {}).get("message", "It was cancelled.")) if job is not None and not active else "",
        poll=urls.pairs(slug, good=good, bad=bad) if active else "",
        tokens=tokens,
        good_sum=sum(t.good_log or 0.0 for t in tokens),
        bad_sum=sum(t.bad_log or 0.0 for t in tokens),
        before=before,
        fork=fork,
        json_href=urls.pairs(slug, "json", good=good, bad=bad),
        delete_href=urls.pairs(slug, "delete"),
    )


def _message(services: Services, job: Job) -> str:
    if job.state == "running":
        return "Scoring both sentences…"
    if not any(worker.alive for worker in services.queue.workers()):
        return "No worker is alive yet; the pair is scored as soon as one is."
    return f"Place {services.queue.place(job)} in the line."


def _aligned(ours: list[Any], theirs: list[Any], shown: dict[int, str], shared: int) -> tuple[PairToken, ...]:
    """The tokens of both sentences beside each other: equal ones, and what stands in place of each other."""
    made = []
    for run in align([t[0] for t in ours], [t[0] for t in theirs]):
        mine, yours = ours[slice(*run.left)], theirs[slice(*run.right)]
        for i in range(max(len(mine), len(yours))):
            a, b = (mine[i] if i < len(mine) else None), (yours[i] if i < len(yours) else None)
            made.append(
                PairToken(
                    None if a is None else shown[a[0]], None if a is None else a[1],
                    None if b is None else shown[b[0]], None if b is None else b[1],
                    run.same, run.left[0] + i == shared and run.right[0] + i == shared,
                )
            )  # fmt: skip
    return tuple(made)


def _fork(
    services: Services, urls: Urls, checkpoint: Checkpoint, result: dict[str, Any], shown: dict[int, str]
) -> Fork | None:
    place = result["fork"]
    stored = None if place is None else _reading(services, place)
    if stored is None:
        return None
    summary, digest = stored.reading().summary, place["digest"]
    names = names_of(checkpoint)[0]
    where = {"position": place["position"], "target": place["target"], "contrast": place["contrast"]}
    sides = [
        urls.reading(checkpoint.slug, digest, position=place["position"], target=place[name])
        for name in ("target", "contrast")
    ]
    at = result["shared"]
    return Fork(
        good=shown[place["target"]],
        bad=shown[place["contrast"]],
        value=summary.value,
        log_difference=result["good"][at][1] - result["bad"][at][1],
        sum=sum_line(summary),
        rows=tuple(
            Separating(
                c.id, c.glyph, c.value, contributor_formula(c, names),
                urls.reading(checkpoint.slug, digest, **where, component=c.id),
            )
            for c in summary.top[:SHOWN]
        ),
        href=urls.reading(checkpoint.slug, digest, **where),
        compare_href=urls.compare(left=sides[1], right=sides[0]),
    )  # fmt: skip
