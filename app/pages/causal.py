"""What re-running a prediction says of its reading: checks, necessity, sufficiency, and paths through components.

    GET /models/{slug}/readings/{digest}/causal?position=&target=&contrast=&relative_to=&view=      …/causal.json

`view` is checks, necessity, sufficiency, path (`first`, `second`) or sources (`operand`). Each is made once by a worker
and kept with the reading's other jobs. The reading's own page shows the checks as a column (`checks_of`). See
docs/causal.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from app.figures import telling
from app.jobs import Job
from app.pages.asking import Prompt, find_prompt
from app.pages.detail import state_of
from app.pages.view import page, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.store_types import StoredReading
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.reading import ReadingRequest
from legible_core.reads import check_component, read_of
from legible_core.registry import Checkpoint
from legible_core.units import parse

router = APIRouter(prefix="/models/{slug}/readings/{digest}", default_response_class=HTMLResponse)

View = Literal["checks", "necessity", "sufficiency", "path", "sources"]
TITLES: dict[str, str] = {
    "checks": "checks",
    "necessity": "necessity",
    "sufficiency": "sufficiency",
    "path": "path",
    "sources": "sources",
}
FLAGS = {"sign": "signs differ", "band": "direct ≠ total"}
METHODS = {
    "zero": "set to zero",
    "mean": "set to its mean",
    "flip_atom": "flipped, both operations",
    "flip_unit": "flipped, this unit alone",
}
SORTS = {
    "direct": "writes into what the operand reads",
    "mediated": "reaches it only through something else",
    "answered": "credited, but others made up for its loss",
    "sibling": "reads what the operand reads, writes nothing into it",
    "none": "no more than a random component does",
}


class AskedCausal(BaseModel):
    """The query of the page; None takes the last position, and the most probable token there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    position: int | None = Field(default=None, ge=0, description="0-based; the token after it is asked about")
    target: int | None = Field(default=None, ge=0, description="token id; the most probable one when left out")
    contrast: int | None = Field(default=None, ge=0, description="id of the token it is compared with")
    relative_to: Literal["nothing", "mean", "contrast"] | None = None
    view: View = "checks"
    first: str | None = Field(default=None, max_length=40, description="path: the component whose effect is divided")
    second: str | None = Field(default=None, max_length=40, description="path: the later one that it may go through")
    operand: str | None = Field(default=None, max_length=40, description="sources: the operand that is fed")

    def place(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "target": self.target,
            "contrast": self.contrast,
            "relative_to": self.relative_to,
        }

    def extra(self) -> dict[str, str]:
        """What the view needs besides the place; {} while the form is not filled in."""
        if self.view == "path" and self.first and self.second:
            return {"first": self.first, "second": self.second}
        return {"operand": self.operand} if self.view == "sources" and self.operand else {}

    @property
    def complete(self) -> bool:
        return self.view not in ("path", "sources") or bool(self.extra())


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """The check of one contribution as the reading's table shows it."""

    total: float
    mark: str
    agrees: bool
    title: str


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of a reading: cells by component id once they are made; until then where they stand."""

    href: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    message: str = ""
    ask: str = ""
    poll: str = ""
    fault: bool = False
    retry: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class CausalPage:
    """`found` is the worker's document, None until it is made; then `message` says where it is, `poll` where to ask."""

    title: str
    slug: str
    digest: str
    view: str
    tabs: tuple[Tab, ...]
    place: tuple[tuple[str, str], ...]
    first: str
    second: str
    operand: str
    reading_href: str
    json_href: str
    command: str
    edits: tuple[str, ...]
    message: str
    fault: bool
    poll: str
    retry: str
    found: dict[str, Any] | None
    flags: Mapping[str, str]
    methods: Mapping[str, str]
    sorts: Mapping[str, str]


@router.get("/causal.json")
def causal_json(
    slug: str,
    digest: str,
    asked: Annotated[AskedCausal, Query()],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The whole document (docs/causal.md), or 202 and the job while it is not made yet."""
    prompt, checkpoint = _subject(services, digest)
    if not asked.complete:
        raise LegibleError(f"The view {asked.view} needs {_needs(asked.view)}.", code="incomplete")
    job = _job(services, prompt, checkpoint, asked)
    if job.state != "done" or job.result is None:
        return unfinished(services, job)
    return twin(job.result)


@router.get("/causal")
def causal(
    slug: str,
    digest: str,
    request: Request,
    asked: Annotated[AskedCausal, Query()],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """One view of the causal checks of a prediction."""
    urls = urls_for(request)
    prompt, checkpoint = _subject(services, digest)
    if not services.catalogue.names(slug, checkpoint.hash):
        return RedirectResponse(_address(urls, prompt.slug, digest, asked), status_code=303)
    job = _job(services, prompt, checkpoint, asked) if asked.complete else None
    return page(request, "causal.html", _page(services, urls, slug, prompt, asked, job))


def checks_of(
    services: Services, urls: Urls, slug: str, stored: StoredReading, checkpoint: Checkpoint | None, asks: bool
) -> Checks | None:
    """The column of checks of a stored reading's page; `asks`: submit the job if there is none.

    None where nothing can be checked, for the checkpoint is gone.
    """
    asked = AskedCausal(
        position=stored.position, target=stored.target, contrast=stored.contrast, relative_to=_relative(stored)
    )
    if checkpoint is None:
        return None
    href = _address(urls, slug, stored.digest, asked)
    prompt = find_prompt(services, stored.digest)
    job = _job(services, prompt, checkpoint, asked) if asks else _known(services, prompt, asked)
    here = urls.reading(slug, stored.digest, **{**asked.place(), "relative_to": _unusual(asked)}, checks=1)
    if job is None or (job.state == "done" and job.result is None):
        return Checks(href, ask=here)
    if job.state == "done" and job.result is not None:
        cells = {row["id"]: _cell(row) for row in job.result["checks"]}
        return Checks(href, cells, said=_said_band(job.result))
    if job.active:
        return Checks(href, message=_waiting(services, job), poll=here)
    return Checks(href, message=_reason(job), fault=True, retry=urls.job_part(job.id, "retry"))


def checks_mark(services: Services, stored: StoredReading) -> tuple[int, str] | None:
    """What a kept page of this reading says of its checks: the job and its state."""
    asked = AskedCausal(
        position=stored.position, target=stored.target, contrast=stored.contrast, relative_to=_relative(stored)
    )
    job = services.queue.find(_key(stored.digest, asked))
    return None if job is None else (job.id, job.state)


# ---- the job ---------------------------------------------------------------------------------------------------------


def _subject(services: Services, digest: str) -> tuple[Prompt, Checkpoint]:
    prompt = find_prompt(services, digest)
    return prompt, services.catalogue.get(prompt.checkpoint_hash)


def _edits(services: Services, prompt: Prompt) -> tuple[Edit, ...]:
    """The reading's own edits."""
    stored = services.store.prompt(prompt.digest)
    return () if stored is None else tuple(Edit.from_json(edit) for edit in stored.edits)


def _known(services: Services, prompt: Prompt, asked: AskedCausal) -> Job | None:
    return services.queue.find(_key(prompt.digest, asked))


def _job(services: Services, prompt: Prompt, checkpoint: Checkpoint, asked: AskedCausal) -> Job:
    """The job of this view; submitted once, and again when its result was forgotten."""
    position = len(prompt.ids) - 1 if asked.position is None else asked.position
    asked = asked.model_copy(update={"position": position})
    edits = _edits(services, prompt)
    dtype: Any = prompt.dtype
    request = ReadingRequest(
        prompt.checkpoint_hash, prompt.ids, position, asked.target, asked.contrast, asked.relative_to, dtype, edits
    )
    request.check(checkpoint.config)
    for name in asked.extra().values():
        component = parse(name)
        check_component(checkpoint.config, component)
        if asked.view == "sources":
            read_of(checkpoint.config, component)
    key = _key(prompt.digest, asked)
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {"request": request.to_json(), "slug": prompt.slug, "text": prompt.text, **asked.extra()}
        job = services.queue.submit(_kind(asked.view), key, payload, subject=prompt.digest)
    return job


def _kind(view: View) -> str:
    return "check" if view == "checks" else view


def _key(digest: str, asked: AskedCausal) -> str:
    parts = [asked.position, asked.target, asked.contrast, _unusual(asked), *asked.extra().values()]
    return ":".join([_kind(asked.view), digest, *("-" if part is None else str(part) for part in parts)])


def _relative(stored: StoredReading) -> Any:
    return stored.relative_to


def _unusual(asked: AskedCausal) -> str | None:
    """relative_to where it is not what the contrast says anyway."""
    usual = "nothing" if asked.contrast is None else "contrast"
    return None if asked.relative_to in (None, usual) else asked.relative_to


def _needs(view: str) -> str:
    return "first and second, two components" if view == "path" else "operand, such as L5.p39.A"


# ---- the pages -------------------------------------------------------------------------------------------------------


def _address(urls: Urls, slug: str, digest: str, asked: AskedCausal, **changes: Any) -> str:
    place = {**asked.place(), "relative_to": _unusual(asked)}
    view = None if asked.view == "checks" else asked.view
    return urls.reading_part(slug, digest, "causal", **{**place, "view": view, **asked.extra(), **changes})


def _page(services: Services, urls: Urls, slug: str, prompt: Prompt, asked: AskedCausal, job: Job | None) -> CausalPage:
    found = job.result if job is not None and job.state == "done" else None
    failed = job is not None and job.state in ("failed", "cancelled")
    if found is not None:
        asked = asked.model_copy(update={"position": found["position"], "target": found["target"]["id"]})
    here = _address(urls, slug, prompt.digest, asked)
    waits = job is not None and found is None and not failed
    message = ""
    if job is not None and found is None:
        message = _reason(job) if failed else _waiting(services, job)
    of = f" of {found['target']['display']}" if found is not None else ""
    place = {**asked.place(), "relative_to": _unusual(asked)}
    edits = _edits(services, prompt)
    return CausalPage(
        title=f"Causal {TITLES[asked.view]}{of} · {slug}",
        slug=slug,
        digest=prompt.digest,
        view=asked.view,
        tabs=tuple(
            Tab(
                title,
                _address(urls, slug, prompt.digest, asked.model_copy(update={"view": view})),
                view == asked.view,
            )
            for view, title in TITLES.items()
        ),
        place=tuple((name, str(value)) for name, value in place.items() if value is not None),
        first=asked.first or "",
        second=asked.second or "",
        operand=asked.operand or "",
        reading_href=urls.reading(slug, prompt.digest, **place),
        json_href=urls.json(here) if asked.complete else "",
        command=_command(slug, prompt, asked, edits),
        edits=tuple(edit_text(edit) for edit in edits),
        message=message,
        fault=failed,
        poll=here if waits else "",
        retry=urls.job_part(job.id, "retry") if failed and job is not None else "",
        found=found,
        flags=FLAGS,
        methods=METHODS,
        sorts=SORTS,
    )


def _cell(row: dict[str, Any]) -> Cell:
    said = []
    for removal in row["removals"]:
        side = "" if removal["operand"] is None else f"{removal['operand']} "
        said.append(
            f"{side}{METHODS[removal['method']]}: {telling(removal['total'])}, direct {telling(removal['direct'])}"
        )
    then = f"then {row['after']['prediction']['display']} is predicted, this target is rank {row['after']['rank']}"
    marks = [FLAGS[flag] for flag in row["flags"]]
    return Cell(row["total"], ", ".join(marks), row["agrees"], "; ".join([*said, then]))


def _said_band(result: dict[str, Any]) -> str:
    if result["bands"] is None:
        return "No band was measured for this checkpoint, so a flag says only that the signs differ."
    zero = result["bands"]["bands"].get("zero", {}).get("all")
    if zero is None:
        return ""
    low, high = (f"{zero[key]:.2f}".replace("-", "−") for key in ("low", "high"))
    return (
        "A flag: the signs differ, or total/direct leaves the 5-95 % band measured for this checkpoint and half of the "
        f"stack ({low} to {high} over both)."
    )


def _waiting(services: Services, job: Job) -> str:
    said = state_of(services, job)
    return "Removing and running again…" if said == "Looking closer…" else said


def _reason(job: Job) -> str:
    return str((job.error or {}).get("message", "It was cancelled."))


def _command(slug: str, prompt: Prompt, asked: AskedCausal, edits: tuple[Edit, ...]) -> str:
    command = {"checks": "check", "sources": "path"}.get(asked.view, asked.view)
    words = ["legible", command, slug, prompt.text]
    if asked.position is not None:
        words += ["--position", str(asked.position)]
    if asked.target is not None and asked.view != "sufficiency":
        words += ["--target", f"id:{asked.target}"]
    if asked.contrast is not None:
        words += ["--contrast", f"id:{asked.contrast}"]
    if asked.relative_to == "mean":
        words += ["--relative-to", "mean"]
    for edit in edits:
        words += ["--edit", edit_text(edit)]
    for name, value in asked.extra().items():
        words += [f"--{name}", value]
    return shlex.join(words)
