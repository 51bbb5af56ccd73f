"""How many components carry a prediction, over a corpus; and what the model pushes the losers with.

"Through the Looking Glass" sections 2.2-2.6: medians and quartiles of n_80, n_90, n_99 under three denominators, per
channel and per head; the opposing mass over the net; n_90 and the net against the model's confidence; the push behind
the runner-up, behind one of the fifty most probable tokens, and behind a random one, over the winner's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legible_core.accounting.counts import DENOMINATORS, Account, Layout, account, shares
from legible_core.accounting.drawing import Drawing, Drawn
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import (
    POINTS,
    Confidence,
    Counted,
    Counts,
    LayerShare,
    Point,
    Population,
    Push,
    Quartiles,
)

FIFTY = 50
TENTHS = [(i / 10, (i + 1) / 10 if i < 9 else 1.0 + 1e-6) for i in range(10)]
Rival: TypeAlias = Literal["runner_up", "top_fifty", "random"]
RIVALS: tuple[Rival, ...] = get_args(Rival)
LEVELS: tuple[tuple[Literal["n80", "n90", "n99"], int], ...] = (("n80", 80), ("n90", 90), ("n99", 99))


class Counter:
    """Accounts for the predictions of every batch that it takes in."""

    def __init__(self, reader: Reader, seed: int = 0) -> None:
        self.reader, self.layout = reader, reader.layout
        self.by_head = Layout.of(reader.model.config, by_head=True)
        self.not_positive = 0
        self._accounts: dict[str, list[Account]] = {"channels": [], "heads": []}
        self._shares: dict[str, list[dict[str, Any]]] = {"channels": [], "heads": []}
        self._floor: list[float] = []
        self._confidence: list[tuple[Point, float]] = []  # and the opposing mass over the net
        self._push: dict[Rival, dict[str, list[float]]] = {name: defaultdict(list) for name in RIVALS}
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, drawn: Drawn) -> None:
        """Account for the drawn predictions of a batch, and, against confidence alone, for the others."""
        probability = drawn.predicted.probability.cpu()
        for place, terms in self._each(drawn, drawn.others, drawn.predicted.token):
            self._against_confidence(float(probability[place]), account(terms), self._heads_of(terms))
        winners: dict[int, Account] = {}
        for place, terms in self._each(drawn, drawn.places, drawn.predicted.token):
            found, heads = account(terms), self._heads_of(terms)
            whole = self._against_confidence(float(probability[place]), found, heads)
            if whole is None:
                self.not_positive += 1
                continue
            winners[place] = found
            for name, one, values, layout in (
                ("channels", found, terms, self.layout), ("heads", whole, heads, self.by_head),
            ):  # fmt: skip
                self._accounts[name].append(one)
                self._shares[name].append(shares(values, one.members, layout))
        self._rivals(drawn, winners)

    def result(self, population: Population) -> Counts:
        """What was found so far."""
        channels = self._accounts["channels"]
        layers = self._shares["channels"]
        return Counts(
            population=population,
            channels=self._counted("channels"),
            heads=self._counted("heads"),
            opposing_over_net=Quartiles.of(one.opposing_over_net for one in channels),
            floor_over_value=Quartiles.of(self._floor),
            layers=[
                LayerShare(
                    layer=i,
                    attention=float(np.mean([row["layers"][i]["attention"] for row in layers])),
                    feed_forward=float(np.mean([row["layers"][i]["feed_forward"] for row in layers])),
                )
                for i in range(self.layout.n_layers if layers else 0)
            ],
            confidence=[self._tenth(low, high) for low, high in TENTHS],
            points=[point for low, high in TENTHS for point in self._drawn(low, high)],
            push={
                name: Push(
                    net=Quartiles.of(self._push[name]["net"]),
                    positive=Quartiles.of(self._push[name]["positive"]),
                    n90=Quartiles.of(self._push[name]["n90"]),
                    not_positive=sum(1 for net in self._push[name]["net"] if net <= 0),
                )
                for name in RIVALS
            },
        )

    def _against_confidence(self, probability: float, found: Account, heads: NDArray[np.float64]) -> Account | None:
        """Keep a prediction, of whatever confidence; its accounting by heads, None without a positive net."""
        whole = account(heads)
        n90, by_head, opposing = found.n(), whole.n(), found.opposing_over_net
        # The same net in two orders of addition: where it is all but 0, only one of them may be positive.
        if n90 is None or by_head is None or opposing is None:
            return None
        self._confidence.append((Point(probability, found.net, n90, by_head), opposing))
        return whole

    def _tenth(self, low: float, high: float) -> Confidence:
        here = [(point, opposing) for point, opposing in self._confidence if low <= point.probability < high]
        return Confidence(
            low=low, high=high,
            n90=Quartiles.of(point.channels for point, _ in here), heads=Quartiles.of(point.heads for point, _ in here),
            net=Quartiles.of(point.net for point, _ in here), opposing_over_net=Quartiles.of(each for _, each in here),
        )  # fmt: skip

    def _drawn(self, low: float, high: float) -> list[Point]:
        """Up to POINTS predictions of a tenth, evenly out of the order in which they came, the least sure first."""
        here = [point for point, _ in self._confidence if low <= point.probability < high]
        places = np.linspace(0, len(here) - 1, min(POINTS, len(here))).astype(np.int64)
        return sorted(here[place] for place in np.unique(places))

    def _counted(self, surface: str) -> Counted:
        found = self._accounts[surface]
        return Counted(
            components=self.layout.size if surface == "channels" else self.by_head.size,
            counts={
                denominator: {
                    name: Quartiles.of(one.n(percent, denominator) for one in found) for name, percent in LEVELS
                }
                for denominator in DENOMINATORS
            },
            attention=Quartiles.of(row["attention"] for row in self._shares[surface]),
            attention_members=Quartiles.of(row["attention_members"] for row in self._shares[surface]),
        )

    def _each(self, drawn: Drawn, places: NDArray[np.int64], targets: Tensor) -> list[tuple[int, NDArray[np.float64]]]:
        """The terms of each place's target, `targets` (n,) by flat place."""
        if not len(places):
            return []
        where = torch.as_tensor(places, device=targets.device)
        found = self.reader.terms(drawn.passed, where, targets[where]).double().cpu().numpy()
        return list(zip(places.tolist(), found, strict=True))

    def _heads_of(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        first = self.layout.first_unit
        heads = terms[:first].reshape(-1, self.layout.d_head).sum(-1)
        return np.concatenate([heads, terms[first:]])

    @torch.no_grad()
    def _rivals(self, drawn: Drawn, winners: dict[int, Account]) -> None:
        """What pushes three other tokens at the places where a token wins."""
        if not winners:
            return
        places = np.array(list(winners), np.int64)
        logits = self.reader.model.logits(drawn.passed.residual[torch.as_tensor(places)])
        count = min(FIFTY, logits.shape[-1])
        leading = logits.topk(count).indices
        for row, place in enumerate(places.tolist()):
            won, floor = winners[place], self._value(logits[row]) - winners[place].net
            self._floor.append(floor / (won.net + floor) if won.net + floor > 0 else float("nan"))
        rivals: dict[Rival, Tensor] = {
            "runner_up": leading[:, min(1, count - 1)],
            "top_fifty": leading[torch.arange(len(places)), self._below(count, len(places))],
            "random": torch.randint(logits.shape[-1], (len(places),), generator=self._generator).to(leading.device),
        }
        targets = drawn.predicted.token.clone()
        for name, tokens in rivals.items():
            targets[torch.as_tensor(places)] = tokens
            for place, terms in self._each(drawn, places, targets):
                found, won = account(terms), winners[place]
                self._push[name]["net"].append(found.net / won.net)
                self._push[name]["positive"].append(found.positive / won.positive)
                self._push[name]["n90"].append(float("nan") if found.n() is None else float(found.n() or 0))

    def _below(self, count: int, size: int) -> Tensor:
        """A rank among the fifty most probable, the winner and the runner-up aside where there are more."""
        low = min(2, count - 1)
        return torch.randint(low, max(count, low + 1), (size,), generator=self._generator)

    @staticmethod
    def _value(logits: Tensor) -> float:
        """The winner's logit less the mean logit."""
        return float(logits.max().double() - logits.double().mean())


def count_predictions(reader: Reader, drawing: Drawing) -> Counts:
    """The counts of a whole drawing."""
    counter = Counter(reader, drawing.seed)
    for drawn in drawing:
        counter.take(drawn)
    return counter.result(drawing.population(counter.not_positive))
