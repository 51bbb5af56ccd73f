"""What the operations of a trained layer are used for: do pairs need both operands, do quantifiers carry memory on.

"Explicit Fuzzy Logic in the Feed-Forward Layer" (abstract) claims both: two-operand logic localises to layer 0 and
erodes in training unless there are quantifiers, and a quantifier fires on a licensor and carries its memory forward to
the licensed word. Its measures are not in the text we have; these are ours (docs/structure.md).

    two-operand share   1 - max(R²(y, A), R²(y, B)) of a unit y = A∩B or A∖B: the part of its variance that no straight
                        line in one operand accounts for
    memory lift         E[y | the next token is w, m < 0.1] / E[y | m < 0.1] of a quantifier y and the word w that it
                        promotes: only tokens on which its own membership is off, so all of y is memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.legibility import MIN_VARIANCE, RAIL
from legible_core.model.quantifiers import half_life
from legible_core.model.transformer import Transformer
from legible_core.naming.observe import Batch, Ints, batches, observe
from legible_core.naming.promote import promotion
from legible_core.naming.tables import remembering
from legible_core.units import Unit

# A unit whose variance leaves this much to neither operand alone is called two-operand.
TWO_OPERAND = 0.1
# A word must follow this often for a lift to mean anything; the null draws this many words about as frequent.
OCCURRENCES = 20
NULLS = 19
# Without a licensor before it a quantifier's mean is rounding, and a ratio to it is noise.
SMALLEST_MEAN = 1e-4


@dataclass(frozen=True)
class LayerPairs:
    """A layer's set operators: how many, the CONSTANT share (variance < 0.003), how many need both operands.

    two_operand: share of all units that are not constant and leave a tenth or more of their variance to neither operand
    alone. strength: mean of that part over the units that are not constant; None where all are.
    """

    layer: int
    units: int
    constant: float
    two_operand: float
    strength: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Memory:
    """One quantifier and the word that it promotes most among those that follow often enough.

    lift: how much higher its value stands before that word than elsewhere, on tokens where m < 0.1. before: of how many
    such places. rank: place of that lift among the lifts of the word and 19 words about as frequent, 1 the highest.
    """

    id: str
    token: int
    half_life: float
    lift: float
    before: int
    rank: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Structure:
    """What a pass over `tokens` tokens found; loss in nats a token, on the same text.

    half_lives: of every quantifier in tokens, read off the weights and so the same on any text. memories: in order of
    the units. unmeasured: quantifiers with too few places where their membership is off.
    """

    tokens: int
    loss: float
    pairs: tuple[LayerPairs, ...]
    half_lives: tuple[float, ...]
    memories: tuple[Memory, ...]
    unmeasured: int

    @property
    def first(self) -> float | None:
        """Share of quantifiers whose word has the highest lift of its twenty; 0.05 by chance. None without any."""
        return sum(m.rank == 1 for m in self.memories) / len(self.memories) if self.memories else None

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "loss": self.loss,
            "pairs": [row.to_json() for row in self.pairs],
            "half_lives": remembering(self.half_lives),
            "memories": [row.to_json() for row in self.memories],
            "unmeasured": self.unmeasured,
            "first": self.first,
        }


class PairMoments:
    """Sums of one layer's operands, float64, enough for the straight-line fits of both operations on either operand."""

    KEYS = ("a", "b", "aa", "bb", "ab", "aab", "abb", "aabb")

    def __init__(self, width: int) -> None:
        self.count = 0
        self.sums = torch.zeros(len(self.KEYS), width, dtype=torch.float64)

    def update(self, a: Float[Tensor, "n p"], b: Float[Tensor, "n p"]) -> None:
        """Add a batch of operand values in [0, 1]."""
        a, b = a.double(), b.double()
        ab = a * b
        for row, value in zip(self.sums, (a, b, a * a, b * b, ab, a * ab, ab * b, ab * ab), strict=True):
            row += value.sum(0).cpu()
        self.count += len(a)

    def unexplained(self) -> tuple[Float[Tensor, "2 p"], Float[Tensor, "2 p"]]:
        """1 - max(R² on A, R² on B) and the variance, of A∩B (row 0) and A∖B (row 1); 0 where y does not vary."""
        a, b, aa, bb, ab, aab, abb, aabb = self.sums / max(self.count, 1)
        var_a, var_b = aa - a * a, bb - b * b
        cov_ab = ab - a * b
        # y = A∩B, then y = A - A∩B.
        on_a, on_b, var = aab - ab * a, abb - ab * b, aabb - ab * ab
        rows = [(on_a, on_b, var), (var_a - on_a, cov_ab - on_b, var_a + var - 2 * on_a)]
        left, variance = [], []
        for by_a, by_b, spread in rows:
            best = torch.maximum(_r2(by_a, var_a, spread), _r2(by_b, var_b, spread))
            left.append(torch.where(spread > 0, 1.0 - best, torch.zeros_like(best)))
            variance.append(spread.clamp(min=0.0))
        return torch.stack(left), torch.stack(variance)


def _r2(covariance: Tensor, variance: Tensor, spread: Tensor) -> Tensor:
    """Squared correlation, within [0, 1]; 0 where the operand does not vary."""
    product = variance * spread
    return torch.where(product > 1e-18, covariance.square() / product.clamp(min=1e-18), 0.0).clamp(0.0, 1.0)


class MemorySums:
    """One layer's quantifiers: sums of their values over tokens where m < 0.1, by the token that follows.

    words: (k,) vocabulary ids that follow often enough, in ascending order.
    """

    def __init__(self, words: Ints, vocab_size: int, width: int) -> None:
        self.index = torch.full((vocab_size,), len(words), dtype=torch.long)
        self.index[torch.from_numpy(words)] = torch.arange(len(words))
        # The last row takes every other word, so that the column sums are over all tokens.
        self.sums = torch.zeros(len(words) + 1, width, dtype=torch.float64)
        self.counts = torch.zeros(len(words) + 1, width, dtype=torch.float64)

    def update(self, m: Float[Tensor, "n q"], y: Float[Tensor, "n q"], following: Ints) -> None:
        """Add a batch; following: (n,) the next token's id, negative where there is none."""
        known = torch.from_numpy(following >= 0)
        rows = self.index[torch.from_numpy(following)[known]]
        off = (m.cpu()[known] < RAIL).double()
        self.sums.index_add_(0, rows, y.cpu()[known].double() * off)
        self.counts.index_add_(0, rows, off)

    def lifts(self) -> tuple[Float[Tensor, "k q"], Float[Tensor, "k q"]]:
        """Each word's lift and how many places it is of; NaN where there is no such place or no memory at all."""
        mean = self.sums.sum(0) / self.counts.sum(0)
        mean = torch.where(mean > SMALLEST_MEAN, mean, torch.nan)
        return (self.sums / self.counts / mean)[:-1], self.counts[:-1]


def measure(model: Transformer, ids: Ints, *, batch: int = 8) -> Iterator[tuple[int, Structure | None]]:
    """Pass over a stream of ids; yields (tokens done, None) after every batch and the `Structure` last.

    ids: (n,) token ids, read in windows of the context. Raises `LegibleError` for a design without set operators and
    quantifiers, of which there is nothing to measure.
    """
    layout, layers = model.config.feed_forward, range(model.config.n_layers)
    if not layout.n_named:
        raise LegibleError(
            "This checkpoint has no set operators and no quantifiers, so there is no structure to measure.",
            code="nothing_to_measure",
        )
    following = np.bincount(ids[1:], minlength=model.config.vocab_size)
    words = np.flatnonzero(following >= OCCURRENCES)
    pairs = [PairMoments(layout.n_pairs) for _ in layers]
    memories = [MemorySums(words, model.config.vocab_size, layout.n_quantifiers) for _ in layers]
    losses: list[NDArray[np.float64]] = []
    done = 0
    for part in batches(ids, model.config.context, batch):
        losses.append(_take_in(model, part, pairs, memories))
        done += part.ids.size
        yield done, None
    loss = float(np.nanmean(np.concatenate(losses)))
    found, unmeasured = _memories(model, memories, words, following[words]) if layout.n_quantifiers else ([], 0)
    rows = tuple(_layer(layer, pairs[layer]) for layer in layers) if layout.n_pairs else ()
    decays = [model.decay(layer).tolist() for layer in layers] if layout.n_quantifiers else []
    half_lives = tuple(half_life(decay) for row in decays for decay in row)
    yield done, Structure(done, loss, rows, half_lives, tuple(found), unmeasured)


def _take_in(
    model: Transformer, part: Batch, pairs: list[PairMoments], memories: list[MemorySums]
) -> NDArray[np.float64]:
    layout = model.config.feed_forward
    values, losses = observe(model, part)
    following = part.targets.reshape(-1)
    for layer, seen in enumerate(values):
        atoms = seen.operands[:, -_n_atoms(model) :]
        n = layout.n_pairs
        if n:
            pairs[layer].update(atoms[:, :n], atoms[:, n : 2 * n])
        if layout.n_quantifiers:
            m = atoms[:, 2 * n : 2 * n + layout.n_quantifiers]
            memories[layer].update(m, seen.units[:, 2 * n : 2 * n + layout.n_quantifiers], following)
    return losses.reshape(-1)


def _n_atoms(model: Transformer) -> int:
    """Operands of a feed-forward layer; in `LayerValues.operands` they stand behind those of the heads."""
    layout = model.config.feed_forward
    return 2 * layout.n_pairs + layout.n_quantifiers + (layout.n_bounded - layout.n_named)


def _layer(layer: int, moments: PairMoments) -> LayerPairs:
    left, variance = moments.unexplained()
    varies = variance >= MIN_VARIANCE
    both = varies & (left >= TWO_OPERAND)
    return LayerPairs(
        layer,
        left.numel(),
        float((~varies).double().mean()),
        float(both.double().mean()),
        float(left[varies].mean()) if bool(varies.any()) else None,
    )


@torch.no_grad()
def _memories(model: Transformer, sums: list[MemorySums], words: Ints, counts: Ints) -> tuple[list[Memory], int]:
    """Every quantifier's word, its lift and the lift's place among words about as frequent."""
    layout = model.config.feed_forward
    quantifiers = slice(2 * layout.n_pairs, layout.n_named)
    found: list[Memory] = []
    unmeasured = 0
    # The nulls of a word: its neighbours in order of frequency.
    order = np.argsort(counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    for layer, part in enumerate(sums):
        lifts, places = part.lifts()
        weights = promotion(model, model.layers[layer].feed_forward.down[:, quantifiers]).cpu()
        decay = model.decay(layer).cpu()
        for unit in range(layout.n_quantifiers):
            # Where m is hardly ever off, no word has enough places.
            enough = (places[:, unit] >= OCCURRENCES) & lifts[:, unit].isfinite()
            if int(enough.sum()) <= NULLS:
                unmeasured += 1
                continue
            ranked = torch.where(enough, weights[unit, torch.from_numpy(words)], -torch.inf)
            word = int(ranked.argmax())
            near = [int(i) for i in _neighbours(order, int(place[word])) if bool(enough[i])][:NULLS]
            lift = float(lifts[word, unit])
            rank = 1 + sum(float(lifts[i, unit]) >= lift for i in near)
            found.append(
                Memory(
                    str(Unit(layer, quantifiers.start + unit)),
                    int(words[word]),
                    half_life(float(decay[unit])),
                    lift,
                    int(places[word, unit]),
                    rank,
                )
            )
    return found, unmeasured


def _neighbours(order: Ints, place: int) -> Iterator[int]:
    """The other words, from the nearest in frequency outwards."""
    for step in range(1, len(order)):
        for at in (place - step, place + step):
            if 0 <= at < len(order):
                yield int(order[at])
