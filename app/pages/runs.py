"""Training runs: the list, and one run live and afterwards: loss, cumulative perplexity, telemetry, what happened."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from app.pages.parts import is_embed
from app.pages.run_view import STATES, LayersPart, NowPart, layers_part, now_part, stages, when
from app.pages.view import html, page, twin
from app.runs import Branch, Run, Runs
from app.services import Services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError, NotFound
from legible_core.training.history import HeldOut

# Another process may have other templates: it answers no tag of this one with "unchanged".
_PROCESS = secrets.token_hex(4)

router = APIRouter(prefix="/runs", default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class RunLine:
    name: str
    href: str
    state: str
    tokens: int
    total: int
    last_loss: float | None
    held_out: HeldOut | None
    cumulative_perplexity: float | None
    last_line: str
    branches: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RunsPage:
    title: str
    runs: tuple[RunLine, ...]
    seconds: int


@dataclass(frozen=True, slots=True)
class RunPage:
    title: str
    name: str
    said: str
    folder: str
    now: NowPart
    layers: LayersPart
    recipe: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    now: NowPart | None
    layers: LayersPart | None


def setup(app: FastAPI) -> None:
    """Know the runs from the start: the navigation asks for them."""
    services: Services = app.state.services
    app.state.runs = Runs(services.settings.data_dir, services.settings.runs)


def runs_of(request: Request) -> Runs:
    """FastAPI dependency: the runs of this installation."""
    found: Runs = request.app.state.runs
    return found


Known = Annotated[Runs, Depends(runs_of)]


@router.get("")
def runs(request: Request, known: Known) -> Response:
    """Every run: how far, its loss, its state."""
    made = _runs(known, urls_for(request))
    if is_embed(request):
        return page(request, "runs.html", made)  # which has no part to show
    return _tagged(request, json.dumps([str(line) for line in made.runs]), lambda: html(request, "runs.html", made))


@router.get(".json")
def runs_json(request: Request, known: Known) -> Response:
    """Its JSON twin."""
    return twin(_runs(known, urls_for(request)))


@router.get("/{name}.json")
def run_json(name: str, known: Known) -> Response:
    """The JSON twin of a run's page: recipe, state, every event, and of each log its last line and last reading."""
    with known.open(name) as run:
        return twin(_json(run))


@router.get("/{name}/now")
def now(name: str, request: Request, known: Known) -> Response:
    """What of the page follows the log."""
    with known.open(name) as run:
        urls = urls_for(request)
        return _tagged(
            request, _mark(run),
            lambda: html(request, "run_now.html", Part(f"{name}: run", now_part(run, name, urls), None)),
        )  # fmt: skip


@router.get("/{name}/layers")
def layers(name: str, request: Request, known: Known) -> Response:
    """What of the page follows the telemetry."""
    with known.open(name) as run:
        urls = urls_for(request)
        marks = json.dumps([[branch.name, branch.history.marks[1:]] for branch in (run.main, *run.branches)])
        return _tagged(
            request, f"{marks}{run.active}",
            lambda: html(request, "run_layers.html", Part(f"{name}: run", None, layers_part(run, name, urls))),
        )  # fmt: skip


@router.get("/{name}/csv")
def run_csv(
    name: str, known: Known,
    branch: Annotated[str, Query(max_length=40, description="decay-<tokens>; the run itself by default")] = "",
    of: Annotated[str, Query(pattern="^(log|telemetry)$", description="log or telemetry")] = "log",
) -> Response:  # fmt: skip
    """Every step of the log, or every reading of the telemetry, as a table."""
    with known.open(name) as run:
        chosen = next((each for each in (run.main, *run.branches) if each.name == branch), None)
        if chosen is None:
            raise NotFound(f"The run {name} has no branch {branch!r}; its page lists those it has.")
        head, columns = _columns(chosen, of)
    file = "-".join(filter(None, ("run", name, branch, of)))
    headers = {"content-disposition": f'attachment; filename="{file}.csv"'}
    return StreamingResponse(_rows(head, columns), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/{name}")
def run(name: str, request: Request, known: Known) -> Response:
    """One run."""
    with known.open(name) as run:
        return page(request, "run.html", _page(run, name, urls_for(request)))


def _page(run: Run, name: str, urls: Urls) -> RunPage:
    return RunPage(
        title=f"{name}: run",
        name=name,
        said=_said(run.recipe["model"]),
        folder=str(run.record.folder),
        now=now_part(run, name, urls),
        layers=layers_part(run, name, urls),
        recipe=run.recipe,
    )


def _said(model: dict[str, Any]) -> str:
    """The recipe's model in a line; an entry that is missing or of another type is left out."""
    words = (
        ("n_layers", int, "{} layers"), ("d_model", int, "d = {}"), ("n_heads", int, "{} heads"),
        ("context", int, "context {}"), ("value", str, "{} values"),
        ("special_fraction", float, "on {:.0%} of the heads"), ("gelu_fraction", float, "ρ = {:g}"),
        ("quantifier_fraction", float, "{:.0%} of the named units quantifiers"),
    )  # fmt: skip
    said = [text.format(model[key]) for key, kind, text in words if type(model.get(key)) is kind]
    return ", ".join(said).replace("values, on", "values on")


def _runs(known: Runs, urls: Urls) -> RunsPage:
    lines, active = [], False
    for name in known.names():
        try:
            with known.open(name) as run:
                lines.append(_line(run, name, urls))
                active |= run.active
        except LegibleError as error:
            lines.append(RunLine(name, "", "gone", 0, 0, None, None, None, "–", "", error.message))
    return RunsPage("Runs", tuple(lines), 5 if active else 30)


def _line(run: Run, name: str, urls: Urls) -> RunLine:
    main, size = run.main, max(1, run.schedule("batch_tokens"))
    branches = ", ".join(_branch_text(branch) for branch in run.branches)
    return RunLine(
        name=name, href=urls.run(name), state=STATES[main.state].partition(":")[0], tokens=main.number * size,
        total=main.steps * size, last_loss=main.last_loss, held_out=main.held_out,
        cumulative_perplexity=main.perplexity, last_line=when(main.history.changed_at), branches=branches, error=None,
    )  # fmt: skip


def _branch_text(branch: Branch) -> str:
    held_out = branch.held_out
    said = "" if held_out is None else f" (held-out loss {held_out.loss:.4f} ± {held_out.se:.4f})"
    return f"{branch.name} {branch.state}{said}"


def _json(run: Run) -> dict[str, Any]:
    size = max(1, run.schedule("batch_tokens"))
    courses = []
    for branch in (run.main, *run.branches):
        log, readings = branch.history.log, branch.history.readings
        courses.append(
            {
                "branch": branch.name or None, "state": branch.state, "reason": branch.diverged,
                "step": branch.number, "steps": branch.steps, "tokens": branch.number * size,
                "last_loss": branch.last_loss, "held_out": branch.held_out, "mean_loss": branch.mean_loss,
                "changed_at": branch.history.changed_at,
                "last": {name: column[-1] for name, column in log.columns.items()} if len(log) else None,
                "reading": None if not len(readings) else {
                    "number": int(readings.number[-1]),
                    **{name: column[-1] for name, column in readings.model.items()},
                    "layers": [{key: column[-1] for key, column in each.items()} for each in readings.layers],
                },
                "events": branch.history.events,
            }
        )  # fmt: skip
    return {"name": run.name, "recipe": run.recipe, "stages": stages(run.recipe), "courses": courses}


def _columns(branch: Branch, part: str) -> tuple[list[str], list[list[float]]]:
    """Copies, so that they can be sent while the run goes on."""
    if part == "log":
        columns = branch.history.log.columns
        return list(columns), [list(column) for column in columns.values()]
    readings = branch.history.readings
    named = {"number": readings.number, **readings.model}
    for layer, each in enumerate(readings.layers):
        named |= {f"L{layer}.{key}": column for key, column in each.items()}
    return list(named), [list(column) for column in named.values()]


def _rows(head: list[str], columns: list[list[float]]) -> Iterator[str]:
    """The table in pieces of a thousand rows; what is not a number is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for at, row in enumerate(zip(*columns, strict=True)):
        writer.writerow("" if value != value else int(value) if value.is_integer() else value for value in row)
        if at % 1000 == 999:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def _mark(run: Run) -> str:
    """Changes whenever the page would."""
    return json.dumps([[b.name, b.state, b.steps, b.history.marks] for b in (run.main, *run.branches)])


def _tagged(request: Request, mark: str, make: Any) -> Response:
    """The page with a tag of what it was made from; 304 and no page where the browser has that one."""
    tag = f'"{hashlib.sha256((_PROCESS + mark).encode()).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(make(), headers=headers)
