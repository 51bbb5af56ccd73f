"""A unit's history, measured on snapshots of one training: each is loaded, read off and run on the same few tokens.

"Legible-by-Construction" judges what a training ended in; this shows how a unit became what it is. Cosines compare a
row or a column with the same one at the end, as the model uses it: a read row times the gain of the norm before it (its
mean left out, which the norm takes away), a write column less its mean, which the last norm takes away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core import folder as files
from legible_core.checkpoint import load
from legible_core.errors import LegibleError, NotFound
from legible_core.legibility import Moments
from legible_core.model import Transformer
from legible_core.model.quantifiers import half_life
from legible_core.naming.measure import take_in
from legible_core.naming.observe import Ints, batches, observe
from legible_core.naming.promote import promote
from legible_core.registry import Checkpoint
from legible_core.training.unit_history import MAX_SNAPSHOTS, SHAPES, TOKENS, Snapshot, UnitHistory, shapes

BATCH = 8


def in_order(final: Checkpoint, snapshots: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The snapshots by their tokens, each once, and `final` after them.

    Raises `LegibleError` for what is no snapshot of the same training: another architecture or tokenizer, tokens that
    no card tells, that two share, or that come after those of `final`; and for more than `MAX_SNAPSHOTS`.
    """
    by_hash = {each.hash: each for each in snapshots if each.hash != final.hash}
    if not by_hash:
        raise NotFound("There is no snapshot beside the checkpoint itself; a history needs at least one.")
    if len(by_hash) > MAX_SNAPSHOTS:
        raise _bad(f"There are {len(by_hash)} snapshots; a history holds at most {MAX_SNAPSHOTS}: leave some out")
    words = files.file_hash(final.path, files.TOKENIZER)
    for each in (final, *by_hash.values()):
        if each.tokens_trained is None:
            raise _bad(f"The card of {each.path} does not say its tokens; write a line such as `tokens: 1048576`")
        if each.config != final.config:
            raise _bad(f"{each.path} has another architecture than {final.slug}; give snapshots of the same training")
        if files.file_hash(each.path, files.TOKENIZER) != words:
            raise _bad(f"{each.path} has another tokenizer than {final.slug}; give snapshots of the same training")
    found = sorted(by_hash.values(), key=lambda each: each.tokens_trained or 0)
    for one, other in zip(found, [*found[1:], final], strict=True):
        if one.tokens_trained == other.tokens_trained and other is not final:
            raise _bad(f"{one.path} and {other.path} both say {one.tokens_trained:,} tokens; leave one out")
        if (one.tokens_trained or 0) > (final.tokens_trained or 0):
            raise _bad(
                f"{one.path} is of {one.tokens_trained:,} tokens, later than {final.slug} ({final.tokens_trained:,}); "
                "leave it out"
            )
    return [*found, final]


class Measuring:
    """Measures a history, snapshot by snapshot: iterate over `run()`, then take `history`."""

    def __init__(
        self, checkpoints: Sequence[Checkpoint], ids: Ints, text: str, often: NDArray[np.bool_] | None = None
    ) -> None:
        """checkpoints: as `in_order` gives them. ids: (n,) the tokens to run on. often: (v,), what may be listed."""
        self.checkpoints, self.ids = checkpoints, ids
        config = checkpoints[-1].config
        self.often = np.ones(config.vocab_size, np.bool_) if often is None else often
        self.final = load(checkpoints[-1])
        wanted = shapes(config, len(checkpoints))
        self.arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in wanted.items()}
        self.arrays["promotes"].fill(-1)
        self.losses: list[float] = []
        self.measured = (text, len(ids))

    def run(self) -> Iterator[Snapshot]:
        """Yields each snapshot when it is done; raises what `checkpoint.load` raises."""
        for number, checkpoint in enumerate(self.checkpoints):
            last = number + 1 == len(self.checkpoints)
            model = self.final if last else load(checkpoint)
            self._weights(number, model)
            self.losses.append(self._run(number, model))
            yield self._snapshot(number)

    @property
    def history(self) -> UnitHistory:
        snapshots = tuple(self._snapshot(number) for number in range(len(self.checkpoints)))
        return UnitHistory(self.arrays, snapshots, self.measured, self.checkpoints[-1].config)

    def _snapshot(self, number: int) -> Snapshot:
        checkpoint = self.checkpoints[number]
        tokens, decayed = checkpoint.tokens_trained or 0, checkpoint.decay_tokens
        return Snapshot(tokens, checkpoint.hash, self.losses[number], decayed)

    @torch.no_grad()
    def _weights(self, number: int, model: Transformer) -> None:
        for layer, (part, end) in enumerate(zip(model.layers, self.final.layers, strict=True)):
            columns, ends = part.feed_forward.down, end.feed_forward.down
            rows, row_ends = _rows(model, layer), _rows(self.final, layer)
            self._put("read_cosine", number, layer, _cosine(rows, row_ends))
            self._put("write_cosine", number, layer, _cosine(columns.T, ends.T))
            self._put("write_norm", number, layer, _centred(columns.T).norm(dim=1))
            listed = promote(model, columns, self.often).tokens[:, :TOKENS]
            self.arrays["promotes"][number, layer, :, : listed.shape[1]] = listed
            lives = [half_life(value) for value in part.feed_forward.decay.tolist()]
            self.arrays["half_life"][number, layer] = np.asarray(lives, np.float32)

    def _run(self, number: int, model: Transformer) -> float:
        layout = model.config.feed_forward
        width = layout.n_bounded
        operands = [Moments(width, histogram=False) for _ in model.layers]
        units = [Moments(width, histogram=False) for _ in model.layers]
        losses: list[NDArray[np.float64]] = []
        for batch in batches(self.ids, model.config.context, BATCH):
            layers, of_targets = observe(model, batch)
            losses.append(of_targets.ravel())
            for layer, values in enumerate(layers if width else ()):
                # The heads' operands stand before those of the units.
                take_in(operands[layer], values.operands[:, values.operands.shape[1] - width :].contiguous())
                take_in(units[layer], values.units[:, :width].contiguous())
        for layer in range(len(operands) if width else 0):
            self.arrays["operand_on"][number, layer] = operands[layer].on_share
            self.arrays["operand_crisp"][number, layer] = operands[layer].crispness
            self.arrays["operand_class"][number, layer] = operands[layer].classes()
            self.arrays["unit_on"][number, layer] = units[layer].on_share
        loss = float(np.nanmean(np.concatenate(losses)))
        if not np.isfinite(loss):
            raise _bad(f"{self.checkpoints[number].path} gives a loss that is not finite; leave it out")
        return loss

    def _put(self, name: str, number: int, layer: int, values: Tensor) -> None:
        largest = float(np.finfo(SHAPES[name][0]).max)
        self.arrays[name][number, layer] = values.clamp(-largest, largest).numpy().astype(SHAPES[name][0])


def _rows(model: Transformer, layer: int) -> Float[Tensor, "f d"]:
    """Every read row of a layer under its norm's gain: all A, all B, the quantifiers', the plain units'."""
    part = model.layers[layer]
    names = ("pair_a", "pair_b", "quantifier", model.config.feed_forward.activation)
    rows = [row for row in (getattr(part.feed_forward, name, None) for name in names) if row is not None]
    return torch.cat([row.float() for row in rows]) * part.feed_forward_norm.gain


def _centred(rows: Tensor) -> Tensor:
    return rows.float() - rows.float().mean(dim=1, keepdim=True)


def _cosine(rows: Float[Tensor, "n d"], ends: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    return torch.nn.functional.cosine_similarity(_centred(rows), _centred(ends), dim=1, eps=1e-20)


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"{reason}.", code="bad_snapshots")
