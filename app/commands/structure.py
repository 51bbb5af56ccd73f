"""`legible structure MODEL...`: are both operands needed, and do quantifiers carry memory to the word they promote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legible_core.errors import LegibleError, NotFound
from legible_core.figures import loss_text, percent_text

if TYPE_CHECKING:
    from legible_core.registry import Checkpoint
    from legible_core.structure import Structure
    from legible_core.tokens import Tokenizer

SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("structure")(structure)


def structure(
    models: Annotated[list[str], typer.Argument(help="Checkpoints: slugs, hashes, or folders; one table for all.")],
    corpus: Annotated[Path, typer.Option(help="UTF-8 text, plain or .xz, that training did not see.")],
    tokens: Annotated[int, typer.Option(help="Only the first so many tokens of it.", min=1024)] = 131_072,
    batch: Annotated[int, typer.Option(help="Windows of one context length in a batch.", min=1, max=4096)] = 8,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure two-operand structure by layer, half-lives, and the memory that quantifiers carry."""
    from app.commands.read import find

    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    found = []
    for checkpoint in [find(model) for model in models]:
        result, tokenizer = _measured(checkpoint, corpus, tokens, batch, device)
        found.append(_document(checkpoint, result, tokenizer, corpus.name))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for document in found:
        typer.echo("\n".join(lines(document)))


def _measured(
    checkpoint: Checkpoint, corpus: Path, tokens: int, batch: int, device: str
) -> tuple[Structure, Tokenizer]:
    """A checkpoint's structure on a text, with a bar in the terminal."""
    from rich.console import Console
    from rich.progress import track

    from app.scanning import corpus_ids, load_on
    from legible_core.structure import measure
    from legible_core.tokens import Tokenizer

    ids, _, _ = corpus_ids(checkpoint, corpus, tokens, None)
    if len(ids) < 2:
        raise LegibleError("The text has fewer than two tokens; give more.", code="bad_corpus")
    model = load_on(checkpoint, device)
    result: Structure | None = None

    def steps() -> Iterator[None]:
        nonlocal result
        before = 0
        for done, made in measure(model, ids, batch=batch):
            result = made
            for _ in range((done - before) // model.config.context):
                yield None
            before = done

    total = len(ids) // model.config.context
    for _ in track(steps(), checkpoint.slug, total, console=Console(stderr=True), transient=True):
        pass
    assert result is not None
    return result, Tokenizer.load(checkpoint.tokenizer_path)


def _document(checkpoint: Checkpoint, found: Structure, tokenizer: Tokenizer, corpus: str) -> dict[str, Any]:
    document = found.to_json()
    for row in document["memories"]:
        row["display"] = tokenizer.display(row["token"])
    return {"checkpoint": checkpoint.slug, "hash": checkpoint.hash, "corpus": corpus, **document}


def lines(document: dict[str, Any]) -> Iterator[str]:
    """What one checkpoint's measures say, for people."""
    yield (
        f"{document['checkpoint']} ({document['hash'][:12]}), {document['tokens']:,} tokens of {document['corpus']}, "
        f"loss {loss_text(document['loss'])}"
    )
    if document["pairs"]:
        yield "  layer  set operators  constant  need both operands  variance left to neither (mean)"
    for row in document["pairs"]:
        strength = "–" if row["strength"] is None else f"{row['strength']:.3f}"
        yield (
            f"  L{row['layer']:<5} {row['units']:>13}  {percent_text(row['constant']):>8}  "
            f"{percent_text(row['two_operand']):>18}  {strength:>10}"
        )
    lives = document["half_lives"]
    if lives is not None:
        yield (
            f"  {lives['quantifiers']} quantifiers, by their weights: median half-life {lives['median']:.2f} tokens, "
            f"latches {percent_text(lives['latches'])}"
        )
    memories = document["memories"]
    if not memories:
        yield "  no quantifier's memory could be measured"
        return
    yield (
        f"  memory measured of {len(memories)} of them, of {document['unmeasured']} not (their memberships are hardly "
        "ever off, or never on)"
    )
    higher = sum(row["lift"] > 1 for row in memories) / len(memories)
    yield (
        f"  memory stands higher before the word that the unit promotes for {percent_text(higher)} of them, highest of "
        f"20 words about as frequent for {percent_text(document['first'])} (5 % by chance)"
    )
    best = sorted((row for row in memories if row["rank"] == 1), key=lambda row: -row["lift"])[:SHOWN]
    for row in best:
        yield (
            f"    {row['id']}  → {row['display']}  lift {row['lift']:.2f} at {row['before']} places, "
            f"half-life {row['half_life']:.1f} tokens"
        )
