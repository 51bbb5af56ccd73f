"""The worker's part of a stream under a monitor: reads what was sent, or writes, and flags every token once.

| kind | payload | result |
| --- | --- | --- |
| watch | stream (its id) | how many tokens and hits; hits are in SQL |

A job reads all pieces that are there and ends; the next piece brings the next job, so that a quiet stream holds no
worker. Hits, counts and the state after them are committed together, at most twice a second and after every thousand
hits. A worker that dies loses what came after the last commit, and the next one reads that again: nothing is there
twice.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.monitors import Monitors, Moved, Progress, Stream
from app.worker import Context, Handler, Outcome
from legible_core.errors import LegibleError, NotExact, NotFound
from legible_core.hits import Hit, Tally, Teller
from legible_core.monitor import Monitor
from legible_core.sampling import Sampling
from legible_core.text_stream import StreamToken, TextStream, as_sent

if TYPE_CHECKING:
    from app.handlers import Engines
    from legible_core.pipeline import Engine
    from legible_core.watching import Seen, Watch

KIND = "watch"
# Below a reading's and a continuation's: those wait for one slice of a stream at most.
PRIORITY = 40
SLICE = 1024  # bytes between two looks at what is more urgent
COMMIT_SECONDS = 0.5
COMMIT_HITS = 1000
LIVE = 4


def kinds(engines: Engines) -> Mapping[str, Handler]:
    """The handlers of this module over a worker's engines."""
    return {KIND: Watching(engines).watch}


def now_sent(monitors: Monitors, stream: Stream) -> int:
    """How many pieces there are: a stream that ended early needs none of them any more."""
    return monitors.stream(stream.id).pieces


def key(stream: Stream) -> str:
    """A job's key: one job for each piece, so that none is lost between the end of a job and a piece that just came."""
    return f"{KIND}:{stream.id}:{stream.pieces}:{int(stream.closed)}"


@dataclass(slots=True)
class Session:
    """A stream as it is being read, and what was found since the last commit."""

    stream: Stream
    watch: Watch
    text: TextStream
    told: Teller
    tally: Tally
    at: int = 0  # bytes of the piece in hand that are read
    hits: list[Hit] = field(default_factory=list)
    committed: float = field(default_factory=time.monotonic)

    def take(self, seen: Seen) -> list[Hit]:
        """Count and keep; returns all hits."""
        found = self.told.take(seen)
        self.hits += self.tally.take(seen, found)
        return found

    @property
    def due(self) -> bool:
        return time.monotonic() - self.committed > COMMIT_SECONDS or len(self.hits) >= COMMIT_HITS

    def commit(self, monitors: Monitors, consumed: int, state: dict[str, Any], **more: Any) -> None:
        """Store what was found, with the state from which the next worker would go on."""
        whole = {"told": self.told.state(), "tally": self.tally.state(), **state}
        progress = Progress(whole, consumed, self.watch.count, self.hits, dict(self.tally.blocks), **more)
        self.stream = monitors.commit(self.stream, progress)
        self.hits, self.committed = [], time.monotonic()
        self.tally.forget_before(self.watch.count)


class Watching:
    """One function per kind of job; the worker's engines hold the models, `_live` the streams last worked on."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._live: OrderedDict[tuple[int, int], Session] = OrderedDict()

    def watch(self, context: Context) -> Outcome:
        """Bring a stream up to date; its text and hits are found by its id."""
        monitors = Monitors(context.store.database)
        while True:
            stream = monitors.stream(int(context.payload["stream"]))
            if stream.ended:
                break
            try:
                stored = monitors.get(stream.monitor_id)
                engine = self.engines.engine(context, stored.checkpoint_hash, stream.dtype)
                context.stage("run")
                read = self._generate if stream.kind == "generate" else self._read
                stream = read(context, monitors, engine, stream)
                break
            except Moved:  # another worker went on with it; look where it is now
                continue
        return Outcome({"stream": stream.id, "tokens": stream.tokens, "hits": stream.hits, "ended": stream.ended})

    # -- a text that is sent -----------------------------------------------------------------------------------------

    def _read(self, context: Context, monitors: Monitors, engine: Engine, stream: Stream) -> Stream:
        session = self._live.pop((stream.id, stream.version), None) or self._open(engine, stream)
        place = stream.consumed
        while True:
            data = monitors.piece(stream.id, place)
            if data is None:
                # What was closed or sent after we looked has a job of its own, but one look saves it the wait.
                now = monitors.stream(stream.id)
                if now.version != session.stream.version:
                    raise Moved
                if place < now.pieces:
                    continue
                break
            while session.at < len(data):
                part = data[session.at : session.at + SLICE]
                session.at += len(part)
                try:
                    self._flag(session, session.text.feed(part))
                except LegibleError as error:
                    if not isinstance(error, NotExact):
                        self._flag(session, session.text.end())
                    return self._end(session, monitors, now_sent(monitors, stream), error=error)
                if session.watch.stopped is not None:
                    return self._end(session, monitors, now_sent(monitors, stream))
                if session.due:
                    session.commit(monitors, place, self._state(session))
                context.between_batches(session.text.received, max(stream.received, session.text.received))
            place, session.at = place + 1, 0
        if now.closed:
            self._flag(session, session.text.end())
            return self._end(session, monitors, place)
        session.commit(monitors, place, self._state(session))
        self._keep(session)
        return session.stream

    @staticmethod
    def _flag(session: Session, tokens: list[StreamToken]) -> None:
        """Watch the next tokens."""
        for seen in session.watch.read(session.told.expect(tokens)):
            session.take(seen)

    @staticmethod
    def _state(session: Session) -> dict[str, Any]:
        return {"watch": session.watch.state(), "text": session.text.state(), "at": session.at}

    def _end(
        self, session: Session, monitors: Monitors, consumed: int, *, error: LegibleError | None = None, **more: Any
    ) -> Stream:  # fmt: skip
        """The stream's last commit: no more will be read."""
        summary = {
            "error": None if error is None else error.body()["error"],
            "stopped": session.watch.stopped is not None,
            "unfinished": session.text.unfinished.hex() or None,
            "lost_at_window": session.watch.lost(),
            **more,
        }
        session.commit(monitors, consumed, {}, ended=True, summary=summary)
        if isinstance(error, NotExact):
            raise error  # the model's failure, not the text's: the job says it too
        return session.stream

    # -- a text that is written --------------------------------------------------------------------------------------

    def _generate(self, context: Context, monitors: Monitors, engine: Engine, stream: Stream) -> Stream:
        from legible_core.watching import watched

        session, settings = self._open(engine, stream), stream.settings
        state = stream.state or {}
        tokenizer = engine.tokenizer
        assert tokenizer is not None  # an engine that was opened from a folder has one
        ids = [int(index) for index in settings["ids"]]
        done = [int(index) for index in state.get("done", ())]
        edited = [int(place) for place in state.get("edited", ())]
        sampling = Sampling(settings["tokens"], settings["temperature"], settings["seed"])
        sampling = sampling.fit(len(ids), engine.config.context)
        vocabulary = min(tokenizer.vocab_size, engine.config.vocab_size)
        special = {index for index in range(vocabulary) if tokenizer.is_special(index)}
        places, left = [0], settings.get("left", ())
        for index in (*ids, *done):
            places.append(places[-1] + len(tokenizer.token_bytes(index)))
        offsets = [as_sent(place, left) for place in places]
        count = session.watch.count
        session.told.expect(StreamToken(i, at) for i, at in zip((*ids, *done)[count:], offsets[count:], strict=False))
        end = offsets[-1]
        for step in watched(session.watch, ids, sampling, done=done, edited=[edited], stop=special):
            if step.seen.ids:
                session.take(step.seen)
            edited += [session.watch.count - 1] * bool(step.edited)
            if step.written is not None:
                session.told.expect([StreamToken(step.written.id, end)])
                end += len(tokenizer.token_bytes(step.written.id))
                done.append(step.written.id)
            if session.due:
                written = {"watch": {**session.watch.state(), "ids": []}, "done": done, "edited": edited}
                session.commit(monitors, stream.consumed, written)
            context.between_batches(len(done), sampling.tokens)
        return self._end(session, monitors, stream.pieces, written=done, edited=edited)

    # -- sessions ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _open(engine: Engine, stream: Stream) -> Session:
        """A stream as its last commit left it."""
        from legible_core.watching import Watch

        monitor = Monitor.from_json(stream.definition)
        if engine.tokenizer is None:
            raise NotFound("This checkpoint has no tokenizer, so no text can be watched with it.")
        watch = Watch(engine.model, [monitor])
        made = Session(
            stream, watch, TextStream(engine.tokenizer), Teller(watch.components, watch.monitors),
            Tally(watch.components),
        )  # fmt: skip
        state = stream.state
        if state:
            watch.restore(state["watch"])
            made.told.restore(state["told"])
            made.tally.restore(state["tally"])
            if "text" in state:
                made.text.restore(state["text"])
                made.at = int(state["at"])
        return made

    def _keep(self, session: Session) -> None:
        """The next piece of a stream that goes on needs no second reading of its window."""
        self._live[session.stream.id, session.stream.version] = session
        while len(self._live) > LIVE:
            self._live.popitem(last=False)
