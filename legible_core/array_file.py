"""A file of arrays beside a checkpoint's weights: of these weights, in this format, or not read; imports no torch.

STORED = ArrayFile("history.safetensors", "legible-history", "1", "measure the history again")
found = STORED.load(folder, checkpoint.hash, NAMES)     # (metadata, arrays); None without a file of these weights
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from legible_core.errors import Corrupt, Unavailable
from legible_core.replace import WRITE_ERRORS, save_arrays, write_reason


@dataclass(frozen=True)
class ArrayFile:
    """name: of the file. again: what to do about a broken one, as the end of a sentence."""

    name: str
    format: str
    version: str
    again: str

    def load(
        self, folder: Path, checkpoint_hash: str, names: Collection[str], *, optional: Collection[str] = ()
    ) -> tuple[dict[str, str], dict[str, NDArray[Any]]] | None:
        """The metadata and the arrays; None where there is no file, or only one of other weights.

        optional: names that an older file may lack. Raises `Corrupt` with one sentence for a file that is none.
        """
        path = folder / self.name
        if not path.is_file():
            return None
        try:
            with safe_open(path, "np") as file:
                meta = dict(file.metadata() or {})
                if meta.get("format") != self.format or meta.get("version") != self.version:
                    raise self.corrupt(f"{self.name} is not of format {self.format!r}, version {self.version}")
                if meta.get("checkpoint") != checkpoint_hash:
                    return None
                there = set(file.keys())
                return meta, {name: file.get_tensor(name) for name in names if name in there or name not in optional}
        except (SafetensorError, OSError, ValueError):
            raise self.damaged() from None

    def save(self, path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, str]) -> None:
        """Write the file, whole or not at all; raises `Unavailable` when the disk does not take it."""
        try:
            save_arrays(path, arrays, {"format": self.format, "version": self.version, **meta})
        except WRITE_ERRORS as error:
            message = f"{path} cannot be written: {write_reason(error)}; name a folder with --out."
            raise Unavailable(message, code="cannot_write") from None

    def corrupt(self, what: str) -> Corrupt:
        """What is wrong with the file, with what to do about it."""
        return Corrupt(f"{what}; {self.again}")

    def damaged(self) -> Corrupt:
        return self.corrupt(f"{self.name} is damaged or truncated")
