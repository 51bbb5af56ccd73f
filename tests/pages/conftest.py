from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_samples import Site, make_checkpoint, open_site

from legible_core.registry import Checkpoint


@pytest.fixture(scope="session")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The small checkpoint with names."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def shared(scanned: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One workbench for tests that only look."""
    made = open_site(tmp_path_factory.mktemp("data"), scanned)
    yield made
    made.services.close()


@pytest.fixture
def site(scanned: Checkpoint, tmp_path: Path) -> Iterator[Site]:
    """A workbench of its own for a test that changes things."""
    made = open_site(tmp_path / "data", scanned)
    yield made
    made.services.close()
