"""`legible read`: predictions read off heads and units, in the terminal, as JSON or into a file, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.read_many import Batch, check, partial, read_many
from legible_core.errors import LegibleError, NotFound, TooLarge

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from app.settings import Settings
    from legible_core.interventions import Edit
    from legible_core.reading import Contributor, Reading
    from legible_core.registry import Checkpoint

MAX_TOP = 1000
WIDE = 120  # columns from which on a contributor takes one line
REFUSED = 20  # refused lines that are told one by one; the file has them all


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("read")(read)


def read(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    prompt: Annotated[
        str | None, typer.Argument(help="The text, read as typed; - reads it from standard input.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The token to read, such as ' worst' or id:666; default: the most probable one.")
    ] = None,
    contrast: Annotated[str | None, typer.Option(help="Read the logit difference to this token.")] = None,
    position: Annotated[
        int | None, typer.Option(help="0-based position whose next token is read; default: the last.")
    ] = None,
    relative_to: Annotated[str | None, typer.Option(help="nothing, mean (of the vocabulary) or contrast.")] = None,
    top: Annotated[int, typer.Option(help=f"How many contributors are described, 0 to {MAX_TOP}.")] = 20,
    prompts: Annotated[
        Path | None, typer.Option(help="Read every line of this file; .jsonl may give each its words (docs/python.md).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --prompts: the .jsonl or .parquet file to make.")] = None,
    batch: Annotated[int, typer.Option(help="With --prompts: rows that are saved together.")] = 16,
    edit: Annotated[
        list[str] | None, typer.Option(help="An edit, such as L5.u263:scale=0.5 or L5.p3.A:flip@3; repeatable.")
    ] = None,
    edits: Annotated[
        Path | None, typer.Option(help="A JSON file: a list of edits (docs/edits.md), applied before each --edit.")
    ] = None,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="Begin an ordinary model's prompt with its begin-of-text token, or not."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put it into an ordinary model's chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole reading as JSON.")] = False,
) -> None:
    """Read the next token off named heads and units; the terms sum to the model's logit."""
    chosen = _edits(edits, edit or [])
    if prompts is not None:
        if bos is not None or chat:
            raise LegibleError("--bos and --chat go with one prompt, not with --prompts.", code="usage")
        if chosen:
            raise LegibleError("Edits go with one prompt; read each line of a file with its own command.", code="usage")
        options = {"target": target, "contrast": contrast, "position": position, "relative_to": relative_to}
        many(model, prompt, Batch(prompts, _named(out), options, _top(top), batch), as_json)
        return
    if prompt is None or out is not None:
        said = "Give a prompt, or a file of them with --prompts." if prompt is None else "--out goes with --prompts."
        raise LegibleError(said, code="usage")
    reading = make(model, prompt, target, contrast, position, relative_to, top, chosen, bos=bos, chat=chat)
    if as_json:
        typer.echo(json.dumps(reading.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        from rich.console import Console

        show(reading, Console(highlight=False))


def make(
    model: str,
    prompt: str,
    target: str | None,
    contrast: str | None,
    position: int | None,
    relative_to: str | None,
    top: int,
    edits: tuple[Edit, ...] = (),
    *,
    bos: bool | None = None,
    chat: bool = False,
) -> Reading:
    """The reading that the command's words ask for; raises `LegibleError` for unusable ones."""
    _top(top)
    checkpoint = find(model)
    if prompt == "-":
        prompt = _standard_input()
    from legible_core import api

    wish: Any = relative_to
    return api.read(
        checkpoint, prompt, target=target, contrast=contrast, position=position, relative_to=wish, top=top, edits=edits,
        bos=bos, chat=chat,
    )  # fmt: skip


def many(model: str, prompt: str | None, batch: Batch, as_json: bool) -> None:
    """Read a file of prompts, with progress and the refused lines on standard error; Ctrl-C keeps what is finished."""
    if prompt is not None:
        raise LegibleError("Give a prompt or --prompts, not both.", code="usage")
    check(batch)
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from legible_core.api import load

    engine = load(find(model))
    error_console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    refused, kept = 0, 0
    try:
        with Progress(*columns, console=error_console, disable=not error_console.is_terminal) as progress:
            task = progress.add_task("reading", total=None)

            def say(done: int, lines: int, row: dict[str, Any]) -> None:
                nonlocal refused, kept
                kept = done
                progress.update(task, completed=done, total=lines)
                if row["error"] is not None:
                    refused += 1
                    if refused <= REFUSED:
                        error_console.print(f"line {row['line']}: {escape(row['error']['message'])}")

            outcome = read_many(engine, batch, say)
    except KeyboardInterrupt:
        where = partial(batch.out)
        print(f"Stopped after line {kept}; {where} keeps it, and the same command goes on.", file=sys.stderr)
        raise
    if as_json:
        facts = {"out": str(batch.out), "lines": outcome.lines, "resumed": outcome.resumed, "failed": outcome.failed}
        typer.echo(json.dumps(facts))
        return
    failed = f", {len(outcome.failed)} of them with an error" if outcome.failed else ""
    earlier = f" ({outcome.resumed} read before)" if outcome.resumed else ""
    typer.echo(f"{batch.out}: {outcome.lines} rows{failed}{earlier}.")


def _edits(file: Path | None, typed: list[str]) -> tuple[Edit, ...]:
    """The edits of the file, then those of the command line, in their order."""
    from legible_core.interventions_text import as_edits, edits_from_json

    if file is None:
        return as_edits(typed)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LegibleError(f"The edits in {file} cannot be read: {error}.", code="bad_edit") from None
    return edits_from_json(text) + as_edits(typed)


def _top(top: int) -> int:
    if not 0 <= top <= MAX_TOP:
        raise LegibleError(f"--top is {top}; it must be from 0 to {MAX_TOP}.", code="bad_top")
    return top


def _named(out: Path | None) -> Path:
    if out is None:
        raise LegibleError("--prompts needs --out, a file whose name ends in .jsonl or .parquet.", code="bad_out")
    return out


def _standard_input() -> str:
    """The prompt on standard input, every line end as it stands there; raises `LegibleError` for what is no text."""
    from legible_core.tokens import MAX_PROMPT_BYTES

    if sys.stdin is None:
        raise LegibleError("Standard input is closed; give the prompt as an argument.", code="no_input")
    data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise TooLarge(f"Standard input holds more than {MAX_PROMPT_BYTES:,} bytes, the limit of a prompt; shorten it.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LegibleError(
            f"Standard input is not UTF-8 text (at byte {error.start}); convert it first.", code="bad_text"
        ) from None


def find(model: str) -> Checkpoint:
    """The checkpoint of a slug, hash or folder: shipped ones first, then the added ones of the data folder."""
    from app.settings import Settings
    from legible_core.registry import open_checkpoint, resolve, survey

    if "/" in model or "\\" in model or (Path(model) / "config.json").is_file():
        from legible_core.adapters.source import is_ordinary

        if is_ordinary(Path(model)):  # as transformers saved it; it passes its certificate when it is loaded
            from legible_core.ordinary.adding import look

            return look(model)
        return open_checkpoint(Path(model))
    roots = shipped_roots()
    shipped = survey(roots)
    if any(entry.checkpoint is not None and model in (entry.slug, entry.checkpoint.hash) for entry in shipped):
        # What ships needs no database.
        return resolve(model, shipped)
    return resolve(model, survey(roots, added(Settings.load())))


def shipped_roots() -> list[Path]:
    """The folder of the checkpoints that ship; none in an installation that has none."""
    from app.paths import models_dir

    try:
        return [models_dir()]
    except NotFound:
        return []


def added(settings: Settings) -> list[tuple[str, Path]]:
    """What `legible add` registered; nothing, and no new database, where no workbench has run yet."""
    from app.database import Database
    from app.store import Store

    if settings.database_url is None and not (settings.data_dir / "legible.sqlite").is_file():
        return []
    database = Database.open(settings, migrate=False)
    try:
        return [(row.slug, Path(row.path)) for row in Store(database).checkpoints()]
    finally:
        database.close()


# ---- for people ----------------------------------------------------------------------------------------------------


def show(reading: Reading, console: Console) -> None:
    """Print a reading as the page draws it: prompt, predictions, contributors, the sum, the shares."""
    from rich.text import Text

    summary = reading.summary
    prompt = Text()
    for index, token in enumerate(summary.tokens):
        prompt.append(token.display, style="reverse" if index == summary.position else "")
        prompt.append(" ")
    console.print(prompt)
    predictions = Text("predicts  ")
    for token in summary.predictions:
        predictions.append(token.display, style="bold" if token.id == summary.target.id else "")
        predictions.append(f" {token.probability:.2f}   ", style="dim")
    console.print(predictions)
    target = summary.target
    reads = f"reads     {target.display}  rank {target.rank}, "
    reads += f"probability {target.probability:.3g}, logit {target.logit:.2f}"
    if summary.edits:
        from legible_core.interventions import Edit
        from legible_core.interventions_text import edit_text

        said = "  ".join(edit_text(Edit.from_json(edit)) for edit in summary.edits)
        console.print(Text(f"edited    {said}"))
    if summary.contrast is not None:
        reads += f", against {summary.contrast.display} (logit {summary.contrast.logit:.2f})"
    elif summary.relative_to == "mean":
        reads += ", against the vocabulary's mean logit"
    console.print(Text(reads))
    console.print()
    console.print(contributors(summary.top, target.display, console.width))
    console.print()
    for line in closing(reading):
        console.print(Text(line))


def contributors(top: tuple[Contributor, ...], target: str, width: int) -> Table:
    """One row for each described head or unit; under `WIDE` columns what it promotes stands below its operation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("term", justify="right", no_wrap=True, min_width=6)
    table.add_column("component", no_wrap=True, min_width=9)
    table.add_column(f"{target} ranks", justify="right", min_width=6)
    wide = width >= WIDE
    table.add_column("operation over its operands here" + ("" if wide else "\n→ promotes"), min_width=20)
    if wide:
        table.add_column("promotes", no_wrap=True, overflow="ellipsis")
    for row in top:
        term = Text(f"{row.value:+.3f}", style="red" if row.value > 0 else "blue")
        tokens = " ".join(token.display for token in row.promotes[:6])
        # A label of kind "tokens" only repeats the list.
        named = row.label is not None and row.label.kind == "class"
        promotes = f"{row.label.text}: {tokens}" if row.label is not None and named else tokens
        rank = "" if row.target_rank is None else str(row.target_rank)
        below = f"\n→ {promotes}" if promotes else ""
        said = [Text(operation(row)), Text(promotes)] if wide else [Text(operation(row) + below)]
        table.add_row(term, Text(f"{row.glyph} {row.id}"), rank, *said)
    return table


def operation(row: Contributor) -> str:
    """`A∖B  A 0.98 determiner, B 0.04`, or a head's strongest channels."""
    if row.kind == "head":
        channels = ", ".join(f"c{o.id.rsplit('.c', 1)[-1]} {o.term or 0.0:+.2f}" for o in row.operands)
        return f"{row.operation}  {channels}"
    parts = []
    for operand in row.operands:
        label = "" if operand.label is None else f" {operand.label.text}"
        parts.append(f"{operand.id.rsplit('.', 1)[-1]} {operand.value:.2f}{label}")
    text = f"{row.operation} = {row.activation:.2f}" + (f"   {', '.join(parts)}" if parts else "")
    if row.half_life is not None:
        text += f"   half-life {row.half_life:.3g} tokens"
    return text


def closing(reading: Reading) -> list[str]:
    """The sum line and the shares, as the page words them."""
    from legible_core.reading import ORDINARY

    summary = reading.summary
    groups, shares = summary.groups, summary.shares
    linear = f"  linear attention {groups.linear_attention:+.2f}" if groups.linear_attention else ""
    others = (
        ("sigmoid units", groups.sigmoid), ("softplus", groups.softplus), ("ReLU", groups.relu), ("SiLU", groups.silu),
        ("SwiGLU", groups.swiglu), ("GeGLU", groups.geglu),
    )  # fmt: skip
    plain = next((f"{name} {v:+.2f}" for name, v in others if v is not None), f"GELU {groups.gelu:+.2f}")
    what = {"nothing": "logit", "mean": "logit − mean", "contrast": "logit difference"}[summary.relative_to]
    if summary.logit_softcap is not None:
        what += f" before the soft-cap at {summary.logit_softcap:g}"
    lines = [
        f"attention {groups.attention:+.2f}{linear}  set operators {groups.set_operators:+.2f}  "
        f"quantifiers {groups.quantifiers:+.2f}  {plain}  | floor {groups.floor:+.2f}  "
        f"= {summary.sum:.4f}   {what} {summary.value:.4f}   residual {summary.residual:.1e} "
        f"(tolerance {summary.tolerance:.0e})",
        f"std(x) frozen at {summary.scale:.4f}",
    ]
    if shares.why_undefined == ORDINARY:
        return [*lines, f"no legible share: {ORDINARY}"]
    net = "undefined" if shares.net is None else f"{shares.net:.0%} of net"
    mass = "undefined" if shares.mass is None else f"{shares.mass:.0%} of mass"
    line = f"legible share {net}, {mass}"
    if shares.named_mass is not None:
        named = "" if shares.named_net is None else f"{shares.named_net:.0%} of net, "
        line += f"; SELECTIVE and labelled {named}{shares.named_mass:.0%} of mass"
    if shares.why_undefined is not None:
        line += f" ({shares.why_undefined})"
    return [*lines, line]
