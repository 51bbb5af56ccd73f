"""What a worker computes while sliders move; torch is loaded by the first job.

| kind | payload | result |
| --- | --- | --- |
| tune | request (its edits are what the sliders say), slug, text, steps | `tuning.Tuned.to_json` |

Nothing is stored beside the job, and of such jobs only the last few are kept: a move is ephemeral until it is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.worker import Context, Handler, Outcome
from legible_core.reading import ReadingRequest

if TYPE_CHECKING:
    from app.handlers import Engines

KIND = "tune"


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handler of this module over a worker's engines."""

    def tune(context: Context) -> Outcome:
        """One prediction before and after its edits."""
        request = ReadingRequest.from_json(context.payload["request"])
        engine = engines.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        return Outcome(engine.tune(request, steps=int(context.payload["steps"])).to_json())

    return {KIND: tune}
