"""Two readings side by side: tokens aligned, terms subtracted where they belong to the same thing; imports no torch.

    found = compare(left, right)
    found.components        # every head and unit with both terms, the largest change first; () for different weights
    found.groups            # groups, floor, layers and totals are comparable between any two checkpoints

A unit of one checkpoint and the unit with the same number of another are different things, so their terms are never
subtracted; what both have in the same sense (groups, floor, layers of equally deep models, predictions, totals) is.
A difference is right − left, in logits: what has to be added to the left reading to arrive at the right one. Readings
with the same weights differ by the sum over components and floor of those differences, up to both residuals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.reading import Groups, Prediction, Reading, Summary, TargetToken, Token

Alignment: TypeAlias = Literal["token", "text"]
_WORD = re.compile(rb"\s*\S+|\s+")
GROUP_FIELDS = tuple(Groups.model_fields)
# Edits of a side that its note names.
NAMED_EDITS = 3


@dataclass(frozen=True, slots=True)
class Delta:
    """One amount of both readings, in logits; None where a side has no such thing, and then there is no difference."""

    id: str
    left: float | None
    right: float | None

    @property
    def difference(self) -> float | None:
        return None if self.left is None or self.right is None else self.right - self.left


@dataclass(frozen=True, slots=True)
class Aligned:
    """Positions of both prompts that belong together; an empty range where a side has nothing there."""

    same: bool
    left: tuple[int, int]
    right: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chance:
    """A token's probability on both sides; None where it is not among a side's leading predictions, nor its target."""

    display: str
    left: float | None
    right: float | None

    @property
    def difference(self) -> float | None:
        return None if self.left is None or self.right is None else self.right - self.left


@dataclass(frozen=True)
class Comparison:
    """What two readings have in common and where they differ."""

    left: Reading
    right: Reading
    alignment: Alignment
    kin: bool = False

    @property
    def same_weights(self) -> bool:
        return bool(self.left.summary.checkpoint.hash == self.right.summary.checkpoint.hash)

    @property
    def same_components(self) -> bool:
        """Whether a component's number names the same component on both sides: equal weights, or an edited child's."""
        shapes = self.left.heads.shape == self.right.heads.shape and self.left.units.shape == self.right.units.shape
        return self.same_weights or (self.kin and shapes)

    @property
    def value(self) -> Delta:
        return Delta("value", self.left.summary.value, self.right.summary.value)

    @property
    def residual(self) -> float | None:
        """Difference of the values less the sum of all differences of terms; None for different components."""
        if not self.same_components:
            return None
        terms = sum(d.difference or 0.0 for d in (*self.components, *self.floor))
        return float(self.right.summary.value - self.left.summary.value - terms)

    @property
    def tolerance(self) -> float:
        """How far the differences may miss the difference of the values: what both readings may miss theirs by."""
        return float(self.left.summary.tolerance + self.right.summary.tolerance)

    @cached_property
    def components(self) -> tuple[Delta, ...]:
        """Every head and unit, the largest change first, equal ones in order of reading; () for different ones."""
        if not self.same_components:
            return ()
        rows = []
        for letter, ours, theirs in (
            ("h", self.left.heads, self.right.heads),
            ("u", self.left.units, self.right.units),
        ):
            rows += [
                Delta(f"L{layer}.{letter}{index}", float(ours[layer, index]), float(theirs[layer, index]))
                for layer, index in np.ndindex(*ours.shape)
            ]
        return tuple(sorted(rows, key=lambda row: -abs(row.difference or 0.0)))

    @cached_property
    def groups(self) -> tuple[Delta, ...]:
        """The partition of the sum; a group that a checkpoint has no components for contributes exactly 0."""
        ours, theirs = self.left.summary.groups, self.right.summary.groups
        return tuple(
            Delta(name, float(getattr(ours, name) or 0.0), float(getattr(theirs, name) or 0.0)) for name in GROUP_FIELDS
        )

    @cached_property
    def floor(self) -> tuple[Delta, ...]:
        """Embeddings and biases by name; a bias that a checkpoint does not have contributes exactly 0."""
        ours = {term.id: term.value for term in self.left.summary.floor}
        theirs = {term.id: term.value for term in self.right.summary.floor}
        names = dict.fromkeys([*ours, *theirs])
        return tuple(Delta(name, ours.get(name, 0.0), theirs.get(name, 0.0)) for name in names)

    @cached_property
    def layers(self) -> tuple[Delta, ...]:
        """Attention and units of each layer; without a difference where the models are not equally deep."""
        ours, theirs = _layers(self.left), _layers(self.right)
        names = dict.fromkeys([*ours, *theirs])
        if self.left.summary.heads_shape[0] != self.right.summary.heads_shape[0]:
            return tuple(
                [Delta(name, value, None) for name, value in ours.items()]
                + [Delta(name, None, value) for name, value in theirs.items()]
            )
        return tuple(Delta(name, ours[name], theirs[name]) for name in names)

    @cached_property
    def predictions(self) -> tuple[Chance, ...]:
        """The leading predictions of both, and what either reads, matched by their bytes; the most probable first."""
        ours, theirs = _chances(self.left.summary), _chances(self.right.summary)
        found = [
            Chance((ours.get(key) or theirs[key])[0], _probability(ours, key), _probability(theirs, key))
            for key in dict.fromkeys([*ours, *theirs])
        ]
        return tuple(sorted(found, key=lambda row: -max(row.left or 0.0, row.right or 0.0)))

    @cached_property
    def tokens(self) -> tuple[Aligned, ...]:
        """Both prompts from start to end, as runs that are equal, replaced, left out or put in."""
        ours, theirs = self.left.summary.tokens, self.right.summary.tokens
        if self.alignment == "token":
            return align([token.bytes for token in ours], [token.bytes for token in theirs])
        mine, yours = _words(ours), _words(theirs)
        rows = []
        for row in align([text for text, _ in mine], [text for text, _ in yours]):
            rows.append(Aligned(row.same, _span(mine, row.left), _span(yours, row.right)))
        return tuple(rows)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a person must know before reading the differences, one sentence each."""
        return tuple(_notes(self))


def compare(left: Reading, right: Reading, *, same_tokenizer: bool | None = None, kin: bool = False) -> Comparison:
    """Set two readings side by side.

    `kin`: one checkpoint is an edited child of the other, or both of a third, so units keep their numbers.

    `same_tokenizer` says whether both checkpoints cut text alike; None (a checkpoint is gone) judges by the tokens at
    hand: the same id must stand for the same bytes, and the same bytes for the same id.
    """
    known = left.summary.checkpoint.hash == right.summary.checkpoint.hash or same_tokenizer
    if known is None:
        ours, theirs = _vocabulary(left.summary), _vocabulary(right.summary)
        back = {text: index for index, text in ours.items()}
        known = all(ours.get(index, text) == text and back.get(text, index) == index for index, text in theirs.items())
    return Comparison(left, right, "token" if known else "text", kin)


def align(left: Sequence[object], right: Sequence[object]) -> tuple[Aligned, ...]:
    """The runs of a longest common subsequence of two sequences; n · m steps of one byte-wide row each, in NumPy.

    Where several are equally long, equal items stand as early as possible. No worse on repetitive text than on any
    other, unlike difflib's, which is cubic there.
    """
    n, m = len(left), len(right)
    codes: dict[object, int] = {}
    ours = np.array([codes.setdefault(item, len(codes)) for item in left], dtype=np.int64)
    theirs = np.array([codes.setdefault(item, len(codes)) for item in right], dtype=np.int64)
    # common[i, j]: the length for left[i:] and right[j:]
    common = np.zeros((n + 1, m + 1), dtype=np.int32)
    for i in range(n - 1, -1, -1):
        best = np.maximum(common[i + 1, :m], common[i + 1, 1:] + (theirs == ours[i]))
        common[i, :m] = np.maximum.accumulate(best[::-1])[::-1]
    rows: list[Aligned] = []
    i = j = 0
    while i < n or j < m:
        start = (i, j)
        while i < n and j < m and ours[i] == theirs[j]:
            i, j = i + 1, j + 1
        if (i, j) != start:
            rows.append(Aligned(True, (start[0], i), (start[1], j)))
            start = (i, j)
        while (i < n or j < m) and not (i < n and j < m and ours[i] == theirs[j]):
            if j == m or (i < n and common[i + 1, j] >= common[i, j + 1]):
                i += 1
            else:
                j += 1
        if (i, j) != start:
            rows.append(Aligned(False, (start[0], i), (start[1], j)))
    return tuple(rows)


def _words(tokens: Sequence[Token]) -> list[tuple[bytes, tuple[int, int]]]:
    """The fewest whole tokens that end where words end, with their positions: what two tokenizers can agree on."""
    whole = b"".join(bytes.fromhex(token.bytes) for token in tokens)
    ends = {match.end() for match in _WORD.finditer(whole)}
    found: list[tuple[bytes, tuple[int, int]]] = []
    text, first = b"", 0
    place = 0
    for index, token in enumerate(tokens):
        piece = bytes.fromhex(token.bytes)
        text, place = text + piece, place + len(piece)
        if place in ends or index == len(tokens) - 1:
            found.append((text, (first, index + 1)))
            text, first = b"", index + 1
    return found


def _span(words: Sequence[tuple[bytes, tuple[int, int]]], run: tuple[int, int]) -> tuple[int, int]:
    """The positions of a run of words."""
    first, last = run
    if first == last:
        at = words[first][1][0] if first < len(words) else (words[-1][1][1] if words else 0)
        return (at, at)
    return (words[first][1][0], words[last - 1][1][1])


def _layers(reading: Reading) -> dict[str, float]:
    found = {}
    units = reading.units.astype(np.float64).sum(axis=1)
    for layer, total in zip(reading.summary.layers, units, strict=True):
        found[f"L{layer.layer} attention"] = float(layer.attention)
        found[f"L{layer.layer} units"] = float(total)
    return found


def _chances(summary: Summary) -> dict[str, tuple[str, float]]:
    listed: list[Prediction | TargetToken] = [*summary.predictions, summary.target]
    listed += [summary.contrast] if summary.contrast is not None else []
    return {token.bytes or f"id {token.id}": (token.display, token.probability) for token in listed}


def _probability(chances: dict[str, tuple[str, float]], key: str) -> float | None:
    return chances[key][1] if key in chances else None


def _vocabulary(summary: Summary) -> dict[int, str]:
    listed = [*summary.tokens, *summary.predictions, summary.target]
    return {token.id: token.bytes for token in listed}


def _notes(found: Comparison) -> list[str]:
    left, right = found.left.summary, found.right.summary
    notes = []
    if found.same_components and not found.same_weights:
        notes.append(
            "The checkpoints are edited forms of one another: a number names the same head or unit on both sides, so "
            "components are subtracted."
        )
    if not found.same_components:
        notes.append(
            "The checkpoints differ: units and heads with the same number are different things there, so groups, "
            "layers, predictions and totals are subtracted, and components stand beside each other."
        )
        if left.heads_shape[0] != right.heads_shape[0]:
            notes.append(
                f"The models have {left.heads_shape[0]} and {right.heads_shape[0]} layers, "
                "so their layers are not subtracted either."
            )
    if found.alignment == "text":
        notes.append("The tokenizers differ: the prompts are aligned by text, word by word, not by token.")
    if left.edits != right.edits:
        notes.append(f"The sides carry different edits: {_edits(left)} on the left, {_edits(right)} on the right.")
    quantities = [_quantity(summary) for summary in (left, right)]
    if quantities[0] != quantities[1]:
        notes.append(f"The sides read different quantities: {quantities[0]} on the left, {quantities[1]} on the right.")
    if left.target.bytes != right.target.bytes:
        notes.append(f"The sides read different tokens: {left.target.display} and {right.target.display}.")
    elif left.contrast and right.contrast and left.contrast.bytes != right.contrast.bytes:
        notes.append(f"The contrasts differ: {left.contrast.display} and {right.contrast.display}.")
    if left.dtype != right.dtype:
        notes.append(f"The sides were computed in {left.dtype} and {right.dtype}.")
    return notes


def _edits(summary: Summary) -> str:
    """The edits of a side in their short form; the first few."""
    texts = [edit_text(Edit.from_json(edit)) for edit in summary.edits[:NAMED_EDITS]]
    more = len(summary.edits) - len(texts)
    return (", ".join(texts) + (f" and {more} more" if more else "")) or "none"


def _quantity(summary: Summary) -> str:
    return {"nothing": "a logit", "mean": "a logit less the vocabulary mean", "contrast": "a logit difference"}[
        summary.relative_to
    ]
