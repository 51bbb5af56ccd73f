"""The chosen head or unit of a reading: from the reading where it says enough, else from a job of the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.figures import attention_levels
from app.jobs import Job
from app.pages.formula import Piece, formula
from app.pages.limits import with_limits
from app.pages.named import channel_piece, names_of, pair_piece
from app.pages.panel import KIND_NAMES, Gathering, Look, Panel, PanelOperand, Why, component_panel, promoted
from app.pages.reading_view import Chosen, contributor_formula, guessed, with_shares
from app.services import Services
from app.urls import Urls
from legible_core.errors import LegibleError, NotFound
from legible_core.interventions import Edit
from legible_core.naming.names import Names
from legible_core.reading import Contributor, Promoted, Reading, ReadingRequest, Summary
from legible_core.registry import Checkpoint
from legible_core.units import BOUNDED, GLYPHS, Head, Unit, parse

LOOKS = 10
CHANNELS = 6
GATHERED = 2
OPENED = 4


@dataclass(frozen=True, slots=True)
class PanelChoice:
    """The panel, the shades of the token strip, and whether this is final or waits for the worker."""

    panel: Panel | None
    shades: tuple[int, ...] = ()
    final: bool = True


def panel_for(
    services: Services,
    urls: Urls,
    reading: Reading,
    chosen: Chosen,
    checkpoint: Checkpoint | None,
    *,
    slug: str,
    text: str,
    ask: bool = True,
) -> PanelChoice:
    """The panel of `chosen.component`, or of the strongest unit, a named one if it can be, when none is chosen.

    Without `ask` no worker is asked for what the reading does not say; what was found earlier is shown.
    Raises NotFound for a component that does not exist.
    """
    summary = reading.summary
    top = {c.id: c for c in summary.top}

    def why(operand: str, at: int) -> str:
        return urls.why(slug, summary.digest, operand, at=at)

    def why_here(operand: str) -> str:
        return why(operand, summary.position)

    def measured(of: Contributor) -> Contributor:
        return with_shares(of, None if checkpoint is None else names_of(checkpoint)[0])

    def bounded(panel: Panel, of: Contributor) -> Panel:
        return with_limits(panel, of, summary, None if checkpoint is None else checkpoint.config, urls, slug)

    if chosen.component is None:
        units = [c for c in summary.top if c.kind != "head"]
        strongest = next((c for c in units if c.kind in BOUNDED), units[0] if units else None)
        if strongest is None:
            return PanelChoice(None)
        panel = component_panel(measured(strongest), urls.unit(slug, strongest.id), why=why_here)
        return PanelChoice(bounded(panel, strongest))
    component = check_component(chosen.component, summary)
    href = urls.head(slug, component) if isinstance(component, Head) else urls.unit(slug, component)
    known = top.get(str(component))
    if known is not None and isinstance(component, Unit):
        return PanelChoice(bounded(component_panel(measured(known), href, why=why_here), known))
    base = _base(reading, component, known, href, checkpoint)
    if checkpoint is None:
        message = "Its checkpoint is not here any more, so only what the reading holds is shown."
        return PanelChoice(replace(base, message=message))
    job = services.queue.find(_detail_of(summary, str(component))[1])
    if not ask and (job is None or job.state != "done" or job.result is None):
        return PanelChoice(replace(base, message="The rest appears once it was looked at on the reading's page."))
    if job is None or (job.state == "done" and job.result is None):
        job = detail_job(services, summary, str(component), slug=slug, text=text)
    if job.state == "done" and job.result is not None:
        if job.result["kind"] != "head":
            found = Contributor.model_validate(job.result)
            return PanelChoice(bounded(component_panel(measured(found), href, why=why_here), found))
        displays = [token.display for token in summary.tokens]
        panel = head_panel(job.result, href, displays, names_of(checkpoint)[0], why)
        return PanelChoice(panel, tuple(attention_levels([float(weight) for weight in job.result["pattern"]])))
    if job.active or job.state == "done":
        poll = urls.reading(slug, summary.digest, **chosen.query())
        return PanelChoice(replace(base, message=state_of(services, job), poll=poll), final=False)
    reason = str((job.error or {}).get("message", "It was cancelled."))
    again = urls.job_part(job.id, "retry")
    return PanelChoice(replace(base, message=reason, fault=True, retry=again), final=False)


def check_component(text: str, summary: Summary) -> Head | Unit:
    """The head or unit with this id in a reading of this shape."""
    component = parse(text)
    layers, heads = summary.heads_shape
    units = summary.units_shape[1]
    if not isinstance(component, Head | Unit):
        raise LegibleError(
            f"{text} has no panel; choose a head such as L0.h0 or a unit such as L0.u0.", code="bad_component"
        )
    index, limit, what = (
        (component.head, heads, "head") if isinstance(component, Head) else (component.unit, units, "unit")
    )
    if component.layer >= layers:
        raise NotFound(f"There is no layer {component.layer}; this checkpoint has layers 0 to {layers - 1}.")
    if index >= limit:
        raise NotFound(f"There is no {what} {index}; a layer of this checkpoint has {what}s 0 to {limit - 1}.")
    return component


def detail_job(services: Services, summary: Summary, component: str, *, slug: str, text: str) -> Job:
    """The job that looks closer at one component of a stored reading; submitted once, kept while it is remembered."""
    request, key = _detail_of(summary, component)
    job = services.queue.find(key)
    if job is None or (job.state == "done" and job.result is None):
        payload = {"request": request.to_json(), "slug": slug, "text": text, "component": component}
        job = services.queue.submit("component", key, payload, subject=request.digest)
    return job


def _detail_of(summary: Summary, component: str) -> tuple[ReadingRequest, str]:
    """What a close-up asks of a worker, and the key of its job."""
    request = ReadingRequest(
        summary.checkpoint.hash,
        tuple(token.id for token in summary.tokens),
        summary.position,
        summary.target.id,
        None if summary.contrast is None else summary.contrast.id,
        summary.relative_to,
        summary.dtype,
        tuple(Edit.from_json(edit) for edit in summary.edits),
    )
    parts = (request.position, request.target, request.contrast, request.relative_to, component)
    return request, ":".join(["component", request.digest, *("-" if part is None else str(part) for part in parts)])


def _base(
    reading: Reading, component: Head | Unit, known: Contributor | None, href: str, checkpoint: Checkpoint | None
) -> Panel:
    """What the reading itself says, until the worker has looked closer."""
    if known is not None:
        return component_panel(known, href, pieces=contributor_formula(known, guess=guessed(reading.summary)))
    if isinstance(component, Head):
        kind, value = "head", float(reading.heads[component.layer, component.head])
    else:
        kind = checkpoint.config.feed_forward.kind(component.unit) if checkpoint is not None else "gelu"
        value = float(reading.units[component.layer, component.unit])
    return Panel(id=str(component), kind=kind, href=href, glyph=GLYPHS[kind], kind_name=KIND_NAMES[kind], value=value)


def head_panel(
    result: dict[str, Any], href: str, displays: Sequence[str], names: Names | None, why: Why | None = None
) -> Panel:
    """The panel of a head from what the worker found: its strongest channels, where it looks, what it finds there."""
    channels = result["channels"]
    looks, _ = findings(result, displays, names, why)
    promotes = tuple(Promoted.model_validate(p) for p in result.get("promotes", ())[:10])
    operands = tuple(
        PanelOperand(c["id"], channel_piece(names, c["id"]), float(c["activation"]), float(c["value"]), ())
        for c in channels[:CHANNELS]
    )
    # As in the table: the leading channel stands for the head.
    lead = operands[0].name if operands else Piece("attention head")
    return Panel(
        id=result["id"],
        kind="head",
        href=href,
        glyph=GLYPHS["head"],
        kind_name=f"attention head, {result['operation']} value",
        value=float(result["value"]),
        formula=(lead, *([Piece("…")] if len(channels) > 1 else []), *formula("", (), promotes, None)[1:]),
        target_rank=result.get("target_rank"),
        operands_title="Strongest channels",
        operands=operands,
        with_terms=True,
        promotes=promoted(promotes),
        looks=looks,
        gathers=any(look.found for look in looks),
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """A channel of a head in one reading: its part of the head's term, and what it gathers from the attended tokens."""

    id: str
    name: Piece
    gathered: float
    term: float
    tokens: tuple[str, ...]


def findings(
    result: dict[str, Any], displays: Sequence[str], names: Names | None, why: Why | None = None
) -> tuple[tuple[Look, ...], tuple[Finding, ...]]:
    """Where a head looks (the most attended tokens), and what its strongest channels find there.

    `why` gives the address that says why an operand was on at an attended token.
    """
    pattern, terms = result["pattern"], result["terms"]
    order = sorted(range(len(pattern)), key=lambda index: -pattern[index])[:LOOKS]
    gathering = [channel for channel in result["channels"] if channel.get("gathered")]
    looks = tuple(
        Look(
            position=index,
            display=displays[index],
            weight=float(pattern[index]),
            term=float(terms[index]),
            found="; ".join(_found(channel, index) for channel in gathering[:GATHERED]),
            opened=_opened(gathering, index, names, why),
        )
        for index in order
    )
    finds = tuple(
        Finding(
            id=channel["id"],
            name=channel_piece(names, channel["id"]),
            gathered=float(channel["activation"]),
            term=float(channel["value"]),
            tokens=tuple(f"{displays[index]} {_found(channel, index).partition(' ')[2]}" for index in order[:4]),
        )
        for channel in gathering[:CHANNELS]
    )
    return looks, finds


def _opened(
    gathering: Sequence[dict[str, Any]], index: int, names: Names | None, why: Why | None
) -> tuple[Gathering, ...]:
    """The operand values gathered from one token, pair by pair: both channels of a pair share its operands."""
    found: dict[str, Gathering] = {}
    for channel in gathering:
        operands = channel["gathered"]
        first, second = operands[0], operands[1] if len(operands) > 1 else None
        pair = first["id"].rpartition(".")[0] if second is not None else first["id"]
        if pair in found or len(found) == OPENED:
            continue
        found[pair] = Gathering(
            id=pair,
            names=channel_piece(names, channel["id"]) if second is None else pair_piece(names, pair),
            a=float(first["values"][index]),
            b=None if second is None else float(second["values"][index]),
            a_why=why(first["id"], index) if why else "",
            b_why=why(second["id"], index) if why and second is not None else "",
        )
    return tuple(found.values())


def _found(channel: dict[str, Any], index: int) -> str:
    """c19 A 0.98 B 0.02: what the head gathered in one channel from one token."""
    name = channel["id"].rpartition(".")[2]
    values = channel["gathered"]
    if len(values) == 1:
        return f"{name} {values[0]['values'][index]:.2f}"
    return f"{name} " + " ".join(f"{v['id'].rpartition('.')[2]} {v['values'][index]:.2f}" for v in values)


def state_of(services: Services, job: Job) -> str:
    if job.state == "waiting" and not any(worker.alive for worker in services.queue.workers()):
        return "No worker is alive; the rest appears as soon as one is."
    return "Looking closer…"
