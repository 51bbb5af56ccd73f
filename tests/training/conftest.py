from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`legible train` makes its run known in the data folder, which here is nobody's own."""
    folder = tmp_path / "data"
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(folder))
    return folder
