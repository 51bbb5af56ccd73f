"""`legible native`: the layer-native token table of a checkpoint, for read rows and for edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.settings import Settings
from legible_core.errors import LegibleError, NotFound

if TYPE_CHECKING:
    from legible_core.editing.native import NativeTable


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("native")(native)


def native(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    corpus: Annotated[Path, typer.Option(help="UTF-8 text, plain or .xz; documents end with <|endoftext|>.")],
    tokens: Annotated[int | None, typer.Option(help="Only the first so many tokens of it.", min=64)] = None,
    candidates: Annotated[
        int, typer.Option(help="How many tokens get a row: the most frequent ones.", min=2, max=65_536)
    ] = 512,
    min_count: Annotated[int, typer.Option(help="Leave out tokens that occur less often.", min=1)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="The file to make; default: native/HASH.safetensors in the data folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Measure what each layer's feed-forward sees when a token is the current one, less the mean over the tokens."""
    from app.commands.read import find
    from app.scanning import corpus_ids, load_on
    from legible_core.editing.native import measure_native, native_path

    checkpoint = find(model)
    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    path = out or native_path(Settings.load().data_dir, checkpoint.hash)
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not out.parent.is_dir():
        raise LegibleError(f"There is no folder {out.parent}; make it first.", code="cannot_write")
    ids, end, name = corpus_ids(checkpoint, corpus, tokens, None)
    with _bar("native", len(ids)) as advance:
        table = measure_native(
            load_on(checkpoint, device),
            ids,
            candidates=candidates,
            min_count=min_count,
            end_of_document=end,
            corpus=name,
            checkpoint_hash=checkpoint.hash,
            between=advance,
        )
    table.save(path)
    made = described(table, path)
    typer.echo(
        json.dumps(made, ensure_ascii=False)
        if as_json
        else f"{made['candidates']} tokens in {made['layers']} layers, from {made['scanned']:,} tokens of {name}; the "
        f"rarest occurs {made['rarest']} times.\nwritten to {path}"
    )


def described(table: NativeTable, path: Path) -> dict[str, Any]:
    """What a table is, for programs."""
    layers, count, width = table.table.shape
    return {
        "file": str(path),
        "layers": layers,
        "candidates": count,
        "width": width,
        "rarest": int(table.counts.min()),
        **table.meta,
        "scanned": int(table.meta["scanned"]),
    }


def _bar(description: str, total: int) -> Any:
    """A progress bar on standard error: a context that gives a function of what is done."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def shown() -> Any:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(description, total=total)
            yield lambda done: bar.update(task, completed=done)

    return shown()
