"""A stored text with components stacked over its tokens → everything its page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.jobs import Job
from app.pages.asking import Prompt
from app.pages.detail import state_of
from app.pages.formula import Piece
from app.pages.named import component_of, names_of, operand_word, pieces_of
from app.pages.view import clipped
from app.services import Services
from app.urls import Urls
from legible_core.errors import NotFound
from legible_core.naming.names import Names
from legible_core.reads import Measure, measure, opens
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

MAX_COMPONENTS = 8
MAX_TEXT_BYTES = 32_768
PART = 512
HIGHEST = 5

LIMITS = f"Up to {MAX_COMPONENTS} components, and a text of up to {MAX_TEXT_BYTES:,} bytes."

Href = Callable[..., str]
Series = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Cell:
    """A component's value on one token, and its shade from 0 to 4."""

    value: float
    shade: int


@dataclass(frozen=True, slots=True)
class Column:
    """One token with the values of all components, in their order; no cells while its part is not there yet."""

    position: int
    display: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class High:
    display: str
    position: int
    value: float
    href: str


@dataclass(frozen=True, slots=True)
class Stacked:
    """One of the stacked components: what it is, what its value means, and how it was over the tokens so far."""

    id: str
    href: str
    formula: tuple[Piece, ...]
    measure: Measure
    mean: float | None
    most: float | None
    on: float | None
    highest: tuple[High, ...]
    without_href: str


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the text; `state` is done, waiting or failed."""

    name: str
    href: str
    state: str
    current: bool
    said: str
    retry: str


@dataclass(frozen=True, slots=True)
class ValuesPage:
    title: str
    slug: str
    digest: str
    components: str
    text: str
    context: int
    limits: str
    n_tokens: int
    windowed: str
    stacked: tuple[Stacked, ...]
    columns: tuple[Column, ...]
    parts: tuple[Part, ...]
    poll: str
    message: str
    json_href: str
    delete_href: str
    table: bool
    other_view: str


@dataclass(frozen=True, slots=True)
class Looked:
    """A stored text, the components asked for, and for each part its values (None: not there yet) and its job."""

    checkpoint: Checkpoint
    prompt: Prompt
    components: tuple[Component, ...]
    spans: tuple[tuple[int, int], ...]
    jobs: tuple[Job, ...]
    values: tuple[np.ndarray | None, ...]

    @property
    def done(self) -> int:
        return sum(found is not None for found in self.values)


def values_page(services: Services, urls: Urls, looked: Looked, part: int, table: bool = False) -> ValuesPage:
    """One part of the text; with `table` as numbers."""
    slug, digest = looked.checkpoint.slug, looked.prompt.digest
    listed = ",".join(map(str, looked.components))

    def href(**query: Any) -> str:
        chosen = {"components": listed, "part": part or None, "view": "table" if table else None, **query}
        return urls.values(slug, digest, **chosen)

    first, last = looked.spans[part]
    series = _series(looked)
    highest = [np.argsort(-values, kind="stable")[:HIGHEST].tolist() for _, values in series]
    shown = [
        *range(first, last),
        *(int(places[i]) for (places, _), best in zip(series, highest, strict=True) for i in best),
    ]
    displays = displays_of(services, looked, shown)
    known = dict(zip(shown, displays, strict=True))
    measures = [measure(looked.checkpoint.config, component) for component in looked.components]
    job = looked.jobs[part]
    return ValuesPage(
        title=f"{', '.join(map(str, looked.components))} over “{clipped(looked.prompt.text, 40)}” · {slug}",
        slug=slug,
        digest=digest,
        components=listed,
        text="",
        context=looked.checkpoint.config.context,
        limits=LIMITS,
        n_tokens=len(looked.prompt.ids),
        windowed=windowed(looked),
        stacked=_stacked(urls, looked, measures, names_of(looked.checkpoint)[0], series, known, href),
        columns=_columns(displays[: last - first], first, looked.values[part], measures, series),
        parts=tuple(_part(urls, looked, index, index == part, href) for index in range(len(looked.spans))),
        poll=href() if any(job.active for job in looked.jobs) else "",
        message=_waiting(services, job) if looked.values[part] is None and job.active else "",
        json_href=urls.json(urls.values(slug, digest, components=listed)),
        delete_href=urls.values(slug, digest, "delete"),
        table=table,
        other_view=href(view=None if table else "table"),
    )


def form_page(checkpoint: Checkpoint, components: Sequence[Component], text: str) -> ValuesPage:
    """The form alone, filled in with what is known."""
    return ValuesPage(
        title=f"Components over a text · {checkpoint.slug}",
        slug=checkpoint.slug,
        digest="",
        components=",".join(map(str, components)),
        text=text,
        context=checkpoint.config.context,
        limits=LIMITS,
        n_tokens=0,
        windowed="",
        stacked=(),
        columns=(),
        parts=(),
        poll="",
        message="",
        json_href="",
        delete_href="",
        table=False,
        other_view="",
    )


def _waiting(services: Services, job: Job) -> str:
    """Where the part in sight is: in the line, or at which window."""
    if job.state == "running" and job.total:
        return f"Window {int(job.done or 0) + 1} of {int(job.total)}…"
    return state_of(services, job)


def _series(looked: Looked) -> list[Series]:
    """For each component the positions that are there so far, and the values on them."""
    there = [
        (first, values) for (first, _), values in zip(looked.spans, looked.values, strict=True) if values is not None
    ]
    if not there:
        return [(np.zeros(0, int), np.zeros(0)) for _ in looked.components]
    places = np.concatenate([np.arange(first, first + values.shape[1]) for first, values in there])
    return [(places, np.concatenate([v[index] for _, v in there])) for index in range(len(looked.components))]


def _stacked(
    urls: Urls,
    looked: Looked,
    measures: Sequence[Measure],
    names: Names | None,
    series: Sequence[Series],
    known: Mapping[int, str],
    href: Href,
) -> tuple[Stacked, ...]:
    slug, digest, config = looked.checkpoint.slug, looked.prompt.digest, looked.checkpoint.config
    found = []
    for component, said, (places, values) in zip(looked.components, measures, series, strict=True):
        others = ",".join(str(c) for c in looked.components if c != component)
        # A sum over what is upstream belongs to a prompt that is read as a whole.
        asks = not isinstance(component, Head) and not opens(config, component)
        asks = asks and len(looked.prompt.ids) <= config.context

        def where(place: int, component: Component = component, asks: bool = asks) -> str:
            if asks:
                return urls.why(slug, digest, component, at=place)
            return f"{href(part=place // PART or None)}#t{place}"

        found.append(
            Stacked(
                id=str(component),
                href=home_of(urls, slug, component),
                formula=_formula(names, component),
                measure=said,
                mean=float(values.mean()) if values.size else None,
                most=float(values.max()) if values.size else None,
                on=float((values > 0.9).mean()) if values.size and said.bounded else None,
                highest=tuple(
                    High(known[int(places[i])], int(places[i]), float(values[i]), where(int(places[i])))
                    for i in np.argsort(-values, kind="stable")[:HIGHEST]
                    if values[i] > 0
                ),
                without_href=href(components=others) if others else "",
            )
        )
    return tuple(found)


def _columns(
    displays: Sequence[str],
    first: int,
    here: np.ndarray | None,
    measures: Sequence[Measure],
    series: Sequence[Series],
) -> tuple[Column, ...]:
    if here is None:
        return tuple(Column(first + i, display, ()) for i, display in enumerate(displays))
    # What has no rails is shaded by its share of the largest value in the text so far.
    peaks = [
        1.0 if m.bounded else float(np.abs(v).max(initial=0.0)) or 1.0
        for m, (_, v) in zip(measures, series, strict=True)
    ]
    shades = np.minimum(4, np.abs(here) / np.array(peaks)[:, None] * 5).astype(int)
    return tuple(
        Column(
            first + i,
            display,
            tuple(Cell(float(v), int(shade)) for v, shade in zip(here[:, i], shades[:, i], strict=True)),
        )
        for i, display in enumerate(displays)
    )


def _part(urls: Urls, looked: Looked, index: int, current: bool, href: Href) -> Part:
    job = looked.jobs[index]
    first, last = looked.spans[index]
    failed = job.state in ("failed", "cancelled")
    return Part(
        name=f"{first}–{last - 1}",
        href=href(part=index or None),
        state="done" if looked.values[index] is not None else "failed" if failed else "waiting",
        current=current,
        said=str((job.error or {}).get("message", "It was cancelled.")) if failed else "",
        retry=urls.job_part(job.id, "retry") if failed else "",
    )


def _formula(names: Names | None, component: Component) -> tuple[Piece, ...]:
    if isinstance(component, Unit | Channel):
        name = component_of(names, component)
        return () if names is None or name is None else pieces_of(names, name)
    word = None if isinstance(component, Head) else operand_word(names, component)
    return () if word is None else (word,)


def home_of(urls: Urls, slug: str, component: Component) -> str:
    """The page that a component belongs to."""
    match component:
        case Unit():
            return urls.unit(slug, component)
        case Operand(layer, pair, _):
            return urls.unit(slug, Unit(layer, pair))
        case QuantifierOperand(layer, unit):
            return urls.unit(slug, Unit(layer, unit))
        case Head(layer, head) | Channel(layer, head, _) | HeadOperand(layer, head, _, _):
            return urls.head(slug, Head(layer, head))
    raise NotFound(f"{component} has no page.")


def displays_of(services: Services, looked: Looked, places: Sequence[int]) -> list[str]:
    """The chips of the tokens at these positions."""
    ids = [looked.prompt.ids[place] for place in places]
    rows = services.tokenizers.call("describe", looked.checkpoint.tokenizer_path, ids)
    return [str(row["display"]) for row in rows]


def windowed(looked: Looked) -> str:
    """How the text was read, in one sentence."""
    context, count = looked.checkpoint.config.context, len(looked.prompt.ids)
    if count <= context:
        return f"Read in one window: its {count} tokens fit the context of {context}."
    half = max(1, context // 2)
    return (
        f"Read in windows of {context} tokens that start {half} after one another; a token's values are those of the "
        f"window in which at least {context - half} tokens stand before it. Attention and quantifiers remember what "
        "that window holds and nothing before it."
    )
