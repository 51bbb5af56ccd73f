"""history.safetensors: what each unit was at a few moments of the training, beside the weights; imports no torch.

    history = UnitHistory.load(folder, checkpoint.hash, checkpoint.config)   # None where there is none of these weights
    history.of(Unit(5, 263))                                                 # one Moment for each snapshot, in order

The weights of the snapshots themselves are as large as a checkpoint each; this is what a unit's history needs of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legible_core.array_file import ArrayFile
from legible_core.config import ModelConfig
from legible_core.legibility import CODES
from legible_core.reads import opens
from legible_core.training.history import MAX_WHOLE, is_whole, number_of, text_of
from legible_core.units import Unit

FILE = "history.safetensors"
STORED = ArrayFile(FILE, "legible-history", "1", "measure the history again")
TOKENS = 5
MAX_SNAPSHOTS = 100
MAX_TEXT = 200
# s snapshots, l layers, f units, b of them bounded (as many as there are operands), q quantifiers.
SHAPES = {
    "read_cosine": ("float16", "slf"),
    "write_cosine": ("float16", "slf"),
    "write_norm": ("float16", "slf"),
    "promotes": ("int32", "slft"),
    "unit_on": ("float16", "slb"),
    "operand_on": ("float16", "slb"),
    "operand_crisp": ("float16", "slb"),
    "operand_class": ("int8", "slb"),
    "half_life": ("float32", "slq"),
}


@dataclass(frozen=True)
class Snapshot:
    """One moment of the training: its tokens, the hash of its weights, and its loss (nats) on the text measured on.

    decay_tokens: how many of the tokens the learning rate fell over, 0 for weights at a constant rate; None where
    neither card nor file says it. Weights of the two sorts differ by the decay as well as by their tokens.
    """

    tokens: int
    hash: str
    loss: float
    decay_tokens: int | None = None

    @property
    def rate(self) -> str:
        """`decay_tokens` in words."""
        if self.decay_tokens is None:
            return "not recorded"
        return "decayed" if self.decay_tokens else "constant"

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "decay_tokens": self.decay_tokens, "hash": self.hash, "loss": self.loss}


@dataclass(frozen=True)
class OperandThen:
    """An operand at one moment. cosine: of its read row, under the norm's gain, with its row at the end."""

    id: str
    on: float
    crisp: float
    cls: str | None
    cosine: float

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "on": self.on, "crisp": self.crisp, "class": self.cls, "cosine": self.cosine}


@dataclass(frozen=True)
class Moment:
    """A unit at one moment.

    write_cosine: of its write column, less its mean, with the column at the end; write_norm: that column's norm.
    promotes: the ids of the tokens that it promoted most. on: the unit's own ON, None where it has no rails.
    """

    snapshot: Snapshot
    operands: tuple[OperandThen, ...]
    on: float | None
    read_cosine: float
    write_cosine: float
    write_norm: float
    promotes: tuple[int, ...]
    half_life: float | None

    def to_json(self) -> dict[str, Any]:
        lives = self.half_life is not None and math.isfinite(self.half_life)
        return {
            **self.snapshot.to_json(),
            "operands": [operand.to_json() for operand in self.operands],
            "on": self.on,
            "read_cosine": self.read_cosine,
            "write_cosine": self.write_cosine,
            "write_norm": self.write_norm,
            "promotes": list(self.promotes),
            "half_life": self.half_life if lives else None,
        }


@dataclass(frozen=True, eq=False)
class UnitHistory:
    """Arrays over snapshots, layers and units (`SHAPES`); the last snapshot is the checkpoint itself.

    measured: the text's name and the tokens of it.
    """

    arrays: dict[str, NDArray[Any]]
    snapshots: tuple[Snapshot, ...]
    measured: tuple[str, int]
    config: ModelConfig

    def ending(self, decay_tokens: int | None) -> UnitHistory:
        """The same with the checkpoint's own `decay_tokens`, off its card, where the file does not say them."""
        *before, last = self.snapshots
        if last.decay_tokens is not None or decay_tokens is None:
            return self
        return replace(self, snapshots=(*before, replace(last, decay_tokens=decay_tokens)))

    def of(self, unit: Unit) -> tuple[Moment, ...]:
        """A unit's history, first snapshot first."""
        layout = self.config.feed_forward
        layer, index = unit.layer, unit.unit
        kind = layout.kind(index)
        rows = [index]
        if kind in ("intersection", "difference"):
            # The rows of all A stand before those of all B, as the units of both operations do.
            rows = [layout.pair(index), layout.n_pairs + layout.pair(index)]
        operands = opens(self.config, unit) if index < layout.n_named else (unit,)
        bounded = index < layout.n_bounded
        found = []
        for number, snapshot in enumerate(self.snapshots):

            def figure(name: str, at: int, number: int = number) -> float:
                return float(self.arrays[name][number, layer, at])

            then = tuple(
                OperandThen(
                    str(operand),
                    figure("operand_on", row),
                    figure("operand_crisp", row),
                    _class(int(self.arrays["operand_class"][number, layer, row])),
                    figure("read_cosine", row),
                )
                for operand, row in zip(operands, rows, strict=True)
                if bounded
            )
            decays = kind in ("existential", "proportion")
            found.append(
                Moment(
                    snapshot,
                    then,
                    figure("unit_on", index) if bounded else None,
                    figure("read_cosine", rows[0]),
                    figure("write_cosine", index),
                    figure("write_norm", index),
                    tuple(int(token) for token in self.arrays["promotes"][number, layer, index] if token >= 0),
                    figure("half_life", index - 2 * layout.n_pairs) if decays else None,
                )
            )
        return tuple(found)

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str, config: ModelConfig) -> UnitHistory | None:
        """What lies beside a checkpoint; None where there is nothing, or only what belongs to other weights.

        Raises `Corrupt` with one sentence when the file is not what it claims to be.
        """
        found = STORED.load(folder, checkpoint_hash, SHAPES)
        if found is None:
            return None
        meta, arrays = found
        try:
            snapshots = tuple(_snapshot(each) for each in json.loads(meta["snapshots"]))
            measured = (_text(meta["text"]), int(meta["tokens"]))
            if not 0 <= measured[1] <= MAX_WHOLE or not 1 <= len(snapshots) <= MAX_SNAPSHOTS + 1:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise STORED.damaged() from None
        wanted = shapes(config, len(snapshots))
        if any((str(array.dtype), array.shape) != wanted[name] for name, array in arrays.items()):
            raise STORED.corrupt(f"the tensors of {FILE} do not fit this checkpoint")
        floats = [array for array in arrays.values() if array.dtype.kind == "f"]
        # A quantifier that forgets nothing has an infinite half-life; nothing else is infinite, and nothing is NaN.
        if any(np.isnan(array).any() for array in floats) or any(np.isinf(a).any() for a in floats if a.itemsize == 2):
            raise STORED.corrupt(f"{FILE} holds what is no number")
        if int(arrays["promotes"].max(initial=-1)) >= config.vocab_size:
            raise STORED.corrupt(f"{FILE} names tokens that this checkpoint lacks")
        return cls(arrays, snapshots, measured, config)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all; raises `Unavailable` when the disk does not take it."""
        meta = {
            "checkpoint": self.snapshots[-1].hash,
            "text": self.measured[0], "tokens": str(self.measured[1]),
            "snapshots": json.dumps([snapshot.to_json() for snapshot in self.snapshots]),
        }  # fmt: skip
        STORED.save(folder / FILE, {name: self.arrays[name] for name in SHAPES}, meta)


def shapes(config: ModelConfig, snapshots: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of every array."""
    layout = config.feed_forward
    sizes = {
        "s": snapshots, "l": config.n_layers, "f": layout.d_ff, "b": layout.n_bounded, "q": layout.n_quantifiers,
        "t": TOKENS,
    }  # fmt: skip
    return {name: (dtype, tuple(sizes[letter] for letter in axes)) for name, (dtype, axes) in SHAPES.items()}


def _snapshot(found: dict[str, Any]) -> Snapshot:
    tokens, loss = found["tokens"], number_of(found["loss"], MAX_WHOLE)
    decayed = found.get("decay_tokens")  # the first files did not have it
    if any(not is_whole(count) or count < 0 for count in (tokens, 0 if decayed is None else decayed)):
        raise ValueError
    if not math.isfinite(loss):
        raise ValueError
    return Snapshot(tokens, _text(found["hash"]), loss, decayed)


def _text(value: Any) -> str:
    if not isinstance(value, str) or text_of(value, MAX_TEXT) != value:
        raise ValueError
    return value


def _class(code: int) -> str | None:
    return str(CODES[code]) if 0 <= code < len(CODES) else None
