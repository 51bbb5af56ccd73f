"""The files of a checkpoint folder: opened safely, measured before they are read; imports no torch.

    model.safetensors   read_header: every tensor's dtype, shape and place, checked against the file's size
    config.json         read_json
    tokenizer.json      hashed only; a child process reads it (`legible_core.token_service`)
    README.md           Card: `key: value` lines between two `---` lines, then prose

The identity of a checkpoint is `manifest_hash`: SHA-256 over the canonical JSON of the SHA-256 of the first three.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from legible_core.errors import Corrupt, LegibleError, NotFound

WEIGHTS, CONFIG, TOKENIZER, CARD = "model.safetensors", "config.json", "tokenizer.json", "README.md"
MANIFEST_FILES = (CONFIG, WEIGHTS, TOKENIZER)
NAMES = ("names.json", "names.safetensors")

MAX_HEADER_BYTES = 4 << 20
MAX_CONFIG_BYTES = 64 << 10
MAX_CARD_BYTES = 256 << 10
MAX_NAMES_BYTES = 32 << 20
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2}

_BITS = {"F32": ("<u4", 0x7F800000), "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00)}
_CHUNK = 8 << 20
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a safetensors header: `start` and `end` count bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def _one_line(text: str) -> bool:
    """Whether UTF-8 can write it, and no terminal or editor takes it for more than a line; a tab may stand in it."""
    return not any(unicodedata.category(mark) in ("Cc", "Cs", "Zl", "Zp") for mark in text.replace("\t", " "))


@dataclass(frozen=True)
class Card:
    """A checkpoint's README.md: figures as `key: value` lines in front, prose behind."""

    fields: dict[str, str]
    body: str = ""

    @classmethod
    def parse(cls, text: str) -> Card:
        """Read a README.md; raises `Corrupt` when its front is not `key: value` lines between `---` lines."""
        lines = text.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
        if lines[0].strip() != "---":
            return cls({}, text)
        fields: dict[str, str] = {}
        for number, line in enumerate(lines[1:], 2):
            if line.strip() == "---":
                return cls(fields, "\n".join(lines[number:]).lstrip("\n"))
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            found = re.fullmatch(r"([a-z][a-z0-9_]*):\s*(.*?)\s*", line)
            if not found or found[1] in fields:
                reason = "is given twice" if found else "is no `key: value` line"
                raise Corrupt(f"The card (README.md) cannot be read: line {number} {reason}.")
            fields[found[1]] = found[2]
        raise Corrupt("The card (README.md) cannot be read: its front has no closing --- line.")

    def render(self, checkpoint_hash: str) -> str:
        """The README.md text, with this hash; raises `LegibleError` for a key, value or text that has no such form."""
        fields = {"hash": checkpoint_hash} | {k: v for k, v in self.fields.items() if k != "hash"}
        for key, value in fields.items():
            if not re.fullmatch(r"[a-z][a-z0-9_]*", key) or value != value.strip() or not _one_line(value):
                raise LegibleError(
                    f"The card's line {key!r} is not usable: keys are a-z, 0-9, _, values one line of text."
                )
        if any(unicodedata.category(mark) == "Cs" for mark in self.body):
            raise LegibleError("The card's text cannot be written as UTF-8: it holds half of a character.")
        front = "".join(f"{key}: {value}".rstrip() + "\n" for key, value in fields.items())
        return f"---\n{front}---\n\n{self.body.strip()}\n" if self.body.strip() else f"---\n{front}---\n"

    def number(self, key: str) -> float | None:
        """A figure of the card, None when it is not there; raises `Corrupt` when it is no finite number."""
        if key not in self.fields:
            return None
        try:
            value = float(self.fields[key].replace(",", "").replace("_", ""))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Corrupt(f"The card's {key} is {self.fields[key][:40]!r}; it must be a plain number.")
        return value

    def share(self, key: str) -> float | None:
        """A figure that must lie between 0 and 1."""
        value = self.number(key)
        if value is not None and not 0.0 <= value <= 1.0:
            raise Corrupt(f"The card's {key} is {self.fields[key][:40]!r}; it must be a share between 0 and 1.")
        return value


@contextlib.contextmanager
def open_inside(folder: Path, name: str) -> Iterator[tuple[BufferedReader, os.stat_result]]:
    """A regular file of the folder, with what the open file itself says of its size.

    Raises `NotFound` when there is none, `Corrupt` when it leads out of the folder or is a pipe, device or folder.
    """
    path = folder / name
    try:
        inside = path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):
        raise NotFound(
            f"{name} is missing or cannot be reached; a checkpoint's folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}",
            status=422,
        ) from None
    if not inside:
        raise Corrupt(f"{name} is a link that leads out of the folder; put the file itself there")
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise Corrupt(f"{name} cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise Corrupt(f"{name} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file, status


def read_text(folder: Path, name: str, limit: int) -> str:
    """A small UTF-8 file of the folder."""
    with open_inside(folder, name) as (file, status):
        if status.st_size > limit:
            raise Corrupt(f"{name} is {status.st_size:,} bytes; the limit is {limit:,} bytes")
        data = file.read(limit + 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Corrupt(f"{name} is not UTF-8 text") from None


def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    """A JSON object in which no key stands twice and every number is finite."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Corrupt(f"{name} holds a key twice")
        return found

    def refuse(constant: str) -> Any:
        raise Corrupt(f"{name} holds {constant}, which is no JSON number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise Corrupt(f"{name} is nested too deeply") from None
    except ValueError:
        raise Corrupt(f"{name} is no JSON; it is truncated or was written by something else") from None
    if not isinstance(value, dict):
        raise Corrupt(f"{name} must hold a JSON object")
    return value


def read_header(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of model.safetensors, once sizes, shapes, dtypes and places fit each other and the file's size.

    Reads the header alone; allocates nothing that the file claims. Raises `Corrupt` with what is wrong.
    """
    with open_inside(folder, WEIGHTS) as (file, status):
        return parse_header(file.read(8 + MAX_HEADER_BYTES), status.st_size)


def parse_header(head: bytes | memoryview, file_size: int) -> dict[str, TensorInfo]:
    """`read_header` for the first bytes of a file of `file_size` bytes."""
    # A length may begin with the same byte as a pickle; the header behind it begins with a brace in any case.
    if (bytes(head[:4]) == b"PK\x03\x04" or bytes(head[:1]) == b"\x80") and bytes(head[8:9]) != b"{":
        raise Corrupt(f"{WEIGHTS} is a pickled file under another name, and {_WHY_NO_PICKLE}")
    if len(head) < 8:
        raise Corrupt(f"{WEIGHTS} is truncated: it has {file_size:,} bytes, and its header alone needs more")
    (length,) = struct.unpack("<Q", head[:8])
    if length > MAX_HEADER_BYTES:
        raise Corrupt(f"{WEIGHTS} claims a header of {length:,} bytes; the limit is {MAX_HEADER_BYTES:,} bytes")
    if 8 + length > file_size:
        raise Corrupt(f"{WEIGHTS} is truncated: its header ends at byte {8 + length:,}, the file at {file_size:,}")
    entries = parse_json(bytes(head[8 : 8 + length]), f"the header of {WEIGHTS}")
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(name, entry, 8 + length) for name, entry in entries.items()}
    end = 8 + length
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != end:
            fault = "overlaps the one before it" if info.start < end else "leaves a gap before it"
            raise Corrupt(f"{WEIGHTS} is corrupted: the data of {quoted(name)} {fault}")
        end = info.end
    if end > file_size:
        raise Corrupt(f"{WEIGHTS} is truncated: its tensors need {end:,} bytes, and the file has {file_size:,}")
    if end < file_size:
        raise Corrupt(f"{WEIGHTS} is corrupted: {file_size - end:,} bytes stand behind its last tensor")
    return tensors


def _tensor(name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Corrupt(f"{WEIGHTS} is corrupted: the entry of {quoted(name)} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise Corrupt(f"{quoted(name)} in {WEIGHTS} is stored as {str(dtype)[:20]}; it must be F32, BF16 or F16")
    for numbers, what in ((shape, "shape"), (offsets, "data_offsets")):
        if not isinstance(numbers, list) or any(type(n) is not int or not 0 <= n < 1 << 48 for n in numbers):
            raise Corrupt(f"{WEIGHTS} is corrupted: the {what} of {quoted(name)} is no list of whole numbers")
    if len(offsets) != 2 or len(shape) > 8 or offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise Corrupt(f"{WEIGHTS} is corrupted: the shape of {quoted(name)} does not fit the bytes it has")
    return TensorInfo(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def check_finite(tensors: Mapping[str, TensorInfo], read: Callable[[int, int], bytes | memoryview]) -> None:
    """Raises `Corrupt`, naming the tensor, unless every stored value is finite.

    `read(start, stop)` gives these bytes of the file; at most `_CHUNK` are asked for at once.
    """
    # A floating-point number is not finite exactly when all bits of its exponent are set.
    for name, info in tensors.items():
        for start in range(info.start, info.end, _CHUNK):
            values = np.frombuffer(read(start, min(start + _CHUNK, info.end)), dtype=_BITS[info.dtype][0])
            exponent = _BITS[info.dtype][1]
            if ((values & exponent) == exponent).any():
                raise Corrupt(f"the tensor {name} holds NaN or infinite values")


def pickled_instead(folder: Path) -> Corrupt | None:
    """The reason to give when the folder holds pickled weights and no model.safetensors."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return None
    for name in names:
        if name.endswith(_PICKLED):
            return Corrupt(f"its weights are in {quoted(name)}, a pickled file, and {_WHY_NO_PICKLE}")
    if any(re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) for name in names):
        return Corrupt(f"its weights are in several files; join them into one {WEIGHTS}")
    return None


def quoted(name: str) -> str:
    """A name out of a file, safe and short enough for a sentence."""
    return repr(name if len(name) <= 80 else name[:79] + "…")


def file_hash(folder: Path, name: str) -> str:
    """SHA-256 of a file of the folder, in hexadecimal."""
    with open_inside(folder, name) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_hash(hashes: dict[str, str]) -> str:
    """The identity of a checkpoint from the SHA-256 of its weights, config and tokenizer.

    SHA-256 of `{"config.json":"…","model.safetensors":"…","tokenizer.json":"…"}`, keys sorted, no spaces.
    """
    canonical = json.dumps({name: hashes[name] for name in MANIFEST_FILES}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


_WHY_NO_PICKLE = (
    "opening one runs whatever program is in it, so none is ever opened; convert it to safetensors "
    "with docs/checkpoints.md"
)
