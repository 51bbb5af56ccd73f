"""writes.safetensors: what each component helped to predict, stored beside the weights; imports no torch.

written = Written.load(folder, checkpoint.hash)        # None where there is none, or one of other weights
written.of(Unit(5, 263))                               # Helped(times=412, tokens=(...), coherent=True)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legible_core.accounting.counts import Layout
from legible_core.array_file import ArrayFile
from legible_core.config import ModelConfig
from legible_core.units import Channel, Unit

FILE = "writes.safetensors"
STORED = ArrayFile(FILE, "legible-writes", "1", "account again")
TOKENS = 8
CHARACTERISED = 20
DTYPES = {
    "times": "int32", "tokens": "int32", "counts": "int32", "shares": "float32", "coherent": "int8",
    "variation": "float32",
}  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A token that a component helped: how often, and its mean share of the net when it did."""

    token: int
    times: int
    share: float


@dataclass(frozen=True)
class Helped:
    """times: predictions whose one-hop set it was in. coherent: None where the set was not judged.

    variation: the median, over tokens that it helped five times or more, of how its share varies, over its mean; None
    where no token was.
    """

    times: int
    tokens: tuple[Token, ...]
    coherent: bool | None
    variation: float | None = None

    @property
    def characterised(self) -> bool:
        return self.times >= CHARACTERISED

    def to_json(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "characterised": self.characterised,
            "coherent": self.coherent,
            "variation": self.variation,
            "tokens": [{"token": t.token, "times": t.times, "share": t.share} for t in self.tokens],
        }


@dataclass(frozen=True, eq=False)
class Written:
    """Arrays over the components in `counts.Layout`'s order: times (c,), the tokens helped most (c, 8) with -1 where
    there are fewer, counts and mean shares (c, 8), coherent (c,): 1, 0, or -1 where it was not judged;
    variation (c,), NaN where it is not known.

    meta: checkpoint, corpus, predictions, perplexity.
    """

    times: NDArray[np.int32]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    shares: NDArray[np.float32]
    coherent: NDArray[np.int8]
    variation: NDArray[np.float32]
    layout: Layout
    meta: dict[str, str]

    def of(self, component: Unit | Channel) -> Helped:
        """What a component helped."""
        place = self.layout.place(component)
        judged = int(self.coherent[place])
        tokens = zip(self.tokens[place].tolist(), self.counts[place].tolist(), self.shares[place].tolist(), strict=True)
        return Helped(
            int(self.times[place]),
            tuple(Token(token, times, share) for token, times, share in tokens if token >= 0),
            None if judged < 0 else bool(judged),
            None if np.isnan(self.variation[place]) else float(self.variation[place]),
        )

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str, config: ModelConfig) -> Written | None:
        """What lies beside a checkpoint; None where there is nothing, or only what belongs to other weights.

        Raises `Corrupt` with one sentence when the file is not what it claims to be.
        """
        found = STORED.load(folder, checkpoint_hash, DTYPES, optional=("variation",))
        if found is None:
            return None
        meta, arrays = found
        layout = Layout.of(config)
        # A file from before it was measured has none.
        arrays.setdefault("variation", np.full(layout.size, np.nan, np.float32))
        shapes = {
            name: (layout.size, TOKENS) if name in ("tokens", "counts", "shares") else (layout.size,) for name in DTYPES
        }
        if {name: array.shape for name, array in arrays.items()} != shapes or any(
            str(array.dtype) != DTYPES[name] for name, array in arrays.items()
        ):
            raise STORED.corrupt(f"the tensors of {FILE} do not fit this checkpoint")
        if int(arrays["tokens"].max(initial=-1)) >= config.vocab_size:
            raise STORED.corrupt(f"{FILE} names tokens that this checkpoint lacks")
        return cls(**arrays, layout=layout, meta=meta)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all; raises `Unavailable` when the disk does not take it."""
        arrays = {name: getattr(self, name).astype(dtype) for name, dtype in DTYPES.items()}
        STORED.save(path, arrays, self.meta)
