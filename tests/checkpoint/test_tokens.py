"""Text as typed, exact bytes, targets, and text that is hard to take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import tokenizer_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legible_core import tokens
from legible_core.errors import Corrupt, LegibleError, NotFound, TooLarge
from legible_core.tokens import Tokenizer, check_text


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_path)


def made(**changes: Any) -> Tokenizer:
    return Tokenizer(json.dumps(tokenizer_spec() | changes).encode())


def test_encodes_as_typed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the worst")
    assert [tokenizer.display(index) for index in ids] == ["t", "he", "·worst"]
    assert tokenizer.decode(ids) == "the worst"
    assert tokenizer.pieces(ids) == ["t", "he", " worst"]
    assert tokenizer.encode("") == []
    assert tokenizer.encode("a\r\nb\rc") == tokenizer.encode("a\nb\rc")
    assert tokenizer.encode("<|endoftext|>a")[0] == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bytes_of_the_tokens_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    typed = text.replace("\r\n", "\n")
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(index) for index in ids) == typed.encode()
    assert tokenizer.decode(ids) == typed


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x01\x1b",
        "👩‍👩‍👧 🇩🇪",
        "שלום עולם",
        "Straße 東京 мир",
        "e\u0301\u0302",
        "\u202eabc",
        "\ufeffx",
        "\U0010ffff",
    ],
)
def test_hard_text_comes_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_has_its_token(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(1 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_a_lone_surrogate_is_one_clear_sentence(tokenizer: Tokenizer) -> None:
    with pytest.raises(LegibleError, match=r"holds U\+D83D at character 3, half of a surrogate pair"):
        tokenizer.encode("ab\ud83d")


def test_text_over_the_limit_says_the_limit_and_the_size(tokenizer: Tokenizer) -> None:
    with pytest.raises(TooLarge, match=r"The prompt is 1,000,002 bytes long; the limit is 1,000,000 bytes"):
        check_text("é" * 500_001)
    assert check_text("é" * 500_000) == "é" * 500_000
    with pytest.raises(TooLarge, match="The target is"):
        tokenizer.target("x" * 2000)
    with pytest.raises(LegibleError, match="must be text"):
        check_text(3)  # type: ignore[arg-type]


def test_a_target_is_one_token_or_an_error_that_shows_the_split(tokenizer: Tokenizer) -> None:
    worst = tokenizer.target(" worst")
    assert tokenizer.token_bytes(worst) == b" worst"
    assert tokenizer.split_target(" worst") == [worst]
    assert tokenizer.target(f"id:{worst}") == worst
    assert tokenizer.target("<|endoftext|>") == 0
    with pytest.raises(LegibleError) as caught:
        tokenizer.target("worst")
    assert caught.value.message == (
        "The target 'worst' is 3 tokens, w + or + st, and a target is one token; try its first piece, 'w'."
    )
    assert caught.value.hint == "With a leading space it is one token: ' worst'."
    with pytest.raises(LegibleError, match=r"The contrast 'worst' is 3 tokens, .* and a contrast is one token"):
        tokenizer.target("worst", "contrast")
    with pytest.raises(LegibleError, match="is empty"):
        tokenizer.target("")
    with pytest.raises(NotFound, match="Token 999 does not exist; this vocabulary has the ids 0 to 264"):
        tokenizer.target("id:999")


def test_a_first_piece_that_cannot_be_typed_is_suggested_by_its_id(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("é")[0]
    with pytest.raises(LegibleError, match=rf"⟨c3⟩ \+ ⟨a9⟩.*first piece, id:{first}\."):
        tokenizer.target("é")
    assert tokenizer.target(f"id:{first}") == first


def test_a_token_that_merges_never_reach_is_found_by_its_bytes() -> None:
    spec = tokenizer_spec()
    spec["model"]["vocab"]["unreachable"] = 265
    assert Tokenizer(json.dumps(spec).encode()).target("unreachable") == 265


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    for index in (-1, 265):
        with pytest.raises(NotFound, match=f"Token {index} does not exist"):
            tokenizer.display(index)


def test_nothing_is_added_dropped_or_drawn() -> None:
    spec = tokenizer_spec()
    spec["pre_tokenizer"]["add_prefix_space"] = True
    spec["model"]["dropout"] = 0.9
    spec["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    assert Tokenizer(json.dumps(spec).encode()).encode("the worst") == made().encode("the worst")


def test_unused_ids_and_unmarked_special_tokens_have_a_display() -> None:
    spec = tokenizer_spec()
    spec["added_tokens"] = []
    spec["model"]["vocab"]["gap"] = 300
    tokenizer = Tokenizer(json.dumps(spec).encode())
    assert tokenizer.vocab_size == 301
    assert tokenizer.display(0) == "⟨endoftext⟩"
    assert tokenizer.is_special(0)
    assert tokenizer.display(280) == "⟨unused 280⟩"
    assert tokenizer.token(280) == {"id": 280, "text": "", "display": "⟨unused 280⟩"}


def test_sentencepiece_vocabularies_read_as_text() -> None:
    vocabulary = {"<0x0A>": 0, "▁the": 1, "x": 2, "▁": 3, "t": 4, "h": 5, "e": 6}
    spec = tokenizer_spec() | {
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False},
    }
    spec["model"] |= {"vocab": vocabulary, "merges": [], "byte_fallback": True, "ignore_merges": True}
    tokenizer = Tokenizer(json.dumps(spec).encode())
    assert tokenizer.decode(tokenizer.encode(" the\n")) == " the\n"
    assert tokenizer.token_bytes(0) == b"\n"
    assert tokenizer.display(1) == "·the"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[1]", 'no "model" object'),
        (b'{"model": 3}', 'no "model" object'),
        (b'{"model": {}}', "its model lacks what a model of no type needs"),
        (b'{"model": {"type": "Bytes"}}', 'its model is of the type "Bytes", and must be BPE, Unigram, WordLevel or'),
        (b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"model": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}", "cannot be used"),
    ],
)
def test_files_that_are_no_tokenizer(data: bytes, said: str) -> None:
    with pytest.raises(Corrupt) as caught:
        Tokenizer(data)
    assert said in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": 3}},
        {"pre_tokenizer": {"type": ["ByteLevel"]}},
        {"added_tokens": "all"},
    ],
)
def test_wrong_types_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match=r"^The tokenizer\.json "):
        made(**changes)


def test_sizes_are_capped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="token id"):
        made(model={"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []})
    monkeypatch.setattr(tokens, "MAX_TOKENIZER_BYTES", 100)
    (tmp_path / "tokenizer.json").write_bytes(b" " * 101)
    with pytest.raises(TooLarge, match="over the limit of 100 bytes"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(NotFound, match="cannot be read"):
        Tokenizer.load(tmp_path / "none.json")
