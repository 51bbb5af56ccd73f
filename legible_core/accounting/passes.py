"""Many positions at once: what a forward of whole windows leaves, and every component's term in many predictions.

    reader = Reader(model)
    passed = reader.run(ids)                              # windows (b, t), flattened to n = b·t positions
    terms = reader.terms(passed, places, targets)         # (m, size): each component's κ, in `counts.Layout`'s order

The terms are those of `attribution.Attributor` with `relative_to="mean"`, in float32: one direction a predicted token,
one matrix product a layer for all different tokens of a batch. tests/accounting compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from legible_core.accounting.counts import Layout
from legible_core.attribution import Attributor, optional
from legible_core.errors import NotExact
from legible_core.model.transformer import Observed, Transformer
from legible_core.naming.observe import hidden_values
from legible_core.trace import LayerTrace, Trace

Ints = NDArray[np.int64]
LONGEST = 1024  # tokens of a window; a model of a longer context is read in windows of so many
BATCH, ROOM = 8, 1 << 30


@dataclass(frozen=True)
class Passed:
    """A forward of windows, positions flattened to n; float32.

    z, hidden: per layer every head's z (n, d) and the hidden vector (n, f). streams: the residual stream entering each
    layer, and the final one, L + 1 of them, (n, d). divisors: by sublayer and layer what a norm after it divides its
    write by (n,), of ordinary models that have such norms.
    """

    ids: Int[Tensor, " n"]
    z: Sequence[Float[Tensor, "n d"]]
    hidden: Sequence[Float[Tensor, "n f"]]
    streams: Sequence[Float[Tensor, "n d"]]
    divisors: Mapping[str, Sequence[Float[Tensor, " n"]]] = field(default_factory=dict)

    @property
    def residual(self) -> Float[Tensor, "n d"]:
        """The final residual stream."""
        return self.streams[-1]


@dataclass(frozen=True)
class Predicted:
    """What the model predicts at n positions: the most probable token, its probability, and the loss where known.

    loss: of the token that follows, in nats; NaN where none is known.
    """

    token: Int[Tensor, " n"]
    probability: Float[Tensor, " n"]
    loss: NDArray[np.float64]


class Reader:
    """Reads many predictions of one model: a `Transformer`, or an ordinary one, which runs window by window.

    begin: a token that stands before every window, of an ordinary model whose tokenizer begins each text with one.
    """

    def __init__(self, model: Any, begin: int | None = None) -> None:
        self.model, self.layout, self.begin = model, Layout.of(model.config), begin
        self.mean_row = Attributor(model).mean_row().float()

    @property
    def longest(self) -> int:
        """Tokens of the longest window that is read."""
        return min(int(self.model.config.context), LONGEST)

    def count(self, tokens: int, length: int) -> int:
        """How many whole windows of `length` tokens, the beginning included, so many tokens of text fill."""
        return tokens // (length - (self.begin is not None))

    def batch(self, length: int) -> int:
        """How many windows to run at once: what one forward leaves of them stays within ROOM bytes."""
        layout, width = self.layout, self.model.config.d_model
        one = 4 * length * layout.n_layers * (layout.attention + layout.d_ff + width)
        return max(1, min(BATCH, ROOM // one))

    def windows(self, ids: Ints, length: int, size: int | None = None, order: Ints | None = None) -> Iterator[Window]:
        """Whole windows of a stream in the given order (their numbers), `size` at a time; a shorter tail is left out.

        What follows the token that begins a window is not counted among its losses.
        """
        return windows(ids, length, size or self.batch(length), order, self.begin)

    @torch.no_grad()
    def run(self, ids: Ints | Tensor) -> Passed:
        """One forward of windows (b, t) of equal length."""
        given = torch.as_tensor(np.ascontiguousarray(ids) if isinstance(ids, np.ndarray) else ids)
        given = given.to(self.mean_row.device)
        if not isinstance(self.model, Transformer):
            return _joined([self.model.trace(row) for row in given])
        seen = Observed()
        with hidden_values(self.model) as hidden:
            self.model.residual(given, observed=seen)
        first = self.model.token_embedding[given] + self.model.position_embedding[: given.shape[1]]
        return Passed(
            given.flatten(),
            [z.flatten(2).flatten(0, 1).float() for z in seen.heads],
            [h.flatten(0, 1).float() for h in hidden if h is not None],
            [x.flatten(0, 1) for x in (first, *seen.residuals)],
        )

    @torch.no_grad()
    def predict(self, passed: Passed, following: Ints, chunk: int = 512) -> Predicted:
        """The most probable token at every position; `following` (n,) has the token that came, or -100.

        Raises `NotExact` when the model's logits are not finite numbers.
        """
        tokens, probabilities, losses = [], [], []
        came = torch.as_tensor(following.reshape(-1)).to(passed.residual.device)
        for residual, target in zip(passed.residual.split(chunk), came.split(chunk), strict=True):
            logits = self.model.logits(residual)
            if not isinstance(self.model, Transformer):  # behind its soft-cap, where it has one
                logits = self.model.final_logits(logits)
            total = logits.logsumexp(-1)
            best = logits.max(-1)
            tokens.append(best.indices)
            probabilities.append((best.values - total).exp())
            losses.append(total - logits.gather(-1, target.clamp(min=0)[:, None])[:, 0])
        loss = torch.cat(losses).double().cpu().numpy()
        if not np.isfinite(loss).all():
            raise NotExact("The model's logits on this text are not all finite numbers.", code="not_finite")
        loss[following.reshape(-1) < 0] = np.nan
        return Predicted(torch.cat(tokens), torch.cat(probabilities), loss)

    @torch.no_grad()
    def directions(self, targets: Int[Tensor, " k"]) -> Float[Tensor, "k d"]:
        """(W_U[t] - mean row) ⊙ γ, less its own mean: what a write is multiplied with, before 1/std(x)."""
        rows = (self.model.unembedding_matrix[targets].float() - self.mean_row) * self.model.final_norm.gain.float()
        return rows - rows.mean(-1, keepdim=True) if self.model.final_norm.centred else rows

    @torch.no_grad()
    def promoted_rank(
        self, writes: Float[Tensor, "k d"], tokens: Int[Tensor, " n"], chunk: int = 16384
    ) -> Int[Tensor, "k n"]:
        """The rank, from 1, of each token among all that a write into the stream promotes (k writes, n tokens)."""
        norm, matrix = self.model.final_norm, self.model.unembedding_matrix
        seen = writes.float()
        y = (seen - seen.mean(-1, keepdim=True) if norm.centred else seen) * norm.gain.float()
        own = y @ matrix[tokens].float().T
        above = torch.zeros_like(own, dtype=torch.int64)
        first = 0
        for rows in matrix.split(chunk):
            scores = y @ rows.float().T
            for column, token in enumerate((tokens - first).tolist()):
                more = scores > own[:, column, None]
                if 0 <= token < len(rows):  # it is not above itself, however another product rounds
                    more[:, token] = False
                above[:, column] += more.sum(1)
            first += len(rows)
        return above + 1

    @torch.no_grad()
    def scales(self, passed: Passed, places: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        """std(x) of the final residual, at which the final norm is frozen."""
        return self.model.final_norm.scale(passed.residual[places]).reshape(-1).float()

    @torch.no_grad()
    def terms(
        self, passed: Passed, places: Int[Tensor, " m"], targets: Int[Tensor, " m"], out: Tensor | None = None
    ) -> Float[Tensor, "m size"]:
        """κ of every component in m predictions; `out` (m, size) is filled instead of a new tensor."""
        layout, m = self.layout, len(places)
        kinds, which = targets.unique(return_inverse=True)
        directions = self.directions(kinds)
        scale = self.scales(passed, places)[:, None]
        found = torch.empty(m, layout.size, device=places.device) if out is None else out[:m]
        width, d_ff, first = layout.attention, layout.d_ff, layout.first_unit
        for index in range(layout.n_layers):
            start = first + index * d_ff
            for sublayer, where in (
                ("attention", slice(index * width, (index + 1) * width)),
                ("feed_forward", slice(start, start + d_ff)),
            ):
                matrix, gain, divisor = self._writing(index, sublayer)
                seen = (directions if gain is None else directions * gain) @ matrix
                active = (passed.z if sublayer == "attention" else passed.hidden)[index][places] / scale
                if divisor:
                    active = active / passed.divisors[sublayer][index][places][:, None]
                torch.mul(seen[which], active, out=found[:, where])
        return found

    def _writing(self, layer: int, sublayer: str) -> tuple[Tensor, Tensor | None, bool]:
        """The write columns (d, ·) float32, and where a norm follows them its gain, and that it divides."""
        part = getattr(self.model.layers[layer], sublayer)
        matrix = getattr(part, "output" if sublayer == "attention" else "down").float()
        gain = optional(part, "post_gain")
        return matrix, None if gain is None else gain.float(), gain is not None

    @torch.no_grad()
    def writes(self, passed: Passed, place: int, components: Ints) -> Float[Tensor, "k d"]:
        """What components (flat places) write into the stream at a position; not centred."""
        layout = self.layout
        rows = torch.empty(len(components), self.model.config.d_model, device=passed.residual.device)
        layers = layout.layer(components)
        for layer in np.unique(layers).tolist():
            for sublayer in ("attention", "feed_forward"):
                unit = sublayer == "feed_forward"
                mask = (layers == layer) & ((components >= layout.first_unit) == unit)
                if not mask.any():
                    continue
                start = layout.first_unit + layer * layout.d_ff if unit else layer * layout.attention
                index = torch.as_tensor(components[mask] - start, device=rows.device)
                matrix, gain, divided = self._writing(layer, sublayer)
                written = (matrix[:, index] * (passed.hidden if unit else passed.z)[layer][place][index]).T
                if gain is not None:
                    written = written * gain
                if divided:
                    written = written / passed.divisors[sublayer][layer][place]
                rows[torch.as_tensor(np.flatnonzero(mask), device=rows.device)] = written
        return rows


def _joined(traces: Sequence[Trace]) -> Passed:
    """What traces of single windows hold, as of one forward of them all."""
    depth = range(len(traces[0].layers))

    def of(read: Callable[[LayerTrace], Tensor | None], layer: int) -> Tensor:
        found = [read(trace.layers[layer]) for trace in traces]
        return torch.cat([torch.ones(0) if part is None else part.float() for part in found])

    return Passed(
        torch.cat([trace.ids for trace in traces]),
        [of(lambda at: at.z.flatten(1), layer) for layer in depth],
        [of(lambda at: at.hidden, layer) for layer in depth],
        [*(of(lambda at: at.attention_in, layer) for layer in depth), torch.cat([t.residual.float() for t in traces])],
        {
            "attention": [of(lambda at: at.attention_divisor, layer) for layer in depth],
            "feed_forward": [of(lambda at: at.feed_forward_divisor, layer) for layer in depth],
        },
    )


@dataclass(frozen=True)
class Window:
    """Windows of one length: ids (b, t), the following ids (b, t) with -100 where unknown."""

    ids: Ints
    following: Ints


def windows(ids: Ints, length: int, size: int, order: Ints | None = None, begin: int | None = None) -> Iterator[Window]:
    """Whole windows of a stream in the given order (their numbers), `size` at a time; a shorter tail is left out.

    begin: a token put before each window; a window then holds one token of the stream fewer.
    """
    span = length - (begin is not None)
    following = np.concatenate([ids[1:], [-100]])
    order = np.arange(len(ids) // span) if order is None else order
    for start in range(0, len(order), size):
        starts = order[start : start + size] * span
        inside = np.stack([ids[s : s + span] for s in starts])
        after = np.stack([following[s : s + span] for s in starts])
        if begin is not None:
            inside = np.pad(inside, ((0, 0), (1, 0)), constant_values=begin)
            after = np.pad(after, ((0, 0), (1, 0)), constant_values=-100)
        yield Window(inside, after)
