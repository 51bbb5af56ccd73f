"""`legible card MODEL`: every number of a checkpoint's card, made from what was measured on its weights.

The front of the card gets the quality and the pooled figures, its text the papers' tables, between two marks; nothing
of either is typed by hand. `--check` compares instead of writing, `--corpus` measures anew.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legible_core.errors import LegibleError, NotFound
from legible_core.figures import BEGIN, END, loss_text, percent_text, perplexity_text, same, share_text

if TYPE_CHECKING:
    from legible_core.naming.names import Names
    from legible_core.naming.tables import Cell, Table
    from legible_core.registry import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("card")(card)


def card(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    field: Annotated[
        list[str] | None, typer.Option("--set", help="A further line of the card, as key=value; may be repeated.")
    ] = None,
    body: Annotated[Path | None, typer.Option(help="A Markdown file that becomes the card's text.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the card instead of writing it; status 1 where they differ.")
    ] = False,
    corpus: Annotated[
        Path | None, typer.Option(help="Measure anew on this text instead of taking the names files' figures.")
    ] = None,
    device: Annotated[str, typer.Option(help="With --corpus, where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Write quality, legibility and half-lives onto the card; with --check, tell which figures differ from it."""
    from app.commands.read import find
    from legible_core.checkpoint import write_card
    from legible_core.evaluation.records import card_fields
    from legible_core.folder import Card

    checkpoint = find(model)
    names = _names(checkpoint, model) if corpus is None else _measured(checkpoint, corpus, device)
    fields = {**figures(names), **card_fields(checkpoint.path, checkpoint.hash)}
    section = tables_text(names)
    if check:
        wrong = differences(checkpoint, fields, section)
        for line in wrong:
            typer.echo(line)
        typer.echo(f"{len(fields)} figures and the tables were compared; {len(wrong)} differ.")
        raise typer.Exit(1 if wrong else 0)
    fields = {**checkpoint.card.fields, **fields}
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
    written = write_card(checkpoint.path, Card(fields, with_section(text, section)))
    typer.echo(f"Wrote the card of {written.slug} ({written.hash[:12]}).")


def figures(names: Names) -> dict[str, str]:
    """The card's lines that a scan measures: quality first, legibility never without it."""
    from legible_core.naming.tables import memory

    quality, pooled = names.quality, names.legibility["all"]
    named = pooled["names"] or {}
    values = {
        "loss": loss_text(quality["loss"]),
        "loss_se": None if quality["loss_se"] is None else loss_text(quality["loss_se"]),
        "perplexity": perplexity_text(quality["perplexity"]),
        "measured_tokens": str(quality["tokens"]),
    }
    shares = {**_pooled_operands(pooled), **{key: named.get(key) for key in ("alive", "nameable", "labelled")}}
    channels = pooled["value"]
    shares["value_selective"] = channels["selective"] if channels else None
    remembered = memory(names)
    if remembered is not None:
        values["half_life_median"] = f"{remembered['all']['median']:.2f}"
        shares["latches"] = remembered["all"]["latches"]
    values |= {key: None if share is None else share_text(share) for key, share in shares.items()}
    return {key: value for key, value in values.items() if value is not None}


def tables_text(names: Names) -> str:
    """The papers' tables in Markdown, with the quality of the same checkpoint in front."""
    from legible_core.naming.tables import memory, tables

    corpus, quality = names.meta["corpus"], names.quality
    parts = [
        f"## Figures\n\nPerplexity {perplexity_text(quality['perplexity'])} on {corpus['tokens']:,} tokens of "
        f"{corpus['name']}, where all of the following was measured; – is undefined."
    ]
    found = tables(names)
    if not found:
        parts.append("No value of this checkpoint is bounded, so its legibility is undefined.")
    for table in found:
        note = table.note
        remembered = memory(names) if table.id == "half-lives" else None
        if remembered is not None:
            note = (
                f"Median {remembered['all']['median']:.2f} tokens; {percent_text(remembered['all']['latches'])} "
                f"latches. {note}"
            )
        parts.append(f"### {table.title}\n\n{note}\n\n{_markdown(table)}")
    return "\n\n".join(parts)


def with_section(text: str, section: str) -> str:
    """The card's text with its generated part replaced, or added at the end."""
    before, begin, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if begin else ""
    kept = before.rstrip()
    return f"{kept}\n\n{BEGIN}\n\n{section}\n\n{END}\n{after.strip()}".strip()


def differences(checkpoint: Checkpoint, fields: dict[str, str], section: str) -> list[str]:
    """A line for each figure of the card that is not what it would be now, to within the last written digit."""
    wrong = []
    for key, now in fields.items():
        was = checkpoint.card.fields.get(key)
        if was is None:
            wrong.append(f"{key}: not on the card, now {now}")
        elif not _agree(was, now):
            wrong.append(f"{key}: {was} on the card, now {now}")
    old = checkpoint.card.body.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    new = section.splitlines()
    if not old:
        return [*wrong, "the tables: not on the card"]
    if len(old) != len(new):
        return [*wrong, f"the tables: {len(old)} lines on the card, now {len(new)}"]
    for was, now in zip(old, new, strict=True):
        cells = list(zip(was.split("|"), now.split("|"), strict=False))
        if was.count("|") != now.count("|") or not all(_agree(a.strip(), b.strip()) for a, b in cells):
            wrong.append(f"the tables: {was} on the card, now {now}")
    return wrong


def _agree(was: str, now: str) -> bool:
    """Whether two texts say the same, their numbers to within one of the last written digit."""
    a, b = was.replace(",", "").split(), now.replace(",", "").split()
    return len(a) == len(b) and all(_same_word(x.rstrip(".;"), y.rstrip(".;")) for x, y in zip(a, b, strict=True))


def _same_word(was: str, now: str) -> bool:
    try:
        return same(was, float(now), now)
    except ValueError:
        return was == now


def _markdown(table: Table) -> str:
    def text(column: str, value: Cell) -> str:
        if column in table.shares:
            return percent_text(value if isinstance(value, float) else None if value is None else float(value))
        if value is None:
            return "or more" if column == "to" else "–"
        return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else _plain(value)

    lines = ["| " + " | ".join(table.columns) + " |", "|" + " --- |" * len(table.columns)]
    for row in table.rows:
        cells = (text(column, value) for column, value in zip(table.columns, row, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Tokens in a Markdown table: a bar would end the cell."""
    return text.replace("|", "\\|") if text.isprintable() else text.encode("unicode_escape").decode()


def _names(checkpoint: Checkpoint, given: str) -> Names:
    """The checkpoint's names; `given` is how it was asked for, a slug or a folder, which the next command takes too."""
    from legible_core.naming.names import Names

    names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    if names is None:
        raise NotFound(
            f"{checkpoint.slug} has no names yet; run `legible scan {shlex.quote(given)} --corpus FILE` first."
        )
    if names.meta["corpus"].get("sampled") is not None:
        raise LegibleError(
            f"The names of {checkpoint.slug} were made on its own text, which says nothing of its quality, so no card "
            f"is made of them; run `legible scan {shlex.quote(given)} --corpus FILE` first.",
            code="no_quality",
        )
    return names


def _measured(checkpoint: Checkpoint, corpus: Path, device: str) -> Names:
    """The names that a scan of this text gives now; nothing of it is kept."""
    from app.scanning import Job, Text, finish, prepare_scan

    if not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    with tempfile.TemporaryDirectory(prefix="legible-card-") as folder:
        scan = prepare_scan(checkpoint, Text(corpus), Job(Path(folder) / "state", device=device, contexts=False))
        for progress in scan.run():
            last = progress.done == progress.total
            typer.echo(f"\r{progress.done:,} of {progress.total:,} tokens", err=True, nl=last)
        return finish(scan, checkpoint, Path(folder))


def _pooled_operands(pooled: dict[str, Any]) -> dict[str, Any]:
    """crisp, on, selective and constant over the operands of both surfaces together."""
    rows = [row for row in (pooled["head_operands"], pooled["operands"]) if isinstance(row, dict)]
    total = sum(row["channels"] for row in rows)
    if not total:
        return {}
    return {
        key: sum(row[key] * row["channels"] for row in rows) / total for key in ("crisp", "on", "selective", "constant")
    }
