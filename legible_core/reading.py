"""What is asked and what is answered: the reading's request, its digest, its JSON schema; imports no torch.

    ReadingRequest ── digest ──►  the permalink's name of the work (`legible_core.reading_request`)
    Reading        ── summary() + pack() ──►  one JSON row and one compressed float32 array
                   ── to_json() ──►  the page's `.json` twin: everything needed to redraw it

`docs/reading-schema.md` explains every field. Within a schema version fields are added, never renamed or removed, so a
stored reading opens under newer code; readers ignore fields that they do not know.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from legible_core.errors import Corrupt
from legible_core.reading_request import SCHEMA, Dtype, ReadingRequest, RelativeTo, digest

__all__ = [
    "ORDINARY", "SCHEMA", "CheckpointRef", "Contributor", "DetectToken", "Dtype", "Groups", "LabelInfo", "LayerTotals",
    "OperandValue", "Prediction", "Promoted", "Reading", "ReadingRequest", "RelativeTo", "Shares", "Summary",
    "TargetToken", "Term", "Token", "digest",
]  # fmt: skip

# Why an ordinary model has no legible share: undefined, never 0.
ORDINARY = "an ordinary model has no unit that is legible by construction"


class _Part(BaseModel):
    """A part of the schema: immutable, finite numbers only, unknown fields of a newer writer ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CheckpointRef(_Part):
    hash: str
    slug: str


class Token(_Part):
    """A vocabulary entry: `text` as decoded alone (lossy for partial bytes), `bytes` in hex, `display` as a chip."""

    id: int
    text: str
    display: str
    bytes: str


class Prediction(Token):
    logit: float
    probability: float


class TargetToken(Prediction):
    """A token with its place among the predictions, 1 for the most probable."""

    rank: int


class Term(_Part):
    id: str
    value: float


class LabelInfo(_Part):
    """A short label and its evidence: `n` of `of` leading tokens in the class, corrected p-value `q`, agreement."""

    text: str
    kind: str
    q: float | None = None
    n: int | None = None
    of: int | None = None
    share: float | None = None
    agreement: float | None = None


class DetectToken(_Part):
    """One line of the detect side: the token, its lift over its base rate, how often it was ON, its share of ONs."""

    id: int
    display: str
    lift: float
    count: int
    share: float


class OperandValue(_Part):
    """An operand (or a head's channel) at the read position; `term` is the part of the sum it alone writes, if any.

    on: the share of the scanned tokens at which the operand is ON; None without a scan and for what is no operand.
    """

    id: str
    value: float
    term: float | None = None
    label: LabelInfo | None = None
    detect: tuple[DetectToken, ...] = ()
    on: float | None = None


class Promoted(_Part):
    id: int
    display: str
    weight: float


class Contributor(_Part):
    """A head or unit with its term and what is known of it; `half_life` in tokens, `target_rank` from 1."""

    id: str
    kind: str
    glyph: str
    value: float
    activation: float | None = None
    operation: str | None = None
    operands: tuple[OperandValue, ...] = ()
    decay: float | None = None
    half_life: float | None = None
    promotes: tuple[Promoted, ...] = ()
    target_rank: int | None = None
    label: LabelInfo | None = None
    formula: str | None = None
    cls: str | None = Field(default=None, alias="class")

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)


class LayerTotals(_Part):
    """The terms of a layer by sort; plain units stand under their kind, where the checkpoint has such units."""

    layer: int
    heads: tuple[float, ...]
    attention: float
    intersection: float
    difference: float
    existential: float
    proportion: float
    gelu: float
    sigmoid: float | None = None
    softplus: float | None = None
    relu: float | None = None
    silu: float | None = None
    swiglu: float | None = None
    geglu: float | None = None

    @model_serializer(mode="wrap")
    def _sparse(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_absent(write(self))


class Groups(_Part):
    """A partition of the sum: the numbers add up to it. `attention` holds the bounded heads.

    `sigmoid`, `softplus`, `relu` and an ordinary model's `silu`, `swiglu`, `geglu` are there only where the
    checkpoint's plain units are of that kind.
    """

    attention: float
    linear_attention: float
    set_operators: float
    quantifiers: float
    gelu: float
    floor: float
    sigmoid: float | None = None
    softplus: float | None = None
    relu: float | None = None
    silu: float | None = None
    swiglu: float | None = None
    geglu: float | None = None

    @model_serializer(mode="wrap")
    def _sparse(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_absent(write(self))


def _without_absent(data: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without such units writes what it wrote before there were any."""
    return {key: value for key, value in data.items() if value is not None}


class Shares(_Part):
    """(bounded heads + named units) / (all heads + all units), of the signed net and of the absolute mass."""

    net: float | None
    mass: float | None
    named_net: float | None = None
    named_mass: float | None = None
    why_undefined: str | None = None


class Summary(_Part):
    """Schema 1 of a reading, without the array of all terms."""

    schema_version: int = Field(alias="schema")
    digest: str
    checkpoint: CheckpointRef
    dtype: Dtype
    edits: tuple[dict[str, Any], ...]
    tokens: tuple[Token, ...]
    position: int
    relative_to: RelativeTo
    target: TargetToken
    contrast: TargetToken | None
    predictions: tuple[Prediction, ...]
    value: float
    sum: float
    residual: float
    tolerance: float
    scale: float
    floor: tuple[Term, ...]
    groups: Groups
    shares: Shares
    layers: tuple[LayerTotals, ...]
    top: tuple[Contributor, ...]
    units_shape: tuple[int, int]
    heads_shape: tuple[int, int]
    # An ordinary model's c where its logits pass c·tanh(ℓ/c): value, sum and logits are of ℓ, probabilities are after.
    logit_softcap: float | None = None

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)

    @model_serializer(mode="wrap")
    def _sparse(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = write(self)
        if data["logit_softcap"] is None:
            del data["logit_softcap"]
        return data


@dataclass(frozen=True)
class Reading:
    """A finished reading: the summary, and every head's and unit's term as float32.

    heads (n_layers, n_heads), units (n_layers, d_ff), in logits.
    """

    summary: Summary
    heads: np.ndarray
    units: np.ndarray

    def __getattr__(self, name: str) -> Any:
        # reading.value, reading.target, ...: the summary's fields, without saying "summary" each time.
        if name.startswith("_") or name == "summary":
            raise AttributeError(name)
        return getattr(self.summary, name)

    def _repr_html_(self) -> str:
        """What Jupyter shows: the figure, the strongest terms and the sum, escaped and without script."""
        from legible_core.notebook import reading_html

        return reading_html(self)

    def summary_json(self) -> str:
        """The JSON row that is stored beside `pack()`."""
        return json.dumps(self.summary.model_dump(by_alias=True), ensure_ascii=False, separators=(",", ":"))

    def pack(self) -> bytes:
        """zlib over little-endian float32: all heads, layer by layer, then all units, layer by layer."""
        flat = np.concatenate([self.heads.ravel(), self.units.ravel()]).astype("<f4")
        return zlib.compress(flat.tobytes(), 1)

    @classmethod
    def unpack(cls, summary: str | dict[str, Any], array: bytes) -> Reading:
        """Read back `summary_json()` and `pack()`; raises `Corrupt` when they do not belong together."""
        head = _summary(summary)
        (layers, n_heads), (_, d_ff) = head.heads_shape, head.units_shape
        size = layers * (n_heads + d_ff)
        try:
            engine = zlib.decompressobj()
            # One byte more than expected is enough to notice, and keeps a crafted row from filling the memory.
            raw = engine.decompress(array, size * 4 + 1)
        except zlib.error as error:
            raise Corrupt(
                f"The stored terms of reading {head.digest[:12]} cannot be decompressed.", code="corrupt_reading"
            ) from error
        if len(raw) != size * 4 or not engine.eof:
            raise Corrupt(
                f"The stored terms of reading {head.digest[:12]} are {len(raw)} bytes; its summary needs {size * 4}.",
                code="corrupt_reading",
            )
        flat = np.frombuffer(raw, dtype="<f4")
        split = layers * n_heads
        return cls(head, flat[:split].reshape(layers, n_heads), flat[split:].reshape(layers, d_ff))

    def to_json(self) -> dict[str, Any]:
        """The complete document: the summary and `units`, one list per layer (heads are in `layers`)."""
        data = self.summary.model_dump(mode="json", by_alias=True)
        # The shortest decimal that reads back to the same float32, about 10 characters a unit.
        data["units"] = [[float(text) for text in row] for row in self.units.astype(str)]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reading:
        """Read what `to_json` wrote; raises `Corrupt` when it is no reading of this schema."""
        head = _summary(data)
        heads = np.array([layer.heads for layer in head.layers], dtype=np.float32).reshape(head.heads_shape)
        units = np.array(data.get("units", []), dtype=np.float32)
        if units.shape != head.units_shape:
            raise Corrupt(
                f"A reading's units have shape {units.shape}, not {head.units_shape}.", code="corrupt_reading"
            )
        return cls(head, heads, units)


def _summary(data: str | dict[str, Any]) -> Summary:
    try:
        parsed = json.loads(data) if isinstance(data, str) else data
        version = parsed.get("schema")
        if version != SCHEMA:
            raise Corrupt(
                f"This reading has schema {version!r}; this program reads schema {SCHEMA}.", code="unknown_schema"
            )
        return Summary.model_validate(parsed)
    except (ValidationError, AttributeError, json.JSONDecodeError) as error:
        raise Corrupt(
            f"A stored reading does not follow its schema: {str(error)[:200]}", code="corrupt_reading"
        ) from error
