"""Why was it on? One operand at one token of a stored prompt, as an exact sum over everything upstream of it.

    GET /models/{slug}/readings/{digest}/why/{operand}?at=&component=      …/{operand}.json

`at` is the token's position (the attended one for an operand of a head), `component` the source shown in the panel. The
sum is made once by a worker and kept like a close-up; each source leads one click further upstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from app.figures import attention_levels, heads_grid, signed, unit_strips
from app.jobs import Job
from app.pages.asking import Prompt, find_prompt
from app.pages.detail import head_panel, state_of
from app.pages.formula import Piece
from app.pages.named import component_of, names_of, operand_word, pieces_of
from app.pages.panel import Panel, component_panel
from app.pages.reading_view import TokenChip, contributor_formula
from app.pages.sum_line import FLOOR_NAMES, GROUPS, Amount, SumLine, said_shares
from app.pages.view import page, short, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.errors import LegibleError
from legible_core.naming.names import Names
from legible_core.reading import Contributor, ReadingRequest, Shares
from legible_core.reads import Read, check_source, read_of, unpack_terms
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, GLYPHS, PLAIN_NAMES, Channel, Component, Head, HeadOperand, Operand, Unit, parse

router = APIRouter(prefix="/models/{slug}/readings/{digest}/why", default_response_class=HTMLResponse)

WHY_FLOOR = {**FLOOR_NAMES, "read.bias": "its own bias", "rounding": "rounding to bfloat16"}


@dataclass(frozen=True, slots=True)
class AskedWhy:
    """The query: None takes the prompt's last token, and the strongest source."""

    at: int | None
    component: str | None


def asked_why(
    at: Annotated[int | None, Query(ge=0, description="position of the token; the last one when left out")] = None,
    component: Annotated[str | None, Query(max_length=40, description="the source shown in the panel")] = None,
) -> AskedWhy:
    return AskedWhy(at, component or None)


@dataclass(frozen=True, slots=True)
class Further:
    """A step further upstream: what it is, and the page that says why that was on."""

    name: str
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class SourceRow:
    id: str
    glyph: str
    value: float
    formula: tuple[Piece, ...]
    further: tuple[Further, ...]
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What the worker found, ready to be written down."""

    value: float
    activation: float
    made: str
    scale: float
    heads_svg: Markup | None
    strips_svg: Markup | None
    rows: tuple[SourceRow, ...]
    sum: SumLine


@dataclass(frozen=True, slots=True)
class WhyPage:
    """`answer` is None while the worker has not been here; then `message` says where it is, `poll` where to ask."""

    title: str
    slug: str
    digest: str
    id: str
    layer: int
    at: int
    name: Piece | None
    reads: str
    home: str
    home_id: str
    reading_href: str
    values_href: str
    json_href: str
    strip: tuple[TokenChip, ...]
    token: str
    message: str
    fault: bool
    poll: str
    retry: str
    answer: Answer | None
    panel: Panel | None
    panel_fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """An operand of a stored prompt, all of it checked."""

    prompt: Prompt
    checkpoint: Checkpoint
    read: Read
    at: int
    through: Component | None
    request: ReadingRequest


@router.get("/{operand}.json")
def why_json(
    slug: str,
    digest: str,
    operand: str,
    asked: Annotated[AskedWhy, Depends(asked_why)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The whole sum (docs/why.md), every term of it, or 202 and the job while it is not made yet."""
    subject = _subject(services, digest, operand, asked)
    job = _job(services, subject)
    if job.state != "done" or job.result is None:
        return unfinished(services, job)
    heads, units = unpack_terms(job.result["terms"], job.result["heads_shape"], job.result["units_shape"])
    whole = {name: value for name, value in job.result.items() if name != "terms"}
    return twin({**whole, "heads": heads.tolist(), "units": units.tolist()})


@router.get("/{operand}")
def why(
    slug: str,
    digest: str,
    operand: str,
    request: Request,
    asked: Annotated[AskedWhy, Depends(asked_why)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """Why one operand was on at one token."""
    urls = urls_for(request)
    subject = _subject(services, digest, operand, asked)
    if asked.at is None or not services.catalogue.names(slug, subject.checkpoint.hash):
        address = urls.why(subject.prompt.slug, digest, operand, at=subject.at, component=asked.component)
        return RedirectResponse(address, status_code=303)
    return page(request, "why.html", _page(services, urls, slug, subject))


def _subject(services: Services, digest: str, operand: str, asked: AskedWhy) -> Subject:
    """Find and check everything that the address names; LegibleError in one sentence for what is not there."""
    prompt = find_prompt(services, digest)
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    read = read_of(checkpoint.config, parse(operand))
    at = len(prompt.ids) - 1 if asked.at is None else asked.at
    through = None if asked.component is None else check_source(checkpoint.config, read, parse(asked.component))
    dtype: Any = prompt.dtype
    request = ReadingRequest(prompt.checkpoint_hash, prompt.ids, at, dtype=dtype, edits=prompt.edits)
    request.check(checkpoint.config)
    return Subject(prompt, checkpoint, read, at, through, request)


def _job(services: Services, subject: Subject) -> Job:
    """The job that makes the sum; submitted once, and again when its result was forgotten."""
    operand, through = str(subject.read.id), None if subject.through is None else str(subject.through)
    key = ":".join(["why", subject.prompt.digest, operand, str(subject.at), through or "-"])
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {
            "request": subject.request.to_json(), "slug": subject.prompt.slug, "operand": operand, "through": through,
        }  # fmt: skip
        job = services.queue.submit("why", key, payload, subject=subject.prompt.digest)
    return job


def _page(services: Services, urls: Urls, slug: str, subject: Subject) -> WhyPage:
    prompt, read, at = subject.prompt, subject.read, subject.at
    names = names_of(subject.checkpoint)[0]
    job = _job(services, subject)
    result = job.result if job.state == "done" else None
    displays = result["tokens"] if result is not None else _displays(services, subject)
    name = operand_word(names, read.id)
    home_id, home = _home(urls, slug, read.id)
    here = urls.why(slug, prompt.digest, read.id, at=at, component=subject.through)
    failed = job.state in ("failed", "cancelled")
    answer, panel = None, None
    if result is not None:
        answer, panel = _answer(urls, slug, subject, result, names)
    said = f" ({name.text})" if name is not None else ""
    return WhyPage(
        title=f"Why {read.id}{said} at {displays[at]} · {slug}",
        slug=slug,
        digest=prompt.digest,
        id=str(read.id),
        layer=read.layer,
        at=at,
        name=name,
        reads=_reads(read),
        home=home,
        home_id=home_id,
        reading_href=urls.reading(slug, prompt.digest, position=at),
        values_href=urls.values(slug, prompt.digest, components=read.id),
        json_href=urls.json(urls.why(slug, prompt.digest, read.id, at=at, component=subject.through)),
        strip=_strip(displays, at, read, result),
        token=displays[at],
        message="" if result is not None else _reason(job) if failed else state_of(services, job),
        fault=failed,
        poll="" if result is not None or failed else here,
        retry=urls.job_part(job.id, "retry") if failed else "",
        answer=answer,
        panel=panel,
        panel_fields=(("at", str(at)),),
    )


def _answer(
    urls: Urls, slug: str, subject: Subject, result: dict[str, Any], names: Names | None
) -> tuple[Answer, Panel | None]:
    read, at, config = subject.read, subject.at, subject.checkpoint.config
    heads, units = unpack_terms(result["terms"], result["heads_shape"], result["units_shape"])
    top = result["top"]
    strongest = next((row for row in top if row["kind"] in BOUNDED), top[0] if top else None)
    chosen = result.get("through") or strongest

    def source(component: str) -> str:
        return f"?at={at}&component={component}"

    def further(operand: str, position: int) -> str:
        return urls.why(slug, subject.prompt.digest, operand, at=position)

    def row(found: dict[str, Any]) -> SourceRow:
        return SourceRow(
            id=found["id"],
            glyph=found["glyph"],
            value=float(found["value"]),
            formula=_formula(found, names),
            further=_further(found, at, further, source),
            href=source(found["id"]),
            current=chosen is not None and found["id"] == chosen["id"],
        )

    shown = None if chosen is None else str(chosen["id"])
    answer = Answer(
        value=result["value"],
        activation=result["activation"],
        made=_made(read, result["value"], result["activation"]),
        scale=result["scale"],
        heads_svg=heads_grid(heads, source, shown) if heads.size else None,
        strips_svg=unit_strips(
            units, source, lambda unit: GLYPHS[config.feed_forward.kind(unit)], shown,
            [found["id"] for found in top if found["kind"] != "head"],
        ) if units.size else None,
        rows=tuple(row(found) for found in top),
        sum=_sum_line(result),
    )  # fmt: skip
    return answer, None if chosen is None else _panel(urls, slug, chosen, result, names, further, at)


def _panel(
    urls: Urls, slug: str, chosen: dict[str, Any], result: dict[str, Any], names: Names | None, further: Any, at: int
) -> Panel:
    if chosen["kind"] == "head" and "pattern" in chosen:
        return head_panel(chosen, urls.head(slug, chosen["id"]), result["tokens"], names, further)
    contributor = Contributor.model_validate(chosen)
    href = urls.head(slug, chosen["id"]) if chosen["kind"] == "head" else urls.unit(slug, chosen["id"])
    return component_panel(contributor, href, pieces=_formula(chosen, names), why=lambda id: further(id, at))


def _further(found: dict[str, Any], at: int, further: Any, source: Any) -> tuple[Further, ...]:
    """The links one click further upstream; a head's leads to its attended tokens, which lead on."""
    if found["kind"] == "head":
        return (Further("attended tokens", source(found["id"]), "where it looked, and what it found there"),)
    links: list[Further] = []
    for part in found["opens"]:
        # Of a quantifier's memory, what left a trace; the first is the strongest.
        if links and part.get("left", 1.0) < 0.05:
            continue
        name = "itself" if part["id"] == found["id"] else part["id"].partition(".")[2]
        name = "" if "left" in part and links else name
        value = "" if part.get("value") is None else f" {short(part['value'])}"
        where = "" if part["position"] == at and "left" not in part else f" at {part['position']}"
        left = f", which left {part['left']:.2f} of its value here" if "left" in part else ""
        href = further(part["id"], part["position"])
        links.append(Further(f"{name}{value}{where}".strip(), href, f"why was that on{left}"))
    return tuple(links)


def _formula(found: dict[str, Any], names: Names | None) -> tuple[Piece, ...]:
    component = parse(found["id"])
    name = component_of(names, component) if isinstance(component, Unit) else None
    if names is not None and name is not None:
        return pieces_of(names, name)
    return contributor_formula(Contributor.model_validate(found), names)


def _sum_line(result: dict[str, Any]) -> SumLine:
    """The line that closes the sum, in the words of a reading's."""
    groups = result["groups"]
    return SumLine(
        groups=tuple(Amount(name, groups[key]) for key, name in GROUPS if groups.get(key) or key == "attention"),
        floor=tuple(Amount(WHY_FLOOR.get(t["id"], t["id"].replace("_", " ")), t["value"]) for t in result["floor"]),
        sum=result["sum"],
        what="pre-activation",
        value=result["value"],
        residual=result["residual"],
        tolerance=result["tolerance"],
        shares=said_shares(Shares.model_validate(result["shares"])),
    )


def _made(read: Read, value: float, activation: float) -> str:
    if read.function == "linear":
        return f"{signed(value)}, linear"
    name = "σ" if read.function == "sigmoid" else PLAIN_NAMES[read.function]
    return f"{name}({signed(value)}) = {short(activation, 3)}"


def _reads(read: Read) -> str:
    where = "attention" if read.sublayer == "attention" else "feed-forward layer"
    heads, units = read.upstream()
    if not heads:
        return f"Reads the embeddings of its token alone: it stands in the {where} of layer 0."
    below = f"layers 0 to {units - 1}" if units > 1 else "layer 0" if units else ""
    own = f" and the heads of layer {read.layer}" if heads > units else ""
    return f"Reads what the embeddings, {below}{own} wrote at its token, in the {where} of layer {read.layer}.".replace(
        "embeddings,  and", "embeddings and"
    )


def _home(urls: Urls, slug: str, id: Component) -> tuple[str, str]:
    """The page that the operand belongs to: its pair's intersection, its quantifier, its head."""
    match id:
        case Operand(layer, pair, _):
            unit = Unit(layer, pair)
        case HeadOperand(layer, head, _, _) | Channel(layer, head, _):
            return str(Head(layer, head)), urls.head(slug, Head(layer, head))
        case _:
            unit = Unit(id.layer, id.unit)  # type: ignore[union-attr]
    return str(unit), urls.unit(slug, unit)


def _strip(displays: list[str], at: int, read: Read, result: dict[str, Any] | None) -> tuple[TokenChip, ...]:
    """The prompt; each token leads to the same operand there, shaded by its value once that is known."""
    series = [float(value) for value in result["series"]] if result is not None else []
    bounded = read.function == "sigmoid"
    shades = [min(4, int(v * 5)) for v in series] if bounded else attention_levels([max(0.0, v) for v in series])
    return tuple(
        TokenChip(
            display=display,
            href=f"?at={index}",
            title=f"{index}: {short(series[index])}" if index < len(series) else f"{index}",
            current=index == at,
            shade=shades[index] if index < len(shades) else 0,
        )
        for index, display in enumerate(displays)
    )


def _displays(services: Services, subject: Subject) -> list[str]:
    ids = list(subject.prompt.ids)
    try:
        rows = services.tokenizers.call("describe", subject.checkpoint.tokenizer_path, ids)
    except LegibleError:
        return [f"⟨{index}⟩" for index in ids]
    return [str(row["display"]) for row in rows]


def _reason(job: Job) -> str:
    return str((job.error or {}).get("message", "It was cancelled."))
