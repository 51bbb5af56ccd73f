"""The libraries of ordinary models are imported once, under their own warnings."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformer_lens.model_bridge  # noqa: F401
    from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()
