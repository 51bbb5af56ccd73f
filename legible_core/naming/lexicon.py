"""Which word classes a token belongs to: closed lists, inflection and morphology; imports no torch.

    CLASSES                 the label classes, in a fixed order
    classes_of(" worst")    {"superlative", "negative valence", ...}
    membership(texts)       a boolean matrix, one row per token text, one column per class
    beginnings(ids, texts)  the one class that a text alone does not tell: tokens that only begin words

A token is judged on its own text, without context, as a detector's token list is. A leading space is part of the text
and tells a word's beginning from a piece inside a word: a lower-case piece without one ("ing", "ther") belongs to no
word class unless it is a whole closed-class word (prose joins words with dashes), only to the surface classes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from legible_core.naming import words

# Classes that need more than a list: endings, and the look of the token.
MORPHOLOGICAL = (
    "comparative",
    "superlative",
    "passive participle",
    "past tense",
    "-ing form",
    "adverb in -ly",
    "abstract noun",
    "form in -s",
    "valence",
)
SURFACE = (
    "punctuation",
    "clause boundary",
    "sentence end",
    "quotation mark",
    "dash",
    "bracket",
    "line break",
    "digit",
    "capitalised word",
    "word ending",
    "word piece",
    "word beginning",
)
BEGINNING = "word beginning"
# A class that is contained in a more telling one is the weaker label at equal evidence; see label.py.
CLASSES: tuple[str, ...] = (*words.CLOSED, *words.VERBS, *words.NOUNS, *words.ADJECTIVES, *MORPHOLOGICAL, *SURFACE)

_VOWELS = "aeiou"
_ENDINGS = words.split(
    "ing ed er est ly ness ment tion sion ation able ible ful less ous ive ity ies s es ers ings edly ance ence ant "
    "ent al ally y ily ish ism ist ise ize ised en d t n th ry age hood ship dom ward wards self selves man men "
    "some"
)
_ABSTRACT = re.compile(r"[a-z]{3,}(?:tion|sion|ness|ment|ance|ence|ity|ship|hood|dom|tude|cy)(?:s|ies)?")
_WORD = re.compile(r"'?[A-Za-z][A-Za-z'’-]*")
_QUOTES = "\"'“”‘’«»`"
_DASHES = "-–—"
_BRACKETS = "()[]{}<>"
_CLAUSE = set(".,;:!?\n—–")


def classes_of(text: str) -> frozenset[str]:
    """The classes of one token's text (as decoded, with its leading space); empty for none."""
    stripped = text.strip(" ")
    found = set(_surface(text, stripped))
    if _WORD.fullmatch(stripped):
        found |= _word_classes(stripped.lower(), whole=_is_whole(text, stripped))
    return frozenset(found)


def membership(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Shape (tokens, classes): whether the token belongs to the class, columns in the order of `CLASSES`."""
    column = {name: index for index, name in enumerate(CLASSES)}
    table = np.zeros((len(texts), len(CLASSES)), bool)
    for row, text in enumerate(texts):
        for name in classes_of(text):
            table[row, column[name]] = True
    return table


def beginnings(ids: NDArray[np.int64], texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which tokens only begin words: more than half of their occurrences in `ids` are followed by a word piece.

    The text alone does not tell "·rep" from a word, the text around it does. Shape (tokens,).
    """
    piece = np.array([text[:1].islower() and text.isalpha() for text in texts])
    begins = np.array([text.strip(" ").isalpha() and (text[:1] == " " or text[:1].isupper()) for text in texts])
    total = np.bincount(ids[:-1], minlength=len(texts))
    followed = np.bincount(ids[:-1], weights=piece[ids[1:]], minlength=len(texts))
    found: NDArray[np.bool_] = begins & (total > 0) & (followed > total / 2)
    return found


def _is_whole(text: str, stripped: str) -> bool:
    """Whether the token begins a word: it has a leading space, a capital, or an apostrophe."""
    return text != stripped or stripped[0].isupper() or stripped[0] in "'’"


def _word_classes(word: str, *, whole: bool) -> set[str]:
    word = word.replace("’", "'")
    if not whole:
        # "and" after a dash is a word; "er", "in" or "at" inside one is not.
        return set(_listed().get(word, ())) if len(word) >= 3 and word in _closed_words() else set()
    found = set(_listed().get(word, ()))
    if len(word) < 3 or "'" in word:
        return found
    if word in words.COMPARATIVES or (_ends(word, "er") and _adjectival(word, "er", words.NOT_COMPARATIVE)):
        found.add("comparative")
    if word in words.SUPERLATIVES or (_ends(word, "est") and word not in words.NOT_SUPERLATIVE):
        found.add("superlative")
    if word in _participles() or (_ends(word, "ed") and word not in words.NOT_PARTICIPLE):
        found.add("passive participle")
    if word in _pasts() or (_ends(word, "ed") and word not in words.NOT_PARTICIPLE):
        found.add("past tense")
    if len(word) >= 5 and word.endswith("ing") and word not in words.NOT_PROGRESSIVE:
        found.add("-ing form")
    if len(word) >= 5 and word.endswith("ly") and word not in words.NOT_ADVERB:
        found.add("adverb in -ly")
    if len(word) >= 6 and _ABSTRACT.fullmatch(word):
        found.add("abstract noun")
    if len(word) >= 4 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        found.add("form in -s")
    if found & {"positive valence", "negative valence"}:
        found.add("valence")
    return found


def _ends(word: str, ending: str) -> bool:
    """Whether the word is a stem of three letters or more with a vowel, and the ending."""
    stem = word.removesuffix(ending)
    return stem != word and len(stem) >= 3 and any(letter in "aeiouy" for letter in stem)


def _adjectival(word: str, ending: str, exceptions: frozenset[str]) -> bool:
    """Whether taking the ending off leaves a listed adjective: most words in -er are agents (writer, banker)."""
    if word in exceptions:
        return False
    stem = word.removesuffix(ending)
    doubled = stem[:-1] if len(stem) > 2 and stem[-1] == stem[-2] else stem
    return bool({stem, stem + "e", doubled, stem.removesuffix("i") + "y"} & _adjectives())


def inflect(verb: str) -> frozenset[str]:
    """The forms of a verb: base, -s, past, past participle, -ing."""
    past, participle = words.IRREGULAR.get(verb, (None, None))
    ends_in_y = verb.endswith("y") and verb[-2:-1] not in _VOWELS
    third = verb[:-1] + "ies" if ends_in_y else verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")
    doubled = verb + verb[-1] if _doubles(verb) else verb
    if verb.endswith("e"):
        regular, progressive = verb + "d", (verb if verb.endswith(("ee", "ye")) else verb[:-1]) + "ing"
        if verb.endswith("ie"):
            progressive = verb[:-2] + "ying"
    else:
        regular, progressive = (verb[:-1] + "ied" if ends_in_y else doubled + "ed"), doubled + "ing"
    return frozenset({verb, third, past or regular, participle or regular, progressive})


def _doubles(verb: str) -> bool:
    """Whether the last consonant doubles before -ed and -ing: one short syllable (stop, beg)."""
    return (
        len(verb) >= 3
        and verb[-1] not in _VOWELS + "wxy"
        and verb[-2] in _VOWELS
        and verb[-3] not in _VOWELS
        and sum(letter in _VOWELS for letter in verb) == 1
    ) or verb in {"begin", "forget", "forbid", "prefer", "admit", "permit", "commit", "travel"}


def _plural(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in _VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


@cache
def _listed() -> dict[str, tuple[str, ...]]:
    """word → the list classes it stands in, with inflected forms."""
    found: dict[str, set[str]] = {}
    for group in (words.CLOSED, words.ADJECTIVES):
        for name, members in group.items():
            for word in members:
                found.setdefault(word, set()).add(name)
    for name, members in words.VERBS.items():
        for form in {form for verb in members for form in inflect(verb)}:
            found.setdefault(form, set()).add(name)
    for name, members in words.NOUNS.items():
        for form in members | {_plural(noun) for noun in members if name not in ("person name", "place")}:
            found.setdefault(form, set()).add(name)
    return {word: tuple(sorted(names)) for word, names in found.items()}


@cache
def _closed_words() -> frozenset[str]:
    return frozenset(word for members in words.CLOSED.values() for word in members)


@cache
def _adjectives() -> frozenset[str]:
    listed = frozenset(word for members in words.ADJECTIVES.values() for word in members)
    return listed | words.split(
        "soft warm cold clear bold sharp grave quick slow near close hot dry wet loud calm firm rough smooth fierce "
        "keen plain pure rare ripe sane sick stout strict sure tame tight vague wild busy easy heavy merry pretty "
        "funny lazy dirty angry hungry healthy wealthy worthy lovely stern steep swift"
    )


@cache
def _pasts() -> frozenset[str]:
    return frozenset(past for past, _ in words.IRREGULAR.values()) | {"was", "were"}


@cache
def _participles() -> frozenset[str]:
    return frozenset(participle for _, participle in words.IRREGULAR.values()) | {"been", "done", "gone"}


def _surface(text: str, stripped: str) -> set[str]:
    """Classes by the look of a token."""
    if "\n" in text and not stripped.strip():
        return {"line break", "clause boundary"}
    if not stripped or "\ufffd" in stripped:
        return set()
    found: set[str] = set()
    characters = set(stripped)
    if all(unicodedata.category(character)[0] in "PS" or character in "\n\r" for character in stripped):
        found.add("punctuation")
        found |= {"clause boundary"} if characters & _CLAUSE or "--" in stripped else set()
        found |= {"sentence end"} if characters & set(".!?") else set()
        found |= {"quotation mark"} if characters & set(_QUOTES) else set()
        found |= {"dash"} if characters <= set(_DASHES) else set()
        found |= {"bracket"} if characters & set(_BRACKETS) else set()
        return found
    if stripped.isdigit():
        return {"digit", "number"}
    if stripped.isalpha():
        if len(stripped) > 1 and stripped[0].isupper() and not stripped.isupper():
            found.add("capitalised word")
        if text == stripped and stripped.islower():
            found.add("word piece")
            if stripped in _ENDINGS:
                found.add("word ending")
    return found


__all__ = ["BEGINNING", "CLASSES", "beginnings", "classes_of", "inflect", "membership"]
