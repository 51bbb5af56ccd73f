"""Texts under a monitor: sent whole, sent piece by piece, or written by the checkpoint; hits as they come.

    POST /monitors/{id}/streams                    form: text; generate (tokens), temperature, seed; open=1 for pieces
    GET  /monitors/{id}/streams/{n}[.json]         counts, rates and flagged spans so far
    POST /monitors/{id}/streams/{n}/text?last=     more of an open stream: the bytes themselves, at most 1 MiB
    GET  /monitors/{id}/streams/{n}/hits?after=    a JSON line for each kept hit as it is found, then the summary
    POST /monitors/{id}/streams/{n}/close, POST .../delete

What was accepted is in SQL before the answer says so; a worker reads it. Nothing here runs a model.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool

from app import watching
from app.jobs import Job
from app.monitor_figures import Bucket
from app.monitors import StoredHit, StoredMonitor, Stream
from app.pages.forms import content_type, form_of, one_of
from app.pages.monitor_view import RULE, Span, checkpoint_of, date, job_of, rates_of, spans_of, state_of
from app.pages.view import page, plain, twin
from app.services import Services, services
from app.tables import MAX_INTEGER
from app.urls import urls_for
from legible_core.errors import LegibleError
from legible_core.interventions_text import number
from legible_core.monitor import Monitor
from legible_core.registry import Checkpoint
from legible_core.sampling import Sampling
from legible_core.text_stream import left_out
from legible_core.tokens import check_text

router = APIRouter(prefix="/monitors/{id}/streams", default_response_class=HTMLResponse)

RAW = ("application/octet-stream", "text/plain")
FOLLOWED = 500
LONGEST_WAIT = 600.0
WHOLE = re.compile("[+-]?[0-9]{1,18}")
PAUSES = (0.05, 1.0)  # seconds between two looks: doubled while nothing comes
Given = Annotated[Services, Depends(services)]


@dataclass(frozen=True, slots=True)
class StreamPage:
    """A stream; `state` is where it is, `reason` why it ended early or its job failed, `written` what was generated."""

    hidden = ("figure", "poll", "job")

    title: str
    id: int
    monitor: int
    name: str
    slug: str
    kind: str
    state: str
    date: str
    received: int
    tokens: int
    hits: int
    kept: int
    rate: float | None
    complete: bool
    open: bool
    rule: str
    reason: str
    unfinished: str
    written: str
    edited: tuple[int, ...]
    lost_at_window: dict[str, float]
    buckets: tuple[Bucket, ...]
    figure: Markup
    spans: tuple[Span, ...]
    job: Job | None
    poll: str


stream_form = form_of("A text to watch", ("text", "generate", "temperature", "seed", "open"), "the field text")


async def raw_body(request: Request) -> bytes:
    """The bytes of a piece, as they are."""
    kind = content_type(request) or RAW[0]
    if kind not in RAW:
        raise LegibleError(
            f"A piece is sent as its bytes, not as {kind[:60]}.", code="bad_content_type",
            hint=f"Send the UTF-8 bytes with the content type {RAW[0]}.", status=415,
        )  # fmt: skip
    return await request.body()


@router.post("")
def begin(
    id: int, request: Request, services: Given, form: Annotated[dict[str, str], Depends(stream_form)]
) -> Response:
    """Store a text, or an open stream, and submit its job; answers with the stream's address."""
    stored = services.monitors.get(id)
    checkpoint = checkpoint_of(services, stored)
    stored.monitor.check(checkpoint.config)  # one that an older version stored may be of an ordinary model
    dtype = services.settings.dtype
    sent = form.get("text", "")
    text = check_text(sent, "The text")
    whole = one_of("open", form.get("open", ""), {"": True, "1": False})
    if form.get("generate") and not whole:
        raise LegibleError(
            "A stream is open for more text or the checkpoint goes on with it, not both; leave out open or generate.",
            code="bad_field", status=422,
        )  # fmt: skip
    if form.get("generate"):
        sampling = Sampling(int(_number(form, "generate")), _number(form, "temperature"), int(_number(form, "seed")))
        ids = [int(i) for i in services.tokenizers.call("encode", checkpoint.tokenizer_path, text)]
        sampling.fit(len(ids), checkpoint.config.context)
        settings = {"ids": ids, "tokens": sampling.tokens, "temperature": sampling.temperature, "seed": sampling.seed}
        settings |= {"left": left_out(sent)}  # so that offsets are those of the text as it was sent
        stream = services.monitors.open_stream(stored, dtype=dtype, kind="generate", settings=settings, closed=True)
    else:
        if whole and not text:
            raise LegibleError("The text is empty; type at least one character.", code="empty_prompt")
        stream = services.monitors.open_stream(stored, dtype=dtype, text=sent.encode(), closed=whole)
    if stream.pieces or stream.kind == "generate":
        _submit(services, stored, stream)
    return RedirectResponse(urls_for(request).monitors(id, "streams", stream.id), status_code=303)


@router.post("/{n}/text")
def more(
    id: int, n: int, services: Given, data: Annotated[bytes, Depends(raw_body)],
    last: Annotated[bool, Query()] = False,
) -> Response:  # fmt: skip
    """Store a piece of an open stream, cut anywhere; 202 once it is stored."""
    stored = services.monitors.get(id)
    services.monitors.stream(n, id)
    stream = services.monitors.add_piece(n, data, last=last)
    _submit(services, stored, stream)
    return twin({"received": stream.received, "tokens": stream.tokens, "hits": stream.hits}, status=202)


@router.post("/{n}/close")
def close(id: int, n: int, request: Request, services: Given) -> Response:
    """No more text will come: what is held back is read, and the stream ends."""
    stored = services.monitors.get(id)
    services.monitors.stream(n, id)
    _submit(services, stored, services.monitors.add_piece(n, b"", last=True))
    return RedirectResponse(urls_for(request).monitors(id, "streams", n), status_code=303)


@router.post("/{n}/delete")
def forget(id: int, n: int, request: Request, services: Given) -> Response:
    """Delete a stream with its text and hits."""
    services.monitors.stream(n, id)
    services.monitors.delete_stream(n)
    return RedirectResponse(urls_for(request).monitors(id), status_code=303)


@router.get("/{n}/hits")
async def follow(
    id: int, n: int, request: Request, services: Given,
    after: Annotated[int, Query(ge=-1, le=MAX_INTEGER)] = -1,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 60.0,
) -> Response:  # fmt: skip
    """NDJSON: a `hit` line for each kept hit after a token, `progress` between, then `summary`, `again` or `error`.

    `again` is the address to go on with, once `wait` seconds are over and the stream has not ended.
    """
    address = urls_for(request).monitors(id, "streams", n, "hits")
    checkpoint = await run_in_threadpool(_checkpoint, services, id, n)
    lines = _lines(services, checkpoint, address, n, after, wait)
    return StreamingResponse(lines, media_type="application/x-ndjson", headers={"cache-control": "no-store"})


@router.get("/{n}.json")
def stream_json(id: int, n: int, request: Request, services: Given) -> Response:
    """The stream's facts; 202 until it has ended."""
    found = _page(services, request, id, n)
    job = found.job
    facts = None if job is None else {"id": job.id, "state": job.state, "stage": job.stage, "error": job.error}
    # An open stream waits for text and not for a job, so its facts are whole as they are.
    return twin({**plain(found), "job": facts}, status=202 if job is not None and job.active else 200)


@router.get("/{n}")
def stream_page(id: int, n: int, request: Request, services: Given) -> Response:
    """The stream's page."""
    return page(request, "monitor_stream.html", _page(services, request, id, n))


async def _lines(
    services: Services, checkpoint: Checkpoint, address: str, n: int, at: int, wait: float
) -> AsyncIterator[str]:
    until, pause, told = time.monotonic() + wait, PAUSES[0], -1

    def look(at: int) -> tuple[Stream, list[dict[str, Any]], Job | None]:
        # The stream first: once it has ended, all its hits are there to be read after it.
        stream = services.monitors.stream(n)
        hits = services.monitors.hits(n, after=at, limit=FOLLOWED)
        return stream, _told(services, checkpoint, hits), job_of(services, stream)

    while True:
        try:
            stream, hits, job = await run_in_threadpool(look, at)
        except LegibleError as error:  # deleted meanwhile
            yield _line(error.body())
            return
        for hit in hits:
            yield _line({"hit": hit})
            at = hit["token"]
        if len(hits) == FOLLOWED:
            continue
        counts = {"tokens": stream.tokens, "hits": stream.hits, "kept": stream.kept}
        if stream.ended:
            yield _line({"summary": {**counts, **(stream.summary or {})}})
            return
        if job is not None and job.state in ("failed", "cancelled"):
            yield _line({"error": job.error or {"code": job.state, "message": f"The job was {job.state}."}})
            return
        if stream.tokens != told:
            told, pause = stream.tokens, PAUSES[0]
            yield _line({"progress": counts})
        if time.monotonic() > until:
            yield _line({"again": f"{address}?after={at}"})
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSES[1])


def _checkpoint(services: Services, id: int, n: int) -> Checkpoint:
    """The checkpoint of a monitor's stream; NotFound where either is not there."""
    services.monitors.stream(n, id)
    return checkpoint_of(services, services.monitors.get(id))


def _told(services: Services, checkpoint: Checkpoint, hits: list[StoredHit]) -> list[dict[str, Any]]:
    """Hits as JSON, with their text as `legible watch` gives it: U+FFFD where bytes are no whole character."""
    wanted = [ids for hit in hits for ids in ((hit.id,), hit.context)]
    texts = iter(services.tokenizers.call("joined", checkpoint.tokenizer_path, wanted) if wanted else ())
    return [
        {
            "token": hit.token, "offset": hit.offset, "id": hit.id, "text": next(texts), "values": hit.values,
            "context": next(texts),
        }
        for hit in hits
    ]  # fmt: skip


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _submit(services: Services, stored: StoredMonitor, stream: Stream) -> Job:
    payload = {"stream": stream.id, "monitor": stored.id, "name": stored.monitor.name, "slug": stored.slug}
    return services.queue.submit(watching.KIND, watching.key(stream), payload, priority=watching.PRIORITY)


def _page(services: Services, request: Request, id: int, n: int) -> StreamPage:
    urls, monitors = urls_for(request), services.monitors
    stored, stream = monitors.get(id), monitors.stream(n, id)
    checkpoint = checkpoint_of(services, stored)
    monitor = Monitor.from_json(stream.definition)
    job = job_of(services, stream)
    summary = stream.summary or {}
    buckets, figure = rates_of(monitors.blocks([n]))
    written = summary.get("written", (stream.state or {}).get("done", []))
    text = services.tokenizers.call("decode", checkpoint.tokenizer_path, written) if written else ""
    failed = (job.error or {}) if job is not None and job.state in ("failed", "cancelled") else {}
    edited = summary.get("edited", (stream.state or {}).get("edited", []))
    return StreamPage(
        title=f"Stream {n} · {monitor.name}",
        id=n,
        monitor=id,
        name=monitor.name,
        slug=stored.slug,
        kind=stream.kind,
        state=state_of(stream, job),
        date=date(stream.updated_at),
        received=stream.received,
        tokens=stream.tokens,
        hits=stream.hits,
        kept=stream.kept,
        rate=stream.hits / stream.tokens if stream.tokens else None,
        complete=stream.ended,
        open=not stream.closed and not stream.ended,
        rule=RULE,
        reason=str((summary.get("error") or failed).get("message", "")),
        unfinished=str(summary.get("unfinished") or ""),
        written=text,
        edited=tuple(int(place) for place in edited),
        lost_at_window=dict(summary.get("lost_at_window", {})),
        buckets=buckets,
        figure=figure,
        spans=tuple(
            spans_of(services, urls, checkpoint, monitor, [(stream, hit) for hit in monitors.hits(n, limit=FOLLOWED)])
        ),
        job=job,
        poll=urls.monitors(id, "streams", n) if job is not None and job.active else "",
    )


def _number(form: dict[str, str], name: str) -> float:
    typed = form.get(name, "").strip() or "0"
    try:
        if name == "temperature":
            return number(typed)
        if not WHOLE.fullmatch(typed):
            raise ValueError
        return int(typed)
    except ValueError:
        raise LegibleError(f"The field {name} is {typed[:20]!r}, which is no number.", code=f"bad_{name}") from None
