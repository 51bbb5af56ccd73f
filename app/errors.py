"""One error body everywhere: {"error": {"code", "message", "hint"}} as JSON, as a page, and in the terminal."""

from __future__ import annotations

import html
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from starlette.types import Scope

log = logging.getLogger("legible")


def install(app: FastAPI) -> None:
    """Answer every foreseen failure of `app` with the shared body; the guard answers the others (`unforeseen`)."""

    @app.exception_handler(LegibleError)
    async def legible(request: Request, error: Exception) -> Response:
        assert isinstance(error, LegibleError)
        return respond(request, error)

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, _from_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = respond(request, _from_http(request, error))
        response.headers.update(error.headers or {})
        return response


def unforeseen(request: Request, error: Exception) -> Response:
    """The answer to a mistake of ours: the log has its trace, the page only says so."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    message = "Something inside Legible failed, and the reason is in its log."
    hint = "If it happens again, report it with the log."
    return respond(request, LegibleError(message, code="internal", hint=hint, status=500))


def respond(request: Request, error: LegibleError) -> Response:
    """The error as JSON or as a page, whichever the request asks for."""
    if wants_json(request.scope):
        return JSONResponse(error.body(), status_code=error.status)
    # A page that polls, or opens a part beside its figure, swaps no refusal in: it loads itself again and so shows it.
    # Not for 5xx, which pass: a page that waits goes on waiting.
    gone = request.headers.get("hx-request") == "true" and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return HTMLResponse(_page(request, error), error.status, headers={"hx-refresh": "true"} if gone else None)


def wants_json(scope: Scope) -> bool:
    """A .json address, or an Accept header that names JSON and no HTML."""
    if scope["path"].endswith(".json"):
        return True
    accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
    return "json" in accept and "text/html" not in accept


def _from_validation(error: RequestValidationError) -> LegibleError:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("query", "body", "path", "header")]
    name = ".".join(where) or "request"
    reason = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return LegibleError(f"The value of {name} is not usable: {reason[:1].lower()}{reason[1:]}.", status=422)


def _from_http(request: Request, error: HTTPException) -> LegibleError:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return LegibleError(
            f"There is no page at {request.url.path}.", code="not_found", hint="Start from the home page.", status=404
        )
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.url.path} does not take {request.method}."
        return LegibleError(message, code="method_not_allowed", status=405)
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # its phrase is not the same in every Python
        return LegibleError(str(error.detail), code="too_large", status=413)
    phrase = HTTPStatus(error.status_code).phrase
    return LegibleError(str(error.detail or phrase), code=phrase.lower().replace(" ", "_"), status=error.status_code)


def _page(request: Request, error: LegibleError) -> str:
    """The pages' own error page (`app.state.error_page`); where there is none or it fails, one that needs nothing."""
    made = getattr(request.app.state, "error_page", None)
    if made is not None:
        try:
            return str(made(request, error))
        except Exception:
            log.exception("the error page failed")
    hint = f"<p>{html.escape(error.hint)}</p>" if error.hint else ""
    title = html.escape(HTTPStatus(error.status).phrase)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title} · Legible</title>'
        f"<h1>{title}</h1><p>{html.escape(error.message)}</p>{hint}"
    )
