"""How an optional part of Legible is installed, for the errors of those that miss one.

Legible is on no package index, so an extra is installed from the clone.

    how_to_install("parquet")    # "in the clone run pip install -e '.[parquet]' (after make serve: …)"
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The end of a sentence about a library that is not there; `extra` is one of pyproject.toml's."""
    return f"in the clone run pip install -e '.[{extra}]' (after make serve: .venv/bin/pip install -e '.[{extra}]')"
