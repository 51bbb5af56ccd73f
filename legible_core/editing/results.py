"""edit-lab.json: what the experiments on edits measured, stored beside the weights; imports no torch.

    stored = Results.load(folder, checkpoint.hash)      # empty where nothing is stored, or what is there is of others
    stored.put(experiment).save(folder)
    text(experiment)                                    # the same numbers for a terminal

Each experiment is a few tables of numbers with what was done in words, its settings and the command that does it again,
so page, terminal and JSON show the same. The file is described in docs/edit-lab.md.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legible_core import folder as files
from legible_core.errors import Corrupt, Unavailable
from legible_core.naming.tables import Cell, Table
from legible_core.replace import sync

FILE = "edit-lab.json"
FORMAT, VERSION = "legible-edit-lab", 1
MAX_BYTES = 16 << 20

# The experiments in the order in which they are shown: a name, its title.
EXPERIMENTS: dict[str, str] = {
    "gains": "Gain edits",
    "install": "An association in one unit or channel",
    "rank-one": "An association by a rank-one update",
    "circuit": "A circuit across two layers",
    "carried": "A condition carried by attention",
    "drive": "Driving trained units from two layers below",
    "survival": "Survival and spill of a written direction",
}


@dataclass(frozen=True)
class Experiment:
    """What one experiment measured: `said` is what was done in words, `command` does it again.

    summary: the leading figures by name, for programs. Numbers are plain; what is undefined is None.
    """

    name: str
    said: str
    command: str
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    tables: tuple[Table, ...]

    @property
    def title(self) -> str:
        return EXPERIMENTS[self.name]

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal experiment."""
        return {
            "name": self.name,
            "said": self.said,
            "command": self.command,
            "settings": dict(self.settings),
            "summary": dict(self.summary),
            "tables": [
                {
                    "id": table.id,
                    "title": table.title,
                    "columns": list(table.columns),
                    "rows": [list(row) for row in table.rows],
                    "shares": sorted(table.shares),
                    "note": table.note,
                }
                for table in self.tables
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> Experiment:
        """Read what `to_json` wrote; raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        if data["name"] not in EXPERIMENTS:
            raise ValueError("unknown experiment")
        tables = tuple(_table(item) for item in data["tables"])
        texts = [data["said"], data["command"]]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("said and command are texts")
        return cls(data["name"], texts[0], texts[1], dict(data["settings"]), dict(data["summary"]), tables)


@dataclass(frozen=True)
class Results:
    """The experiments made on one checkpoint, by name."""

    checkpoint: str
    experiments: Mapping[str, Experiment] = field(default_factory=dict)

    def put(self, experiment: Experiment) -> Results:
        """The same with this experiment in place of an older one of its name."""
        return Results(self.checkpoint, {**self.experiments, experiment.name: experiment})

    def ordered(self) -> list[Experiment]:
        return [self.experiments[name] for name in EXPERIMENTS if name in self.experiments]

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str) -> Results:
        """What is stored in a checkpoint folder; nothing where the file is absent or of other weights.

        Raises `Corrupt` when the file is no such file.
        """
        if not (folder / FILE).is_file():
            return cls(checkpoint_hash)
        data = files.parse_json(files.read_text(folder, FILE, MAX_BYTES), FILE)
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise Corrupt(f"{FILE} is not of format {FORMAT!r}, version {VERSION}; make the experiments again")
        if data.get("checkpoint") != checkpoint_hash:
            return cls(checkpoint_hash)
        try:
            found = [Experiment.from_json(item) for item in data["experiments"]]
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{FILE} is damaged ({str(error)[:80]}); make the experiments again") from None
        return cls(checkpoint_hash, {experiment.name: experiment for experiment in found})

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "checkpoint": self.checkpoint,
            "experiments": [experiment.to_json() for experiment in self.ordered()],
        }

    def save(self, folder: Path, name: str = FILE) -> Path:
        """Write the file, whole or not at all; raises `Unavailable` when the disk does not take it."""
        draft = folder / f".{name}.saving-{secrets.token_hex(6)}"
        body = json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        try:
            draft.write_text(body, encoding="utf-8")
            sync(draft)
            os.replace(draft, folder / name)
            sync(folder)
        except OSError as error:
            raise Unavailable(
                f"The results cannot be written to {folder}: {error.strerror or error}.", code="cannot_write"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        return folder / name


def table(
    id: str, title: str, columns: list[str], rows: list[list[Any]], note: str = "", shares: tuple[str, ...] = ()
) -> Table:
    """A table of cells as they are stored: float and int from NumPy made plain, what is not finite made None."""
    plain = tuple(tuple(_cell(cell) for cell in row) for row in rows)
    return Table(id, title, tuple(columns), plain, frozenset(shares), note)


def shown(cell: Cell, share: bool = False) -> str:
    """A cell in words: – for what is undefined, shares as per cent, whole numbers whole, else two or three digits."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if share:
        return f"{100 * cell:.0f} %"
    if isinstance(cell, int) or cell.is_integer():
        return f"{cell:,.0f}".replace("-", "−")
    size = abs(cell)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.01 else 5
    return f"{cell:,.{digits}f}".replace("-", "−")


def text(experiment: Experiment) -> str:
    """An experiment for a terminal."""
    lines = [experiment.title, experiment.said]
    for made in experiment.tables:
        lines += ["", made.title]
        cells = [[shown(c, n in made.shares) for n, c in zip(made.columns, row, strict=True)] for row in made.rows]
        head = list(made.columns)
        width = [max(len(row[column]) for row in [head, *cells]) for column in range(len(head))]
        for row in [head, *cells]:
            line = [row[0].ljust(width[0])] + [c.rjust(w) for c, w in zip(row[1:], width[1:], strict=True)]
            lines.append("  ".join(line).rstrip())
        if made.note:
            lines.append(made.note)
    return "\n".join(lines)


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, float) and not math.isfinite(number):
        return None
    found: int | float = number
    return found


def _table(data: Any) -> Table:
    columns, shares = tuple(data["columns"]), frozenset(data["shares"])
    rows = tuple(tuple(row) for row in data["rows"])
    if not columns or any(len(row) != len(columns) for row in rows) or not shares <= set(columns):
        raise ValueError("rows that do not fit")
    words = [data["id"], data["title"], data["note"], *columns]
    cells = [cell for row in rows for cell in row]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("titles are texts")
    if not all(cell is None or isinstance(cell, str | int | float) for cell in cells):
        raise TypeError("cells are numbers and texts")
    return Table(words[0], words[1], columns, rows, shares, words[2])
