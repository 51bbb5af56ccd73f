"""How text becomes a key of the search: what is stored and what is asked for go through the same functions."""

from __future__ import annotations

KEY_CHARACTERS = 200  # a database index holds short keys only
TEXT_CHARACTERS = 1000
LABEL_CHARACTERS = 100


def storable(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """Text as both databases hold it: no NUL, no half of a surrogate pair, not longer than `limit` characters."""
    return text[:limit].replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


def fold_token(text: str) -> str:
    """A token without its outer spaces and its case: " Worst" is found by "worst". One of spaces only stays itself."""
    return storable(text.strip(" ").casefold() or text, KEY_CHARACTERS)


def fold_label(text: str) -> str:
    """A label without its case and superfluous spaces."""
    return storable(" ".join(text.casefold().split()), LABEL_CHARACTERS)
