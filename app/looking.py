"""What a worker can look at closer, besides readings; torch is loaded by the first job that needs it.

| kind | payload | result |
| --- | --- | --- |
| why | request (its position is where the operand is), slug, operand, optionally through | `upstream.upstream_detail` |
| values | digest of a stored text, checkpoint, dtype, components, first, last | the values of those tokens |
| patterns | checkpoint, dtype, head, prompts (lists of token ids) | the attention from each prompt's last token |
| similar | checkpoint, dtype, unit | `similar.similar_units` |
| account | request, slug | `accounting.one.document` |
| pair | checkpoint, dtype, slug, good, bad (sentences) | `minimal_pair.judge`; the reading of the fork is stored |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from app.worker import Context, Handler, Outcome
from legible_core.errors import NotFound
from legible_core.reading import ReadingRequest
from legible_core.reads import pack_rows, windows
from legible_core.units import Head, Unit, parse

if TYPE_CHECKING:
    from app.handlers import Engines


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handlers of this module over a worker's engines."""
    looking = Looking(engines)
    return {
        "why": looking.why,
        "values": looking.values,
        "patterns": looking.patterns,
        "similar": looking.similar,
        "pair": looking.pair,
        "account": looking.account,
    }


class Looking:
    """One function per kind of job; the worker's engines hold the models."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    def why(self, context: Context) -> Outcome:
        """Everything upstream of one operand at one position of a prompt."""
        from legible_core.upstream import upstream_detail

        payload = context.payload
        request = ReadingRequest.from_json(payload["request"])
        engine = self.engines.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        through = payload.get("through")
        return Outcome(
            upstream_detail(engine, request, parse(payload["operand"]), None if through is None else parse(through))
        )

    def values(self, context: Context) -> Outcome:
        """Some components on a stretch of a stored text, window by window."""
        import torch

        from legible_core.values import part_values

        payload = context.payload
        prompt = context.store.prompt(payload["digest"])
        if prompt is None:
            raise NotFound("The text was deleted, so there is nothing to look at.")
        engine = self.engines.engine(context, prompt.checkpoint_hash, prompt.dtype)
        context.stage("run")
        components = [parse(text) for text in payload["components"]]
        plan = windows(len(prompt.ids), engine.config.context, payload["first"], payload["last"])
        parts = []
        for number, values in enumerate(part_values(engine.model, prompt.ids, components, plan), 1):
            parts.append(values)
            context.between_batches(number, len(plan))
        return Outcome({"first": payload["first"], "values": pack_rows(torch.cat(parts, dim=1).numpy())})

    def patterns(self, context: Context) -> Outcome:
        """Where a head looks from the last token of some prompts."""
        payload = context.payload
        engine = self.engines.engine(context, payload["checkpoint"], payload["dtype"])
        context.stage("run")
        head = parse(payload["head"])
        assert isinstance(head, Head)
        rows = []
        for number, ids in enumerate(payload["prompts"], 1):
            trace, position, _ = engine.run(ReadingRequest(payload["checkpoint"], tuple(ids), dtype=payload["dtype"]))
            pattern = engine.model.attention_row(head.layer, head.head, trace, position)
            rows.append([round(weight, 4) for weight in pattern.tolist()])
            context.between_batches(number, len(payload["prompts"]))
        return Outcome({"id": str(head), "patterns": rows})

    def similar(self, context: Context) -> Outcome:
        """The units that are like a unit."""
        from legible_core.naming.similar import similar_units

        payload = context.payload
        engine = self.engines.engine(context, payload["checkpoint"], payload["dtype"])
        context.stage("run")
        unit = parse(payload["unit"])
        assert isinstance(unit, Unit)
        return Outcome(similar_units(engine.model, engine.names, unit))

    def pair(self, context: Context) -> Outcome:
        """Two sentences scored, and what separates them where they part."""
        from legible_core.minimal_pair import judge

        payload = context.payload
        engine = self.engines.engine(context, payload["checkpoint"], payload["dtype"])
        context.stage("run")
        found = judge(engine, payload["good"], payload["bad"])
        fork = found.fork
        if fork is None:
            return Outcome({**found.to_json(), "fork": None})
        reading = engine.read(fork)
        context.stage("store")
        assert engine.tokenizer is not None  # an engine that was opened from a folder has one
        text = engine.tokenizer.decode(fork.ids)

        def write(connection: Connection) -> None:
            context.store.put_reading(fork, reading, slug=payload["slug"], text=text, connection=connection)

        place = {"position": fork.position, "target": fork.target, "contrast": fork.contrast}
        return Outcome({**found.to_json(), "fork": {"digest": fork.digest, **place}}, write)

    def account(self, context: Context) -> Outcome:
        """How many components carry one prediction, and which."""
        from legible_core.accounting.one import document

        request = ReadingRequest.from_json(context.payload["request"])
        engine = self.engines.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        return Outcome(document(engine, request))
