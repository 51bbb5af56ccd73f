"""Weights of a run as it went, a few of them, so that the history of a unit can be shown afterwards.

RUN/snapshots/<tokens>/     a checkpoint folder of its own, without optimiser: `legible scan` takes it as any other
"""

from __future__ import annotations

from pathlib import Path

from legible_core.checkpoint import save
from legible_core.errors import LegibleError
from legible_core.model import Transformer
from legible_core.training.recipe import MAX_SNAPSHOTS, Recipe


class Snapshots:
    """When a run's weights are kept: at the recipe's `snapshot_tokens`, and every so many tokens besides.

    A snapshot is due at the first step that reaches its count, and is named after the tokens of that step; 0 is the
    model before its first step. A run that resumes writes the same ones again. Raises `LegibleError` when that makes
    more than `MAX_SNAPSHOTS`.
    """

    def __init__(self, recipe: Recipe, folder: Path, every: int | None, last: int) -> None:
        self.recipe, self.folder = recipe, folder
        self.size = recipe.schedule.batch_tokens
        counts = set(recipe.schedule.snapshot_tokens)
        if every is not None:
            if every < self.size or last * self.size // every > MAX_SNAPSHOTS:
                raise LegibleError(
                    f"A snapshot every {every:,} tokens makes more than the {MAX_SNAPSHOTS} that a run keeps, or more "
                    f"than one for each batch of {self.size:,} tokens; give --snapshot-every a larger number.",
                    code="bad_options",
                )
            counts |= set(range(every, last * self.size + 1, every))
        self.steps = {-(-count // self.size) for count in counts}

    def after(self, step: int, model: Transformer) -> None:
        """Keep the weights when a snapshot is due at this step; raises what `checkpoint.save` raises."""
        if step not in self.steps:
            return
        tokens = step * self.size
        card = {
            "title": f"{self.recipe.name} at {tokens:,} tokens",
            "tokens": str(tokens),
            "decay_tokens": "0",
            "recipe": self.recipe.name,
        }
        place = self.folder / "snapshots"
        place.mkdir(exist_ok=True)
        save(place / f"{tokens:012d}", model, self.folder / "tokenizer.json", card)
