"""How a checkpoint goes on with a text: how many tokens, how they are chosen, and the limits; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from legible_core.errors import LegibleError, TooLarge

MAX_TOKENS = 256
MAX_TEMPERATURE = 5.0
MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """`tokens` are written, each the most probable one (temperature 0) or drawn from softmax(logits / temperature).

    Nothing is cut off the distribution. Each draw depends on the seed and its place alone, so that a continuation which
    was interrupted goes on as it would have. Raises `LegibleError` for settings outside the limits.
    """

    tokens: int = 32
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MAX_TOKENS:
            raise LegibleError(
                f"{self.tokens} tokens cannot be written at once; ask for 1 to {MAX_TOKENS}.", code="bad_tokens"
            )
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise LegibleError(
                f"The temperature {self.temperature:g} is outside 0 (always the most probable token) "
                f"to {MAX_TEMPERATURE:g}.",
                code="bad_temperature",
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise LegibleError(f"The seed {self.seed} is outside 0 to {MAX_SEED}.", code="bad_seed")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def fit(self, length: int, context: int) -> Sampling:
        """As many of the tokens as a text of this length leaves room for; raises `TooLarge` where that is none."""
        if not length:
            raise LegibleError("The text is empty; type at least one character.", code="empty_prompt")
        if length >= context:
            raise TooLarge(
                f"The text has {length} tokens; this checkpoint reads {context} and needs room for one more, "
                "so shorten it.",
                code="prompt_too_long",
            )
        return Sampling(min(self.tokens, context - length), self.temperature, self.seed)
