"""The accounting stored beside a checkpoint, as the model's page shows it, and what a unit helped; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.pages.accounted_tables import Table, quartiles, tables
from app.pages.view import percent
from legible_core.accounting import records, written
from legible_core.accounting.records import Accounting
from legible_core.accounting.written import Written
from legible_core.errors import LegibleError
from legible_core.figures import perplexity_text
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Unit

UNMEASURED = "Not accounted for over a text yet; `legible account {slug} --corpus FILE` does."


@dataclass(frozen=True, slots=True)
class Accounted:
    """The section of a model's page; without tables `missing` says why."""

    tables: tuple[Table, ...]
    missing: str | None


@dataclass(frozen=True, slots=True)
class HelpedToken:
    id: int
    display: str
    times: int
    share: float


@dataclass(frozen=True, slots=True)
class HelpedView:
    """What a component helped to predict: on the unit's page beside what its column promotes.

    variation: of its share for a token, over its mean; None where that is not known. layer: the same of all components
    of its sort in its layer, in a sentence; empty where it was not measured.
    """

    times: int
    characterised: bool
    coherent: bool | None
    variation: float | None
    tokens: tuple[HelpedToken, ...]
    layer: str
    said: str


def accounted(checkpoint: Checkpoint) -> Accounted:
    """The section of a checkpoint."""
    stored, missing = accounting_of(checkpoint)
    if stored is None:
        return Accounted((), missing)
    return Accounted(tables(stored), None)


def accounting_of(checkpoint: Checkpoint) -> tuple[Accounting | None, str | None]:
    """What is stored beside a checkpoint, or the sentence that says why there is nothing."""
    try:
        stamp = (checkpoint.path / records.FILE).stat().st_mtime_ns
    except OSError:
        return None, UNMEASURED.format(slug=checkpoint.slug)
    try:
        stored = _load(checkpoint.path, checkpoint.hash, stamp)
    except LegibleError as error:
        return None, f"The stored accounting cannot be used: {error.message.rstrip('.')}."
    return stored, None if stored is not None else UNMEASURED.format(slug=checkpoint.slug)


def helped_by(checkpoint: Checkpoint, component: Unit | Channel, names: Names | None) -> HelpedView | None:
    """What a component helped; None where nothing usable is stored."""
    try:
        stamp = (checkpoint.path / written.FILE).stat().st_mtime_ns
        table = _load_written(checkpoint, stamp)
    except (OSError, LegibleError):
        return None
    if table is None:
        return None
    found = table.of(component)
    return HelpedView(
        found.times,
        found.characterised,
        found.coherent,
        found.variation,
        tuple(
            HelpedToken(t.token, names.display(t.token) if names is not None else f"token {t.token}", t.times, t.share)
            for t in found.tokens
        ),
        _beside(checkpoint, component),
        f"{int(table.meta['predictions']):,} predictions of {table.meta['corpus']}; perplexity there "
        f"{perplexity_text(float(table.meta['perplexity']))}",
    )


def _beside(checkpoint: Checkpoint, component: Unit | Channel) -> str:
    """How a component's sort fares in its layer."""
    stored = accounting_of(checkpoint)[0]
    layers = [] if stored is None or stored.writes is None else stored.writes.layers
    for row in layers:
        if row.layer == component.layer:
            unit = isinstance(component, Unit)
            side, sort = (row.feed_forward, "units") if unit else (row.attention, "channels")
            return (
                f"Of L{row.layer}'s {side.components:,} {sort} {percent(side.covered)} are covered, "
                f"{percent(side.characterised)} characterised, {percent(side.coherent)} of those judged coherent; "
                f"a share varies by {quartiles(side.variation, 2)} of its mean."
            )
    return ""


@lru_cache(maxsize=16)
def _load(path: Path, checkpoint_hash: str, _stamp: int) -> Accounting | None:
    return Accounting.load(path, checkpoint_hash)


@lru_cache(maxsize=8)
def _cached(path: Path, checkpoint_hash: str, _stamp: int) -> list[Written | None]:
    return []


def _load_written(checkpoint: Checkpoint, stamp: int) -> Written | None:
    """Kept by path, weights and time of writing; the config goes with the weights."""
    kept = _cached(checkpoint.path, checkpoint.hash, stamp)
    if not kept:
        kept.append(Written.load(checkpoint.path, checkpoint.hash, checkpoint.config))
    return kept[0]
