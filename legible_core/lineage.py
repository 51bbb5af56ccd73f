"""Which checkpoint a child comes from, as its card says; imports no torch.

A child's card has `parent` (the hash), `parent_slug` (what it was called) and `edits`, a JSON list of short texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from legible_core.errors import Corrupt, LegibleError
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text, parse_edit
from legible_core.registry import Checkpoint


@dataclass(frozen=True)
class Lineage:
    """Where a child comes from: its parent's hash, the slug that it had then, and the edits in their order."""

    parent: str
    slug: str
    edits: tuple[Edit, ...]


def lineage(checkpoint: Checkpoint) -> Lineage | None:
    """The parent and edits that a card names; None for a checkpoint that is no child.

    Raises `Corrupt` for a card whose edits cannot be read.
    """
    fields = checkpoint.card.fields
    if "parent" not in fields:
        return None
    try:
        texts = json.loads(fields.get("edits", ""))
        if not isinstance(texts, list) or not texts:
            raise ValueError
        edits = tuple(parse_edit(str(text)) for text in texts)
    except (ValueError, RecursionError, LegibleError):
        raise Corrupt(
            f"The card of {checkpoint.slug} names a parent, but its edits cannot be read; they are a JSON list such as "
            '["L5.u263:zero"].'
        ) from None
    return Lineage(fields["parent"], fields.get("parent_slug", ""), edits)


def lineage_fields(parent: Checkpoint, edits: tuple[Edit, ...]) -> dict[str, str]:
    """The card's lines that `lineage` reads back."""
    texts = [edit_text(edit) for edit in edits]
    return {"parent": parent.hash, "parent_slug": parent.slug, "edits": json.dumps(texts, ensure_ascii=False)}
