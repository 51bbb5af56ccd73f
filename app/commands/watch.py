"""`legible watch`: monitors over a text as it arrives on standard input, or as a checkpoint writes one."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from app.commands.interrupt import interruptible
from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.hits import Hit, Teller
    from legible_core.monitor import Monitor
    from legible_core.pipeline import Engine
    from legible_core.sampling import Sampling
    from legible_core.watching import Watch

READ = 1 << 16
PATIENCE = 0.2  # seconds until a quiet standard input is left for a look at Ctrl-C


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("watch")(watch)


def watch(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    monitor: Annotated[list[Path], typer.Option(help="A JSON file with a monitor or a list of them; may be repeated.")],
    generate: Annotated[
        int | None, typer.Option(metavar="N", help="Let the checkpoint write up to N tokens after the text.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="With --generate: 0 takes the most probable token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="With --generate: the seed of the draws.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Flag the tokens of standard input that monitors hit, as they are read or generated: one JSON line for each hit.

    The last line is the summary. Ctrl-C ends the watch after the tokens in hand, with its summary.
    """
    from app.commands.read import find
    from legible_core.sampling import Sampling

    monitors = _monitors(monitor)
    checkpoint = find(model)
    for found in monitors:
        found.check(checkpoint.config)
    sampling = None if generate is None else Sampling(generate, temperature, seed)
    typer.echo(f"Loading {checkpoint.slug}.", err=True)
    engine = _engine(checkpoint, device)
    typer.echo("Reading standard input" + ("; Ctrl-D ends it." if sys.stdin.isatty() else "."), err=True)
    with interruptible() as interrupted:
        run = Run(engine, monitors, interrupted)
        try:
            run.over(sys.stdin.buffer, sampling)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read the hits has had enough
            raise typer.Exit(1) from None
    if interrupted():
        raise typer.Exit(130)
    if run.refused is not None:
        raise run.refused


@dataclass
class Run:
    """One watch from its first byte to its summary."""

    engine: Engine
    monitors: tuple[Monitor, ...]
    interrupted: Callable[[], bool]
    hits: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None
    refused: LegibleError | None = None
    _told: float = 0.0

    def over(self, source: BinaryIO, sampling: Sampling | None) -> None:
        """Watch the whole source; with `sampling` it is the prompt of what is then generated."""
        from legible_core.hits import Teller
        from legible_core.text_stream import TextStream
        from legible_core.watching import Watch

        assert self.engine.tokenizer is not None  # an engine that was opened from a folder has one
        self.hits = dict.fromkeys((monitor.name for monitor in self.monitors), 0)
        watch = Watch(self.engine.model, self.monitors)
        told = Teller(watch.components, self.monitors)
        stream = TextStream(self.engine.tokenizer)
        started = time.monotonic()
        prompt: list[Any] = []
        more: dict[str, Any] = {}
        for tokens in self._tokens(source, stream):
            if sampling is None:
                self._flag(watch, told, told.expect(tokens))
            else:
                prompt += tokens
        if sampling is not None and not self.interrupted():
            more = self._generate(watch, told, prompt, sampling)
        seconds = time.monotonic() - started
        summary = {
            "tokens": watch.count,
            "bytes": stream.received,
            "hits": self.hits,
            "seconds": round(seconds, 3),
            "complete": not self.interrupted() and self.stopped is None and self.refused is None,
            "stopped_by": self.stopped,
            "unfinished": stream.unfinished.hex() or None,
            "lost_at_window": watch.lost(),
            **more,
        }
        self._say({"summary": summary})
        self._progress(watch.count, last=True)

    def _tokens(self, source: BinaryIO, stream: Any) -> Iterator[Any]:
        """The source's tokens, as soon as they are certain; bytes that are no text end it, and are told at the end."""
        for data in _pieces(source, lambda: self.interrupted() or self.stopped is not None):
            try:
                yield stream.feed(data)
            except LegibleError as error:
                self.refused = error
                break
        if self.stopped is None and not self.interrupted():
            yield stream.end()

    def _flag(self, watch: Watch, told: Teller, ids: list[int]) -> None:
        for seen in watch.read(ids):
            for hit in told.take(seen):
                self._hit(hit)
            self._progress(watch.count)
            if self.interrupted():
                return
        self._note_stop(watch)

    def _note_stop(self, watch: Watch) -> None:
        self.stopped = None if watch.stopped is None else self.monitors[watch.stopped].name

    def _generate(self, watch: Watch, told: Teller, prompt: list[Any], sampling: Sampling) -> dict[str, Any]:
        from legible_core.text_stream import StreamToken
        from legible_core.watching import watched

        engine, tokenizer = self.engine, self.engine.tokenizer
        assert tokenizer is not None
        sampling = sampling.fit(len(prompt), engine.config.context)
        vocabulary = min(tokenizer.vocab_size, engine.config.vocab_size)
        special = {index for index in range(vocabulary) if tokenizer.is_special(index)}
        ids = told.expect(prompt)
        written: list[int] = []
        edited: dict[str, list[int]] = {}
        offset = prompt[-1].offset + len(tokenizer.token_bytes(ids[-1]))
        for step in watched(watch, ids, sampling, stop=special):
            for hit in told.take(step.seen):
                self._hit(hit, generated=hit.token >= len(ids))
            for index in step.edited:
                edited.setdefault(self.monitors[index].name, []).append(watch.count - 1)
            if step.written is not None:
                told.expect([StreamToken(step.written.id, offset)])
                offset += len(tokenizer.token_bytes(step.written.id))
                written.append(step.written.id)
            self._progress(watch.count)
            if self.interrupted():
                break
        for hit in told.take(watch.rest()):
            self._hit(hit, generated=hit.token >= len(ids))
        self._note_stop(watch)
        return {"generated": len(written), "text": tokenizer.decode(written), "edited_at": edited}

    def _hit(self, hit: Hit, **more: Any) -> None:
        from legible_core.hits import context_text

        tokenizer = self.engine.tokenizer
        assert tokenizer is not None
        name = self.monitors[hit.monitor].name
        self.hits[name] += 1
        self._say(
            {
                "monitor": name,
                "token": hit.token,
                "offset": hit.offset,
                "id": hit.id,
                "text": tokenizer.text(hit.id),
                "values": hit.values,
                "context": context_text(tokenizer, hit.context),
                **more,
            }
        )

    @staticmethod
    def _say(row: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _progress(self, tokens: int, last: bool = False) -> None:
        """Let go of what was said, and say on a terminal's standard error how far it is, twice a second."""
        sys.stdout.flush()
        if not sys.stderr.isatty() or (not last and time.monotonic() - self._told < 0.5):
            return
        self._told = time.monotonic()
        sys.stderr.write(f"\r{tokens:,} tokens, {sum(self.hits.values()):,} hits" + ("\n" if last else ""))
        sys.stderr.flush()


def _pieces(source: BinaryIO, enough: Callable[[], bool]) -> Iterator[bytes]:
    """What the source gives, as it arrives; looks at `enough` meanwhile, also when nothing comes."""
    try:
        number: int | None = source.fileno()
    except (OSError, AttributeError):  # not a file of the system: a test's
        number = None
    while not enough():
        if number is None:
            data = source.read(READ)
        elif select.select([number], [], [], PATIENCE)[0]:
            data = os.read(number, READ)
        else:
            continue
        if not data:
            return
        yield data


def _monitors(files: list[Path]) -> tuple[Monitor, ...]:
    """All monitors of the files; their names must differ."""
    from legible_core.monitor import MAX_JSON_BYTES, parse_monitors

    found: list[Monitor] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                text = opened.read(MAX_JSON_BYTES + 1).decode("utf-8")
        except OSError as error:
            raise NotFound(f"There is no file of monitors at {file}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise LegibleError(f"{file} is not UTF-8 text; give a JSON file.", code="bad_monitor") from None
        for monitor in parse_monitors(text):
            if monitor.name in (other.name for other in found):
                raise LegibleError(f"Two monitors are called {monitor.name!r}; rename one.", code="bad_monitor")
            found.append(monitor)
    return tuple(found)


def _engine(checkpoint: Any, device: str) -> Engine:
    from app.scanning_ordinary import tried
    from legible_core.pipeline import Engine

    return Engine.open(checkpoint, device=tried(device))
