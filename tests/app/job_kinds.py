"""Handlers for the worker processes of tests: each leaves a line in the file that its payload names.

python -m app.worker --handlers job_kinds
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from app.settings import Settings
from app.worker import Context, Handler, Outcome
from legible_core.errors import LegibleError


def handlers(settings: Settings) -> Mapping[str, Handler]:
    return {function.__name__: function for function in (quick, slow, poison, stall, stuck, refuse, bug)}


def note(context: Context, word: str) -> None:
    with Path(context.payload["log"]).open("a") as log:
        log.write(f"{word} {context.job.attempt} {os.getpid()}\n")


def quick(context: Context) -> Outcome:
    note(context, "quick")
    return Outcome({"pid": os.getpid()})


def slow(context: Context) -> Outcome:
    """Batches of 0.1 s, as many as the payload says."""
    batches = context.payload.get("batches", 20)
    for batch in range(batches):
        note(context, "batch")
        time.sleep(0.1)
        context.between_batches(batch + 1, batches)
    return Outcome({"pid": os.getpid(), "attempt": context.job.attempt})


def poison(context: Context) -> Outcome:
    note(context, "poison")
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome()


def stall(context: Context) -> Outcome:
    """The first attempt waits until someone lets it go on; the second is quick."""
    note(context, "stall")
    go_on = Path(context.payload["go_on"])
    while context.job.attempt == 1 and not go_on.exists():
        time.sleep(0.05)
    return Outcome({"attempt": context.job.attempt})


def stuck(context: Context) -> Outcome:
    """The first attempt never comes back, while its process lives."""
    note(context, "stuck")
    while context.job.attempt == 1:
        time.sleep(0.05)
    return Outcome({"attempt": context.job.attempt})


def refuse(context: Context) -> Outcome:
    raise LegibleError("It cannot be done.", code="cannot")


def bug(context: Context) -> Outcome:
    raise ValueError("a secret detail")
