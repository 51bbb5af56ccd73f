"""What `legible train` shows while it works, and Ctrl-C as a wish to stop after the present step."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from legible_core.training.loop import Step

# Where the output is no terminal (a log file, torchrun), a line at most this often, in seconds.
LINE_SECONDS = 30.0
# Speed is that of so many steps.
RECENT = 20


class Reporter:
    """A bar in a terminal, a line now and then elsewhere, nothing where `quiet`.

    `reading` takes bytes read and their total (0 when not known), `step` what the loop gives it; `step` returns False
    once Ctrl-C or a request to end has come. A second Ctrl-C ends at once: what was saved before is whole.
    """

    def __init__(self, name: str, batch_tokens: int, quiet: bool = False) -> None:
        self.name, self.batch_tokens, self.quiet = name, batch_tokens, quiet
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.kind = ""
        self.spoken = 0.0
        self.stop = False
        self.seconds: deque[float] = deque(maxlen=RECENT)
        self.handlers: dict[int, Any] = {}

    def listen(self) -> None:
        """From now on Ctrl-C and a request to end are wishes; before, Ctrl-C ends the command as anywhere."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._asked)

    def reading(self, done: int, total: int) -> None:
        def line() -> str:
            return f"tokenising: {_size(done)}" + (f" of {_size(total)}" if total else "")

        self._show("tokenising", "tokenising", done, total or None, line)

    def step(self, step: Step) -> bool:
        self.seconds.append(step.seconds)
        pace = sum(self.seconds) / len(self.seconds)
        says = f"loss {step.loss:.3f}  {self.batch_tokens / pace:,.0f} tokens/s"

        def line() -> str:
            left = _time((step.last - step.number) * pace)
            return f"{self.name}: step {step.number:,} of {step.last:,}  {step.tokens:,} tokens  {says}  {left} left"

        self._show("steps", f"{self.name}  {says}", step.number, step.last, line)
        return not self.stop

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop = True

    def _show(self, kind: str, description: str, done: int, total: int | None, line: Any) -> None:
        if self.quiet:
            return
        if sys.stdout.isatty():
            if self.bar is None or self.kind != kind:
                self._end()
                self.bar, self.kind = _bar(kind), kind
                self.bar.start()
                # What was done in an earlier sitting is no part of this one's speed.
                self.task = self.bar.add_task(description, total=total, completed=done - 1 if kind == "steps" else 0)
            assert self.task is not None
            self.bar.update(self.task, description=description, completed=done, total=total)
        elif time.monotonic() - self.spoken >= LINE_SECONDS or done == total:
            self.spoken = time.monotonic()
            typer.echo(line())

    def _end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _bar(kind: str) -> Progress:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    count = MofNCompleteColumn() if kind == "steps" else DownloadColumn()
    speed = [] if kind == "steps" else [TransferSpeedColumn()]
    return Progress(
        TextColumn("{task.description}"), BarColumn(), count, *speed, TimeElapsedColumn(), TimeRemainingColumn()
    )


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def _time(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60:02} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
