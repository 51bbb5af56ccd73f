from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_samples import make_checkpoint, make_tokenizer, write_data

from legible_core.registry import Checkpoint
from legible_core.tokens import Tokenizer


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_path)


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer_path: Path) -> Checkpoint:
    return make_checkpoint(tmp_path / "sample", tokenizer_path)


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "state"))
    return tmp_path / "state"
