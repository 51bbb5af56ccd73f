"""`legible ...`: one file per group of commands in app/commands. A user's error is one sentence and exit status 2."""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, NoReturn

from app.errors_text import as_json, as_text
from legible_core import __version__
from legible_core.errors import LegibleError

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """The program with every command that this installation has."""
    import typer  # here, so that Ctrl-C while it loads is as quiet as later

    import app.commands as commands

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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # glyphs and JSON, whatever the locale
    try:
        if "--json" in sys.argv:
            _run_for_program()
        build()()
    except KeyboardInterrupt:
        sys.exit(130)
    except LegibleError as error:
        _refuse(error)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            said = f"{str(error.filename)[:40]!r}… is longer than the name of a file can be; give a shorter one."
            _refuse(LegibleError(said, code="bad_path"))
        # Where it names a file, it is a mistake of ours; here it is what the output goes to.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered cannot be written either
        _refuse(LegibleError(f"The output cannot be written: {error.strerror}.", code="cannot_write"))


def _run_for_program() -> NoReturn:
    """As a person's call, but a wrong option is answered with the shared error body too."""
    import typer

    # UsageError itself, which typer does not name in public.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        code = build()(standalone_mode=False)
    except usage_error as error:
        message: str = getattr(error, "format_message", error.__str__)()
        raise LegibleError(message.rstrip(".") + ".", code="usage", hint="--help lists what is allowed.") from None
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: LegibleError) -> None:
    print(as_json(error) if "--json" in sys.argv else as_text(error), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
