"""`legible train RECIPE`: train a model from a TOML file, resumable; and ship what it gave."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from legible_core.training.loop import Run, Step


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe; see recipes/ and docs/training.md.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/<name> in the present folder.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="The training text (UTF-8, plain or .xz); default: the recipe's data.train.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json; default: the recipe's, or one trained on the text.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    decay: Annotated[
        bool, typer.Option("--decay", help="Branch off the present state and take the learning rate to zero.")
    ] = False,
    decay_tokens: Annotated[int | None, typer.Option(help="Length of the decay; default: the recipe's.")] = None,
    ship: Annotated[
        Path | None, typer.Option(help="Write the decayed weights as a checkpoint folder here (with --decay).")
    ] = None,
    begin: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Begin from this checkpoint folder where the run has no state; needs --from-tokens."
        ),
    ] = None,
    begin_tokens: Annotated[
        int | None, typer.Option("--from-tokens", help="How many tokens that checkpoint was trained on.", min=1)
    ] = None,
    save_seconds: Annotated[float, typer.Option(help="Seconds between two saved states.", min=1.0)] = 240.0,
) -> None:
    """Train; Ctrl-C saves and stops, and the same command goes on where it stopped."""
    from legible_core.registry import open_checkpoint
    from legible_core.training.loop import Run
    from legible_core.training.recipe import load_recipe, resolve
    from legible_core.training.state import writing
    from legible_core.training.warnings import of as warnings_of

    plan = load_recipe(recipe)
    if ship is not None and not decay:
        raise LegibleError("--ship needs --decay: only decayed weights are shipped.", code="bad_options")
    if (begin is None) != (begin_tokens is None):
        raise LegibleError("--from and --from-tokens belong together; give both or neither.", code="bad_options")
    for warning in warnings_of(plan):
        typer.echo(f"Warning: {warning}", err=True)
    folder = out or Path("runs") / plan.name
    source = text or resolve(plan.data.train, recipe.parent)
    given = tokenizer or (resolve(plan.data.tokenizer, recipe.parent) if plan.data.tokenizer else None)
    _check_device(device)
    with writing(folder), _progress() as progress:
        reading = progress.add_task("tokenising", total=None)
        run = Run(plan, folder, source, tokenizer=given, device=device)
        progress.remove_task(reading)
        if begin is not None and begin_tokens is not None:
            run.begin_from(open_checkpoint(begin), begin_tokens)
        bar = _Bar(progress, plan.name + (" decay" if decay else ""))
        if not decay:
            ended = run.train(bar.step, save_seconds=save_seconds)
            where = folder
        else:
            try:
                where, ended = run.decay(bar.step, tokens=decay_tokens, save_seconds=save_seconds), True
            except KeyboardInterrupt:
                ended = False
    if not ended:
        typer.echo(f"Stopped; the state is saved in {folder}. The same command goes on from there.")
        raise typer.Exit(130)
    _report(run, where, ship)


class _Bar:
    """The progress bar, and Ctrl-C as a wish to stop after the present step."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress = progress
        self.name = name
        self.task: TaskID | None = None
        self.stop = False
        signal.signal(signal.SIGINT, self._asked)
        signal.signal(signal.SIGTERM, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    def step(self, step: Step) -> bool:
        if self.task is None:
            self.task = self.progress.add_task(self.name, total=step.last, completed=step.number - 1)
        speed = step.tokens / step.number / step.seconds
        self.progress.update(
            self.task,
            completed=step.number,
            description=f"{self.name}  loss {step.loss:.3f}  {speed:,.0f} tokens/s",
        )
        return not self.stop


def _progress() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError):
        raise LegibleError(
            f"The device {device!r} cannot be used here; use cpu, or cuda where PyTorch sees a GPU.", code="bad_device"
        ) from None


def _report(run: Run, where: Path, ship: Path | None) -> None:
    """The held-out loss with its standard error, and the shipped folder when one was asked for."""
    meta = run.load(where)
    losses = run.held_out_loss()
    mean, error = losses.mean().item(), losses.std().item() / len(losses) ** 0.5
    typer.echo(
        f"{meta['tokens']:,} tokens trained; held-out loss {mean:.4f} ± {error:.4f} nats over {len(losses):,} tokens"
    )
    if ship is None:
        return
    from legible_core.checkpoint import save

    card = {
        "title": run.recipe.name,
        "tokens": str(meta["tokens"]),
        "recipe": run.recipe.name,
    }
    shipped = save(ship, run.model, run.folder / "tokenizer.json", card)
    typer.echo(f"Wrote {ship} ({shipped.hash[:12]}).")
