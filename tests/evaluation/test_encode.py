"""A question as rows of tokens: the harness's split, its context limit and its windows; and what has no tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from legible_core.errors import LegibleError
from legible_core.evaluation.encode import Encoder, Row, windows
from legible_core.tokens import Tokenizer


def test_the_split_is_that_of_the_whole(tokenizer):
    encoder = Encoder(tokenizer, 48)
    before, after = encoder.split("The old dog", " went home")
    assert before == tokenizer.encode("The old dog")
    assert before + after == tokenizer.encode("The old dog went home")


def test_spaces_that_end_the_context_count_as_the_continuation(tokenizer):
    encoder = Encoder(tokenizer, 48)
    assert encoder.split("The dog  ", "home") == encoder.split("The dog", "  home")
    assert encoder.split("  ", "home") == encoder.split("", "  home")


def test_an_empty_context_is_the_end_of_text(tokenizer):
    encoder = Encoder(tokenizer, 48)
    before, after = encoder.split("", " dogs")
    assert before == tokenizer.encode("<|endoftext|>")
    assert after == tokenizer.encode(" dogs")
    assert encoder.split("", "<|endoftext|> dogs") == (before, after)


def test_a_long_context_loses_tokens_on_the_left(tokenizer):
    encoder = Encoder(tokenizer, 8)
    assert encoder.rows(list(range(6)), [90, 91]) == [Row((0, 1, 2, 3, 4, 5, 90, 91), 2)]
    assert encoder.shortened == 0
    assert encoder.rows(list(range(20)), [90, 91]) == [Row((13, 14, 15, 16, 17, 18, 19, 90, 91), 2)]
    assert encoder.shortened == 1


def test_a_continuation_longer_than_the_context_is_cut_into_windows(tokenizer):
    encoder = Encoder(tokenizer, 4)
    rows = encoder.rows([7, 8], [0, 1, 2, 3, 4, 5])
    assert rows == [Row((8, 0, 1, 2, 3), 4), Row((1, 2, 3, 4, 5), 2)]
    assert sum(row.scored for row in rows) == 6


def test_windows_predict_each_token_once_and_fill_the_last_one():
    # The example of the harness's own documentation.
    rows = windows(99, list(range(10)), 4)
    assert rows == [Row((99, 0, 1, 2, 3), 4), Row((3, 4, 5, 6, 7), 4), Row((5, 6, 7, 8, 9), 2)]
    assert windows(99, [], 4) == []
    assert windows(99, [5], 4) == [Row((99, 5), 1)]


def word_level(path: Path, unknown: str | None) -> Tokenizer:
    words = ["the", "dog", "ran", "<unk>"]
    inner = Library(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=unknown or "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.save(str(path))
    return Tokenizer.load(path)


def test_without_an_end_of_text_the_first_token_is_not_scored(tmp_path):
    encoder = Encoder(word_level(tmp_path / "t.json", None), 8)
    assert encoder.pair("", "the dog ran") == [Row((0, 1, 2), 2)]
    assert encoder.rolling("the dog ran") == [Row((0, 1, 2), 2)]


def test_a_text_that_the_tokenizer_cannot_represent_is_refused(tmp_path):
    encoder = Encoder(word_level(tmp_path / "t.json", None), 8)
    with pytest.raises(LegibleError, match="cannot represent"):
        encoder.pair("", "the cat ran")
    with pytest.raises(LegibleError, match="no token of"):
        encoder.pair("", "dog")


def test_a_text_that_stands_for_itself_is_taken_as_it_is(tokenizer):
    encoder = Encoder(tokenizer, 48)
    for text in ("“quoted” — naïve", "tab\tand\nline", "emoji 🙂 and ﬁ", "<unk> = = @-@"):
        assert tokenizer.decode(encoder.encode(text)) == text
