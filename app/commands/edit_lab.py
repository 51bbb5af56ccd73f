"""`legible edit-lab`: what edits do to a checkpoint, measured and stored beside it; docs/edit-lab.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from app.commands.edit_lab_child import check_slug, saving
from app.commands.edit_lab_shared import (
    Asked,
    Betas,
    Kind,
    Layers,
    Quantile,
    command_line,
    counted,
    finish,
    open_lab,
    progress,
    takes,
    unit_kind,
)
from legible_core.errors import LegibleError

ARMS = {"plain": "plain unit", "pair": "pair", "channel": "channel"}


def register(app: typer.Typer) -> None:
    """Add the group to the program."""
    group = typer.Typer(help="Measure what edits do: gains, installed associations, circuits.", no_args_is_help=True)
    for command in (gains, install, rank_one, circuit, carried, drive, survival, show):
        group.command(command.__name__.replace("_", "-"))(command)
    app.add_typer(group, name="edit-lab")


@takes(tokens=20_000, windows=64)
def gains(
    asked: Asked,
    alpha: Annotated[list[float] | None, typer.Option(help="A gain; may be repeated. Default: 2, 4, 8.")] = None,
    predictions: Annotated[int, typer.Option(help="Predictions at which components are edited.", min=1)] = 30,
    top: Annotated[int, typer.Option(help="Tokens in a component's scope.", min=1)] = 20,
) -> None:
    """Multiply one component by α and see which tokens move: its own, other components', random ones."""
    from legible_core.editing import gains as made

    lab = open_lab(asked, native=False)
    chosen = alpha or list(made.ALPHAS)
    with progress("gains", predictions) as advance:
        edits = made.gain_edits(
            lab.bench.model, lab.bench.text, predictions=predictions, alphas=chosen, top=top, seed=asked.seed,
            between=advance,
        )  # fmt: skip
    settings = lab.settings(predictions=predictions, top=top, alphas=chosen)
    finish(lab, made.experiment(edits, command_line(), settings, f"{predictions} predictions of {lab.where}"))


@takes("pairs", "a", "b", "native", "save", tokens=100_000, windows=16)
def install(
    asked: Asked,
    layer: Layers = None,
    beta: Betas = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Where: plain, pair or channel; may be repeated. Default: all there are.")
    ] = None,
    quantile: Quantile = 0.99,
) -> None:
    """Install associations A → B into the quietest unit or channel of a layer, in closed form, and count the cost."""
    from legible_core.editing import install as made
    from legible_core.editing.installed import experiment

    check_slug(asked.save)
    for name in kind or []:
        if name not in ARMS:
            raise LegibleError(f"--kind {name!r} is not usable; give plain, pair or channel.", code="bad_options")
    lab = open_lab(asked)
    layout = lab.bench.model.config.feed_forward
    there = [name for name, count in (("plain", layout.n_plain), ("pair", layout.n_pairs), ("channel", 1)) if count]
    kinds, places, betas = list(dict.fromkeys(kind or there)), lab.layers(layer), beta or list(made.BETAS)
    drawn = lab.pairs()
    arms = {}
    with progress("install", len(kinds) * len(drawn) * len(places) * len(betas)) as advance:
        for name in kinds:
            wanted: made.InstallKind = name  # type: ignore[assignment]
            trials = made.install(lab.bench, drawn, places, kind=wanted, betas=betas, quantile=quantile)
            arms[ARMS[name]] = list(counted(trials, advance))
    settings = lab.settings(pairs=len(drawn), layers=places, betas=betas, quantile=quantile)
    said = experiment("install", arms, command_line(), settings, lab.where, lab.tokenizer.display)
    finish(lab, said, saving(lab.checkpoint, lab.tokenizer.display, asked.save, arms))


@takes("pairs", "a", "b", "native", "save", tokens=100_000, windows=16)
def rank_one(
    asked: Asked,
    layer: Layers = None,
    beta: Betas = None,
    identity: Annotated[bool, typer.Option("--identity", help="Also without the covariance.")] = False,
) -> None:
    """The same associations as a rank-one update of a down-projection, beside one unit on the same axes."""
    from legible_core.editing import install as made
    from legible_core.editing.installed import experiment
    from legible_core.editing.site import default_kind

    check_slug(asked.save)
    lab = open_lab(asked)
    places, betas = lab.layers(layer), beta or list(made.BETAS)
    drawn = lab.pairs()
    unit = default_kind(lab.bench.model.config)
    updates, beside = {}, {}
    with progress("rank-one", (2 + identity) * len(drawn) * len(places) * len(betas)) as advance:
        for name, without in [("with C", False), ("without C", True)][: 1 + identity]:
            trials = made.rank_one(lab.bench, drawn, places, betas=betas, identity=without)
            updates[name] = list(counted(trials, advance))
        trials = made.install(lab.bench, drawn, places, kind=unit, betas=betas)
        beside[f"one {ARMS[unit]}"] = list(counted(trials, advance))
    settings = lab.settings(pairs=len(drawn), layers=places, betas=betas)
    said = experiment(
        "rank-one", {**updates, **beside}, command_line(), settings, lab.where, lab.tokenizer.display
    )  # fmt: skip
    finish(lab, said, saving(lab.checkpoint, lab.tokenizer.display, asked.save, updates))


@takes("pairs", "a", "b", "native", tokens=100_000, windows=16, pairs=6)
def circuit(
    asked: Asked,
    writer: Annotated[int | None, typer.Option(help="Layer of the head; default: three below the top.")] = None,
    strength: Annotated[
        list[float] | None, typer.Option(help="Share of the median stream's norm that arrives at A; may be repeated.")
    ] = None,
    beta: Betas = None,
    positions: Annotated[
        list[int] | None, typer.Option(help="Also measure the reader's row on so many positions of A; may be repeated.")
    ] = None,
    kind: Kind = None,
    quantile: Quantile = 0.99,
) -> None:
    """A head that fires on A and writes a private direction; a unit two layers up that reads it and answers B."""
    from app.commands.read import find
    from legible_core.editing import circuit as made
    from legible_core.editing.site import default_kind

    chosen, config = unit_kind(kind), find(asked.model).config
    at, reads = made.writer_of(config, writer), chosen or default_kind(config)
    lab = open_lab(asked)
    strengths, betas = strength or list(made.STRENGTHS), beta or list(made.BETAS)
    counts = [*(positions or []), made.ALL]
    drawn = lab.pairs()
    with progress("circuit", len(drawn) * len(strengths) * len(betas) * len(counts)) as advance:
        found = made.circuits(
            lab.bench, drawn, at, kind=reads, strengths=strengths, betas=betas, positions=counts,
            quantile=quantile, seed=asked.seed, between=advance,
        )  # fmt: skip
    settings = lab.settings(pairs=len(drawn), writer=at, strengths=strengths, betas=betas, quantile=quantile)
    finish(lab, made.experiment(found, command_line(), settings, lab.where, lab.tokenizer.display))


@takes("pairs", "a", "b", "native", tokens=100_000, windows=16, pairs=6)
def carried(
    asked: Asked,
    writer: Annotated[int | None, typer.Option(help="Layer of the head; default: three below the top.")] = None,
    kappa: Annotated[
        list[float] | None,
        typer.Option(help="How much the head's score rises on A, in its own standard deviations; may be repeated."),
    ] = None,
    strength: Annotated[
        list[float] | None, typer.Option(help="Share of the median stream's norm that arrives; may be repeated.")
    ] = None,
    beta: Betas = None,
    kind: Kind = None,
    quantile: Quantile = 0.99,
) -> None:
    """A head that looks for A earlier in the text and writes that it was there; a unit that answers B from then on."""
    from app.commands.read import find
    from legible_core.editing import carried as made
    from legible_core.editing.carried_told import experiment
    from legible_core.editing.circuit import writer_of
    from legible_core.editing.site import default_kind

    chosen, config = unit_kind(kind), find(asked.model).config
    at, reads = writer_of(config, writer), chosen or default_kind(config)
    lab = open_lab(asked)
    kappas, strengths, betas = kappa or list(made.KAPPAS), strength or list(made.STRENGTHS), beta or list(made.BETAS)
    drawn = lab.pairs()
    with progress("carried", len(drawn) * len(kappas) * len(strengths) * len(betas)) as advance:
        found = made.carried(
            lab.bench, drawn, at, kind=reads, kappas=kappas, strengths=strengths, betas=betas, quantile=quantile,
            seed=asked.seed, between=advance,
        )  # fmt: skip
    settings = lab.settings(
        pairs=len(drawn), writer=at, kappas=kappas, strengths=strengths, betas=betas, quantile=quantile
    )
    finish(lab, experiment(found, command_line(), settings, lab.where, lab.tokenizer.display))


@takes(tokens=60_000, windows=8)
def drive(
    asked: Asked,
    layer: Annotated[int | None, typer.Option(help="Layer of the units; default: one below the top.")] = None,
    units: Annotated[int, typer.Option(help="How many: those whose column names one token.", min=1)] = 12,
    kind: Annotated[str | None, typer.Option(help="Only units of this kind, such as intersection or gelu.")] = None,
    strength: Annotated[
        list[float] | None, typer.Option(help="Share of the median residual norm; may be repeated.")
    ] = None,
    estimated: Annotated[
        bool, typer.Option("--estimated", help="Also with directions estimated from activations.")
    ] = False,
) -> None:
    """Drive trained units from two layers below through their own read rows: how far, the rank, the mediation."""
    from legible_core.editing import driving as made

    lab = open_lab(asked, native=False)
    at = lab.layers(None if layer is None else [layer])[0]
    strengths = strength or list(made.STRENGTHS)
    chosen = made.decisive(lab.bench, at, units, kind)
    arms = (False, True) if estimated else (False,)
    found: list[made.Drive] = []
    with progress("drive", len(arms) * len(chosen)) as advance:
        for arm in arms:
            for unit in chosen:
                found += made.drive(lab.bench, [unit], strengths=strengths, estimated=arm, seed=asked.seed)
                advance(None)
    settings = lab.settings(layer=at, units=len(chosen), kind=kind, strengths=strengths)
    finish(lab, made.experiment(found, command_line(), settings, lab.where, lab.tokenizer.display))


@takes("native", tokens=60_000, windows=4)
def survival(
    asked: Asked,
    draws: Annotated[int, typer.Option(help="Directions of each sort at each depth.", min=1)] = 4,
) -> None:
    """How much of a written direction is still there at the end, and how much was carried elsewhere, by depth."""
    from legible_core.editing import survival as made

    lab = open_lab(asked)
    layers = range(lab.bench.model.config.n_layers + 1)
    with progress("survival", len(layers) * len(made.SORTS) * draws) as advance:
        writes = made.survival(
            lab.bench, layers, draws=draws, windows=asked.windows, seed=asked.seed, between=advance
        )  # fmt: skip
    settings = lab.settings(draws=draws, windows=asked.windows)
    finish(lab, made.experiment(lab.bench.model, writes, command_line(), settings, lab.where))


def show(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder of edit-lab.json; default: the checkpoint's own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the experiments as JSON.")] = False,
) -> None:
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
