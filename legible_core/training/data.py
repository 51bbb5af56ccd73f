"""Text to token ids on disk, and the order in which a run sees them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from legible_core.errors import Conflict, LegibleError
from legible_core.training.sources import END_OF_TEXT, Files, Fits, Piece, Source, documents

__all__ = ["Corpus", "Order", "Progress", "documents", "short_words", "tokenise", "train_tokenizer"]

# Bytes read of the source, and its size (0 when not known).
Progress = Callable[[int, int], None]
# Characters that are tokenised at once, for each core: enough to keep it busy, and what bounds memory.
BATCH = 1 << 18
# Characters without a space that the tokenizer's training takes for one word, at most.
LONGEST = 1000
_LONG = re.compile(rf"\S{{{LONGEST}}}")


@dataclass(frozen=True)
class Corpus:
    """Token ids of a text (uint16, or uint32 above 65,536 entries) on disk, and the SHA-256 of those ids."""

    ids: np.ndarray
    sha256: str
    name: str


def train_tokenizer(source: Path | Source, vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer with `<|endoftext|>` as id 0, trained on a text."""
    source = Files(source) if isinstance(source, Path) else source
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    seen = False

    def texts() -> Iterator[str]:
        nonlocal seen
        # Cut where this pre-tokenizer cuts anyhow, so the counts are those of the whole documents.
        for piece in source.pieces(_keeps_words):
            seen = True
            yield short_words(piece.text)

    tokenizer.train_from_iterator(texts(), trainer)
    if not seen:
        raise _empty(source)
    return tokenizer


def short_words(text: str) -> str:
    """The text with a space in every LONGEST characters that have none, for counting pairs only.

    The trainer goes through a word once for every pair that it joins in it: one of a million letters would take hours,
    and there is nothing to learn from where words that long divide.
    """
    return _LONG.sub(r"\g<0> ", text)


def tokenise(
    source: Path | Source,
    tokenizer: Tokenizer,
    cache: Path,
    progress: Progress | None = None,
    *,
    max_tokens: int | None = None,
) -> Corpus:
    """Ids of a text, every document closed by `<|endoftext|>`, as a memory-mapped file kept in `cache`.

    The cache is keyed by the source (a file by its size, time and name) and by the tokenizer; the file is written under
    another name until it is whole. Documents longer than a piece are cut where that does not change their tokens, which
    is checked for every cut. max_tokens: stop after this many. Raises `LegibleError` when there is no text, `Conflict`
    when what is kept is no whole number of ids.
    """
    source = Files(source) if isinstance(source, Path) else source
    key = [*source.key, *([max_tokens] if max_tokens else []), tokenizer.to_str()]
    target = cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.ids"
    kind: Any = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                _write(source, tokenizer, file, kind, progress, max_tokens)
                if file.tell() == 0:
                    raise _empty(source)
                file.flush()
                os.fsync(file.fileno())
            target.with_suffix(".json").unlink(missing_ok=True)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    size = target.stat().st_size
    if not size or size % kind().itemsize:
        raise Conflict(
            f"The tokens in {target} were altered: the file has {size:,} bytes, which are not whole ids of "
            f"{kind().itemsize} bytes each; remove {cache}, and they are made anew.",
            code="corpus_changed",
        )
    return Corpus(np.memmap(target, dtype=kind, mode="r"), _sha256(target), source.name)


def _write(
    source: Source, tokenizer: Tokenizer, file: BinaryIO, kind: Any, progress: Progress | None, limit: int | None
) -> None:
    """Read, tokenise and write, each batch's reading and writing while the library's threads work on the next."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise LegibleError(f"The tokenizer has no {END_OF_TEXT} token, which closes every document.")
    total, written = source.total() if progress is not None else 0, 0

    def encode(batch: list[Piece]) -> list[Encoding]:
        return tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)

    def write(batch: list[Piece], encodings: list[Encoding]) -> bool:
        nonlocal written
        for piece, encoding in zip(batch, encodings, strict=True):
            ids = np.asarray([*encoding.ids, end] if piece.ends else encoding.ids, dtype=kind)
            ids = ids if limit is None else ids[: limit - written]
            file.write(ids.tobytes())
            written += len(ids)
        if progress is not None:
            progress(batch[-1].done, total)
        return limit is None or written < limit

    waiting: tuple[list[Piece], Future[list[Encoding]]] | None = None
    with ThreadPoolExecutor(1) as pool:
        for batch in _batches(source.pieces(_keeps_tokens(tokenizer))):
            future = pool.submit(encode, batch)
            if waiting is not None and not write(waiting[0], waiting[1].result()):
                return
            waiting = batch, future
        if waiting is not None:
            write(waiting[0], waiting[1].result())


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    size = BATCH * min(64, os.cpu_count() or 1)
    batch: list[Piece] = []
    held = 0
    for piece in pieces:
        batch.append(piece)
        held += len(piece.text)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _keeps_tokens(tokenizer: Tokenizer) -> Fits:
    def fits(left: str, right: str) -> bool:
        whole, first, second = (
            encoding.ids
            for encoding in tokenizer.encode_batch_fast([left + right, left, right], add_special_tokens=False)
        )
        return bool(whole == first + second)

    return fits


def _keeps_words(left: str, right: str) -> bool:
    # Not the tokenizer's own: that one is locked while it trains.
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    whole, first, second = ([word for word, _ in split(text)] for text in (left + right, left, right))
    return whole == first + second


def _sha256(target: Path) -> str:
    """The hash of a file of ids; kept beside it, since hashing many gigabytes takes a while.

    What is kept counts while the file's size and the times of its last change are those of then, so a file that was
    altered is hashed anew, and so is a copy, whose hash is the same.
    """
    kept, info = target.with_suffix(".json"), target.stat()
    mark = {"bytes": info.st_size, "mtime_ns": info.st_mtime_ns, "ctime_ns": info.st_ctime_ns}
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        if isinstance(found["sha256"], str) and all(found.get(name) == value for name, value in mark.items()):
            return str(found["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    draft = target.with_suffix(".json.partial")
    draft.write_text(json.dumps({"sha256": digest, **mark}) + "\n", encoding="utf-8")
    draft.replace(kept)
    return digest


def _empty(source: Source) -> LegibleError:
    return LegibleError(f"{source.name} holds no text.", code="bad_corpus")


@dataclass(frozen=True)
class Order:
    """Which tokens each step sees: contexts of the text in a seeded order, the same for every run with that seed.

    The last `held_out` tokens are never drawn. Each pass over the text has an order of its own.
    """

    ids: np.ndarray
    context: int
    seed: int
    held_out: int

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise LegibleError(
                f"The text has {len(self.ids)} tokens; training needs more than the held-out "
                f"{self.held_out} and one context of {self.context}.",
                code="bad_corpus",
            )

    @property
    def blocks(self) -> int:
        return (len(self.ids) - self.held_out - 1) // self.context

    def batch(self, first: int, count: int) -> Tensor:
        """Contexts number first..first+count-1 of the run, with the token that follows each: (count, context + 1)."""
        rows = []
        for number in range(first, first + count):
            epoch, place = divmod(number, self.blocks)
            start = int(_permutation(self.seed, epoch, self.blocks)[place]) * self.context
            rows.append(self.ids[start : start + self.context + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))

    def held_out_batches(self, size: int) -> Iterator[Tensor]:
        """The held-out slice, in order, `size` contexts at a time."""
        start = len(self.ids) - self.held_out
        rows = (self.held_out - 1) // self.context
        for first in range(0, rows, size):
            yield torch.from_numpy(
                np.stack(
                    [
                        self.ids[start + r * self.context : start + (r + 1) * self.context + 1].astype(np.int64)
                        for r in range(first, min(rows, first + size))
                    ]
                )
            )


_last: tuple[tuple[int, int, int], np.ndarray] | None = None


def _permutation(seed: int, epoch: int, blocks: int) -> np.ndarray:
    """The pass's order; the latest is kept, since a run asks for the same one thousands of times."""
    global _last
    key = (seed, epoch, blocks)
    if _last is None or _last[0] != key:
        _last = (key, np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(blocks))
    return _last[1]
