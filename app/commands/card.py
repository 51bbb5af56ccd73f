"""`legible card MODEL`: put the figures of the last scan on a checkpoint's card, so that both say the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legible_core.errors import LegibleError, NotFound

if TYPE_CHECKING:
    from legible_core.naming.names import Names


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("card")(card)


def card(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    field: Annotated[
        list[str] | None, typer.Option("--set", help="A further line of the card, as key=value; may be repeated.")
    ] = None,
    body: Annotated[Path | None, typer.Option(help="A Markdown file that becomes the card's text.")] = None,
) -> None:
    """Write loss, perplexity and legibility of the names files onto the card; nothing on it is typed by hand."""
    from app.commands.read import find
    from legible_core.checkpoint import write_card
    from legible_core.evaluation.records import card_fields
    from legible_core.folder import Card
    from legible_core.naming.names import Names

    checkpoint = find(model)
    names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    if names is None:
        raise NotFound(f"{checkpoint.slug} has no names yet; run legible scan {checkpoint.slug} --corpus FILE first.")
    fields = {**checkpoint.card.fields, **figures(names), **card_fields(checkpoint.path, checkpoint.hash)}
    for item in field or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise LegibleError(f"--set {item!r} is not usable; write key=value.", code="bad_options")
        fields[key.strip()] = value.strip()
    text = checkpoint.card.body
    if body is not None:
        if not body.is_file():
            raise NotFound(f"There is no text at {body}; give a Markdown file.")
        text = body.read_text(encoding="utf-8")
    written = write_card(checkpoint.path, Card(fields, text))
    typer.echo(f"Wrote the card of {written.slug} ({written.hash[:12]}).")


def figures(names: Names) -> dict[str, str]:
    """The card's lines that a scan measures: quality first, legibility never without it."""
    quality, pooled = names.quality, names.legibility["all"]
    named = pooled["names"] or {}
    operands = _pooled_operands(pooled)
    values = {
        "loss": f"{quality['loss']:.4f}",
        "loss_se": f"{quality['loss_se']:.4f}",
        "perplexity": f"{quality['perplexity']:.2f}",
        "measured_tokens": str(quality["tokens"]),
    }
    shares = {**operands, **{key: named.get(key) for key in ("alive", "nameable", "labelled")}}
    channels = pooled["value"]
    shares["value_selective"] = channels["selective"] if channels else None
    return values | {key: f"{share:.4f}" for key, share in shares.items() if share is not None}


def _pooled_operands(pooled: dict[str, object]) -> dict[str, float]:
    """crisp, on, selective and constant over the operands of both surfaces together."""
    rows = [row for row in (pooled["head_operands"], pooled["operands"]) if isinstance(row, dict)]
    total = sum(row["channels"] for row in rows)
    if not total:
        return {}
    return {
        key: sum(row[key] * row["channels"] for row in rows) / total for key in ("crisp", "on", "selective", "constant")
    }
