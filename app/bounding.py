"""What a worker computes of bounds; torch is loaded by the first job.

| kind | payload | result |
| --- | --- | --- |
| bounds | request, slug, unit (its id), optionally radius | `bounds.unit_bounds` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.worker import Context, Handler, Outcome
from legible_core.reading import ReadingRequest
from legible_core.units import Unit, parse

if TYPE_CHECKING:
    from app.handlers import Engines


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handler of this module over a worker's engines."""

    def bounds(context: Context) -> Outcome:
        """Every bound of one unit at one prediction."""
        from legible_core.bounds import unit_bounds

        payload = context.payload
        request = ReadingRequest.from_json(payload["request"])
        engine = engines.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        unit = parse(payload["unit"])
        assert isinstance(unit, Unit)
        return Outcome(unit_bounds(engine, request, unit, payload.get("radius")))

    return {"bounds": bounds}
