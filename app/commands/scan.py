"""`legible scan`: measure a checkpoint's legibility over a text and name its parts; interruptible and resumable."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.scanning import check_writable, finish, prepare, report
from legible_core.errors import NotFound

if TYPE_CHECKING:
    from legible_core.naming.names import Names
    from legible_core.naming.scan import Progress
    from legible_core.registry import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("scan")(scan)


def scan(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    corpus: Annotated[
        Path,
        typer.Option(help="UTF-8 text, plain or .xz, that training did not see; documents end with <|endoftext|>."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for names.json and names.safetensors; default: the checkpoint's.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Scan only the first so many tokens.", min=64)] = None,
    batch: Annotated[int, typer.Option(help="Windows of one context length in a batch.", min=1, max=4096)] = 8,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    restart: Annotated[bool, typer.Option("--restart", help="Forget an interrupted scan instead of going on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure legibility, detect lists, agreement, promote lists and labels, and store them beside the checkpoint.

    Ctrl-C saves the state after the batch in hand; the same command goes on from there and ends with the same numbers.
    """
    from app.commands.read import find
    from app.settings import Settings

    checkpoint = find(model)
    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    if out is not None and not out.is_dir():
        raise NotFound(f"There is no folder {out}; make it first, or leave --out away.")
    check_writable(out or checkpoint.path)
    state = Settings.load().data_dir / "scans"
    with _interruptible() as interrupted:
        names = _with_progress(checkpoint, corpus, out, state, tokens, batch, device, restart, interrupted)
    if names is None:
        typer.echo("Interrupted; the state is saved. Run the same command to go on from there.", err=True)
        raise typer.Exit(130)
    if as_json:
        keys = ("checkpoint", "corpus", "quality", "legibility", "thresholds")
        typer.echo(json.dumps({key: names.meta[key] for key in keys}, ensure_ascii=False))
    else:
        typer.echo(report(names))
        typer.echo(f"names written to {out or checkpoint.path}")


# ---- in the terminal -----------------------------------------------------------------------------------------------


def _with_progress(
    checkpoint: Checkpoint,
    corpus: Path,
    out: Path | None,
    state: Path,
    tokens: int | None,
    batch: int,
    device: str,
    restart: bool,
    interrupted: Callable[[], bool],
) -> Names | None:
    """Run the scan under a progress bar; None when it was interrupted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        task = bar.add_task("tokenise", total=None, note="")
        found = prepare(
            checkpoint,
            corpus,
            state,
            tokens=tokens,
            batch=batch,
            device=device,
            restart=restart,
            between=lambda done: bar.update(task, completed=done),
        )
        bar.update(task, description="scan", total=found.corpus.tokens, completed=found.done)
        if found.done:
            bar.console.print(f"going on from {found.done:,} of {found.corpus.tokens:,} tokens")
        for progress in found.run():
            bar.update(task, completed=progress.done, note=_note(progress))
            if interrupted():
                found.save()
                return None
        bar.update(task, description="name", note="")
        return finish(found, checkpoint, out)


def _note(progress: Progress) -> str:
    return f"loss {progress.loss:.3f}"


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """A first Ctrl-C only sets a flag, so that no batch is cut in half; a second one ends the program at once."""
    pressed: list[bool] = []

    def handler(number: int, frame: FrameType | None) -> Any:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
