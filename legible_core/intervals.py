"""Interval arithmetic of the legible operations, and what holds of them by construction; imports no torch.

    affine(rows, box, bias) → sigmoid → intersection, difference, existential, proportion      every value it can take
    directions(config, unit)        the operands in which a unit rises or falls
    reach("existential", λ, back)   how much a membership `back` tokens ago can still change a quantifier now

"Legible-by-Construction" section 6 names such properties as what bounded operations make it possible to state. The
proofs are in docs/bounds.md. Intervals are float64 and rounded outwards: each contains the exact value and the value
that a float32 forward computes, by the error bounds given at each operation (u = 2⁻²⁴, one rounding in float32).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError
from legible_core.reads import check_component, opens
from legible_core.units import Component, Unit

ROUNDING = 2.0**-24  # u: relative error of one float32 operation
ROUNDING_BF16 = 2.0**-8
TINY = 2.0**-126  # below it float32 is subnormal, or zero on devices that flush
Direction = Literal[-1, 1]


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, elementwise; arrays of one shape, float64."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, low: ArrayLike, high: ArrayLike) -> Interval:
        """Raises `LegibleError` when an end is no finite number or the ends are in the wrong order."""
        first, last = np.asarray(low, np.float64), np.asarray(high, np.float64)
        if first.shape != last.shape or not (np.isfinite(first) & np.isfinite(last) & (first <= last)).all():
            raise LegibleError(
                "An interval needs two finite ends, the lower one first, in every coordinate.", code="bad_interval"
            )
        return cls(first, last)

    @classmethod
    def around(cls, centre: ArrayLike, radius: float) -> Interval:
        """Everything within `radius` of `centre` in each coordinate; raises `LegibleError` for a radius below 0."""
        if not (math.isfinite(radius) and radius >= 0.0):
            raise LegibleError(f"The radius is {radius}; give a finite number, 0 or larger.", code="bad_interval")
        middle = np.asarray(centre, np.float64)
        return cls.of(middle - radius, middle + radius)

    def contains(self, values: ArrayLike) -> bool:
        """Whether every value lies inside."""
        found = np.asarray(values, np.float64)
        return bool(((self.low <= found) & (found <= self.high)).all())

    def wider(self, by: ArrayLike) -> Interval:
        """Both ends moved outwards, and at least by a subnormal."""
        more = np.asarray(by, np.float64) + TINY
        return Interval(self.low - more, self.high + more)

    def clip(self, low: float = 0.0, high: float = 1.0) -> Interval:
        """Both ends inside known bounds."""
        return Interval(np.clip(self.low, low, high), np.clip(self.high, low, high))

    @property
    def size(self) -> NDArray[np.float64]:
        """The largest absolute value inside."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


# ---- one operation after another -------------------------------------------------------------------------------------


def affine(rows: NDArray[np.float64], box: Interval, bias: NDArray[np.float64] | None = None) -> Interval:
    """⟨row, x⟩ + bias for every x of a box (d,) and every row (n, d).

    Each coordinate contributes the smaller and the larger of its two ends, which a linear map attains at the corners.
    Widened by (d + 4) u Σ|row||x|: more than the error of a float32 product summed in any order.
    """
    positive, negative = np.maximum(rows, 0.0), np.minimum(rows, 0.0)
    low = positive @ box.low + negative @ box.high
    high = positive @ box.high + negative @ box.low
    mass = np.abs(rows) @ box.size
    if bias is not None:
        low, high, mass = low + bias, high + bias, mass + np.abs(bias)
    return Interval(low, high).wider((rows.shape[-1] + 4) * ROUNDING * mass)


def sigmoid(z: Interval) -> Interval:
    """Memberships: σ is increasing. Widened by 8 u relatively: exp, a sum and a quotient, each within a unit or two."""
    low, high = _sigmoid(z.low), _sigmoid(z.high)
    return Interval(low * (1 - 8 * ROUNDING), high * (1 + 8 * ROUNDING)).wider(0.0).clip()


def intersection(a: Interval, b: Interval) -> Interval:
    """A·B of memberships: increasing in both."""
    return _rounded(Interval(a.low * b.low, a.high * b.high))


def difference(a: Interval, b: Interval) -> Interval:
    """A·(1 − B) of memberships: increasing in A, decreasing in B."""
    return _rounded(Interval(a.low * (1.0 - b.high), a.high * (1.0 - b.low)))


def existential(m: Interval, before: Interval, decay: NDArray[np.float64], tokens: int) -> Interval:
    """e = 1 − (1 − m)(1 − λe') for m and the state e' before: increasing in both. `tokens`: how many were read."""
    e = before.clip()
    low, high = (1.0 - (1.0 - m_) * (1.0 - decay * e_) for m_, e_ in ((m.low, e.low), (m.high, e.high)))
    return Interval(low, high).wider(state_error(tokens)).clip(0.0, 1.0 + state_error(tokens))


def proportion(m: Interval, before: Interval, decay: NDArray[np.float64], tokens: int) -> Interval:
    """p = (λ n' p' + m) / (λ n' + 1): increasing in m and p'; n' = Σ λ^i over the tokens before, tokens − 1 of them."""
    past = decay * counts(decay, tokens - 1)
    p = before.clip()
    low, high = ((past * p_ + m_) / (past + 1.0) for m_, p_ in ((m.low, p.low), (m.high, p.high)))
    return Interval(low, high).wider(state_error(tokens)).clip(0.0, 1.0 + state_error(tokens))


def scaled(a: Interval, slope: float, error: float) -> Interval:
    """a·s for a ≥ 0 and every s within `error` of `slope`: what a unit adds to a logit."""
    least, most = slope - error, slope + error
    return Interval(np.minimum(a.low * least, a.high * least), np.maximum(a.low * most, a.high * most))


def state_error(tokens: int) -> float:
    """How far a quantifier that a float32 scan computed over `tokens` tokens may lie from the exact one: (4T + 8) u."""
    return (4 * tokens + 8) * ROUNDING


def _rounded(interval: Interval) -> Interval:
    """A product of memberships as float32 forms it: 1 − B, the product, each rounded once."""
    return Interval(interval.low * (1 - 4 * ROUNDING) - 2 * ROUNDING, interval.high + 4 * ROUNDING).clip()


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -z))


# ---- memory ----------------------------------------------------------------------------------------------------------


def counts(decay: ArrayLike, tokens: int) -> NDArray[np.float64]:
    """n = Σ_{i<tokens} λ^i of a proportion, for every λ in [0, 1]: (1 − λ^tokens) / (1 − λ)."""
    kept = np.asarray(decay, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = -np.expm1(tokens * np.log(kept)) / (1.0 - kept)
    return np.where(kept >= 1.0, float(tokens), found) if tokens > 0 else np.zeros_like(kept)


def reach(kind: str, decay: float, back: int, tokens: int | None = None) -> float:
    """The largest change that any change of the membership `back` tokens ago can make to a quantifier now.

    existential: λ^back, whatever stands between. proportion: λ^back / n_t, n_t over the `tokens` read so far; None is
    the loosest case, where the changed token is the text's first. 0 where the text does not go back so far.
    Raises `LegibleError` for other kinds, a λ outside [0, 1] or a negative distance.
    """
    if kind not in ("existential", "proportion"):
        raise LegibleError(
            f"A unit of kind {kind} remembers nothing; the reach is a quantifier's.", code="bad_component"
        )
    if not 0.0 <= decay <= 1.0 or back < 0:
        raise LegibleError(
            f"The reach needs a decay from 0 to 1 and a distance from 0; it got {decay} and {back}.", code="bad_reach"
        )
    if tokens is not None and back >= tokens:
        return 0.0
    change = decay**back
    if kind == "proportion":
        change /= float(counts(decay, back + 1 if tokens is None else tokens))
    return change


def reach_here(kind: str, m: ArrayLike, decay: float) -> NDArray[np.float64]:
    """The same for the memberships m (t,) of one text, all others as they are: entry k for the token k before the last.

    existential: λ^k Π_{j<k}(1 − m_{t−j}) (1 − λ e_{t−k−1}), what later tokens that are ON and earlier ones that are
    remembered leave of λ^k. A proportion forgets alike whatever it holds, so it is `reach`.
    """
    values = np.asarray(m, np.float64)
    length = len(values)
    if kind == "proportion":
        return np.array([reach(kind, decay, back, length) for back in range(length)])
    before = np.zeros(length)  # e of the token before
    for index in range(1, length):
        before[index] = 1.0 - (1.0 - values[index - 1]) * (1.0 - decay * before[index - 1])
    kept, found = 1.0, np.zeros(length)
    for back in range(length):
        index = length - 1 - back
        found[back] = kept * (1.0 - decay * before[index])
        kept *= decay * (1.0 - values[index])
    return found


def tokens_until(kind: str, decay: float, change: float = 0.01) -> int | None:
    """From how many tokens back on no membership can change a quantifier by more than `change`; None: never so.

    Solves `reach` ≤ change for the loosest case: λ^k ≤ c, or λ^k (1 − λ) / (1 − λ^(k+1)) ≤ c.
    """
    if decay >= 1.0:
        return math.ceil(1.0 / change) - 1 if kind == "proportion" else None
    if decay <= 0.0:
        return 1
    level = change if kind == "existential" else change / (1.0 - decay + change * decay)
    back = max(0, math.ceil(math.log(level) / math.log(decay)))
    return back if reach(kind, decay, back) <= change else back + 1


# ---- order -----------------------------------------------------------------------------------------------------------


def directions(config: ModelConfig, unit: Unit) -> tuple[tuple[Component, Direction], ...]:
    """In which operands a unit rises (+1) or falls (−1) as the operand rises, whatever the others are.

    A∩B rises in both; A∖B rises in A and falls in B; a quantifier rises in every m, past and present; sigmoid, softplus
    and ReLU rise in their own pre-activation (the unit's id stands for it). GELU is not order-preserving: ().
    Its write to a token goes the same way where the column's slope to the token is positive, the other way where not.
    Raises `NotFound` for a unit that does not exist.
    """
    check_component(config, unit)
    kind = config.feed_forward.kind(unit.unit)
    if kind == "gelu":
        return ()
    operands = opens(config, unit)
    if kind == "difference":
        return (operands[0], 1), (operands[1], -1)
    return tuple((operand, 1) for operand in operands or (unit,))
