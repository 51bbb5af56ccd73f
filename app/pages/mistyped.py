"""A target or contrast typed as text on a reading's page: the token that it is, or what to show beside it instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.pages.asking import Prompt, one_token
from app.services import Services
from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from app.pages.readings import Asked

TYPED = {"target_text": "", "contrast_text": ""}


@dataclass(frozen=True, slots=True)
class Mistyped:
    """What stands in the form's two fields, and the sentence that says what is wrong with it."""

    target: str
    contrast: str
    error: str


def spelled(services: Services, prompt: Prompt, asked: Asked) -> Asked:
    """Target and contrast typed as text become ids; the address then holds the ids.

    Raises `LegibleError` for a text that is not one token.
    """
    if not asked.target_text and not asked.contrast_text:
        return asked
    checkpoint = services.catalogue.get(prompt.checkpoint_hash)
    target, contrast = asked.target, asked.contrast
    if asked.target_text:
        target = one_token(services, checkpoint, asked.target_text, "target")
    if asked.contrast_text:
        contrast = one_token(services, checkpoint, asked.contrast_text, "contrast")
    if contrast is not None and target is None:
        target = services.store.predicted(prompt.digest, asked.position)
    relative = asked.relative_to if contrast is None else None  # with a contrast it has one meaning
    return asked.model_copy(
        update={
            **TYPED, "target": target, "contrast": contrast, "relative_to": relative, "revision": None, "checks": False,
        }
    )  # fmt: skip


def mistyped(asked: Asked, error: LegibleError) -> tuple[Asked, Mistyped]:
    """The question as it was before the text was typed, and the form that shows the text with the error."""
    said = f"{error.message} {error.hint or ''}".strip()
    return asked.model_copy(update=TYPED), Mistyped(asked.target_text, asked.contrast_text, said)
