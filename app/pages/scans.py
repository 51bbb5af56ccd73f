"""Queue a scan from a model's page: of a text in the folder of corpora, or of text that the checkpoint writes itself.

    POST /models/{slug}/scans     corpus=<a file of the folder, or empty>   sample=<tokens>

As for every other change, the request must come from one of the workbench's own pages (`app.security`). A page names a
file by its name alone, and only one that the folder lists is taken; no path comes from a browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.jobs import BACKGROUND
from app.pages.forms import form_of
from app.services import Services, services
from app.settings import Settings
from app.urls import urls_for
from legible_core.errors import LegibleError, NotFound

router = APIRouter(prefix="/models/{slug}/scans")
queue_form = form_of("A scan", ("corpus", "sample"), "the field corpus or sample", optional=True)

CORPORA = "corpora"
KINDS = (".txt", ".xz")
LISTED = 200
MIN_SAMPLE, MAX_SAMPLE, SAMPLE = 1_000, 2_000_000, 131_072


@dataclass(frozen=True, slots=True)
class ScanForm:
    """What the model's page offers: the files of the folder of corpora, and how much the checkpoint may write."""

    action: str
    folder: str
    corpora: tuple[str, ...]
    sample: int
    least: int
    most: int


def corpora_dir(settings: Settings) -> Path:
    """Where the texts are that pages may scan: `corpora` in the data folder."""
    return settings.data_dir / CORPORA


def corpora(settings: Settings) -> tuple[str, ...]:
    """The names of the texts there, at most `LISTED`; links that lead out of the folder are left out."""
    folder = corpora_dir(settings)
    try:
        inside = folder.resolve(strict=True)
        found = sorted(path.name for path in folder.iterdir() if path.suffix in KINDS and path.is_file())
        return tuple(name for name in found if (folder / name).resolve().parent == inside)[:LISTED]
    except OSError:
        return ()


def scan_form(services: Services, slug: str, action: str) -> ScanForm:
    """The form of a model's page."""
    settings = services.settings
    return ScanForm(action, str(corpora_dir(settings)), corpora(settings), SAMPLE, MIN_SAMPLE, MAX_SAMPLE)


@router.post("")
def queue_scan(
    slug: str,
    request: Request,
    services: Annotated[Services, Depends(services)],
    form: Annotated[dict[str, str], Depends(queue_form)],
) -> Response:
    """Put a scan in line and go to its job; the same scan that waits or runs already is that one."""
    corpus, sample = form.get("corpus", ""), form.get("sample", "")
    if corpus and sample:
        raise LegibleError("A scan is of one text; send corpus or sample, not both.", code="bad_field", status=422)
    checkpoint = services.catalogue.get(slug)
    payload: dict[str, object] = {"slug": checkpoint.slug}
    if corpus:
        if corpus not in corpora(services.settings):
            raise NotFound(
                f"There is no text {corpus[:80]!r} in {corpora_dir(services.settings)}; put a .txt or .xz file there."
            )
        payload["corpus"] = str(corpora_dir(services.settings) / corpus)
    else:
        payload["sample"] = _tokens(sample)
    key = f"scan:{checkpoint.hash}:{corpus or payload['sample']}"
    job = services.queue.submit("scan", key, payload, priority=BACKGROUND)
    return RedirectResponse(urls_for(request).job(job.id), status_code=303)


def _tokens(text: str) -> int:
    """How many tokens to sample, as typed."""
    digits = text.strip().replace(",", "").replace("_", "") or str(SAMPLE)
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 12 and MIN_SAMPLE <= int(digits) <= MAX_SAMPLE):
        raise LegibleError(
            f"{text[:40]!r} is no number of tokens to sample; give {MIN_SAMPLE:,} to {MAX_SAMPLE:,}.",
            code="bad_sample",
            status=422,
        )
    return int(digits)
