"""What people type is cleaned and bounded, and nobody can write under a name that looks like another's."""

from __future__ import annotations

import pytest

from app.database import Database
from app.people import MAX_AUTHOR, MAX_NOTE, claim_author, clean_author, clean_line, clean_text
from legible_core.errors import Conflict, LegibleError, TooLarge

A_ACUTE = "A\u0301da"  # A and a combining accent
FULL_WIDTH = "\uff21da"
CYRILLIC_A = "\u0410da"


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("  Ada\n Lovelace ", "Ada Lovelace"),
        (A_ACUTE, "\u00c1da"),
        ("A\u202ed\u2066a", "Ada"),
        ("A\u200bd\u00ada\x00\x07", "Ada"),
        ("A\u200dda", "Ada"),
        (FULL_WIDTH, FULL_WIDTH),
        ("أدا", "أدا"),
    ],
)
def test_names_of_people(typed: str, kept: str) -> None:
    assert clean_author(typed) == kept


@pytest.mark.parametrize("typed", ["", "   ", "\u202e", "---", "\u200b\u200b"])
def test_a_name_that_shows_nothing_is_none(typed: str) -> None:
    with pytest.raises(LegibleError, match="Say who writes"):
        clean_author(typed)


def test_letters_of_two_scripts_are_refused_and_named() -> None:
    with pytest.raises(LegibleError, match="mixes Latin and Cyrillic"):
        clean_author(CYRILLIC_A)


def test_limits_are_said() -> None:
    with pytest.raises(TooLarge, match=r"at most 60 characters; this one has 61"):
        clean_author("a" * (MAX_AUTHOR + 1))
    with pytest.raises(TooLarge, match=r"at most 8,000 characters; this one has 8,001"):
        clean_text("a" * (MAX_NOTE + 1), MAX_NOTE, "note")


def test_text_keeps_its_lines_and_loses_what_turns_it_round() -> None:
    assert clean_text("a\r\nb\tc\x00\x1b[31m\u202egnp\ud800", 100, "note") == "a\nb\tc[31mgnp"
    assert clean_line("a\r\nb", 100, "name") == "a b"


def test_a_name_that_looks_like_anothers_is_refused(database: Database) -> None:
    with database.write() as connection:
        claim_author(connection, "Ada")
        claim_author(connection, "Ada")
        claim_author(connection, "Adam")
    for second in ("ada", "ADA", "A d a", FULL_WIDTH, "\u00aada"):
        with database.write() as connection, pytest.raises(Conflict, match="looks like 'Ada'"):
            claim_author(connection, second)
