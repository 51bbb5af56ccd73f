"""What edits do to a task of choices, paired item by item, with confidence intervals and random controls.

    before, after = answers(suite, run.scores), answers(suite, edited_run.scores)
    found = effect(suite, before, after)       # by paradigm, by term, over all: accuracy and margin, with intervals

An item's margin is the log-likelihood of the right answer less that of the best wrong one, in nats; it is right when
the margin is positive, or at zero when the right answer stands first, as the harness decides. Both models answer the
same items, so a difference has the error of its own paired values. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.evaluation.data import Item, Part, Suite
from legible_core.evaluation.journal import Key, Scores
from legible_core.evaluation.statistics import Estimate, mean, pooled
from legible_core.interventions import Edit
from legible_core.units import Channel, Head, HeadOperand, Operand, QuantifierOperand, Unit

NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Answers:
    """One model's answers to a part: margins in nats, and whether each item is right; both (n,)."""

    margins: np.ndarray
    right: np.ndarray


def chosen_parts(suite: Suite, wanted: Sequence[str]) -> Suite:
    """The parts whose name, term or field is wanted; raises `LegibleError` naming what there is for an unknown word."""
    if suite.kind != "choice":
        raise LegibleError(f"{suite.name} has no choices, so an edit's effect on it has no margins.", code="bad_task")
    known = {word for part in suite.parts for word in (part.name, *part.labels.values())}
    for word in wanted:
        if word not in known:
            terms = ", ".join(sorted(known - {part.name for part in suite.parts})) or "none"
            raise LegibleError(
                f"{suite.name} has no part {word[:60]!r}; name a paradigm, a term or a field: {terms}.", code="bad_part"
            )
    words = set(wanted) or known
    return replace(suite, parts=tuple(part for part in suite.parts if words & {part.name, *part.labels.values()}))


def answers(suite: Suite, scores: dict[Key, Scores]) -> dict[str, Answers]:
    """By part what a finished run answered."""
    return {
        part.name: _answers(part, [scores[part.name, number] for number in range(len(part.items))])
        for part in suite.parts
    }


@dataclass(frozen=True)
class _Row:
    """A part's document, and the paired changes of accuracy and margin that means are made of."""

    document: dict[str, Any]
    change: Estimate
    margin: Estimate


def effect(suite: Suite, before: dict[str, Answers], after: dict[str, Answers]) -> dict[str, Any]:
    """The change from `before` to `after` as plain JSON: `parts`, `terms` (plain means of parts), and `all`."""
    found = [_part(part, before[part.name], after[part.name]) for part in suite.parts]
    terms = []
    for term in dict.fromkeys(part.labels.get("term") for part in suite.parts):
        if term is not None:
            of_term = [row for row, part in zip(found, suite.parts, strict=True) if part.labels.get("term") == term]
            terms.append({"name": term, **_together(of_term)})
    return {"parts": [row.document for row in found], "terms": terms, "all": _together(found)}


def control(config: ModelConfig, edits: Sequence[Edit], seed: int) -> tuple[Edit, ...]:
    """The same edits on random other components of the same kind and layer, each one different.

    Raises `LegibleError` where there is no other component of the kind, or a kind that has none to draw from.
    """
    generator = np.random.default_rng(seed)
    taken: set[Any] = {edit.component for edit in edits}
    made = []
    for edit in edits:
        others = [other for other in _alike(config, edit.component) if other not in taken]
        if not others:
            raise LegibleError(
                f"There is no other component like {edit.component} to draw a control from; use --controls 0.",
                code="no_control",
            )
        drawn = others[int(generator.integers(len(others)))]
        taken.add(drawn)
        made.append(replace(edit, component=drawn))
    return tuple(made)


def interval(estimate: Estimate) -> dict[str, float | None]:
    """value, and the ends of its 95 % interval (normal; None with too few items)."""
    if estimate.se is None or not math.isfinite(estimate.se):
        return {"value": estimate.value, "low": None, "high": None}
    wide = NORMAL_95 * estimate.se
    return {"value": estimate.value, "low": estimate.value - wide, "high": estimate.value + wide}


# ---- parts -----------------------------------------------------------------------------------------------------------


def _answers(part: Part, scores: list[Scores]) -> Answers:
    margins, right = [], []
    for item, given in zip(part.items, scores, strict=True):
        logs = [log for log, _ in given]
        margins.append(logs[item.gold] - max(log for index, log in enumerate(logs) if index != item.gold))
        right.append(_first_best(item, logs))
    return Answers(np.array(margins), np.array(right))


def _first_best(item: Item, logs: list[float]) -> bool:
    return int(np.argmax(logs)) == item.gold


def _part(part: Part, before: Answers, after: Answers) -> _Row:
    change = mean(after.right.astype(float) - before.right.astype(float))
    margin = mean(after.margins - before.margins)
    document = {
        "name": part.name,
        "labels": part.labels,
        "items": len(part.items),
        "before": mean(before.right).value,
        "after": mean(after.right).value,
        "change": interval(change),
        "margin_before": mean(before.margins).value,
        "margin_change": interval(margin),
        "lost": int((before.right & ~after.right).sum()),
        "won": int((~before.right & after.right).sum()),
    }
    return _Row(document, change, margin)


def _together(rows: list[_Row]) -> dict[str, Any]:
    """The plain means of parts; their intervals from the parts' own errors."""
    documents = [row.document for row in rows]
    return {
        "parts": len(rows),
        "items": sum(row["items"] for row in documents),
        "before": float(np.mean([row["before"] for row in documents])),
        "after": float(np.mean([row["after"] for row in documents])),
        "change": interval(pooled([row.change for row in rows])),
        "margin_change": interval(pooled([row.margin for row in rows])),
        "lost": sum(row["lost"] for row in documents),
        "won": sum(row["won"] for row in documents),
    }


def _alike(config: ModelConfig, component: Any) -> list[Any]:
    """Components of the same sort, kind and layer, this one among them."""
    layout, layer = config.feed_forward, component.layer
    match component:
        case Unit(_, unit):
            return [Unit(layer, u) for u in range(layout.d_ff) if layout.kind(u) == layout.kind(unit)]
        case QuantifierOperand(_, unit):
            return [QuantifierOperand(layer, u) for u in range(layout.d_ff) if layout.kind(u) == layout.kind(unit)]
        case Operand(_, _, side):
            return [Operand(layer, pair, side) for pair in range(layout.n_pairs)]
        case Head(_, head):
            return [Head(layer, h) for h in _heads(config, layer, head)]
        case Channel(_, head, channel):
            return [Channel(layer, h, channel) for h in _heads(config, layer, head)]
        case HeadOperand(_, head, pair, side):
            return [HeadOperand(layer, h, pair, side) for h in _heads(config, layer, head)]
    return []


def _heads(config: ModelConfig, layer: int, head: int) -> list[int]:
    bounded = config.is_bounded(layer, head)
    return [h for h in range(config.n_heads) if config.is_bounded(layer, h) == bounded]
