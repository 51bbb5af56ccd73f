"""Text ↔ token ids ↔ display, on the `tokenizers` library; imports no torch.

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = tokenizer.encode("It was the best")     # as typed: CRLF becomes LF, nothing is added
    tokenizer.display(ids[1])                      # "·was"
    tokenizer.target(" worst")                     # the one id, or an error that shows how the text splits

A `tokenizer.json` is a program of sorts (regular expressions, replacement rules), so a process that must stay alive
never runs one that it does not trust: it asks `TokenizerService`, a child process with a time limit per call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from legible_core.display import chip, growing_text, looks_special, special_chip
from legible_core.errors import Corrupt, LegibleError, NotFound, TooLarge
from legible_core.token_service import TokenizerService
from legible_core.tokenizer_faults import fault, refusal

__all__ = ["MAX_PROMPT_BYTES", "MAX_TARGET_BYTES", "MAX_TOKENIZER_BYTES", "Tokenizer", "TokenizerService", "check_text"]

MAX_PROMPT_BYTES = 1_000_000
MAX_TARGET_BYTES = 1_000
MAX_TOKENIZER_BYTES = 32 * 1024 * 1024
MAX_VOCABULARY = 1 << 20


def check_text(text: str, what: str = "The prompt", limit: int = MAX_PROMPT_BYTES) -> str:
    """The text as it is tokenised: CRLF becomes LF, nothing else changes.

    Raises `TooLarge` over `limit` bytes of UTF-8, and `LegibleError` for text that has no UTF-8 form.
    """
    if not isinstance(text, str):
        raise LegibleError(f"{what} must be text.", code="bad_text")
    # A character is at least a byte: refuse without encoding what is certainly too long.
    size = len(text)
    if size <= limit:
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise LegibleError(
                f"{what} holds U+{ord(text[error.start]):04X} at character {error.start + 1}, half of a surrogate "
                f"pair, which is no character and has no UTF-8 form; remove or replace it.",
                code="bad_text",
            ) from None
    if size > limit:
        raise TooLarge(f"{what} is {size:,} bytes long; the limit is {limit:,} bytes, so shorten it.")
    return text.replace("\r\n", "\n")


class Tokenizer:
    """A loaded `tokenizer.json`.

    Byte-level tokenizers (GPT-2's kind) give the exact bytes of every token; for others the bytes are the token's
    own text, with SentencePiece's `▁` as a space and `<0x0A>` as a byte.
    """

    def __init__(self, data: bytes, rows: int = 0) -> None:
        """Read the bytes of a `tokenizer.json`; raises `Corrupt` when they are none, `TooLarge` over the limit.

        rows: of the embedding, where an ordinary model has more of them than tokens; the rest are ids without a text.
        """
        if len(data) > MAX_TOKENIZER_BYTES:
            raise TooLarge(f"The tokenizer.json is over the limit of {MAX_TOKENIZER_BYTES:,} bytes, so it is not read.")
        spec = _parse(data)
        self._style = _style(spec)
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(json.dumps(spec).encode() if _make_typed(spec) else data)
            self._inner.no_truncation()
            self._inner.no_padding()
            vocabulary = self._inner.get_vocab(with_added_tokens=True)
            added = self._inner.get_added_tokens_decoder()
        except BaseException as error:
            if not refusal(error):
                raise
            raise Corrupt(
                f"The tokenizer.json cannot be used: {fault(spec)}; give a file that the tokenizers library wrote."
            ) from None
        if not vocabulary:
            raise Corrupt(
                "The tokenizer.json has an empty vocabulary; give the one that the weights were trained with."
            )
        self.vocab_size = max(max(vocabulary.values()) + 1, rows)
        if self.vocab_size > MAX_VOCABULARY:
            raise TooLarge(
                f"The tokenizer.json has token id {self.vocab_size - 1:,}; the limit is {MAX_VOCABULARY - 1:,}."
            )
        self._content: list[str | None] = [None] * self.vocab_size
        for content, index in vocabulary.items():
            self._content[index] = content
        for index, token in added.items():
            self._content[index] = token.content
        self._special = {index for index, token in added.items() if token.special}
        self._special |= {index for index, content in enumerate(self._content) if content and looks_special(content)}
        self._added = set(added)
        self._by_bytes: dict[bytes, int] | None = None

    @classmethod
    def load(cls, path: Path | str, rows: int = 0) -> Tokenizer:
        """Read a `tokenizer.json`, `rows` as in the constructor.

        Raises `NotFound`, `TooLarge` or `Corrupt` with one sentence.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_TOKENIZER_BYTES + 1)
        except OSError as error:
            raise NotFound(f"The tokenizer {Path(path).name} cannot be read: {error.strerror or error}.") from None
        return cls(data, rows)

    def encode(self, text: str) -> list[int]:
        """The ids of a text as typed: CRLF becomes LF, nothing is added; the empty text has none.

        A special token that the tokenizer knows (`<|endoftext|>`) is recognised where it is typed.
        """
        text = check_text(text, "The text")
        try:
            return list(self._inner.encode(text, add_special_tokens=False).ids)
        except BaseException as error:
            if not refusal(error):
                raise
            reason = _short(" ".join(str(error).split()), 200).rstrip(".")
            raise Corrupt(f"The tokenizer.json cannot tokenise this text: {reason}.") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no whole character become U+FFFD. `token_bytes` has the exact bytes."""
        ids = list(ids)
        if self._style == "words":
            for index in ids:
                self._check(index)
            return str(self._inner.decode(ids, skip_special_tokens=False))
        return b"".join(self.token_bytes(index) for index in ids).decode("utf-8", errors="replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text that each token completes, so that they join to the whole text; "" inside a split character."""
        return list(growing_text(self.token_bytes(index) for index in ids))

    def token_bytes(self, index: int) -> bytes:
        """The exact bytes that a token stands for; raises `NotFound` for an id outside the vocabulary."""
        content = self._check(index)
        if content is None:
            return b""
        if index in self._added:
            return content.encode("utf-8")
        if self._style == "bytes":
            return b"".join(_BYTE.get(character) or character.encode("utf-8") for character in content)
        if self._style == "sentencepiece":
            byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", content)
            return bytes.fromhex(byte[1]) if byte else content.replace("▁", " ").encode("utf-8")
        return content.encode("utf-8")

    def text(self, index: int) -> str:
        """The token's bytes as text, with U+FFFD for what is no whole character."""
        return self.token_bytes(index).decode("utf-8", errors="replace")

    def display(self, index: int) -> str:
        """The chip: `·worst`, `↵`, `⇥`, `⟨endoftext⟩`, `⟨e2 80⟩`."""
        content = self._check(index)
        if content is None:
            return f"⟨unused {index}⟩"
        if index in self._special:
            return special_chip(content)
        return chip(self.token_bytes(index)) or f"⟨empty {index}⟩"

    def token(self, index: int) -> dict[str, Any]:
        """`{"id", "text", "display"}`, as readings and pages carry a token."""
        return {"id": index, "text": self.text(index), "display": self.display(index)}

    def is_special(self, index: int) -> bool:
        """Whether a token stands for no text of its own, such as the end of a document."""
        self._check(index)
        return index in self._special

    def find(self, data: bytes) -> int | None:
        """The token with exactly these bytes, if there is one (the lowest id, if there are several)."""
        if self._by_bytes is None:
            self._by_bytes = {}
            for index in reversed(range(self.vocab_size)):
                self._by_bytes[self.token_bytes(index)] = index
            self._by_bytes.pop(b"", None)
        return self._by_bytes.get(data)

    def target(self, text: str, role: str = "target") -> int:
        """The one token that `text` names: its exact text, or `id:464` for one that cannot be typed.

        Raises `LegibleError` otherwise, which shows how the text splits and suggests its first piece; `role` is what
        the error calls it: target or contrast.
        """
        text = check_text(text, f"The {role}", MAX_TARGET_BYTES)
        if not text:
            raise LegibleError(f"The {role} is empty; give the text of one token, such as ' worst'.", code="bad_target")
        ids = self.encode(text)
        if len(ids) == 1:
            return ids[0]
        exact = self.find(text.encode("utf-8"))
        if exact is not None:
            return exact
        numbered = re.fullmatch(r"id:(\d{1,9})", text)
        if numbered:
            self._check(int(numbered[1]))
            return int(numbered[1])
        raise self._split_error(text, ids, role)

    def split_target(self, text: str) -> list[int]:
        """`[target(text)]`: the ids of a target, which are always one; raises as `target` does."""
        return [self.target(text)]

    def _split_error(self, text: str, ids: Sequence[int], role: str) -> LegibleError:
        if not ids:
            return LegibleError(
                f"The {role} {text!r} has no token in this vocabulary; give another.", code="bad_target"
            )
        shown = " + ".join(self.display(index) for index in ids[:12]) + (" + …" if len(ids) > 12 else "")
        first = self.text(ids[0])
        # A piece that is no whole character cannot be typed, so it is suggested by its id.
        suggestion = repr(first) if self.find(first.encode("utf-8")) == ids[0] else f"id:{ids[0]}"
        hint = None
        spaced = self.find(b" " + text.encode("utf-8"))
        if spaced is not None:
            hint = f"With a leading space it is one token: {' ' + text!r}."
        return LegibleError(
            f"The {role} {_short(text)!r} is {len(ids)} tokens, {shown}, and a {role} is one token; "
            f"try its first piece, {suggestion}.",
            code="bad_target",
            hint=hint,
        )

    def _check(self, index: int) -> str | None:
        if not 0 <= index < self.vocab_size:
            raise NotFound(f"Token {index} does not exist; this vocabulary has the ids 0 to {self.vocab_size - 1}.")
        return self._content[index]


def _parse(data: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        raise Corrupt(f"The tokenizer.json {reason}; give a file that the tokenizers library wrote.") from None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise Corrupt('The tokenizer.json has no "model" object; give a file that the tokenizers library wrote.')
    return spec


def _make_typed(spec: dict[str, Any]) -> bool:
    """Take out what would add a leading space or leave out merges at random; whether there was anything to take out."""
    changed = False
    for node in _nodes(spec.get("pre_tokenizer")):
        if node.get("type") == "ByteLevel" and node.get("add_prefix_space") is not False:
            node["add_prefix_space"] = False
            changed = True
    if spec["model"].get("dropout") is not None:
        spec["model"]["dropout"] = None
        changed = True
    return changed


def _style(spec: dict[str, Any]) -> str:
    """How the vocabulary writes text: "bytes" (GPT-2's byte alphabet), "sentencepiece" or plain "words"."""
    parts = [*_nodes(spec.get("decoder")), *_nodes(spec.get("pre_tokenizer"))]
    kinds = {part["type"] for part in parts if isinstance(part.get("type"), str)}
    if "ByteLevel" in kinds:
        return "bytes"
    return "sentencepiece" if kinds & {"Metaspace", "ByteFallback"} else "words"


def _nodes(root: Any) -> Iterator[dict[str, Any]]:
    """A decoder or pre-tokenizer and, where it is a sequence, its parts."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            for key in ("decoders", "pretokenizers"):
                stack.extend(node[key] if isinstance(node.get(key), list) else ())


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's alphabet: a printable character for each byte, itself where it is printable in Latin-1."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    characters = {chr(byte): bytes([byte]) for byte in plain}
    return characters | {chr(256 + n): bytes([byte]) for n, byte in enumerate(others)}


_BYTE = _byte_alphabet()
