"""`legible train RECIPE`: train a model from a TOML file, resumable; and ship what it gave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    import torch

    from legible_core.registry import Checkpoint
    from legible_core.training.loop import Run
    from legible_core.training.recipe import Recipe
    from legible_core.training.step import Precision


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe; see recipes/ and docs/training.md.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/<name> in the present folder.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="The training text: a UTF-8 file (plain or .xz), a folder of them, or hf:NAME (Hugging Face); "
            "default: the recipe's data.train."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json; default: the recipe's, or one trained on the text.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Stop after this step of the run; default: where the recipe ends.", min=1)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1; under torchrun cpu or cuda.")] = "cpu",
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16 (autocast), or auto: bfloat16 on a GPU that has it.")
    ] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Run the layers through torch.compile.")] = False,
    snapshot_every: Annotated[
        int | None, typer.Option(help="Keep the weights every so many tokens, besides schedule.snapshot_tokens.", min=1)
    ] = None,
    decay: Annotated[
        bool, typer.Option("--decay", help="Branch off the present state and take the learning rate to zero.")
    ] = False,
    decay_tokens: Annotated[int | None, typer.Option(help="Length of the decay; default: the recipe's.")] = None,
    ship: Annotated[
        Path | None, typer.Option(help="Write the decayed weights as a checkpoint folder here (with --decay).")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Begin from this checkpoint (slug, hash or folder) where the run has no state; needs --from-tokens.",
        ),
    ] = None,
    begin_tokens: Annotated[
        int | None, typer.Option("--from-tokens", help="How many tokens that checkpoint was trained on.", min=1)
    ] = None,
    save_seconds: Annotated[float, typer.Option(help="Seconds between two saved states.", min=1.0)] = 240.0,
    telemetry_every: Annotated[
        int, typer.Option(help="Steps between two readings of the model (telemetry.jsonl); 0 for none.", min=0)
    ] = 25,
) -> None:
    """Train; Ctrl-C saves and stops, and the same command goes on where it stopped."""
    from app.commands.training_progress import Reporter
    from app.runs import announced
    from app.settings import Settings
    from legible_core.training.distributed import processes, rank
    from legible_core.training.folder import alone
    from legible_core.training.loop import Run
    from legible_core.training.memory import keep_memory
    from legible_core.training.recipe import load_recipe, resolve
    from legible_core.training.sources import find_source
    from legible_core.training.state import writing
    from legible_core.training.warnings import of as warnings_of

    plan = load_recipe(recipe)
    if ship is not None and not decay:
        raise LegibleError("--ship needs --decay: only decayed weights are shipped.", code="bad_options")
    if decay and (steps is not None or snapshot_every is not None):
        raise LegibleError(
            "--steps and --snapshot-every belong to the constant part; a decay has --decay-tokens.", code="bad_options"
        )
    if (begin is None) != (begin_tokens is None):
        raise LegibleError("--from and --from-tokens belong together; give both or neither.", code="bad_options")
    if ship is not None:
        _check_ship(ship, plan)
    folder = out or Path("runs") / plan.name
    data = plan.data
    source = find_source(
        text or resolve(data.train, recipe.parent),
        config=data.dataset_config,
        split=data.dataset_split,
        column=data.dataset_column,
    )
    given = tokenizer or (Path(resolve(data.tokenizer, recipe.parent)) if data.tokenizer else None)
    keep_memory()
    with processes(device) as place, _stopping(folder), writing(folder), alone(folder):
        first = rank() == 0
        for warning in warnings_of(plan) if first else ():
            typer.echo(f"Warning: {warning}", err=True)
        name = plan.name + (" decay" if decay else "")
        with (
            announced(Settings.load().data_dir, folder, really=first),
            Reporter(name, plan.schedule.batch_tokens, quiet=not first) as reporter,
        ):
            run = Run(
                plan,
                folder,
                source,
                tokenizer=given,
                device=place,
                progress=reporter.reading,
                telemetry_every=telemetry_every,
                precision=_precision(precision, place),
                compiled=compiled,
                begin=None if begin is None or begin_tokens is None else (_begun(begin), begin_tokens),
            )
            reporter.listen()
            where = folder
            if decay:
                where = run.decay(reporter.step, tokens=decay_tokens, save_seconds=save_seconds)
            elif not run.train(reporter.step, save_seconds=save_seconds, steps=steps, snapshot_every=snapshot_every):
                raise KeyboardInterrupt
        if first:
            _report(run, where, ship)


@contextmanager
def _stopping(folder: Path) -> Iterator[None]:
    """Say of a run that was stopped, by Ctrl-C before its first step too, where it goes on; exit code 130."""
    from legible_core.training.distributed import rank
    from legible_core.training.state import read_meta

    try:
        yield
    except KeyboardInterrupt:
        if rank() == 0:
            saved = read_meta(folder / "state")
            at = f"the state of step {saved['step']:,} is saved in {folder}" if saved else "nothing was saved yet"
            typer.echo(f"Stopped; {at}. The same command {'goes on from there' if saved else 'starts it anew'}.")
        raise typer.Exit(130) from None


def _begun(model: str) -> Checkpoint:
    """The checkpoint that a run begins from: weights of a legible design."""
    from app.commands.read import find

    found = find(model)
    if found.ordinary:
        raise LegibleError(
            f"{model} is an ordinary model, and a run trains a legible design; give --from a checkpoint of the same "
            "recipe.",
            code="bad_options",
        )
    return found


def _check_ship(ship: Path, plan: Recipe) -> None:
    """Refuse, before any step, a place where `--ship` could not write or would replace another recipe's checkpoint."""
    from legible_core.checkpoint import check_replaceable
    from legible_core.errors import Conflict
    from legible_core.folder import CARD, Card

    check_replaceable(ship)
    try:
        theirs = Card.parse((ship / CARD).read_text(encoding="utf-8")).fields.get("recipe", plan.name)
    except (OSError, ValueError, LegibleError):
        return  # no card that says whose it is
    if theirs.rpartition("/")[2].removesuffix(".toml") != plan.name:  # a card may name the recipe's file
        raise Conflict(
            f"{ship} holds a checkpoint of the recipe {theirs}, and this run is of {plan.name}; give --ship another "
            "folder, or remove that one first."
        )


def _precision(word: str, place: torch.device) -> Precision:
    """What `--precision` means on this device; on a GPU, float32 products may use its TF32 units."""
    import torch

    if word not in ("auto", "float32", "bfloat16"):
        raise LegibleError(f"--precision is {word!r}; it must be auto, float32 or bfloat16.", code="bad_options")
    if place.type != "cuda":
        return "bfloat16" if word == "bfloat16" else "float32"
    torch.set_float32_matmul_precision("high")
    able = torch.cuda.is_bf16_supported()
    if word == "bfloat16" and not able:
        raise LegibleError("This GPU has no bfloat16; give --precision float32.", code="bad_device")
    return "bfloat16" if able and word != "float32" else "float32"


def _report(run: Run, where: Path, ship: Path | None) -> None:
    """The held-out loss with its standard error, and the shipped folder when one was asked for."""
    from legible_core.training.history import HELD_OUT
    from legible_core.training.state import append, writing

    meta = run.load(where)
    losses = run.held_out_loss()
    mean, error = losses.mean().item(), losses.std().item() / len(losses) ** 0.5
    with writing(where):
        append(where / HELD_OUT, {"number": meta["step"], "loss": mean, "se": error, "tokens": len(losses)})
    typer.echo(
        f"{meta['tokens']:,} tokens trained; held-out loss {mean:.4f} ± {error:.4f} nats over {len(losses):,} tokens"
    )
    if ship is None:
        return
    from legible_core.checkpoint import save
    from legible_core.folder import Card

    card = Card(card_fields(run.recipe, meta) | {"held_out_loss": f"{mean:.4f}", "held_out_loss_se": f"{error:.4f}"})
    shipped = save(ship, run.model, run.folder / "tokenizer.json", card)
    typer.echo(f"Wrote {ship} ({shipped.hash[:12]}).")


def card_fields(recipe: Recipe, meta: dict[str, Any]) -> dict[str, str]:
    """What a shipped checkpoint's card says of its training: recipe, tokens, decay, and the weights it began from."""
    schedule, optimiser = recipe.schedule, recipe.optimiser
    fields = {
        "title": recipe.name,
        "tokens": str(meta["tokens"]),
        "decay_tokens": str(meta["tokens"] - (meta["decay_from"] or meta["step"]) * schedule.batch_tokens),
        "recipe": recipe.name,
        "seed": str(recipe.seed),
        "order_seed": str(recipe.data.order_seed),
        "batch_tokens": str(schedule.batch_tokens),
        "optimiser": f"Muon {optimiser.matrix_lr:g} for matrices, AdamW {optimiser.lr:g} for the rest"
        if optimiser.kind == "muon"
        else f"AdamW {optimiser.lr:g}",
    }
    if "begun_from" in meta:
        fields["begun_from"] = meta["begun_from"]
        fields["begun_at_tokens"] = str(meta["warm_from"] * schedule.batch_tokens)
    return fields
