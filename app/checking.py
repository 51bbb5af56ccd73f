"""What a worker can check by re-running a prediction; torch is loaded by the first job.

| kind | payload | result |
| --- | --- | --- |
| check | request, slug, optionally top | `causal.checks.check`, with the checkpoint's bands where it has any |
| necessity, sufficiency | request, slug | `causal.sets`, `causal.sufficiency` |
| path | request, slug, first, second (ids) | `causal.paths.mediation` |
| sources | request, slug, operand (its id) | `causal.sources.sources` |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.catalogue import Catalogue
from app.worker import Context, Handler, Outcome
from legible_core.errors import LegibleError
from legible_core.reading import ReadingRequest
from legible_core.units import parse

if TYPE_CHECKING:
    from app.handlers import Engines
    from legible_core.causal.records import Checks
    from legible_core.pipeline import Engine

log = logging.getLogger(__name__)


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handlers of this module over a worker's engines."""

    def ready(context: Context) -> tuple[Engine, ReadingRequest]:
        request = ReadingRequest.from_json(context.payload["request"])
        engine = engines.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        return engine, request

    def check(context: Context) -> Outcome:
        """The leading contributions of a reading, each removed."""
        from legible_core.causal.checks import TOP
        from legible_core.causal.checks import check as run

        engine, request = ready(context)
        return Outcome(run(engine, request, context.payload.get("top", TOP), recorded(context, request.checkpoint)))

    def necessity(context: Context) -> Outcome:
        """The top sets of a prediction removed, beside random ones; the checkpoint's own record goes with it."""
        from legible_core.causal.sets import necessity as run

        engine, request = ready(context)
        record = recorded(context, request.checkpoint)
        held: dict[str, Any] | None = None
        if record is not None and record.necessity:
            held = {"corpus": record.sample.get("corpus"), **record.necessity}
        return Outcome({**run(engine, request), "held_out": held})

    def sufficiency(context: Context) -> Outcome:
        """The smallest kept set found."""
        from legible_core.causal.sufficiency import sufficiency as run

        return Outcome(run(*ready(context)))

    def path(context: Context) -> Outcome:
        """How much of one component's effect goes through another."""
        from legible_core.causal.paths import mediation

        engine, request = ready(context)
        return Outcome(mediation(engine, request, parse(context.payload["first"]), parse(context.payload["second"])))

    def sources(context: Context) -> Outcome:
        """What feeds an operand, told by removal."""
        from legible_core.causal.sources import sources as run

        engine, request = ready(context)
        return Outcome(run(engine, request, parse(context.payload["operand"])))

    return {"check": check, "necessity": necessity, "sufficiency": sufficiency, "path": path, "sources": sources}


def recorded(context: Context, checkpoint_hash: str) -> Checks | None:
    """The checkpoint's bands and means; a damaged file costs the flags, never the check."""
    from legible_core.causal.records import Checks

    checkpoint = Catalogue(context.store).get(checkpoint_hash)
    try:
        return Checks.load(checkpoint.path, checkpoint.hash, checkpoint.config)
    except LegibleError as error:
        log.warning("%s is checked without bands: %s", checkpoint.slug, error.message)
        return None
