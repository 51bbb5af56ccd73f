"""`legible eval`: judge a checkpoint on minimal pairs, cloze, multiple choice and running text, beside its twin."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.interrupt import interruptible
from app.commands.shipped import Replace, shipped_files
from legible_core.errors import LegibleError, NotFound, Unavailable

if TYPE_CHECKING:
    from legible_core.evaluation.data import Suite
    from legible_core.evaluation.records import Evaluation, TaskResult
    from legible_core.model import Transformer
    from legible_core.registry import Checkpoint
    from legible_core.tokens import Tokenizer

FOLDER = "evaluations"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("eval")(evaluate)


def evaluate(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            help="blimp, lambada, arc_easy, winogrande, wikitext2, separated by commas; default: those in --data."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with a folder for each task; default: fetch tasks by name from the hub."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many items of each part; such results are not stored.", min=1)
    ] = None,
    twin: Annotated[
        str | None, typer.Option(help="The checkpoint to compare with; default: the card's twin. none: no comparison.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the results to this file instead of the checkpoint's folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens in a batch; default: 2,048 on a CPU, 32,768 on a GPU.", min=1, max=1 << 22),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget the scores that are kept and ask again.")] = False,
    replace_shipped: Replace = False,
    paradigms: Annotated[
        bool, typer.Option("--paradigms", help="Print every paradigm too; without, all, fields and terms.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, paradigms included.")] = False,
) -> None:
    """Print accuracy ± standard error, by field and by term for BLiMP, chance and the twin beside it.

    Every item's scores are kept as they come: Ctrl-C stops after the batch in hand, and the same command goes on. What
    a shipped checkpoint came with stays: its results are measured and printed, and stored only with --out or --replace.
    """
    from app.commands.read import find
    from app.settings import Settings
    from legible_core.evaluation.records import FILE

    if limit is not None and replace_shipped:
        raise LegibleError(
            "--replace has nothing to do with --limit, whose results are not stored; leave one away.", code="usage"
        )
    checkpoint = find(model)
    names, suites = asked(tasks, data, limit)
    other = _twin(checkpoint, twin)
    kept = out is None and limit is None and not replace_shipped and bool(shipped_files(checkpoint, (FILE,)))
    target = out if out is not None else None if limit is not None or kept else checkpoint.path / FILE
    if target is not None:
        check_writable(target)
    plan = Plan(names, suites, limit, device, batch_tokens, Settings.load().data_dir / FOLDER, restart, replace_shipped)
    with interruptible() as interrupted:
        results = measure(checkpoint, plan, target, interrupted)
        theirs = {} if results is None or other is None else _twins(other, plan, results, interrupted)
    if results is None or theirs is None:
        raise stopped()
    from app.pages.quality import document, report

    notes = _kept(checkpoint, results) if kept else []
    if as_json:
        typer.echo(json.dumps(document(checkpoint, results, other, theirs), ensure_ascii=False, allow_nan=False))
        for note in notes:
            typer.echo(note, err=True)
        return
    typer.echo(report(checkpoint, results, other, theirs, paradigms))
    if limit is not None and out is None:
        notes = ["not stored: --limit asks only a part of the items"]
    for note in notes or [f"written to {target}"]:
        typer.echo(note)


def asked(tasks: str | None, data: Path | None, limit: int | None) -> tuple[list[str], dict[str, Suite]]:
    """The tasks by name, those of `data` where none are named, and the questions of each that is in files.

    Raises `NotFound` for a folder that is not there, `LegibleError` for an unknown task or unusable questions.
    """
    from legible_core.evaluation.data import TASKS, available, load_suite, task_names

    if data is not None and not data.is_dir():
        raise NotFound(f"There is no data folder {data}; give one with a folder for each task: {', '.join(TASKS)}.")
    names = task_names(tasks) if tasks is not None else list(TASKS) if data is None else available(data)
    if not names:
        raise LegibleError(f"{data} has no folder of a task; it may hold {', '.join(TASKS)}.", code="bad_data")
    suites = {name: load_suite(name, data, limit) for name in names} if data is not None else {}
    return names, suites


def stopped() -> typer.Exit:
    """What ends the command after Ctrl-C, once it has said what is kept."""
    typer.echo("Interrupted; every finished item is kept. Run the same command to go on from there.", err=True)
    return typer.Exit(130)


# ---- running -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is asked, and how."""

    names: list[str]
    suites: dict[str, Suite]
    limit: int | None
    device: str
    batch_tokens: int | None
    state: Path
    restart: bool
    replace_shipped: bool


class Stopped(Exception):
    """The user asked to stop; the scores so far are kept."""


def measure(
    checkpoint: Checkpoint, plan: Plan, target: Path | None, interrupted: Callable[[], bool]
) -> dict[str, TaskResult] | None:
    """Every task's result, stored as it comes; None when interrupted."""
    from legible_core.evaluation.records import Evaluation

    model, tokenizer, computed = _load(checkpoint, plan.device)
    stored = _stored(checkpoint) or Evaluation(checkpoint.hash, {})
    results = {}
    for name in plan.names:
        try:
            results[name] = _task(checkpoint, name, plan, model, tokenizer, computed, interrupted)
        except Stopped:
            return None
        stored = stored.with_task(results[name])
        if target is not None:
            stored.write(target)
    return results


def _twins(
    twin: Checkpoint, plan: Plan, ours: dict[str, TaskResult], interrupted: Callable[[], bool]
) -> dict[str, TaskResult] | None:
    """The twin's results: the stored ones where they are of the same questions, else measured, and stored if it can."""
    from legible_core.evaluation.records import FILE, difference

    stored = _stored(twin)
    found = {}
    for name, result in ours.items():
        known = stored.tasks.get(name) if stored is not None else None
        if known is not None and difference(result, known, result.figures[0]) is not None:
            found[name] = known
    missing = [name for name in ours if name not in found]
    if missing:
        kept = not plan.replace_shipped and shipped_files(twin, (FILE,))
        unstored = f" (not stored: it ships with {FILE}, which --replace replaces)" if kept else ""
        told = f"{twin.slug} has no stored results on {', '.join(missing)}; measuring it too{unstored}."
        typer.echo(told, err=True)
        target = twin.path / FILE if plan.limit is None and not kept and os.access(twin.path, os.W_OK) else None
        shorter = replace(plan, names=missing)
        measured = measure(twin, shorter, target, interrupted)
        if measured is None:
            return None
        found |= measured
    return found


def _task(
    checkpoint: Checkpoint,
    name: str,
    plan: Plan,
    model: Transformer,
    tokenizer: Tokenizer,
    computed: str,
    interrupted: Callable[[], bool],
) -> TaskResult:
    """One task under a progress bar; raises `Stopped` between two batches."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from legible_core.evaluation.journal import Journal
    from legible_core.evaluation.run import Progress, Run

    suite = plan.suites.get(name)
    digest = "by-name" if suite is None else _digest(suite)
    path = plan.state / checkpoint.hash[:16] / f"{name}-{digest[:16]}.jsonl"
    if plan.restart:
        path.unlink(missing_ok=True)
    batch = plan.batch_tokens or (2048 if computed.endswith("cpu") else 32768)
    identity = {"checkpoint": checkpoint.hash, "task": name, "questions": digest}
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bar(*columns, TextColumn("{task.fields[note]}"), console=console) as bar, Journal(path, identity) as journal:
        line = bar.add_task(f"{checkpoint.slug} {name}", total=None, note="tokenising")

        def show(progress: Progress) -> None:
            note = f"{progress.items:,} of {progress.all_items:,} items"
            bar.update(line, completed=progress.tokens, total=progress.all_tokens, note=note)
            if interrupted():
                journal.close()
                raise Stopped

        if journal.done:
            bar.console.print(f"{name}: {len(journal.done):,} items are there already")
        if suite is None:
            from legible_core.evaluation.harness import run_by_name

            return run_by_name(
                name, model, tokenizer, limit=plan.limit, computed=computed,
                batch_tokens=batch, journal=journal, between=show,
            )  # fmt: skip
        run = Run(model, tokenizer, suite, journal, batch)
        for progress in run.steps():
            show(progress)
        return run.result(computed)


def _load(checkpoint: Checkpoint, device: str) -> tuple[Transformer, Tokenizer, str]:
    from app.scanning import load_on
    from legible_core.tokens import Tokenizer

    loaded = load_on(checkpoint, device)
    computed = f"float32 on {loaded.token_embedding.device.type}"
    return loaded, Tokenizer.load(checkpoint.tokenizer_path), computed


def _digest(suite: Suite) -> str:
    import hashlib

    return hashlib.sha256("".join(part.name + part.digest for part in suite.parts).encode()).hexdigest()


# ---- what is stored, and where -------------------------------------------------------------------------------------


def _stored(checkpoint: Checkpoint) -> Evaluation | None:
    """What is stored beside a checkpoint; a damaged file counts as none, and is written anew."""
    from legible_core.evaluation.records import Evaluation

    try:
        return Evaluation.load(checkpoint.path, checkpoint.hash)
    except LegibleError as error:
        typer.echo(error.message, err=True)
        return None


def _kept(checkpoint: Checkpoint, results: dict[str, TaskResult]) -> list[str]:
    """Why nothing was stored beside a shipped checkpoint; and first, what differs from the results that ship."""
    from legible_core.evaluation.records import FILE, moved

    shipped = _stored(checkpoint)
    known = shipped.tasks if shipped is not None else {}
    told = []
    for name in (name for name in results if name in known):
        for key, (was, measured) in moved(known[name], results[name]).items():
            told.append(f"{key}: {measured} measured now, but {was} in the {FILE} that ships, on the same items")
    why = f"not stored: {checkpoint.slug} ships with {FILE}, which stays"
    return [*told, f"{why}; --out FILE writes elsewhere, --replace replaces it, and neither asks the same items again."]


def _twin(checkpoint: Checkpoint, wanted: str | None) -> Checkpoint | None:
    """The checkpoint to compare with; one that the card names and that is not here is left out, with a word."""
    from app.commands.read import find

    if wanted == "none":
        return None
    if wanted is not None:
        return find(wanted)
    named = checkpoint.card.fields.get("twin")
    if not named:
        return None
    try:
        return find(named)
    except LegibleError as error:
        typer.echo(f"The card's twin {named!r} is left out: {error.message}", err=True)
        return None


def check_writable(target: Path) -> None:
    """Say at the start, not after ten minutes, that the results have no place."""
    folder = target.resolve().parent
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unavailable(
            f"The results cannot be written to {target}: {error.strerror or error}; name a file with --out FILE.",
            code="cannot_write",
        ) from None
