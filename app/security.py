"""Who may talk to the workbench: the Host and Origin of every request, the token, and what a page may load.

- Host: only names this server answers to, so a foreign name that resolves to loopback (DNS rebinding) gets nothing.
- Origin: a request that changes something must come from this site's own pages; programs without a browser send none.
- Token: asked for when the server listens beyond loopback. `?token=` in the printed address becomes a cookie at once
  and leaves the address; programs send `Authorization: Bearer`.
- Body: at most `MAX_BODY`; what an answer did not read is taken in first, so that whoever sends it all before reading
  (urllib) gets the answer and no reset.
- Headers: scripts, styles and images from this server only, nothing inline, no framing by others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import respond, unforeseen
from app.settings import Settings, is_loopback
from legible_core.errors import LegibleError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY = 4 << 20
TOO_LARGE = f"A request may hold at most {MAX_BODY:,} bytes; send less, or send it in parts."
# How much of a body that nobody wanted is still taken in, and for how long, before it is answered.
DRAINED_BYTES, DRAINED_SECONDS = 64 << 20, 20.0
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware that does all of the above, outside everything else."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.token = settings.token.get_secret_value() if settings.token is not None else None
        self.cookie = f"legible_{settings.port}"
        self.names = {host_name(name) for name in settings.allowed_hosts}
        if not settings.loopback:
            self.names |= {host_name(settings.host), socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no WebSocket is served, so none is opened
        body = Body(receive, Headers(scope=scope))
        sender = Sender(send, body.drain, bodiless=scope["method"] == "HEAD")
        if scope["method"] == "HEAD":  # answered as GET is, without its body: routes need not know
            scope = {**scope, "method": "GET"}
        request = Request(self._under_root(scope), body)
        try:
            response = self._check(request)
            if response is None:
                await self.app(request.scope, body, sender)
                return
        except LegibleError as error:
            response = respond(request, error)
            if error.status == 401:
                response.headers["www-authenticate"] = "Bearer"
        except ClientDisconnect:
            return  # it left while it was sending: there is nobody to answer, and nothing went wrong here
        except Exception as error:
            if sender.started:
                raise
            response = unforeseen(request, error)
        await response(request.scope, receive, sender)

    def _under_root(self, scope: Scope) -> Scope:
        """The scope with its path below the root path, which some proxies strip and others do not."""
        root = self.settings.root_path
        if not root:
            return scope
        path = scope["path"]
        return {**scope, "root_path": root, "path": path if path.startswith(root + "/") else root + path}

    def _check(self, request: Request) -> Response | None:
        """None to let the request pass, a redirect, or LegibleError."""
        headers = request.headers
        host = headers.get("host", "")
        if not self._serves(host):
            raise LegibleError(
                f"This server does not answer to the host {host[:100]!r}.",
                code="bad_host",
                hint="Open it under the address it printed, or start it with --allowed-host NAME.",
                status=421,
            )
        if request.method not in SAFE_METHODS:
            self._check_origin(headers, host)
        try:
            too_large = int(headers.get("content-length", "0")) > MAX_BODY
        except ValueError:
            too_large = True
        if too_large:
            raise LegibleError(TOO_LARGE, code="too_large", status=413)
        return None if self.token is None else self._authenticate(request, self.token)

    def _serves(self, host: str) -> bool:
        name = host_name(host)
        if is_loopback(name) or name in self.names:
            return True
        # Listening on the network, any numeric address may be this machine's, and a number cannot be rebound.
        return not self.settings.loopback and _numeric(name)

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        if origin is None:
            foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        else:
            try:
                there = urlsplit(origin).netloc.lower()
            except ValueError:  # half an IPv6 address
                there = ""
            foreign = not there or (there != host.lower() and host_name(there) not in self.names)
        if foreign:
            raise LegibleError(
                f"This request comes from another site ({(origin or 'unnamed')[:100]}) and was not carried out.",
                code="cross_site",
                hint="Send it from the workbench's own pages.",
                status=403,
            )

    def _authenticate(self, request: Request, token: str) -> RedirectResponse | None:
        """Let the request pass (None), turn an address's token into a cookie (a redirect), or raise (401)."""
        given = request.query_params.get("token")
        if given is not None and same(given, token):
            rest = urlencode([pair for pair in parse_qsl(request.url.query, True) if pair[0] != "token"])
            path = str(request.scope["path"])
            # One leading slash: "//elsewhere" would leave this site.
            redirect = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), status_code=303)
            redirect.set_cookie(
                self.cookie,
                _derived(token),
                max_age=30 * 86400,
                path=self.settings.root_path or "/",
                httponly=True,
                samesite="lax",
            )
            return redirect
        bearer = request.headers.get("authorization", "").partition(" ")[2]
        if same(bearer, token) or same(self._cookie(request), _derived(token)):
            return None
        raise LegibleError(
            "This workbench asks for its access token.",
            code="no_token",
            hint="Open the address with ?token=… that `legible serve` printed when it started.",
            status=401,
        )

    def _cookie(self, request: Request) -> str:
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel is not None else ""


def same(given: str, secret: str) -> bool:
    """Whether two strings are equal, in a time that does not tell how far they agree."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def host_name(host: str) -> str:
    """The name in a Host header or an Origin's netloc, without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _derived(token: str) -> str:
    """What the cookie holds: proof of the token, not the token."""
    return hashlib.sha256(f"legible cookie {token}".encode()).hexdigest()


class Sender:
    """Sends an answer with the headers above, without its body where asked, and knows whether one has begun.

    first: awaited before anything is sent.
    """

    def __init__(self, send: Send, first: Callable[[], Awaitable[None]], *, bodiless: bool = False) -> None:
        self.send = send
        self.first = first
        self.bodiless = bodiless
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            await self.first()
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        elif self.bodiless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self.send(message)


class Body:
    """What a request sends: cut off where it passes the limit although its header promised less."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self.receive = receive
        self.seen = 0
        self.left = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        # Such a client sends nothing until it is asked to, which `receive` would do.
        self.waits = headers.get("expect", "").lower() == "100-continue"

    async def __call__(self) -> Message:
        self.waits = False
        message = await self._next()
        if self.seen > MAX_BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    async def drain(self) -> None:
        """Take in what is left, up to `DRAINED_BYTES` and for `DRAINED_SECONDS`: a server that closes over unread
        bytes resets the connection, and the answer is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAINED_SECONDS):
                while self.left and not self.waits and self.seen <= DRAINED_BYTES:
                    await self._next()

    async def _next(self) -> Message:
        message = await self.receive()
        self.seen += len(message.get("body", b""))
        self.left = message["type"] == "http.request" and bool(message.get("more_body"))
        return message
