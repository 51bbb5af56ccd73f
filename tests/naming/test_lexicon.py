"""Classes of single tokens, chosen by hand, and the closed classes' own properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legible_core.naming import words
from legible_core.naming.lexicon import BEGINNING, CLASSES, beginnings, classes_of, inflect, membership


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" the", "determiner"),
        (" my", "possessive"),
        ("'t", "negation"),
        (" never", "negation"),
        (" greater", "comparative"),
        (" happier", "comparative"),
        (" worst", "superlative"),
        (" greatest", "superlative"),
        (" should", "modal"),
        ("'ll", "modal"),
        (" was", "copula"),
        ("'ve", "perfect auxiliary"),
        (" had", "perfect auxiliary"),
        (" taken", "passive participle"),
        (" surprised", "passive participle"),
        (" she", "pronoun"),
        (" between", "preposition"),
        ("And", "conjunction"),
        (" although", "subordinator"),
        ("Meanwhile", "discourse opener"),
        (" hardly", "NPI licensor"),
        (" seven", "number"),
        ("42", "number"),
        (" several", "quantity"),
        (" yesterday", "time"),
        (" London", "place"),
        (" Elizabeth", "person name"),
        (" dreadful", "valence"),
        (" dreadful", "negative valence"),
        (" thinking", "cognition verb"),
        (" took", "action verb"),
        (";", "punctuation"),
        (".\n", "clause boundary"),
        ("\n\n", "clause boundary"),
        ("\n", "line break"),
        ("?'", "sentence end"),
        (' "', "quotation mark"),
        ("--", "dash"),
        ("ing", "word piece"),
        ("ness", "word ending"),
        (" Coming", "-ing form"),
    ],
)
def test_belongs(text: str, expected: str) -> None:
    assert expected in classes_of(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("er", "comparative"),
        (" mother", "comparative"),
        (" writer", "comparative"),
        (" interest", "superlative"),
        (" forest", "superlative"),
        (" hundred", "passive participle"),
        (" thing", "-ing form"),
        (" family", "adverb in -ly"),
        ("in", "preposition"),
        ("at", "preposition"),
        ("s", "possessive"),
        (" glass", "form in -s"),
        ("\ufffd", "punctuation"),
        ("", "punctuation"),
    ],
)
def test_does_not_belong(text: str, wrong: str) -> None:
    assert wrong not in classes_of(text)


def test_every_class_of_the_design_exists_once() -> None:
    asked = (
        "determiner possessive negation comparative superlative modal copula,perfect auxiliary,passive participle,"
        "pronoun preposition conjunction subordinator,discourse opener,NPI licensor,number quantity time place,"
        "person name,valence,cognition verb,action verb,punctuation,clause boundary"
    )
    wanted = {
        name
        for part in asked.split(",")
        for name in ([part] if part.count(" ") == 1 and part in CLASSES else part.split())
    }
    assert wanted <= set(CLASSES)
    assert len(set(CLASSES)) == len(CLASSES)


def test_closed_lists_hold_lower_case_words_only() -> None:
    for group in (words.CLOSED, words.VERBS, words.NOUNS, words.ADJECTIVES):
        for members in group.values():
            assert members
            assert all(word == word.lower() and " " not in word for word in members)


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("take", {"take", "takes", "took", "taken", "taking"}),
        ("stop", {"stop", "stops", "stopped", "stopping"}),
        ("cry", {"cry", "cries", "cried", "crying"}),
        ("lie", {"lie", "lies", "lay", "lain", "lying"}),
        ("see", {"see", "sees", "saw", "seen", "seeing"}),
        ("wish", {"wish", "wishes", "wished", "wishing"}),
        ("look", {"look", "looks", "looked", "looking"}),
        ("hope", {"hope", "hopes", "hoped", "hoping"}),
    ],
)
def test_inflection(verb: str, forms: set[str]) -> None:
    assert inflect(verb) == forms


@given(st.text(max_size=12))
def test_any_text_has_known_classes(text: str) -> None:
    assert classes_of(text) <= set(CLASSES)


def test_membership_is_one_row_per_text() -> None:
    texts = [" the", "ing", "", "\ufffd"]
    table = membership(texts)
    assert table.shape == (4, len(CLASSES))
    for row, text in zip(table, texts, strict=True):
        assert {CLASSES[i] for i in np.flatnonzero(row)} == classes_of(text)


def test_beginnings_come_from_the_text() -> None:
    texts = [" rep", "resent", " cat", ".", " a"]
    ids = np.array([0, 1, 2, 3, 0, 1, 4, 2, 3])
    assert beginnings(ids, texts).tolist() == [True, False, False, False, False]
    assert BEGINNING in CLASSES
