"""What the pages of monitors show, as typed contexts: conditions by name, rates, drift, flagged spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from app.jobs import Job
from app.monitor_figures import Bucket, buckets, rate_bars
from app.monitors import StoredBlock, StoredHit, StoredMonitor, Stream
from app.pages.formula import Piece, operand_piece
from app.pages.named import component_of, names_of, pieces_of
from app.services import Services
from app.urls import Urls
from app.watching import key
from legible_core.drift import Counted, Drift, corrected, drift
from legible_core.errors import LegibleError, NotFound
from legible_core.hits import BLOCK, KEPT
from legible_core.monitor import Condition, Monitor
from legible_core.naming.names import Names
from legible_core.reads import measure
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

SPANS = 40
RULE = f"Every hit is counted; of each {BLOCK} tokens the first {KEPT} hits keep their context."


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A condition as a row: what it requires ("" where it is only watched), and what its component is called."""

    component: str
    href: str
    said: str
    measures: str
    formula: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class DriftView:
    """A detector's ON rate here against its scan's; `found` is None where nothing was read, `why` where no test is."""

    component: str
    expected: float | None
    found: Drift | None
    why: str


@dataclass(frozen=True, slots=True)
class Chip:
    """A token; `shade` 0 to 4 by the value of the first condition's component, `said` its values in words."""

    display: str
    shade: int
    said: str
    hit: bool


@dataclass(frozen=True, slots=True)
class Span:
    """Hits that follow one another, with what stands before them."""

    stream: int
    href: str
    token: int
    offset: int
    count: int
    chips: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A stream in a list: its state in a word, and its counts."""

    id: int
    href: str
    kind: str
    state: str
    tokens: int
    hits: int
    kept: int
    date: str


def conditions_of(services: Services, urls: Urls, checkpoint: Checkpoint, monitor: Monitor) -> list[ConditionView]:
    """The conditions as rows."""
    names = names_of(checkpoint)[0]
    return [
        ConditionView(
            str(c.component),
            _address(urls, checkpoint.slug, c.component),
            said_of(c),
            measure(checkpoint.config, c.component).said,
            _named(names, c.component),
        )
        for c in monitor.conditions
    ]


def said_of(condition: Condition) -> str:
    """The requirement in words."""
    return str(condition).partition(" ")[2] if condition.requires else ""


def gate_said(monitor: Monitor) -> str:
    """What a hit does while text is generated, in a sentence; "" without a gate."""
    if monitor.gate is None:
        return ""
    if monitor.gate.stop:
        return "A hit stops the text, read or generated."
    edits = ", ".join(monitor.to_json()["gate"]["edits"])
    return f"While text is generated, a hit's token is read again with {edits}."


def drift_of(
    checkpoint: Checkpoint, monitor: Monitor, streams: Sequence[Stream], blocks: dict[int, list[StoredBlock]]
) -> list[DriftView]:
    """Each detector's ON rate over the texts that were sent, tested against the checkpoint's scan.

    Text that the checkpoint wrote itself is left out: a scan of other people's text is no measure of it.
    """
    names, why = names_of(checkpoint)
    read = [block for stream in streams if stream.kind == "read" for block in blocks.get(stream.id, ())]
    rows: list[tuple[str, float | None, Drift | None, str]] = []
    for component in monitor.components:
        id = str(component)
        rate = on_rate(names, checkpoint, component) if names is not None else None
        if rate is None:
            bounded = measure(checkpoint.config, component).bounded
            rows.append((id, None, None, (why or "") if bounded else "It has no rails, so ON is undefined for it."))
            continue
        counted = [Counted(block.tokens, block.on[id]) for block in read if id in block.on]
        found = drift(rate, counted)
        rows.append((id, rate, found, "" if found is not None else "Nothing was read yet."))
    tested = corrected([row[2] for row in rows])
    return [DriftView(id, rate, found, why) for (id, rate, _, why), found in zip(rows, tested, strict=True)]


def on_rate(names: Names, checkpoint: Checkpoint, component: Component) -> float | None:
    """The share of the scan's tokens on which a component was ON; None where it has no rails or no such figure."""
    if not measure(checkpoint.config, component).bounded:
        return None
    try:
        return names.operand(component).on
    except NotFound:
        pass
    try:
        return names.component(component).on
    except NotFound:
        return None


def rates_of(blocks: dict[int, list[StoredBlock]]) -> tuple[tuple[Bucket, ...], Markup]:
    """Hits per token over the time in which they were read, as numbers and as a figure ("" for a single bar)."""
    found = buckets([(block.at, block.tokens, block.hits) for rows in blocks.values() for block in rows])
    return found, rate_bars(found) if len(found) > 1 else Markup("")


def spans_of(
    services: Services, urls: Urls, checkpoint: Checkpoint, monitor: Monitor,
    hits: Sequence[tuple[Stream, StoredHit]], most: int = SPANS,
) -> list[Span]:  # fmt: skip
    """Hits of neighbouring tokens together, each token shaded by its value among these hits'; at most `most` spans."""
    ids = sorted({index for _, hit in hits for index in hit.context})
    rows = services.tokenizers.call("describe", checkpoint.tokenizer_path, ids) if ids else []
    display = {index: str(row["display"]) for index, row in zip(ids, rows, strict=True)}
    first = monitor.required[0]
    sizes = [abs(hit.values.get(str(first.component), 0.0)) for _, hit in hits]
    low, top = min(sizes, default=0.0), max(sizes, default=0.0)
    groups: list[list[tuple[Stream, StoredHit]]] = []
    for stream, hit in hits:
        last = groups[-1][-1] if groups else None
        if last is not None and last[0].id == stream.id and last[1].token + 1 == hit.token:
            groups[-1].append((stream, hit))
        else:
            groups.append([(stream, hit)])
    made = []
    for group in groups[:most]:
        stream, begin = group[0]
        chips = [Chip(display[index], 0, "before it", False) for index in begin.context[:-1]]
        for _, hit in group:
            value = abs(hit.values.get(str(first.component), 0.0))
            shade = min(4, 1 + int(4 * (value - low) / (top - low))) if top > low else 4
            said = ", ".join(f"{name} {number:.3g}" for name, number in hit.values.items())
            chips.append(Chip(display[hit.id], shade, f"token {hit.token:,}: {said}", True))
        href = urls.monitors(stream.monitor_id, "streams", stream.id)
        made.append(Span(stream.id, href, begin.token, begin.offset, len(group), tuple(chips)))
    return made


def line_of(urls: Urls, stream: Stream, job: Job | None) -> StreamLine:
    """A stream in a list."""
    return StreamLine(
        stream.id,
        urls.monitors(stream.monitor_id, "streams", stream.id),
        "generated" if stream.kind == "generate" else "read",
        state_of(stream, job),
        stream.tokens,
        stream.hits,
        stream.kept,
        date(stream.updated_at),
    )


def state_of(stream: Stream, job: Job | None) -> str:
    """Where a stream is, in a word or two."""
    if stream.ended:
        summary = stream.summary or {}
        return "ended: " + (
            "bad bytes or values"
            if summary.get("error")
            else "stopped by its gate"
            if summary.get("stopped")
            else "whole"
        )
    if job is not None and job.state in ("failed", "cancelled"):
        return job.state
    if job is not None and job.active:
        return "being read" if job.state == "running" else "waiting for a worker"
    return "open"


def job_of(services: Services, stream: Stream) -> Job | None:
    """The job that brings a stream up to date, if there is one."""
    return services.queue.find(key(stream))


def date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def checkpoint_of(services: Services, stored: StoredMonitor) -> Checkpoint:
    """The checkpoint of a monitor; NotFound, saying so, where it is gone."""
    try:
        return services.catalogue.get(stored.checkpoint_hash)
    except LegibleError:
        raise NotFound(
            f"The checkpoint {stored.slug} ({stored.checkpoint_hash[:12]}) of this monitor is not here any more.",
            hint="Add it again with `legible add`, or delete the monitor.",
        ) from None


def _address(urls: Urls, slug: str, component: Component) -> str:
    """The page on which a component is shown: its own, or that of the unit or head which it belongs to."""
    match component:
        case Head(layer, head) | Channel(layer, head, _) | HeadOperand(layer, head, _, _):
            return urls.head(slug, Head(layer, head))
        case QuantifierOperand(layer, unit):
            return urls.unit(slug, Unit(layer, unit))
        case Operand(layer, pair, _):
            return urls.unit(slug, Unit(layer, pair))
    return urls.unit(slug, component)


def _named(names: Names | None, component: Component) -> tuple[Piece, ...]:
    if names is None:
        return ()
    if isinstance(component, Unit | Channel):
        found = component_of(names, component)
        return () if found is None else pieces_of(names, found)
    try:
        return (operand_piece(names.operand(component)),)
    except NotFound:
        return ()
