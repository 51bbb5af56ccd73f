"""`legible card MODEL`: every number of a checkpoint's card, made from what was measured on its weights.

The front of the card gets the quality and the pooled figures, its text a table of the quality and the papers' tables,
between two marks; nothing of either is typed by hand. `--check` compares instead of writing; `--corpus` scans anew,
`--data` evaluates anew.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.shipped import Replace, keep_shipped, shipped_files
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound, TooLarge
from legible_core.figures import BEGIN, END, loss_text, percent_text, perplexity_text, share_text

if TYPE_CHECKING:
    from legible_core.evaluation.records import Evaluation, TaskResult
    from legible_core.naming.names import Names
    from legible_core.naming.tables import Cell, Table
    from legible_core.registry import Checkpoint

# What the tables of quality say of themselves; docs/evaluation.md says more.
OVER_ITEMS = "± is the standard error over items; of several paradigms the plain mean, and its error √(Σ se²) / k."
OVER_PARADIGMS = "Each is the plain mean of its paradigms."


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
        Path | None,
        typer.Option(help="Measure loss and legibility anew on this text instead of taking the names files' figures."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Ask the tasks in this folder anew, as `legible eval`, instead of taking evaluation.json's."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="With --corpus or --data, where to compute: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    restart: Annotated[
        bool, typer.Option("--restart", help="With --data, forget the scores that are kept and ask again.")
    ] = False,
    replace_shipped: Replace = False,
) -> None:
    """Write quality, legibility and half-lives onto the card; with --check, tell which figures differ from it."""
    from app.commands.read import find
    from legible_core.evaluation.records import card_fields

    if data is None and (restart or replace_shipped):
        raise LegibleError("--restart and --replace go with --data DIR.", code="usage")
    checkpoint = find(model)
    more, text = _typed(field or []), _text(body)
    if not check:
        _writes(checkpoint, model, corpus, data, replace_shipped)
    names = _names(checkpoint, model) if corpus is None else None
    if corpus is not None and not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    # The tasks first: their scores are kept where one stops, and a scan for a card begins again.
    tasks, asked = _tasks(checkpoint, model, data, device, restart, store=not check)
    if names is None:
        assert corpus is not None
        names = _measured(checkpoint, corpus, device)
    measured = {**figures(names), **card_fields(tasks)}
    section = tables_text(names, tasks)
    if check:
        quality = {f"### {table.title}" for table in quality_tables(tasks)}
        anew = card_fields({name: tasks[name] for name in asked}).keys() | (quality if asked else set())
        if corpus is not None:
            headings = {line for line in section.splitlines() if line.startswith("#")}
            anew |= figures(names).keys() | (headings - quality)
        raise typer.Exit(_compare(checkpoint, measured, section, anew))
    _write(checkpoint, measured, more, with_section(checkpoint.card.body if text is None else text, section))


def _compare(checkpoint: Checkpoint, measured: dict[str, str], section: str, anew: Collection[str]) -> int:
    """Say what differs from the card; 1 where anything does. anew: as `card_check.differences` takes it."""
    from app.commands.card_check import differences, recorded_facts, untrue

    wrong = [*differences(checkpoint, measured, section, anew), *untrue(checkpoint)]
    for line in wrong:
        typer.echo(line)
    facts = len(recorded_facts(checkpoint).keys() & checkpoint.card.fields.keys())
    trained = f", {facts} facts of the training" if facts else ""
    typer.echo(f"{len(measured)} figures{trained} and the tables were compared; {len(wrong)} differ.")
    return 1 if wrong else 0


def _write(checkpoint: Checkpoint, measured: dict[str, str], more: dict[str, str], text: str) -> None:
    """The card with these figures and no others; facts that another file says otherwise are told, and left."""
    from app.commands.card_check import unmeasured, untrue
    from legible_core.checkpoint import write_card
    from legible_core.folder import Card

    old = unmeasured(checkpoint, measured)
    kept = {key: value for key, value in checkpoint.card.fields.items() if key not in old}
    written = write_card(checkpoint.path, Card({**kept, **measured, **more}, text))
    if old:
        typer.echo(f"Left out, since nothing here measured them: {', '.join(old)}.")
    typer.echo(f"Wrote the card of {written.slug} ({written.hash[:12]}).")
    for line in untrue(written):
        typer.echo(f"{line}; where the card is wrong, --set KEY=VALUE puts it right", err=True)


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


def tables_text(names: Names, tasks: Mapping[str, TaskResult] | None = None) -> str:
    """The quality of a checkpoint and the papers' tables of the same weights, in Markdown.

    tasks: the results of an evaluation, by name; without them there is no table of the tasks.
    """
    from legible_core.naming.tables import memory, tables

    corpus, quality = names.meta["corpus"], names.quality
    parts = [
        f"## Figures\n\nPerplexity {perplexity_text(quality['perplexity'])} on {corpus['tokens']:,} tokens of "
        f"{corpus['name']}, where legibility was measured too; – is undefined."
    ]
    parts += [f"### {table.title}\n\n{table.note}\n\n{_markdown(table)}" for table in quality_tables(tasks or {})]
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


def quality_tables(tasks: Mapping[str, TaskResult]) -> list[Table]:
    """Every task's figures; and the fields and linguistic terms of one that has them. Empty without tasks."""
    from app.pages.quality import table
    from legible_core.naming.tables import Table

    made = [table(task) for _, task in sorted(tasks.items())]
    if not made:
        return []
    all_items = tuple(
        (task.title, row.figure, row.ours, row.chance, row.items)
        for task in made
        for row in task.rows
        if row.level == "all"
    )
    found = [
        Table("quality", "Quality", ("task", "figure", "value", "chance", "items"), all_items, frozenset(), OVER_ITEMS)
    ]
    for task in made:
        rows = tuple((row.level, row.name, row.ours, row.chance, row.items) for row in task.rows if row.level != "all")
        if rows:
            columns = ("by", "name", task.rows[0].figure, "chance", "items")
            title = f"{task.title} by field and by linguistic term"
            found.append(Table(f"{task.task}-groups", title, columns, rows, frozenset(), OVER_PARADIGMS))
    return found


def with_section(text: str, section: str) -> str:
    """The card's text with its generated part replaced, or added at the end."""
    before, begin, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if begin else ""
    kept = before.rstrip()
    return f"{kept}\n\n{BEGIN}\n\n{section}\n\n{END}\n{after.strip()}".strip()


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


def _typed(lines: list[str]) -> dict[str, str]:
    """The lines of --set; raises `LegibleError` for one without a key, or that no card can hold."""
    from legible_core.folder import Card

    found = {}
    for item in lines:
        key, equals, value = item.partition("=")
        if not equals:
            raise LegibleError(f"--set {item!r} is not usable; write key=value.", code="bad_options")
        found[key.strip()] = value.strip()
    Card(found).render("")
    return found


def _text(body: Path | None) -> str | None:
    """The Markdown of --body; raises `NotFound` where there is none, `LegibleError` where no card can hold it."""
    from legible_core.folder import MAX_CARD_BYTES

    if body is None:
        return None
    if not body.is_file():
        raise NotFound(f"There is no text at {body}; give a Markdown file.")
    try:
        with body.open("rb") as file:
            data = file.read(MAX_CARD_BYTES + 1)
        if len(data) > MAX_CARD_BYTES:
            raise TooLarge(f"{body} has more bytes than a card: the limit of a card is {MAX_CARD_BYTES:,}; shorten it.")
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise LegibleError(
            f"{body} is not UTF-8 text (at byte {error.start}); convert it first.", code="bad_text"
        ) from None
    except OSError as error:
        raise NotFound(f"{body} cannot be read: {error.strerror or error}.") from None


def _writes(checkpoint: Checkpoint, given: str, corpus: Path | None, data: Path | None, replace: bool) -> None:
    """Raise `Conflict` where the card would say something else than the files beside it.

    A scan for a card is not stored, so it makes a card only where there are no names; an evaluation is, as by
    `legible eval`, and so it replaces what ships only where that was asked for.
    """
    from app.commands.evaluate import check_writable
    from legible_core.evaluation.records import FILE

    if corpus is not None and checkpoint.has_names:
        raise Conflict(
            f"{checkpoint.slug} has names already, and a card measured on {corpus} would not agree with them; "
            "--check compares without writing.",
            code="names",
            hint=f"`legible scan {shlex.quote(given)} --corpus {shlex.quote(str(corpus))}` stores the names that "
            f"`legible card {shlex.quote(given)}` then takes.",
        )
    if data is not None:
        keep_shipped(
            checkpoint, (FILE,), replace=replace,
            hint="--check compares the card with what is measured, and leaves both; --replace replaces both.",
        )  # fmt: skip
        check_writable(checkpoint.path / FILE)


def _tasks(
    checkpoint: Checkpoint, given: str, data: Path | None, device: str, restart: bool, *, store: bool
) -> tuple[Mapping[str, TaskResult], Collection[str]]:
    """The stored results; with `data`, those of its tasks measured now, as `legible eval` does, and where `store` kept.

    And the names of those that were measured now. A card that is written has the figures as they are stored, to the
    last digit.
    """
    from app.commands.evaluate import FOLDER, Plan, asked, measure, stopped
    from app.commands.interrupt import interruptible
    from app.settings import Settings
    from legible_core.evaluation.records import FILE

    # Only what is stored anew may be damaged now, and a minute of measuring is no time to find it.
    found = None if store and data is not None else _stored(checkpoint, given)
    now: dict[str, TaskResult] | None = {}
    if data is not None:
        names, suites = asked(None, data, None)
        plan = Plan(names, suites, None, device, None, Settings.load().data_dir / FOLDER, restart, store)
        with interruptible() as interrupted:
            now = measure(checkpoint, plan, checkpoint.path / FILE if store else None, interrupted)
    if now is None:
        raise stopped()
    if store and data is not None:
        found = _stored(checkpoint, given)
    known = found.tasks if found is not None else {}
    if data is not None and (rest := sorted(known.keys() - now.keys())):
        typer.echo(f"{data} does not hold {', '.join(rest)}: what is stored of it is taken.", err=True)
    return known if store else {**known, **now}, now.keys()


def _stored(checkpoint: Checkpoint, given: str) -> Evaluation | None:
    """The results beside the checkpoint; raises `Corrupt`, with the file's place and what to do, for damaged ones."""
    from legible_core.evaluation.records import FILE, Evaluation

    try:
        return Evaluation.load(checkpoint.path, checkpoint.hash)
    except Corrupt as error:
        replace = " --replace" if shipped_files(checkpoint, (FILE,)) else ""
        raise Corrupt(
            f"The results in {checkpoint.path} cannot be used: {error.message.rstrip('.')}; `legible eval "
            f"{shlex.quote(given)} --data DIR{replace}` measures and stores them anew."
        ) from None


def _measured(checkpoint: Checkpoint, corpus: Path, device: str) -> Names:
    """The names that a scan of this text gives now; nothing of it is kept."""
    from app.scanning import Job, Text, finish, prepare_scan

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
