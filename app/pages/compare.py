"""Two readings side by side.

    GET  /compare?left=&right=          both permalinks, addresses on this server without a host; also .json and .csv
    GET  /compare?left=                 the form for the other side
    POST /compare                       another prompt, target, position or checkpoint → the comparison's address

A side that is not stored yet is submitted once, and the page shows its state until it is there, as a reading's does.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.pages.asking import dtype_of, encode, one_token, read_key, submit_reading
from app.pages.children import related
from app.pages.compare_form import compare_form, recent, slugs
from app.pages.compare_sides import MAX_ADDRESS, Side, look, permalink
from app.pages.compare_view import ChoosePage, WaitingSide, WaitPage, comparison_page, csv_text, json_document
from app.pages.forms import form_of
from app.pages.view import page, twin
from app.pages.waiting import ENDED, job_facts, said, steps, unfinished
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.compare import Comparison, compare
from legible_core.errors import Conflict, LegibleError
from legible_core.reading import ReadingRequest
from legible_core.registry import Checkpoint

router = APIRouter(prefix="/compare", default_response_class=HTMLResponse)

Address = Annotated[str, Query(max_length=MAX_ADDRESS)]


# A prompt over the limit must reach its error, which says the limit and the size.
compare_fields = form_of("A comparison", ("left", "right", "prompt", "model", "target", "contrast", "position"))


@router.get("")
def comparison(
    request: Request, services: Annotated[Services, Depends(services)], left: Address = "", right: Address = ""
) -> Response:
    """The two readings, or the form where a side is open."""
    urls = urls_for(request)
    if not left or not right:
        return _choose(request, services, urls, left or right)
    sides = (look(services, urls, "left", left), look(services, urls, "right", right))
    here = urls.compare(left=sides[0].address(urls), right=sides[1].address(urls))
    if any(side.stored is None for side in sides):
        return page(request, "compare_waiting.html", _waiting(services, sides, here))
    polled = request.headers.get("hx-request") == "true"
    explicit = (left, right) == tuple(side.address(urls) for side in sides)
    if not explicit and not polled:
        return RedirectResponse(here, status_code=303)
    found = _compared(services, sides)
    context = comparison_page(services, urls, found, sides, here)
    headers = {} if explicit else {"hx-replace-url": here}
    return page(request, "compare.html", context, headers=headers)


@router.get(".json")
def comparison_json(
    request: Request, services: Annotated[Services, Depends(services)], left: Address, right: Address
) -> Response:
    """Everything the page says and every component, or 202 and the jobs while a side is not stored yet."""
    urls = urls_for(request)
    sides = (look(services, urls, "left", left), look(services, urls, "right", right))
    if any(side.stored is None for side in sides):
        jobs = {side.name: None if side.job is None else job_facts(services, side.job) for side in sides}
        ended = next((side.job for side in sides if side.job is not None and side.job.state in ENDED), None)
        return twin({"jobs": jobs}, 202) if ended is None else unfinished(services, ended, {"jobs": jobs})
    return twin(json_document(urls, _compared(services, sides), sides))


@router.get(".csv")
def comparison_csv(
    request: Request, services: Annotated[Services, Depends(services)], left: Address, right: Address
) -> Response:
    """Every amount of both sides as a table, with their difference where there is one."""
    urls = urls_for(request)
    sides = (look(services, urls, "left", left), look(services, urls, "right", right))
    if any(side.stored is None for side in sides):
        raise Conflict("A side is not read yet, so there is no table; wait for the comparison's page to show it.")
    name = f"compare-{sides[0].prompt.digest[:12]}-{sides[1].prompt.digest[:12]}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(csv_text(_compared(services, sides), sides), media_type="text/csv; charset=utf-8", headers=headers)


@router.post("")
def start(
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[dict[str, str], Depends(compare_fields)],
) -> Response:
    """The other side from the form: a stored reading's address, or what is to be read instead."""
    urls = urls_for(request)
    left = look(services, urls, "left", form.get("left", ""))
    other = form.get("right", "").strip()
    if other:
        other = _without_our_host(request, other)
        permalink(urls, "right", other)
    else:
        other = _other(services, urls, left, form)
    return RedirectResponse(urls.compare(left=left.address(urls), right=other), status_code=303)


def _other(services: Services, urls: Urls, left: Side, form: dict[str, str]) -> str:
    """The address of what the form asks to be read, after its job is in SQL."""
    if left.stored is None:
        raise Conflict("The left reading is not made yet; wait for it, then compare.")
    checkpoint = services.catalogue.get(form.get("model") or left.prompt.checkpoint_hash)
    text = form.get("prompt", left.prompt.text).replace("\r\n", "\n")
    same = text == left.prompt.text and checkpoint.hash == left.prompt.checkpoint_hash
    ids = left.prompt.ids if same else _encoded(services, checkpoint, text)
    position = _position(form.get("position", ""))
    if position is None:
        position = left.stored.position if ids == left.prompt.ids else max(0, len(ids) - 1)
    target = one_token(services, checkpoint, form["target"], "target") if form.get("target") else None
    contrast = one_token(services, checkpoint, form["contrast"], "contrast") if form.get("contrast") else None
    relative: Any = "mean" if contrast is None and left.stored.relative_to == "mean" else None
    dtype: Any = left.prompt.dtype if same else dtype_of(services, checkpoint)
    # Another token or position of an edited prompt is read under the same edits.
    edits = left.prompt.edits if same else ()
    asked = ReadingRequest(checkpoint.hash, ids, position, target, contrast, relative, dtype, edits)
    asked.check(checkpoint.config)
    query: dict[str, Any] = {"position": position, "target": target, "contrast": contrast, "relative_to": relative}
    if services.store.find(asked.digest, **query) is None and services.queue.find(read_key(asked)) is None:
        submit_reading(services, asked, slug=checkpoint.slug, text=text)
    return urls.reading(checkpoint.slug, asked.digest, **query)


def _encoded(services: Services, checkpoint: Checkpoint, text: str) -> tuple[int, ...]:
    return encode(services, checkpoint, text)[0]


def _position(text: str) -> int | None:
    """A typed position; None where it was left open."""
    typed = text.strip()
    if not typed:
        return None
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 10):
        raise LegibleError(
            f"The position {typed[:20]!r} is no position; give a whole number from 0, or leave it open.",
            code="bad_position",
        )
    return int(typed)


def _without_our_host(request: Request, address: str) -> str:
    """An address as the browser shows it, pasted whole, loses our own host; what names another stays and is refused."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    if parts.scheme in ("http", "https") and parts.netloc == request.url.netloc:
        return parts._replace(scheme="", netloc="").geturl()
    return address


def _choose(request: Request, services: Services, urls: Urls, left: str) -> Response:
    """The form for the other side; without a left side, the readings to begin with."""
    form, address = None, None
    if left:
        side = look(services, urls, "left", left)
        if side.stored is None:
            return page(request, "compare_waiting.html", _waiting(services, (side,), urls.compare(left=left)))
        address = side.address(urls)
        form = compare_form(
            urls, side.stored.reading().summary, side.chosen, slug=side.slug, text=side.prompt.text,
            checkpoints=slugs(services),
        )  # fmt: skip
        address = form.left
    context = ChoosePage("Compare two readings", form, recent(services, urls, address))
    return page(request, "compare_choose.html", context)


def _waiting(services: Services, sides: tuple[Side, ...], here: str) -> WaitPage:
    shown = []
    for side in sides:
        job = side.job if side.stored is None else None
        error = (job.error or {}) if job is not None else {}
        shown.append(
            WaitingSide(
                name=side.name,
                text=side.prompt.text,
                slug=side.slug,
                job=job,
                steps=steps(job) if job is not None else (),
                said=said(services, job) if job is not None else "",
                reason=str(error.get("message", "The reading failed.")),
                hint=error.get("hint"),
            )
        )
    active = all(side.job is None or side.job.state in ("waiting", "running", "done") for side in shown)
    return WaitPage("comparing…", tuple(shown), here if active else "")


def _compared(services: Services, sides: tuple[Side, ...]) -> Comparison:
    left, right = sides
    assert left.stored is not None
    assert right.stored is not None
    alike, kin = None, False
    if left.checkpoint is not None and right.checkpoint is not None:
        alike = left.checkpoint.tokenizer_path.read_bytes() == right.checkpoint.tokenizer_path.read_bytes()
        kin = related(services, left.checkpoint, right.checkpoint)
    return compare(left.stored.reading(), right.stored.reading(), same_tokenizer=alike, kin=kin)
