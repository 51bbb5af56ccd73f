"""`legible export`: a checkpoint in a form that other programs open."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from legible_core.registry import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("export")(export)


def export(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    out: Annotated[Path | None, typer.Option(help="The folder to make; default: the slug and -hf.")] = None,
    form: Annotated[str, typer.Option("--format", help="hf: a GPT-2 folder as transformers saves it.")] = "hf",
    check: Annotated[
        bool, typer.Option("--check", help="Read a prompt natively and from the folder, and compare every term.")
    ] = False,
    prompt: Annotated[str, typer.Option(help="The prompt of --check.")] = "It was the best of times, it was the",
) -> None:
    """Write a checkpoint whose values are linear and whose units are all GELU as a GPT-2 folder."""
    from app.commands.read import find

    if form != "hf":
        raise LegibleError(f"--format is {form[:40]!r}; it must be hf.", code="bad_format")
    checkpoint = find(model)
    if check and find_spec("transformer_lens") is None:  # before a folder is written that the next call would refuse
        from legible_core.adapters.source import needs_extra

        raise needs_extra()
    from legible_core.ordinary.export import export as write

    folder = write(checkpoint, Path(f"{checkpoint.slug}-hf") if out is None else out)
    if check:
        typer.echo(agreement(checkpoint, folder, prompt))
    typer.echo(f"Wrote {folder}; read it with: legible read {folder} ...")


def agreement(checkpoint: Checkpoint, folder: Path, prompt: str) -> str:
    """In words how far the folder's terms are from the checkpoint's own; raises `NotExact` beyond the tolerance."""
    from legible_core.agreement import compare

    found = compare(checkpoint, folder, prompt)
    found.check()
    largest = ", ".join(f"{name} {difference:.1e}" for name, difference in found.largest.items())
    return (
        f"Read natively and through TransformerLens, {found.terms:,} terms of the prediction after {found.tokens} "
        f"tokens agree; largest differences: {largest}."
    )
