"""One training step: the shipped design against its GELU twin, and the twin against plain PyTorch.

The legible side has Boolean values on every head, ρ = 0.5, an eighth of its named units quantifiers, and both pressures
on both surfaces; the twin has linear values and GELU units. A step is the loop's own: forward, backward, clip, update;
freed memory is kept between steps, on both sides, as `legible train` does.
Both use the recipes' own optimiser, Muon. Against plain PyTorch both sides use AdamW, because torch's own Muon always
computes in bfloat16, which most CPUs emulate: that would make the reference slow for a reason that is not its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import THREADS, Row, against
from benchmarks.plain_decoder import PlainDecoder, plain_step
from legible_core.model import Transformer
from legible_core.training.memory import keep_memory
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import DataRecipe, ModelRecipe, OptimiserRecipe, Recipe, ScheduleRecipe
from legible_core.training.step import train_step

BATCH_TOKENS = 4096
CONTEXT = 256
VOCABULARY = 8192
# A narrow model is the shipped one; the wide one has the width of GPT-2 small and as many layers as a minute allows.
SIZES: dict[int, dict[str, int]] = {
    256: {"n_layers": 6, "d_model": 256, "n_heads": 8, "context": CONTEXT},
    768: {"n_layers": 3, "d_model": 768, "n_heads": 12, "context": CONTEXT},
}
# Single pairs differ by a quarter on a shared processor; a median of so many is firm to a hundredth or two.
REPETITIONS = {256: 25, 768: 7}
LEGIBLE: dict[str, Any] = {"value": "boolean", "gelu_fraction": 0.5, "quantifier_fraction": 0.125}
PRESSURE = Pressure("both", sparsity=0.005, crispness=0.1)
ADAMW = OptimiserRecipe(kind="adamw", lr=1e-3)


def random_batch(number: int, tokens: int = BATCH_TOKENS) -> Tensor:
    """Random rows, the same for both sides of a step."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(VOCABULARY, (tokens // CONTEXT, CONTEXT + 1), generator=generator)


def make_step(
    size: dict[str, Any],
    design: dict[str, Any],
    pressure: Pressure,
    optimiser_recipe: OptimiserRecipe,
    tokens: int = BATCH_TOKENS,
) -> Callable[[int], float]:
    """A function of the step's number that runs one training step of the library and gives its loss."""
    recipe = Recipe(
        name="benchmark",
        model=ModelRecipe(**size, **design),
        data=DataRecipe(train="none", vocab_size=VOCABULARY),
        schedule=ScheduleRecipe(tokens=1 << 30, batch_tokens=tokens),
        optimiser=optimiser_recipe,
        attention_pressure=pressure,
        feed_forward_pressure=pressure,
    )
    model = Transformer(recipe.model.config(recipe.data.vocab_size))
    model.initialise(torch.Generator().manual_seed(0))
    optimiser = Optimiser(model, recipe.optimiser)
    return lambda number: train_step(model, optimiser, recipe, random_batch(number, tokens), number * tokens, 1.0)[0]


def make_plain_step(size: dict[str, int], tokens: int = BATCH_TOKENS) -> Callable[[int], float]:
    """The same of the plain decoder."""
    torch.manual_seed(0)
    step = plain_step(PlainDecoder(VOCABULARY, **size), ADAMW)
    return lambda number: step(random_batch(number, tokens))


def run() -> Iterator[Row]:
    """Four rows, two of each width."""
    torch.set_num_threads(THREADS)
    keep_memory()
    for width, size in SIZES.items():
        legible = make_step(size, LEGIBLE, PRESSURE, OptimiserRecipe())
        twin = make_step(size, {}, Pressure(), OptimiserRecipe())
        what = f"tokens per second of a training step / the GELU twin's, d = {width}"
        yield row(f"training-step-{width}", what, legible, twin, REPETITIONS[width])
        del legible, twin
        ours, plain = make_step(size, {}, Pressure(), ADAMW), make_plain_step(size)
        what = f"tokens per second of the twin's step / a plain PyTorch decoder's, d = {width}"
        yield row(f"twin-against-plain-{width}", what, ours, plain, REPETITIONS[width])


def row(name: str, what: str, ours: Callable[[int], float], baseline: Callable[[int], float], repetitions: int) -> Row:
    """Alternate both sides; a side whose loss is no number would be fast for nothing."""
    losses: list[float] = []

    def kept(step: Callable[[int], float]) -> Callable[[int], None]:
        return lambda number: losses.append(step(number))

    timing = against(kept(ours), kept(baseline), iter(range(1000)), repetitions)
    if not all(math.isfinite(loss) for loss in losses):
        raise RuntimeError(f"{name}: a loss is not finite")
    return timing.row(name, what, 0.95, per=BATCH_TOKENS, unit="tok/s", direction="at least")
