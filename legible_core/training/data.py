"""Text to token ids on disk, and the order in which a run sees them."""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from legible_core.errors import LegibleError, NotFound

END_OF_TEXT = "<|endoftext|>"
Progress = Callable[[int, int], None]


def documents(path: Path) -> Iterator[str]:
    """Documents of a text file (plain or .xz), CRLF as LF; raises `LegibleError` when it is missing or not UTF-8."""
    opener = lzma.open if path.suffix == ".xz" else open
    lines: list[str] = []
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                if line.rstrip("\n") == END_OF_TEXT:
                    text = "".join(lines).strip("\n")
                    if text:
                        yield text
                    lines = []
                else:
                    lines.append(line)
    except FileNotFoundError:
        raise NotFound(f"There is no text at {path}; give a UTF-8 text file, plain or .xz.") from None
    except UnicodeDecodeError:
        raise LegibleError(f"{path} is not UTF-8 text; convert it first.", code="bad_corpus") from None
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise LegibleError(f"{path} cannot be read ({error}); give a UTF-8 text file.", code="bad_corpus") from None
    text = "".join(lines).strip("\n")
    if text:
        yield text


def train_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer with `<|endoftext|>` as id 0, trained on a text file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(path), trainer)
    return tokenizer


def tokenise(path: Path, tokenizer: Tokenizer, cache: Path, progress: Progress | None = None) -> np.memmap:
    """Ids of a text, every document closed by `<|endoftext|>`, as a memory-mapped file kept in `cache`.

    The cache is keyed by the file's size, time and name and by the tokenizer, and is written under another name until
    it is whole. Returns uint16 ids (uint32 above 65,536 entries).
    """
    stat = path.stat() if path.exists() else None
    if stat is None:
        raise NotFound(f"There is no text at {path}; give a UTF-8 text file, plain or .xz.")
    key = json.dumps([str(path.resolve()), stat.st_size, stat.st_mtime_ns, tokenizer.to_str()])
    cache.mkdir(parents=True, exist_ok=True)
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    target = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.ids"
    if not target.exists():
        end = tokenizer.token_to_id(END_OF_TEXT)
        if end is None:
            raise LegibleError(f"The tokenizer has no {END_OF_TEXT} token, which closes every document.")
        partial = target.with_suffix(".partial")
        with partial.open("wb") as file:
            done = 0
            texts = documents(path)
            # A few documents at a time: the tokenizer works on them in parallel, and memory stays bounded.
            while batch := list(itertools.islice(texts, 16)):
                for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                    np.asarray([*encoding.ids, end], dtype=kind).tofile(file)
                done += sum(map(len, batch))
                if progress is not None:
                    progress(done, 0)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    if target.stat().st_size == 0:
        target.unlink()
        raise LegibleError(f"{path} holds no text.", code="bad_corpus")
    return np.memmap(target, dtype=kind, mode="r")


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
