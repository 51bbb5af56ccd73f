"""Chips: spaces, newlines, special tokens, partial bytes, invisible characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legible_core.display import chip, growing_text, looks_special, special_chip


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" worst", "·worst"),
        (b"    ", "····"),
        (b"\n", "↵"),
        (b"\t\t", "⇥⇥"),
        (b"\r", "␍"),
        (b"\xe2\x80", "⟨e2 80⟩"),
        (b" \xe2\x80", "·⟨e2 80⟩"),
        (b"\x99 yes", "⟨99⟩·yes"),
        (b"a\x80\x81b", "a⟨80 81⟩b"),
        (b"\xff\xfe", "⟨ff fe⟩"),
        (b"\xc3\xc3\xc3\xa9", "⟨c3 c3⟩é"),
        (b"\x00", "⟨00⟩"),
        (b"\x1b[", "⟨1b⟩["),
        ("\u202e".encode(), "⟨U+202E⟩"),
        ("\u200d".encode(), "⟨U+200D⟩"),
        ("\u00a0".encode(), "⟨U+00A0⟩"),
        ("\ufe0f".encode(), "⟨U+FE0F⟩"),
        ("\u0301".encode(), "◌\u0301"),
        ("naïve שלום 👩".encode(), "naïve·שלום·👩"),
    ],
)
def test_chip(data: bytes, shown: str) -> None:
    assert chip(data) == shown


@given(st.binary(min_size=1, max_size=12))
def test_a_chip_is_one_visible_line_without_direction_marks(data: bytes) -> None:
    shown = chip(data)
    assert shown
    assert not set(shown) & {"\n", "\r", "\t", "\u202e", "\u2028", "\x00"}


def test_special_chips() -> None:
    assert special_chip("<|endoftext|>") == "⟨endoftext⟩"
    assert special_chip("[MASK]") == "⟨MASK⟩"
    assert special_chip("<s>") == "⟨s⟩"
    assert special_chip("plain\n") == "⟨plain↵⟩"
    assert looks_special("<|im_start|>")
    assert not looks_special("<|>")


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_growing_text_joins_to_the_whole(pieces: list[bytes]) -> None:
    grown = list(growing_text(pieces))
    assert len(grown) == len(pieces)
    assert "".join(grown) == b"".join(pieces).decode("utf-8", errors="replace")


def test_a_split_character_belongs_to_its_last_piece() -> None:
    assert list(growing_text([b"a\xf0\x9f", b"\x91\xa9", b"b"])) == ["a", "👩", "b"]
