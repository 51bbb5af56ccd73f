"""What every table of the SQL schema is made with: the declarative base, the database's clock, and shared options."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, MetaData
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.functions import GenericFunction

# A deleted row's id never names another row: a late attempt of a deleted job must find nothing.
NEVER_REUSE = {"sqlite_autoincrement": True}
# Many small rows that are only looked up by their key are stored in its order on SQLite.
NO_ROWID = {"sqlite_with_rowid": False}
ACTIVE = "state IN ('waiting', 'running')"
READY = "state = 'ready'"
MAX_INTEGER = 2**31 - 1  # what an Integer column holds on Postgres


class clock(GenericFunction[float]):
    """The database's clock as seconds since 1970, at this moment (not at the transaction's start)."""

    type = Double()
    inherit_cache = True


@compiles(clock, "sqlite")
def _clock_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(clock, "postgresql")
def _clock_postgres(element: Any, compiler: Any, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
