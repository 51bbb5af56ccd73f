"""Tokenising a text file into the file of ids that training reads, against the `tokenizers` library by itself.

Ours reads the file, checks that it is UTF-8, cuts documents into pieces, tokenises, writes, syncs and hashes; the
baseline gets the same documents as strings and gives its encodings back, which is all it does. It has two ways: one
keeps every token's place in the text, which training does not need, and one does not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.measure import Row, against
from legible_core.training.data import tokenise

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS, WORDS = 160, 6000
REPETITIONS = 5


def make_documents(tokenizer: Tokenizer) -> list[str]:
    """Documents of words from the vocabulary, the lower its id (the earlier its merge) the more often."""
    words = [token.replace("Ġ", " ") for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    words = [word for word in words[1:] if word.strip().isalpha() and word.isascii()]
    drawn = np.random.default_rng(0).zipf(1.2, (DOCUMENTS, WORDS)) % len(words)
    lines = [[words[index] for index in row] for row in drawn]
    return ["".join(word + ("\n" if place % 12 == 11 else "") for place, word in enumerate(line)) for line in lines]


def run() -> Iterator[Row]:
    """The rows of this file."""
    tokenizer = Tokenizer.from_file(str(ROOT / "models" / "novel-legible" / "tokenizer.json"))
    documents = [document.strip("\n") for document in make_documents(tokenizer)]
    folder = Path(tempfile.mkdtemp(prefix="legible-benchmark-"))
    try:
        text = folder / "text.txt"
        text.write_text("\n<|endoftext|>\n".join(documents) + "\n", encoding="utf-8")
        expected = sum(len(encoding) + 1 for encoding in tokenizer.encode_batch_fast(documents))
        found = tokenise(text, tokenizer, folder / "first")
        assert len(found.ids) == expected, (len(found.ids), expected)

        def ours(number: Any) -> None:
            tokenise(text, tokenizer, folder / f"cache-{number}", lambda done, total: None)

        for what, call, bound in (
            ("without places", tokenizer.encode_batch_fast, 0.8),
            ("with places", tokenizer.encode_batch, None),
        ):
            numbers = iter(f"{what}-{index}" for index in range(1000))
            timing = against(ours, partial(_encode, call, documents), numbers, REPETITIONS)
            yield timing.row(
                "tokenising", f"tokens per second / tokenizers alone, {what}", bound,
                per=expected, unit="tok/s", direction="at least",
            )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _encode(call: Callable[[list[str]], Any], documents: list[str], _: str) -> None:
    call(documents)
