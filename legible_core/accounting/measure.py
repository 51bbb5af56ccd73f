"""The accounting of a checkpoint over a corpus, part by part, each stored as soon as it is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legible_core.accounting import records, written
from legible_core.accounting.carriage import carry
from legible_core.accounting.corpus import count_predictions
from legible_core.accounting.depth import follow
from legible_core.accounting.drawing import Drawing, Text
from legible_core.accounting.drives import read_rows
from legible_core.accounting.passes import Ints, Reader
from legible_core.accounting.records import PARTS, Accounting
from legible_core.accounting.writes import Naming
from legible_core.errors import Corrupt, LegibleError

Between = Callable[[str, int, int], None]


class Stopped(Exception):
    """Raised by `between` to leave off; what is finished is stored."""


@dataclass(frozen=True)
class Plan:
    """parts: of `records.PARTS`. sample: predictions over the floor. state: of naming by writes, a file.

    restart: forget what is saved in `state`.
    """

    parts: tuple[str, ...] = PARTS
    sample: int = 1000
    floor: float = 0.5
    seed: int = 0
    state: Path | None = None
    restart: bool = False

    @staticmethod
    def check_parts(text: str) -> tuple[str, ...]:
        """The parts that a person named, in the order in which they are measured."""
        wanted = [part.strip() for part in text.split(",") if part.strip()]
        unknown = [part for part in wanted if part not in PARTS]
        if unknown or not wanted:
            said = f"There is no part {unknown[0][:40]!r}" if unknown else "No part is named"
            raise LegibleError(f"{said}; the parts are {', '.join(PARTS)}.", code="bad_parts")
        return tuple(part for part in PARTS if part in wanted)


def measure(
    model: Any, ids: Ints, name: str, end_of_document: int | None, checkpoint_hash: str, out: Path, plan: Plan,
    between: Between, begin: int | None = None,
) -> Accounting:  # fmt: skip
    """Measure the plan's parts and put them beside what is stored already; returns everything that is stored then.

    begin: the token that an ordinary model's tokenizer puts before every text.
    between: called with the part, what is done and of how much; may raise `Stopped`. Depth and the substitution test
    take a part of the sample, because they cost more for each prediction. Raises `LegibleError` for an unusable text,
    `Conflict` when another process names by writes with the same state.
    """
    reader, text = Reader(model, begin), Text(ids, name)
    stored = _stored(out, checkpoint_hash)

    def drawing(part: str, share: int = 1, others: bool = False) -> Drawing:
        return Drawing(
            reader, text, floor=plan.floor, predictions=max(1, plan.sample // share), seed=plan.seed, others=others,
            between=lambda done, total: between(part, done, total),
        )  # fmt: skip

    with contextlib.ExitStack() as held:
        # First of all, since it holds the state: a second one is refused at once, not after an hour of other parts.
        naming = None
        if "writes" in plan.parts:
            naming = Naming(reader, text, checkpoint_hash=checkpoint_hash, state=plan.state, restart=plan.restart)
            held.enter_context(contextlib.closing(naming))
        for part in plan.parts:
            between(part, 0, 1)
            found: Any
            if part == "counts":
                found = count_predictions(reader, drawing(part, others=True))
            elif part == "depth":
                found = follow(reader, drawing(part, 4))
            elif part == "carriage":
                found = carry(
                    reader, text, end_of_document=end_of_document, floor=plan.floor, seed=plan.seed,
                    predictions=max(1, plan.sample // 10),
                    between=lambda done, total: between("carriage", done, total),
                )  # fmt: skip
            elif part == "reads":
                found = read_rows(
                    reader, text, end_of_document=end_of_document, seed=plan.seed,
                    between=lambda done, total: between("reads", done, total),
                )  # fmt: skip
            elif naming is not None:
                found = _named(naming, out, between)
            stored = stored.model_copy(update={part: found})
            stored.write(out / records.FILE)
    return stored


def _named(naming: Naming, out: Path, between: Between) -> records.Writes:
    for progress in naming.run():
        try:
            between("writes", progress.done, progress.total)
        except Stopped:
            if naming.state is not None:
                naming.save()
            raise
    record, table = naming.result()
    table.save(out / written.FILE)
    naming.discard()
    return record


def _stored(out: Path, checkpoint_hash: str) -> Accounting:
    """What is there already; a damaged file, or one of other weights, counts as none."""
    try:
        return Accounting.load(out, checkpoint_hash) or Accounting(checkpoint=checkpoint_hash)
    except Corrupt:
        return Accounting(checkpoint=checkpoint_hash)
