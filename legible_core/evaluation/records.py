"""evaluation.json: what was measured of a checkpoint, stored beside its weights; imports no torch.

    stored = Evaluation.load(folder, checkpoint.hash)         # None where there is none, or one of other weights
    stored.tasks["blimp"].estimate("acc")                     # Estimate(0.61, 0.0018): all parts, each counted alike
    stored.tasks["blimp"].groups("term")["npi_licensing"].estimate("acc")
    difference(ours, twin, "acc")                             # paired, item by item

The file keeps, for each part, what every item gave (right or wrong as bits, log-likelihoods as float32), so that two
checkpoints can be compared item by item without being run again. It is described in docs/evaluation.md.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legible_core import folder as files
from legible_core.errors import Corrupt, Unavailable
from legible_core.evaluation.data import MAX_LABEL, TASKS, printable_line
from legible_core.evaluation.statistics import Estimate, mean, perplexity, pooled, ratio
from legible_core.figures import PERPLEXITY_ROUNDING, same
from legible_core.replace import sync

FILE = "evaluation.json"
FORMAT, VERSION = "legible-evaluation", 1
MAX_BYTES = 32 << 20
MAX_ITEMS = 1_000_000
MAX_SAID = 200  # characters of where a task's questions are from, and of what computed

# What an item may give, and how it is stored.
VALUES = {"acc": "bits", "acc_norm": "bits", "loglik": "f4", "words": "i4", "bytes": "i4"}
ACCURACIES = ("acc", "acc_norm")
# A figure: its words, what it is made of, and whether more of it is better.
FIGURES = {
    "acc": "accuracy",
    "acc_norm": "accuracy, log-likelihood per character",
    "perplexity": "perplexity of the last word",
    "word_perplexity": "perplexity per word",
    "byte_perplexity": "perplexity per byte",
    "bits_per_byte": "bits per byte",
}


@dataclass(frozen=True)
class PartResult:
    """What one part's items gave, in their order."""

    name: str
    digest: str
    labels: Mapping[str, str]
    values: Mapping[str, NDArray[Any]]
    chance: float | None = None

    @property
    def items(self) -> int:
        return len(next(iter(self.values.values())))

    def log(self, figure: str) -> Estimate:
        """The mean that a figure is made of: right answers, or log-likelihood per item, word or byte."""
        values = self.values
        if figure in ACCURACIES:
            return mean(values[figure])
        if figure == "perplexity":
            return mean(values["loglik"])
        return ratio(values["loglik"], values["words" if figure == "word_perplexity" else "bytes"])

    def estimate(self, figure: str) -> Estimate:
        """A figure of this part with its standard error."""
        log = self.log(figure)
        if figure in ACCURACIES:
            return log
        if figure == "bits_per_byte":
            return Estimate(-log.value / math.log(2), None if log.se is None else log.se / math.log(2))
        return perplexity(log)


@dataclass(frozen=True)
class TaskResult:
    """A task's parts. `limit`: only the first items of each part were asked."""

    name: str
    parts: tuple[PartResult, ...]
    source: str = "local files"
    computed: str = ""
    seconds: float = 0.0
    shortened: int = 0
    limit: int | None = None
    figures: tuple[str, ...] = field(default=("acc",))

    @property
    def title(self) -> str:
        return TASKS[self.name].title

    @property
    def items(self) -> int:
        return sum(part.items for part in self.parts)

    @property
    def chance(self) -> float | None:
        known = [part.chance for part in self.parts if part.chance is not None]
        return math.fsum(known) / len(known) if len(known) == len(self.parts) else None

    def estimate(self, figure: str) -> Estimate:
        """The mean of the parts' figures, each part counted alike, and its standard error over items."""
        return pooled([part.estimate(figure) for part in self.parts])

    def groups(self, label: str) -> dict[str, TaskResult]:
        """The parts with each value of a label (`field`, `term`), in alphabetical order; none without labels."""
        values = sorted({part.labels[label] for part in self.parts if label in part.labels})
        return {value: self._only([p for p in self.parts if p.labels.get(label) == value]) for value in values}

    def part(self, name: str) -> TaskResult | None:
        """One part as a result of its own."""
        found = [part for part in self.parts if part.name == name]
        return self._only(found) if found else None

    def _only(self, parts: list[PartResult]) -> TaskResult:
        return TaskResult(
            self.name, tuple(parts), self.source, self.computed, self.seconds, 0, self.limit, self.figures
        )


@dataclass(frozen=True)
class Evaluation:
    """Everything measured of one checkpoint."""

    checkpoint: str
    tasks: dict[str, TaskResult]

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str) -> Evaluation | None:
        """The results beside a checkpoint; None where there are none, or those of other weights.

        Raises `Corrupt` with one sentence when the file is not what it claims to be.
        """
        if not (folder / FILE).is_file():
            return None
        document = files.parse_json(files.read_text(folder, FILE, MAX_BYTES), FILE)
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise Corrupt(f"{FILE} is not of format {FORMAT!r}, version {VERSION}; evaluate again with this program")
        if document.get("checkpoint") != checkpoint_hash:
            return None
        tasks = document.get("tasks")
        if not isinstance(tasks, dict) or not set(tasks) <= set(TASKS):
            raise Corrupt(f'{FILE}: its "tasks" are none that this program knows')
        try:
            return cls(checkpoint_hash, {name: _task(name, entry) for name, entry in tasks.items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(f"{FILE} is damaged ({str(error)[:80]}); evaluate again") from None

    def with_task(self, result: TaskResult) -> Evaluation:
        """The same with one more, or another, task."""
        return Evaluation(self.checkpoint, {**self.tasks, result.name: result})

    def to_json(self) -> dict[str, Any]:
        """The document; `figures` are derived, for other programs, and not read back."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "checkpoint": self.checkpoint,
            "tasks": {name: _task_json(task) for name, task in sorted(self.tasks.items())},
        }

    def write(self, path: Path) -> None:
        """Write to `path` in one step; raises `Unavailable` when the disk does not take it, and nothing changed."""
        draft = path.parent / f".{path.name}.saving-{secrets.token_hex(6)}"
        try:
            draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            sync(draft)
            os.replace(draft, path)
            sync(path.parent)
        except OSError as error:
            raise Unavailable(
                f"The results cannot be written to {path}: {error.strerror or error}; name a file with --out.",
                code="cannot_write",
                hint="Every item's scores are kept, so the same command with --out does not compute them again.",
            ) from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def difference(ours: TaskResult, twin: TaskResult, figure: str) -> Estimate | None:
    """The paired difference ours − twin: of accuracies, or of mean log-likelihoods per item, word or byte (nats).

    Item by item within each part, the parts pooled as `TaskResult.estimate` does. None when they were not asked the
    same questions.
    """
    theirs = {part.name: part for part in twin.parts}
    if [part.name for part in ours.parts] != [part.name for part in twin.parts]:
        return None
    found = []
    for part in ours.parts:
        other = theirs[part.name]
        if part.digest != other.digest or part.items != other.items:
            return None
        if figure in ACCURACIES:
            found.append(mean(np.asarray(part.values[figure], float) - np.asarray(other.values[figure], float)))
        else:
            change = np.asarray(part.values["loglik"], float) - np.asarray(other.values["loglik"], float)
            weight = {"perplexity": None, "word_perplexity": "words"}.get(figure, "bytes")
            found.append(mean(change) if weight is None else ratio(change, part.values[weight]))
    return pooled(found)


def card_fields(tasks: Mapping[str, TaskResult]) -> dict[str, str]:
    """The card's lines of some results: figures with their standard errors, in the order of the tasks' names."""
    lines: dict[str, str] = {}
    for name, task in sorted(tasks.items()):
        for figure in task.figures:
            estimate = task.estimate(figure)
            key = name if figure == "acc" else f"{name}_{figure}"
            digits = 4 if figure in ACCURACIES else perplexity_digits(estimate.value, figure)
            lines[key] = f"{estimate.value:.{digits}f}"
            if estimate.se is not None:
                lines[f"{key}_se"] = f"{estimate.se:.{digits}f}"
    return lines


def perplexity_digits(value: float, figure: str) -> int:
    """How many decimals a perplexity and its error have: four by the byte, else two, none from a thousand on."""
    return 4 if "byte" in figure else 2 if value < 1000 else 0


def moved(known: TaskResult, now: TaskResult) -> dict[str, tuple[str, str]]:
    """The figures that differ by more than rounding where both are of the same items; else nothing.

    By the card's keys, what was known and what is measured now, as a card writes them.
    """
    if difference(now, known, now.figures[0]) is None:
        return {}
    were, are = card_fields({known.name: known}), card_fields({now.name: now})
    found = {}
    for key in (key for key in are if key in were and not key.endswith("_se")):
        rounding = PERPLEXITY_ROUNDING if "perplexity" in key else 0.0
        if not same(were[key], float(are[key]), are[key], rounding):
            found[key] = (were[key], are[key])
    return found


# ---- JSON ----------------------------------------------------------------------------------------------------------


def _task_json(task: TaskResult) -> dict[str, Any]:
    document: dict[str, Any] = {
        key: getattr(task, key) for key in ("source", "computed", "seconds", "shortened", "items", "chance")
    }
    document["figures"] = {figure: _estimate_json(task.estimate(figure)) for figure in task.figures}
    document["parts"] = {
        part.name: {
            "digest": part.digest,
            "labels": dict(part.labels),
            "items": part.items,
            "chance": part.chance,
            "figures": {figure: _estimate_json(part.estimate(figure)) for figure in task.figures},
            "values": {key: _packed(key, values) for key, values in part.values.items()},
        }
        for part in task.parts
    }
    return document if task.limit is None else {**document, "limit": task.limit}


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value if math.isfinite(estimate.value) else None, "se": estimate.se}


def _task(name: str, entry: dict[str, Any]) -> TaskResult:
    parts = tuple(_part(part, document) for part, document in entry["parts"].items())
    if not parts:
        raise ValueError(f"{name} has no parts")
    figures = tuple(figure for figure in FIGURES if figure in entry["figures"])
    for part in parts:
        for figure in figures:
            part.estimate(figure)
    return TaskResult(
        name=name,
        parts=parts,
        source=_line(entry["source"], MAX_SAID),
        computed=_line(entry["computed"], MAX_SAID),
        seconds=float(entry["seconds"]),
        shortened=int(entry["shortened"]),
        limit=None if entry.get("limit") is None else int(entry["limit"]),
        figures=figures,
    )


def _part(name: str, document: dict[str, Any]) -> PartResult:
    name, items = _line(name), int(document["items"])
    if not 0 < items <= MAX_ITEMS:
        raise ValueError(f"{name} has {items} items")
    values = {key: _unpacked(key, text, items) for key, text in document["values"].items()}
    if not values:
        raise ValueError(f"{name} has no values")
    chance = document["chance"]
    labels = {_line(key): _line(value) for key, value in document["labels"].items()}
    return PartResult(name, str(document["digest"]), labels, values, None if chance is None else float(chance))


def _line(value: object, limit: int = MAX_LABEL) -> str:
    """A text that pages show as it stands; no page could be written with a lone surrogate."""
    if not isinstance(value, str) or not printable_line(value, limit):
        raise ValueError(f"{ascii(value)[:40]} is not one printable line of at most {limit} characters")
    return value


def _packed(key: str, values: NDArray[Any]) -> str:
    kind = VALUES[key]
    data = np.packbits(values.astype(bool)) if kind == "bits" else values.astype(f"<{kind}")
    return base64.b64encode(data.tobytes()).decode("ascii")


def _unpacked(key: str, text: str, items: int) -> NDArray[Any]:
    kind, data = VALUES[key], base64.b64decode(text, validate=True)
    if kind == "bits":
        if len(data) != (items + 7) // 8:
            raise ValueError(f"{key} has not {items} entries")
        return np.unpackbits(np.frombuffer(data, np.uint8), count=items).astype(bool)
    values = np.frombuffer(data, f"<{kind}")
    if len(values) != items or not np.isfinite(values).all():
        raise ValueError(f"{key} has not {items} finite entries")
    return values
