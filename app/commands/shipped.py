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


ELSEWHERE = "--out writes elsewhere and leaves them; --replace replaces them."


def keep_shipped(checkpoint: Checkpoint, files: Iterable[str], *, replace: bool, hint: str = ELSEWHERE) -> None:
    """Raise `Conflict` where `files` of a checkpoint in the program's own folder would be overwritten unasked.

    hint: what to do instead, where the command has no --out. A person who follows an example with a short text would
    lose figures of a long one, and has no other copy.
    """
    there = [] if replace else shipped_files(checkpoint, files)
    if there:
        raise Conflict(
            f"{checkpoint.slug} ships with {' and '.join(there)}, which this would replace by what is measured now.",
            code="shipped",
            hint=hint,
        )


def shipped_files(checkpoint: Checkpoint, files: Iterable[str]) -> list[str]:
    """Those of `files` that a checkpoint in the program's own folder has; none of any other checkpoint's."""
    return [name for name in files if (checkpoint.path / name).exists()] if ships(checkpoint) else []


def ships(checkpoint: Checkpoint) -> bool:
    """Whether it lies in the program's own folder of checkpoints."""
    from app.commands.read import shipped_roots

    return checkpoint.path.resolve().parent in {root.resolve() for root in shipped_roots()}
