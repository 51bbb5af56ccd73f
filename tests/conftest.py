"""Shared by every test: shapes in signatures are checked, nothing is timed, a skip fails on CI."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Sums on two threads may differ from those on one in the last bit, and runs are compared bit by bit across processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Must come before the first import of the package: from here on every annotated call is checked.
# Recipes and pressures check their own fields, with sentences for people, so the hook leaves them alone.
_TRAINING = [f"legible_core.training.{name}" for name in ("loss", "optimiser", "data", "loop")]
_hook = install_import_hook(["legible_core.model", "legible_core.attribution", *_TRAINING], "beartype.beartype")
_hook.__enter__()

# On top of Hypothesis' own profile (`ci` on CI): how long an example takes says nothing on a machine that does more.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders whose files take longest come first, so that no process is left with one of them at the end."""
    longest = ("journeys", "training", "app", "adapters", "pages")
    rank = {name: number for number, name in enumerate(longest)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))


def pytest_collection_finish() -> None:
    """What was imported stays: a look for garbage in all of it takes half a second, and there are many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The first new SQLite database is migrated; those after it are made as copies of that one, in a tenth of the time.

    `Database.migrate.__wrapped__` is the real one, for the tests of migrating itself.
    """
    from app.database import Database

    migrate = Database.migrate
    first = tmp_path_factory.mktemp("schema") / "newest.sqlite"

    def copy(source: Path, target: Path) -> None:
        with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)

    @functools.wraps(migrate)
    def migrate_once(self: Database, data_dir: Path) -> None:
        if self.path is None or self.revision() is not None:
            migrate(self, data_dir)
        elif first.exists():
            copy(first, self.path)
        else:
            migrate(self, data_dir)
            copy(self.path, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "migrate", migrate_once)
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """On CI nothing may be skipped: a missing server or browser is a failure there."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped on CI: {reason}"
