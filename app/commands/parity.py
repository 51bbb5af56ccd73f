"""`legible parity`: N-bit parity by kind of layer, accuracy against parameters, as a table, JSON and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.parity_plot import plot
from legible_core.errors import LegibleError, Unavailable

if TYPE_CHECKING:
    from legible_core.training.parity import ParityRecipe, Result

DEFAULT = Path("recipes/parity.toml")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("parity")(parity)


def parity(
    recipe: Annotated[Path, typer.Argument(help="A parity recipe, such as recipes/parity.toml.")] = DEFAULT,
    out: Annotated[Path | None, typer.Option(help="Write every result here, as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy against parameters here, as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
) -> None:
    """Compare set-operator, GELU, ReLU, bilinear and SwiGLU layers on the parity of N bits at matched parameters."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from legible_core.training.parity import compare, load_parity

    plan = load_parity(recipe)
    for path in (out, figure):
        if path is not None and not path.parent.is_dir():
            raise LegibleError(f"There is no folder {path.parent}; make it first.", code="cannot_write")
    torch.set_num_threads(1)  # the tensors are too small to divide
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(plan.name, total=len(plan.settings()))
        for result in compare(plan):
            results.append(result)
            progress.update(
                task, advance=1, description=f"{result.bits} bits  {result.layer}  {result.parameters} parameters"
            )
    rows = [result.to_json() for result in results]
    document = {"recipe": _plain(plan), "results": rows}
    if out is not None:
        lines = ",\n".join(json.dumps(row) for row in rows)
        _write(out, f'{{"recipe": {json.dumps(document["recipe"])},\n"results": [\n{lines}\n]}}\n')
    if figure is not None:
        _write(figure, plot(rows))
    typer.echo(json.dumps(document) if as_json else _table(plan, results))


def _plain(plan: ParityRecipe) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(plan)


def _table(plan: ParityRecipe, results: list[Result]) -> str:
    """The fewest parameters that hold each parity, by layer."""
    from legible_core.training.parity import needed

    width = max(len(layer) for layer in plan.layers) + 2
    head = "bits" + "".join(f"{layer:>{width}}" for layer in plan.layers)
    lines = ["The fewest parameters at a mean accuracy of 0.99 over all inputs; – where none of those tried did.", head]
    for n in plan.bits:
        found = [needed(results, n, layer) for layer in plan.layers]
        lines.append(f"{n:>4}" + "".join(f"{'–' if number is None else number:>{width}}" for number in found))
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}.", code="cannot_write") from None
