"""A task from its questions to its result: tokenise, score, keep each item's scores, make the figures.

run = Run(model, tokenizer, load_suite("blimp", data), journal=Journal(path, identity))
for progress in run.steps():              # after every batch; stop iterating to pause
    ...
result = run.result(computed="float32 on cpu")
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from legible_core.errors import LegibleError
from legible_core.evaluation.data import Item, Part, Suite
from legible_core.evaluation.encode import Encoder, Row
from legible_core.evaluation.journal import Journal, Key, Scores
from legible_core.evaluation.records import PartResult, TaskResult
from legible_core.evaluation.scoring import BATCH_TOKENS, Scorer
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.tokens import Tokenizer

FIGURES = {
    "blimp": ("acc",),
    "lambada": ("acc", "perplexity"),
    "arc_easy": ("acc", "acc_norm"),
    "winogrande": ("acc",),
    "wikitext2": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}


@dataclass(frozen=True)
class Progress:
    """After a batch: tokens run of all that there are to run, items finished of all, in how many seconds."""

    tokens: int
    all_tokens: int
    items: int
    all_items: int
    seconds: float


class Run:
    """One task on one model. Items that the journal has are not asked again."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        suite: Suite,
        journal: Journal | None = None,
        batch_tokens: int = BATCH_TOKENS,
        edits: Sequence[Edit] = (),
    ) -> None:
        """Tokenises all questions; `edits` apply to the model.

        Raises `LegibleError` naming file and line for a question that has no tokens.
        """
        self.suite, self.journal = suite, journal
        self.scorer = Scorer(model, batch_tokens, edits)
        self.encoder = Encoder(tokenizer, model.config.context)
        self.scores: dict[Key, Scores] = dict(journal.done) if journal is not None else {}
        self.groups: list[list[Row]] = []
        self._owners: list[tuple[Key, int]] = []
        self._open: dict[Key, int] = {}
        for part in suite.parts:
            for number, item in enumerate(part.items):
                self._add((part.name, number), item)
        self.taken_up = len(self.scores)
        self.seconds = 0.0

    def _add(self, key: Key, item: Item) -> None:
        before = self.encoder.shortened
        try:
            if self.suite.kind == "rolling":
                questions = [self.encoder.rolling(text) for _, text in item.questions]
            else:
                questions = [self.encoder.pair(context, text) for context, text in item.questions]
        except LegibleError as error:
            raise LegibleError(
                f"{item.where}: {error.message.rstrip('.')}, so it cannot be scored.", code=error.code
            ) from None
        # An item counts once, however many of its questions were too long.
        self.encoder.shortened = min(self.encoder.shortened, before + 1)
        if key in self.scores:
            return
        if all(len(rows) == 1 for rows in questions):
            groups = [([rows[0] for rows in questions], 0)]
        else:
            groups = [([row], number) for number, rows in enumerate(questions) for row in rows]
        if not groups:
            raise LegibleError(f"{item.where}: it has no tokens, so it cannot be scored.", code="bad_data")
        for rows, question in groups:
            self.groups.append(rows)
            self._owners.append((key, question))
        self._open[key] = len(groups)

    def steps(self) -> Iterator[Progress]:
        """Score what is left, yielding after every batch, once its finished items are in the journal."""
        started = time.monotonic()
        plan = self.scorer.plan(self.groups)
        total, done = sum(batch.tokens for batch in plan), 0
        parts: dict[Key, dict[int, Scores]] = defaultdict(lambda: defaultdict(list))
        for batch in plan:
            finished = []
            for index, scores in self.scorer.score(batch, self.groups):
                key, question = self._owners[index]
                for offset, score in enumerate(scores):
                    parts[key][question + offset].append((score.loglik, score.greedy))
                self._open[key] -= 1
                if not self._open[key]:
                    found = parts.pop(key)
                    finished.append((key, [_joined(found[number]) for number in sorted(found)]))
            if self.journal is not None:
                self.journal.add(finished)
            self.scores.update(finished)
            done += batch.tokens
            self.seconds = time.monotonic() - started
            yield Progress(done, total, len(self.scores), self.suite.items, self.seconds)

    @property
    def finished(self) -> bool:
        return len(self.scores) == self.suite.items

    def result(self, computed: str = "") -> TaskResult:
        """The figures of a finished run."""
        if not self.finished:
            raise ValueError("the evaluation is not finished")
        scored = {part.name: [self.scores[part.name, n] for n in range(len(part.items))] for part in self.suite.parts}
        return make_result(self.suite, scored, computed, self.seconds, self.encoder.shortened)


def make_result(
    suite: Suite, scores: dict[str, list[Scores]], computed: str, seconds: float, shortened: int
) -> TaskResult:
    """A task's result from every item's scores, part by part."""
    return TaskResult(
        name=suite.name,
        parts=tuple(_part_result(suite, part, scores[part.name]) for part in suite.parts),
        source=suite.source,
        computed=computed,
        seconds=round(seconds, 1),
        shortened=shortened,
        limit=suite.limit,
        figures=FIGURES[suite.name],
    )


def _part_result(suite: Suite, part: Part, scores: list[Scores]) -> PartResult:
    """What each item gives, by the harness's rules: the first of equal log-likelihoods wins."""
    logs = [np.array([log for log, _ in answers]) for answers in scores]
    chance = None
    if suite.kind == "choice":
        gold = np.array([item.gold for item in part.items])
        lengths = [np.array(item.lengths, float) for item in part.items]
        values = {
            "acc": np.array([int(log.argmax()) for log in logs]) == gold,
            "acc_norm": np.array([int((log / n).argmax()) for log, n in zip(logs, lengths, strict=True)]) == gold,
        }
        values = {key: value for key, value in values.items() if key in FIGURES[suite.name]}
        chance = float(np.mean([1.0 / len(item.questions) for item in part.items]))
    elif suite.kind == "cloze":
        values = {
            "acc": np.array([answers[0][1] for answers in scores]),
            "loglik": np.array([log[0] for log in logs]),
        }
    else:
        lengths = [np.array(item.lengths) for item in part.items]
        values = {
            "loglik": np.array([log[0] for log in logs]),
            "words": np.array([n[0] for n in lengths]),
            "bytes": np.array([n[1] for n in lengths]),
        }
    return PartResult(part.name, part.digest, part.labels, values, chance)


def _joined(windows: Scores) -> tuple[float, bool]:
    """A text's score from those of its windows."""
    return float(sum(log for log, _ in windows)), all(hit for _, hit in windows)
