"""`legible export`: a checkpoint in a form that other programs open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from legible_core.errors import LegibleError


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("export")(export)


def export(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    out: Annotated[Path | None, typer.Option(help="The folder to make; default: the slug and -hf.")] = None,
    form: Annotated[str, typer.Option("--format", help="hf: a GPT-2 folder as transformers saves it.")] = "hf",
) -> None:
    """Write a checkpoint whose values are linear and whose units are all GELU as a GPT-2 folder."""
    from app.commands.read import find

    if form != "hf":
        raise LegibleError(f"--format is {form[:40]!r}; it must be hf.", code="bad_format")
    checkpoint = find(model)
    from legible_core.ordinary.export import export as write

    folder = write(checkpoint, Path(f"{checkpoint.slug}-hf") if out is None else out)
    typer.echo(f"Wrote {folder}; read it with: legible read {folder} ...")
