"""The names of checkpoints as SQL rows, so that a search is one look at an index; imports no torch.

    index.ready()                                  # what can be searched: one entry a checkpoint
    index.build(checkpoint_hash, names, source, texts, between=...)     # in a worker, in short transactions
    index.sweep({checkpoint_hash, ...})            # forget what was replaced or given up

Building writes under a new id that no search looks at; one last statement makes it the searched one and retires its
predecessor, both or neither. A build that was given up, or overtaken by another attempt, can no longer write.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, delete, func, insert, select, text, update

from app.database import Database
from app.search_text import fold_label, fold_token, storable
from app.tables import (
    NameComponentRow,
    NameEntryRow,
    NameOperandRow,
    NamesIndexRow,
    NameTokenRow,
    clock,
)
from legible_core.errors import Conflict
from legible_core.naming.columns import columns, component_range, lifts, list_lengths, operand_range, promotions
from legible_core.naming.names import ARRAYS, JSON, Names
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit

PROMOTE, RARE, DETECT = 0, 1, 2
LEADING = 20  # detect tokens of an operand that can be found; promote lists hold as many
CHUNK = 10_000  # rows of one transaction: other writers wait for one chunk at most
SHOWN_CHARACTERS = 300

Between = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """The two files that an index is made of: their hash, and their sizes and times."""

    names_hash: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Ready:
    """An index that is searched. `labels`: each label with its number of operands and of components."""

    id: int
    checkpoint_hash: str
    names_hash: str
    stamp: str
    labels: Mapping[str, tuple[int, int]]


def stamp_of(folder: Path) -> str | None:
    """Sizes and times of the names beside a checkpoint, None where there are none: equal stamps, equal files."""
    try:
        found = [(folder / name).stat() for name in (JSON, ARRAYS)]
    except OSError:
        return None
    return " ".join(f"{status.st_size}:{status.st_mtime_ns}" for status in found)


def source_of(folder: Path) -> Source | None:
    """Hash the names beside a checkpoint; None where there are none."""
    stamp = stamp_of(folder)
    if stamp is None:
        return None
    digest = hashlib.sha256()
    for name in (JSON, ARRAYS):
        with open(folder / name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Source(digest.hexdigest(), stamp)


class NamesIndex:
    """Operations on the index. Safe from many threads and many processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def ready(self) -> dict[str, Ready]:
        """What can be searched now, by checkpoint hash."""
        query = select(
            NamesIndexRow.id, NamesIndexRow.checkpoint_hash, NamesIndexRow.names_hash, NamesIndexRow.stamp,
            NamesIndexRow.labels,
        ).where(NamesIndexRow.state == "ready")  # fmt: skip
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return {
            row.checkpoint_hash: Ready(
                row.id, row.checkpoint_hash, row.names_hash, row.stamp,
                {label: (counts[0], counts[1]) for label, counts in row.labels.items()},
            )
            for row in rows
        }  # fmt: skip

    def touch(self, index: Ready, stamp: str) -> None:
        """The files were written anew with the same content."""
        with self.database.write() as connection:
            connection.execute(update(NamesIndexRow).where(NamesIndexRow.id == index.id).values(stamp=stamp))

    def build(
        self,
        checkpoint_hash: str,
        names: Names,
        source: Source,
        texts: Mapping[int, tuple[str, str]],
        *,
        between: Between = lambda done, total: None,
    ) -> int:
        """Index a checkpoint's names and make them the searched ones; returns the index's id.

        texts: (text, display) of every token in a list. `between(rows done, rows in all)` is called after each chunk
        and may raise to give the build up. Raises Conflict when another attempt overtook this one.
        """
        with self.database.write() as connection:
            # Whatever an earlier attempt left is fenced off; `sweep` deletes it.
            held = (NamesIndexRow.checkpoint_hash == checkpoint_hash, NamesIndexRow.state == "building")
            connection.execute(update(NamesIndexRow).where(*held).values(state="stale"))
            values = {
                "checkpoint_hash": checkpoint_hash, "names_hash": source.names_hash, "stamp": source.stamp,
                "state": "building", "labels": {}, "created_at": clock(),
            }  # fmt: skip
            statement = insert(NamesIndexRow).values(values).returning(NamesIndexRow.id)
            made = int(connection.execute(statement).scalar_one())
        total = _size(names, texts)
        done = 0
        for table, rows in _tables(made, names, texts):
            for chunk in _chunks(rows):
                with self.database.write() as connection:
                    self._fence(connection, made)
                    _insert(connection, table, chunk)
                done += len(chunk)
                between(done, total)
        labels = _labels(names)
        with self.database.write() as connection:
            self._fence(connection, made)
            old = (NamesIndexRow.checkpoint_hash == checkpoint_hash, NamesIndexRow.state == "ready")
            connection.execute(update(NamesIndexRow).where(*old).values(state="stale"))
            connection.execute(
                update(NamesIndexRow).where(NamesIndexRow.id == made).values(state="ready", labels=labels)
            )
            if not self.database.sqlite:  # the planner chooses an index by the table's statistics
                for table in _TABLES:
                    connection.execute(text(f"ANALYZE {table.name}"))
        return made

    def sweep(self, known: set[str], *, between: Between = lambda done, total: None) -> int:
        """Delete the rows of retired indexes, and of checkpoints that are not `known` any more; how many indexes."""
        with self.database.write() as connection:
            gone = NamesIndexRow.checkpoint_hash.not_in(known)
            connection.execute(update(NamesIndexRow).where(gone).values(state="stale"))
            ids = connection.execute(select(NamesIndexRow.id).where(NamesIndexRow.state == "stale")).scalars().all()
        for done, index in enumerate(ids):
            for statement in self._deletions(index):
                with self.database.write() as connection:
                    connection.execute(statement)
                between(done, len(ids))
            with self.database.write() as connection:
                connection.execute(delete(NamesIndexRow).where(NamesIndexRow.id == index))
        return len(ids)

    # -- details -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _fence(connection: Connection, index: int) -> None:
        held = select(NamesIndexRow.state).where(NamesIndexRow.id == index).with_for_update(read=True)
        if connection.execute(held).scalar() != "building":
            raise Conflict("These names are being indexed by another attempt.", code="overtaken")

    def _deletions(self, index: int) -> Iterator[Any]:
        """Statements that each delete a bounded number of rows, on both databases."""
        with self.database.read() as connection:
            last = connection.execute(
                select(func.max(NameTokenRow.token_id)).where(NameTokenRow.index_id == index)
            ).scalar()
        step = 500
        for start in range(0, (last or 0) + 1, step):
            span = (NameEntryRow.index_id == index, NameEntryRow.token_id.between(start, start + step - 1))
            for side in (PROMOTE, RARE, DETECT):
                yield delete(NameEntryRow).where(*span, NameEntryRow.side == side)
        for row, column in (
            (NameComponentRow, NameComponentRow.place),
            (NameOperandRow, NameOperandRow.place),
            (NameTokenRow, NameTokenRow.token_id),
        ):
            with self.database.read() as connection:
                last = connection.execute(select(func.max(column)).where(row.index_id == index)).scalar()
            for start in range(0, (last or 0) + 1, CHUNK):
                yield delete(row).where(row.index_id == index, column.between(start, start + CHUNK - 1))


_TABLES: tuple[Table, ...] = tuple(
    row.__table__  # type: ignore[misc]
    for row in (NameTokenRow, NameOperandRow, NameComponentRow, NameEntryRow)
)


def _tables(
    index: int, names: Names, texts: Mapping[int, tuple[str, str]]
) -> Iterator[tuple[Table, Iterable[tuple[Any, ...]]]]:
    """Each table with its rows, in the order of its columns and of its key."""
    tokens, operands, components, entries = _TABLES
    yield tokens, _token_rows(index, texts)
    yield operands, _operand_rows(index, names)
    yield components, _component_rows(index, names)
    yield entries, _entry_rows(index, names)


def _size(names: Names, texts: Mapping[int, tuple[str, str]]) -> int:
    layers = range(names.config.n_layers)
    operands = operand_range(names, layers[-1]).stop
    components = component_range(names, layers[-1]).stop
    width = names._arrays["promote.tokens"].shape[1] + names._arrays["rare.tokens"].shape[1]
    return len(texts) + operands + components * (1 + width) + int(np.minimum(list_lengths(names), LEADING).sum())


def _token_rows(index: int, texts: Mapping[int, tuple[str, str]]) -> Iterator[tuple[Any, ...]]:
    for token in sorted(texts):
        said, display = texts[token]
        yield (index, token, fold_token(said), storable(said), storable(display))


def _operand_rows(index: int, names: Names) -> Iterator[tuple[Any, ...]]:
    for layer in range(names.config.n_layers):
        found, start = columns(names, layer).operands, operand_range(names, layer).start
        for place, component in enumerate(found.components):
            label = found.label[place]
            yield (
                index, start + place, layer, found.ids[place], page_of(component, names),
                None if label is None else fold_label(label), storable(found.shown[place], SHOWN_CHARACTERS),
                found.cls[place], float(found.on[place]), float(np.nan_to_num(found.agreement[place], nan=-1.0)),
            )  # fmt: skip


def _component_rows(index: int, names: Names) -> Iterator[tuple[Any, ...]]:
    for layer in range(names.config.n_layers):
        table, start = columns(names, layer), component_range(names, layer).start
        found, operands = table.components, table.operands
        for place, (a, b) in enumerate(zip(found.a.tolist(), found.b.tolist(), strict=True)):
            keys = [None if i < 0 or operands.label[i] is None else fold_label(operands.label[i] or "") for i in (a, b)]
            shown = [None if i < 0 else storable(operands.shown[i], SHOWN_CHARACTERS) for i in (a, b)]
            promotes = found.promotes[place]
            yield (
                index, start + place, layer, found.ids[place], place >= found.first_unit, found.kind[place], *keys,
                None if promotes is None else fold_label(promotes), *shown,
                storable(found.shown[place], SHOWN_CHARACTERS), found.cls[place], _number(found.on[place]),
                _number(found.agreement[place]), _number(found.half_life[place]),
            )  # fmt: skip


def _entry_rows(index: int, names: Names) -> Iterator[tuple[Any, ...]]:
    """All token lists, in the order of the key: by side, token, rank, place."""
    layers = range(names.config.n_layers)
    for side, name in ((PROMOTE, "promote"), (RARE, "rare")):
        parts = [(promotions(names, layer, name), component_range(names, layer).start) for layer in layers]
        place, rank, token, weight = (
            np.concatenate([part[column] + (start if column == 0 else 0) for part, start in parts])
            for column in range(4)
        )
        yield from _sorted(index, side, place, rank, token, weight, None)
    found = [(lifts(names, layer, LEADING), operand_range(names, layer).start) for layer in layers]
    place, rank, token, weight, hits = (
        np.concatenate([part[column] + (start if column == 0 else 0) for part, start in found]) for column in range(5)
    )
    yield from _sorted(index, DETECT, place, rank, token, weight, hits)


def _sorted(
    index: int, side: int, place: Any, rank: Any, token: Any, weight: Any, hits: Any | None
) -> Iterator[tuple[Any, ...]]:
    order = np.lexsort((place, rank, token))
    for start in range(0, len(order), CHUNK):
        part = order[start : start + CHUNK]
        counts = [None] * len(part) if hits is None else hits[part].tolist()
        rows = (token[part].tolist(), rank[part].tolist(), place[part].tolist(), weight[part].tolist(), counts)
        yield from ((index, side, *row) for row in zip(*rows, strict=True))


def _labels(names: Names) -> dict[str, list[int]]:
    """Each label with its number of operands and of components."""
    operands: Counter[str] = Counter()
    components: Counter[str] = Counter()
    for layer in range(names.config.n_layers):
        table = columns(names, layer)
        operands.update(fold_label(label) for label in table.operands.label if label is not None)
        components.update(fold_label(label) for label in table.components.promotes if label is not None)
    return {label: [operands[label], components[label]] for label in sorted({*operands, *components})}


def page_of(operand: Component, names: Names) -> str:
    """The unit or head whose page shows an operand: a pair's first unit, a quantifier's own, a head, a unit itself."""
    match operand:
        case HeadOperand(layer, head) | Channel(layer, head):
            return str(Head(layer, head))
        case Operand(layer, pair):
            return str(Unit(layer, pair))
        case QuantifierOperand(layer, unit):
            return str(Unit(layer, unit))
    return str(operand)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _insert(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows in the order of the table's columns, by the driver's quickest way."""
    names = ", ".join(column.name for column in table.columns)
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in table.columns)
        connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", list(rows))
        return
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
