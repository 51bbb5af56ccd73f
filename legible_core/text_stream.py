"""Bytes of a text as they arrive → tokens with their places in the stream; imports no torch.

    stream = TextStream(tokenizer)
    for piece in pieces:                    # cut anywhere, also in the middle of a character
        tokens = stream.feed(piece)         # StreamToken(id, offset) of what is certain by now
    tokens = stream.end()                   # the rest

The tokens are those of the whole text at once, for tokenizers of GPT-2's kind: their pre-tokens never go on from
something visible into a space, so what stands before such a place is certain once the space is there. What follows the
last such place is held back until more arrives. A run without any space is cut after `LONGEST_RUN` characters, where
the tokens may differ from those of the whole text.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legible_core.errors import LegibleError
from legible_core.tokens import Tokenizer

LONGEST_RUN = 4096
# What is tokenised at once stays under the tokenizer's own limit on a text.
PIECE = 200_000
_EDGE = re.compile(r"(?<=\S)(?=\s)")


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A token and the offset in bytes, from the start of the stream, at which it begins."""

    id: int
    offset: int


def left_out(text: str) -> list[int]:
    """Where, in the bytes of a text with CR LF read as LF, a CR was left out: at which LF, in order."""
    found, place = [], 0
    lines = text.encode().split(b"\n")
    for line in lines[:-1]:
        kept = line.removesuffix(b"\r")
        place += len(kept)
        found += [place] if len(kept) < len(line) else []
        place += 1
    return found


def as_sent(offset: int, left: Sequence[int]) -> int:
    """An offset within the text with CR LF read as LF → the one within the text as it was sent; `left` of `left_out`.

    Each CR LF before a token moves it on by the byte that was left out.
    """
    return offset + bisect_right(left, offset - 1)


class TextStream:
    """Turns one stream of UTF-8 into tokens. `state` and `restore` carry it over to another process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._held = ""  # decoded, not tokenised yet
        self._offset = 0  # of the first held character in the stream
        self._received = 0

    @property
    def received(self) -> int:
        """Bytes taken in so far; what begins no character was not taken in."""
        return self._received

    @property
    def unfinished(self) -> bytes:
        """The first bytes of a character whose others have not arrived."""
        return bytes(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> list[StreamToken]:
        """The tokens that are certain once `data` is there.

        Raises `LegibleError` for bytes that are no UTF-8, naming where in the stream; `end` then gives the tokens of
        what stands before them.
        """
        before = len(self.unfinished)
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError as error:
            place = self._received - before + error.start
            good = (self.unfinished + data)[: error.start]
            self._decoder.reset()
            self._held += good.decode("utf-8")
            self._received = place
            raise LegibleError(
                f"The stream is not UTF-8 text: byte {place:,} ({error.object[error.start]:02x}) begins no character; "
                "what stands before it was read.",
                code="bad_text",
                hint="Send UTF-8.",
                status=422,
            ) from None
        self._received += len(data)
        self._held += text
        edges = [match.start() for match in _EDGE.finditer(self._held)]
        sure = edges[-1] if edges else 0
        # A long run without spaces cannot be held for ever; never cut between the two of CR LF.
        if len(self._held) - sure > LONGEST_RUN:
            sure = len(self._held) - (1 if self._held.endswith("\r") else 0)
        return self._take(sure, edges)

    def end(self) -> list[StreamToken]:
        """The tokens of everything that is held back; an unfinished character (`unfinished`) has none."""
        edges = [match.start() for match in _EDGE.finditer(self._held)]
        return self._take(len(self._held), edges)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, as JSON."""
        return {
            "held": self._held,
            "offset": self._offset,
            "received": self._received,
            "unfinished": self.unfinished.hex(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another stream's `state` left off."""
        self._held, self._offset, self._received = str(state["held"]), int(state["offset"]), int(state["received"])
        self._decoder.reset()
        self._decoder.decode(bytes.fromhex(state["unfinished"]))

    def _take(self, length: int, edges: Sequence[int]) -> list[StreamToken]:
        """The tokens of the first `length` held characters, cut at edges where that is needed."""
        found: list[StreamToken] = []
        start = 0
        while start < length:
            stop = length
            if stop - start > PIECE:
                place = bisect_right(edges, start + PIECE) - 1
                stop = edges[place] if place >= 0 and edges[place] > start else start + PIECE
            found += self._tokens(self._held[start:stop])
            start = stop
        self._held = self._held[length:]
        return found

    def _tokens(self, text: str) -> list[StreamToken]:
        ids = self.tokenizer.encode(text)
        lengths = [len(self.tokenizer.token_bytes(index)) for index in ids]
        plain = text.replace("\r\n", "\n").encode()
        first, self._offset = self._offset, self._offset + len(text.encode())
        if sum(lengths) != len(plain):
            # A tokenizer that changes the text: where within this piece a token stands is not known.
            return [StreamToken(index, first) for index in ids]
        left = left_out(text) if "\r\n" in text else []
        found, place = [], 0
        for index, length in zip(ids, lengths, strict=True):
            found.append(StreamToken(index, first + as_sent(place, left)))
            place += length
        return found
