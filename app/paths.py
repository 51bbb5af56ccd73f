"""Where the program's own files are: beside the packages in a checkout, under `app/_bundled` in a wheel."""

from __future__ import annotations

from pathlib import Path

from legible_core.errors import NotFound

_PACKAGE = Path(__file__).resolve().parent


def resource(name: str) -> Path:
    """The path of a shipped file or folder; NotFound when this installation lacks it."""
    checkout = _PACKAGE.parent
    # Beside an installed package is site-packages, where a folder "static" could be anybody's.
    root = checkout if (checkout / "pyproject.toml").exists() else _PACKAGE / "_bundled"
    if (root / name).exists():
        return root / name
    raise NotFound(f"This installation lacks its {name!r}; install Legible again.")


def templates_dir() -> Path:
    return resource("templates")


def static_dir() -> Path:
    return resource("static")


def migrations_dir() -> Path:
    return resource("migrations")


def glossary_path() -> Path:
    """The words of the pages, shown under /help."""
    return resource("docs/glossary.md")


def models_dir() -> Path:
    """The folder of shipped checkpoints, one sub-folder each."""
    return resource("models")
