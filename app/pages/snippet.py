"""The lines that get a page's facts into a script, on every page: its address, the client's lines and curl's.

Nothing of a prompt or a query can leave its quotes: the address is ASCII with everything else percent-encoded, a shell
line is quoted by shlex and a Python line by `ascii`. A server's token is named as a variable and never shown.
"""

from __future__ import annotations

import importlib
import pkgutil
import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_from_bytes

from fastapi import FastAPI, Request
from starlette.routing import Match

import app.pages as pages
from app.urls import urls_for
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text

LONGEST = 4000
_KEPT = "/:@!$&'()*+,;=-._~"  # what a path may hold as it is; a query also % and ?


@dataclass(frozen=True, slots=True)
class Snippet:
    """`python` and `curl` are there where the page has a JSON twin; `ask` and `command` for the reading of a prompt.

    Without an address the page is the answer to a form. Of an error `curl` asks for the same error as JSON.
    """

    address: str | None
    python: str | None = None
    curl: str | None = None
    ask: str | None = None
    command: str | None = None


def setup(app: FastAPI) -> None:
    """Find the routes of JSON twins once, among all that the page modules have."""
    names = [f"app.pages.{module.name}" for module in pkgutil.iter_modules(pages.__path__)]
    routers = [getattr(importlib.import_module(name), "router", None) for name in names]
    routes = [route for router in routers if router is not None for route in router.routes]
    app.state.twins = [route for route in routes if getattr(route, "path", "").endswith(".json")]
    app.state.has_twin = {}


def snippet(request: Request, context: Any = None, *, error: bool = False) -> Snippet | None:
    """What stands below the page of this request, or of an `error` in its place.

    None for an address longer than LONGEST, which is refused anyway and would stand here six times.
    """
    if request.method not in ("GET", "HEAD"):
        return Snippet(None)
    urls = urls_for(request)
    origin = f"{request.url.scheme}://{request.url.netloc}"
    path = quote(str(request.scope["path"]), safe=_KEPT)
    query = quote_from_bytes(request.scope.get("query_string", b""), safe=_KEPT + "%?")
    here = path + (f"?{query}" if query else "")
    if len(here) > LONGEST:
        return None
    # A page whose form is not filled in yet says so by an empty address of its twin.
    twin = _has_twin(request) and getattr(context, "json_href", None) != ""
    if not twin and not error:
        return Snippet(origin + here)
    client = f"from legible_client import Client\n\nclient = Client({origin + urls.root_path!a})\n"
    services = getattr(request.app.state, "services", None)
    token = services is not None and services.settings.token is not None
    bearer = '-H "Authorization: Bearer $LEGIBLE_TOKEN" ' if token else ""
    if error:
        asked = f'curl -gsS -H "Accept: application/json" {bearer}{shlex.quote(origin + here)}'
        python = f"{client}page = client.page({here.removeprefix(urls.root_path) or '/'!a})  # raises this error"
        return Snippet(origin + here, python if twin else None, asked)
    ask = _ask(client, context)
    return Snippet(
        address=origin + here,
        python=f"{client}page = client.page({here.removeprefix(urls.root_path) or '/'!a})",
        curl=f"curl -gsS {bearer}{shlex.quote(origin + urls.json(here))}",
        ask=ask,
        command=None if ask is None else getattr(context, "command", None),
    )


def _ask(client: str, context: Any) -> str | None:
    """For a reading's page: the same prompt read again, or on another server."""
    summary, text, slug = (getattr(context, name, None) for name in ("summary", "text", "slug"))
    if summary is None or not isinstance(text, str) or not text or not hasattr(summary, "target"):
        return None
    words: dict[str, Any] = {"position": summary.position, "target": f"id:{summary.target.id}"}
    if summary.contrast is not None:
        words["contrast"] = f"id:{summary.contrast.id}"
    elif summary.relative_to != "nothing":
        words["relative_to"] = summary.relative_to
    if summary.edits:
        words["edits"] = [edit_text(Edit.from_json(edit)) for edit in summary.edits]
    given = "".join(f", {name}={value!a}" for name, value in words.items())
    return f"{client}reading = client.read({slug!a}, {text!a}{given})"


def _has_twin(request: Request) -> bool:
    """Whether the .json address leads to a route of that name; the same for every page of one route."""
    known: dict[Any, bool] = request.app.state.has_twin
    endpoint = request.scope.get("endpoint")
    if endpoint is None:
        return False  # an address that no page has
    if endpoint not in known:
        scope = {**request.scope, "path": urls_for(request).json(str(request.scope["path"]))}
        known[endpoint] = any(route.matches(scope)[0] is Match.FULL for route in request.app.state.twins)
    return known[endpoint]
