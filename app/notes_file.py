"""The notes and votes on one set of weights as a JSON document, and back (docs/sharing.md, version 1).

    document = export_notes(notes, checkpoint_hash, slug)
    result = import_notes(notes, config, checkpoint_hash, text)      # what was added, kept and known already

An import loses nothing: revisions that are not here yet are appended. A note that was changed here meanwhile keeps what
stands here as its newest revision, and the imported ones are in its history.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection, select

from app.notes import MAX_LABEL, CastVote, Note, Notes, append, put_vote
from app.people import (
    MAX_AUTHOR,
    MAX_NAME,
    MAX_NOTE,
    claim_author,
    clean_author,
    clean_line,
    clean_text,
    first_spelling,
)
from app.search_text import storable
from app.tables import NoteRevisionRow, VoteRow
from legible_core.config import ModelConfig
from legible_core.errors import Conflict, Corrupt, LegibleError
from legible_core.reads import check_component
from legible_core.units import Floor, parse

FORMAT = "legible-notes"
VERSION = 1
MAX_NOTES = 50_000
MAX_REVISIONS = 10_000
LATEST = 4_102_444_800.0  # 2100: a time beyond it is none


class Revision(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(max_length=MAX_NAME)
    text: str = Field(max_length=MAX_NOTE)
    author: str = Field(max_length=MAX_AUTHOR)
    at: float = Field(ge=0, le=LATEST, allow_inf_nan=False)


class NoteEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    component: str = Field(max_length=40)
    revisions: list[Revision] = Field(min_length=1, max_length=MAX_REVISIONS)


class VoteEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    component: str = Field(max_length=40)
    label: str = Field(max_length=MAX_LABEL)
    author: str = Field(max_length=MAX_AUTHOR)
    vote: Literal["right", "wrong", "unclear"]
    at: float = Field(ge=0, le=LATEST, allow_inf_nan=False)


class Document(BaseModel):
    """A file of notes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["legible-notes"]
    version: Literal[1]
    checkpoint: str = Field(pattern="^[0-9a-f]{64}$")
    slug: str = Field(max_length=100)
    notes: list[NoteEntry] = Field(max_length=MAX_NOTES)
    votes: list[VoteEntry] = Field(max_length=MAX_NOTES)


@dataclass(frozen=True, slots=True)
class Imported:
    """Notes by what became of them (`kept`: stands as it stood here, the imported ones are in its history)."""

    added: int
    updated: int
    kept: tuple[str, ...]
    known: int
    votes: int

    def said(self) -> str:
        """One sentence."""
        text = f"{self.added} notes added, {self.updated} brought up to date, {self.known} known already"
        if self.kept:
            text += f", {len(self.kept)} kept as they stand here with the imported ones in their history"
            text += f" ({', '.join(self.kept[:10])}{', …' if len(self.kept) > 10 else ''})"
        return f"{text}; {self.votes} votes added."


def export_notes(notes: Notes, checkpoint_hash: str, slug: str) -> dict[str, Any]:
    """All revisions of all notes, oldest first, and all votes."""
    revisions, votes = notes.everything(checkpoint_hash)
    by_component: dict[str, list[Note]] = defaultdict(list)
    for note in revisions:
        by_component[note.component].append(note)
    return {
        "format": FORMAT,
        "version": VERSION,
        "checkpoint": checkpoint_hash,
        "slug": slug,
        "notes": [
            {
                "component": component,
                "revisions": [{"name": n.name, "text": n.text, "author": n.author, "at": n.at} for n in found],
            }
            for component, found in by_component.items()
        ],
        "votes": [
            {"component": v.component, "label": v.label, "author": v.author, "vote": v.vote, "at": v.at} for v in votes
        ],
    }


def import_notes(notes: Notes, config: ModelConfig, checkpoint_hash: str, text: str) -> Imported:
    """Take a document in, all of it or, where anything in it is wrong, nothing.

    Raises LegibleError for what is no such document, another version, other weights or a component that they lack.
    """
    document = _read(text)
    if document.checkpoint != checkpoint_hash:
        raise Conflict(
            f"These notes are about other weights ({document.slug}, {document.checkpoint[:12]}); "
            f"this checkpoint is {checkpoint_hash[:12]}.",
            code="other_weights",
            hint="Open the page of the checkpoint that they are about and import them there.",
        )
    entries = [(_checked(config, entry.component), entry) for entry in document.notes]
    counts: Counter[str] = Counter()
    kept = []
    with notes.database.write() as connection:
        for component, entry in entries:
            became = _merge(connection, checkpoint_hash, component, entry.revisions)
            counts[became] += 1
            if became == "kept":
                kept.append(component)
        votes = sum(_merge_vote(connection, config, checkpoint_hash, vote) for vote in document.votes)
    return Imported(counts["added"], counts["updated"], tuple(kept), counts["known"], votes)


def _read(text: str) -> Document:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise Corrupt("This is no JSON document, so no notes can be read from it.", code="bad_notes") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        message = f'This JSON is no file of notes; one begins {{"format": "{FORMAT}", "version": {VERSION}, …}}.'
        raise Corrupt(message, code="bad_notes")
    if raw.get("version") != VERSION:
        raise Corrupt(
            f"These notes are written in version {str(raw.get('version'))[:20]}; this Legible reads version {VERSION}.",
            code="wrong_version",
            hint="Export them again with the same version of Legible as this one.",
        )
    try:
        return Document.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"The file of notes is wrong at {place[:120]}: {first['msg']}.", code="bad_notes") from None


def _checked(config: ModelConfig, component: str) -> str:
    found = parse(component)
    if isinstance(found, Floor):
        raise LegibleError(f"{component} is part of the floor; notes are about heads, channels, units and operands.")
    check_component(config, found)
    return str(found)


def _merge(connection: Connection, checkpoint_hash: str, component: str, revisions: list[Revision]) -> str:
    """Append what is not here yet: "added", "updated", "kept" or "known"."""
    query = (
        select(NoteRevisionRow.name, NoteRevisionRow.text, NoteRevisionRow.author)
        .where(NoteRevisionRow.checkpoint_hash == checkpoint_hash, NoteRevisionRow.component == component)
        .order_by(NoteRevisionRow.revision)
    )
    here = [tuple(row) for row in connection.execute(query)]
    there = [_clean(connection, revision, component) for revision in revisions]
    states = [(note.name, note.text, note.author) for note in there]
    if here and states[-1] in here:
        return "known"
    fresh = [note for note, state in zip(there, states, strict=True) if state not in here]
    ahead = not here or here[-1] in states
    if not ahead:  # changed on both sides: what stands here goes on standing
        name, text, author = here[-1]
        fresh.append(Note(component, 0, name, text, author, 0.0))
    for base, note in enumerate(fresh, len(here)):
        if not append(connection, checkpoint_hash, note, base=base):
            raise Conflict(f"{component} was changed during the import; nothing was imported.", hint="Import again.")
    return "added" if not here else "updated" if ahead else "kept"


def _clean(connection: Connection, revision: Revision, component: str) -> Note:
    return Note(
        component,
        0,
        clean_line(revision.name, MAX_NAME, "name of a component"),
        clean_text(revision.text, MAX_NOTE, "note"),
        _author(connection, revision.author),
        revision.at,
    )


def _author(connection: Connection, name: str) -> str:
    """The imported name; where it looks like another that writes here, it says that it came with an import."""
    author = clean_author(name)
    if first_spelling(connection, author) not in (None, author):
        author = clean_author(f"{author[: MAX_AUTHOR - 12]} (imported)")
    if first_spelling(connection, author) in (None, author):
        claim_author(connection, author)
    return author


def _merge_vote(connection: Connection, config: ModelConfig, checkpoint_hash: str, entry: VoteEntry) -> bool:
    """Add a vote unless that person's is here."""
    component, author = _checked(config, entry.component), _author(connection, entry.author)
    label = storable(entry.label, MAX_LABEL)
    there = select(VoteRow.vote).where(
        VoteRow.checkpoint_hash == checkpoint_hash, VoteRow.component == component, VoteRow.label == label,
        VoteRow.author == author,
    )  # fmt: skip
    if connection.execute(there).first() is not None:
        return False
    put_vote(connection, checkpoint_hash, CastVote(component, label, author, entry.vote, entry.at))
    return True
