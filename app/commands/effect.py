"""`legible effect`: what edits (a suppressed unit, say) do to minimal pairs, paired, with intervals and controls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.edit import given_edits
from app.commands.interrupt import interruptible
from legible_core.errors import LegibleError, Unavailable
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.evaluation.data import Suite
    from legible_core.evaluation.effect import Answers
    from legible_core.interventions import Edit
    from legible_core.model import Transformer
    from legible_core.tokens import Tokenizer

TASKS = ("blimp", "arc_easy", "winogrande")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("effect")(effect)


def effect(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    data: Annotated[Path, typer.Option(help="A folder with a folder for each task (docs/evaluation.md).")],
    edits: Annotated[
        list[str] | None, typer.Option("--edit", help="Such as L5.u263:zero; several apply together.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--edits", help="A JSON file with a list of edits.")] = None,
    task: Annotated[str, typer.Option(help=f"One of {', '.join(TASKS)}.")] = "blimp",
    parts: Annotated[
        str | None,
        typer.Option(help="Only these paradigms, terms or fields, with commas: npi_licensing,quantifiers."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many items of each part.", min=2)] = None,
    controls: Annotated[
        int, typer.Option(help="Random draws of components of the same kind and layer, edited alike.", min=0, max=100)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the draws.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the results as JSON to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Answer a task with and without edits; print the change of accuracy and margin with 95 % intervals."""
    from app.commands.read import find
    from app.scanning import load_on
    from legible_core.evaluation.data import load_suite
    from legible_core.evaluation.effect import chosen_parts, control
    from legible_core.evaluation.effect import effect as paired
    from legible_core.interventions_text import edit_text
    from legible_core.tokens import Tokenizer

    if task not in TASKS:
        raise LegibleError(f"There are no choices in the task {task[:40]!r}; use {', '.join(TASKS)}.", code="bad_task")
    wanted = given_edits(edits or [], file)
    if any(edit.positions is not None for edit in wanted):
        raise LegibleError("Edits at positions mean nothing across many texts; leave the positions out.", code="usage")
    checkpoint = find(model)
    words = [word.strip() for word in (parts or "").split(",") if word.strip()]
    suite = chosen_parts(load_suite(task, data, limit), words)
    drawn = [control(checkpoint.config, wanted, seed + number) for number in range(controls)]
    loaded, tokenizer = load_on(checkpoint, device), Tokenizer.load(checkpoint.tokenizer_path)
    started = time.monotonic()
    with interruptible() as interrupted:
        before = _answered(loaded, tokenizer, suite, (), interrupted, "without edits")
        found = paired(suite, before, _answered(loaded, tokenizer, suite, wanted, interrupted, "edited"))
        others = []
        for number, draw in enumerate(drawn, 1):
            after = _answered(loaded, tokenizer, suite, draw, interrupted, f"control {number} of {controls}")
            others.append({"edits": [edit_text(edit) for edit in draw], **paired(suite, before, after)})
    document = {
        "checkpoint": checkpoint.hash, "slug": checkpoint.slug, "task": task, "limit": limit,
        "edits": [edit_text(edit) for edit in wanted], **found, "controls": others,
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    if out is not None:
        _write(out, document)
    typer.echo(json.dumps(document, ensure_ascii=False) if as_json else "\n".join(report(document)))


def _answered(
    model: Transformer, tokenizer: Tokenizer, suite: Suite, edits: tuple[Edit, ...],
    interrupted: Callable[[], bool], said: str,
) -> dict[str, Answers]:  # fmt: skip
    """One model's answers, its progress on standard error where a person looks on."""
    from legible_core.evaluation.effect import answers
    from legible_core.evaluation.run import Run

    run = Run(model, tokenizer, suite, edits=edits)
    for progress in run.steps():
        if sys.stderr.isatty():
            print(f"\r{said}: {progress.items:,} of {progress.all_items:,} items", end="", file=sys.stderr, flush=True)
        if interrupted():
            raise typer.Exit(130)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return answers(suite, run.scores)


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"The results cannot be written to {path}: {error.strerror}.", code="cannot_write") from None


def report(document: dict[str, Any]) -> list[str]:
    """A table of parts and means, then what the controls did."""
    rows = [("part", "items", "before", "after", "change of accuracy", "of margin (nats)", "lost", "won")]
    for row in (*document["parts"], *document["terms"], {"name": "all", **document["all"]}):
        rows.append(
            (
                row["name"], f"{row['items']:,}", f"{row['before']:.4f}", f"{row['after']:.4f}",
                ends(row["change"], 4), ends(row["margin_change"], 3), str(row["lost"]), str(row["won"]),
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{document['slug']} with {', '.join(document['edits'])}", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for number, row in enumerate(document["controls"], 1):
        whole = row["all"]
        lines.append(
            f"control {number} ({', '.join(row['edits'])}): accuracy {ends(whole['change'], 4)}, "
            f"margin {ends(whole['margin_change'], 3)}"
        )
    return [*lines, "intervals of 95 % over the items of these parts, paired; means of parts count each part alike"]


def ends(found: dict[str, Any], digits: int) -> str:
    """+0.0120 [+0.0040, +0.0200]"""
    if found["low"] is None:
        return f"{found['value']:+.{digits}f}"
    return f"{found['value']:+.{digits}f} [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
