"""Drawing predictions from a corpus: windows in random order, a few positions of each, until there are enough.

    drawing = Drawing(reader, text, floor=0.5, predictions=1000)
    for drawn in drawing:                      # a batch of windows, with the positions that were drawn
        ...
    drawing.population(not_positive=3)

Few positions of a window, so that neighbours, which share most of what carries them, do not crowd the sample. A
prediction is the model's most probable token; a position needs some text before it. The corpus must be one that
training did not see.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legible_core.accounting.passes import Passed, Predicted, Reader
from legible_core.accounting.records import Population
from legible_core.errors import LegibleError

Ints = NDArray[np.int64]

FLOOR = 0.5
BEFORE = 16
PER_WINDOW = 4
MIN_WINDOWS = 4


@dataclass(frozen=True)
class Text:
    """A corpus as one stream of token ids, and its name."""

    ids: Ints
    name: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.ids, dtype="<u4").tobytes()).hexdigest()


@dataclass(frozen=True)
class Drawn:
    """A batch: its forward, what the model predicts at every position, and the flat positions drawn.

    places: those over the floor. others: as many of the rest, where they were asked for.
    """

    passed: Passed
    predicted: Predicted
    places: Ints
    others: Ints


class Drawing:
    """An iterator over batches of drawn predictions; one of the same seed draws the same."""

    def __init__(
        self,
        reader: Reader,
        text: Text,
        *,
        floor: float = FLOOR,
        predictions: int = 1000,
        per_window: int = PER_WINDOW,
        others: bool = False,
        seed: int = 0,
        between: Callable[[int, int], None] | None = None,
    ) -> None:
        """between: called after each batch with the predictions drawn so far and the number wanted.

        Raises `LegibleError` for a floor that is no probability, and for a corpus that is too short or of another
        vocabulary.
        """
        if not 0.0 <= floor < 1.0:
            raise LegibleError(
                f"The confidence floor is {floor:g}; it must be at least 0 and below 1.", code="bad_floor"
            )
        if predictions < 1:
            raise LegibleError(f"The sample is {predictions} predictions; ask for at least 1.", code="bad_sample")
        config = reader.model.config
        self.length = min(reader.longest, max(2 * BEFORE, len(text.ids) // MIN_WINDOWS))
        if len(text.ids) < MIN_WINDOWS * self.length:
            raise LegibleError(
                f"The corpus has {len(text.ids)} tokens; the accounting needs at least "
                f"{MIN_WINDOWS * min(2 * BEFORE, config.context)}, many thousands to say anything.",
                code="corpus_too_short",
            )
        if int(text.ids.min()) < 0 or int(text.ids.max()) >= config.vocab_size:
            raise LegibleError(
                f"The corpus holds token {int(text.ids.max())}; the checkpoint has the tokens 0 to "
                f"{config.vocab_size - 1}.",
                code="wrong_tokenizer",
            )
        self.reader, self.text, self.floor, self.wanted = reader, text, floor, predictions
        self.per_window, self.with_others, self.seed, self.between = per_window, others, seed, between
        self.windows = self.looked_at = self.over = self.drawn = 0
        self._loss: list[float] = [0.0, 0]

    def __iter__(self) -> Iterator[Drawn]:
        self.windows = self.looked_at = self.over = self.drawn = 0
        self._loss = [0.0, 0]
        generator = np.random.default_rng(self.seed)
        order = generator.permutation(self.reader.count(len(self.text.ids), self.length))
        before = min(BEFORE, self.length // 2)
        for piece in self.reader.windows(self.text.ids, self.length, order=order):
            if self.drawn >= self.wanted:
                break
            passed = self.reader.run(piece.ids)
            predicted = self.reader.predict(passed, piece.following)
            probability = predicted.probability.cpu().numpy().reshape(piece.ids.shape)
            over = probability >= self.floor
            over[:, :before] = False
            rest = ~over
            rest[:, :before] = False
            places = _some(over, self.per_window, generator)[: self.wanted - self.drawn]
            others = _some(rest, self.per_window, generator) if self.with_others else np.zeros(0, np.int64)
            self.windows += len(piece.ids)
            self.looked_at += over.size - over.shape[0] * before
            self.over += int(over.sum())
            self.drawn += len(places)
            known = predicted.loss[np.isfinite(predicted.loss)]
            self._loss[0] += float(known.sum())
            self._loss[1] += known.size
            if len(places) or len(others):
                yield Drawn(passed, predicted, places, others)
            if self.between is not None:
                self.between(min(self.drawn, self.wanted), self.wanted)
        if not self.drawn:
            raise LegibleError(
                f"The model was nowhere {self.floor:.0%} sure in {self.looked_at:,} positions; lower --floor.",
                code="no_predictions",
            )

    def losses(self, total: float, count: int) -> None:
        """Put the losses of another pass over the same windows in place of its own."""
        self._loss = [total, count]

    def population(self, not_positive: int, predictions: int | None = None) -> Population:
        """What was drawn so far; `predictions`: how many were accounted for, where fewer were."""
        loss = self._loss[0] / max(1, self._loss[1])
        counted = self.drawn - not_positive if predictions is None else predictions
        return Population(
            corpus=self.text.name, sha256=self.text.sha256, tokens=len(self.text.ids), windows=self.windows,
            context=self.length, looked_at=self.looked_at, floor=self.floor, over_floor=self.over,
            predictions=counted, not_positive=not_positive, seed=self.seed, loss=loss,
            perplexity=math.exp(min(loss, 700.0)),
        )  # fmt: skip


def _some(mask: NDArray[np.bool_], count: int, generator: np.random.Generator) -> Ints:
    """Up to `count` true places of each row, as flat places."""
    found = []
    for row, line in enumerate(mask):
        places = np.flatnonzero(line)
        if places.size > count:
            places = np.sort(generator.choice(places, count, replace=False))
        found.append(row * mask.shape[1] + places)
    return np.concatenate(found)
