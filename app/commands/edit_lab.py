"""`legible edit-lab`: what edits do to a checkpoint, measured and stored beside it; docs/edit-lab.md."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.edit_lab_child import Child, check_slug, saving
from legible_core.errors import LegibleError, NotFound

if TYPE_CHECKING:
    from legible_core.editing.install import Bench
    from legible_core.editing.results import Experiment
    from legible_core.registry import Checkpoint
    from legible_core.tokens import Tokenizer

Model = Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")]
Corpus = Annotated[Path, typer.Option(help="UTF-8 text, plain or .xz, that training did not see.")]
Tokens = Annotated[
    int,
    typer.Option(help="Use the first so many tokens: a half to measure keys, a half to judge edits.", min=64),
]
Windows = Annotated[int, typer.Option(help="Windows of the held-out half to judge on.", min=1, max=65_536)]
Length = Annotated[int, typer.Option(help="Tokens in a window.", min=8)]
Pairs = Annotated[int, typer.Option(help="How many random pairs A → B.", min=1, max=4096)]
Layers = Annotated[list[int] | None, typer.Option("--layer", help="A layer to edit; may be repeated.")]
Betas = Annotated[list[float] | None, typer.Option("--beta", help="A strength of the write; may be repeated.")]
Seed = Annotated[int, typer.Option(help="Seed of everything drawn.", min=0)]
Kind = Annotated[str | None, typer.Option(help="Install into a plain unit or a pair; default: plain where there are.")]
Native = Annotated[
    Path | None, typer.Option(help="A layer-native table made by `legible native`; default: made of the first half.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for edit-lab.json; default: the checkpoint's own.")]
Save = Annotated[
    str | None, typer.Option(help="Also save the cheapest edit that counts as installed, as a child of this name.")
]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the experiment as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group to the program."""
    group = typer.Typer(help="Measure what edits do: gains, installed associations, circuits.", no_args_is_help=True)
    for command in (gains, install, rank_one, circuit, drive, survival, show):
        group.command(command.__name__.replace("_", "-"))(command)
    app.add_typer(group, name="edit-lab")


@dataclass(frozen=True)
class Text:
    """Which text, and how much of it."""

    corpus: Path
    tokens: int
    windows: int
    length: int
    native: Path | None = None


@dataclass(frozen=True)
class Lab:
    """Everything that an experiment needs; `where` says the text in words."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    bench: Bench
    where: str


def gains(
    model: Model,
    corpus: Corpus,
    alpha: Annotated[list[float] | None, typer.Option(help="A gain; may be repeated. Default: 2, 4, 8.")] = None,
    predictions: Annotated[int, typer.Option(help="Predictions at which components are edited.", min=1)] = 30,
    top: Annotated[int, typer.Option(help="Tokens in a component's scope.", min=1)] = 20,
    tokens: Tokens = 20_000,
    windows: Windows = 64,
    length: Length = 128,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Multiply one component by α and see which tokens move: its own, other components', random ones."""
    from legible_core.editing import gains as made

    lab = _open(model, Text(corpus, tokens, windows, length), device, out, native=False)
    chosen = alpha or list(made.ALPHAS)
    with _bar("gains", predictions) as advance:
        edits = made.gain_edits(
            lab.bench.model, lab.bench.text, predictions=predictions, alphas=chosen, top=top, seed=seed, between=advance
        )
    settings = {"predictions": predictions, "top": top, "seed": seed, "alphas": chosen}
    where = f"{predictions} predictions of {lab.where}"
    _finish(lab, made.experiment(edits, _command(), settings, where), out, as_json)


def install(
    model: Model,
    corpus: Corpus,
    pairs: Pairs = 8,
    layer: Layers = None,
    beta: Betas = None,
    kind: Kind = None,
    quantile: Annotated[float, typer.Option(help="Of the key's projection elsewhere: the threshold.", min=0.0, max=1.0)]
    = 0.99,
    tokens: Tokens = 100_000,
    windows: Windows = 16,
    length: Length = 128,
    native: Native = None,
    seed: Seed = 0,
    save: Save = None,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Install random associations A → B into the quietest unit of a layer, in closed form, and count the cost."""
    from legible_core.editing import install as made
    from legible_core.editing.site import default_kind

    check_slug(save)
    lab = _open(model, Text(corpus, tokens, windows, length, native), device, out)
    config = lab.bench.model.config
    chosen, places, betas = _kind(kind), _layers(lab, layer), beta or list(made.BETAS)
    drawn = lab.bench.pairs(pairs, seed)
    kinds = [chosen] if chosen else [default_kind(config)]
    if chosen is None and config.feed_forward.n_pairs and kinds[0] == "plain":
        kinds.append("pair")
    arms = {}
    with _bar("install", len(kinds) * len(drawn) * len(places) * len(betas)) as advance:
        for name in kinds:
            trials = made.install(lab.bench, drawn, places, kind=name, betas=betas, quantile=quantile)
            arms["plain unit" if name == "plain" else "pair"] = list(_counted(trials, advance))
    settings = {"pairs": len(drawn), "layers": places, "betas": betas, "quantile": quantile, "seed": seed}
    said = made.experiment("install", arms, _command(), settings, lab.where, lab.tokenizer.display)
    _finish(lab, said, out, as_json, saving(lab.checkpoint, lab.tokenizer.display, save, arms))


def rank_one(
    model: Model,
    corpus: Corpus,
    pairs: Pairs = 8,
    layer: Layers = None,
    beta: Betas = None,
    identity: Annotated[bool, typer.Option("--identity", help="Also without the covariance.")] = False,
    tokens: Tokens = 100_000,
    windows: Windows = 16,
    length: Length = 128,
    native: Native = None,
    seed: Seed = 0,
    save: Save = None,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The same associations as a rank-one update of a down-projection, on the same axes."""
    from legible_core.editing import install as made

    check_slug(save)
    lab = _open(model, Text(corpus, tokens, windows, length, native), device, out)
    places, betas = _layers(lab, layer), beta or list(made.BETAS)
    drawn = lab.bench.pairs(pairs, seed)
    arms = {}
    with _bar("rank-one", (1 + identity) * len(drawn) * len(places) * len(betas)) as advance:
        for name, without in [("with C", False), ("without C", True)][: 1 + identity]:
            trials = made.rank_one(lab.bench, drawn, places, betas=betas, identity=without)
            arms[name] = list(_counted(trials, advance))
    settings = {"pairs": len(drawn), "layers": places, "betas": betas, "seed": seed}
    said = made.experiment("rank-one", arms, _command(), settings, lab.where, lab.tokenizer.display)
    _finish(lab, said, out, as_json, saving(lab.checkpoint, lab.tokenizer.display, save, arms))


def circuit(
    model: Model,
    corpus: Corpus,
    pairs: Pairs = 6,
    writer: Annotated[int | None, typer.Option(help="Layer of the head; default: three below the top.")] = None,
    strength: Annotated[
        list[float] | None, typer.Option(help="Share of the median stream's norm that arrives at A; may be repeated.")
    ] = None,
    beta: Betas = None,
    positions: Annotated[
        list[int] | None, typer.Option(help="Also measure the reader's row on so many positions of A; may be repeated.")
    ] = None,
    kind: Kind = None,
    tokens: Tokens = 100_000,
    windows: Windows = 16,
    length: Length = 128,
    native: Native = None,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """A head that fires on A and writes a private direction; a unit two layers up that reads it and answers B."""
    from app.commands.read import find
    from legible_core.editing import circuit as made
    from legible_core.editing.site import default_kind

    config = find(model).config
    at = config.n_layers - 2 - made.ABOVE if writer is None else writer
    made.check_writer(config, at)
    lab = _open(model, Text(corpus, tokens, windows, length, native), device, out)
    strengths, betas = strength or list(made.STRENGTHS), beta or list(made.BETAS)
    counts = [*(positions or []), made.ALL]
    drawn = lab.bench.pairs(pairs, seed)
    with _bar("circuit", len(drawn) * len(strengths) * len(betas) * len(counts)) as advance:
        found = made.circuits(
            lab.bench, drawn, at, kind=_kind(kind) or default_kind(config), strengths=strengths, betas=betas,
            positions=counts, seed=seed, between=advance,
        )  # fmt: skip
    settings = {"pairs": len(drawn), "writer": at, "strengths": strengths, "betas": betas, "seed": seed}
    _finish(lab, made.experiment(found, _command(), settings, lab.where, lab.tokenizer.display), out, as_json)


def drive(
    model: Model,
    corpus: Corpus,
    layer: Annotated[int | None, typer.Option(help="Layer of the units; default: one below the top.")] = None,
    units: Annotated[int, typer.Option(help="How many: those whose column names one token.", min=1)] = 12,
    kind: Annotated[str | None, typer.Option(help="Only units of this kind, such as intersection or gelu.")] = None,
    strength: Annotated[
        list[float] | None, typer.Option(help="Share of the median residual norm; may be repeated.")
    ] = None,
    estimated: Annotated[
        bool, typer.Option("--estimated", help="Also with directions estimated from activations.")
    ] = False,
    tokens: Tokens = 60_000,
    windows: Windows = 8,
    length: Length = 128,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Drive trained units from two layers below through their own read rows: how far, the rank, the mediation."""
    from legible_core.editing import driving as made

    lab = _open(model, Text(corpus, tokens, windows, length), device, out, native=False)
    at = lab.bench.model.config.n_layers - 2 if layer is None else _layers(lab, [layer])[0]
    strengths = strength or list(made.STRENGTHS)
    chosen = made.decisive(lab.bench, at, units, kind)
    arms = (False, True) if estimated else (False,)
    found: list[made.Drive] = []
    with _bar("drive", len(arms) * len(chosen)) as advance:
        for arm in arms:
            for unit in chosen:
                found += made.drive(lab.bench, [unit], strengths=strengths, estimated=arm, seed=seed)
                advance(None)
    settings = {"layer": at, "units": len(chosen), "kind": kind, "strengths": strengths, "seed": seed}
    _finish(lab, made.experiment(found, _command(), settings, lab.where, lab.tokenizer.display), out, as_json)


def survival(
    model: Model,
    corpus: Corpus,
    draws: Annotated[int, typer.Option(help="Directions of each sort at each depth.", min=1)] = 4,
    tokens: Tokens = 60_000,
    windows: Windows = 4,
    length: Length = 128,
    native: Native = None,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """How much of a written direction is still there at the end, and how much was carried elsewhere, by depth."""
    from legible_core.editing import survival as made

    lab = _open(model, Text(corpus, tokens, windows, length, native), device, out)
    layers = range(lab.bench.model.config.n_layers + 1)
    with _bar("survival", len(layers) * len(made.SORTS) * draws) as advance:
        writes = made.survival(lab.bench, layers, draws=draws, windows=windows, seed=seed, between=advance)
    settings = {"draws": draws, "windows": windows, "seed": seed}
    _finish(lab, made.experiment(lab.bench.model, writes, _command(), settings, lab.where), out, as_json)


def show(model: Model, out: Out = None, as_json: AsJson = False) -> None:
    """Print the experiments that are stored with a checkpoint."""
    from app.commands.read import find
    from legible_core.editing.results import Results, text

    checkpoint = find(model)
    stored = Results.load(out or checkpoint.path, checkpoint.hash)
    if as_json:
        typer.echo(json.dumps(stored.to_json(), ensure_ascii=False, allow_nan=False))
        return
    if not stored.experiments:
        typer.echo(f"No experiment was made on {checkpoint.slug} yet; legible edit-lab --help lists them.")
    typer.echo("\n\n".join(text(experiment) for experiment in stored.ordered()))


# ---- before and after ------------------------------------------------------------------------------------------------


def _open(model: str, text: Text, device: str, out: Path | None, *, native: bool = True) -> Lab:
    """Checkpoint, model, text and, where it is needed, the layer-native table; all that can be wrong is told first."""
    from app.commands.read import find
    from app.scanning import check_writable, corpus_ids, load_on
    from legible_core.editing.install import Bench
    from legible_core.editing.measure import HeldOut
    from legible_core.editing.native import NativeTable, measure_native
    from legible_core.naming.observe import halves
    from legible_core.tokens import Tokenizer

    checkpoint = find(model)
    if not text.corpus.is_file():
        raise NotFound(f"There is no text at {text.corpus}; give a UTF-8 text file, plain or .xz.")
    if out is not None and not out.is_dir():
        raise NotFound(f"There is no folder {out}; make it first, or leave --out away.")
    check_writable(out or checkpoint.path)
    if text.length > checkpoint.config.context:
        raise LegibleError(
            f"Windows of {text.length} tokens are longer than the context of {checkpoint.slug}, "
            f"{checkpoint.config.context}; make --length smaller.",
            code="bad_options",
        )
    table = NativeTable.load(text.native, checkpoint.hash) if native and text.native is not None else None
    ids, end, name = corpus_ids(checkpoint, text.corpus, text.tokens, None)
    first, second = halves(ids, end)
    calibration = HeldOut.of(first, text.length, max(1, len(first) // text.length))
    held_out = HeldOut.of(second, text.length, text.windows)
    loaded = load_on(checkpoint, device)
    if native and table is None:
        with _bar("native table", len(first)) as advance:
            table = measure_native(
                loaded, first, end_of_document=end, corpus=name, checkpoint_hash=checkpoint.hash, between=advance
            )
    where = f"{held_out.tokens:,} held-out tokens of {name}"
    if native:
        where += f", keys measured on {calibration.tokens:,} others"
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    return Lab(checkpoint, tokenizer, Bench(loaded, calibration, held_out, table), where)


def _finish(
    lab: Lab, experiment: Experiment, out: Path | None, as_json: bool, save: Callable[[], Child] | None = None
) -> None:
    """Store the experiment beside the others of the checkpoint, print it, and save the child that was asked for."""
    from app.commands.edit import saved_text
    from legible_core.editing.results import Results, text

    folder = out or lab.checkpoint.path
    path = Results.load(folder, lab.checkpoint.hash).put(experiment).save(folder)
    if not as_json:
        typer.echo(text(experiment) + f"\n\nwritten to {path}")
    child = save() if save is not None else None
    if as_json:
        saved = {} if child is None else {"child": {**child.saved.to_json(), "association": child.words}}
        typer.echo(json.dumps({**experiment.to_json(), **saved}, ensure_ascii=False, allow_nan=False))
    elif child is not None:
        typer.echo(f"{child.words}\n{saved_text(child.saved, lab.checkpoint, child.edits)}")


def _layers(lab: Lab, given: list[int] | None) -> list[int]:
    """The layers asked for; by default the one below the top, the last from which a write can still be read."""
    count = lab.bench.model.config.n_layers
    chosen = list(dict.fromkeys(given or [max(0, count - 2)]))
    for layer in chosen:
        if not 0 <= layer < count:
            raise LegibleError(f"There is no layer {layer}; use 0 to {count - 1}.", code="bad_options")
    return chosen


def _kind(given: str | None) -> Any:
    if given not in (None, "plain", "pair"):
        raise LegibleError(f"--kind {given!r} is not usable; give plain or pair.", code="bad_options")
    return given


def _command() -> str:
    """This very call, for whoever wants to make it again; file names without their folders, and without --save."""
    import sys

    given = [part for word in sys.argv[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    words = [Path(word).name if "/" in word and Path(word).exists() else word for word in given]
    for option in ("--out", "--save"):
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
    return shlex.join(["legible", *(word for word in words if word != "--json")])


def _counted(items: Iterator[Any], advance: Any) -> Iterator[Any]:
    for item in items:
        advance(None)
        yield item


@contextmanager
def _bar(description: str, total: int) -> Iterator[Any]:
    """A progress bar on standard error: gives a function of what is done, or of None for one more."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task) if done is None else bar.update(task, completed=done)
