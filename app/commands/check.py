"""`legible check`, `necessity`, `sufficiency`, `path`: whether what a reading credits mattered, in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from app.commands.check_said import bands_table, show_checks, show_necessity, show_path, show_sources, show_sufficiency
from app.commands.interrupt import interruptible
from app.commands.shipped import Replace, keep_shipped
from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.causal.records import Checks
    from legible_core.pipeline import Engine
    from legible_core.reading import ReadingRequest
    from legible_core.registry import Checkpoint

Model = Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")]
Text = Annotated[str, typer.Argument(help="The text, read as typed.")]
Perhaps = Annotated[str | None, typer.Argument(help="The text, read as typed.")]
Target = Annotated[str | None, typer.Option(help="The token that is asked about; default: the most probable one.")]
Contrast = Annotated[str | None, typer.Option(help="Ask about the logit difference to this token.")]
Relative = Annotated[str | None, typer.Option(help="nothing, mean (of the vocabulary) or contrast, as in a reading.")]
Position = Annotated[int | None, typer.Option(help="0-based position whose next token is read; default: the last.")]
Corpus = Annotated[Path | None, typer.Option(help="A UTF-8 text file that training did not see, plain or .xz.")]
Edits = Annotated[
    list[str] | None,
    typer.Option("--edit", help="Ask it of the edited model: L5.u263:scale=0.5, L5.p3.A:flip@3; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]

FLOOR, SAMPLE = 0.3, 200


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("check")(check)
    app.command("necessity")(necessity)
    app.command("sufficiency")(sufficiency)
    app.command("path")(path)


def check(
    model: Model,
    prompt: Perhaps = None,
    target: Target = None,
    contrast: Contrast = None,
    relative_to: Relative = None,
    position: Position = None,
    edit: Edits = None,
    top: Annotated[int, typer.Option(help="How many leading contributions are checked, 1 to 200.")] = 20,
    bands: Annotated[
        bool, typer.Option("--bands", help="Measure this checkpoint's bands on --corpus and store them with it.")
    ] = False,
    corpus: Corpus = None,
    sample: Annotated[int, typer.Option(help="With --bands: how many held-out predictions are checked.")] = SAMPLE,
    floor: Annotated[
        float, typer.Option(help="With --bands: necessity is told of predictions of at least this probability.")
    ] = FLOOR,
    seed: Annotated[
        int, typer.Option(help="With --bands: of the places and the random components.", min=0, max=MAX_SEED)
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="With --bands: write to this file, not to the checkpoint's folder.")
    ] = None,
    replace_shipped: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Remove each leading contribution and run the model again: the change of the logit, total and direct.

    A flag says that the two disagree in sign, or that their ratio leaves the band measured for this checkpoint.
    """
    from app.commands.read import find

    checkpoint = find(model)
    asks = (target, contrast, relative_to, position) != (None,) * 4 or bool(edit)
    if bands:
        if prompt is not None or corpus is None or asks:
            said = "--bands needs --corpus FILE, and no prompt; nor a target, contrast, position or edit of one."
            raise LegibleError(said, code="usage")
        if out is None:
            keep_shipped(checkpoint, ("checks.json",), replace=replace_shipped)
        _measure(checkpoint, corpus, sample, top, floor, seed, out, as_json)
        return
    if prompt is None or corpus is not None or out is not None:
        said = "Give a prompt to check, or --bands with --corpus FILE." if prompt is None else (
            "--corpus and --out go with --bands, and then without a prompt."
        )  # fmt: skip
        raise LegibleError(said, code="usage")
    engine, request = _asked(checkpoint, prompt, target, contrast, position, relative_to, edit)
    from legible_core.causal.checks import check as run

    document = run(engine, request, top, recorded(checkpoint))
    _print(document, as_json, show_checks)


def necessity(
    model: Model,
    prompt: Perhaps = None,
    target: Target = None,
    contrast: Contrast = None,
    relative_to: Relative = None,
    position: Position = None,
    edit: Edits = None,
    seeds: Annotated[int, typer.Option(help="Random sets beside each top set, 1 to 100.")] = 8,
    corpus: Corpus = None,
    sample: Annotated[int, typer.Option(help="With --corpus: how many held-out predictions.")] = SAMPLE,
    floor: Annotated[float, typer.Option(help="With --corpus: only predictions of at least this probability.")] = FLOOR,
    seed: Annotated[
        int, typer.Option(help="Of the random sets, and with --corpus of the places.", min=0, max=MAX_SEED)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Remove the top 1, 2, 4, ... 64 components of a prediction, against random sets of the same size and kinds."""
    from app.commands.read import find

    checkpoint = find(model)
    if (prompt is None) == (corpus is None):
        raise LegibleError("Give a prompt, or --corpus FILE for many held-out predictions.", code="usage")
    if corpus is not None:
        if (target, contrast, relative_to, position) != (None,) * 4 or edit:
            said = "Necessity over --corpus is of the predictions found there; leave target, position and edit out."
            raise LegibleError(said, code="usage")
        engine, ids, name = _stream(checkpoint, corpus)
        document = _held_out(engine, ids, sample, floor, seed, seeds)
        _print({"kind": "necessity", "corpus": name, **document}, as_json, show_necessity)
        return
    assert prompt is not None
    engine, request = _asked(checkpoint, prompt, target, contrast, position, relative_to, edit)
    from legible_core.causal.sets import necessity as run

    _print(run(engine, request, seeds=seeds, seed=seed), as_json, show_necessity)


def sufficiency(
    model: Model,
    prompt: Text,
    contrast: Contrast = None,
    relative_to: Relative = None,
    position: Position = None,
    edit: Edits = None,
    seeds: Annotated[int, typer.Option(help="Random sets of the size found, 1 to 100.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the random sets.", min=0, max=MAX_SEED)] = 0,
    as_json: AsJson = False,
) -> None:
    """Search the smallest set of components that still emits the token when all others are zeroed at its position."""
    from app.commands.read import find

    engine, request = _asked(find(model), prompt, None, contrast, position, relative_to, edit)
    from legible_core.causal.sufficiency import sufficiency as run

    _print(run(engine, request, seeds=seeds, seed=seed), as_json, show_sufficiency)


def path(
    model: Model,
    prompt: Text,
    first: Annotated[str | None, typer.Option(help="The component whose effect is divided, such as L3.h2.")] = None,
    second: Annotated[str | None, typer.Option(help="The later component that it may go through.")] = None,
    operand: Annotated[
        str | None, typer.Option(help="Instead of two components: the operand whose sources are tested, L5.p39.A.")
    ] = None,
    target: Target = None,
    contrast: Contrast = None,
    relative_to: Relative = None,
    position: Position = None,
    edit: Edits = None,
    seeds: Annotated[int, typer.Option(help="With --operand: random upstream sets, 1 to 100.")] = 16,
    as_json: AsJson = False,
) -> None:
    """How much of one component's effect goes through another; or what feeds an operand, told by removal."""
    from app.commands.read import find
    from legible_core.units import parse

    if (operand is None) == (first is None or second is None):
        raise LegibleError("Give --first and --second, or --operand alone.", code="usage")
    engine, request = _asked(find(model), prompt, target, contrast, position, relative_to, edit)
    from legible_core.causal.paths import mediation
    from legible_core.causal.sources import sources

    if operand is not None:
        _print(sources(engine, request, parse(operand), seeds=seeds), as_json, show_sources)
        return
    assert first is not None
    assert second is not None
    _print(mediation(engine, request, parse(first), parse(second)), as_json, show_path)


# ---- measuring -------------------------------------------------------------------------------------------------------


def _measure(
    checkpoint: Checkpoint,
    corpus: Path,
    sample: int,
    top: int,
    floor: float,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    from dataclasses import replace

    from legible_core.causal.bands import measure
    from legible_core.causal.records import FILE

    target = out or checkpoint.path / FILE
    engine, ids, name = _stream(checkpoint, corpus)
    with interruptible() as interrupted, _bar("checks") as step:

        def between(done: int, of: int) -> None:
            step(done, of)
            if interrupted():
                raise KeyboardInterrupt

        measured = measure(engine, ids, sample=sample, top=top, seed=seed, said={"corpus": name}, between=between)
    measured = replace(measured, necessity=_held_out(engine, ids, sample, floor, seed, 8))
    measured.write(target)
    document = {key: value for key, value in measured.to_json().items() if key != "means"}
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(bands_table(document["bands"]))
    show_necessity(document["necessity"], console)
    typer.echo(f"written to {target}")


def _held_out(engine: Engine, ids: Any, sample: int, floor: float, seed: int, seeds: int) -> dict[str, Any]:
    """Necessity of the held-out predictions above a confidence floor, of `sample` that were looked at."""
    if not 0.0 <= floor < 1.0:
        raise LegibleError(f"--floor is {floor}; it is a probability from 0 up to, not with, 1.", code="bad_floor")
    from legible_core.causal.bands import necessity_of

    with interruptible() as interrupted, _bar("necessity") as step:

        def between(done: int, of: int) -> None:
            step(done, of)
            if interrupted():
                raise KeyboardInterrupt

        return necessity_of(engine, ids, sample=sample, floor=floor, seed=seed, seeds=seeds, between=between)


def _stream(checkpoint: Checkpoint, corpus: Path) -> tuple[Engine, Any, str]:
    """The engine, and the ids and the name of a held-out text."""
    from app.scanning import corpus_ids
    from legible_core.pipeline import Engine

    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    ids, _, name = corpus_ids(checkpoint, corpus, None, None)
    return Engine.open(checkpoint), ids, name


def _asked(
    checkpoint: Checkpoint, prompt: str, target: str | None, contrast: str | None, position: int | None,
    relative_to: str | None, edits: list[str] | None,
) -> tuple[Engine, ReadingRequest]:  # fmt: skip
    from legible_core.interventions_text import as_edits
    from legible_core.pipeline import Engine

    made, wish = as_edits(edits or ()), cast(Any, relative_to)
    engine = Engine.open(checkpoint)
    return engine, engine.request(
        prompt, target=target, contrast=contrast, position=position, relative_to=wish, edits=made
    )


def recorded(checkpoint: Checkpoint) -> Checks | None:
    """The checkpoint's own bands; a damaged file counts as none, and says so."""
    from legible_core.causal.records import Checks

    try:
        return Checks.load(checkpoint.path, checkpoint.hash, checkpoint.config)
    except LegibleError as error:
        typer.echo(error.message, err=True)
        return None


class _bar:
    """A progress bar on standard error, told how many of how many are done."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Any:
        self.progress.start()
        task = self.progress.add_task("", total=None)
        return lambda done, of: self.progress.update(task, completed=done, total=of)

    def __exit__(self, *problem: object) -> None:
        self.progress.stop()


def _print(document: dict[str, Any], as_json: bool, show: Any) -> None:
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    show(document, Console(highlight=False))
