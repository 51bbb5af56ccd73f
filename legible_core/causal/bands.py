"""What checks.json holds: how total and direct effects compare on held-out predictions of one checkpoint.

    windows = spread_windows(ids, length, count)
    measured = measure(engine, windows, sample=200, seed=0)       # a `Checks` without the necessity of sets

Positions are drawn from windows of held-out text, each with at least `BEFORE` tokens before it; the target is the
token the checkpoint itself predicts there. Checked are the leading contributions of each, and as many others drawn at
random among the rest, so that the agreement of attribution with ablation can be told by the share of the drive that a
component has (its |term| over Σ|terms|). The bands come from the leading ones alone, for that is where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from legible_core import attribution as sums
from legible_core.causal.checks import NOISE, Effect, effects_of, rerun_of, variants_of
from legible_core.causal.records import HALVES, METHODS, Band, Checks, Means, half_of
from legible_core.causal.sets import SEEDS, SIZES, held_out, removals
from legible_core.errors import LegibleError
from legible_core.naming.observe import window_starts
from legible_core.reading import ReadingRequest

if TYPE_CHECKING:
    from legible_core.pipeline import Engine, Solved

Ints = NDArray[np.int64]
BEFORE = 16
# Positions read in one window: its trace is made once.
PER_WINDOW = 4
MAX_SAMPLE = 20_000
MAX_WINDOW = 256
# Lower edges of the shares of the drive that the agreement is told by.
SHARES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
# A band of fewer checks than this says nothing of its 5 % tails.
LEAST = 40


@dataclass(frozen=True)
class Place:
    """A prediction to check: the tokens before it (its own position is the last), and where it stands."""

    ids: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class Seen:
    """One check: the component's layer, whether it leads, its share of the drive, and what its removal did."""

    layer: int
    leads: bool
    share: float
    effect: Effect


def windows_of(ids: Ints, length: int, count: int) -> list[Ints]:
    """`count` windows of `length` tokens, evenly spaced over a stream; raises `LegibleError` for too short a text."""
    available = len(ids) // length
    if available < count:
        raise LegibleError(
            f"The corpus has {len(ids):,} tokens, enough for {available} windows of {length}; {count} are needed, so "
            "give a longer text or a smaller --sample.",
            code="short_corpus",
        )
    return [ids[start : start + length] for start in window_starts(len(ids), length, count)]


def places(ids: Ints, context: int, sample: int, seed: int) -> Iterator[Place]:
    """`sample` held-out predictions, window by window. Raises `LegibleError` for a sample out of range."""
    if not 1 <= sample <= MAX_SAMPLE:
        raise LegibleError(f"--sample is {sample}; it must be from 1 to {MAX_SAMPLE:,}.", code="bad_sample")
    length = min(context, MAX_WINDOW)
    first = min(BEFORE, length - 1)
    generator = np.random.default_rng(seed)
    per = min(PER_WINDOW, length - first)
    left = sample
    for window in windows_of(ids, length, -(-sample // per)):
        chosen = np.sort(generator.choice(np.arange(first, length), min(per, left), replace=False))
        left -= len(chosen)
        for position in chosen.tolist():
            yield Place(tuple(window.tolist()), position)


@torch.no_grad()
def measure(
    engine: Engine,
    ids: Ints,
    *,
    sample: int,
    top: int = 20,
    seed: int = 0,
    said: dict[str, Any] | None = None,
    between: Callable[[int, int], None] = lambda done, of: None,
) -> Checks:
    """Means, bands and agreement over `sample` predictions of a held-out stream of token ids.

    said: what the record says of the corpus. between: called after every prediction with how many are done.
    """
    found = list(places(ids, engine.config.context, sample, seed))
    means = mean_activations(engine, [place.ids for place in found])
    generator = np.random.default_rng(seed + 1)
    first = Checks(engine.checkpoint.hash, {}, means, {})
    seen: list[Seen] = []
    for number, place in enumerate(found, 1):
        request = ReadingRequest(engine.checkpoint.hash, place.ids, place.position, dtype=engine.dtype)
        solved = engine.solve(request)
        seen += _checked(engine, request, solved, first, top, generator)
        between(number, len(found))
    sample_said = {
        **(said or {}),
        "predictions": len(found),
        "windows": len({place.ids for place in found}),
        "window": len(found[0].ids),
        "top": top,
        "seed": seed,
        "dtype": engine.dtype,
    }
    return Checks(engine.checkpoint.hash, sample_said, means, bands_of(seen, engine.config.n_layers), agreement(seen))


@torch.no_grad()
def mean_activations(engine: Engine, windows: Sequence[tuple[int, ...]]) -> Means:
    """The mean of every hidden unit and of every coordinate of z over all tokens of some windows."""
    config = engine.config
    units = torch.zeros(config.n_layers, config.feed_forward.d_ff, dtype=torch.float64)
    channels = torch.zeros(config.n_layers, config.n_heads, config.d_head, dtype=torch.float64)
    tokens = 0
    for ids in dict.fromkeys(windows):
        trace, _, _ = engine.run(ReadingRequest(engine.checkpoint.hash, ids, dtype=engine.dtype))
        tokens += len(ids)
        for index, layer in enumerate(trace.layers):
            units[index] += layer.hidden.double().sum(0).cpu()
            channels[index] += layer.z.double().sum(0).cpu()
    return Means(tokens, (units / tokens).float().numpy(), (channels / tokens).float().numpy())


@torch.no_grad()
def necessity_of(
    engine: Engine,
    ids: Ints,
    *,
    sample: int,
    floor: float,
    seed: int = 0,
    seeds: int = SEEDS,
    sizes: Sequence[int] = SIZES,
    between: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Necessity over those of `sample` held-out predictions whose probability is at least `floor`.

    Raises `LegibleError` when none is that confident.
    """
    rows = []
    found = list(places(ids, engine.config.context, sample, seed))
    for number, place in enumerate(found, 1):
        request = ReadingRequest(engine.checkpoint.hash, place.ids, place.position, dtype=engine.dtype)
        _, _, logits = engine.run(request)
        if float(torch.softmax(logits.double(), 0).max()) >= floor:
            rows.append(removals(engine, request, sizes=sizes, seeds=seeds, seed=seed + number)[1:])
        between(number, len(found))
    if not rows:
        raise LegibleError(
            f"None of the {len(found)} predictions has a probability of {floor} or more; lower --floor or look at more "
            "with --sample.",
            code="none_confident",
        )
    return {
        "looked": len(found),
        "predictions": len(rows),
        "floor": floor,
        "seeds": seeds,
        "seed": seed,
        "rows": held_out(rows, sizes),
    }


def _checked(
    engine: Engine,
    request: ReadingRequest,
    solved: Solved,
    measured: Checks,
    top: int,
    generator: np.random.Generator,
) -> list[Seen]:
    """The leading contributions with every variant, and as many others with their zero alone."""
    terms, config = solved.terms, engine.config
    leading = sums.strongest(terms, top)
    rest = _others(terms.heads.shape, terms.units.shape, set(leading), top, generator)
    variants = [v for one in leading for v in variants_of(config, *one, measured.means)]
    leads = len(variants)
    variants += [variants_of(config, *one, None)[0] for one in rest]
    effects, _ = effects_of(engine, solved, rerun_of(engine, solved), variants, measured)
    found = []
    for number, effect in enumerate(effects):
        v = effect.variant
        term = (terms.heads if v.sort == "head" else terms.units)[v.layer, v.index]
        found.append(Seen(v.layer, number < leads, float(abs(term)) / terms.mass, effect))
    return found


def _others(
    heads: tuple[int, ...],
    units: tuple[int, ...],
    leading: set[tuple[str, int, int]],
    count: int,
    generator: np.random.Generator,
) -> list[tuple[str, int, int]]:
    n_heads, n_units = heads[0] * heads[1], units[0] * units[1]
    found: list[tuple[str, int, int]] = []
    for flat in generator.permutation(n_heads + n_units)[: count + len(leading)].tolist():
        one = (
            ("head", flat // heads[1], flat % heads[1])
            if flat < n_heads
            else ("unit", (flat - n_heads) // units[1], (flat - n_heads) % units[1])
        )
        if one not in leading and len(found) < count:
            found.append(one)
    return found


# ---- what is made of the checks --------------------------------------------------------------------------------------


def bands_of(seen: Sequence[Seen], n_layers: int) -> dict[str, dict[str, Band]]:
    """For every method and half of the stack the band of the leading contributions; none from too few checks."""
    found: dict[str, dict[str, Band]] = {}
    for method in METHODS:
        rows: dict[str, Band] = {}
        for half in HALVES:
            chosen = [
                s.effect
                for s in seen
                if s.leads and s.effect.variant.method == method and half in ("all", half_of(s.layer, n_layers))
            ]
            chosen = [e for e in chosen if abs(e.direct) > NOISE]
            if len(chosen) >= LEAST:
                rows[half] = _band(chosen)
        if rows:
            found[method] = rows
    return found


def agreement(seen: Sequence[Seen]) -> dict[str, Any]:
    """How removal by zero agrees with attribution: over all checks, over the leading ones, by share of the drive."""
    zeroed = [s for s in seen if s.effect.variant.method == "zero"]
    shares = []
    for low, high in zip(SHARES, (*SHARES[1:], 1.0), strict=True):
        inside = [s.effect for s in zeroed if low <= s.share < high]
        shares.append({"from": low, "to": high, **_agreement(inside)})
    return {
        "all": _agreement([s.effect for s in zeroed]),
        "leading": _agreement([s.effect for s in zeroed if s.leads]),
        "by_share": shares,
    }


def _agreement(effects: Sequence[Effect]) -> dict[str, Any]:
    chosen = [e for e in effects if abs(e.direct) > NOISE]
    band = _band(chosen) if len(chosen) >= 2 else None
    return {
        "n": len(effects),
        "r": None if band is None else band.r,
        "sign_agrees": None if band is None else 1.0 - band.sign,
        "median_ratio": None if band is None else band.median,
    }


def _band(effects: Sequence[Effect]) -> Band:
    total = np.array([e.total for e in effects])
    direct = np.array([e.direct for e in effects])
    low, median, high = np.quantile(total / direct, (0.05, 0.5, 0.95)).tolist()
    spread = float(total.std() * direct.std())
    r = float(((total - total.mean()) * (direct - direct.mean())).mean() / spread) if spread > 0 else None
    return Band(
        n=len(effects),
        low=low,
        median=median,
        high=high,
        sign=float((np.sign(total) != np.sign(direct)).mean()),
        slope=float((total * direct).sum() / (direct * direct).sum()),
        r=r,
    )
