"""Two sentences of a minimal pair, token by token, and the prediction at which they part.

The tokens are those of the evaluation (`legible_core.evaluation.encode`): a sentence begins with a space, after the
end-of-text token where the vocabulary has one; so the sums are the log-likelihoods that `legible eval` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from legible_core.errors import LegibleError, NotExact, TooLarge
from legible_core.evaluation.encode import Encoder
from legible_core.reading import ReadingRequest

if TYPE_CHECKING:
    from legible_core.pipeline import Engine


@dataclass(frozen=True, slots=True)
class Judged:
    """Both sentences: what stands before them, their ids with natural log-probabilities, how many they share first.

    `fork` asks for the first token in which they differ, good against bad, after what they share; None where one
    sentence begins the other, so that there is no such token.
    """

    before: tuple[int, ...]
    good: tuple[tuple[int, float], ...]
    bad: tuple[tuple[int, float], ...]
    shared: int
    fork: ReadingRequest | None

    def to_json(self) -> dict[str, Any]:
        """As a job's result holds it; sums over all tokens."""
        return {
            "before": list(self.before),
            "good": [list(token) for token in self.good],
            "bad": [list(token) for token in self.bad],
            "shared": self.shared,
        }


def judge(engine: Engine, good: str, bad: str) -> Judged:
    """Score both sentences with the engine's model.

    Raises `LegibleError` for sentences that the tokenizer makes alike or cannot represent, `TooLarge` over the context.
    """
    if engine.tokenizer is None:
        raise LegibleError("This engine has no tokenizer, so it reads token ids only.", code="no_tokenizer")
    encoder = Encoder(engine.tokenizer, engine.config.context)
    before, ours = _tokens(encoder, good)
    other, theirs = _tokens(encoder, bad)
    if before != other:  # a vocabulary without end of text gives each sentence's first token, which is not scored
        raise LegibleError(
            "The sentences begin with different tokens and this vocabulary has no end-of-text token to stand before "
            "them, so their first tokens cannot be compared; let them begin alike.",
            code="no_context",
        )
    if ours == theirs:
        raise LegibleError("Both sentences have the same tokens, so nothing separates them.", code="same_tokens")
    for ids in (ours, theirs):
        if len(before) + len(ids) > engine.config.context:
            raise TooLarge(
                f"A sentence has {len(before) + len(ids)} tokens; this checkpoint reads at most "
                f"{engine.config.context}, so shorten it.",
                code="prompt_too_long",
            )
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    fork = None
    if shared is not None:
        fork = ReadingRequest(
            engine.checkpoint.hash, (*before, *ours[:shared]), position=len(before) + shared - 1,
            target=ours[shared], contrast=theirs[shared], dtype=engine.dtype,
        )  # fmt: skip
    return Judged(
        tuple(before),
        _scored(engine, before, ours),
        _scored(engine, before, theirs),
        min(len(ours), len(theirs)) if shared is None else shared,
        fork,
    )


def _tokens(encoder: Encoder, sentence: str) -> tuple[list[int], list[int]]:
    try:
        return encoder.split("", f" {sentence}")
    except LegibleError as error:
        message = error.message[:1].upper() + error.message[1:].rstrip(".")
        raise LegibleError(f"{message}; write the sentence differently.", code=error.code) from None


@torch.no_grad()
def _scored(engine: Engine, before: list[int], ids: list[int]) -> tuple[tuple[int, float], ...]:
    """Each token with its natural log-probability after those before it, off one trace."""
    trace, _, _ = engine.run(ReadingRequest(engine.checkpoint.hash, (*before, *ids), dtype=engine.dtype))
    logits = engine.model.logits(trace.residual[len(before) - 1 : -1]).double()
    logs = logits.log_softmax(-1).gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0]
    if not bool(torch.isfinite(logs).all()):
        raise NotExact("The model gives no finite probabilities on this sentence.", code="not_finite")
    return tuple(zip(ids, logs.tolist(), strict=True))
