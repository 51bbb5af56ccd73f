"""What the store hands out: readings, their cards, prompts, added checkpoints, and how rows become them.

Imports no torch.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legible_core.reading import Reading

NO_CONTRAST = -1


@dataclass(frozen=True, slots=True)
class StoredReading:
    """One reading as stored: `summary` is JSON text, `terms` the compressed float32 array; `reading()` unpacks both.

    `revision_id` names exactly these bytes, for ever: the right ETag for anything made of them.
    """

    digest: str
    position: int
    target: int
    contrast: int | None
    relative_to: str
    slug: str
    checkpoint_hash: str
    revision_id: int
    revision: int
    code_version: str
    collected: bool
    created_at: float
    summary: str
    terms: bytes

    def reading(self) -> Reading:
        """The reading itself; raises Corrupt when the row does not hold what it claims."""
        from legible_core.reading import Reading

        return Reading.unpack(self.summary, self.terms)

    def json(self) -> dict[str, Any]:
        """The summary parsed."""
        parsed: dict[str, Any] = json.loads(self.summary)
        return parsed


@dataclass(frozen=True, slots=True)
class Revision:
    """One of the results of a reading, by the code that made it."""

    revision: int
    code_version: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ReadingCard:
    """A line in a list of readings: enough for a link that says what it opens."""

    digest: str
    position: int
    target: int
    contrast: int | None
    relative_to: str
    slug: str
    checkpoint_hash: str
    text: str
    n_tokens: int
    target_display: str
    probability: float
    collected: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    digest: str
    checkpoint_hash: str
    slug: str
    ids: tuple[int, ...]
    text: str
    edits: tuple[dict[str, Any], ...]
    dtype: str
    created_at: float


@dataclass(frozen=True, slots=True)
class AddedCheckpoint:
    slug: str
    hash: str
    path: str
    added_at: float


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    packed = array("i", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


def stored_of(row: Any) -> StoredReading:
    """A reading from a row of the store's join."""
    values = dict(row._mapping)
    values["contrast"] = None if values["contrast"] == NO_CONTRAST else values["contrast"]
    values["collected"] = values.pop("collected_at") is not None
    return StoredReading(**values)


def prompt_of(row: Any) -> StoredPrompt:
    """A prompt from its row."""
    return StoredPrompt(
        digest=row.digest,
        checkpoint_hash=row.checkpoint_hash,
        slug=row.slug,
        ids=unpack_ids(row.token_ids),
        text=row.text.decode("utf-8", "surrogatepass"),
        edits=tuple(row.edits),
        dtype=row.dtype,
        created_at=row.created_at,
    )


def card_of(row: Any) -> ReadingCard:
    """A card from a row that has the prompt's columns beside the reading's."""
    return ReadingCard(
        digest=row.digest,
        position=row.position,
        target=row.target,
        contrast=None if row.contrast == NO_CONTRAST else row.contrast,
        relative_to=row.relative_to,
        slug=row.slug,
        checkpoint_hash=row.checkpoint_hash,
        text=row.text.decode("utf-8", "surrogatepass"),
        n_tokens=row.size // 4,
        target_display=row.target_display,
        probability=row.probability,
        collected=row.collected_at is not None,
        created_at=row.created_at,
    )
