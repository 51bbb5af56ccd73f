"""The worker's part of a continuation: tokens as they come, then the unit that led each of them.

| kind | payload | result |
| --- | --- | --- |
| generate | digest of a stored text, checkpoint, dtype, tokens, temperature, seed | tokens, the whole text's digest |

What is written so far is stored with the progress. A worker that dies costs at most half a second of tokens: the next
attempt goes on from what is stored, so every token is there once. The whole text is stored with the job's end, in one
transaction, so that each token's reading has an address.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from app.texts import put_text
from app.worker import Context, Handler, Outcome
from legible_core.errors import NotFound
from legible_core.reading import digest
from legible_core.sampling import Sampling

if TYPE_CHECKING:
    from app.handlers import Engines


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handlers of this module over a worker's engines."""
    return {"generate": Generating(engines).generate}


class Generating:
    """One function per kind of job; the worker's engines hold the models."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    def generate(self, context: Context) -> Outcome:
        """Go on with a stored text."""
        from legible_core.generate import continuation, leading

        payload = context.payload
        prompt = context.store.prompt(payload["digest"])
        if prompt is None:
            raise NotFound("The text was deleted, so there is nothing to go on with.")
        engine = self.engines.engine(context, prompt.checkpoint_hash, prompt.dtype)
        context.stage("run")
        asked = Sampling(payload["tokens"], payload["temperature"], payload["seed"])
        sampling = asked.fit(len(prompt.ids), engine.config.context)
        tokenizer = engine.tokenizer
        assert tokenizer is not None  # an engine that was opened from a folder has one
        special = {i for i in range(min(tokenizer.vocab_size, engine.config.vocab_size)) if tokenizer.is_special(i)}
        rows: list[dict[str, Any]] = list((context.job.result or {}).get("tokens", ()))
        done = [row["id"] for row in rows]
        # Two steps a token: it is written, and it is read.
        total = 2 * sampling.tokens
        for written in continuation(engine.model, prompt.ids, sampling, done=done, stop=special):
            rows.append(dataclasses.asdict(written))
            context.so_far({"tokens": rows}, len(rows), total)
            context.between_batches(len(rows), total)
        whole = (*prompt.ids, *(row["id"] for row in rows))
        read = []
        for place, row in enumerate(rows):
            found = leading(engine, whole, len(prompt.ids) + place - 1)
            read.append({**row, **dataclasses.asdict(found)})
            context.so_far({"tokens": [*read, *rows[place + 1 :]]}, len(rows) + place + 1, 2 * len(rows))
            context.between_batches(len(rows) + place + 1, 2 * len(rows))
        context.stage("store")
        dtype: Any = prompt.dtype
        made = digest(prompt.checkpoint_hash, whole, (), dtype)

        def write(connection: Connection) -> None:
            put_text(
                context.store.database, prompt.checkpoint_hash, whole, tokenizer.decode(whole),
                slug=prompt.slug, dtype=dtype, connection=connection,
            )  # fmt: skip

        return Outcome({"tokens": read, "digest": made, "stopped": read[-1]["id"] in special}, write)
