from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from naming_samples import sample_config, sample_model, text, write_tokenizer

from legible_core.model.transformer import Transformer
from legible_core.naming.corpus import token_stream
from legible_core.tokens import Tokenizer


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_path)


@pytest.fixture(scope="session")
def ids(tokenizer: Tokenizer) -> np.ndarray:
    """About 9,000 tokens in four documents."""
    return token_stream([text(seed, 1500) for seed in range(4)], tokenizer)[0]


@pytest.fixture(scope="session")
def model(tokenizer: Tokenizer) -> Transformer:
    return sample_model(sample_config(tokenizer.vocab_size))
