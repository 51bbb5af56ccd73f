"""How the sum of a prediction's members, and the stream, turn towards the readout.

"Through the Looking Glass" section 3.1: each member of the one-hop set writes a vector that lies at a small angle to
nothing in particular; added one after another, largest first, they turn towards the direction that the readout needs.
Member by member: the rank of the predicted token in what each promotes by itself, and in what their running sum
promotes. And by depth: the alignment of the stream with the predicted token and with the one that stands there, and the
rank of the predicted token when the stream is read through the final norm and the unembedding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legible_core.accounting.counts import account
from legible_core.accounting.drawing import Drawing, Drawn
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Depth, LayerRanks, Population, Quartiles

# Counts of members at which the running sum is looked at: every one at first, then ever wider apart.
RUNGS = (*range(1, 17), 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
MOST = 1024  # members whose ranks are looked up; a set is seldom larger
HUNDRED, THOUSAND = 100, 1000


class Follower:
    """Follows the drawn predictions of every batch that it takes in."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.not_positive = 0
        depths = reader.layout.n_layers + 1
        self._single: dict[str, list[float]] = {
            k: [] for k in ("members", "strongest", "together", "other", "pairwise")
        }
        self._running: dict[str, dict[int, list[float]]] = {
            k: {rung: [] for rung in RUNGS} for k in ("running", "running_other", "running_rank")
        }
        self._leads: list[int] = []
        self._never = 0
        self._ranks = _MemberRanks(reader.layout.n_layers)
        self._streams: dict[str, list[list[float]]] = {
            k: [[] for _ in range(depths)] for k in ("predicted", "current", "ranks")
        }
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
            other = int(others[row % len(others)]) if len(others) else None
            writes = self._centred(reader.writes(passed, place, members))
            self._members(writes, directions[row], None if other is None else directions[other])
            both = targets[[row] if other is None else [row, other]]
            self._ranked(writes[:MOST], both, members[:MOST], every[row][members[:MOST]])
        self._by_depth(drawn, places[kept], targets[kept], directions[kept])

    def result(self, population: Population) -> Depth:
        """What was found so far."""
        ranks = self._streams["ranks"]
        running = {
            name: [(rung, Quartiles.of(values)) for rung, values in rungs.items() if values]
            for name, rungs in self._running.items()
        }
        return Depth(
            population=population,
            **{name: Quartiles.of(values) for name, values in self._single.items()},
            running=running["running"],
            running_other=running["running_other"],
            running_rank=running["running_rank"],
            sum_leads=Quartiles.of(self._leads),
            sum_never=self._never,
            predicted=[Quartiles.of(values) for values in self._streams["predicted"]],
            current=[Quartiles.of(values) for values in self._streams["current"]],
            ranks=[Quartiles.of(values) for values in ranks],
            leading=[float(np.mean(np.array(values) == 1)) for values in ranks if values],
            layers=self._ranks.result(),
            first=Quartiles.of(self._first),
            stays=Quartiles.of(self._stays),
        )

    def _members(self, writes: Tensor, direction: Tensor, other: Tensor | None) -> None:
        """writes (k, d) of one prediction's members, largest term first; directions of unit length."""
        single, sums = _unit(writes), _unit(writes.cumsum(0))
        alone, together = single @ direction, sums @ direction
        self._single["members"].append(float(alone.median()))
        self._single["strongest"].append(float(alone[0]))
        self._single["together"].append(float(together[-1]))
        if other is not None:
            self._single["other"].append(float((single @ other).median()))
        k = len(writes)
        if k > 1:
            # The mean over all pairs, without forming them: |Σ u|² = k + Σ over ordered pairs.
            self._single["pairwise"].append((float(single.sum(0).square().sum()) - k) / (k * (k - 1)))
        self._climb("running", together)
        if other is not None:
            self._climb("running_other", sums @ other)

    def _climb(self, name: str, values: Tensor) -> None:
        """values (k,): of the sum of the first 1, 2, ... k members."""
        for rung in RUNGS:
            if rung <= len(values):
                self._running[name][rung].append(float(values[rung - 1]))

    def _ranked(self, writes: Tensor, tokens: Tensor, members: NDArray[np.int64], terms: NDArray[np.float64]) -> None:
        """Ranks in what each member, and the running sum, promotes; tokens: the predicted one, and perhaps another."""
        found = self.reader.promoted_rank(torch.cat([writes, writes.cumsum(0)]), tokens).cpu().numpy()
        alone, sums = found[: len(writes)], found[len(writes) :, 0]
        self._ranks.add(self.reader.layout.layer(members), terms, alone)
        self._climb("running_rank", torch.from_numpy(sums))
        leads = np.flatnonzero(sums == 1)
        if leads.size:
            self._leads.append(int(leads[0]) + 1)
        else:
            self._never += 1

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
            logits = reader.model.logits(here)
            rank = 1 + (logits > logits.gather(1, targets[:, None])).sum(1).cpu().numpy()
            self._streams["ranks"][depth] += rank.tolist()
            leads.append(rank == 1)
        leading = np.stack(leads, 1)
        self._first += leading.argmax(1).tolist()
        # The depth after the last one at which another token leads; the end itself always leads.
        count = leading.shape[1]
        stays = np.where(leading.all(1), 0, count - leading[:, ::-1].argmin(1)).clip(max=count - 1)
        self._stays += stays.tolist()

    def _centred(self, vectors: Tensor) -> Tensor:
        """Less their mean, where the final norm takes it away."""
        return vectors - vectors.mean(-1, keepdim=True) if self.reader.model.final_norm.centred else vectors


class _MemberRanks:
    """The ranks of members by themselves, gathered by layer."""

    def __init__(self, layers: int) -> None:
        self._rows: list[list[NDArray[np.float64]]] = [[] for _ in range(layers)]

    def add(self, layers: NDArray[np.int64], terms: NDArray[np.float64], ranks: NDArray[np.int64]) -> None:
        """Of one prediction: layers and terms (k,), ranks (k, 1 or 2) of the predicted token and of another."""
        other = ranks[:, 1] if ranks.shape[1] > 1 else np.full(len(ranks), np.nan)
        rows = np.stack([terms, ranks[:, 0], other], 1).astype(np.float64)
        for layer in np.unique(layers).tolist():
            self._rows[layer].append(rows[layers == layer])

    def result(self) -> list[LayerRanks]:
        found = []
        for layer, rows in enumerate(self._rows):
            term, rank, other = np.concatenate([np.zeros((0, 3)), *rows]).T
            known = ~np.isnan(other)
            found.append(LayerRanks(
                layer=layer, members=len(term), rank=Quartiles.of(rank.tolist()),
                hundred=_share(term, rank <= HUNDRED), thousand=_share(term, rank <= THOUSAND),
                hundred_other=_share(term[known], other[known] <= HUNDRED),
            ))  # fmt: skip
        return found


def follow(reader: Reader, drawing: Drawing) -> Depth:
    """The depths of a whole drawing."""
    follower = Follower(reader)
    for drawn in drawing:
        follower.take(drawn)
    return follower.result(drawing.population(follower.not_positive))


def _share(terms: NDArray[np.float64], mask: NDArray[Any]) -> float | None:
    total = float(terms.sum())
    return float(terms[mask].sum()) / total if total > 0 else None


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-30)
