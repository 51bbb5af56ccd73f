"""A legible checkpoint read twice: natively, and as the GPT-2 folder that it was exported to, through TransformerLens.

    found = compare(checkpoint, folder, "It was the best of times, it was the")
    found.largest                      # {"channels": ..., "heads": ..., "units": ..., "floor": ..., "value": ...}

Two programs that share no line between the token ids and the terms: ours runs its own forward pass, the other Hugging
Face's modules. What they agree on is not an artefact of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from legible_core.errors import NotExact
from legible_core.reading import ReadingRequest
from legible_core.registry import Checkpoint

# In logits, for every single term.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Agreement:
    """tokens: of the prompt; target: the token asked about, as its id; terms: how many were compared.

    largest: for each sort of term the largest absolute difference in logits.
    """

    tokens: int
    target: int
    terms: int
    largest: dict[str, float]

    def check(self) -> None:
        """Raise `NotExact`, with both numbers, when some term differs by more than `TOLERANCE`."""
        for name, difference in self.largest.items():
            if not difference <= TOLERANCE:  # NaN as well
                raise NotExact(
                    f"The exported folder is not the checkpoint: a term ({name}) differs by {difference:.3g} from the "
                    f"native reading, over the tolerance {TOLERANCE:g}."
                )


def compare(checkpoint: Checkpoint, folder: Path, prompt: str) -> Agreement:
    """Every term of the prediction after `prompt`, read both ways in float32 on the CPU.

    The target is the token that the native reading finds most probable. Raises what opening either raises; whether
    the differences are within the tolerance is `Agreement.check`'s to say.
    """
    from legible_core.pipeline import Engine

    ours, theirs = Engine.open(checkpoint), Engine.open(folder)
    first = ours.solve(ours.request(prompt))
    ids, target = tuple(first.trace.ids.tolist()), first.question.target
    one = first.terms
    two = theirs.solve(ReadingRequest(theirs.checkpoint.hash, ids, target=target)).terms
    floor = {name: abs(two.floor.get(name, 0.0) - one.floor.get(name, 0.0)) for name in {**one.floor, **two.floor}}
    largest = {
        "channels": float(np.abs(two.channels - one.channels).max()),
        "heads": float(np.abs(two.heads - one.heads).max()),
        "units": float(np.abs(two.units - one.units).max()),
        "floor": max(floor.values()),
        "value": abs(two.value - one.value),
    }
    return Agreement(len(ids), target, one.channels.size + one.heads.size + one.units.size + len(floor) + 1, largest)
