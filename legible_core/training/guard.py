"""The guard: stops a run that diverges, and only then; notes an isolated spike and lets the run go on.

"Legible-by-Construction" appendix A.3: binarised operators throw isolated spikes of the instantaneous perplexity that
mean nothing (1-2 % of the windows of a healthy run above 100, single ones near 6000, while the running value stays at
31); the reliable sign of divergence is a cumulative perplexity that rises and stays up (85 to 230 in the membership
head-75 run), with an instantaneous one that is sustained in the hundreds.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

# What counts as a spike: at least twice the perplexity of the middle step of the last ones, and this many of their
# deviations (1.4826 × the median absolute deviation, which is σ of a normal distribution) above it.
SPIKE_FACTOR = 2.0
SPIKE_DEVIATIONS = 6.0
SPIKE_AFTER = 20
# Losses that a mean must rest on before it counts as the lowest.
SURE_AFTER = 10
# The last steps whose middle one tells a rise at a run's end from what a spike left in the mean.
LATEST = 10


@dataclass
class Guard:
    """Follows the cumulative perplexity: the exponential of a long running mean of the loss.

    The mean forgets with a horizon of `horizon` steps, so that the descent of the first steps does not hide a later
    rise. A run is stopped when both hold, or when a loss is not finite:

    - the cumulative perplexity has stood more than `tolerance` above its lowest value for `patience` steps on end;
    - so do the steps themselves: the middle one of the last `patience` losses is as high. What one window or a burst of
      them leaves in the mean therefore never stops a run, however high it was.

    The lowest value is taken from where the mean rests on ten losses, since that of a first step or two is chance.
    During the first `settle` steps only a loss that is not finite stops the run: one that begins from decayed weights
    rises while its rate warms up, and that is no divergence.
    """

    horizon: int = 100
    tolerance: float = 0.15
    patience: int = 100
    settle: int = 0
    mean: float | None = None
    lowest: float = math.inf
    above: int = 0
    steps: int = 0
    recent: list[float] = field(default_factory=list)
    spike: str | None = None

    def observe(self, loss: float) -> str | None:
        """Take one step's loss in nats; a sentence when the run must stop, else None.

        Afterwards `spike` is a sentence when this step was an isolated spike, else None.
        """
        self.spike = None
        if not math.isfinite(loss):
            return f"the loss is {loss}, not a finite number"
        self.spike = self._spike(loss)
        self.steps += 1
        # The plain mean of the first `horizon` steps, an exponential one afterwards.
        weight = 1.0 / min(self.steps, self.horizon)
        self.mean = loss if self.mean is None else self.mean + weight * (loss - self.mean)
        self.recent = [*self.recent[-self.patience + 1 :], loss]
        unsure = self.steps <= max(self.settle, SURE_AFTER)
        self.lowest = self.mean if unsure else min(self.lowest, self.mean)
        bound = self.lowest + math.log1p(self.tolerance)
        self.above = self.above + 1 if self.mean > bound else 0
        if self.above >= self.patience and statistics.median(self.recent) > bound:
            return (
                f"the cumulative perplexity has risen from {_perplexity(self.lowest):.1f} to {self.perplexity:.1f} "
                f"and stayed more than {self.tolerance:.0%} up for {self.patience} steps: the run diverges"
            )
        return None

    @property
    def perplexity(self) -> float:
        """Cumulative perplexity so far; infinite before the first step."""
        return math.inf if self.mean is None else _perplexity(self.mean)

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint saved now counts as a good one."""
        return self.above == 0

    @property
    def rising(self) -> bool:
        """Whether the mean stands too high and so do the latest steps; what a spike or a short burst leaves is none.

        Asked at a run's end, after which no step can tell whether a rise would have stayed.
        """
        bound = self.lowest + math.log1p(self.tolerance)
        return not self.healthy and statistics.median(self.recent[-LATEST:]) > bound

    def to_json(self) -> dict[str, Any]:
        """What `load` needs to go on with the same verdicts."""
        return {
            "mean": self.mean,
            "lowest": None if math.isinf(self.lowest) else self.lowest,
            "above": self.above,
            "steps": self.steps,
            "settle": self.settle,
            "recent": self.recent,
        }

    def load(self, data: Any) -> None:
        """Go on from what `to_json` gave; a state of before there was `recent` starts it anew.

        Raises `ValueError` for what `to_json` did not give.
        """
        try:
            mean, lowest, recent = data["mean"], data["lowest"], data.get("recent", [])
            counts = data["above"], data["steps"], data.get("settle", 0)
            losses = [*recent, *(value for value in (mean, lowest) if value is not None)]
        except (KeyError, TypeError, AttributeError):
            raise ValueError("it has no guard") from None
        if any(type(count) is not int for count in counts) or any(type(loss) not in (int, float) for loss in losses):
            raise ValueError("its guard holds what is no number")
        self.above, self.steps, self.settle = counts
        self.mean, self.recent = mean, list(recent)
        self.lowest = math.inf if lowest is None else lowest

    def _spike(self, loss: float) -> str | None:
        """The sentence about a loss far above the last ones, which are judged without it."""
        if len(self.recent) < min(SPIKE_AFTER, self.patience):
            return None
        middle = statistics.median(self.recent)
        deviation = 1.4826 * statistics.median(abs(value - middle) for value in self.recent)
        if loss - middle <= max(math.log(SPIKE_FACTOR), SPIKE_DEVIATIONS * deviation):
            return None
        return (
            f"perplexity {_perplexity(loss):.1f} in one step, with {_perplexity(middle):.1f} in the middle of the last "
            f"{len(self.recent)} and {self.perplexity:.1f} cumulative"
        )


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))
