"""The shared error body in the terminal; apart from app/errors.py, so that a command need not load the web."""

from __future__ import annotations

import json

from legible_core.errors import LegibleError


def as_json(error: LegibleError) -> str:
    """The body as one line of JSON, for `--json`."""
    return json.dumps(error.body(), ensure_ascii=False)


def as_text(error: LegibleError) -> str:
    """The sentence, and on a line of its own what to do."""
    return error.message if not error.hint else f"{error.message}\n{error.hint}"
