"""What a posted form holds: each field once, as text, and none that the form does not have; else one clear sentence.

    Form = Annotated[dict[str, str], Depends(form_of("A note", ("revision", "name", "text", "author")))]

    def save(..., form: Form) -> Response: ...

The one way in which a page takes a form, so that no page drops a field, guesses a value or replaces a byte.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.exceptions import HTTPException

from app.security import MAX_BODY
from app.tables import MAX_INTEGER
from legible_core.errors import LegibleError

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELDS = 20
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)
_BOUNDARY = re.compile(r";\s*boundary=(?:\"([^\"]+)\"|([^\s;\"]+))", re.IGNORECASE)
Value = TypeVar("Value")
# What it finds wrong with a form is said in the answer; its own lines in the log name neither the page nor the reason.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def form_of(
    what: str, allowed: tuple[str, ...], asked: str | None = None, *, optional: bool = False
) -> Callable[[Request], Awaitable[dict[str, str]]]:
    """A FastAPI dependency: the fields of a form that has `allowed` and no others.

    what, asked: see `form_fields`. optional: whether every field may be left out, and so the body with them.
    """

    async def form(request: Request) -> dict[str, str]:
        if optional and not request.headers.get("content-type") and not await request.body():
            return {}
        fields = await form_fields(request, what, asked)
        known_fields(what, fields, allowed)
        return fields

    return form


def known_fields(what: str, fields: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse a field that the form does not have (422): one that is dropped changes what is asked."""
    allowed = tuple(allowed)
    for name in fields:
        if name not in allowed:
            near = difflib.get_close_matches(name.lower(), allowed, n=1, cutoff=0.6)
            meant = f"did you mean {near[0]}? Its" if near else "its"
            raise LegibleError(
                f"{what} has no field {name[:40]!r}; {meant} fields are {', '.join(allowed)}.",
                code="unknown_field", status=422,
            )  # fmt: skip


def one_of(name: str, value: str, allowed: Mapping[str, Value]) -> Value:
    """What a field's value stands for; any other value is an error that lists those allowed (422)."""
    if value not in allowed:
        words = " or ".join(word for word in allowed if word)
        left_out = ", or leave it out" if "" in allowed else ""
        raise LegibleError(f"The field {name} is {value[:40]!r}; send {words}{left_out}.", code="bad_field", status=422)
    return allowed[value]


def revision_of(fields: Mapping[str, str], what: str, present: int | None = None) -> int:
    """The revision that an edit was made from, the field `revision` of its form.

    what: whose JSON has the number, as the hint says it. present: the newest revision, where the edit must name one; of
    something new it is 0 and may be left out. Raises `LegibleError` (422) for a missing one and for what is no number.
    """
    typed = fields.get("revision", "0" if present is None else "").strip()
    if present is not None and not typed:
        raise LegibleError(
            "The field revision is missing; send the number of the revision that the edit was made from.",
            code="no_revision", hint=f"{what}'s JSON has it; at present it is {present}.", status=422,
        )  # fmt: skip
    if not re.fullmatch("[0-9]{1,10}", typed) or int(typed) > MAX_INTEGER:
        raise LegibleError(
            f"The field revision is {typed[:20]!r}, which is no number of a revision.", code="bad_revision",
            hint=f"Send the number that stands in {what[:1].lower()}{what[1:]}'s JSON.", status=422,
        )  # fmt: skip
    return int(typed)


async def form_fields(request: Request, what: str, asked: str | None = None, *, limit: int = FIELDS) -> dict[str, str]:
    """The text fields of a posted form, each once; at most `limit`, together up to the limit on a body.

    what, asked: what is sent, and which fields the hint asks for, as the error says them. Raises `LegibleError`: 415
    for another content type or charset, 400 for what is no form of UTF-8 text, a file, too many fields, a field twice.
    """
    kind = content_type(request)
    if kind not in FORM_TYPES:
        raise LegibleError(
            f"{what} is sent as a form, not as {kind[:60] or 'a body without a type'}.",
            code="bad_content_type",
            hint=None if asked is None else f"Send {asked} with the content type {FORM_TYPES[0]}.",
            status=415,
        )
    charset = _CHARSET.search(request.headers["content-type"])
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
        raise LegibleError(
            f"{what} is sent in the charset {charset[1][:40]}; send UTF-8.", code="bad_content_type", status=415
        )
    body = await request.body()  # past the limit on a body it raises its own error
    items = await _parts(request, body, what, limit) if kind == FORM_TYPES[1] else _pairs(body, what, limit)
    texts = [(name, value) for name, value in items if isinstance(value, str)]
    if len(texts) < len(items):
        raise _bad_form(f"{what} holds a file; send fields of text only")
    # Where a part is no UTF-8, the parser of multipart reads it as Latin-1; parts and their frames are all text.
    _utf8(body, what)
    return _once(texts, what)


async def form_file(request: Request, what: str, name: str) -> str:
    """The text of a file: the one part `name` of a multipart form, or any other body as it is.

    Raises `LegibleError`: 400 for a form that holds no such file or cannot be read, and for bytes that are no UTF-8;
    422 for a part of another name.
    """
    body = await request.body()
    found: str | bytes = body
    if content_type(request) == FORM_TYPES[1]:
        parts = _once(await _parts(request, body, what, FIELDS), what)
        known_fields(what, parts, (name,))
        found = parts.get(name, b"")
    if not found:
        raise _bad_form(f"{what} is missing or empty; choose it in the form, or send it in the field {name}")
    if isinstance(found, bytes):
        return _utf8(found, what)
    _utf8(body, what)  # see `form_fields`
    return found


def content_type(request: Request) -> str:
    """The content type without its parameters, in lower case; empty where there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _pairs(body: bytes, what: str, limit: int) -> list[tuple[str, str]]:
    """The fields of an urlencoded body."""
    try:
        return parse_qsl(_utf8(body, what), keep_blank_values=True, errors="strict", max_num_fields=limit)
    except UnicodeDecodeError:
        raise _not_utf8(what) from None
    except ValueError:
        raise _bad_form(f"{what} has more than {limit} fields; send at most {limit}") from None


async def _parts(request: Request, body: bytes, what: str, limit: int) -> list[tuple[str, str | bytes]]:
    """The parts of a multipart body: fields as text, files as their bytes."""
    marked = _BOUNDARY.search(request.headers["content-type"])
    if marked is None:
        raise _bad_form(
            f"{what} is sent as {FORM_TYPES[1]} without a boundary; name the boundary in the content type, or send the "
            f"fields as {FORM_TYPES[0]}"
        )
    unreadable = _bad_form(
        f"{what} cannot be read as {FORM_TYPES[1]}; send at most {limit} parts, each with a name and between the "
        "boundaries that the content type names"
    )
    # The parser drops a part that is cut off, and says nothing.
    if f"--{marked[1] or marked[2]}--".encode() not in body:
        raise unreadable
    try:
        async with request.form(max_files=limit, max_fields=limit, max_part_size=MAX_BODY) as form:
            return [(name, part if isinstance(part, str) else await part.read()) for name, part in form.multi_items()]
    except HTTPException:
        raise unreadable from None


def _once(items: list[tuple[str, Value]], what: str) -> dict[str, Value]:
    """The fields by name."""
    fields: dict[str, Value] = {}
    for name, value in items:
        if name in fields:
            raise _bad_form(f"{what} holds the field {name[:40]!r} more than once; send each field once")
        fields[name] = value
    return fields


def _utf8(body: bytes, what: str) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise _not_utf8(what) from None


def _not_utf8(what: str) -> LegibleError:
    return _bad_form(f"{what} holds bytes that are not UTF-8 text; convert the text to UTF-8 first")


def _bad_form(sentence: str) -> LegibleError:
    return LegibleError(f"{sentence}.", code="bad_form", status=400)
