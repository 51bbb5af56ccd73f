"""A small text and recipe for tests of the engine, and what a run logged."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from legible_core.training.data import train_tokenizer
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe

RECIPE = Recipe(
    name="tiny",
    model=ModelRecipe(2, 16, 2, 16, "boolean", 1.0, None, 0.5, 0.25),
    data=DataRecipe("unused", vocab_size=300, held_out_tokens=200),
    schedule=ScheduleRecipe(tokens=640, warmup_tokens=128, decay_tokens=192, batch_tokens=64),
    attention_pressure=Pressure("both", 0.01, 0.1),
    feed_forward_pressure=Pressure("crispness", crispness=0.1),
)


def recipe_of(floor: float = 0.0, micro: int | None = None, revive: list[int] | None = None, **schedule: Any) -> Recipe:
    """`RECIPE` with a floor under both pressures, a micro-batch, revivals, or another schedule."""
    return replace(
        RECIPE,
        schedule=replace(RECIPE.schedule, micro_batch_tokens=micro, revive_tokens=tuple(revive or ()), **schedule),
        attention_pressure=replace(RECIPE.attention_pressure, floor=floor),
        feed_forward_pressure=replace(RECIPE.feed_forward_pressure, floor=floor),
    )


def write_text(path: Path, words: int = 4000) -> Path:
    """A text of so many words out of ten."""
    choice = ["the ", "cat ", "dog ", "sees ", "a ", "not ", "bird. ", "runs ", "and ", "or "]
    rng = random.Random(0)
    path.write_text("".join(rng.choice(choice) for _ in range(words)))
    return path


def write_tokenizer(text: Path, path: Path, size: int = 300) -> Path:
    """A tokenizer trained on the text and filled up to `size` entries."""
    tokenizer = train_tokenizer(text, size)
    tokenizer.add_tokens([f"<fill{i}>" for i in range(size - tokenizer.get_vocab_size())])
    tokenizer.save(str(path))
    return path


def losses(folder: Path) -> list[float]:
    """The losses in a run's log."""
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
