"""Keeps the pages of models, units and heads as bytes while nothing that they show has changed.

Their modules need not know: this stands between the guard and the routes. A page is given again without being made
while no job has moved, no reading, note or vote was stored and no file of its checkpoint has changed; whatever is
posted here empties it (and what is kept of readings), and after `MAX_SECONDS` a page is made again in any case. A page
that polls is never kept; cookies are told apart.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Hashable
from typing import Any

from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.pages.kept import TRUST_SECONDS, Kept
from app.services import Services
from app.tables import JobEventRow, NoteRevisionRow, RevisionRow, VoteRow
from legible_core.errors import LegibleError

MAX_SECONDS = 10.0
_PATH = re.compile(r"/models/(?P<slug>[a-z0-9_.-]{1,64})(?:/(?:units|heads)/[A-Za-z0-9.]{1,40})?")
_POLLS = b'hx-trigger="every'


def setup(app: FastAPI) -> None:
    """Innermost, so that no request reaches it which the guard has not let pass."""
    app.user_middleware.append(Middleware(Keeper, state=app.state))


class Keeper:
    def __init__(self, app: ASGIApp, state: Any) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] != "GET":
            await self.app(scope, receive, send if scope["method"] == "HEAD" else self._forgetting(send))
            return
        root = str(scope.get("root_path", "")).rstrip("/")
        found = _PATH.fullmatch(scope["path"].removeprefix(root))
        request = Request(scope)
        if found is None or found["slug"].endswith(".json") or request.headers.get("hx-request") == "true":
            await self.app(scope, receive, send)
            return
        await self._keep(request, found["slug"], receive, send)

    def _forgetting(self, send: Send) -> Send:
        """Empties what is kept before an answer begins: who is told that something changed must not see what was."""

        async def forget(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.state.kept_pages.clear()
                self.state.reading_pages.clear()
            await send(message)

        return forget

    async def _keep(self, request: Request, slug: str, receive: Receive, send: Send) -> None:
        key = (str(request.base_url), request.url.path, request.url.query, request.headers.get("cookie", ""))
        kept: Kept | None = self.state.kept_pages.get(key)
        now = time.monotonic()
        if kept is None or now - kept.seen >= TRUST_SECONDS:
            mark = await run_in_threadpool(_mark, self.state.services, slug)
            if kept is not None and kept.mark == mark and now - kept.made < MAX_SECONDS:
                kept.seen = now
            else:
                kept = None
        if kept is not None:
            await HTMLResponse(kept.body)(request.scope, receive, send)
            return
        answer = _Copy(send)
        await self.app(request.scope, receive, answer)
        body = bytes(answer.body)
        if answer.whole and _POLLS not in body:
            self.state.kept_pages.put(key, Kept(body, mark, now, now), len(body))


class _Copy:
    """Passes an answer on, and keeps a copy of a whole page."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.body = bytearray()
        self.page = self.whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            html = headers.get(b"content-type", b"").startswith(b"text/html")
            # What else a page says in its headers (a new address, a cookie) would be lost.
            self.page = message["status"] == 200 and html and set(headers) <= {b"content-type", b"content-length"}
        elif self.page:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)
        await self.send(message)


def _mark(services: Services, slug: str) -> Hashable:
    """What the pages of a checkpoint are made of: its files, and how far jobs, readings, notes and votes are."""
    try:
        checkpoint = services.catalogue.get(slug)
        files = tuple(sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in os.scandir(checkpoint.path)))
    except (LegibleError, OSError):
        return object()  # like nothing else: never kept
    with services.store.database.read() as connection:
        events = connection.execute(select(func.max(JobEventRow.id))).scalar()
        readings = connection.execute(select(func.max(RevisionRow.id))).scalar()
        notes = connection.execute(select(func.max(NoteRevisionRow.id))).scalar()
        counted = select(func.count(), func.max(VoteRow.voted_at))
        votes = tuple(connection.execute(counted.where(VoteRow.checkpoint_hash == checkpoint.hash)).one())
    return (checkpoint.hash, files, events, readings, notes, votes)
