"""What a scan measured of an ordinary model's units, whose values have no rails; imports no torch.

    values = names.plain                             # None for a legible checkpoint, and without a scan
    values.unit(Unit(3, 1200))                       # its statistics, histogram, detect list, suppressed tokens
    values.column(3, "mean")                         # one number for each unit of a layer

The arrays stand beside the others of names.safetensors; docs/ordinary.md defines and describes them. Rows are units,
layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from legible_core.config import ModelConfig
from legible_core.errors import Corrupt, NotFound
from legible_core.naming.bins import BINS, edges, quantiles
from legible_core.naming.records import Label, Promotion
from legible_core.units import Component, Unit

if TYPE_CHECKING:
    from legible_core.naming.names import Names

SHARES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
STATISTICS = ("mean", "variance", "least", "most", "above", "agreement")
SHOWN = 24


@dataclass(frozen=True)
class ActiveToken:
    """A token of a detect list: `count` of its `seen` occurrences in the naming half are among the unit's strongest
    positions, a `share` of them, `lift` times the share of all positions; `mean` of the unit's value at those.
    """

    id: int
    display: str
    lift: float
    count: int
    seen: int
    share: float
    mean: float


@dataclass(frozen=True)
class Bin:
    """A stretch of a histogram: `count` tokens have a value from `start` to `stop`; the outermost stretches are open.

    start, stop: None where the stretch has no end.
    """

    start: float | None
    stop: float | None
    count: int


@dataclass(frozen=True)
class UnitValues:
    """An ordinary unit over the scanned text.

    tokens: how many were read. least, most: its extremes. above: the share of tokens on which it is above 0.
    quantiles: (share, value) pairs, read off the histogram and exact to within a bin. strongest: how many positions of
    the naming half its detect list is made from. length: how many tokens the whole list holds. agreement: None when
    undefined. suppresses: the tokens that its write column lowers most, lowest first.
    """

    id: str
    tokens: int
    mean: float
    variance: float
    least: float
    most: float
    above: float
    quantiles: tuple[tuple[float, float], ...]
    histogram: tuple[Bin, ...]
    strongest: int
    label: Label | None
    detect: tuple[ActiveToken, ...]
    length: int
    agreement: float | None
    suppresses: tuple[Promotion, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class PlainValues:
    """What the names of an ordinary model hold besides promote lists."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.config = names.config
        self._arrays = names._arrays
        self.tokens = int(names.meta["corpus"]["tokens"])
        self.naming = int(names.meta["corpus"]["naming"])

    def unit(self, component: Component, shown: int = SHOWN) -> UnitValues:
        """A unit's values; raises `NotFound` for anything else."""
        row = self._row(component)
        of = self._arrays
        least, most = float(of["unit.least"][row]), float(of["unit.most"][row])
        counts = of["unit.histogram"][row].astype(np.int64)
        agreed = float(of["unit.agreement"][row])
        return UnitValues(
            id=str(component),
            tokens=self.tokens,
            mean=float(of["unit.mean"][row]),
            variance=float(of["unit.variance"][row]),
            least=least,
            most=most,
            above=float(of["unit.above"][row]),
            quantiles=tuple(zip(SHARES, quantiles(counts, SHARES, least, most), strict=True)),
            histogram=_bins(counts),
            strongest=int(of["unit.strongest"][row]),
            label=self.label(row),
            detect=self._detect(row, shown),
            length=int(of["active.offsets"][row + 1]) - int(of["active.offsets"][row]),
            agreement=None if math.isnan(agreed) else agreed,
            suppresses=self.names._promotions("suppress", row),
        )

    def label(self, row: int) -> Label | None:
        """The label of a row's detect list; its three leading tokens, quoted, where no class passes the test."""
        start, stop = (int(x) for x in self._arrays["active.offsets"][row : row + 2])
        return self.names._label("unit", row, self._arrays["active.tokens"][start:stop])

    def row(self, layer: int) -> slice:
        """Where a layer's units stand in the arrays."""
        width = self.config.feed_forward.d_ff
        return slice(layer * width, (layer + 1) * width)

    @property
    def lists(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(offsets, tokens): unit i, layer by layer, lists tokens[offsets[i]:offsets[i + 1]]."""
        return self._arrays["active.offsets"].astype(np.int64), self._arrays["active.tokens"].astype(np.int64)

    def base(self, rows: slice) -> NDArray[np.float64]:
        """The share of the naming half's positions that are among a unit's strongest."""
        base: NDArray[np.float64] = self._arrays["unit.strongest"][rows] / max(1, self.naming)
        return base

    def column(self, layer: int, statistic: str) -> NDArray[np.float64]:
        """One of STATISTICS for every unit of a layer, shape (f,); an agreement is NaN where it is undefined."""
        return self._arrays[f"unit.{statistic}"][self.row(layer)].astype(np.float64)

    def _row(self, component: Component) -> int:
        layout = self.config.feed_forward
        match component:
            case Unit(layer, unit) if 0 <= layer < self.config.n_layers and 0 <= unit < layout.d_ff:
                return layer * layout.d_ff + unit
        raise NotFound(f"{component} has no values in these names; units have.")

    def _detect(self, row: int, shown: int) -> tuple[ActiveToken, ...]:
        of = self._arrays
        start, stop = (int(x) for x in of["active.offsets"][row : row + 2])
        base = int(of["unit.strongest"][row]) / max(1, self.naming)
        found = []
        for place in range(start, min(stop, start + shown)):
            token, count = int(of["active.tokens"][place]), int(of["active.count"][place])
            seen = max(int(of["seen"][token]), 1)
            share = count / seen
            shown_as, mean = self.names.display(token), float(of["active.mean"][place])
            found.append(ActiveToken(token, shown_as, share / base, count, seen, share, mean))
        return tuple(found)


def check(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], config: ModelConfig, file: str) -> None:
    """Raise `Corrupt` naming the array of `file` that does not fit the config."""
    rows = config.n_layers * config.feed_forward.d_ff
    corpus = meta.get("corpus")
    if not isinstance(corpus, dict) or not all(type(corpus.get(key)) is int for key in ("tokens", "naming")):
        raise Corrupt('names.json lacks the "tokens" or "naming" of its "corpus"')
    listed = arrays["active.tokens"].size if "active.tokens" in arrays else 0
    width = arrays["suppress.tokens"].shape[-1] if "suppress.tokens" in arrays else 0
    shapes: dict[str, tuple[int, ...]] = {f"unit.{name}": (rows,) for name in (*STATISTICS, "strongest")}
    shapes |= {f"unit.label.{name}": (rows,) for name in ("class", "q", "overlap", "leading", "share")}
    shapes |= {"unit.histogram": (rows, BINS), "active.offsets": (rows + 1,)}
    shapes |= {f"active.{name}": (listed,) for name in ("tokens", "count", "mean")}
    shapes |= {f"suppress.{name}": (rows, width) for name in ("tokens", "weights")}
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape:
            found = arrays[name].shape if name in arrays else "missing"
            raise Corrupt(f"{file}: {name} is {found}; the model needs {shape}")
    for name in ("mean", "variance", "least", "most", "above"):
        if not np.isfinite(arrays[f"unit.{name}"]).all():
            raise Corrupt(f"{file}: unit.{name} holds a value that is no number")
    if (arrays["unit.histogram"].sum(axis=1, dtype=np.int64) != corpus["tokens"]).any():
        raise Corrupt(f"{file}: unit.histogram does not count every token of the corpus once")
    offsets = arrays["active.offsets"].astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != listed or (np.diff(offsets) < 0).any():
        raise Corrupt(f"{file}: active.offsets do not divide the list of tokens")
    for name in ("active.tokens", "suppress.tokens"):
        ids = arrays[name]
        if ids.dtype.kind not in "ui" or (ids.size and int(ids.max()) >= config.vocab_size):
            raise Corrupt(f"{file}: {name} holds ids outside the vocabulary")
    chosen = arrays["unit.label.class"]
    if chosen.dtype.kind != "i" or (chosen.size and not -1 <= chosen.min() <= chosen.max() < len(meta["classes"])):
        raise Corrupt(f"{file}: unit.label.class names no class of names.json")


def _bins(counts: NDArray[np.int64]) -> tuple[Bin, ...]:
    """The histogram from its first to its last bin that is not empty."""
    ends: list[float | None] = [None if math.isinf(edge) else float(edge) for edge in edges()]
    held = np.flatnonzero(counts)
    if not held.size:
        return ()
    return tuple(Bin(ends[i], ends[i + 1], int(counts[i])) for i in range(int(held[0]), int(held[-1]) + 1))
