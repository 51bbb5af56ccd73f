"""A comparison → everything its page, its JSON and its CSV say."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from app.figures import heads_grid, unit_strips
from app.jobs import Job
from app.pages.compare_form import CompareForm, compare_form, slugs
from app.pages.compare_sides import Side
from app.pages.detail import check_component
from app.pages.formula import Piece, plain
from app.pages.home import Card
from app.pages.named import component_of, names_of, pieces_of
from app.pages.reading_view import contributor_formula, guessed
from app.pages.renamed import said_renamed
from app.pages.sum_line import FLOOR_NAMES, GROUPS
from app.pages.view import clipped
from app.pages.waiting import Step
from app.services import Services
from app.urls import Urls
from legible_core.compare import Alignment, Comparison, Delta
from legible_core.naming.names import Names
from legible_core.reading import Reading, Summary
from legible_core.units import GLYPHS, Unit, parse

SHOWN = 30
STRONGEST = 12
GROUP_NAMES = {**dict(GROUPS), "floor": "floor"}
WHAT = {"nothing": "logit", "mean": "logit − mean", "contrast": "logit difference"}


@dataclass(frozen=True, slots=True)
class WaitingSide:
    """A side while it is made; `job` is None once it is there."""

    name: str
    text: str
    slug: str
    job: Job | None
    steps: tuple[Step, ...]
    said: str
    reason: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class WaitPage:
    title: str
    sides: tuple[WaitingSide, ...]
    poll: str


@dataclass(frozen=True, slots=True)
class ChoosePage:
    title: str
    form: CompareForm | None
    recent: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class StripToken:
    display: str
    title: str
    changed: bool
    current: bool


@dataclass(frozen=True, slots=True)
class SideView:
    """One side as it stands beside the other."""

    name: str
    slug: str
    href: str
    summary: Summary
    what: str
    made: str
    strip: tuple[StripToken, ...]
    heads_svg: Markup
    strips_svg: Markup
    strongest: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A component: its terms on both sides; for different checkpoints on one side alone."""

    id: str
    glyph: str
    formula: tuple[Piece, ...]
    left: float | None
    right: float | None
    difference: float | None
    left_href: str
    right_href: str


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A run of both prompts; `sign` is = for equal, ≠ for replaced, − for left out on the right, + for put in."""

    sign: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    left_at: str
    right_at: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    title: str
    left: SideView
    right: SideView
    found: Comparison
    renamed: tuple[str, ...]
    alignment: Alignment
    groups: tuple[Delta, ...]
    floor: tuple[Delta, ...]
    layers: tuple[Delta, ...]
    changes: tuple[Change, ...]
    n_components: int
    n_changed: int
    tokens: tuple[TokenRow, ...]
    self_href: str
    swap_href: str
    json_href: str
    csv_href: str
    form: CompareForm


def comparison_page(
    services: Services, urls: Urls, found: Comparison, sides: tuple[Side, ...], here: str
) -> ComparePage:
    """The context of compare.html. Raises NotFound for a component that a side's address names and its model lacks."""
    left, right = sides
    scales = tuple(
        max(float(np.abs(ours).max(initial=0.0)), float(np.abs(theirs).max(initial=0.0)))
        for ours, theirs in ((found.left.heads, found.right.heads), (found.left.units, found.right.units))
    )
    changed = [row for row in found.components if row.difference]
    views = tuple(
        _side(urls, side, reading, found, scales)
        for side, reading in zip(sides, (found.left, found.right), strict=True)
    )
    query = {"left": left.address(urls), "right": right.address(urls)}
    return ComparePage(
        title=_title(found, sides),
        left=views[0],
        right=views[1],
        found=found,
        renamed=_renamed(found, sides),
        alignment=found.alignment,
        groups=tuple(
            Delta(GROUP_NAMES.get(row.id, row.id), row.left, row.right)
            for row in found.groups
            if row.left or row.right or row.id in ("attention", "floor")
        ),
        floor=tuple(
            Delta(FLOOR_NAMES.get(row.id, row.id.replace("_", " ")), row.left, row.right) for row in found.floor
        ),
        layers=found.layers,
        changes=_changes(urls, found, sides, found.components[:SHOWN]),
        n_components=len(found.components),
        n_changed=len(changed),
        tokens=_token_rows(found),
        self_href=here,
        swap_href=urls.compare(left=query["right"], right=query["left"]),
        json_href=urls.compare("json", **query),
        csv_href=urls.compare("csv", **query),
        form=compare_form(
            urls, found.left.summary, left.chosen, slug=left.slug, text=left.prompt.text, checkpoints=slugs(services)
        ),
    )


def _title(found: Comparison, sides: tuple[Side, ...]) -> str:
    parts = [
        f"“{clipped(side.prompt.text, 24)}” → {reading.summary.target.display} · {side.slug}"
        for side, reading in zip(sides, (found.left, found.right), strict=True)
    ]
    return " beside ".join(parts)


def _side(urls: Urls, side: Side, reading: Reading, found: Comparison, scales: tuple[float, ...]) -> SideView:
    summary = reading.summary
    shown = None
    if side.chosen.component is not None:
        shown = str(check_component(side.chosen.component, summary))

    def href(component: str) -> str:
        return _component_href(urls, side, component)

    layout = None if side.checkpoint is None else side.checkpoint.config.feed_forward

    def glyph(unit: int) -> str:
        return GLYPHS[layout.kind(unit)] if layout is not None else ""

    changed = {
        index
        for row in found.tokens
        if not row.same
        for index in range(*(row.left if side.name == "left" else row.right))
    }
    named = [c.id for c in summary.top if c.kind != "head"]
    return SideView(
        name=side.name,
        slug=side.slug,
        href=side.address(urls),
        summary=summary,
        what=WHAT[summary.relative_to],
        made=_made(side),
        strip=tuple(
            StripToken(token.display, f"{i}: token {token.id}", i in changed, i == summary.position)
            for i, token in enumerate(summary.tokens)
        ),
        heads_svg=heads_grid(reading.heads, href, shown, scales[0]),
        strips_svg=unit_strips(reading.units, href, glyph, shown, named, scales[1]),
        strongest=_strongest(urls, side, reading),
    )


def _made(side: Side) -> str:
    """Which revision this is, where the address names one."""
    if side.stored is None or side.asked.revision is None:
        return ""
    return f"revision {side.stored.revision}, by Legible {side.stored.code_version}"


def _component_href(urls: Urls, side: Side, component: str) -> str:
    return urls.reading(side.slug, side.prompt.digest, **{**side.chosen.query(), "component": component})


def _changes(urls: Urls, found: Comparison, sides: tuple[Side, ...], rows: tuple[Delta, ...]) -> tuple[Change, ...]:
    """Components of one set of weights, named; the reading's own words where a side lists it among its strongest."""
    left, right = sides
    names = _names(left)
    listed = None if _renamed(found, sides) else names
    top = {c.id: c for c in (*found.right.summary.top, *found.left.summary.top)}
    made = []
    for row in rows:
        glyph, formula = "h" if ".h" in row.id else "", tuple[Piece, ...]()
        if row.id in top:
            glyph, formula = top[row.id].glyph, contributor_formula(top[row.id], listed, guessed(found.left.summary))
        else:
            glyph, formula = _named(left, names, row.id)
        made.append(
            Change(
                row.id, glyph, formula, row.left, row.right, row.difference,
                _component_href(urls, left, row.id), _component_href(urls, right, row.id),
            )
        )  # fmt: skip
    return tuple(made)


def _named(side: Side, names: Names | None, component: str) -> tuple[str, tuple[Piece, ...]]:
    """Glyph and formula of a component that no side lists among its strongest."""
    part = parse(component)
    if not isinstance(part, Unit):
        return "h", (Piece("attention head"),)
    glyph = "" if side.checkpoint is None else GLYPHS[side.checkpoint.config.feed_forward.kind(part.unit)]
    name = component_of(names, part)
    return glyph, () if names is None or name is None else pieces_of(names, name)


def _renamed(found: Comparison, sides: tuple[Side, ...]) -> tuple[str, ...]:
    """Which sides show names that their checkpoint has changed since."""
    readings = zip(sides, (found.left, found.right), strict=True)
    said = ((side.name, said_renamed(reading.summary, _names(side))) for side, reading in readings)
    return tuple(f"On the {name}: {words[:1].lower()}{words[1:]}" for name, words in said if words)


def _names(side: Side) -> Names | None:
    return None if side.checkpoint is None else names_of(side.checkpoint)[0]


def _strongest(urls: Urls, side: Side, reading: Reading) -> tuple[Change, ...]:
    names = _names(side)
    if said_renamed(reading.summary, names):
        names = None  # a head's channel without a name of its own does not borrow a later one
    guess = guessed(reading.summary)
    return tuple(
        Change(
            c.id, c.glyph, contributor_formula(c, names, guess), c.value if side.name == "left" else None,
            c.value if side.name == "right" else None, None, _component_href(urls, side, c.id), "",
        )
        for c in reading.summary.top[:STRONGEST]
    )  # fmt: skip


def _token_rows(found: Comparison) -> tuple[TokenRow, ...]:
    rows = []
    for run in found.tokens:
        ours = tuple(token.display for token in found.left.summary.tokens[slice(*run.left)])
        theirs = tuple(token.display for token in found.right.summary.tokens[slice(*run.right)])
        sign = "=" if run.same else "+" if not ours else "−" if not theirs else "≠"
        rows.append(TokenRow(sign, ours, theirs, _range(run.left), _range(run.right)))
    return tuple(rows)


def _range(run: tuple[int, int]) -> str:
    first, last = run
    return "" if first == last else str(first) if last == first + 1 else f"{first}–{last - 1}"


def json_document(urls: Urls, found: Comparison, sides: tuple[Side, ...]) -> dict[str, Any]:
    """The JSON twin: both sides by their addresses and totals, and every row of the page, components all of them."""
    return {
        **{
            side.name: {
                "href": side.address(urls),
                "checkpoint": reading.summary.checkpoint,
                "digest": reading.summary.digest,
                "dtype": reading.summary.dtype,
                "revision": None if side.stored is None else side.stored.revision,
                "code_version": None if side.stored is None else side.stored.code_version,
                "position": reading.summary.position,
                "relative_to": reading.summary.relative_to,
                "target": reading.summary.target,
                "contrast": reading.summary.contrast,
                "value": reading.summary.value,
                "sum": reading.summary.sum,
                "residual": reading.summary.residual,
                "tolerance": reading.summary.tolerance,
            }
            for side, reading in zip(sides, (found.left, found.right), strict=True)
        },
        "same_weights": found.same_weights,
        "alignment": found.alignment,
        "notes": found.notes,
        "value": _delta(found.value),
        "residual": found.residual,
        "tolerance": found.tolerance,
        "groups": [_delta(row) for row in found.groups],
        "floor": [_delta(row) for row in found.floor],
        "layers": [_delta(row) for row in found.layers],
        "predictions": [
            {"display": row.display, "left": row.left, "right": row.right, "difference": row.difference}
            for row in found.predictions
        ],
        "tokens": found.tokens,
        "components": [_delta(row) for row in found.components],
    }


def _delta(row: Delta) -> dict[str, Any]:
    return {"id": row.id, "left": row.left, "right": row.right, "difference": row.difference}


def csv_text(found: Comparison, sides: tuple[Side, ...]) -> str:
    """One row an amount: totals, groups, floor, layers, components; of different checkpoints each side's own."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["part", "id", "left", "right", "difference", "name"])
    names = {c.id: plain(contributor_formula(c)) for c in (*found.right.summary.top, *found.left.summary.top)}
    components = found.components
    if not found.same_components:
        components = (*_own(found.left, "left"), *_own(found.right, "right"))
        names = {}
    for part, rows in (
        ("total", (found.value,)),
        ("group", found.groups),
        ("floor", found.floor),
        ("layer", found.layers),
        ("component", components),
    ):
        for row in rows:
            amounts = ["" if amount is None else repr(amount) for amount in (row.left, row.right, row.difference)]
            writer.writerow([part, row.id, *amounts, _cell(names.get(row.id, ""))])
    return out.getvalue()


def _own(reading: Reading, name: str) -> list[Delta]:
    rows = []
    for letter, terms in (("h", reading.heads), ("u", reading.units)):
        for layer, index in np.ndindex(*terms.shape):
            value = float(terms[layer, index])
            left, right = (value, None) if name == "left" else (None, value)
            rows.append(Delta(f"L{layer}.{letter}{index}", left, right))
    return rows


def _cell(text: str) -> str:
    """A spreadsheet takes =, +, - and @ at the start for a formula; a quote in front keeps it text."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
