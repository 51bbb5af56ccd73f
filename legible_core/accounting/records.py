"""accounting.json: what the accounting of many predictions found, stored beside the weights; imports no torch.

    stored = Accounting.load(folder, checkpoint.hash)     # None where there is none, or one of other weights
    stored.counts.channels.counts["net"]["n90"].median
    stored.counts.population.perplexity                   # every figure has its population, and the model's quality in
    it

The file is described in docs/accounting.md. Its parts are independent: each is there when it was measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from legible_core import folder as files
from legible_core.errors import Corrupt, Unavailable
from legible_core.replace import sync

FILE = "accounting.json"
FORMAT, VERSION = "legible-accounting", 1
MAX_BYTES = 8 << 20
PARTS = ("counts", "depth", "carriage", "reads", "writes")
POINTS = 30  # predictions of each tenth of confidence that are kept to be drawn
Share: TypeAlias = float | None


class Part(BaseModel):
    """Frozen, and nothing in it that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quartiles(Part):
    """Of n numbers; None where n is 0."""

    q1: float | None
    median: float | None
    q3: float | None
    n: int = Field(ge=0)

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quartiles:
        """The quartiles of those that are numbers; None and NaN are left out."""
        kept = [value for value in values if value is not None and math.isfinite(value)]
        if not kept:
            return cls(q1=None, median=None, q3=None, n=0)
        q1, median, q3 = np.quantile(kept, [0.25, 0.5, 0.75]).tolist()
        return cls(q1=q1, median=median, q3=q3, n=len(kept))


NONE = Quartiles(q1=None, median=None, q3=None, n=0)


class Population(Part):
    """What a figure was measured on, and the model's quality there.

    windows: texts of `context` tokens that were read. looked_at: positions that could be chosen (those with enough text
    before). over_floor: how many of these the model was at least `floor` sure of. predictions: how many were accounted
    for; not_positive: how many more had a net that is not positive, and were left out. loss: nats per token over all
    positions of the windows.
    """

    corpus: str
    sha256: str
    tokens: int
    windows: int
    context: int
    looked_at: int
    floor: float
    over_floor: int
    predictions: int
    not_positive: int
    seed: int
    loss: float
    perplexity: float


class Counted(Part):
    """n_80, n_90, n_99 by denominator, with channels or whole heads as attention's components.

    attention: its share of the one-hop set's mass; attention_members: of its count.
    """

    components: int
    counts: dict[Literal["net", "positive", "absolute"], dict[Literal["n80", "n90", "n99"], Quartiles]]
    attention: Quartiles
    attention_members: Quartiles


class Confidence(Part):
    """Predictions whose probability lies in [low, high): n_90 of the net by channels (`n90`) and by heads, the net.

    net: in logits; opposing_over_net: the opposing mass over it. A file from before these were measured has no numbers
    there.
    """

    low: float
    high: float
    n90: Quartiles
    heads: Quartiles = NONE
    net: Quartiles = NONE
    opposing_over_net: Quartiles = NONE


class Point(NamedTuple):
    """One prediction: its probability, its net in logits, and n_90 of the net by channels and by heads."""

    probability: float
    net: float
    channels: int
    heads: int


class Push(Part):
    """What the model pushes another token with, where a token wins: over the winner's; and its own n_90.

    net, positive: its net and its positive mass over the winner's. not_positive: how many of them have no positive net.
    """

    net: Quartiles
    positive: Quartiles
    n90: Quartiles
    not_positive: int


class LayerShare(Part):
    layer: int
    attention: float
    feed_forward: float


class Counts(Part):
    """How many components carry a prediction, over a corpus.

    points: predictions of every confidence, as many of each tenth, to be drawn one by one.
    """

    population: Population
    channels: Counted
    heads: Counted
    opposing_over_net: Quartiles
    floor_over_value: Quartiles
    layers: list[LayerShare]
    confidence: list[Confidence]
    points: list[Point] = []
    push: dict[Literal["runner_up", "top_fifty", "random"], Push]


class LayerRanks(Part):
    """The one-hop members of one layer, each by itself: the predicted token's rank in what the member promotes.

    rank: 1 is the token promoted most. hundred, thousand: shares of the members' terms whose member has the token among
    its first hundred, thousand; hundred_other: the same with another prediction's token, the floor. None where the
    layer has no member.
    """

    layer: int
    members: int
    rank: Quartiles
    hundred: Share
    thousand: Share
    hundred_other: Share


class Depth(Part):
    """How the sum of the members, and the stream, turn towards the readout. Alignments are cosines, ranks begin at 1.

    members: of a typical (median) member; strongest: of the largest one; together: of the sum of the whole set; other:
    of a typical member with another prediction's token. pairwise: between two members.
    running, running_other, running_rank: of the sum of the first k members, largest first: its cosine, its cosine with
    another prediction's token, and the predicted token's rank in what the sum promotes. sum_leads: after how many
    members the predicted token first leads there; sum_never: predictions in which it never does.
    predicted, current: of the stream entering each layer, and of the final one, with the predicted token and with the
    one that stands there. ranks, leading: the predicted token's rank there, read through the final norm and the
    unembedding, and the share of predictions in which it is 1. first: the depth at which it first is; stays: from which
    on it is. Depth l is before layer l; n_layers is the end.
    """

    population: Population
    members: Quartiles
    strongest: Quartiles
    together: Quartiles
    other: Quartiles
    pairwise: Quartiles
    running: list[tuple[int, Quartiles]]
    running_other: list[tuple[int, Quartiles]] = []
    running_rank: list[tuple[int, Quartiles]] = []
    sum_leads: Quartiles = NONE
    sum_never: int = 0
    predicted: list[Quartiles]
    current: list[Quartiles]
    ranks: list[Quartiles] = []
    leading: list[float] = []
    layers: list[LayerRanks] = []
    first: Quartiles
    stays: Quartiles


class LayerCarriage(Part):
    """A layer's update against a fixed map of the incoming state, scored on text that the map was not fitted on.

    share: mean |cos| of the update with the linear map's; r2: its explained variance (negative: worse than the mean
    update). rotation: the same share when the map may only turn; shear: share less rotation. same, same_with_set: how
    often the token is the same when the layer's output is the map's, alone and with the writes of its one-hop members.
    """

    layer: int
    share: float
    r2: float
    rotation: float
    shear: float
    same: float
    same_with_set: float


class Carriage(Part):
    """fitted, scored: positions; substituted: predictions; ridge: over the mean of the covariance's diagonal."""

    population: Population
    fitted: int
    scored: int
    substituted: int
    ridge: float
    layers: list[LayerCarriage]


class Agreement(Part):
    """Agreement of two token sets at K, averaged over rows: raw, by chance, and corrected for chance."""

    k: int
    overlap: float
    chance: float
    corrected: float


class ReadRows(Part):
    """One kind of read row. Layer-native and plain vocabulary reading against what drives the operand by substitution.

    kind: plain units, a pair's operands A and B, a quantifier's m; gate and up of a gated unit, act(gate)·up.
    mean: ground truth averaged over contexts; rank: ranks averaged. layers: corrected agreement of the layer-native
    reading by layer at the smallest K, mean.
    """

    kind: Literal["plain", "A", "B", "m", "gate", "up"]
    rows: int
    native: dict[Literal["mean", "rank"], list[Agreement]]
    vocabulary: dict[Literal["mean", "rank"], list[Agreement]]
    layers: list[float]


class Ordering(Part):
    """The same pre-activations through an activation: agreement of their mean's order with the mean activation's."""

    activation: Literal["identity", "sigmoid", "softplus", "relu", "gelu"]
    agreement: list[Agreement]


class Reads(Part):
    """What drives a read row. decreasing: share of the pre-activations below -0.7518, where GELU falls."""

    population: Population
    candidates: int
    contexts: int
    table_tokens: int
    kinds: list[ReadRows]
    ordering: list[Ordering]
    decreasing: float


class WrittenShares(Part):
    """Of all components of a sort, or of one layer: shares that are covered, characterised; coherent of the latter.

    single: characterised ones whose set is one token, so that nothing can be said of its coherence; judged: the others.
    variation: coefficients of variation of a component's share for a token; tokens_to_half: tokens that hold half of a
    characterised component's share.
    """

    components: int
    covered: float
    characterised: float
    judged: int
    single: int
    coherent: Share
    variation: Quartiles = NONE
    tokens_to_half: Quartiles = NONE


class LayerWritten(Part):
    layer: int
    attention: WrittenShares
    feed_forward: WrittenShares


class Writes(Part):
    """Naming by writes over many predictions.

    variation: coefficient of variation of a component's share for a token, over pairs seen five times or more.
    one_token: characterised components that ever helped one token only; half_on_one: those that put half of their share
    or more on one token. tokens_to_half: tokens that hold half of a component's share.
    """

    population: Population
    members: Quartiles
    every: WrittenShares
    attention: WrittenShares
    feed_forward: WrittenShares
    layers: list[LayerWritten]
    variation: Quartiles
    below_03: Share
    one_token: Share
    half_on_one: Share
    tokens_to_half: Quartiles


class Accounting(Part):
    """Everything that was measured of one checkpoint."""

    checkpoint: str
    counts: Counts | None = None
    depth: Depth | None = None
    carriage: Carriage | None = None
    reads: Reads | None = None
    writes: Writes | None = None

    @classmethod
    def load(cls, folder: Path, checkpoint_hash: str) -> Accounting | None:
        """What lies beside a checkpoint; None where there is nothing, or only what belongs to other weights.

        Raises `Corrupt` with one sentence when the file is not what it claims to be.
        """
        if not (folder / FILE).is_file():
            return None
        document = files.parse_json(files.read_text(folder, FILE, MAX_BYTES), FILE)
        if document.pop("format", None) != FORMAT or document.pop("version", None) != VERSION:
            raise Corrupt(f"{FILE} is not of format {FORMAT!r}, version {VERSION}; account again with this program")
        if document.get("checkpoint") != checkpoint_hash:
            return None
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Corrupt(f"{FILE} is damaged at {where[:80]} ({first['msg'][:80]}); account again") from None

    def to_json(self) -> dict[str, Any]:
        """The document; parts that were not measured are left out."""
        return {"format": FORMAT, "version": VERSION, **self.model_dump(mode="json", exclude_none=False)}

    def write(self, path: Path) -> None:
        """Write to `path` in one step; raises `Unavailable` when the disk does not take it, and nothing changed."""
        draft = path.parent / f".{path.name}.saving-{secrets.token_hex(6)}"
        try:
            draft.write_text(json.dumps(_rounded(self.to_json()), indent=1) + "\n", encoding="utf-8")
            sync(draft)
            os.replace(draft, path)
            sync(path.parent)
        except OSError as error:
            raise Unavailable(
                f"The accounting cannot be written to {path}: {error.strerror or error}; name a folder with --out.",
                code="cannot_write",
            ) from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def _rounded(value: Any) -> Any:
    """Six significant digits, which is more than any of these figures has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
