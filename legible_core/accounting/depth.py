"""How the sum of a prediction's members, and the stream, turn towards the readout.

"Through the Looking Glass" section 3.1: each member of the one-hop set writes a vector that lies at a small angle to
nothing in particular; added one after another, largest first, they turn towards the direction that the readout needs.
And by depth: the alignment of the stream with the predicted token and with the one that stands there, and the depth at
which the predicted token first leads when the stream is read through the final norm and the unembedding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from legible_core.accounting.counts import account
from legible_core.accounting.drawing import Drawing, Drawn
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Depth, Population, Quartiles

RUNGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Follower:
    """Follows the drawn predictions of every batch that it takes in."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.not_positive = 0
        depths = reader.layout.n_layers + 1
        self._single: dict[str, list[float]] = {
            k: [] for k in ("members", "strongest", "together", "other", "pairwise")
        }
        self._running: dict[int, list[float]] = {rung: [] for rung in RUNGS}
        self._streams: dict[str, list[list[float]]] = {k: [[] for _ in range(depths)] for k in ("predicted", "current")}
        self._first: list[int] = []
        self._stays: list[int] = []

    @torch.no_grad()
    def take(self, drawn: Drawn) -> None:
        """Follow the drawn predictions of a batch; those without a positive net are counted and left out."""
        if not len(drawn.places):
            return
        passed, reader = drawn.passed, self.reader
        places = torch.as_tensor(drawn.places, device=passed.residual.device)
        targets = drawn.predicted.token[places]
        every = reader.terms(passed, places, targets).double().cpu().numpy()
        directions = _unit(reader.directions(targets))
        kept = []
        for row, place in enumerate(drawn.places.tolist()):
            members = account(every[row]).members
            if not members.size:
                self.not_positive += 1
                continue
            kept.append(row)
            others = (targets != targets[row]).nonzero()[:, 0]
            other = directions[others[row % len(others)]] if len(others) else None
            self._members(self._centred(reader.writes(passed, place, members)), directions[row], other)
        self._by_depth(drawn, places[kept], targets[kept], directions[kept])

    def result(self, population: Population) -> Depth:
        """What was found so far."""
        return Depth(
            population=population,
            **{name: Quartiles.of(values) for name, values in self._single.items()},
            running=[(rung, Quartiles.of(values)) for rung, values in self._running.items() if values],
            predicted=[Quartiles.of(values) for values in self._streams["predicted"]],
            current=[Quartiles.of(values) for values in self._streams["current"]],
            first=Quartiles.of(self._first),
            stays=Quartiles.of(self._stays),
        )

    def _members(self, writes: Tensor, direction: Tensor, other: Tensor | None) -> None:
        """writes (k, d) of one prediction's members, largest term first; directions of unit length."""
        single = _unit(writes)
        alone, sums = single @ direction, _unit(writes.cumsum(0)) @ direction
        self._single["members"].append(float(alone.median()))
        self._single["strongest"].append(float(alone[0]))
        self._single["together"].append(float(sums[-1]))
        if other is not None:
            self._single["other"].append(float((single @ other).median()))
        k = len(writes)
        if k > 1:
            # The mean over all pairs, without forming them: |Σ u|² = k + Σ over ordered pairs.
            self._single["pairwise"].append((float(single.sum(0).square().sum()) - k) / (k * (k - 1)))
        for rung in RUNGS:
            if rung <= k:
                self._running[rung].append(float(sums[rung - 1]))

    def _by_depth(self, drawn: Drawn, places: Tensor, targets: Tensor, directions: Tensor) -> None:
        passed, reader = drawn.passed, self.reader
        if not len(places):
            return
        current = _unit(reader.directions(passed.ids[places]))
        leads = []
        for depth, stream in enumerate(passed.streams):
            here = stream[places].float()
            turned = _unit(self._centred(here))
            self._streams["predicted"][depth] += (turned * directions).sum(-1).tolist()
            self._streams["current"][depth] += (turned * current).sum(-1).tolist()
            leads.append((reader.model.logits(here).argmax(-1) == targets).cpu().numpy())
        leading = np.stack(leads, 1)
        self._first += leading.argmax(1).tolist()
        # The depth after the last one at which another token leads; the end itself always leads.
        count = leading.shape[1]
        stays = np.where(leading.all(1), 0, count - leading[:, ::-1].argmin(1)).clip(max=count - 1)
        self._stays += stays.tolist()

    def _centred(self, vectors: Tensor) -> Tensor:
        """Less their mean, where the final norm takes it away."""
        return vectors - vectors.mean(-1, keepdim=True) if self.reader.model.final_norm.centred else vectors


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def follow(reader: Reader, drawing: Drawing) -> Depth:
    """Depth and alignment over a whole drawing."""
    follower = Follower(reader)
    for drawn in drawing:
        follower.take(drawn)
    return follower.result(drawing.population(follower.not_positive))
