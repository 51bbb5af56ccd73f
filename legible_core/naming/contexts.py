"""The contexts of a checkpoint's operands, channels and units: reads contexts.safetensors; imports no torch.

    contexts = Contexts.load(folder, checkpoint_hash=hash)      # None when there are none for these weights
    contexts.source.said                                      # "sampled by this checkpoint", or the corpus file's name
    for context in contexts.contexts_of(parse("L5.p39.A")):     # the strongest first, then some at random
        context.tokens, context.values, context.at

A context is a stretch of text around one position, with the component's own value on each of its tokens: for an operand
its membership, for a channel its combined value, for a unit its hidden value. `strongest` positions are those of the
largest values, each from another document as far as there are enough; `random` ones were drawn from all positions on
which the component is decisively ON (v > 0.9), so that what the strongest ones hide can be seen; GELU units have no
rails and therefore no random ones. The file is described in docs/names.md; `legible scan` writes it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from legible_core import folder as files
from legible_core.errors import Corrupt, NotFound
from legible_core.naming.places import component_within, config_of, operand_within, starts
from legible_core.units import Channel, Component

SCHEMA = 1
FILE = "contexts.safetensors"
MAX_BYTES = 256 << 20
# How the values of a context are stored: 8-bit steps of its scale.
STEPS = 127

Chosen: TypeAlias = Literal["strongest", "lowest", "random"]
CHOSEN: tuple[Chosen, ...] = ("strongest", "lowest", "random")


@dataclass(frozen=True)
class Source:
    """Where contexts come from: text sampled by the checkpoint itself, or a corpus file.

    kind: "sampled" or "corpus". name: the corpus file's name. tokens: how many were looked at. seed: of the sampling.
    """

    kind: str
    name: str
    tokens: int
    seed: int | None = None

    @property
    def said(self) -> str:
        """For people, beside every context."""
        return "sampled by this checkpoint" if self.kind == "sampled" else self.name

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Context:
    """A stretch of text with a component's value on each token.

    ids, tokens, values: one entry a token: vocabulary id, its chip, the value (an operand's is between 0 and 1).
    at: the index of the token that the context was chosen for, and `peak` its value. chosen: "strongest", "lowest" (an
    ordinary model's units may be negative) or "random". source: "sampled by this checkpoint", or the name of the corpus
    file. before: ids that the model had read before them in the same window, where the file has them.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    values: tuple[float, ...]
    at: int
    peak: float
    chosen: Chosen
    source: str
    before: tuple[int, ...] = ()

    @property
    def read(self) -> tuple[int, ...]:
        """The ids whose last one has the value `peak` where `before` is known: a reading of them gives it again."""
        return (*self.before, *self.ids[: self.at + 1])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Contexts:
    """A loaded contexts file; immutable, and safe to share between threads."""

    def __init__(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Checks every array against the config in `meta`; raises `Corrupt` naming what does not fit."""
        if meta.get("schema") != SCHEMA:
            raise Corrupt(f"{FILE} has schema {str(meta.get('schema'))[:20]}; this program reads {SCHEMA}")
        self.meta = meta
        self.config = config_of(meta.get("config"))
        self.source = _source(meta.get("source"))
        self._arrays = arrays
        self._check()
        self._operand_start, self._component_start = starts(self.config)

    @classmethod
    def load(cls, folder: Path | str, *, checkpoint_hash: str | None = None) -> Contexts | None:
        """The contexts beside a checkpoint; None when it has none, or has those of other weights than this hash.

        Raises `Corrupt`, with one sentence, when the file is not what it claims to be.
        """
        folder = Path(folder)
        if not (folder / FILE).is_file():
            return None
        with files.open_inside(folder, FILE) as (file, status):
            if status.st_size > MAX_BYTES:
                raise Corrupt(f"{FILE} is {status.st_size:,} bytes; the limit is {MAX_BYTES:,} bytes")
            data = file.read()
        meta = _meta(data)
        if checkpoint_hash is not None and meta.get("checkpoint") != checkpoint_hash:
            return None
        try:
            arrays = load_arrays(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{FILE} is no safetensors file of plain arrays: {str(error)[:80]}") from None
        return cls(meta, arrays)

    def contexts_of(self, component: Component) -> list[Context]:
        """The contexts of an operand, a bounded head's channel or a unit: strongest, then lowest, then random ones.

        A membership channel is its own operand. Empty where nothing was found, for instance random ones of an operand
        that is never ON. Raises `NotFound` for heads, the floor, and what the checkpoint lacks.
        """
        side, row = self._place(component)
        of = self._arrays
        sorts = [chosen for chosen in CHOSEN for _ in range(self.meta.get(chosen, 0))]
        before = of.get(f"{side}.before")
        found = []
        for place in range(of[f"{side}.start"].shape[1]):
            length = int(of[f"{side}.length"][row, place])
            if not length:
                continue
            start = int(of[f"{side}.start"][row, place])
            ids = tuple(int(token) for token in of["pool"][start : start + length])
            scale = float(of[f"{side}.scale"][row, place]) / STEPS
            at, peak = int(of[f"{side}.at"][row, place]), float(of[f"{side}.peak"][row, place])
            values = [float(step) * scale for step in of[f"{side}.values"][row, place, :length]]
            if self.config.ordinary:  # a step of a large value may be as large as this one
                values[at] = peak
            found.append(
                Context(
                    ids=ids,
                    tokens=tuple(self.display(token) for token in ids),
                    values=tuple(values),
                    at=at,
                    peak=peak,
                    chosen=sorts[place],
                    source=self.source.said,
                    before=()
                    if before is None
                    else tuple(int(token) for token in of["pool"][start - int(before[row, place]) : start]),
                )
            )
        return found

    def display(self, token: int) -> str:
        """The chip of a token that stands in some context."""
        return str(self.meta["tokens"].get(str(token), f"⟨{token}⟩"))

    def _place(self, component: Component) -> tuple[str, int]:
        layer = getattr(component, "layer", -1)
        within = operand_within(self.config, component)
        if within is not None:
            return "operand", int(self._operand_start[layer]) + within
        within = component_within(self.config, component)
        if within is None or (isinstance(component, Channel) and self.config.attention.value == "membership"):
            raise NotFound(f"{component} has no contexts; operands, units and bounded heads' channels have.")
        return "component", int(self._component_start[layer]) + within

    def _check(self) -> None:
        meta, arrays = self.meta, self._arrays
        counts = [meta.get(chosen, 0) for chosen in CHOSEN]
        if not isinstance(meta.get("tokens"), dict) or not all(type(n) is int and n >= 0 for n in counts):
            raise Corrupt(f'{FILE} lacks its "tokens", or does not say how many contexts of each sort it holds')
        pool = arrays.get("pool")
        if pool is None or pool.ndim != 1 or pool.dtype.kind not in "ui":
            raise Corrupt(f"{FILE} has no pool of tokens")
        if pool.size and int(pool.max()) >= self.config.vocab_size:
            raise Corrupt(f"{FILE}: the pool holds ids outside the vocabulary")
        operands, components = (int(ends[-1]) for ends in starts(self.config))
        for side, rows in (("operand", operands), ("component", components)):
            values = arrays.get(f"{side}.values")
            if values is None or values.ndim != 3 or values.shape[0] != rows or values.dtype != np.int8:
                raise Corrupt(f"{FILE}: {side}.values do not fit the checkpoint")
            for name in ("start", "length", "at", "scale", "peak"):
                found = arrays.get(f"{side}.{name}")
                if found is None or found.shape != values.shape[:2]:
                    raise Corrupt(f"{FILE}: {side}.{name} does not fit the checkpoint")
            if values.shape[1] > sum(counts):
                raise Corrupt(f"{FILE}: there are more contexts of {side}s than its header counts")
            start, length, at = (arrays[f"{side}.{name}"].astype(np.int64) for name in ("start", "length", "at"))
            before = arrays.get(f"{side}.before", np.zeros_like(start)).astype(np.int64)
            if before.shape != start.shape:
                raise Corrupt(f"{FILE}: {side}.before does not fit the checkpoint")
            outside = (start < before) | (before < 0) | (length < 0) | (length > values.shape[2])
            outside |= start + length > pool.size
            if (outside | ((at >= length) & (length > 0)) | (at < 0)).any():
                raise Corrupt(f"{FILE}: a context of {side}s lies outside the pool")
            if not all(np.isfinite(arrays[f"{side}.{name}"]).all() for name in ("scale", "peak")):
                raise Corrupt(f"{FILE}: {side}.scale or .peak holds a value that is no number")


def _source(found: Any) -> Source:
    if not isinstance(found, dict) or found.get("kind") not in ("sampled", "corpus"):
        raise Corrupt(f"{FILE} does not say where its contexts come from")
    seed = found.get("seed")
    return Source(
        found["kind"],
        str(found.get("name", "")),
        found["tokens"] if type(found.get("tokens")) is int else 0,
        seed if type(seed) is int else None,
    )


def _meta(data: bytes) -> dict[str, Any]:
    """The JSON object in the header of the file."""
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if not 0 < length <= min(len(data) - 8, 32 << 20):
        raise Corrupt(f"{FILE} is truncated: its header does not fit into it")
    header = files.parse_json(data[8 : 8 + length], f"the header of {FILE}")
    inner = header.get("__metadata__")
    text = inner.get("legible") if isinstance(inner, dict) else None
    if not isinstance(text, str):
        raise Corrupt(f"{FILE} was not written by legible scan")
    return files.parse_json(text, f"the header of {FILE}")


def metadata(meta: dict[str, Any]) -> dict[str, str]:
    """`meta` as the header of a safetensors file holds it."""
    return {"legible": json.dumps(meta, ensure_ascii=False)}
