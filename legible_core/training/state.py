"""The state of a run on disk: safetensors and JSON, never pickle, replaced whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from legible_core.errors import Corrupt, Unavailable
from legible_core.replace import WRITE_ERRORS, sync, write_reason
from legible_core.training.history import is_whole


def write_state(folder: Path, weights: dict[str, Tensor], optimiser: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write a state beside its predecessor and swap them; a crash leaves one whole state, old or new."""
    fresh = folder.with_name(folder.name + ".new")
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        for file, tensors in (("model", weights), ("optimiser", optimiser)):
            whole = {name: value.detach().contiguous() for name, value in tensors.items()}
            save_file(whole, fresh / f"{file}.safetensors")
        (fresh / "state.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        for path in fresh.iterdir():
            sync(path)
        sync(fresh)
    except WRITE_ERRORS:
        shutil.rmtree(fresh, ignore_errors=True)  # on a full disk the half of a state would hold the room
        raise
    if folder.exists():  # else a crash left only the old one, which stays until the new one has its name
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What `read_state` gives as meta, without reading the tensors; None when there is no state that can be read."""
    old = folder.with_name(folder.name + ".old")
    try:
        return _meta(folder if folder.exists() else old)
    except (OSError, ValueError, RecursionError):
        return None


def _meta(source: Path) -> dict[str, Any]:
    """A state's state.json. Raises `ValueError`, or what reading and parsing raise, for one that no run writes."""
    meta = json.loads((source / "state.json").read_text(encoding="utf-8"))
    if not isinstance(meta, dict):
        raise ValueError("state.json is no object")
    for name in ("step", "tokens", "decay_from", "decay_to", "warm_from"):
        needed = name == "step"
        value = meta.get(name)
        if (needed or value is not None) and (not is_whole(value) or value < 0):
            raise ValueError(f"state.json has no {name}" if value is None else f"{name} in state.json is no count")
    return meta


def has_state(folder: Path) -> bool:
    """Whether a run was saved there, whole."""
    return folder.exists() or folder.with_name(folder.name + ".old").exists()


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]] | None:
    """Weights, optimiser buffers and meta of the latest whole state, or None when there is none.

    Raises `Corrupt` when a state is there and cannot be read.
    """
    old = folder.with_name(folder.name + ".old")
    source = folder if folder.exists() else old
    if not source.exists():
        return None
    try:
        meta = _meta(source)
        return load_file(source / "model.safetensors"), load_file(source / "optimiser.safetensors"), meta
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise unreadable(source, error) from None


def unreadable(source: Path, reason: object) -> Corrupt:
    """The refusal of a state that is there and is none."""
    return Corrupt(f"The training state in {source} cannot be read ({reason}); remove the folder to start anew.")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Word what keeps a run from being written (a full disk, no such folder) as one sentence: `Unavailable`."""
    try:
        yield
    except WRITE_ERRORS as error:
        reason, saved = write_reason(error), has_state(folder / "state")
        raise Unavailable(
            f"The run cannot be written to {folder}: {reason}.",
            code="cannot_write",
            hint=("What was saved before is whole" if saved else "Nothing was saved yet")
            + "; make room or choose another folder with --out, then start it again.",
        ) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all: a process killed in the middle leaves what was there."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)


def kept(folder: Path) -> str:
    """A sentence on what a run that stops leaves behind."""
    if has_state(folder / "state"):
        return f"The last good state is kept in {folder / 'state'}."
    return "Nothing was saved yet."


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one line of JSON to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def cut_log(path: Path, step: int) -> None:
    """Drop the lines that a killed run logged after its last saved state, so that every step stands there once.

    Those stand at the end. A line before them that is no step's is left where it is, and passed over as the pages do
    (history.py). The file is cut in one step, never written anew, so no moment of it is without the lines before.
    """
    if not path.exists():
        return
    kept = at = 0
    closed = True
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            number = _number(line)
            if number is not None and number <= step:
                kept, closed = at, line.endswith(b"\n")
    if kept < at:
        os.truncate(path, kept)
    if not closed:  # only what is whole can be read as JSON: the line lacks its end and nothing else
        with path.open("ab") as file:
            file.write(b"\n")


def _number(line: bytes) -> int | None:
    """The step that a log's line is of; None for a line that no run writes."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = data.get("number") if isinstance(data, dict) else None
    return number if is_whole(number) else None
