"""`legible models`, `legible add`, `legible forget`: which checkpoints this installation can open."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.options import settings_flags
from app.settings import Settings
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.errors import LegibleError
from legible_core.figures import perplexity_text, short_count
from legible_core.reading import Dtype
from legible_core.registry import Checkpoint, Entry

if TYPE_CHECKING:
    from app.services import Services

_DATABASE = ("data_dir", "database_url")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("models")(models)
    app.command("add")(add)
    app.command("forget")(forget)


@settings_flags(*_DATABASE)
def models(
    settings: Settings, as_json: Annotated[bool, typer.Option("--json", help="Print everything known as JSON.")] = False
) -> None:
    """List the shipped and the added checkpoints, and why a broken one is refused."""
    entries = look(settings)
    if as_json:
        typer.echo(json.dumps([_json(entry) for entry in entries], ensure_ascii=False, indent=2))
        return
    rows = [_row(entry.checkpoint) for entry in entries if entry.checkpoint is not None]
    if rows:
        head = ("slug", "kind", "parameters", "tokens", "perplexity", "legible, over operands", "hash", "path")
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for row in [head, *rows]:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        typer.echo("There are no checkpoints; `legible add FOLDER` adds one.")
    for entry in entries:
        if entry.error is not None:
            typer.echo(f"refused: {entry.error.message} ({entry.path})")


@settings_flags(*_DATABASE)
def add(
    settings: Settings,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_FOLDER",
            help="A checkpoint folder (docs/checkpoints.md), a folder as transformers saves it, or a hub name.",
        ),
    ],
    slug: Annotated[str | None, typer.Option(help="The name to call it by; default: the folder's.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Let a slug that names other weights now name these.")] = False,
    dtype: Annotated[str, typer.Option(help="Of an ordinary model: float32 or bfloat16, to load and read it in.")] = "",
    device: Annotated[str, typer.Option(help="Of an ordinary model: auto, cpu, cuda or cuda:N.")] = "",
    offload: Annotated[
        bool,
        typer.Option("--offload", help="Of an ordinary model: its layers stay on the CPU, one is on the card."),
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Of a hub name: the branch, tag or commit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checkpoint as JSON.")] = False,
) -> None:
    """Check a checkpoint, every weight of it, and remember where it is; nothing is copied.

    An ordinary model is compared with Hugging Face's own on fixed prompts first, and refused where they differ.
    """
    from app.services import opened
    from legible_core.adapters.source import is_ordinary

    with opened(settings) as services:
        checkpoint: Checkpoint
        if folder and Path(folder).is_dir() and not is_ordinary(Path(folder)):
            if dtype or device or revision or offload:
                raise LegibleError(
                    "--dtype, --device, --offload and --revision belong to ordinary models; a legible checkpoint needs "
                    "none of them.",
                    code="usage",
                )
            checkpoint = add_checkpoint(services, Path(folder), slug, move=move)
        else:
            checkpoint = add_ordinary(
                services, folder, slug, move=move, dtype=dtype or "float32", device=device or "auto", revision=revision,
                offload=offload,
            )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(checkpoint.to_json(), ensure_ascii=False, indent=2))
        return
    typer.echo(f"Added {checkpoint.slug}: {checkpoint.kind}, {short_count(checkpoint.parameters)} parameters.")
    if isinstance(checkpoint, OrdinaryCheckpoint):
        typer.echo(certified(checkpoint.certificate or {}))
    typer.echo(f'Read it with: legible read {checkpoint.slug} "It was the best of times, it was the"')


@settings_flags(*_DATABASE)
def forget(settings: Settings, slug: Annotated[str, typer.Argument(help="The slug under which it was added.")]) -> None:
    """Forget an added checkpoint; its folder and its stored readings stay."""
    from app.services import opened

    with opened(settings) as services:
        services.store.remove_checkpoint(slug)
    typer.echo(f"Forgot {slug}; its folder is untouched.")


def add_checkpoint(services: Services, folder: Path, slug: str | None = None, *, move: bool = False) -> Checkpoint:
    """Validate a folder as `load` would, and store it under a slug.

    Raises what `open_checkpoint` and `check_weights` raise, and `Conflict` for a slug that is taken.
    """
    from legible_core.errors import Conflict
    from legible_core.registry import check_weights, open_checkpoint

    checkpoint = open_checkpoint(folder, slug=slug, origin="added", tokenizer=services.tokenizers)
    for entry in services.catalogue.entries():
        if entry.origin == "shipped" and entry.slug == checkpoint.slug:
            raise Conflict(
                f"The slug {checkpoint.slug!r} names a checkpoint that ships with Legible.",
                hint="Choose another with --slug.",
            )
    check_weights(checkpoint)
    services.store.add_checkpoint(checkpoint.slug, checkpoint.hash, str(checkpoint.path), move=move)
    services.catalogue.refresh()
    return checkpoint


def add_ordinary(
    services: Services,
    name_or_folder: str,
    slug: str | None = None,
    *,
    move: bool = False,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    offload: bool = False,
) -> Checkpoint:
    """Look at an ordinary model, certify it, and store its registration under a slug; see `ordinary.adding`.

    Raises what `adding.add` raises, `LegibleError` for a dtype or device that there is not, `Conflict` for a slug that
    is taken.
    """
    if dtype not in ("float32", "bfloat16"):
        raise LegibleError(
            f"--dtype is {dtype[:40]!r}; it must be float32 or bfloat16 (one stored in float16 is read exactly "
            "in float32).",
            code="bad_dtype",
        )
    if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device) is None:
        raise LegibleError(f"--device is {device[:40]!r}; it must be auto, cpu, cuda or cuda:N.", code="bad_device")
    from app.scanning_ordinary import tried
    from legible_core.ordinary.adding import add as certify

    compute_on = tried(device)
    if offload and compute_on == "cpu":
        raise LegibleError(
            "--offload keeps layers on the CPU for a card that cannot hold them all, and here the CPU computes; leave "
            "it out, or give a card with --device.",
            code="bad_device",
        )
    taken = {entry.slug: entry for entry in services.catalogue.entries() if entry.origin == "shipped"}
    named = {} if move else {row.slug: row.hash for row in services.store.checkpoints()}
    compute: Dtype = "bfloat16" if dtype == "bfloat16" else "float32"
    checkpoint = certify(
        name_or_folder,
        services.settings.data_dir / "ordinary",
        slug=slug,
        dtype=compute,
        device=device,
        revision=revision,
        compute_on=compute_on,
        offload=offload,
        taken=taken,
        named=named,
    )
    services.store.add_checkpoint(checkpoint.slug, checkpoint.hash, str(checkpoint.path), move=move)
    services.catalogue.refresh()
    return checkpoint


def certified(certificate: dict[str, Any]) -> str:
    """A certificate in one sentence."""
    if not certificate:
        return "It has no certificate yet."
    return (
        f"Against Hugging Face in {certificate['dtype']}: the first {certificate['top']} tokens agree at "
        f"{certificate['top_agrees']} of {certificate['positions']} positions, log-probabilities to "
        f"{certificate['log_probability_difference']:.1e} (tolerance {certificate['tolerance']:g})."
    )


def look(settings: Settings) -> list[Entry]:
    """Every checkpoint folder: shipped, and added if there is a database yet; none is made for the question."""
    from app.commands.read import added, shipped_roots
    from legible_core.registry import survey
    from legible_core.token_service import TokenizerService

    with TokenizerService() as tokenizers:
        return survey(shipped_roots(), added(settings), tokenizer=tokenizers)


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    legibility = checkpoint.legibility
    chosen = [f"{legibility[key]:.0%} {key}" for key in ("crisp", "constant", "nameable") if key in legibility]
    tokens, perplexity = checkpoint.tokens_trained, checkpoint.perplexity
    return (
        checkpoint.slug,
        checkpoint.kind,
        short_count(checkpoint.parameters),
        "–" if tokens is None else short_count(tokens),
        "–" if perplexity is None else perplexity_text(perplexity),
        ", ".join(chosen) or "–",
        checkpoint.hash[:12],
        str(checkpoint.path),
    )


def _json(entry: Entry) -> dict[str, Any]:
    if entry.checkpoint is not None:
        return entry.checkpoint.to_json()
    assert entry.error is not None
    return {"slug": entry.slug, "origin": entry.origin, "path": str(entry.path), **entry.error.body()}
