"""Read rows: the tokens that a row's weights say drive it, against those that do drive it when they are substituted.

"Through the Looking Glass" section 3.2. A read row is a covector in the frame of its own layer. Three orders of the
candidate tokens (the most frequent ones), for every row w of a feed-forward layer l:

    layer-native    w · Ẽ[l, t]              Ẽ: the mean normed state at t, centred (`editing.native`)
    vocabulary      w · (W_U[t] - mean)      the plain projection, which asks what the row would mean at the readout
    ground truth    mean over contexts of φ(w · x + b), x the layer's normed state when t is put at the context's end

The table is measured on one half of a text and the contexts are of the other, so that they share no sampling noise.
Sets at K are compared by their overlap and corrected for chance, (o - K/V) / (1 - K/V); the truth is averaged both
ways: mean activations, or ranks within each context. Set operators, quantifiers and gated units are read operand by
operand.

Apart from it, on its own scale, the ordering experiment (section 5.2): the same pre-activations through each
activation; the order of their mean against that of the mean activation. GELU falls below -0.7518 and so reverses what
lies there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legible_core.accounting.drawing import BEFORE, Drawing, Text
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Agreement, Ordering, ReadRows, Reads
from legible_core.accounting.rows import KINDS, RowGroup, rows_of
from legible_core.editing.native import measure_native
from legible_core.model.activations import FUNCTIONS
from legible_core.naming.observe import halves, spread

KS = (8, 16, 32, 64, 128, 256)
CANDIDATES, CONTEXTS, CONTEXT_TOKENS = 512, 16, 32
TABLE_TOKENS = 100_000
ROWS = 128
GELU_FALLS = -0.7517916
PHI: Mapping[str, Callable[[Tensor], Tensor]] = {"identity": lambda z: z, **dict(FUNCTIONS.items())}


class Agreements:
    """Sums of overlaps at every K, over rows."""

    def __init__(self, candidates: int) -> None:
        self.candidates = candidates
        self.ks = [k for k in KS if k < candidates]
        self._sum = np.zeros(len(self.ks))
        self.rows = 0

    def add(self, ours: Tensor, truth: Tensor) -> NDArray[np.float64]:
        """ours, truth: ranks (v, r) from 0; returns the overlap of each row at the smallest K, (r,)."""
        first = np.zeros(ours.shape[1])
        for place, k in enumerate(self.ks):
            both = ((ours < k) & (truth < k)).sum(0).double().cpu().numpy() / k
            self._sum[place] += both.sum()
            first = both if place == 0 else first
        self.rows += ours.shape[1]
        return first

    def result(self) -> list[Agreement]:
        found = []
        for k, total in zip(self.ks, self._sum, strict=True):
            overlap, chance = float(total) / max(1, self.rows), k / self.candidates
            found.append(Agreement(k=k, overlap=overlap, chance=chance, corrected=corrected(overlap, chance)))
        return found


def corrected(overlap: float, chance: float) -> float:
    """0 for a random list, 1 for the same one, negative for worse than random."""
    return (overlap - chance) / (1.0 - chance)


def read_rows(
    reader: Reader,
    text: Text,
    *,
    end_of_document: int | None = None,
    candidates: int = CANDIDATES,
    contexts: int = CONTEXTS,
    table_tokens: int = TABLE_TOKENS,
    seed: int = 0,
    between: Callable[[int, int], None] | None = None,
) -> Reads:
    """Agreement of every feed-forward row's order with its ground truth, and the ordering experiment.

    Raises `LegibleError` for a text too short.
    """
    model, source = reader.model, rows_of(reader.model, reader.begin)
    first, second = halves(text.ids, end_of_document)
    sample = spread(first, source.model.config.context, table_tokens)
    native = measure_native(
        source.model, sample, candidates=candidates, min_count=4, end_of_document=end_of_document,
        between=None if between is None else lambda done: between(done, table_tokens),
    )  # fmt: skip
    # In an order of chance, so that equal activations (a ReLU's zeros) are in no order that a reading could share.
    shuffled = np.random.default_rng(seed).permutation(len(native.tokens))
    tokens, table = native.tokens[shuffled], torch.from_numpy(native.table[:, shuffled])
    length = min(CONTEXT_TOKENS, source.model.config.context - 1)
    starts = np.linspace(0, len(second) - length - 1, contexts).astype(np.int64)
    states = source.substituted(np.stack([second[s : s + length] for s in starts]), tokens)
    vocabulary = model.unembedding_matrix[torch.as_tensor(tokens)].detach().float()
    vocabulary = vocabulary - vocabulary.mean(0)
    comparison = _Comparison(len(tokens))
    for layer in range(reader.layout.n_layers):
        for group in source.groups(layer):
            for start in range(0, len(group.rows), ROWS):
                comparison.add(layer, group, slice(start, start + ROWS), states[layer], table[layer], vocabulary)
    drawing = Drawing(reader, replace(text, ids=second), floor=0.0, predictions=8 * BEFORE, seed=seed)
    for _ in drawing:  # for the loss beside the figures
        pass
    return Reads(
        population=drawing.population(0),
        candidates=len(tokens),
        contexts=contexts,
        table_tokens=len(sample),
        **comparison.result(reader.layout.n_layers),
    )


class _Comparison:
    """Everything that is summed over rows."""

    def __init__(self, candidates: int) -> None:
        self.candidates = candidates
        self._agreements: dict[tuple[str, str, str], Agreements] = defaultdict(lambda: Agreements(candidates))
        self._layers: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._ordering = {name: Agreements(candidates) for name in PHI}
        self._falling: list[int] = [0, 0]

    @torch.no_grad()
    def add(self, layer: int, group: RowGroup, which: slice, states: Tensor, table: Tensor, vocabulary: Tensor) -> None:
        """Some rows of a layer: states (c, v, d), table and vocabulary (v, d)."""
        rows = group.rows[which]
        z = states @ rows.T
        if group.bias is not None:
            z = z + group.bias[which]
        active = group.function(z)
        truths = {"mean": ranks(active.mean(0)), "rank": ranks(-ranks(active.movedim(1, 0)).float().mean(1))}
        for reading, scores in (("native", table.to(rows.device) @ rows.T), ("vocabulary", vocabulary @ rows.T)):
            ours = ranks(scores)
            for averaging, truth in truths.items():
                found = self._agreements[group.kind, reading, averaging].add(ours, truth)
                if reading == "native" and averaging == "mean":
                    chance = min(k for k in KS if k < self.candidates) / self.candidates
                    self._layers[group.kind, layer] += [corrected(float(overlap), chance) for overlap in found]
        predictor = ranks(z.mean(0))
        for name, function in PHI.items():
            self._ordering[name].add(predictor, ranks(function(z).mean(0)))
        self._falling[0] += int((z < GELU_FALLS).sum())
        self._falling[1] += z.numel()

    def result(self, n_layers: int) -> dict[str, Any]:
        there = [kind for kind in KINDS if (kind, "native", "mean") in self._agreements]
        return {
            "kinds": [
                ReadRows(
                    kind=kind,
                    rows=self._agreements[kind, "native", "mean"].rows,
                    native={"mean": self._of(kind, "native", "mean"), "rank": self._of(kind, "native", "rank")},
                    vocabulary={
                        "mean": self._of(kind, "vocabulary", "mean"), "rank": self._of(kind, "vocabulary", "rank")
                    },
                    layers=[float(np.mean(self._layers[kind, layer])) for layer in range(n_layers)],
                )
                for kind in there
            ],
            "ordering": [
                Ordering.model_validate({"activation": name, "agreement": found.result()})
                for name, found in self._ordering.items()
            ],
            "decreasing": self._falling[0] / max(1, self._falling[1]),
        }  # fmt: skip

    def _of(self, kind: str, reading: str, averaging: str) -> list[Agreement]:
        return self._agreements[kind, reading, averaging].result()


def ranks(values: Tensor) -> Tensor:
    """The place of each entry along the first dimension, the largest first: 0, 1, ...; equal ones in their order."""
    order = values.argsort(dim=0, descending=True, stable=True)
    places = torch.arange(len(values), device=values.device).view(-1, *[1] * (values.ndim - 1)).expand_as(order)
    return torch.empty_like(order).scatter_(0, order, places)
