"""`legible account`: how many components carry a prediction, of one prompt or over a corpus, in this process."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.interrupt import interruptible
from app.commands.shipped import Replace, keep_shipped
from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.accounting.measure import Plan
    from legible_core.accounting.records import Accounting, Quartiles
    from legible_core.registry import Checkpoint

STATES = "accountings"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("account")(account)


def account(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    prompt: Annotated[str | None, typer.Argument(help="The text whose prediction is accounted for.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The token, such as ' worst' or id:666; default: the most probable one.")
    ] = None,
    position: Annotated[
        int | None, typer.Option(help="0-based position whose next token is read; default: the last.")
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="With a prompt: list the set with heads whole, not channel by channel.")
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Instead of a prompt: UTF-8 text, plain or .xz, that training did not see."),
    ] = None,
    sample: Annotated[
        int, typer.Option(help="Predictions over the floor to account for.", min=1, max=1_000_000)
    ] = 1000,
    floor: Annotated[float, typer.Option(help="Only predictions that the model is at least so sure of.")] = 0.5,
    tokens: Annotated[int | None, typer.Option(help="Only the first so many tokens of the corpus.", min=64)] = None,
    parts: Annotated[
        str, typer.Option(help="Which parts, separated by commas: counts, depth, carriage, reads, writes.")
    ] = "counts,depth,carriage,reads,writes",
    seed: Annotated[int, typer.Option(help="Seed of the sample.", min=0, max=MAX_SEED)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: the checkpoint's.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    restart: Annotated[bool, typer.Option("--restart", help="Forget an interrupted naming by writes.")] = False,
    replace_shipped: Replace = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Account for one prediction, or measure the accounting over a corpus and store it beside the weights.

    Over a corpus, Ctrl-C keeps what was named by writes so far, and the same command goes on from there.
    """
    from app.commands.read import find

    if (prompt is None) == (corpus is None):
        said = "Give a prompt, or a text with --corpus." if prompt is None else "Give a prompt or --corpus, not both."
        raise LegibleError(said, code="usage")
    checkpoint = find(model)
    if prompt is not None:
        _one(checkpoint, prompt, target, position, heads, as_json)
        return
    assert corpus is not None
    if target is not None or position is not None or heads:
        raise LegibleError("--target, --position and --heads go with a prompt, not with --corpus.", code="usage")
    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    if out is not None and not out.is_dir():
        raise NotFound(f"There is no folder {out}; make it first, or leave --out away.")
    from app.scanning import check_writable
    from app.settings import Settings
    from legible_core.accounting.measure import Plan

    if out is None:
        keep_shipped(checkpoint, ("accounting.json",), replace=replace_shipped)
    states = Settings.load().data_dir / STATES
    state = states / f"{checkpoint.hash[:16]}.safetensors"
    out = out or _place(checkpoint, states)
    check_writable(out)
    plan = Plan(Plan.check_parts(parts), sample, floor, seed, state, restart)
    stored = _corpus(checkpoint, corpus, tokens, plan, out, device)
    if as_json:
        typer.echo(json.dumps(stored.to_json(), allow_nan=False))
    else:
        for line in report(stored, plan.parts):
            typer.echo(line)
        typer.echo(f"accounting written to {out}")


# ---- one prediction ------------------------------------------------------------------------------------------------


def _one(
    checkpoint: Checkpoint, prompt: str, target: str | None, position: int | None, heads: bool, as_json: bool
) -> None:
    from legible_core.accounting.one import document
    from legible_core.api import load

    engine = load(checkpoint)
    found = document(engine, engine.request(prompt, target=target, position=position))
    found["perplexity"] = checkpoint.perplexity
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for line in lines(found, by_head=heads):
        typer.echo(line)


def lines(found: dict[str, Any], shown: int = 20, by_head: bool = False) -> list[str]:
    """The accounting of one prediction as text; `by_head`: its set with heads whole."""
    channels, heads, target = found["channels"], found["heads"], found["target"]
    chosen, members = (heads, heads["members"]) if by_head else (channels, found["members"])
    net, n90 = chosen["net"], chosen["counts"]["net"]["n90"]
    floor = sum(row["value"] for row in found["floor"])
    quality = "unknown" if found["perplexity"] is None else f"{found['perplexity']:.2f}"
    said = [
        f"{target['display']}  probability {target['probability']:.3g}, rank {target['rank']}, relative to the "
        "vocabulary's mean",
        f"net {net:+.3f} | floor {floor:+.3f} = {found['sum']:.4f}   logit − mean {found['value']:.4f}   residual "
        f"{found['residual']:.1e} (tolerance {found['tolerance']:.0e})",
    ]
    if n90 is None:
        said.append(f"n90 is undefined: the components add up to {net:.3g}, which is not positive")
    else:
        said.append(
            f"n90 = {n90} of {chosen['components']:,} {'heads' if by_head else 'channels'} and units; opposing mass "
            f"{chosen['opposing_over_net']:.2f} times the net; the checkpoint's perplexity is {quality}"
        )
    said += ["", f"{'components to reach':<30}{'80 %':>8}{'90 %':>8}{'99 %':>8}    with heads whole"]
    words = {"net": "the signed net", "positive": "the positive terms alone", "absolute": "the absolute terms"}
    for name, text in words.items():
        cells = [
            "".join(f"{_count(side['counts'][name][f'n{percent}']):>8}" for percent in (80, 90, 99))
            for side in (channels, heads)
        ]
        said.append(f"{text:<30}{cells[0]}    {cells[1]}")
    said += ["", f"{'term':>9}{'of net':>9}{'together':>10}  the one-hop set"]
    for row in members[:shown]:
        said.append(f"{row['value']:>+9.3f}{row['share']:>9.1%}{row['running']:>+10.3f}  {row['id']}")
    more = (n90 or 0) - min(shown, len(members))
    if more > 0:
        said.append(f"{more:>28} more")
    return said


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


# ---- a corpus ------------------------------------------------------------------------------------------------------


def _corpus(checkpoint: Checkpoint, corpus: Path, tokens: int | None, plan: Plan, out: Path, device: str) -> Accounting:
    """Measure every part under a progress bar; each is stored as soon as it is there."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from app.scanning import corpus_ids
    from legible_core.accounting.measure import Stopped, measure

    loaded, begin = _loaded(checkpoint, device)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with interruptible() as interrupted, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("tokenising", total=None)
        ids, end, name = corpus_ids(checkpoint, corpus, tokens, None)

        def between(part: str, done: int, total: int) -> None:
            bar.update(task, description=part, completed=done, total=total)
            if interrupted():
                raise Stopped

        try:
            return measure(loaded, ids, name, end, checkpoint.hash, out, plan, between, begin)
        except Stopped:
            typer.echo("Interrupted; finished parts are stored. The same command goes on from there.", err=True)
            raise typer.Exit(130) from None


def _loaded(checkpoint: Checkpoint, device: str) -> tuple[Any, int | None]:
    """The model, and the token that its tokenizer puts before every text, if it does.

    An ordinary model goes to the device that it was added for, unless another is named here.
    """
    from app.scanning import load_on
    from legible_core.adapters.registration import OrdinaryCheckpoint

    if not isinstance(checkpoint, OrdinaryCheckpoint):
        return load_on(checkpoint, device), None
    import torch

    from legible_core.pipeline import Engine

    wanted = checkpoint.device if device == "auto" else device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    bos = checkpoint.bos
    return Engine.open(checkpoint, device=wanted).model, bos.id if bos is not None and bos.default else None


def _place(checkpoint: Checkpoint, root: Path) -> Path:
    """Beside the weights; for an ordinary model that nobody added, whose folder is left alone, in the data folder."""
    from legible_core.adapters.registration import OrdinaryCheckpoint

    if not isinstance(checkpoint, OrdinaryCheckpoint) or checkpoint.path != checkpoint.source:
        return checkpoint.path
    place = root / checkpoint.hash[:16]
    place.mkdir(parents=True, exist_ok=True)
    return place


def report(stored: Accounting, parts: Collection[str]) -> Iterable[str]:
    """What was measured of `parts`, in the words of the model's page; what is stored besides, with its own text."""
    from legible_core.accounting.records import PARTS

    shown = stored.model_copy(update=dict.fromkeys((part for part in PARTS if part not in parts), None))
    yield from _measured(shown)
    for part in PARTS:
        kept = getattr(stored, part)
        if kept is not None and getattr(shown, part) is None:
            where = kept.population
            yield f"{part}: not measured now; what is stored is of {where.corpus}, {where.tokens:,} tokens"


def _measured(stored: Accounting) -> Iterable[str]:
    counts = stored.counts
    if counts is not None:
        where = counts.population
        yield (
            f"{where.predictions:,} predictions of {where.corpus} at probability {where.floor:g} or more "
            f"({where.not_positive} more had no positive net); perplexity there {where.perplexity:.2f}"
        )
        for name, text in (("net", "net"), ("positive", "positives only"), ("absolute", "absolute")):
            row = counts.channels.counts[name]  # type: ignore[index]
            yield f"n80 / n90 / n99, {text}: {_of(row['n80'])} / {_of(row['n90'])} / {_of(row['n99'])}"
        yield f"n90 with heads whole: {_of(counts.heads.counts['net']['n90'])}"
        yield f"opposing mass over net: {_of(counts.opposing_over_net, 2)}"
        for tenth in counts.confidence:
            if tenth.n90.n:
                yield (
                    f"at probability {tenth.low:.1f} to {min(1.0, tenth.high):.1f}: n90 {_of(tenth.n90)}, heads whole "
                    f"{_of(tenth.heads)}, net {_of(tenth.net, 1)} ({tenth.n90.n:,} predictions)"
                )
    if stored.carriage is not None:
        for layer in stored.carriage.layers:
            yield (
                f"L{layer.layer} carriage {layer.share:.2f} (R² {layer.r2:.2f}), rotation {layer.rotation:.2f}, shear "
                f"{layer.shear:+.2f}; same token {layer.same:.0%}, with the one-hop writes {layer.same_with_set:.0%}"
            )
    if stored.depth is not None:
        depth = stored.depth
        yield f"the predicted token leads at depth {_of(depth.first)}, stays from {_of(depth.stays)}"
        if depth.sum_leads.n or depth.sum_never:
            yield (
                f"it leads in the sum of the {_of(depth.sum_leads)} largest members, in {depth.sum_never:,} sets "
                f"never; that sum turns from {_of(depth.strongest, 2)} to {_of(depth.together, 2)} with the readout"
            )
    if stored.reads is not None:
        for kind in stored.reads.kinds:
            native, plain = kind.native["mean"][0], kind.vocabulary["mean"][0]
            yield (
                f"read rows {kind.kind}: {native.overlap:.1%} of the {native.k} strongest drivers from the native table"
                f", {plain.overlap:.1%} from the vocabulary, {native.chance:.1%} by chance"
            )
    if stored.writes is not None:
        every = stored.writes.every
        coherent = "–" if every.coherent is None else f"{every.coherent:.0%}"
        yield (
            f"named by writes over {stored.writes.population.predictions:,} predictions: covered {every.covered:.0%}, "
            f"characterised {every.characterised:.0%}, of these coherent {coherent}"
        )


def _of(figure: Quartiles, digits: int = 0) -> str:
    if figure.median is None:
        return "–"
    return f"{figure.median:.{digits}f} [{figure.q1:.{digits}f}, {figure.q3:.{digits}f}]"
