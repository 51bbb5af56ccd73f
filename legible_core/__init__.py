"""Legible models: the architecture, its exact readings, and the names of its parts.

    from legible_core import load, read      # see legible_core.api

Modules load lazily, so that a process without torch can import the torch-free ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legible_core.api import load, read

__version__ = "0.1.0"
__all__ = ["__version__", "load", "read"]


def __getattr__(name: str) -> Any:
    if name in ("load", "read"):
        from legible_core import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
