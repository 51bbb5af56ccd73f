"""Searches over the names of all checkpoints, each answered from an index of the database; imports no torch.

    found = NamesSearch(database).run(query, indexes, page=1)
    found[0].rows          # ComponentHit or OperandHit, best first

A query becomes one statement a group: what promotes a token, what detects it, what has a label, what is a formula. It
begins at the token, label, kind or id that was asked for; the ids of the searched indexes only sift what is found there
(`_sifting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Integer, Select, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

from app.database import Database
from app.names_index import DETECT, PROMOTE, RARE
from app.search_query import Conditions, Query, Token
from app.search_text import fold_label, storable
from app.tables import NameComponentRow, NameEntryRow, NameOperandRow, NameTokenRow

PAGE = 50  # rows of a page that shows one group
PREVIEW = 10  # rows of a group among others
MAX_PAGE = 200

Statement: TypeAlias = Select[*tuple[Any, ...]]
GroupName: TypeAlias = Literal["promote", "detect", "label-promote", "label-detect", "formula", "id", "id-operand"]


@dataclass(frozen=True, slots=True)
class Match:
    """The token by which something was found; `weight` is its promotion or its lift, `hits` how often it was ON."""

    token: str
    rank: int
    weight: float
    rare: bool
    hits: int | None


@dataclass(frozen=True, slots=True)
class ComponentHit:
    checkpoint_hash: str
    component: str
    unit: bool
    kind: str
    a: str | None
    b: str | None
    promotes: str
    labelled: bool
    cls: str | None
    on: float | None
    agreement: float | None
    half_life: float | None
    match: Match | None = None


@dataclass(frozen=True, slots=True)
class OperandHit:
    """`page` is the unit or head that it belongs to."""

    checkpoint_hash: str
    operand: str
    page: str
    shown: str
    cls: str
    on: float
    agreement: float | None
    match: Match | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one sort; `more` says that there are further ones."""

    name: GroupName
    rows: tuple[ComponentHit | OperandHit, ...]
    more: bool


class NamesSearch:
    """Read-only; one statement a group, whatever is found."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def run(self, query: Query, indexes: Mapping[int, str], page: int = 1) -> list[Group]:
        """The groups of a query over `indexes` (index id → checkpoint hash); with one group, its `page`."""
        if not indexes:
            return []
        wanted = groups_of(query)
        size = PAGE if len(wanted) == 1 else PREVIEW
        skipped = (page - 1) * size if len(wanted) == 1 else 0
        groups = []
        with self.database.read() as connection:
            for name in wanted:
                statement = statement_of(query, name, list(indexes), limit=size + 1, offset=skipped)
                rows = connection.execute(statement).all()
                hits = tuple(_hit(row, indexes[row.index_id]) for row in rows[:size])
                groups.append(Group(name, hits, len(rows) > size))
        return groups


def groups_of(query: Query) -> list[GroupName]:
    """Which groups answer a query, best first."""
    if query.id is not None:
        return ["id", "id-operand"]
    only = query.conditions.of_components_only
    label, token = query.label is not None, query.token is not None
    if query.words is not None:
        label = token = True
    promote, detect = query.side != "detect", query.side != "promote" and not only
    wanted: list[tuple[GroupName, bool]] = [
        ("label-promote", label and promote), ("label-detect", label and detect), ("promote", token and promote),
        ("detect", token and detect), ("formula", not label and not token and not query.empty),
    ]  # fmt: skip
    return [name for name, yes in wanted if yes]


def statement_of(query: Query, group: GroupName, indexes: Sequence[int], *, limit: int, offset: int = 0) -> Statement:
    """The statement of one group."""
    token, label, conditions = query.token, query.label, query.conditions
    if query.words is not None:
        token, label = Token(query.words, exact=False), fold_label(query.words)
    match group:
        case "promote" | "detect":
            assert token is not None
            return (_promoting if group == "promote" else _detecting)(indexes, token, conditions, limit, offset)
        case "id":
            found = _components(indexes, Conditions(), NameComponentRow.component == query.id)
        case "id-operand":
            found = _operands(indexes, Conditions()).where(NameOperandRow.operand == query.id)
        case "label-promote":
            found = _components(indexes, replace(conditions, promotes=label))
        case "label-detect":
            found = _operands(indexes, conditions).where(NameOperandRow.label == label).order_by(*_BEST_FIRST)
        case "formula":
            found = _components(indexes, conditions)
    return found.limit(limit).offset(offset)


_OPERAND_ORDER = (NameOperandRow.index_id, NameOperandRow.place)
_BEST_FIRST = (NameOperandRow.score.desc(), NameOperandRow.index_id.desc(), NameOperandRow.place.desc())
_COMPONENT = (
    NameComponentRow.index_id, NameComponentRow.component, NameComponentRow.unit, NameComponentRow.kind,
    NameComponentRow.a_shown, NameComponentRow.b_shown, NameComponentRow.promotes_shown, NameComponentRow.promotes,
    NameComponentRow.cls, NameComponentRow.on_share, NameComponentRow.agreement, NameComponentRow.half_life,
)  # fmt: skip
_OPERAND = (
    NameOperandRow.index_id, NameOperandRow.operand, NameOperandRow.page, NameOperandRow.shown, NameOperandRow.cls,
    NameOperandRow.on_share, NameOperandRow.score,
)  # fmt: skip


def _components(indexes: Sequence[int], conditions: Conditions, *more: Any) -> Statement:
    row = NameComponentRow
    found = select(*_COMPONENT).where(_sifting(row.index_id, indexes), *_component_terms(conditions), *more)
    if more or conditions.labelled:
        return found.order_by(row.index_id, row.place)
    return found.order_by(row.half_life, row.index_id, row.place)  # the order of the index by kind


def _operands(indexes: Sequence[int], conditions: Conditions) -> Statement:
    return select(*_OPERAND).where(_sifting(NameOperandRow.index_id, indexes), *_operand_terms(conditions))


def _promoting(indexes: Sequence[int], token: Token, conditions: Conditions, limit: int, offset: int) -> Statement:
    """Components whose promote list holds the token, best rank first; lists of rare tokens after the others."""
    terms = list(_component_terms(conditions))
    entries = _entries(indexes, token, (PROMOTE, RARE), None if terms else (limit, offset))
    row = NameComponentRow
    found = select(*_COMPONENT, *_match(entries)).join_from(entries, row, _same_place(entries, row)).where(*terms)
    best = (entries.c.side, entries.c.rank, entries.c.weight.desc(), entries.c.index_id, entries.c.place)
    return found.order_by(*best).limit(limit).offset(offset if terms else 0)


def _detecting(indexes: Sequence[int], token: Token, conditions: Conditions, limit: int, offset: int) -> Statement:
    """Operands whose detect list leads with the token, best rank first."""
    terms = list(_operand_terms(conditions))
    entries = _entries(indexes, token, (DETECT,), None if terms else (limit, offset))
    row = NameOperandRow
    found = select(*_OPERAND, *_match(entries)).join_from(entries, row, _same_place(entries, row)).where(*terms)
    best = (entries.c.rank, entries.c.weight.desc(), entries.c.index_id, entries.c.place)
    return found.order_by(*best).limit(limit).offset(offset if terms else 0)


def _entries(indexes: Sequence[int], token: Token, sides: Sequence[int], part: tuple[int, int] | None) -> Any:
    """Where a token stands in lists; only a `part` (limit, offset) of it where nothing sifts what is found later."""
    row = NameEntryRow
    same = (row.index_id == NameTokenRow.index_id) & (row.token_id == NameTokenRow.token_id)
    columns = (row.index_id, row.place, row.side, row.rank, row.weight, row.hits, NameTokenRow.display)
    found = select(*columns).join_from(NameTokenRow, row, same)
    found = found.where(*_token_terms(indexes, token), row.side.in_(sides))
    if part is not None:
        found = found.order_by(row.side, row.rank, row.weight.desc(), row.index_id, row.place)
        found = found.limit(part[0]).offset(part[1])
    return found.subquery("entries")


def _match(entries: Any) -> tuple[Any, ...]:
    return tuple(entries.c[name] for name in ("display", "side", "rank", "weight", "hits"))


class _Aside(ColumnElement[int]):
    """A column that SQLite's planner shall not begin with; see `_sifting`."""

    inherit_cache = True
    type = Integer()

    def __init__(self, column: Any) -> None:
        self.column = column


_Aside._traverse_internals = [("column", InternalTraversal.dp_clauseelement)]


@compiles(_Aside)
def _compile_aside(element: _Aside, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.column, **kw))


@compiles(_Aside, "sqlite")
def _compile_aside_sqlite(element: _Aside, compiler: Any, **kw: Any) -> str:
    return "+" + str(compiler.process(element.column, **kw))


def _sifting(column: Any, indexes: Sequence[int]) -> Any:
    """Only rows of these indexes. SQLite, which knows no statistics, would otherwise begin with them and walk through
    every row; the plus sign is its way to be told. Postgres knows how little they sift.
    """
    return _Aside(column).in_(indexes)


def _same_place(entries: Any, row: type[NameComponentRow] | type[NameOperandRow]) -> Any:
    return (row.index_id == entries.c.index_id) & (row.place == entries.c.place)


def _token_terms(indexes: Sequence[int], token: Token) -> Iterator[Any]:
    yield NameTokenRow.fold == token.fold
    yield _sifting(NameTokenRow.index_id, indexes)
    if token.exact:
        yield NameTokenRow.text == storable(token.text)


def _component_terms(conditions: Conditions) -> Iterator[Any]:
    row = NameComponentRow
    if conditions.kinds:
        yield row.kind.in_(conditions.kinds)
    for column, wanted in ((row.a, conditions.a), (row.b, conditions.b), (row.promotes, conditions.promotes)):
        if wanted is not None:
            yield column == wanted
    if conditions.above is not None:
        yield row.half_life >= conditions.above
    if conditions.below is not None:
        yield row.half_life < conditions.below
    if conditions.layer is not None:
        yield row.layer == conditions.layer
    if conditions.cls is not None:
        yield row.cls == conditions.cls
    if conditions.part is not None:
        yield row.unit.is_(conditions.part == "units")


def _operand_terms(conditions: Conditions) -> Iterator[Any]:
    if conditions.layer is not None:
        yield NameOperandRow.layer == conditions.layer
    if conditions.cls is not None:
        yield NameOperandRow.cls == conditions.cls


def _hit(row: Any, checkpoint_hash: str) -> ComponentHit | OperandHit:
    fields = row._mapping
    match = None
    if "rank" in fields:
        match = Match(row.display, row.rank, row.weight, row.side == RARE, row.hits)
    if "component" in fields:
        return ComponentHit(
            checkpoint_hash, row.component, bool(row.unit), row.kind, row.a_shown, row.b_shown, row.promotes_shown,
            row.promotes is not None, row.cls, row.on_share, row.agreement, row.half_life, match,
        )  # fmt: skip
    return OperandHit(
        checkpoint_hash, row.operand, row.page, row.shown, row.cls, row.on_share,
        None if row.score < 0 else row.score, match,
    )  # fmt: skip
