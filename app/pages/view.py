"""From a typed context to HTML or its JSON twin; the one place that knows Jinja.

return page(request, "unit.html", UnitPage(...))     # a frozen dataclass; its fields are the template's names
return twin(UnitPage(...))                           # the same facts as JSON
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unicodedata
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel

from app.figures import places, signed, telling
from app.pages.formula import tokens
from app.pages.parts import Parts
from app.pages.snippet import snippet
from app.pages.words import term
from app.paths import templates_dir
from app.urls import urls_for
from legible_core.display import chip
from legible_core.units import GLYPHS

JOINERS = "\u200c\u200d"  # they hold emoji and some scripts together


class Context(Protocol):
    """A page's context: a frozen dataclass with at least its title."""

    @property
    def title(self) -> str: ...


def setup(app: FastAPI) -> None:
    """Give the application the templates, so that its errors look like its pages."""
    app.state.templates = SimpleNamespace(env=environment())


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates: everything is escaped, and a name that no context gives is an error."""
    made = Environment(
        loader=FileSystemLoader(templates_dir()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        signed=signed, telling=telling, places=places, percent=percent, short=short, exponent=exponent,
        seconds=seconds, bytes=size, count=count, half_life=tokens, attribute=attribute,
        json_block=json_block, chance=chance, pretty=pretty, ticked=ticked,
    )  # fmt: skip
    made.globals.update(GLYPHS=GLYPHS, term=term, iframe=iframe)
    return made


def page(
    request: Request, template: str, context: Context, status: int = 200, *, headers: dict[str, str] | None = None,
    also: tuple[str, ...] = (),
) -> HTMLResponse:  # fmt: skip
    """The page as a response; with `embed` in its address the parts of it that are named there, for an <iframe>.

    `also`: parts that this page has and answers elsewhere.
    """
    parts = Parts(request, environment(), context.title, also)
    body = html(request, template, context, parts)
    if parts.taking:
        from app.pages.embed import embedded_parts  # which itself is made of pages

        return embedded_parts(request, parts, context)
    return HTMLResponse(body, status_code=status, headers=headers)


def html(request: Request, template: str, context: Context, parts: Parts | None = None) -> str:
    """The page as text: the context's fields, the address builder and the current path."""
    fields = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}  # type: ignore[arg-type]
    made = environment().get_template(template)
    common = {"urls": urls_for(request), "here": here(request), "shown": shown(request)}
    part = parts or Parts(request, environment(), context.title)
    return made.render(**common, part=part, snippet=snippet(request, context), **fields)


def shown(request: Request) -> frozenset[str]:
    """The parts of the navigation that are there only when they lead somewhere: `runs`."""
    runs = getattr(request.app.state, "runs", None)
    return frozenset({"runs"} if runs is not None and runs.any() else ())


def here(request: Request) -> str:
    """The address that was asked for, path and query, under the root path."""
    path = str(request.scope.get("root_path", "")).rstrip("/") + _inner_path(request)
    return path + (f"?{request.url.query}" if request.url.query else "")


def twin(data: Any, status: int = 200) -> Response:
    """JSON of dataclasses and pydantic models; a number that JSON lacks (∞) is null."""
    body = json.dumps(plain(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(body, status_code=status, media_type="application/json")


def plain(data: Any) -> Any:
    """Dataclasses, models, tuples and component ids as what JSON has."""
    if isinstance(data, BaseModel):
        return plain(data.model_dump(mode="json", by_alias=True))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        hidden = getattr(data, "hidden", ())
        return {f.name: plain(getattr(data, f.name)) for f in dataclasses.fields(data) if f.name not in hidden}
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if data is None or isinstance(data, str | int | bool):
        return data
    return data.item() if hasattr(data, "item") else str(data)


def ticked(text: str) -> Markup:
    """A sentence as the terminal says it, what stands between two backticks as code; an odd one stands for itself."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def percent(value: float | None, digits: int = 0) -> str:
    """82 %, or – where it is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{100 * value:.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text.replace('-', '−')} %"


def chance(value: float) -> str:
    """A probability: 0.83; a small one with three figures, 0.0632, 0.00412; 4e-04 where that would be many zeros."""
    if value >= 0.0995:
        return f"{value:.2f}"
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.0e}" if value else "0"


def short(value: float | None, digits: int = 2) -> str:
    """A number with few digits, or –."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}".replace("-", "−")


def exponent(value: float) -> str:
    """2e-6: one digit is enough for a residual."""
    if value == 0:
        return "0"
    mantissa, power = f"{value:.0e}".split("e")
    return f"{mantissa.replace('-', '−')}e{int(power)}"


def seconds(value: float | None) -> str:
    """A span of time: 0.4 s, 12 s, 3 min 5 s, 2 h 4 min."""
    if value is None:
        return "–"
    value = max(0.0, value)
    if value < 10:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(value: int | None) -> str:
    """A whole number in thousands: 12,345."""
    return "–" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Bytes in the unit that suits."""
    if value is None:
        return "–"
    number = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def attribute(text: str) -> str:
    """Text for a data attribute that a copy button reads: HTML cannot hold NUL, and would turn CR into LF."""
    return text.replace("\x00", "�")


def iframe(address: str, title: str, height: int = 640) -> str:
    """The line of HTML that shows this address, origin and all, inside another page."""
    return f'<iframe src="{escape(address)}" title="{escape(title)}" width="100%" height="{height}"></iframe>'


def json_block(text: str) -> Markup:
    """JSON text inside a script element of type application/json: nothing in it can end the element."""
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def pretty(data: Any) -> str:
    """JSON for people."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def clipped(text: str, limit: int = 80) -> str:
    """The end of a text on one line: what the prediction follows; what cannot be seen looks as in a token's chip.

    So does a text of white space alone, of which nothing would be left.
    """
    words = " ".join("".join(map(_seen, text)).split()) or chip(text.encode("utf-8", "surrogatepass"))
    return words if len(words) <= limit else "…" + words[-limit:]


def parted(one: str, other: str, limit: int) -> tuple[str, str]:
    """Two texts on a line each, cut so that the place where they part is shown, a few words before it if it is late."""
    one, other = clipped(one, 1 << 30), clipped(other, 1 << 30)
    differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    same = next(differing, min(len(one), len(other)))
    start = 0
    if max(len(one), len(other)) > limit and same > limit // 2:
        start = same - limit // 2
        start = one.find(" ", start, same) + 1 or start
    before = "…" if start else ""
    shown = (before + part[start : start + limit] + "…" * (len(part) > start + limit) for part in (one, other))
    return next(shown), next(shown)


def _seen(character: str) -> str:
    if character in JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co"):
        return character
    return " " if character in "\t\n\r" else chip(character.encode("utf-8", "surrogatepass"))


def _inner_path(request: Request) -> str:
    path = request.url.path
    root = str(request.scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(root) else path
