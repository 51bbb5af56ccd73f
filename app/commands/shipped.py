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
    from app.commands.read import shipped_roots

    if replace or checkpoint.path.resolve().parent not in {root.resolve() for root in shipped_roots()}:
        return
    there = [name for name in files if (checkpoint.path / name).exists()]
    if there:
        raise Conflict(
            f"{checkpoint.slug} ships with {' and '.join(there)}, which this would replace by what is measured on your "
            "text.",
            code="shipped",
            hint="--out writes elsewhere and leaves them; --replace replaces them.",
        )
