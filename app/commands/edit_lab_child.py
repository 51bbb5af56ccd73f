"""`legible edit-lab install … --save SLUG`: an installed association as a child checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.settings import Settings

if TYPE_CHECKING:
    from legible_core.editing.install import Trial
    from legible_core.interventions import Edit
    from legible_core.registry import Checkpoint


@dataclass(frozen=True)
class Child:
    """The child that was saved, what it was given in words, and the edits that made it."""

    saved: Checkpoint
    words: str
    edits: tuple[Edit, ...]


def check_slug(slug: str | None) -> None:
    """A name that cannot be had is told before anything is measured; raises `LegibleError` or `Conflict`."""
    from app.commands.edit import free_folder

    if slug is not None:
        free_folder(Settings.load(), slug)


def saving(
    parent: Checkpoint, show: Callable[[int], str], slug: str | None, arms: Mapping[str, Sequence[Trial]]
) -> Callable[[], Child] | None:
    """What saves the cheapest installed association of all arms under a slug; None where no child is wanted.

    show: a token in words. Raises what `worth_saving` and `save_child` raise when it is called.
    """
    if slug is None:
        return None

    def save() -> Child:
        from app.commands.edit import made_child
        from legible_core.editing.installed import worth_saving

        best = worth_saving([trial for trials in arms.values() for trial in trials])
        key, target = (show(token) for token in best.pair)
        words = f"{key} → {target} in layer {best.layer} with β = {best.beta:g}, for {best.cost:.4f} nats"
        return Child(made_child(Settings.load(), parent, best.edits, slug), words, best.edits)

    return save


__all__ = ["Child", "check_slug", "saving"]
