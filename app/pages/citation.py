"""How a stored reading is cited: one BibTeX entry with the weights' hash, the code's version and the address.

The year is that in which the reading was made, so the same reading is cited in the same words for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime

from app.pages.view import clipped
from app.store_types import StoredReading

# What TeX would take for a command; everything else is text to it.
_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
}  # fmt: skip


def citation(stored: StoredReading, *, text: str, target: str, origin: str, address: str) -> str:
    """The entry on one line; `text` is the prompt up to the read position, `address` the permalink's path."""
    made = datetime.fromtimestamp(stored.created_at, UTC)
    title = f"The prediction of {target} after “{clipped(text, 60)}” by {stored.slug}"
    note = (
        f"Legible {stored.code_version}; weights SHA-256 {stored.checkpoint_hash}; reading {stored.digest}, "
        f"position {stored.position}, target {stored.target}"
        + (f", contrast {stored.contrast}" if stored.contrast is not None else "")
        + (", relative to the vocabulary mean" if stored.relative_to == "mean" else "")
        + f", revision {stored.revision}"
    )
    fields = (
        f"title={{{{{escaped(title)}}}}}",
        f"year={{{made.year}}}",
        f"date={{{made:%Y-%m-%d}}}",
        f"url={{{origin}{address}}}",
        f"note={{{escaped(note)}}}",
    )
    return f"@misc{{legible-{stored.digest[:10]}-{stored.position}-{stored.target}, {', '.join(fields)}}}"


def escaped(text: str) -> str:
    """Text that TeX prints as it stands."""
    return "".join(_TEX.get(character, character) for character in text)
