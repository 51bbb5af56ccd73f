"""What people write: cleaned text within stated limits, and names that cannot pass for someone else's.

    clean_author("  Ａda ")            # "Ａda": NFC, one line, nothing invisible
    clean_text(typed, MAX_NOTE, "note")
    claim_author(connection, "Ada")   # Conflict where "ada" or "Ａda" already wrote here

There are no accounts: a name is what its writer says. The names here are told apart by what meets the eye (NFKC, case
folded), and a name that mixes Latin, Greek and Cyrillic letters is refused, because single letters of these look alike.
A name of one foreign script only, such as an all-Cyrillic one that resembles a Latin one, is accepted.
"""

from __future__ import annotations

import unicodedata

from sqlalchemy import Connection, select

from app.database import insert_ignore
from app.tables import AuthorRow, clock
from legible_core.errors import Conflict, LegibleError, TooLarge

MAX_AUTHOR = 60
MAX_NAME = 120
MAX_NOTE = 8_000
SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
# They change what other characters look like or where they stand, and show nothing themselves.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINERS = frozenset("\u200c\u200d")  # they hold emoji and some scripts together


def clean_text(text: str, limit: int, what: str) -> str:
    """Text of several lines in NFC without control and bidi characters; TooLarge over `limit` characters."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "".join(c for c in text if c in "\n\t" or (c not in _BIDI and unicodedata.category(c) not in ("Cc", "Cs")))
    text = text.strip()
    if len(text) > limit:
        raise TooLarge(f"A {what} may have at most {limit:,} characters; this one has {len(text):,}.")
    return text


def clean_line(text: str, limit: int, what: str) -> str:
    """The same on one line, without characters that show nothing."""
    text = "".join(c for c in text if c in "\n\t\r" or c in _JOINERS or unicodedata.category(c) != "Cf")
    return " ".join(clean_text(text, limit, what).split())


def clean_author(text: str) -> str:
    """A person's name; LegibleError when it is empty, too long or of mixed scripts."""
    name = clean_line(text.replace("\u200c", "").replace("\u200d", ""), MAX_AUTHOR, "name of a person")
    if not any(unicodedata.category(c)[0] in "LN" for c in name):
        raise LegibleError("Say who writes: a name with at least one letter or digit.", code="no_author", status=422)
    found = {script for c in name for script in SCRIPTS if unicodedata.name(c, "").startswith(script + " ")}
    if len(found) > 1:
        mixed = " and ".join(script.capitalize() for script in SCRIPTS if script in found)
        raise LegibleError(
            f"The name {name!r} mixes {mixed} letters, some of which look alike; write it in one script.",
            code="mixed_scripts",
            status=422,
        )
    return name


def skeleton(author: str) -> str:
    """What of a name meets the eye: compatibility forms, case, accents' spelling and spaces aside."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", author).casefold())
    return "".join(folded.split())[:200]


def claim_author(connection: Connection, author: str) -> None:
    """Remember that this name writes here; Conflict when one that looks like it did so first."""
    first = first_spelling(connection, author)
    if first is None:
        row = {"skeleton": skeleton(author), "author": author, "created_at": clock()}
        insert_ignore(connection, AuthorRow, row)
        first = first_spelling(connection, author)  # another process may have been quicker
    if first != author:
        raise Conflict(
            f"The name {author!r} looks like {first!r}, under which someone already wrote here.",
            code="author_taken",
            hint=f"If that is you, write it {first!r}; otherwise choose a name that cannot be mistaken for it.",
        )


def first_spelling(connection: Connection, author: str) -> str | None:
    """How a name that looks like this one was first written here; None when none was."""
    return connection.execute(select(AuthorRow.author).where(AuthorRow.skeleton == skeleton(author))).scalar()
