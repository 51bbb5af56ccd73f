"""`legible scan`: measure a checkpoint's legibility over a text and name its parts; resumable, in shards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.interrupt import interruptible
from app.commands.shipped import Replace, keep_shipped
from app.scanning import Job, Text, check_writable, finish, load_any, merged, prepare_scan, sampled_contexts
from app.scanning_ordinary import in_dtype, place_of
from app.scanning_report import report
from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.naming.contexts import Contexts
    from legible_core.naming.names import Names
    from legible_core.naming.resumable import Progress
    from legible_core.registry import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("scan")(scan)


@dataclass(frozen=True)
class Plan:
    """What this call does: a shard of the names, all of them, the merged shards, or contexts alone."""

    checkpoint: Checkpoint
    text: Text
    job: Job
    out: Path | None
    merge: int | None
    sampled_too: bool
    contexts_only: bool


def scan(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    corpus: Annotated[
        Path | None,
        typer.Option(help="UTF-8 text, plain or .xz, that training did not see; documents end with <|endoftext|>."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            help="Let the checkpoint itself write so many tokens. With --corpus: contexts are taken from that text, "
            "all else is measured on the corpus.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled text.", min=0, max=MAX_SEED)] = 0,
    contexts_only: Annotated[
        bool, typer.Option("--contexts-only", help="With --sample: make contexts and leave the names as they are.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for names and contexts; default: the checkpoint's.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Scan only the first so many tokens of the corpus.", min=64)
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Windows in a batch, of a context length, or of 256 tokens.", min=1, max=4096)
    ] = 8,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Of an ordinary model: float32 or bfloat16; default: as it was added.")
    ] = "",
    restart: Annotated[bool, typer.Option("--restart", help="Forget an interrupted scan instead of going on.")] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Scan only the I-th of N parts; --merge N puts them together.")
    ] = None,
    merge: Annotated[
        int | None, typer.Option(metavar="N", help="Merge N finished shards of the same scan into names.", min=2)
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of unfinished scans and shards; default: scans in the data folder.")
    ] = None,
    replace_shipped: Replace = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure legibility, detect lists, agreement, promote lists, labels and contexts, and store them with the weights.

    Of an ordinary model, what its units do: mean, extremes, histogram, what they are most active on, what they promote.

    Ctrl-C saves the state after the batch in hand; the same command goes on from there and ends with the same numbers.
    """
    from app.commands.read import find
    from app.settings import Settings

    _check(corpus, sample, contexts_only, shard, merge)
    checkpoint = in_dtype(find(model), dtype)
    if corpus is not None and not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    if out is not None and not out.is_dir():
        raise NotFound(f"There is no folder {out}; make it first, or leave --out away.")
    settings = Settings.load()
    if out is None and shard is None:
        out = place_of(checkpoint, settings.data_dir)
    if out is None and shard is None:
        made = "contexts.safetensors" if contexts_only else "names.json"
        keep_shipped(checkpoint, (made,), replace=replace_shipped)
    check_writable(out or checkpoint.path)
    folder = state or settings.data_dir / "scans"
    sampled_too = corpus is not None and sample is not None and shard is None
    plan = Plan(
        checkpoint,
        Text(corpus, sample, seed, tokens),
        Job(folder, batch, device, restart, _shard(shard), contexts=corpus is None or sample is None),
        out,
        merge,
        sampled_too,
        contexts_only,
    )
    with interruptible() as interrupted:
        names, contexts, done = _with_progress(plan, interrupted)
    if not done:
        typer.echo("Interrupted; the state is saved. Run the same command to go on from there.", err=True)
        raise typer.Exit(130)
    where = out or checkpoint.path
    if names is None and contexts is None:
        typer.echo(
            f"Shard {shard} is done; when all are, run the same command with --merge {plan.job.shard[1]} instead."
        )
    elif as_json:
        typer.echo(json.dumps(_figures(names, contexts), ensure_ascii=False))
    elif names is not None:
        typer.echo(report(names))
        typer.echo(f"names written to {where}")
    if contexts is not None and not as_json:
        typer.echo(f"contexts written to {where}: {contexts.source.said}, {contexts.source.tokens:,} tokens")


def _check(corpus: Path | None, sample: int | None, contexts_only: bool, shard: str | None, merge: int | None) -> None:
    """Options that belong together or exclude each other."""
    reason = None
    if corpus is None and sample is None:
        reason = "Give --corpus FILE, or --sample TOKENS to let the checkpoint itself write a text."
    elif contexts_only and sample is None:
        reason = "--contexts-only goes with --sample TOKENS; with a corpus, names and contexts are made in one pass."
    elif shard is not None and merge is not None:
        reason = "Give --shard for one part, or --merge for all of them, not both."
    elif contexts_only and (shard is not None or merge is not None):
        reason = "--contexts-only is not done in shards; leave --shard and --merge away."
    if reason is not None:
        raise LegibleError(reason, code="bad_options")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise LegibleError(f"--shard {text!r} is not usable; write I/N, such as 1/4 to 4/4.", code="bad_options")
    return int(found[1]) - 1, int(found[2])


def _figures(names: Names | None, contexts: Contexts | None) -> dict[str, Any]:
    keys = ("checkpoint", "corpus", "quality", "legibility", "values", "thresholds")
    figures = {} if names is None else {key: names.meta[key] for key in keys if key in names.meta}
    return figures if contexts is None else figures | {"contexts": contexts.source.to_json()}


# ---- in the terminal -----------------------------------------------------------------------------------------------


def _with_progress(plan: Plan, interrupted: Callable[[], bool]) -> tuple[Names | None, Contexts | None, bool]:
    """Carry the plan out under a progress bar: names, contexts, and whether it came to its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    names = None
    with Bar(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        text, checkpoint = plan.text, plan.checkpoint
        task = bar.add_task(
            "tokenise" if text.corpus else "sample", total=None if text.corpus else text.sample, note=""
        )

        def between(done: int) -> None:
            bar.update(task, completed=done)
            if interrupted():
                raise KeyboardInterrupt

        job = replace(plan.job, between=between)
        if plan.contexts_only:
            loaded = load_any(checkpoint, job.device)
            return None, _contexts(plan, loaded, bar, task, between), True
        if plan.merge is not None:
            found = merged(checkpoint, text, job, plan.merge)
        else:
            found = prepare_scan(checkpoint, text, job)
            # Anew, so that the time left is that of the scan's own rate and not of what wrote or read the text.
            bar.reset(task, description="scan", total=found.total, completed=found.done)
            if found.done:
                bar.console.print(f"going on from {found.done:,} of {found.total:,} tokens")
            for progress in found.run():
                bar.update(task, completed=progress.done, note=_note(progress))
                if interrupted():
                    found.save()
                    return None, None, False
            if job.shard[1] > 1:
                return None, None, True
        bar.update(task, description="name", note="")
        names = finish(found, checkpoint, plan.out)
        if plan.sampled_too:
            return names, _contexts(plan, found.model, bar, task, between), True
    from legible_core.naming.contexts import Contexts

    return names, Contexts.load(plan.out or checkpoint.path, checkpoint_hash=checkpoint.hash), True


def _contexts(plan: Plan, model: Any, bar: Any, task: Any, between: Callable[[int], None]) -> Contexts:
    """Contexts of text that the checkpoint writes, beside names that are made of something else."""
    bar.reset(task, description="contexts", total=plan.text.sample, note="")
    return sampled_contexts(
        plan.checkpoint, model, plan.text.sample or 0, plan.out, seed=plan.text.seed, between=between
    )


def _note(progress: Progress) -> str:
    return f"loss {progress.loss:.3f}"
