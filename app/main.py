"""The web process: pages over store and queue, behind the guard. Never imports torch; workers are other processes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import app.pages as pages
from app import errors
from app.indexing import look_soon
from app.pages import view
from app.pages.snippet import snippet
from app.paths import static_dir
from app.security import Guard
from app.services import open_services
from app.settings import Settings
from app.supervisor import Supervisor
from app.urls import urls_for
from legible_core import __version__
from legible_core.errors import LegibleError


def create_app(settings: Settings) -> FastAPI:
    """The application: database open and migrated, pages mounted; workers start and stop with its lifespan.

    Raises LegibleError when the database cannot be used, or when it would be open to a network without a token.
    """
    if not settings.loopback and settings.token is None:
        raise LegibleError(
            f"Listening on {settings.host} needs an access token.",
            code="no_token",
            hint="Give one with --token or LEGIBLE_TOKEN; `legible serve` makes one by itself.",
        )
    services = open_services(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Supervisor(settings, services.queue):
            looking = look_soon(services.queue)
            yield
            await run_in_threadpool(looking.join)
        services.close()

    app = FastAPI(
        title="Legible",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both load scripts from elsewhere; /openapi.json remains
        redoc_url=None,
        middleware=[Middleware(Guard, settings=settings)],
    )
    app.state.services = services
    app.state.error_page = _error_page
    errors.install(app)
    for setup in _page_modules("setup"):
        setup(app)
    for router in _page_modules("router"):
        app.include_router(router)
    app.mount("/static", Static(directory=static_dir()), name="static")
    return app


def _error_page(request: Request, error: LegibleError) -> str:
    template = view.environment().get_template("error.html")
    below = snippet(request, error=True)
    return template.render(
        urls=urls_for(request), here=view.here(request), shown=view.shown(request), error=error, snippet=below
    )


def _page_modules(name: str) -> list[Any]:
    """The attribute `name` of every module in app/pages that has it, in the order of the file names."""
    found: list[Any] = []
    for module in sorted(info.name for info in pkgutil.iter_modules(pages.__path__)):
        value: Callable[..., Any] | Any = getattr(importlib.import_module(f"app.pages.{module}"), name, None)
        if value is not None:
            found.append(value)
    return found


class Static(StaticFiles):
    """Static files; one whose address carries its content hash may be kept for ever."""

    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Any:
        response = super().file_response(full_path, stat_result, scope, status_code)
        versioned = b"v=" in scope.get("query_string", b"")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if versioned else "no-cache"
        return response
