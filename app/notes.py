"""Names, notes and votes of people on components, by the weights' hash: kept beside what the machine says.

    notes.save(hash, "L5.u263", base=0, name="age nouns", text="", author="Ada")     # revision 1
    notes.save(hash, "L5.u263", base=0, ...)                                         # Collision: holds what is there
    notes.of(hash, ["L5.u263", "L5.p39.A"])                                          # what is said of them now
    notes.vote(hash, "L5.u263", label="superlative", author="Ada", vote="right")

An edit names the revision that it was made from and is taken only if that is still the newest (compare and set); every
revision is kept. An empty name and note say nothing, which is how one is taken back. Imports no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from app.database import Database, insert_ignore
from app.people import MAX_NAME, MAX_NOTE, claim_author, clean_author, clean_line, clean_text
from app.search_text import storable
from app.tables import NoteRevisionRow, NoteRow, NoteWordRow, VoteRow, clock
from legible_core.errors import Conflict, LegibleError
from legible_core.units import parse

Vote = Literal["right", "wrong", "unclear"]
VOTES: tuple[Vote, ...] = get_args(Vote)
MAX_WORDS = 400
MAX_LABEL = 200
FOUND = 50


@dataclass(frozen=True, slots=True)
class Note:
    """One state of what people say of a component."""

    component: str
    revision: int
    name: str
    text: str
    author: str
    at: float

    @property
    def empty(self) -> bool:
        return not self.name and not self.text


@dataclass(frozen=True, slots=True)
class CastVote:
    component: str
    label: str
    author: str
    vote: str
    at: float


class Collision(Conflict):
    """Someone else changed a note after it was opened for this edit; `there` is what they wrote."""

    code = "edited_meanwhile"

    def __init__(self, there: Note) -> None:
        super().__init__(
            f"{there.author} changed what is said of {there.component} (revision {there.revision}) while you wrote; "
            "nothing of yours or theirs is lost.",
            hint="Look at both, and save yours again if it should stand.",
        )
        self.there = there


class Notes:
    """Notes and votes in SQL. Safe from many threads and many processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def save(self, checkpoint_hash: str, component: str, *, base: int, name: str, text: str, author: str) -> Note:
        """Store an edit made from revision `base` (0: none); Collision unless that is the newest one still.

        Raises LegibleError over the limits (120 and 8,000 characters) or for a person's name that is refused.
        """
        author = clean_author(author)
        name, text = clean_line(name, MAX_NAME, "name of a component"), clean_text(text, MAX_NOTE, "note")
        with self.database.write() as connection:
            there = _current(connection, checkpoint_hash, component)
            now = there.revision if there is not None else 0
            if there is not None and (name, text) == (there.name, there.text):
                return there  # both wrote the same, or nothing was changed
            if now != base:
                raise Collision(there) if there is not None else _unknown_revision(component, base)
            if there is None and not name and not text:
                raise LegibleError("Give a name or a note; both are empty.", code="empty_note", status=422)
            claim_author(connection, author)
            made = Note(component, now + 1, name, text, author, 0.0)
            if not append(connection, checkpoint_hash, made, base=now):
                found = _current(connection, checkpoint_hash, component)
                assert found is not None
                raise Collision(found)
            stored = _current(connection, checkpoint_hash, component)
        assert stored is not None
        return stored

    def of(self, checkpoint_hash: str, components: Sequence[str]) -> dict[str, Note]:
        """What people say of some components now; those of which they say nothing are left out."""
        query = select(*NoteRow.__table__.c).where(
            NoteRow.checkpoint_hash == checkpoint_hash, NoteRow.component.in_(list(components))
        )
        with self.database.read() as connection:
            return {row.component: _note(row) for row in connection.execute(query) if row.name or row.text}

    def current(self, checkpoint_hash: str, component: str) -> Note | None:
        """The newest state, an empty one too: what an edit starts from."""
        with self.database.read() as connection:
            return _current(connection, checkpoint_hash, component)

    def layer(self, checkpoint_hash: str, layer: int) -> dict[str, Note]:
        """Everything that is said of the components of a layer."""
        with self.database.read() as connection:
            rows = connection.execute(of_layer(checkpoint_hash, layer)).all()
        return {row.component: _note(row) for row in rows if row.name or row.text}

    def newest(self, checkpoint_hash: str, limit: int) -> list[Note]:
        """What is said of a checkpoint's components now, the newest first."""
        query = (
            select(*NoteRow.__table__.c)
            .where(NoteRow.checkpoint_hash == checkpoint_hash, (NoteRow.name != "") | (NoteRow.text != ""))
            .order_by(NoteRow.updated_at.desc(), NoteRow.component)
            .limit(limit)
        )
        with self.database.read() as connection:
            return [_note(row) for row in connection.execute(query)]

    def history(self, checkpoint_hash: str, component: str) -> list[Note]:
        """Every state of a note, newest first."""
        query = (
            select(*NoteRevisionRow.__table__.c)
            .where(NoteRevisionRow.checkpoint_hash == checkpoint_hash, NoteRevisionRow.component == component)
            .order_by(NoteRevisionRow.revision.desc())
        )
        with self.database.read() as connection:
            return [_note(row) for row in connection.execute(query)]

    def everything(self, checkpoint_hash: str) -> tuple[list[Note], list[CastVote]]:
        """All revisions of all notes, oldest first within a component, and all votes."""
        revisions = (
            select(*NoteRevisionRow.__table__.c)
            .where(NoteRevisionRow.checkpoint_hash == checkpoint_hash)
            .order_by(NoteRevisionRow.component, NoteRevisionRow.revision)
        )
        votes = (
            select(*VoteRow.__table__.c)
            .where(VoteRow.checkpoint_hash == checkpoint_hash)
            .order_by(VoteRow.component, VoteRow.label, VoteRow.author)
        )
        with self.database.read() as connection:
            notes = [_note(row) for row in connection.execute(revisions)]
            cast = [CastVote(r.component, r.label, r.author, r.vote, r.voted_at) for r in connection.execute(votes)]
        return notes, cast

    def mark(self, checkpoint_hash: str | None = None) -> int:
        """A number that grows whenever a note (of these weights) changes; one look at an index."""
        query = select(func.max(NoteRevisionRow.id))
        if checkpoint_hash is not None:
            query = query.where(NoteRevisionRow.checkpoint_hash == checkpoint_hash)
        with self.database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def search(self, words: str, checkpoint_hashes: Sequence[str], limit: int = FOUND) -> list[tuple[str, Note]]:
        """(checkpoint hash, note) of the notes that hold every word; nothing for a text without words."""
        wanted = words_of(words)
        if not wanted or not checkpoint_hashes:
            return []
        with self.database.read() as connection:
            rows = connection.execute(holding(wanted, checkpoint_hashes, limit)).all()
        return [(row.checkpoint_hash, _note(row)) for row in rows]

    def vote(self, checkpoint_hash: str, component: str, *, label: str, author: str, vote: str) -> None:
        """Cast or change a vote on a label of the machine's. A vote of another word is a LegibleError."""
        author = clean_author(author)
        if vote not in VOTES:
            message = f"A vote is right, wrong or unclear, not {vote[:20]!r}."
            raise LegibleError(message, code="bad_vote", status=422)
        with self.database.write() as connection:
            claim_author(connection, author)
            put_vote(connection, checkpoint_hash, CastVote(component, storable(label, MAX_LABEL), author, vote, 0.0))

    def votes(self, checkpoint_hash: str, components: Sequence[str]) -> dict[tuple[str, str], Counter[str]]:
        """How often each vote was cast, by component and label."""
        query = (
            select(VoteRow.component, VoteRow.label, VoteRow.vote, func.count())
            .where(VoteRow.checkpoint_hash == checkpoint_hash, VoteRow.component.in_(list(components)))
            .group_by(VoteRow.component, VoteRow.label, VoteRow.vote)
        )
        found: dict[tuple[str, str], Counter[str]] = {}
        with self.database.read() as connection:
            for component, label, vote, count in connection.execute(query):
                found.setdefault((component, label), Counter())[vote] = count
        return found


def of_layer(checkpoint_hash: str, layer: int) -> Select[Any]:
    """The statement of `Notes.layer`, answered from the index of layers."""
    return select(*NoteRow.__table__.c).where(NoteRow.checkpoint_hash == checkpoint_hash, NoteRow.layer == layer)


def holding(words: Sequence[str], checkpoint_hashes: Sequence[str], limit: int) -> Select[Any]:
    """The statement of `Notes.search`: one look at the index of words for each word."""
    query = select(*NoteRow.__table__.c).where(NoteRow.checkpoint_hash.in_(list(checkpoint_hashes)))
    for word in words:
        found = select(NoteWordRow.component).where(
            NoteWordRow.word == word,
            NoteWordRow.checkpoint_hash == NoteRow.checkpoint_hash,
            NoteWordRow.component == NoteRow.component,
        )
        query = query.where(found.exists())
    return query.order_by(NoteRow.updated_at.desc(), NoteRow.component).limit(limit)


def words_of(text: str) -> list[str]:
    """The distinct words of a text, folded, as the index of words has them."""
    return list(dict.fromkeys(word[:64] for word in re.findall(r"\w+", text.casefold())))[:MAX_WORDS]


def append(connection: Connection, checkpoint_hash: str, note: Note, *, base: int) -> bool:
    """Make `note` the newest state if `base` still is; False when someone was quicker. `note.at` 0 is now."""
    key = {"checkpoint_hash": checkpoint_hash, "component": note.component}
    at: Any = note.at or clock()
    layer = getattr(parse(note.component), "layer", 0)
    state = {"name": note.name, "text": note.text, "author": note.author}
    if base == 0:
        insert_ignore(connection, NoteRow, {**key, **state, "layer": layer, "revision": 0, "updated_at": at})
    changed = connection.execute(
        update(NoteRow)
        .where(
            NoteRow.checkpoint_hash == checkpoint_hash, NoteRow.component == note.component, NoteRow.revision == base
        )
        .values(**state, revision=base + 1, updated_at=at)
    ).rowcount
    if not changed:
        return False
    connection.execute(insert(NoteRevisionRow).values(**key, **state, revision=base + 1, created_at=at))
    connection.execute(
        delete(NoteWordRow).where(
            NoteWordRow.checkpoint_hash == checkpoint_hash, NoteWordRow.component == note.component
        )
    )
    words = words_of(f"{note.name} {note.text}")
    if words:
        connection.execute(insert(NoteWordRow), [{**key, "word": word} for word in words])
    return True


def put_vote(connection: Connection, checkpoint_hash: str, cast: CastVote) -> None:
    """Write a vote in place of the same person's earlier one on the same label."""
    key = (
        VoteRow.checkpoint_hash == checkpoint_hash, VoteRow.component == cast.component, VoteRow.label == cast.label,
        VoteRow.author == cast.author,
    )  # fmt: skip
    insert_ignore(
        connection,
        VoteRow,
        {"checkpoint_hash": checkpoint_hash, "component": cast.component, "label": cast.label, "author": cast.author,
         "vote": cast.vote, "voted_at": cast.at or clock()},
    )  # fmt: skip
    connection.execute(update(VoteRow).where(*key).values(vote=cast.vote, voted_at=cast.at or clock()))


def _current(connection: Connection, checkpoint_hash: str, component: str) -> Note | None:
    query = select(*NoteRow.__table__.c).where(
        NoteRow.checkpoint_hash == checkpoint_hash, NoteRow.component == component
    )
    row = connection.execute(query).first()
    return None if row is None else _note(row)


def _note(row: Any) -> Note:
    at = row.updated_at if hasattr(row, "updated_at") else row.created_at
    return Note(row.component, row.revision, row.name, row.text, row.author, at)


def _unknown_revision(component: str, base: int) -> LegibleError:
    message = f"Nothing is said of {component} yet, so there is no revision {base} to change; open its page again."
    return Conflict(message)
