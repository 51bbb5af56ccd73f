"""A stored reading read again by the present code.

    POST /models/{slug}/readings/{digest}/again        with the query of the reading's address → the comparison of both

What is stored stays as it is; the new result is its next revision, and the comparison waits for it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from app.pages.asking import find_prompt, submit_reading
from app.pages.reading_view import Chosen
from app.pages.readings import Asked, find_stored, request_of
from app.pages.revisions import difference
from app.services import Services, services
from app.urls import urls_for
from legible_core import __version__
from legible_core.errors import Conflict, NotFound

router = APIRouter(prefix="/models/{slug}/readings", default_response_class=HTMLResponse)


@router.post("/{digest}/again")
def again(
    slug: str, digest: str, request: Request, asked: Annotated[Asked, Query()],
    services: Annotated[Services, Depends(services)],
) -> Response:  # fmt: skip
    """Submit the reading once more; answers with the newest stored revision beside the one that is made."""
    urls = urls_for(request)
    stored = find_stored(services, digest, asked.model_copy(update={"revision": None}))
    if stored is None:
        raise NotFound(f"The reading {digest[:12]} is not stored, so there is nothing to read again; open its page.")
    if stored.code_version == __version__:
        raise Conflict(
            f"The reading {digest[:12]} was made by this version of Legible, {__version__}, already.",
            hint="The same code gives the same reading, so nothing is read again.",
        )
    prompt = find_prompt(services, digest)
    explicit = Chosen(stored.position, stored.target, stored.contrast, stored.relative_to).query()
    wanted = request_of(prompt, Asked.model_validate(explicit))
    wanted.check(services.catalogue.get(prompt.checkpoint_hash).config)
    submit_reading(services, wanted, slug=prompt.slug, text=prompt.text)
    left, right = (
        urls.reading(slug, digest, **{**explicit, "revision": revision})
        for revision in (stored.revision, stored.revision + 1)
    )
    return RedirectResponse(difference(urls, left, right), status_code=303)
