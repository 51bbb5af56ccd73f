"""Shared by every test: shapes in signatures are checked, torch runs on one thread, a skip fails on CI."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from jaxtyping import install_import_hook

# Must come before the first import of the package: from here on every annotated call is checked.
# Recipes and pressures check their own fields, with sentences for people, so the hook leaves them alone.
_TRAINING = [f"legible_core.training.{name}" for name in ("loss", "optimiser", "data", "loop")]
_hook = install_import_hook(["legible_core.model", "legible_core.attribution", *_TRAINING], "beartype.beartype")
_hook.__enter__()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """On CI nothing may be skipped: a missing server or browser is a failure there."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped on CI: {reason}"
