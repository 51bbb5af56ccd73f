"""One training step of the shipped design against its GELU twin: the same sizes, batch, optimiser and loss.

The legible side has Boolean values on every head, ρ = 0.5, an eighth of its named units quantifiers, and both pressures
on both surfaces; the twin has linear values and GELU units. A step is the loop's own: forward, backward, clip, update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import THREADS, Row, against
from legible_core.model import Transformer
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe
from legible_core.training.step import train_step

BATCH_TOKENS = 2048
REPETITIONS = 9
SIZES: dict[str, Any] = {"n_layers": 6, "d_model": 256, "n_heads": 8, "context": 256}
LEGIBLE: dict[str, Any] = {"value": "boolean", "gelu_fraction": 0.5, "quantifier_fraction": 0.125}
PRESSURE = Pressure("both", sparsity=0.005, crispness=0.1)


def random_batch(number: int) -> Tensor:
    """Random rows, the same for both sides of a step."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(8192, (BATCH_TOKENS // SIZES["context"], SIZES["context"] + 1), generator=generator)


def make_step(design: dict[str, Any], pressure: Pressure) -> Callable[[int], Any]:
    """A function of the step's number that runs one training step."""
    recipe = Recipe(
        name="benchmark",
        model=ModelRecipe(**SIZES, **design),
        data=DataRecipe(train="none"),
        schedule=ScheduleRecipe(tokens=1 << 30, batch_tokens=BATCH_TOKENS),
        attention_pressure=pressure,
        feed_forward_pressure=pressure,
    )
    model = Transformer(recipe.model.config(recipe.data.vocab_size))
    model.initialise(torch.Generator().manual_seed(0))
    optimiser = Optimiser(model, recipe.optimiser)
    return lambda number: train_step(model, optimiser, recipe, random_batch(number), number * BATCH_TOKENS, 1.0)


def run() -> Iterator[Row]:
    """The row of this file."""
    torch.set_num_threads(THREADS)
    legible = make_step(LEGIBLE, PRESSURE)
    twin = make_step({}, Pressure())
    timing = against(legible, twin, iter(range(1000)), REPETITIONS)
    what = "tokens per second of a training step / the GELU twin's"
    yield timing.row("training-step", what, 0.9, per=BATCH_TOKENS, unit="tok/s", direction="at least")
