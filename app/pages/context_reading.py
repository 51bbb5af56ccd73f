"""A context that a scan kept, read up to the token it was chosen for.

    POST /models/{slug}/units/{unit}/contexts/{component}/{place}      → the reading of these very ids, the unit shown

`component` is the unit or an operand of it, and `place` the context's index among the component's. The window's first
tokens are in front where the file has them, and the begin-of-text token where an ordinary model's tokenizer puts one,
as the scan had it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.pages.asking import dtype_of, submit_reading
from app.pages.corpus_contexts import contexts_of
from app.pages.units import find_unit
from app.services import Services, services
from app.urls import urls_for
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.errors import LegibleError, NotFound
from legible_core.prompts import with_bos
from legible_core.reading import ReadingRequest
from legible_core.units import parse

router = APIRouter(prefix="/models/{slug}/units", default_response_class=HTMLResponse)


@router.post("/{unit}/contexts/{component}/{place}")
def read_context(
    slug: str, unit: str, component: str, place: int, request: Request,
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """The reading of the last token's prediction; its job is in SQL when this returns."""
    urls = urls_for(request)
    checkpoint, shown = find_unit(services, slug, unit)
    contexts = contexts_of(checkpoint)
    found = [] if contexts is None else contexts.contexts_of(parse(component))
    if not 0 <= place < len(found):
        raise NotFound(
            f"There is no context {place} of {component[:40]}; the page of {shown} lists those that a scan kept."
        )
    read = found[place].read
    ids = tuple(with_bos(read, checkpoint.bos if isinstance(checkpoint, OrdinaryCheckpoint) else None))
    try:
        text = str(services.tokenizers.call("decode", checkpoint.tokenizer_path, list(read)))
    except LegibleError:
        text = "".join(found[place].tokens[: found[place].at + 1])
    wanted = ReadingRequest(checkpoint.hash, ids, position=len(ids) - 1, dtype=dtype_of(services, checkpoint))
    wanted.check(checkpoint.config)
    stored = services.store.find(wanted.digest)
    if stored is None:
        submit_reading(services, wanted, slug=slug, text=text)
    target = None if stored is None else stored.target
    address = urls.reading(slug, wanted.digest, position=wanted.position, target=target, component=str(shown))
    return RedirectResponse(address, status_code=303)
