"""The guard: stops a run that diverges, and only then.

"Legible-by-Construction" appendix A.3: binarised operators throw isolated spikes of the instantaneous perplexity that
mean nothing; the reliable sign of divergence is a cumulative perplexity that rises and keeps rising.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass
class Guard:
    """Follows the cumulative perplexity: the exponential of a long running mean of the loss.

    The mean forgets with a horizon of `horizon` steps, so that the descent of the first steps does not hide a later
    rise. A run is stopped when the cumulative perplexity has stood more than `tolerance` above its lowest value for
    `patience` steps on end, or when a loss is not finite. One window, however high, moves a mean of this horizon by a
    few per cent at most and the patience outlasts what it leaves behind. During the first `settle` steps only a loss that
    is not finite stops it: a run that begins from decayed weights rises while its rate warms up, and that is no divergence.
    """

    horizon: int = 100
    tolerance: float = 0.15
    patience: int = 100
    settle: int = 0
    mean: float | None = None
    lowest: float = math.inf
    above: int = 0
    steps: int = 0

    def observe(self, loss: float) -> str | None:
        """Take one step's loss in nats; a sentence when the run must stop, else None."""
        if not math.isfinite(loss):
            return f"the loss of step {self.steps} is {loss}, not a finite number"
        self.steps += 1
        # The plain mean of the first `horizon` steps, an exponential one afterwards.
        weight = 1.0 / min(self.steps, self.horizon)
        self.mean = loss if self.mean is None else self.mean + weight * (loss - self.mean)
        self.lowest = self.mean if self.steps <= self.settle else min(self.lowest, self.mean)
        self.above = self.above + 1 if self.mean > self.lowest + math.log1p(self.tolerance) else 0
        if self.above >= self.patience:
            return (
                f"the cumulative perplexity has risen from {math.exp(self.lowest):.1f} to {self.perplexity:.1f} "
                f"and stayed more than {self.tolerance:.0%} up for {self.patience} steps: the run diverges"
            )
        return None

    @property
    def perplexity(self) -> float:
        """Cumulative perplexity so far; infinite before the first step."""
        return math.inf if self.mean is None else math.exp(min(self.mean, 700.0))

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint saved now counts as a good one."""
        return self.above == 0

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "lowest": None if math.isinf(self.lowest) else self.lowest,
            "above": self.above,
            "steps": self.steps,
            "settle": self.settle,
        }

    def load(self, data: dict[str, Any]) -> None:
        self.mean, self.above, self.steps = data["mean"], data["above"], data["steps"]
        self.settle = data.get("settle", 0)
        self.lowest = math.inf if data["lowest"] is None else data["lowest"]
