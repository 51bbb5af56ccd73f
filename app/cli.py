"""`legible ...`: one file per group of commands in app/commands. A user's error is one sentence and exit status 2."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

import app.commands as commands
from app.errors_text import as_json, as_text
from legible_core import __version__
from legible_core.errors import LegibleError


def build() -> typer.Typer:
    """The program with every command that this installation has."""
    program = typer.Typer(
        name="legible",
        help="A workbench for reading transformers whose units are legible by construction.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @program.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True),
    ) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit

    for module in sorted(info.name for info in pkgutil.iter_modules(commands.__path__)):
        register = getattr(importlib.import_module(f"app.commands.{module}"), "register", None)
        if register is not None:
            register(program)
    return program


def main() -> None:
    try:
        build()()
    except LegibleError as error:
        print(as_json(error) if "--json" in sys.argv else as_text(error), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
