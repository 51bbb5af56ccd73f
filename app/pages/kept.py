"""Finished pages kept in memory as bytes: what a page is made of rarely changes, and making it is most of its cost.

    async def layer(request: Request) -> Response:
        return await kept(request, mark, make)

`mark` says what the page is made of (hashes, stamps, ids); a page is made again when it differs. Within `TRUST_SECONDS`
of the last look it is not even asked. `make` gives the page's bytes, or a response that must not be kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from legible_core.errors import LegibleError
from legible_core.memory import ByteCache

KEPT_BYTES = 32 << 20
TRUST_SECONDS = 1.0
# Every page understands these; they are not a page's own.
EVERYWHERE = frozenset({"embed", "token"})

Model = TypeVar("Model", bound=BaseModel)


@dataclass(slots=True)
class Kept:
    """A page, what it was made of, when that was last looked at, and when it was made."""

    body: bytes
    mark: Hashable
    seen: float
    made: float


def setup(app: FastAPI) -> None:
    app.state.kept_pages = ByteCache(KEPT_BYTES)


async def kept(request: Request, mark: Callable[[], Hashable], make: Callable[[], bytes | Response]) -> Response:
    """The page of this address as it was kept, if it is still made of the same; else made now, and kept."""
    pages: ByteCache[tuple[str, ...], Kept] = request.app.state.kept_pages
    key = (str(request.base_url), request.url.path, request.url.query)
    found = pages.get(key)
    if found is not None and time.monotonic() - found.seen < TRUST_SECONDS:
        return HTMLResponse(found.body)

    def work() -> Response:
        now = mark()
        if found is not None and found.mark == now:
            found.seen = time.monotonic()
            return HTMLResponse(found.body)
        made = make()
        if isinstance(made, Response):
            return made
        at = time.monotonic()
        pages.put(key, Kept(made, now, at, at), len(made))
        return HTMLResponse(made)

    return await run_in_threadpool(work)


def asked(model: type[Model], request: Request) -> Model:
    """The query of a request as `model`; a name that it does not know is an error that lists those it knows."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    for name in request.query_params:
        if name not in known | EVERYWHERE:
            raise LegibleError(
                f"This page has no filter {name[:40]!r}; its filters are {', '.join(sorted(known))}.",
                code="unknown_filter", status=422,
            )  # fmt: skip
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        found: list[Any] = [{**e, "loc": ("query", *e["loc"])} for e in error.errors(include_url=False)]
        raise RequestValidationError(found) from None
