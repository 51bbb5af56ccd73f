"""Settings as command-line flags: one source for names, types, defaults and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from app.settings import Settings


def settings_flags(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate `command(settings, ...)` so that typer offers the named settings (all, when none is named) as flags.

    A flag that is not given leaves the setting to its `LEGIBLE_*` variable, then to its default.
    """
    chosen = names or tuple(Settings.model_fields)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]

        def run(**arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in chosen}
            # A list flag that is not given comes as an empty list.
            settings = Settings.load(**{name: None if value == [] else value for name, value in flags.items()})
            command(settings, **arguments)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            *(parameter.replace(kind=kind) for parameter in own),
            *(inspect.Parameter(name, kind, default=None, annotation=_option(name)) for name in chosen),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _option(name: str) -> Any:
    field = Settings.model_fields[name]
    kinds: dict[Any, Any] = {int: int, float: float, Path: Path}
    kind: Any = kinds.get(field.annotation, str)
    if name in ("allowed_hosts", "runs"):
        kind = list[str]
    shown = not field.default_factory and field.default not in (None, "", ())
    default = f" [default: {field.default}]" if shown else ""
    flag = "--allowed-host" if name == "allowed_hosts" else f"--{name.replace('_', '-')}"
    text = f"{field.description} [LEGIBLE_{name.upper()}]{default}"
    return Annotated[kind | None, typer.Option(flag, help=text, show_default=False)]
