"""`legible history MODEL SNAPSHOTS…`: what every unit was on the way, stored for the pages of the units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.registry import Checkpoint

TOKENS = 16_384
MAX_TOKENS = 1 << 22
# A snapshot's `rate` in a sentence.
RATES = {
    "decayed": "decayed weights",
    "constant": "at a constant rate",
    "not recorded": "decayed or not: its card does not say",
}


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("history")(history)


def history(
    model: Annotated[str, typer.Argument(help="The checkpoint that the training ended in: slug, hash, or folder.")],
    snapshots: Annotated[
        list[Path],
        typer.Argument(help="Snapshots of its training: a run's folder (all of them), or checkpoint folders."),
    ],
    corpus: Annotated[
        Path | None,
        typer.Option(help="Measure on the beginning of this UTF-8 file; default: text that the checkpoint writes."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to measure on.", min=64, max=MAX_TOKENS)] = TOKENS,
    seed: Annotated[int, typer.Option(help="Seed of the text that the checkpoint writes.", min=0, max=MAX_SEED)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for history.safetensors; default: the checkpoint's.")] = None,
) -> None:
    """Measure each unit's history over the training and store it as history.safetensors.

    For each snapshot and unit: how its read rows and write column lie to the final ones, ON, crispness and class of its
    operands, its half-life, and the tokens it promoted most.
    """
    from app.commands.read import find
    from app.scanning import check_writable, corpus_ids, load_on, sampled_ids
    from legible_core.naming.names import Names
    from legible_core.training.measure_history import Measuring, in_order

    checkpoint = find(model)
    if checkpoint.ordinary:
        raise LegibleError(
            f"{checkpoint.slug} is an ordinary model; a history is made of snapshots of `legible train`.",
            code="bad_snapshots",
        )
    if corpus is not None and not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    if out is not None and not out.is_dir():
        raise NotFound(f"There is no folder {out}; make it first, or leave --out away.")
    check_writable(out or checkpoint.path)
    ordered = in_order(checkpoint, [each for place in snapshots for each in _checkpoints(place)])
    if corpus is not None:
        ids, _, text = corpus_ids(checkpoint, corpus, tokens, None)
    else:
        ids, _, text = sampled_ids(checkpoint, load_on(checkpoint, "cpu"), tokens, seed, None)
    names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    measuring = Measuring(ordered, ids, text, None if names is None else names.often)
    for number, snapshot in enumerate(measuring.run(), 1):
        said = f"{snapshot.tokens:,} tokens, {RATES[snapshot.rate]}, loss {snapshot.loss:.3f} on {text}"
        typer.echo(f"{number} of {len(ordered)}: {said}")
    found = measuring.history
    found.save(out or checkpoint.path)
    typer.echo(
        f"Wrote the history of {checkpoint.config.n_units():,} units over {len(ordered)} snapshots to "
        f"{out or checkpoint.path}."
    )


def _checkpoints(place: Path) -> list[Checkpoint]:
    """A checkpoint folder itself; a run's snapshots; or every checkpoint in a folder of them."""
    from legible_core.registry import open_checkpoint

    if (place / "config.json").is_file():
        return [open_checkpoint(place)]
    if not place.is_dir():
        raise NotFound(f"There is no folder {place}; give a run's folder, or checkpoint folders.")
    run = (place / "recipe.json").is_file()
    inside = place / "snapshots" if run else place
    found = sorted(each.parent for each in inside.glob("*/config.json") if not each.parent.name.startswith("."))
    if not found:
        how = "a run keeps them with --snapshot-every, or with schedule.snapshot_tokens in its recipe"
        raise NotFound(f"There is no snapshot in {place}; {how}.")
    return [open_checkpoint(each) for each in found]
