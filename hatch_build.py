"""A wheel carries what the program reads beside its code, as `app/_bundled`; an editable install reads the checkout."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLED = ("alembic.ini", "docs/glossary.md", "migrations", "models", "static", "templates")


class Bundle(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        for name in BUNDLED:
            if not (Path(self.root) / name).exists():
                raise FileNotFoundError(f"the wheel needs {name}, which is not in {self.root}")
            build_data["force_include"][name] = f"app/_bundled/{name}"
