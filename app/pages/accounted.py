"""The accounting stored beside a checkpoint, as the model's page shows it, and what a unit helped; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.pages.view import percent
from legible_core.accounting import records, written
from legible_core.accounting.records import Accounting, Counted, Population, Quartiles
from legible_core.accounting.written import Written
from legible_core.errors import LegibleError
from legible_core.figures import perplexity_text
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.units import Channel, Unit

UNMEASURED = "Not accounted for over a text yet; `legible account {slug} --corpus FILE` does."
READS = {
    "plain": "units without operands", "A": "operands A", "B": "operands B", "m": "quantifiers' m", "gate": "gates",
    "up": "what gates multiply",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its population in words; cells are text, the first column is the row's name."""

    id: str
    title: str
    said: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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
    """What a component helped to predict: on the unit's page beside what its column promotes."""

    times: int
    characterised: bool
    coherent: bool | None
    tokens: tuple[HelpedToken, ...]
    said: str


def accounted(checkpoint: Checkpoint) -> Accounted:
    """The section of a checkpoint."""
    stored, missing = accounting_of(checkpoint)
    if stored is None:
        return Accounted((), missing)
    tables = [_counts(stored), _confidence(stored), _push(stored), _carriage(stored), _depth(stored)]
    tables += [_reads(stored), _ordering(stored), _writes(stored)]
    return Accounted(tuple(table for table in tables if table is not None), None)


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
        tuple(
            HelpedToken(t.token, names.display(t.token) if names is not None else f"token {t.token}", t.times, t.share)
            for t in found.tokens
        ),
        f"{int(table.meta['predictions']):,} predictions of {table.meta['corpus']}; perplexity there "
        f"{perplexity_text(float(table.meta['perplexity']))}",
    )


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


# ---- tables --------------------------------------------------------------------------------------------------------


def said(population: Population) -> str:
    """How many predictions, above which floor, of which text, and how good the model is there."""
    words = f"{population.predictions:,} predictions of {population.corpus}"
    if population.floor > 0:
        words += f" to which the model gave {percent(population.floor)} or more"
        words += f" ({population.over_floor:,} of {population.looked_at:,} positions)"
    if population.not_positive:
        words += f"; {population.not_positive:,} more had no positive net and were left out"
    return f"{words}; perplexity there {perplexity_text(population.perplexity)}"


def quartiles(figure: Quartiles, digits: int = 0) -> str:
    """median [quartile, quartile]."""
    if figure.median is None or figure.q1 is None or figure.q3 is None:
        return "–"
    low, middle, high = (f"{value:,.{digits}f}".replace("-", "−") for value in (figure.q1, figure.median, figure.q3))
    return f"{middle} [{low}, {high}]"


def _counts(stored: Accounting) -> Table | None:
    found = stored.counts
    if found is None:
        return None

    def rows(side: Counted, name: str) -> list[tuple[str, ...]]:
        words = {"net": "of the signed net", "positive": "of the positive terms", "absolute": "of the absolute terms"}
        return [
            (f"{text}, {name}", *(quartiles(side.counts[key][level]) for level in ("n80", "n90", "n99")))  # type: ignore[index]
            for key, text in words.items()
        ]

    extra = (
        ("opposing mass over net", "", quartiles(found.opposing_over_net, 2), ""),
        ("attention's share of the set, by channels", "", quartiles(found.channels.attention, 2), ""),
        ("attention's share of the set, by heads", "", quartiles(found.heads.attention, 2), ""),
        ("floor over the value", "", quartiles(found.floor_over_value, 2), ""),
    )
    return Table(
        "counts", "Components that carry a prediction", f"Median [quartiles]; {said(found.population)}.",
        ("share", "80 %", "90 %", "99 %"),
        (
            *rows(found.channels, f"{found.channels.components:,} channels and units"),
            *rows(found.heads, f"{found.heads.components:,} heads and units"),
            *extra,
        ),
    )  # fmt: skip


def _confidence(stored: Accounting) -> Table | None:
    found = stored.counts
    if found is None:
        return None
    rows = [
        (f"{percent(row.low)} to {percent(min(1.0, row.high))}", quartiles(row.n90), f"{row.n90.n:,}")
        for row in found.confidence
        if row.n90.n
    ]
    said_here = f"Median [quartiles]; each row its own predictions of {found.population.corpus}; perplexity there "
    said_here += f"{perplexity_text(found.population.perplexity)}."
    return Table(
        "confidence",
        "n90 against the model's confidence",
        said_here,
        ("probability", "n90", "predictions"),
        tuple(rows),
    )


def _push(stored: Accounting) -> Table | None:
    found = stored.counts
    if found is None:
        return None
    words = {"runner_up": "the runner-up", "top_fifty": "one of the fifty most probable", "random": "a random token"}
    return Table(
        "push", "What the losers are pushed with", f"Over the winner's, median [quartiles]; {said(found.population)}.",
        ("token", "net", "positive terms", "n90 of its own"),
        tuple(
            (words[name], quartiles(row.net, 2), quartiles(row.positive, 2), quartiles(row.n90))
            for name, row in found.push.items()
        ),
    )  # fmt: skip


def _carriage(stored: Accounting) -> Table | None:
    found = stored.carriage
    if found is None:
        return None
    return Table(
        "carriage", "Carriage: what a fixed map of the incoming state accounts for",
        f"Mean |cos| on {found.scored:,} positions, fitted on {found.fitted:,} others; same token: "
        f"{found.substituted:,} predictions with the layer's output replaced at the read position. "
        f"{said(found.population)}.",
        ("layer", "linear map", "R²", "rotation alone", "shear", "same token", "with the one-hop writes"),
        tuple(
            (
                f"L{row.layer}", f"{row.share:.2f}", f"{row.r2:.2f}".replace("-", "−"), f"{row.rotation:.2f}",
                f"{row.shear:+.2f}".replace("-", "−"), percent(row.same), percent(row.same_with_set),
            )
            for row in found.layers
        ),
    )  # fmt: skip


def _depth(stored: Accounting) -> Table | None:
    found = stored.depth
    if found is None:
        return None
    last = len(found.predicted) - 1
    rows = [
        (f"before L{i}" if i < last else "at the end", quartiles(predicted, 2), quartiles(current, 2))
        for i, (predicted, current) in enumerate(zip(found.predicted, found.current, strict=True))
    ]
    return Table(
        "depth", "Depth: the stream turns towards the readout",
        f"Cosine, median [quartiles]. A typical member of the set {quartiles(found.members, 2)}, with another "
        f"prediction's token {quartiles(found.other, 2)}, the strongest {quartiles(found.strongest, 2)}, the sum of "
        f"all {quartiles(found.together, 2)}, two members {quartiles(found.pairwise, 3)}. The predicted "
        f"token first leads at depth {quartiles(found.first)}, and stays from {quartiles(found.stays)} on. "
        f"{said(found.population)}.",
        ("stream", "with the predicted token", "with the current token"), tuple(rows),
    )  # fmt: skip


def _reads(stored: Accounting) -> Table | None:
    found = stored.reads
    if found is None:
        return None
    rows = []
    for kind in found.kinds:
        for name, side in (("layer-native", kind.native), ("vocabulary", kind.vocabulary)):
            for averaging, figures in side.items():
                label = f"{READS[kind.kind]} ({kind.rows:,}), {name}, truth by {averaging}"
                rows.append((label, *(percent(row.corrected) for row in figures)))
    ks = tuple(f"K = {row.k}" for row in found.kinds[0].native["mean"]) if found.kinds else ()
    return Table(
        "reads", "Read rows against what drives them",
        f"Chance-corrected overlap of the K tokens that the weights name with the K that drive the row most, of "
        f"{found.candidates:,} candidates in {found.contexts} contexts of {found.population.corpus}; perplexity there "
        f"{perplexity_text(found.population.perplexity)}.",
        ("rows", *ks), tuple(rows),
    )  # fmt: skip


def _ordering(stored: Accounting) -> Table | None:
    found = stored.reads
    if found is None or not found.ordering:
        return None
    return Table(
        "ordering", "The same pre-activations through each activation",
        f"Chance-corrected overlap of the order of the mean pre-activation with that of the mean activation, all read "
        f"rows; {percent(found.decreasing)} of the pre-activations lie where GELU falls. On its own scale: not to be "
        f"compared with the table above. {found.population.corpus}; perplexity there "
        f"{perplexity_text(found.population.perplexity)}.",
        ("activation", *(f"K = {row.k}" for row in found.ordering[0].agreement)),
        tuple((row.activation, *(percent(one.corrected) for one in row.agreement)) for row in found.ordering),
    )  # fmt: skip


def _writes(stored: Accounting) -> Table | None:
    found = stored.writes
    if found is None:
        return None
    rows = [
        (
            name, f"{row.components:,}", percent(row.covered), percent(row.characterised),
            percent(row.coherent), f"{row.judged:,}",
        )
        for name, row in (
            ("all", found.every), ("channels", found.attention), ("units", found.feed_forward),
            *((f"L{layer.layer} {kind}", side) for layer in found.layers
              for kind, side in (("channels", layer.attention), ("units", layer.feed_forward))),
        )
    ]  # fmt: skip
    return Table(
        "writes", "Named by what they write",
        "Covered: in a one-hop set once or more; characterised: 20 times or more; coherent, of these: the tokens "
        "helped lie closer together than others as frequent (5 % would by chance). A share varies by "
        f"{quartiles(found.variation, 2)} of its mean for a token. {said(found.population)}.",
        ("components", "count", "covered", "characterised", "coherent", "judged"), tuple(rows),
    )  # fmt: skip
