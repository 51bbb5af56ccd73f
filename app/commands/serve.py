"""`legible serve`: the workbench in a browser. `legible worker`: one more worker for it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr

from app.options import settings_flags
from app.settings import Settings
from legible_core.errors import Unavailable

if TYPE_CHECKING:
    import uvicorn


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.command("worker")(worker)


@settings_flags()
def serve(
    settings: Settings,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser once the server is up.")] = False,
) -> None:
    """Serve the workbench: set up the database, start the worker, answer on a local port.

    Every flag can also be a LEGIBLE_* variable, as named beside it; a flag wins.
    """
    import uvicorn

    from app.main import create_app

    if not settings.loopback and settings.token is None:
        settings = settings.model_copy(update={"token": SecretStr(secrets.token_urlsafe(24))})
    with _bind(settings) as listener:
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        config = uvicorn.Config(
            create_app(settings),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(config)
        address = printed_address(settings)
        announce = threading.Thread(target=_announce, args=(server, address, open_browser), daemon=True)
        announce.start()
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once everything has ended
            server.run(sockets=[listener])


@settings_flags("data_dir", "database_url", "device", "dtype", "threads", "cache_mebibytes", "lease_seconds",
                "stall_seconds", "max_attempts", "poll_seconds")  # fmt: skip
def worker(settings: Settings) -> None:
    """Run one worker until it is told to stop: beside a server started with --workers 0, or on another machine."""
    from app.worker import main

    os.environ.update(settings.environment())
    main([])


def printed_address(settings: Settings) -> str:
    """What to open: with the token, where one is needed."""
    host = settings.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    elif ":" in host:
        host = f"[{host}]"
    token = "" if settings.token is None else f"?token={settings.token.get_secret_value()}"
    return f"http://{host}:{settings.port}{settings.root_path}/{token}"


def _bind(settings: Settings) -> socket.socket:
    """The listening socket, taken before anything else starts; Unavailable when the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise Unavailable(
            f"The server cannot listen on {settings.host} port {settings.port}: {error.strerror or error}.",
            code="no_port",
            hint="Choose another with --port, or stop what listens there.",
        ) from None
    return listener


def _announce(server: uvicorn.Server, address: str, open_browser: bool) -> None:
    """Print the address once it answers."""
    pause = threading.Event()
    while not server.started:
        if server.should_exit:
            return
        pause.wait(0.05)
    print(f"Legible is at {address}", flush=True)
    print("Stop it with Ctrl-C.", flush=True)
    display = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if open_browser and display:
        webbrowser.open(address)
