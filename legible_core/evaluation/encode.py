"""A question as rows of tokens, with lm-evaluation-harness's tokenisation and context limit; imports no torch.

A row is what one forward scores: its tokens, of which the model is given all but the last, and how many of the last
ones count. The rules are those of the harness's causal models:
- a continuation's tokens are those that context + continuation has beyond the context's own; spaces that end the
  context count as the continuation's;
- an empty context is the end-of-text token, or, in a vocabulary without one, the first token, which is then not scored;
- a question longer than the context loses tokens of its context on the left;
- a text longer than the context is cut into windows that predict each token once, the last with a full context. A
  continuation that is itself longer than the context, which the harness refuses, is cut likewise.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from legible_core.errors import LegibleError
from legible_core.naming.corpus import END_OF_TEXT, PIECE, pieces
from legible_core.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Row:
    """At least two tokens, of which the last `scored` are predicted from those before them."""

    tokens: tuple[int, ...]
    scored: int


class Encoder:
    """Texts to rows, for one tokenizer and one context length."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.prefix = tokenizer.find(END_OF_TEXT)
        self.shortened = 0
        self._bytes = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]

    def pair(self, context: str, continuation: str) -> list[Row]:
        """The rows of one question: one, unless the continuation alone is longer than the context."""
        return self.rows(*self.split(context, continuation))

    def split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of context and continuation, both with at least one.

        Raises `LegibleError` when the tokenizer has no tokens for the continuation.
        """
        if not context:
            ids = self.encode(continuation)
            if self.prefix is not None and ids[:1] != [self.prefix]:
                before, after = [self.prefix], ids
            else:
                before, after = ids[:1], ids[1:]
        else:
            spaces = len(context) - len(context.rstrip())
            if spaces:
                context, continuation = context[:-spaces], context[-spaces:] + continuation
            if not context:
                return self.split("", continuation)
            before = self.encode(context)
            after = self.encode(context + continuation)[len(before) :]
        if not before or not after:
            raise LegibleError(
                f"the tokenizer leaves no token of {_short(continuation)!r} to be predicted", code="not_representable"
            )
        return before, after

    def rows(self, before: list[int], after: list[int]) -> list[Row]:
        """`pair` for token ids."""
        if len(after) > self.context:
            self.shortened += 1
            return windows(before[-1], after, self.context)
        tokens = before + after
        if len(tokens) > self.context + 1:
            self.shortened += 1
            tokens = tokens[-(self.context + 1) :]
        return [Row(tuple(tokens), len(after))]

    def rolling(self, text: str) -> list[Row]:
        """The windows of a text, each token predicted once; none for a text without tokens."""
        ids = self.encode(text)
        if self.prefix is not None:
            return windows(self.prefix, ids, self.context)
        return windows(ids[0], ids[1:], self.context) if ids else []

    def encode(self, text: str) -> list[int]:
        """The ids of a text; raises `LegibleError` when they do not stand for it."""
        ids = [index for piece in pieces(text, PIECE) for index in self.tokenizer.encode(piece)]
        if b"".join(map(self._bytes.__getitem__, ids)) != text.encode("utf-8") and not self._same(text, ids):
            lost = next((c for c in text if not c.isspace() and not self._same(c, self.tokenizer.encode(c))), None)
            what = f"the character {lost!r}" if lost is not None else repr(_short(text))
            raise LegibleError(f"the tokenizer cannot represent {what}", code="not_representable")
        return ids

    def _same(self, text: str, ids: list[int]) -> bool:
        """Whether tokens that are not a text's exact bytes still spell it, spaces, case and normal form aside."""
        return _bare(self.tokenizer.decode(ids)) == _bare(text)


def windows(first: int, targets: list[int], context: int) -> list[Row]:
    """Rows that predict each of `targets` once: `first` before them, at most `context` inputs each.

    The first window predicts as many as fit; the last one is filled up on its left with tokens already predicted.
    """
    tokens = [first, *targets]
    rows, done = [], 0
    while done < len(targets):
        count = min(context, len(targets) - done)
        end = done + count + 1
        rows.append(Row(tuple(tokens[max(0, end - context - 1) : end]), count))
        done += count
    return rows


def _bare(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
