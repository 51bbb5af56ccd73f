"""The parts of a page that another page may show: a template marks them, and `?embed=` takes them out.

    {% call part("histogram-A", "Values of L0.p3.A") %}…{% endcall %}                 a figure or a panel of this page
    {% call part("patterns", "Attention", waits=patterns.poll) %}…{% endcall %}       work on it still runs
    {% call part.state(waits=poll) %}…{% endcall %}                                   stands in place of parts to come

On the page a part is its content and, below it, the line that embeds it. In an embed the page is made as always, but on
a queue that begins no work (`app.reading_only`); then what was marked is taken out, and what could be clicked to change
something is left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fastapi import FastAPI, Request
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from jinja2 import Environment

# Elements that act, load or run something; what is inside them goes along.
_ACTING = frozenset({"button", "dialog", "form", "iframe", "object", "script", "select", "textarea"})
_EMPTY = frozenset({"embed", "input", "link", "meta"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Part:
    """One part as an embed shows it. `waits`: work on it still runs."""

    name: str
    title: str
    body: Markup
    waits: bool


class Parts:
    """`part` in the templates. One for each rendering of a page; after it, `found` are its parts in their order."""

    def __init__(self, request: Request, environment: Environment, title: str, also: tuple[str, ...] = ()) -> None:
        self.taking = is_embed(request)
        self.found: list[Part] = []
        self.states: list[Part] = []
        self._macros = environment
        self._title = title
        self._also = also
        self._origin = f"{request.url.scheme}://{request.url.netloc}"
        # The answer to a form has no address under which it could be shown again.
        self.here = _path(request) if request.method in ("GET", "HEAD") else ""

    def __call__(
        self, name: str, title: str, *, waits: object = False, at: str = "", data: str = "",
        caller: Callable[[], Markup],
    ) -> Markup:  # fmt: skip
        """A part; `at` is its page's address where that is not the one that was asked for.

        data: the address of its numbers, without .csv and .json. What is drawn can be saved as SVG and PNG.
        """
        body = caller()
        if self.taking:
            self.found.append(Part(name, title, quiet(body), bool(waits)))
            return body
        address = at or self.here
        if not address:
            return body
        macros: Any = self._macros.get_template("macros.html").module
        frame = f"{self._origin}{with_query(address, embed=name)}"
        line = Markup(macros.iframe_line(frame, f"{title} · {self._title}", title))
        drawn = "<svg" in body or "data-plotly" in body
        if not drawn and not data:
            return body + line
        row = Markup(macros.exports(file_name(address, name) if drawn else "", data))
        return Markup("<div data-part>{}{}{}</div>").format(body, row, line)

    def state(self, *, waits: object = False, caller: Callable[[], Markup]) -> Markup:
        """What stands on the page while its parts are not there."""
        body = caller()
        if self.taking:
            self.states.append(Part("", "", quiet(body), bool(waits)))
        return body

    def chosen(self, asked: str) -> tuple[Part, ...]:
        """The parts that an address names, in its order; `histogram` is histogram-A and histogram-B.

        While the page waits for all its parts, what it says meanwhile. Raises LegibleError (422) that names the parts
        of this page, for a name that none of them has.
        """
        names = listed(asked)
        found: list[Part] = []
        for name in names:
            of_name = [part for part in self.found if part.name == name or part.name.startswith(f"{name}-")]
            if not of_name and (not self.states or self.found):
                break
            found += [part for part in of_name if part not in found]
        else:
            if names:
                return tuple(found or self.states)
        there = ", ".join(dict.fromkeys([*self._also, *(part.name for part in self.found)]))
        if not there:
            raise LegibleError("There is nothing on this page to embed.", code="bad_embed", status=422)
        wrong = name if names else asked
        raise LegibleError(
            f"This page has no part {wrong[:40]!r} to embed; its parts are {there}.", code="bad_embed", status=422
        )


def is_embed(request: Request) -> bool:
    """Whether this asks for parts of a page; such a request begins no work."""
    return "embed" in request.query_params and request.method in ("GET", "HEAD")


def listed(text: str) -> tuple[str, ...]:
    """The names between commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def with_query(address: str, **changes: str) -> str:
    """An address with these values in its query, in place of what it had under their names."""
    parts = urlsplit(address)
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in changes]
    return urlunsplit(parts._replace(query=urlencode([*kept, *changes.items()], safe=",/:"), fragment=""))


def file_name(address: str, name: str) -> str:
    """What a saved picture of a part is called, without its ending: novel-legible-units-L0.u3-decay."""
    steps = [step for step in urlsplit(address).path.split("/") if step not in ("", "models", "readings")]
    return "-".join([*(step[:12] if len(step) == 64 else step for step in steps), name])


def setup(app: FastAPI) -> None:
    """A page that moved, or whose address is spelled out, is embedded from where it is now."""
    app.user_middleware.append(Middleware(_Carried))


class _Carried:
    """Carries `embed` along a redirect."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or b"embed=" not in scope.get("query_string", b""):
            await self.app(scope, receive, send)
            return
        request = Request(scope)

        async def carry(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _REDIRECTS and is_embed(request):
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    headers["location"] = with_query(headers["location"], embed=request.query_params["embed"])
            await send(message)

        await self.app(scope, receive, carry)


def quiet(body: str) -> Markup:
    """HTML without what acts: no form, button or script, and nothing that asks the server again.

    Numbers that a figure's script draws stay (`application/json`).
    """
    reader = _Quiet()
    reader.feed(body)
    reader.close()
    return Markup("".join(reader.out))


class _Quiet(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self.within: list[str] = []  # the acting elements that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ACTING and ("type", "application/json") not in attrs:
            self.within.append(tag)
        if self.within or tag in _EMPTY:
            return
        text = self.get_starttag_text() or ""
        if any(name.startswith(("hx-", "on")) for name, _ in attrs):
            kept = [(name, value) for name, value in attrs if not name.startswith(("hx-", "on"))]
            text = f"<{tag}{''.join(_attribute(*pair) for pair in kept)}>"
        self.out.append(text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self.within and tag not in _ACTING | _EMPTY:
            self.out.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.within:
            while self.within.pop() != tag:
                pass
        elif not self.within and tag not in _EMPTY and (tag not in _ACTING or tag == "script"):
            self.out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._keep(data)

    def handle_entityref(self, name: str) -> None:
        self._keep(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._keep(f"&#{name};")

    def _keep(self, text: str) -> None:
        if not self.within:
            self.out.append(text)


def _attribute(name: str, value: str | None) -> str:
    return f" {name}" if value is None else f' {name}="{escape(value)}"'


def _path(request: Request) -> str:
    """The address that was asked for, without what a part's own address says or must not say."""
    query = [pair for pair in parse_qsl(request.url.query, keep_blank_values=True) if pair[0] not in ("embed", "token")]
    root, path = str(request.scope.get("root_path", "")).rstrip("/"), request.url.path
    path = path if root and path.startswith(root) else root + path
    return path + (f"?{urlencode(query, safe=',/:')}" if query else "")
