"""`legible examples`: choose a checkpoint's example prompts for the home page, among confident predictions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from legible_core.pipeline import Engine

FILE = "examples.json"
SHOWN = 6
# The papers' own example comes first, for the token that they read, at whatever rank it has here.
FIRST, FIRST_TOKEN = "It was the best of times, it was the", " worst"
CANDIDATES = (
    "I am very much obliged to",
    "She shook her",
    "He could not help",
    "In the course of the",
    "I have not the slightest",
    "He put his hand on her",
    "They looked at each",
    "As a matter of",
    "I should be very glad to see",
    "He had nothing to do with",
    "It is better to be late than",
    "She was more beautiful than",
    "He was not so old as he",
    "From time to",
    "At the same",
    "On the other",
    "He was neither tall",
    "He rose from his chair and went to the",
    "There can be no",
    "I do not know what you",
    "The sooner the",
    "He opened the door and",
    "In spite of",
    "She had never been so happy in her",
    "You ought to be ashamed of",
    "For the first time in his",
    "Ladies and",
    "My dear",
    "Once upon a",
    "The King and the",
    "The President of the United",
    "two and two make",
    "up and",
    "I beg your",
    "He would rather die than",
    "Not only that, but",
)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("examples")(examples)


def examples(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: examples.json beside the weights.")
    ] = None,
) -> None:
    """Choose six example prompts, the papers' first and the most confident ones after it, and write them down."""
    from app.commands.read import find
    from app.scanning_ordinary import place_of
    from app.settings import Settings
    from legible_core.pipeline import Engine

    checkpoint = find(model)
    place = None if out is not None else place_of(checkpoint, Settings.load().data_dir)
    engine = Engine.open(checkpoint)
    rows = choose(engine)
    path = out if out is not None else (place or checkpoint.path) / FILE
    draft = path.with_name(f".{path.name}.saving")
    document = {"checkpoint": checkpoint.hash, "examples": rows}
    draft.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
    for row in rows:
        typer.echo(f"{row['probability']:.2f}  rank {row['rank']}  {row['prompt']} → {row['token']}")


def choose(engine: Engine, shown: int = SHOWN) -> list[dict[str, Any]]:
    """The first example for its own token, then the most confident candidates, no predicted token twice."""
    rows = [_row(engine, FIRST, FIRST_TOKEN)]
    found = sorted((_row(engine, prompt, None) for prompt in CANDIDATES), key=lambda row: -row["probability"])
    taken: set[str] = set()
    for row in found:
        if len(rows) < shown and row["token"] not in taken:
            taken.add(row["token"])
            rows.append(row)
    return rows


def _row(engine: Engine, prompt: str, target: str | None) -> dict[str, Any]:
    from legible_core.errors import LegibleError

    try:
        request = engine.request(prompt, target=target)
    except LegibleError:
        # Another vocabulary may split the papers' token: then its own most probable one is shown.
        request = engine.request(prompt)
    reading = engine.read(request, top=0, promoted=0)
    token = reading.target
    return {
        "prompt": prompt,
        "target": None if target is None else token.id,
        "token": token.display,
        "probability": float(f"{token.probability:.3g}"),
        "rank": token.rank,
    }
