"""A stream cut anywhere has the tokens and the places of the whole text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from legible_core import text_stream
from legible_core.errors import LegibleError
from legible_core.text_stream import TextStream
from legible_core.tokens import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(
        ["it was the best of times, it was the worst.\n\n  don't 'tis été 12 123\r\n"] * 9, trainer
    )
    path = tmp_path_factory.mktemp("stream") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer.load(path)


PARTS = st.sampled_from(
    ["it", " was", " the", "  ", "\n", "\r\n", "\r", " don't", "é", "🙂", "\u00a0", ".", "12", "\t"]
)


@given(parts=st.lists(PARTS, max_size=40), cuts=st.lists(st.integers(0, 120), max_size=12))
@settings(max_examples=150, deadline=None)
def test_a_stream_cut_anywhere_has_the_tokens_and_places_of_the_whole_text(
    tokenizer: Tokenizer, parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream, found = TextStream(tokenizer), []
    for start, stop in pairwise(edges):
        found += stream.feed(data[start:stop])
        other = TextStream(tokenizer)
        other.restore(stream.state())
        stream = other
    found += stream.end()
    ids = tokenizer.encode(text)
    assert [token.id for token in found] == ids
    for token in found:
        piece = tokenizer.token_bytes(token.id)
        there = data[token.offset :]
        assert there.replace(b"\r\n", b"\n").startswith(piece) or there.startswith(piece)
    assert [token.offset for token in found] == sorted({token.offset for token in found}), "each begins further on"
    assert stream.received == len(data)


def test_a_stream_that_ends_within_a_character_says_which_bytes(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    found = stream.feed("it was é".encode()[:-1])
    assert stream.unfinished == b"\xc3"
    assert tokenizer.decode(token.id for token in [*found, *stream.end()]) == "it was "
    assert stream.feed(b"\xa9") == []
    assert tokenizer.decode(token.id for token in stream.end()) == "é"


@pytest.mark.parametrize("cut", [1, 7, 8, 9])
def test_bytes_that_are_no_text_are_named_by_their_place_and_cost_nothing_before_them(
    tokenizer: Tokenizer, cut: int
) -> None:
    data = b"it was \xc3\xff the"
    stream, found = TextStream(tokenizer), []
    if cut < 9:
        found += stream.feed(data[:cut])
    with pytest.raises(LegibleError, match="byte 7"):
        stream.feed(data[cut if cut < 9 else 0 :])
    assert stream.received == 7, "what was taken in"
    assert tokenizer.decode(token.id for token in [*found, *stream.end()]) == "it was "


def test_a_long_run_without_a_space_is_not_held_for_ever(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "LONGEST_RUN", 8)
    monkeypatch.setattr(text_stream, "PIECE", 3)
    stream = TextStream(tokenizer)
    assert stream.feed(b"thethethe\r")
    assert stream.state()["held"] == "\r", "CR LF is not cut in two"
    rest = stream.feed(b"\n it was the best") + stream.end()
    assert tokenizer.decode(token.id for token in rest) == "\n it was the best"
    assert rest[0].offset == 9


def test_a_tokenizer_that_changes_the_text_gives_the_place_of_the_piece(tmp_path: Path) -> None:
    library = Library(models.WordLevel({"it": 0, "was": 1, "[UNK]": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    stream = TextStream(Tokenizer.load(tmp_path / "tokenizer.json"))
    first = stream.feed(b"it was ")
    assert [(token.id, token.offset) for token in [*first, *stream.feed(b"it "), *stream.end()]] == [
        (0, 0), (1, 0), (0, 6),
    ]  # fmt: skip
