"""checks.json: what causal checks measured of a checkpoint, stored beside its weights; imports no torch.

    stored = Checks.load(folder, checkpoint.hash)      # None where there is none, or one of other weights
    stored.band("zero", "later")                       # Band(n, low, median, high, ...): 5-95 % of total/direct
    stored.means                                       # mean activation of every unit and channel, or None

`legible check MODEL --bands --corpus FILE` writes it. It is described in docs/causal.md; it is no part of the manifest.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from legible_core import folder as files
from legible_core.config import ModelConfig
from legible_core.errors import Corrupt, Unavailable
from legible_core.reads import pack_rows, unpack_rows
from legible_core.replace import sync

FILE = "checks.json"
FORMAT, VERSION = "legible-checks", 1
MAX_BYTES = 32 << 20

Half: TypeAlias = Literal["all", "earlier", "later"]
# How a component is removed; for a set operator also by flipping an operand, for both of its operations or for one.
METHODS = {
    "zero": "set to zero",
    "mean": "set to its mean over the corpus",
    "flip_atom": "an operand flipped, A → 1 − A, for both of its operations",
    "flip_unit": "an operand flipped, A → 1 − A, for this unit alone",
}
HALVES: tuple[Half, ...] = ("all", "earlier", "later")


@dataclass(frozen=True)
class Band:
    """The ratio total/direct over `n` checks: 5 %, 50 % and 95 % quantiles; how often their signs differ.

    slope, r: of the regression of total on direct through the origin, and their correlation; None where undefined.
    """

    n: int
    low: float
    median: float
    high: float
    sign: float
    slope: float | None
    r: float | None


@dataclass(frozen=True)
class Means:
    """Mean activations over `tokens` tokens: units (L, f), channels (L, h, dh), float32."""

    tokens: int
    units: np.ndarray
    channels: np.ndarray


@dataclass(frozen=True)
class Checks:
    """What was measured. `sample` says on what; `agreement` and `necessity` are documents of their own."""

    checkpoint: str
    sample: Mapping[str, Any]
    means: Means | None
    bands: Mapping[str, Mapping[str, Band]]
    agreement: Mapping[str, Any] = field(default_factory=dict)
    necessity: Mapping[str, Any] = field(default_factory=dict)

    def band(self, method: str, half: str) -> Band | None:
        return self.bands.get(method, {}).get(half)

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str, config: ModelConfig) -> Checks | None:
        """The record beside a checkpoint; None where there is none, or one of other weights.

        Raises `Corrupt` with one sentence when the file is not what it claims to be.
        """
        if not (folder / FILE).is_file():
            return None
        document = files.parse_json(files.read_text(folder, FILE, MAX_BYTES), FILE)
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise Corrupt(f"{FILE} is not of format {FORMAT!r}, version {VERSION}; measure it again with this program")
        if document.get("checkpoint") != checkpoint_hash:
            return None
        try:
            return cls(
                checkpoint=checkpoint_hash,
                sample=dict(document["sample"]),
                means=_means(document["means"], config),
                bands={
                    method: {half: _band(document["bands"][method][half]) for half in document["bands"][method]}
                    for method in METHODS
                    if method in document["bands"]
                },
                agreement=dict(document["agreement"]),
                necessity=dict(document["necessity"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, Corrupt) as error:
            raise Corrupt(f"{FILE} is damaged ({str(error)[:80]}); measure it again") from None

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "checkpoint": self.checkpoint,
            "sample": dict(self.sample),
            "bands": {m: {half: asdict(band) for half, band in rows.items()} for m, rows in self.bands.items()},
            "agreement": dict(self.agreement),
            "necessity": dict(self.necessity),
            "means": None
            if self.means is None
            else {
                "tokens": self.means.tokens,
                "units": pack_rows(self.means.units),
                "channels": pack_rows(self.means.channels),
            },
        }

    def write(self, path: Path) -> None:
        """Write to `path` in one step; raises `Unavailable` when the disk does not take it, and nothing changed."""
        draft = path.parent / f".{path.name}.saving-{secrets.token_hex(6)}"
        try:
            draft.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            sync(draft)
            os.replace(draft, path)
            sync(path.parent)
        except OSError as error:
            raise Unavailable(
                f"The checks cannot be written to {path}: {error.strerror or error}; name a file with --out.",
                code="cannot_write",
            ) from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def half_of(layer: int, n_layers: int) -> Half:
    """`earlier` for the first half of the layers, `later` for the rest (the middle one of an odd number is later)."""
    return "earlier" if layer < n_layers // 2 else "later"


def _means(document: Any, config: ModelConfig) -> Means | None:
    if document is None:
        return None
    units = unpack_rows(document["units"], (config.n_layers, config.feed_forward.d_ff))
    channels = unpack_rows(document["channels"], (config.n_layers, config.n_heads, config.d_head))
    if not (np.isfinite(units).all() and np.isfinite(channels).all()):
        raise ValueError("a mean is not finite")
    return Means(int(document["tokens"]), units, channels)


def _band(document: dict[str, Any]) -> Band:
    numbers = {key: float(document[key]) for key in ("low", "median", "high", "sign")}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError("a band is not finite")
    slope, r = (None if document[key] is None else float(document[key]) for key in ("slope", "r"))
    return Band(n=int(document["n"]), **numbers, slope=slope, r=r)
