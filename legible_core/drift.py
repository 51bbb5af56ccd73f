"""Has a detector's ON rate moved since its scan? Counts by block of tokens against the rate that the scan measured.

    drift(0.043, [Counted(128, 9), Counted(128, 0), ...])       # Drift(rate, z, p, method, ...)

Tokens of a text are not independent: a detector is ON in bursts, and a text keeps to its matter. So the test takes
blocks of tokens as its units. With x_i ON of n_i tokens in block i, the rate is r = Σx / Σn, its error that of a ratio
over blocks, s² = B/(B-1) · Σ(x_i - r·n_i)² / (Σn)², and z = (r - r₀) / s against the normal law, two-sided. What it
assumes: blocks are independent of one another and there are many; whatever holds within a block is allowed for. Under
`MIN_BLOCKS` blocks, and where no block differs from another, it is the exact binomial test of the tokens instead, which
treats them as independent: where ON comes in bursts its p is too small, and the method says which test it was. The
scan's own error is not counted: a scan is far longer than what is watched, or the comparison is not worth much. Several
detectors are tested at once, so each p is also given after Holm's correction. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

MIN_BLOCKS = 30


@dataclass(frozen=True, slots=True)
class Counted:
    """A block: its tokens, and on how many of them the detector was ON."""

    tokens: int
    on: int


@dataclass(frozen=True, slots=True)
class Drift:
    """`rate` against the scan's `expected`; `p` two-sided, `adjusted` after Holm over the detectors tested with it.

    method: "blocks" (z by the blocks' own spread) or "binomial" (exact, tokens taken as independent).
    """

    tokens: int
    on: int
    rate: float
    expected: float
    z: float | None
    p: float
    adjusted: float
    method: Literal["blocks", "binomial"]


def drift(expected: float, blocks: Sequence[Counted]) -> Drift | None:
    """The test of one detector; None where nothing was read yet. Blocks without tokens are left out."""
    blocks = [block for block in blocks if block.tokens]
    tokens, on = sum(block.tokens for block in blocks), sum(block.on for block in blocks)
    if not tokens:
        return None
    rate = on / tokens
    squares = math.fsum((block.on - rate * block.tokens) ** 2 for block in blocks)
    if len(blocks) >= MIN_BLOCKS and squares > 0:
        error = math.sqrt(len(blocks) / (len(blocks) - 1) * squares) / tokens
        z = (rate - expected) / error
        p = math.erfc(abs(z) / math.sqrt(2.0))
        return Drift(tokens, on, rate, expected, z, p, p, "blocks")
    p = binomial_p(on, tokens, expected)
    return Drift(tokens, on, rate, expected, None, p, p, "binomial")


def corrected(found: Sequence[Drift | None]) -> list[Drift | None]:
    """The same with `adjusted` after Holm: the i-th smallest of m p-values times m - i + 1, never falling."""
    order = sorted((d.p, index) for index, d in enumerate(found) if d is not None)
    made, least = list(found), 0.0
    for place, (p, index) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - place)))
        drifted = made[index]
        assert drifted is not None
        made[index] = replace(drifted, adjusted=least)
    return made


def binomial_p(on: int, tokens: int, expected: float) -> float:
    """Two-sided exact p: twice the smaller tail of Binomial(tokens, expected), at most 1."""
    if expected <= 0.0 or expected >= 1.0:
        return 1.0 if on == (0 if expected <= 0.0 else tokens) else 0.0
    low, high = _tail(on, tokens, expected, down=True), _tail(on, tokens, expected, down=False)
    return min(1.0, 2.0 * min(low, high))


def _tail(on: int, tokens: int, expected: float, *, down: bool) -> float:
    """P(X ≤ on) or P(X ≥ on), the smaller side summed term by term outwards until terms add nothing more."""
    if down and on > tokens * expected:
        return 1.0 if on == tokens else 1.0 - _tail(on + 1, tokens, expected, down=False)
    if not down and on < tokens * expected:
        return 1.0 if on == 0 else 1.0 - _tail(on - 1, tokens, expected, down=True)
    log = math.lgamma(tokens + 1) - math.lgamma(on + 1) - math.lgamma(tokens - on + 1)
    log += on * math.log(expected) + (tokens - on) * math.log1p(-expected)
    term, total, k = math.exp(log), 0.0, on
    odds = expected / (1.0 - expected)
    while 0 <= k <= tokens and term > total * 1e-17:
        total += term
        term *= k / ((tokens - k + 1) * odds) if down else (tokens - k) / (k + 1) * odds
        k += -1 if down else 1
    return min(1.0, total)
