"""Ctrl-C as a wish to stop after the batch in hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A first Ctrl-C only sets a flag, so that no batch is cut in half; a second one ends the program at once."""
    pressed: list[bool] = []

    def handler(number: int, frame: FrameType | None) -> Any:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
