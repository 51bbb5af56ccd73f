from __future__ import annotations

import pytest
from reading_samples import make_engine, sample_config

from legible_core.pipeline import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Boolean heads on two of three layers, every kind of unit, biases everywhere; no tokenizer."""
    return make_engine(sample_config("boolean", (4, 2, 0), biased=True))
