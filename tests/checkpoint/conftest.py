"""A tokenizer file, and a good checkpoint folder to spoil."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkpoint_samples import small_model, tokenizer_spec

from legible_core.checkpoint import save


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_spec()), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    save(folder, small_model(), tokenizer_path, {"title": "Small", "perplexity": "50.5", "crisp": "0.75"}, "float32")
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A good checkpoint folder that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "small"))
