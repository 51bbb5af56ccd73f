"""The accounting of a reading: how many components carry its prediction, which, and what opposes them.

    GET /models/{slug}/readings/{digest}/account?position=&target=&by=      …/account.json

Made once by a worker and kept like a close-up. It is always relative to the vocabulary's mean, whatever the reading
was relative to, so that a random token carries nothing. `by=heads` lists the set with heads whole; the JSON has both.
docs/accounting.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from app.account_figures import BARS, Step, mountain, waterfall
from app.jobs import Job
from app.pages.asking import Prompt, find_prompt
from app.pages.detail import state_of
from app.pages.formula import Piece
from app.pages.named import component_of, names_of, pieces_of
from app.pages.view import page, twin
from app.pages.waiting import unfinished
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.figures import perplexity_text
from legible_core.interventions import Edit
from legible_core.naming.names import Names
from legible_core.reading import ReadingRequest
from legible_core.registry import Checkpoint
from legible_core.units import GLYPHS, Channel, Head, Unit, parse

router = APIRouter(prefix="/models/{slug}/readings/{digest}", default_response_class=HTMLResponse)

DENOMINATORS = {
    "net": "of the signed net",
    "positive": "of the positive terms alone",
    "absolute": "of the absolute terms",
}
FIRST, SHOWN = 12, 40
By: TypeAlias = Literal["channels", "heads"]


@dataclass(frozen=True, slots=True)
class AskedAccount:
    """The query: None takes the last position, and the most probable token there. by: what the figures count."""

    position: int | None
    target: int | None
    by: By


def asked_account(
    position: Annotated[int | None, Query(ge=0, description="0-based; the last one when left out")] = None,
    target: Annotated[int | None, Query(ge=0, description="token id; the most probable one when left out")] = None,
    by: Annotated[By, Query(description="whether a head is one component or as many as it has channels")] = "channels",
) -> AskedAccount:
    return AskedAccount(position, target, by)


@dataclass(frozen=True, slots=True)
class Count:
    """n_80, n_90, n_99 under one denominator, channel by channel and with heads whole, as text."""

    name: str
    channels: tuple[str, ...]
    heads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    glyph: str
    value: float
    share: float | None
    running: float
    formula: tuple[Piece, ...]
    href: str


@dataclass(frozen=True, slots=True)
class LayerShare:
    layer: int
    attention: float | None
    feed_forward: float | None


@dataclass(frozen=True, slots=True)
class Accounting:
    """What the worker found, ready to be written down; the figures are None where the net is not positive."""

    target: str
    probability: float
    rank: int
    net: float
    floor: float
    value: float
    residual: float
    tolerance: float
    n90: int | None
    components: int
    opposing: float
    opposing_over_net: float | None
    counts: tuple[Count, ...]
    members: tuple[Member, ...]
    more: int
    against: tuple[Member, ...]
    attention: float | None
    attention_heads: float | None
    layers: tuple[LayerShare, ...]
    waterfall: Markup | None
    mountain: Markup


@dataclass(frozen=True, slots=True)
class AccountPage:
    """`found` is None while the worker has not been here; then `message` says where it is, `poll` where to ask."""

    title: str
    slug: str
    digest: str
    read: str
    quality: str
    reading_href: str
    json_href: str
    other: By
    other_href: str
    command: str
    message: str
    fault: bool
    poll: str
    retry: str
    found: Accounting | None
    first: int = FIRST


@router.get("/account.json")
def account_json(
    slug: str,
    digest: str,
    asked: Annotated[AskedAccount, Depends(asked_account)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The whole document, or 202 and the job while it is not made yet."""
    prompt, checkpoint = _subject(services, digest)
    job = _job(services, prompt, checkpoint, asked)
    if job.state != "done" or job.result is None:
        return unfinished(services, job)
    return twin({**job.result, "perplexity": checkpoint.perplexity})


@router.get("/account")
def account(
    slug: str,
    digest: str,
    request: Request,
    asked: Annotated[AskedAccount, Depends(asked_account)],
    services: Annotated[Services, Depends(services)],
) -> Response:
    """The accounting of one prediction."""
    urls = urls_for(request)
    prompt, checkpoint = _subject(services, digest)
    if not services.catalogue.names(slug, checkpoint.hash):
        where = {"position": asked.position, "target": asked.target, "by": _spelled(asked.by)}
        address = urls.reading_part(prompt.slug, digest, "account", **where)
        return RedirectResponse(address, status_code=303)
    job = _job(services, prompt, checkpoint, asked)
    return page(request, "account.html", _page(services, urls, slug, prompt, checkpoint, asked, job))


def _subject(services: Services, digest: str) -> tuple[Prompt, Checkpoint]:
    prompt = find_prompt(services, digest)
    return prompt, services.catalogue.get(prompt.checkpoint_hash)


def _job(services: Services, prompt: Prompt, checkpoint: Checkpoint, asked: AskedAccount) -> Job:
    """The job that accounts for it; submitted once, and again when its result was forgotten."""
    stored = services.store.prompt(prompt.digest)
    edits = () if stored is None else tuple(Edit.from_json(edit) for edit in stored.edits)
    dtype: Any = prompt.dtype
    position = len(prompt.ids) - 1 if asked.position is None else asked.position
    request = ReadingRequest(prompt.checkpoint_hash, prompt.ids, position, asked.target, dtype=dtype, edits=edits)
    request.check(checkpoint.config)
    # The number is that of the document's form: what was kept in an older one is made again.
    key = f"account:2:{prompt.digest}:{position}:{'-' if asked.target is None else asked.target}"
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {"request": request.to_json(), "slug": prompt.slug, "text": prompt.text}
        job = services.queue.submit("account", key, payload, subject=prompt.digest)
    return job


def _page(
    services: Services, urls: Urls, slug: str, prompt: Prompt, checkpoint: Checkpoint, asked: AskedAccount, job: Job
) -> AccountPage:
    result = job.result if job.state == "done" else None
    failed = job.state in ("failed", "cancelled")
    where: dict[str, Any] = {"position": asked.position, "target": asked.target}
    if result is not None:
        where = {"position": result["position"], "target": result["target"]["id"]}
    here = urls.reading_part(slug, prompt.digest, "account", **where, by=_spelled(asked.by))
    other: By = "channels" if asked.by == "heads" else "heads"
    found = None if result is None else _found(urls, slug, prompt.digest, result, checkpoint, asked.by)
    perplexity = checkpoint.perplexity
    return AccountPage(
        title=f"Accounting{'' if found is None else f' of {found.target}'} · {slug}",
        slug=slug,
        digest=prompt.digest,
        read=_read(result) if result is not None else "",
        quality="no perplexity is known of this checkpoint"
        if perplexity is None
        else f"perplexity {perplexity_text(perplexity)}",
        reading_href=urls.reading(slug, prompt.digest, **where),
        json_href=urls.json(here),
        other=other,
        # As it was asked, so that it is the same job's result.
        other_href=urls.reading_part(
            slug, prompt.digest, "account", position=asked.position, target=asked.target, by=_spelled(other)
        ),
        command=_command(slug, prompt, where, asked.by),
        message="" if result is not None else _reason(job) if failed else state_of(services, job),
        fault=failed,
        poll="" if result is not None or failed else here,
        retry=urls.job_part(job.id, "retry") if failed else "",
        found=found,
    )


def _reason(job: Job) -> str:
    return str((job.error or {}).get("message", "It was cancelled."))


def _read(result: dict[str, Any]) -> str:
    """The end of the text up to the read position."""
    read = b"".join(bytes.fromhex(token["bytes"]) for token in result["tokens"][: result["position"] + 1])
    text = read.decode("utf-8", "replace")
    return text if len(text) <= 120 else f"…{text[-119:]}"


def _spelled(by: By) -> str | None:
    """As an address has it, which leaves out what is so anyhow."""
    return None if by == "channels" else by


def _command(slug: str, prompt: Prompt, where: dict[str, Any], by: By) -> str:
    import shlex

    words = ["legible", "account", slug, prompt.text]
    for name, value in where.items():
        words += [] if value is None else [f"--{name}", f"id:{value}" if name == "target" else str(value)]
    return shlex.join([*words, *(["--heads"] if by == "heads" else [])])


def _found(urls: Urls, slug: str, digest: str, result: dict[str, Any], checkpoint: Checkpoint, by: By) -> Accounting:
    names = names_of(checkpoint)[0]
    channels, heads = result["channels"], result["heads"]
    chosen = channels if by == "channels" else heads
    # The set, what opposes it and the curve stand beside the counts by channels, and within those by heads.
    listed = {**result, "against": result["opposing"]} if by == "channels" else heads
    net, n90 = chosen["net"], chosen["counts"]["net"]["n90"]
    where = {"position": result["position"], "target": result["target"]["id"]}

    def member(row: dict[str, Any]) -> Member:
        component = parse(row["id"])
        assert isinstance(component, Unit | Channel | Head)
        shown = Head(component.layer, component.head) if isinstance(component, Channel) else component
        return Member(
            row["id"], _glyph(component, checkpoint), row["value"], row["share"], row["running"],
            _formula(component, names, checkpoint), urls.reading(slug, digest, **where, component=str(shown)),
        )  # fmt: skip

    members = tuple(member(row) for row in listed["members"][:SHOWN])
    steps = [Step(m.id, m.value, m.href) for m in members[:BARS]]
    if n90 is not None:
        drawn = sum(step.value for step in steps)
        rest = n90 - len(steps)
        if rest > 0:
            inside = listed["members"][-1]["running"] if not listed["left_out"] else 0.9 * net
            steps.append(Step(f"the {rest:,} others of the set", inside - drawn))
            drawn = inside
        steps.append(Step(f"all {chosen['components'] - n90:,} other components", net - drawn))
    return Accounting(
        target=result["target"]["display"],
        probability=result["target"]["probability"],
        rank=result["target"]["rank"],
        net=net,
        floor=sum(row["value"] for row in result["floor"]),
        value=result["value"],
        residual=result["residual"],
        tolerance=result["tolerance"],
        n90=n90,
        components=chosen["components"],
        opposing=chosen["opposing"],
        opposing_over_net=chosen["opposing_over_net"],
        counts=tuple(
            Count(words, _counts(channels["counts"][name]), _counts(heads["counts"][name]))
            for name, words in DENOMINATORS.items()
        ),
        members=members,
        more=(n90 or 0) - len(members),
        against=tuple(member(row) for row in listed["against"][:8]),
        attention=channels["shares"]["attention"],
        attention_heads=heads["shares"]["attention"],
        layers=tuple(
            LayerShare(row["layer"], row["attention"], row["feed_forward"]) for row in chosen["shares"]["layers"]
        ),
        waterfall=waterfall(steps, net, 0.9 * net) if n90 is not None else None,
        mountain=mountain([(int(count), float(total)) for count, total in listed["curve"]], n90, net),
    )


def _counts(row: dict[str, int | None]) -> tuple[str, ...]:
    return tuple("–" if row[f"n{percent}"] is None else f"{row[f'n{percent}']:,}" for percent in (80, 90, 99))


def _glyph(component: Unit | Channel | Head, checkpoint: Checkpoint) -> str:
    return GLYPHS[checkpoint.config.feed_forward.kind(component.unit) if isinstance(component, Unit) else "head"]


def _formula(component: Unit | Channel | Head, names: Names | None, checkpoint: Checkpoint) -> tuple[Piece, ...]:
    if isinstance(component, Head):
        return (Piece("all channels of a head"),)
    name = component_of(names, component)
    if names is None or name is None:
        return (Piece("channel of a head" if isinstance(component, Channel) else "unit"),)
    return pieces_of(names, name)
