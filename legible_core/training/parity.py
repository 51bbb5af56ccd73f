"""N-bit parity: how many parameters a feed-forward layer needs for it, by the kind of its units.

"Explicit Fuzzy Logic in the Feed-Forward Layer" (abstract) claims that set operators are the most parameter-efficient
reasoning basis at shallow depth. One layer reads all bits and one row reads its hidden vector:

    x = (±1, …, ±1, 1)  ∈ {-1, 1}^N × {1}            logit = v · h(x)            target = parity of the bits
    set-operators   h = [A⊙B ; A⊙(1-B)],  A = σ(W_a x), B = σ(W_b x)     2 read rows, 2 hidden values a pair
    gelu, relu      h = φ(W x)                                            1 read row,  1 hidden value a unit
    bilinear        h = (W_a x)⊙(W_b x)                                   2 read rows, 1 hidden value a unit
    swiglu          h = silu(W_a x)⊙(W_b x)                               2 read rows, 1 hidden value a unit

No bias anywhere: the constant 1 among the inputs is one for each read row. Accuracy is over all 2^N inputs, on which
the layer is also trained: what is asked is whether it can hold the function, not whether it generalises. Layers are
compared at matched parameters: each has as many units as fit into the number given. All starts and rates of a setting
train together, as one batched tensor. A product of two linear forms is of degree two, so one bilinear layer cannot hold
the parity of more than two bits, however wide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from legible_core.errors import LegibleError
from legible_core.training.recipe import load_table

LayerKind: TypeAlias = Literal["set-operators", "gelu", "relu", "bilinear", "swiglu"]
# Read rows and hidden values of one unit (of one pair, for set operators).
COSTS: dict[LayerKind, tuple[int, int]] = {
    "set-operators": (2, 2),
    "gelu": (1, 1),
    "relu": (1, 1),
    "bilinear": (2, 1),
    "swiglu": (2, 1),
}
MAX_BITS = 12


@dataclass(frozen=True)
class ParityRecipe:
    """What is compared. Raises `LegibleError` where an entry is out of range."""

    name: str
    bits: tuple[int, ...]
    layers: tuple[LayerKind, ...]
    parameters: tuple[int, ...]
    rates: tuple[float, ...] = (0.01,)
    seeds: int = 5
    steps: int = 1500
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("bits", "layers", "parameters", "rates"):
            if not getattr(self, name):
                raise _bad(f"{name} is empty; give at least one")
        if any(not 2 <= n <= MAX_BITS for n in self.bits):
            raise _bad(f"bits are {list(self.bits)}; each must be from 2 to {MAX_BITS}")
        if any(not 0 < rate <= 1 for rate in self.rates):
            raise _bad(f"rates are {list(self.rates)}; each must be above 0 and at most 1")
        if not 1 <= self.seeds <= 1000 or not 1 <= self.steps <= 1_000_000:
            raise _bad("seeds must be from 1 to 1,000 and steps from 1 to 1,000,000")
        if any(not 1 <= number <= 1_000_000 for number in self.parameters):
            raise _bad("parameters must be from 1 to 1,000,000")

    def settings(self) -> list[tuple[int, LayerKind, int]]:
        """Every (bits, layer, parameters at most) in which at least one unit fits."""
        return [
            (n, layer, most)
            for n in self.bits
            for layer in self.layers
            for most in self.parameters
            if units(layer, n, most) > 0
        ]


@dataclass(frozen=True)
class Result:
    """One setting at its best rate: accuracy over all inputs, mean and standard error over starts, and how many held
    the whole function."""

    bits: int
    layer: LayerKind
    units: int
    parameters: int
    rate: float
    accuracy: float
    accuracy_se: float | None
    solved: float

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_parity(path: Path) -> ParityRecipe:
    """Read a parity recipe; raises what `load_recipe` raises."""
    recipe: ParityRecipe = load_table(ParityRecipe, path)
    return recipe


def units(layer: LayerKind, bits: int, most: int) -> int:
    """How many units (pairs, for set operators) fit into `most` parameters."""
    rows, values = COSTS[layer]
    return most // (rows * (bits + 1) + values)


def compare(recipe: ParityRecipe) -> Iterator[Result]:
    """Train every setting, in order; one result each."""
    for n, layer, most in recipe.settings():
        yield train(recipe, n, layer, units(layer, n, most))


def train(recipe: ParityRecipe, bits: int, layer: LayerKind, width: int) -> Result:
    """Train all starts and rates of one setting together with Adam on all 2^N inputs; stops early when all hold it."""
    rows, values = COSTS[layer]
    x, target = table(bits)
    generator = torch.Generator().manual_seed(recipe.seed)
    # The same starts at every rate.
    start = [
        torch.randn(recipe.seeds, rows * width, bits + 1, generator=generator),
        torch.randn(recipe.seeds, values * width, generator=generator) / math.sqrt(values * width),
    ]
    weights = [w.repeat(len(recipe.rates), *[1] * (w.ndim - 1)).requires_grad_() for w in start]
    rates = torch.tensor(recipe.rates).repeat_interleave(recipe.seeds)
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    right = torch.zeros(len(rates))
    for step in range(1, recipe.steps + 1):
        logits = forward(layer, x, weights[0], weights[1])
        right = ((logits > 0) == (target > 0.5)).float().mean(-1)
        if bool((right == 1).all()):
            break
        # A mean over inputs and a sum over starts, which do not touch each other.
        loss = F.binary_cross_entropy_with_logits(logits, target.expand_as(logits), reduction="none").mean(-1).sum()
        gradients = torch.autograd.grad(loss, weights)
        decay = 1 - step / recipe.steps
        with torch.no_grad():
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                m.lerp_(g, 0.1)
                v.lerp_(g * g, 0.01)
                pace = (rates * decay).view(-1, *[1] * (w.ndim - 1))
                w -= pace * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
    accuracy = right.view(len(recipe.rates), recipe.seeds).double()
    best = int(accuracy.mean(1).argmax())
    chosen = accuracy[best]
    return Result(
        bits=bits,
        layer=layer,
        units=width,
        parameters=width * (rows * (bits + 1) + values),
        rate=recipe.rates[best],
        accuracy=chosen.mean().item(),
        accuracy_se=chosen.std().item() / math.sqrt(recipe.seeds) if recipe.seeds > 1 else None,
        solved=(chosen == 1).double().mean().item(),
    )


def table(bits: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """All 2^N inputs as ±1 with a constant 1 behind them, and the parity of each as 0 or 1."""
    numbers = torch.arange(1 << bits)
    zeros_and_ones = (numbers[:, None] >> torch.arange(bits)) & 1
    x = torch.cat([2.0 * zeros_and_ones - 1, torch.ones(len(numbers), 1)], dim=1)
    return x, (zeros_and_ones.sum(1) % 2).float()


def forward(
    layer: LayerKind, x: Float[Tensor, "n d"], read: Float[Tensor, "r u d"], write: Float[Tensor, "r h"]
) -> Float[Tensor, "r n"]:
    """Logits of every input for each of r independent layers."""
    z = x @ read.mT
    a, b = z.chunk(2, dim=-1) if COSTS[layer][0] == 2 else (z, z)
    match layer:
        case "set-operators":
            a, b = torch.sigmoid(a), torch.sigmoid(b)
            hidden = torch.cat([a * b, a * (1 - b)], dim=-1)
        case "gelu":
            hidden = F.gelu(z)
        case "relu":
            hidden = F.relu(z)
        case "bilinear":
            hidden = a * b
        case "swiglu":
            hidden = F.silu(a) * b
    return (hidden @ write[..., None])[..., 0]


def needed(results: list[Result], bits: int, layer: LayerKind, share: float = 0.99) -> int | None:
    """The fewest parameters at which a layer's mean accuracy reaches `share`; None where it never does."""
    found = [r.parameters for r in results if r.bits == bits and r.layer == layer and r.accuracy >= share]
    return min(found, default=None)


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The parity recipe is not usable: {reason}.", code="bad_recipe")
