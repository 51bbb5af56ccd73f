"""`legible read MODEL --prompts FILE --out OUT`: many readings into one JSONL or Parquet file, resumable.

Every line of FILE becomes one row of OUT, in the same order; a line that cannot be read becomes a row with its error.
Until the last row is there they are kept in OUT.partial, whose first line says what is being read. Rows are flushed to
the disk in batches, so a process that ends at any moment loses a batch of work and no row. OUT appears whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from legible_core.errors import Conflict, LegibleError, NotFound, TooLarge
from legible_core.extras import how_to_install
from legible_core.tokens import MAX_PROMPT_BYTES

if TYPE_CHECKING:
    from legible_core.pipeline import Engine

FORMAT = 1
MAX_LINE = 8 << 20  # a prompt at its limit, escaped as JSON
MAX_BATCH = 10_000
GROUP = 1_000  # rows of a Parquet row group
WORDS = ("target", "contrast", "position", "relative_to")
FIELDS = ("prompt", "id", *WORDS)

Say = Callable[[int, int, "dict[str, Any]"], None]  # rows kept, rows in all, the newest row


@dataclass(frozen=True)
class Batch:
    """What is read, into what, and how; `options` are the words of the command for lines that have none."""

    prompts: Path
    out: Path
    options: dict[str, Any]
    top: int = 20
    size: int = 16


@dataclass
class Outcome:
    """How it went: lines in all, rows that an earlier call had made, rows that hold an error, by line number."""

    lines: int
    resumed: int
    failed: list[int] = field(default_factory=list)


def read_many(engine: Engine, batch: Batch, say: Say = lambda done, lines, row: None) -> Outcome:
    """Read every line and write the file; `KeyboardInterrupt` passes through once all finished rows are kept.

    Raises `LegibleError` for a file that cannot be read or written, `Conflict` for an output that is something else's.
    """
    check(batch)
    for role in ("target", "contrast"):  # a word that fits no line is said once, not on every line
        if batch.options.get(role) is not None and engine.tokenizer is not None:
            engine.tokenizer.target(batch.options[role], role)
    digest, count = _survey(batch.prompts)
    header = {
        "legible_prompts": FORMAT,
        "checkpoint": engine.checkpoint.hash,
        "dtype": engine.dtype,
        "input": digest,
        "lines": count,
        "top": batch.top,
        "options": batch.options,
    }
    try:
        with _journal(batch, header) as (journal, failed, done):
            outcome = Outcome(count, done, failed)
            _read_on(engine, batch, journal, outcome, say)
            _finish(journal, batch.out)
    except OSError as error:
        raise LegibleError(
            f"{batch.out} cannot be written: {error.strerror}; finished rows are in {partial(batch.out)}.",
            code="cannot_write",
        ) from None
    partial(batch.out).unlink()
    return outcome


def check(batch: Batch) -> None:
    """Raise `LegibleError` for what can be refused before a model is loaded."""
    if batch.out.suffix not in (".jsonl", ".parquet"):
        raise LegibleError(f"--out is {str(batch.out)!r}; its name must end in .jsonl or .parquet.", code="bad_out")
    if not 1 <= batch.size <= MAX_BATCH:
        raise LegibleError(f"--batch is {batch.size}; it must be from 1 to {MAX_BATCH:,}.", code="bad_batch")
    if not batch.prompts.is_file():
        raise NotFound(f"There is no file {str(batch.prompts)!r} to read prompts from.")
    if not batch.out.parent.is_dir():
        raise NotFound(f"There is no folder {str(batch.out.parent)!r} to write to; make it first.")
    if batch.out.exists() and not partial(batch.out).exists():
        raise Conflict(f"{batch.out} exists already; remove it or name another file with --out.", code="out_exists")
    if batch.out.suffix == ".parquet":
        _pyarrow()


def partial(out: Path) -> Path:
    """Where the rows are until all are there."""
    return out.with_name(out.name + ".partial")


def _read_on(engine: Engine, batch: Batch, journal: BinaryIO, outcome: Outcome, say: Say) -> None:
    waiting: list[bytes] = []
    done = outcome.resumed
    try:
        for number, line in _lines(batch.prompts):
            if number <= outcome.resumed:
                continue
            row = _row(engine, batch, number, line)
            waiting.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            if row["error"] is not None:
                outcome.failed.append(number)
            if len(waiting) == batch.size:
                _keep(journal, waiting)
            done = number
            say(done, outcome.lines, row)
    finally:  # Ctrl-C too: what is finished is kept; a row written twice is noticed when the file is opened again
        _keep(journal, waiting)
    if done != outcome.lines:
        raise Conflict(f"{batch.prompts} changed while it was read; start again with another --out.", code="changed")


def _keep(journal: BinaryIO, waiting: list[bytes]) -> None:
    journal.write(b"".join(waiting))
    journal.flush()
    os.fsync(journal.fileno())
    waiting.clear()


# ---- a line and its row ----------------------------------------------------------------------------------------------


def _row(engine: Engine, batch: Batch, number: int, line: bytes | None) -> dict[str, Any]:
    row: dict[str, Any] = {"line": number, "id": None, "prompt": None, "error": None, "reading": None}
    try:
        asked = _asked(line, batch.prompts.suffix in (".jsonl", ".ndjson"))
        row["id"], row["prompt"] = asked.get("id"), asked["prompt"]
        words: dict[str, Any] = {name: asked.get(name, batch.options.get(name)) for name in WORDS}
        reading = engine.read(engine.request(asked["prompt"], **words), top=batch.top)
        row["reading"] = reading.summary.model_dump(mode="json", by_alias=True)
    except LegibleError as error:
        row["error"] = error.body()["error"]
    return row


def _asked(line: bytes | None, as_json: bool) -> dict[str, Any]:
    """What a line asks; raises `LegibleError` for one that is no prompt."""
    if line is None:
        raise TooLarge(f"The line holds more than {MAX_LINE:,} bytes; a prompt has at most {MAX_PROMPT_BYTES:,}.")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LegibleError(f"The line is not UTF-8 text (at byte {error.start}).", code="bad_text") from None
    if not as_json:
        return {"prompt": text}
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LegibleError(f"The line is no JSON: {str(error)[:80]}.", code="bad_json") from None
    try:
        json.dumps(asked, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise LegibleError("The line holds half of a surrogate pair, which is no text.", code="bad_text") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("prompt"), str):
        raise LegibleError('The line must be an object such as {"prompt": "It was", "target": " the"}.', code="bad_row")
    unknown = sorted(set(asked) - set(FIELDS))
    if unknown:
        raise LegibleError(f"The line has {unknown[0][:40]!r}; it may have {', '.join(FIELDS)}.", code="bad_row")
    if type(asked.get("id")) is int:
        asked["id"] = str(asked["id"])
    for name in ("id", "target", "contrast", "relative_to"):
        if not isinstance(asked.get(name), str | None):
            raise LegibleError(f"{name} must be a text.", code="bad_row")
    if type(asked.get("position")) not in (int, type(None)):
        raise LegibleError("position must be a whole number.", code="bad_row")
    return {name: value for name, value in asked.items() if value is not None}


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its number from 1, without its end (LF or CR LF) and a byte-order mark; None for one too long."""
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE + 2):
            number += 1
            whole = data.endswith(b"\n") or len(data) < MAX_LINE + 2
            end = data
            while not whole and end and not end.endswith(b"\n"):
                end = file.readline(1 << 20)
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            yield number, data.removesuffix(b"\n").removesuffix(b"\r") if whole else None


def _survey(path: Path) -> tuple[str, int]:
    """SHA-256 of the file and how many lines it has."""
    found, count, last = hashlib.sha256(), 0, b"\n"
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                found.update(data)
                count += data.count(b"\n")
                last = data[-1:]
    except OSError as error:
        raise LegibleError(f"{path} cannot be read: {error.strerror}.", code="cannot_read") from None
    count += last != b"\n"
    if count == 0:
        raise LegibleError(f"{path} is empty; it needs one prompt a line.", code="empty")
    return found.hexdigest(), count


# ---- the journal and the file ----------------------------------------------------------------------------------------


@contextmanager
def _journal(batch: Batch, header: dict[str, Any]) -> Iterator[tuple[BinaryIO, list[int], int]]:
    """The rows so far, open for more: the file, the lines that failed, and how many rows are whole."""
    path = partial(batch.out)
    with path.open("a+b") as file:
        _lock(file, path)
        file.seek(0)
        first = file.readline(1 << 20)
        failed: list[int] = []
        done, end = 0, 0
        if first.endswith(b"\n"):
            if _parsed(first) != header:
                raise Conflict(
                    f"{path} belongs to other prompts, options or weights; remove it or name another file with --out.",
                    code="other_prompts",
                )
            end = file.tell()
            for line in file:
                row = _parsed(line) if line.endswith(b"\n") else None
                if not isinstance(row, dict) or row.get("line") != done + 1:
                    break  # the process ended while it wrote this
                done, end = done + 1, end + len(line)
                if row.get("error") is not None:
                    failed.append(done)
        file.truncate(end)
        file.seek(end)
        if end == 0:
            _keep(file, [json.dumps(header).encode() + b"\n"])
        yield file, failed, done


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _lock(file: BinaryIO, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"Another process is writing {path}; wait for it or name another --out.", code="busy") from None


def _finish(journal: BinaryIO, out: Path) -> None:
    """All rows from the journal into `out`, which appears whole or not at all."""
    journal.seek(0)
    journal.readline()
    made = out.with_name(out.name + ".new")
    if out.suffix == ".parquet":
        _write_parquet(journal, made)
    else:
        with made.open("wb") as file:
            while data := journal.read(1 << 20):
                file.write(data)
    with made.open("rb+") as file:
        os.fsync(file.fileno())
    made.replace(out)


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise LegibleError(
            f"Parquet needs pyarrow, which is not installed; {how_to_install('parquet')}, "
            "or name a .jsonl file with --out.",
            code="no_pyarrow",
        ) from None
    return pyarrow


def _write_parquet(journal: BinaryIO, path: Path) -> None:
    """Flat columns for what is counted and sorted, and the whole reading as JSON text."""
    arrow = _pyarrow()
    text, whole, number = arrow.string(), arrow.int64(), arrow.float64()
    columns = {
        "line": whole, "id": text, "prompt": text, "error_code": text, "error": text, "digest": text,
        "checkpoint": text, "position": whole, "target": text, "target_id": whole, "logit": number,
        "probability": number, "rank": whole, "contrast": text, "contrast_id": whole, "relative_to": text,
        "value": number, "sum": number, "residual": number, "share_net": number, "share_mass": number, "reading": text,
    }  # fmt: skip
    schema = arrow.schema(list(columns.items()))
    with arrow.parquet.ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for line in journal:
            rows.append(_flat(json.loads(line)))
            if len(rows) == GROUP:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
                rows = []
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    error, reading = row["error"] or {}, row["reading"]
    flat = {name: row[name] for name in ("line", "id", "prompt")}
    flat |= {"error_code": error.get("code"), "error": error.get("message")}
    if reading is None:
        return flat
    target, contrast = reading["target"], reading["contrast"] or {}
    return flat | {
        **{name: reading[name] for name in ("digest", "position", "relative_to", "value", "sum", "residual")},
        "checkpoint": reading["checkpoint"]["hash"],
        "target": target["text"],
        "target_id": target["id"],
        **{name: target[name] for name in ("logit", "probability", "rank")},
        "contrast": contrast.get("text"),
        "contrast_id": contrast.get("id"),
        "share_net": reading["shares"]["net"],
        "share_mass": reading["shares"]["mass"],
        "reading": json.dumps(reading, ensure_ascii=False),
    }
