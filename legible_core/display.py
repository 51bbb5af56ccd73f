"""Bytes of a token → the chip that a person sees; imports no torch.

    b" worst"        ·worst           every space is a middle dot
    b"\\n" b"\\t" b"\\r"   ↵ ⇥ ␍
    b" \\xe2\\x80"     ·⟨e2 80⟩         bytes that are no whole character
    b"\\x00"          ⟨00⟩             control bytes
    b"\\xe2\\x80\\xae"  ⟨U+202E⟩         characters without a picture: direction marks, joiners, private use
    <|endoftext|>    ⟨endoftext⟩      special tokens

Chips are for eyes only: two tokens may share one. The id, or the exact bytes, is what identifies a token.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator

_NAMED = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_SPECIAL = re.compile(r"<\|([^<>|]+)\|>|<([^<>|]+)>|\[([^\[\]]+)\]", re.DOTALL)


def chip(data: bytes) -> str:
    """What an ordinary token looks like; never empty unless `data` is."""
    shown = "".join(_character(part) if isinstance(part, str) else _hexadecimal(part) for part in _parts(data))
    # A combining mark in front would lean on the chip's border: give it a circle to stand on.
    if shown and unicodedata.category(shown[0]) in ("Mn", "Mc", "Me"):
        shown = "◌" + shown
    return shown


def special_chip(content: str) -> str:
    """What a special token looks like: `<|endoftext|>` is ⟨endoftext⟩."""
    found = _SPECIAL.fullmatch(content)
    inner = next((group for group in found.groups() if group), content) if found else content
    return f"⟨{''.join(_character(character) for character in inner)}⟩"


def looks_special(content: str) -> bool:
    """Whether a vocabulary entry is written as a special token; some tokenizer files do not mark them as such."""
    return re.fullmatch(r"<\|[a-z0-9_]+\|>", content) is not None


def growing_text(pieces: Iterable[bytes]) -> Iterator[str]:
    """The text that each piece completes, in order: a character split over pieces belongs to its last one.

    Joined, the results are the whole text; bytes that never become a character are shown as U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = list(pieces)
    for index, piece in enumerate(pieces):
        yield decoder.decode(piece, final=index == len(pieces) - 1)


def _parts(data: bytes) -> Iterator[str | bytes]:
    """Whole characters one by one, and the runs of bytes between them that are none."""
    bad = b""
    while data:
        try:
            good, rest, wrong = data.decode("utf-8"), b"", b""
        except UnicodeDecodeError as error:
            good = data[: error.start].decode("utf-8")
            wrong, rest = data[error.start : error.end], data[error.end :]
        if good and bad:
            yield bad
            bad = b""
        yield from good
        bad, data = bad + wrong, rest
    if bad:
        yield bad


def _character(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return _hexadecimal(character.encode())
    if unicodedata.category(character) in _INVISIBLE or 0xFE00 <= ord(character) <= 0xFE0F:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def _hexadecimal(data: bytes) -> str:
    return f"⟨{data.hex(' ')}⟩"
