"""A corpus as one stream of token ids; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from legible_core.errors import LegibleError
from legible_core.tokens import Tokenizer

END_OF_TEXT = b"<|endoftext|>"
# A piece of a document that is tokenised at once: at most four bytes a character keep it under the tokenizer's limit.
PIECE = 200_000


def token_stream(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    *,
    limit: int | None = None,
    between: Callable[[int], None] | None = None,
    ends: bytes | None = END_OF_TEXT,
) -> tuple[NDArray[np.int64], int | None]:
    """The ids of all documents, each closed by the end-of-text token where the vocabulary has one, and that token.

    limit: stop after this many tokens. ends: the bytes of the token that ends a text. between: called with the number
    of tokens so far, after each piece of text.
    Raises `LegibleError` when there is no text at all.
    """
    end = None if ends is None else tokenizer.find(ends)
    parts: list[NDArray[np.int32]] = []
    total = 0
    for document in documents:
        for piece in pieces(document):
            parts.append(np.asarray(tokenizer.encode(piece), np.int32))
            total += len(parts[-1])
            if between is not None:
                between(total)
            if limit is not None and total >= limit:
                break
        if end is not None:
            parts.append(np.array([end], np.int32))
            total += 1
        if limit is not None and total >= limit:
            break
    if total == 0:
        raise LegibleError("The corpus holds no text.", code="bad_corpus")
    return np.concatenate(parts)[:limit].astype(np.int64), end


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """The text in pieces of at most `size` characters that join to it again.

    Cut between the two newlines of a blank line where there is one, which is where a byte-level tokenizer cuts anyhow;
    else after a newline, else before a space.
    """
    start = 0
    while len(text) - start > size:
        blank = text.rfind("\n\n", start + 1, start + size)
        line = text.rfind("\n", start + 1, start + size)
        space = text.rfind(" ", start + 1, start + size)
        cut = blank + 1 if blank > 0 else line + 1 if line > 0 else space if space > 0 else start + size
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]
