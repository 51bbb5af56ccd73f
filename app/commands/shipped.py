"""What came with a shipped checkpoint is replaced only where that was asked for.

keep_shipped(checkpoint, ("names.json",), replace=False)      # raises Conflict where they are there
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from legible_core.errors import Conflict

if TYPE_CHECKING:
    from legible_core.registry import Checkpoint

Replace = Annotated[
    bool, typer.Option("--replace", help="Replace what a shipped checkpoint came with by what is measured now.")
]


def keep_shipped(checkpoint: Checkpoint, files: Iterable[str], *, replace: bool) -> None:
    """Raise `Conflict` where `files` of a checkpoint in the program's own folder would be overwritten unasked.

    A person who follows an example with a short text would lose figures of a long one, and has no other copy.
    """
    there = [] if replace else shipped_files(checkpoint, files)
    if there:
        raise Conflict(
            f"{checkpoint.slug} ships with {' and '.join(there)}, which this would replace by what is measured now.",
            code="shipped",
            hint="--out writes elsewhere and leaves them; --replace replaces them.",
        )


def shipped_files(checkpoint: Checkpoint, files: Iterable[str]) -> list[str]:
    """Those of `files` that a checkpoint in the program's own folder has; none of any other checkpoint's."""
    from app.commands.read import shipped_roots

    if checkpoint.path.resolve().parent not in {root.resolve() for root in shipped_roots()}:
        return []
    return [name for name in files if (checkpoint.path / name).exists()]
