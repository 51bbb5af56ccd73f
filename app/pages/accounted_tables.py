"""The tables and figures of what was accounted for over a corpus, as text for the model's page; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.account_plots import Middle, Series, linear, logarithmic, plot, shares
from app.pages.view import percent
from legible_core.accounting.records import NONE, POINTS, Accounting, Counted, Counts, Depth, Population, Quartiles
from legible_core.figures import perplexity_text


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its population in words; cells are text, the first column is the row's name.

    figures: drawings of the same numbers. data: the ids under which the numbers are had as CSV and JSON, the
    table's own first.
    """

    id: str
    title: str
    said: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: tuple[Markup, ...] = ()
    data: tuple[str, ...] = ()


READS = {
    "plain": "units without operands", "A": "operands A", "B": "operands B", "m": "quantifiers' m", "gate": "gates",
    "up": "what gates multiply",
}  # fmt: skip


def tables(stored: Accounting) -> tuple[Table, ...]:
    """Every table of which something was measured, in the papers' order."""
    found = [_counts(stored), _confidence(stored), _push(stored), _carriage(stored), _depth(stored), _members(stored)]
    found += [_promoted(stored), _reads(stored), _ordering(stored), _writes(stored)]
    return tuple(table for table in found if table is not None)


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
    # Adding 0 makes what rounds to −0 a 0.
    low, middle, high = (
        f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−") for value in (figure.q1, figure.median, figure.q3)
    )
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
        (), ("counts",),
    )  # fmt: skip


def _confidence(stored: Accounting) -> Table | None:
    found = stored.counts
    if found is None:
        return None
    rows = [
        (
            f"{percent(row.low)} to {percent(min(1.0, row.high))}", quartiles(row.n90), quartiles(row.heads),
            quartiles(row.net, 1), quartiles(row.opposing_over_net, 2), f"{row.n90.n:,}",
        )
        for row in found.confidence
        if row.n90.n
    ]  # fmt: skip
    drawn = f"Drawn: {len(found.points):,} predictions, up to {POINTS} of each tenth. " if found.points else ""
    return Table(
        "confidence", "n90 and the net against the model's confidence",
        f"{drawn}Median [quartiles]; each row its own predictions of "
        f"{found.population.corpus}, those below the floor as well; perplexity there "
        f"{perplexity_text(found.population.perplexity)}.",
        ("probability", "n90", "n90, heads whole", "net, logits", "opposing over net", "predictions"), tuple(rows),
        _against_confidence(found), ("confidence", "predictions"),
    )  # fmt: skip


def _against_confidence(found: Counts) -> tuple[Markup, ...]:
    """n90 by channels and by heads, and the net, over the probability of the predicted token."""
    there = [row for row in found.confidence if row.n90.n and row.heads.n]
    if not there or not found.points:
        return ()

    def line(name: str) -> list[Middle]:
        found = []
        for row in there:
            middle = _middle((row.low + min(1.0, row.high)) / 2, getattr(row, name))
            found += [middle] if middle is not None else []
        return found

    n90 = [
        Series("channels", line("n90"), [(point.probability, point.channels) for point in found.points]),
        Series("heads whole", line("heads"), [(point.probability, point.heads) for point in found.points], second=True),
    ]
    net = [Series("net", line("net"), [(point.probability, point.net) for point in found.points])]
    counts = [value for point in found.points for value in (point.channels, point.heads)]
    nets = [point.net for point in found.points]
    x = shares("probability of the predicted token")
    beside = f"perplexity {perplexity_text(found.population.perplexity)}"
    return (
        plot(n90, x, logarithmic("n90", counts), f"n90 against the model's confidence, {beside}; the table has it"),
        plot(
            net, x, linear("net, logits", nets), f"The net against the model's confidence, {beside}; the table has it"
        ),
    )


def _middle(x: float, figure: Quartiles) -> Middle | None:
    if figure.median is None or figure.q1 is None or figure.q3 is None:
        return None
    return Middle(x, figure.q1, figure.median, figure.q3)


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
        (), ("push",),
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
        (), ("carriage",),
    )  # fmt: skip


def _depth(stored: Accounting) -> Table | None:
    found = stored.depth
    if found is None:
        return None
    last = len(found.predicted) - 1
    ranks = found.ranks or [NONE] * (last + 1)
    leading: Sequence[float | None] = found.leading or [None] * (last + 1)
    rows = [
        (
            f"before L{i}" if i < last else "at the end", quartiles(found.predicted[i], 2),
            quartiles(found.current[i], 2), quartiles(ranks[i]), percent(leading[i]),
        )
        for i in range(last + 1)
    ]  # fmt: skip
    return Table(
        "depth", "Depth: the stream turns towards the readout",
        f"Cosines and ranks, median [quartiles]; ranks are read off the stream through the final norm and the "
        f"unembedding, 1 leads. The predicted token first leads at depth {quartiles(found.first)}, and stays from "
        f"{quartiles(found.stays)} on. {said(found.population)}.",
        ("stream", "with the predicted token", "with the current token", "rank of the predicted token", "leads"),
        tuple(rows), (), ("depth",),
    )  # fmt: skip


def _members(stored: Accounting) -> Table | None:
    """The running sum of the one-hop set, member by member."""
    found = stored.depth
    if found is None:
        return None
    other, rank = dict(found.running_other), dict(found.running_rank)
    rows = [
        (str(k), quartiles(figure, 2), quartiles(other.get(k, NONE), 2), quartiles(rank.get(k, NONE)), f"{figure.n:,}")
        for k, figure in found.running
    ]
    leads = ""
    if found.sum_leads.n or found.sum_never:
        leads = f"The predicted token first leads in the sum of {quartiles(found.sum_leads)} members"
        leads += f", in {found.sum_never:,} never. " if found.sum_never else ". "
    return Table(
        "members", "Member by member: the sum turns towards the readout",
        f"Cosine of the sum of the first k members with the predicted token's readout direction. A typical member "
        f"{quartiles(found.members, 2)}, with another prediction's token {quartiles(found.other, 2)}, the strongest "
        f"{quartiles(found.strongest, 2)}, all of a set {quartiles(found.together, 2)}, two members with each other "
        f"{quartiles(found.pairwise, 3)}. {leads}{said(found.population)}.",
        ("k", "cosine", "with another prediction's token", "rank in what the sum promotes", "sets so large"),
        tuple(rows), _climbing(found), ("members",),
    )  # fmt: skip


def _climbing(found: Depth) -> tuple[Markup, ...]:
    """The running sum's cosines over k, as far as half of the sets reach."""
    count = found.running[0][1].n if found.running else 0
    kept = {k for k, figure in found.running if 2 * figure.n >= count}

    def line(rows: list[tuple[int, Quartiles]]) -> list[Middle]:
        return [middle for k, row in rows if k in kept and (middle := _middle(k, row)) is not None]

    ours, other = line(found.running), line(found.running_other)
    if len(ours) < 2:
        return ()
    highest = max(middle.high for middle in ours)
    lowest = min(middle.low for middle in [*ours, *other])
    series = [Series("predicted token", ours), Series("another token", other, second=True)]
    axis = linear("cosine of the running sum", [highest, lowest], 1)
    said_here = (
        f"Alignment with the readout, member by member, perplexity {perplexity_text(found.population.perplexity)}"
    )
    return (plot(series, logarithmic("members, largest first", sorted(kept)), axis, f"{said_here}; the table has it"),)


def _promoted(stored: Accounting) -> Table | None:
    """What the members of the one-hop set promote by themselves, by layer."""
    found = stored.depth
    if found is None or not found.layers:
        return None
    rows = [
        (
            f"L{row.layer}", f"{row.members:,}", quartiles(row.rank), percent(row.hundred), percent(row.hundred_other),
            percent(row.thousand),
        )
        for row in found.layers
    ]  # fmt: skip
    return Table(
        "promoted", "What each member promotes by itself",
        "Rank of the predicted token in what a member of the one-hop set promotes, median [quartiles]; shares are of "
        f"the members' terms. {said(found.population)}.",
        ("layer", "members", "rank", "in its first 100", "another prediction's token", "in its first 1,000"),
        tuple(rows), (), ("promoted",),
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
        ("rows", *ks), tuple(rows), (), ("reads",),
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
        (), ("ordering",),
    )  # fmt: skip


def _writes(stored: Accounting) -> Table | None:
    found = stored.writes
    if found is None:
        return None
    rows = [
        (
            name, f"{row.components:,}", percent(row.covered), percent(row.characterised), percent(row.coherent),
            f"{row.judged:,}", quartiles(row.variation, 2), quartiles(row.tokens_to_half),
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
        f"{quartiles(found.variation, 2)} of its mean for a token, {percent(found.below_03)} of the pairs by less than "
        f"0.3; {percent(found.one_token)} of the characterised ones helped one token only, "
        f"{percent(found.half_on_one)} put half of their share or more on one. {said(found.population)}.",
        ("components", "count", "covered", "characterised", "coherent", "judged", "variation", "tokens to half"),
        tuple(rows), (), ("writes",),
    )  # fmt: skip
