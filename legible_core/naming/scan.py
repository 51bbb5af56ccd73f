"""The scan: one pass over a corpus that measures legibility and gathers what names are made of.

    scan = Scan(model, ids, corpus, end_of_document=0, state=folder)    # takes up an interrupted scan's state
    for progress in scan.run():                                         # one item per batch; stop iterating to pause
        ...
    scan.save()                                                         # to go on another time
    write_names(folder, scan, tokenizer)                                # names.json, names.safetensors

    first, second = (Scan(..., shard=(i, 2)) for i in range(2))         # anywhere, at any time
    first.merge(second)                                                 # equals the scan of the whole

The stream is cut in a naming half, which lists and labels are made from, and a held-out half, on which alone their
agreement is measured. Memory does not grow with the corpus (its ids aside). The state is safetensors and JSON; a scan
that was interrupted, even killed, goes on from its last save and ends with the same bits as one that was not, because
batches are the same and every sum is taken in the same order. A shard is a run of whole batches, so shards merge to the
same counts and contexts exactly, and to the same moments to float64 rounding.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from legible_core.errors import LegibleError, Unavailable
from legible_core.legibility import Moments
from legible_core.model.transformer import Transformer
from legible_core.naming.collect import Collector
from legible_core.naming.detect import MIN_COUNT, TokenCounts
from legible_core.naming.measure import take_in
from legible_core.naming.observe import Batch, Ints, LayerValues, batches, halves, observe
from legible_core.replace import WRITE_ERRORS, sync, write_reason

STATE = 2
BATCH = 8
SAVE_SECONDS = 30.0
# Listable tokens get a row of counters each, per operand and half; the most frequent ones when there are more.
MAX_LISTABLE = 16_384
MIN_TOKENS = 64


@dataclass(frozen=True)
class Corpus:
    """What was scanned: a name for people, and the digest of the token ids for programs.

    sampled: the seed of a text that the checkpoint itself wrote, None for a corpus.
    """

    name: str
    sha256: str
    tokens: int
    naming: int
    held_out: int
    sampled: int | None = None


@dataclass(frozen=True)
class Progress:
    """After a batch: tokens done of all, in how many seconds of this sitting, and the loss so far (nats per token)."""

    done: int
    total: int
    seconds: float
    loss: float


@dataclass
class LayerState:
    """What a scan gathers on one layer."""

    operands: Moments
    channels: Moments
    units: Moments
    counts: tuple[TokenCounts, TokenCounts]

    def update(self, ids: Ints, values: LayerValues, half: int) -> None:
        on = take_in(self.operands, values.operands)
        take_in(self.channels, values.channels)
        take_in(self.units, values.units)
        self.counts[half].count_tokens(ids)
        self.counts[half].count_on(ids, on.cpu().numpy())


class Scan:
    """A resumable scan of one model over one token stream."""

    def __init__(
        self,
        model: Transformer,
        ids: Ints,
        name: str,
        *,
        checkpoint_hash: str = "",
        end_of_document: int | None = None,
        batch: int = BATCH,
        state: Path | None = None,
        shard: tuple[int, int] = (0, 1),
        contexts: bool = False,
        sampled: int | None = None,
    ) -> None:
        """ids: the corpus as one stream, documents ended by `end_of_document`. state: a folder to save progress in.

        shard: (i, n) scans the i-th of n runs of batches only. contexts: collect contexts too. sampled: the seed, when
        the checkpoint itself wrote the text.

        Raises `LegibleError` when the corpus is too short to be divided, or holds ids outside the vocabulary.
        """
        config = model.config
        if len(ids) < MIN_TOKENS:
            raise LegibleError(
                f"The corpus has {len(ids)} tokens; a scan needs at least {MIN_TOKENS}, thousands to name anything.",
                code="corpus_too_short",
            )
        if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
            raise LegibleError(
                f"The corpus holds token {int(ids.max())}; the checkpoint has the tokens 0 to {config.vocab_size - 1}.",
                code="wrong_tokenizer",
            )
        self.model, self.checkpoint_hash, self.batch, self.state = model, checkpoint_hash, batch, state
        self.shard, self.end_of_document = shard, end_of_document
        self.covered = {shard[0]}
        self.absorbed: list[Scan] = []
        self.parts = halves(ids.astype(np.int64), end_of_document)
        digest = hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").tobytes()).hexdigest()
        self.corpus = Corpus(name, digest, len(ids), len(self.parts[0]), len(self.parts[1]), sampled)
        self.seen = np.bincount(self.parts[0], minlength=config.vocab_size).astype(np.int64)
        listable = np.flatnonzero(self.seen >= MIN_COUNT)
        if len(listable) > MAX_LISTABLE:
            most = np.argsort(-self.seen, kind="stable")[:MAX_LISTABLE]
            listable = np.sort(most)
        self.layers: list[LayerState] = []
        for index in range(config.n_layers):
            channels = config.attention.n_special[index] * config.d_head
            width = channels + config.feed_forward.n_operands
            tables = [TokenCounts(listable, config.vocab_size, width) for _ in range(2)]
            self.layers.append(
                LayerState(
                    Moments(width),
                    Moments(channels, histogram=False),
                    Moments(config.feed_forward.n_bounded, histogram=False),
                    (tables[0], tables[1]),
                )
            )
        self.collector = Collector(config) if contexts else None
        # Loss: tokens predicted, their summed loss, then the windows' mean losses as a Welford triple.
        self.loss = np.zeros(5)
        count = sum(1 for _ in self._batches())
        if not 0 <= shard[0] < shard[1] <= count:
            raise LegibleError(
                f"There is no shard {shard[0] + 1} of {shard[1]}; this text has {count} batches, so shards are 1/N to "
                f"N/N with N up to {count}.",
                code="bad_shard",
            )
        self._mine = range(count * shard[0] // shard[1], count * (shard[0] + 1) // shard[1])
        self.next = self._mine.start
        self.done = 0
        self._saved = time.monotonic()
        if state is not None:
            self._resume(state)

    # ---- running -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether its own batches are done."""
        return self.next == self._mine.stop

    @property
    def complete(self) -> bool:
        """Whether the whole text was scanned, here or in the shards that were merged."""
        return self.finished and len(self.covered) == self.shard[1]

    @property
    def total(self) -> int:
        """Tokens of its own batches."""
        return sum(piece.ids.size for _, _, _, piece in self._batches(ours=True))

    def run(self) -> Iterator[Progress]:
        """Scan what is left, yielding after every batch; the state is saved now and then, and at the end."""
        started, total = time.monotonic(), self.total
        for number, half, first, piece in self._batches(ours=True):
            if number < self.next:
                continue
            found, losses = observe(self.model, piece, hidden=self.collector is not None)
            ids = piece.ids.reshape(-1)
            try:
                for index, (layer, values) in enumerate(zip(self.layers, found, strict=True)):
                    layer.update(ids, values, half)
                    if self.collector is not None:
                        self.collector.update(index, first, (piece.ids.shape[0], piece.ids.shape[1]), values)
            except ValueError as error:
                raise LegibleError(
                    f"The checkpoint's memberships are no numbers on this text ({error}), so nothing can be measured.",
                    code="not_finite",
                    status=422,
                ) from None
            self._add_losses(losses)
            self.next, self.done = number + 1, self.done + ids.size
            if self.state is not None and (self.finished or time.monotonic() - self._saved > SAVE_SECONDS):
                self.save()
            loss = float(self.loss[1] / self.loss[0]) if self.loss[0] else math.nan
            yield Progress(self.done, total, time.monotonic() - started, loss)

    def _batches(self, ours: bool = False) -> Iterator[tuple[int, int, int, Batch]]:
        """(number, half, place of the first token in the text, batch): all of them, or those of this shard."""
        number, first = 0, 0
        for half, part in enumerate(self.parts):
            for piece in batches(part, self.model.config.context, self.batch):
                if not ours or number in self._mine:
                    yield number, half, first, piece
                number, first = number + 1, first + piece.ids.size

    def merge(self, other: Scan) -> None:
        """Add another shard of the same scan to this one; raises `LegibleError` where it is none, or counted already.

        Moments by Chan, Golub and LeVeque's rule; counts and contexts exactly.
        """
        ours, theirs = ({**scan.identity, "shard": scan.shard[1]} for scan in (self, other))
        if ours != theirs or self.covered & other.covered or not (self.finished and other.finished):
            reason = "is of another scan" if ours != theirs else "is not finished or was added already"
            raise LegibleError(f"Shard {other.shard[0] + 1} of {other.shard[1]} {reason}.", code="bad_shard")
        for mine, its in zip(self.layers, other.layers, strict=True):
            for key in ("operands", "channels", "units"):
                getattr(mine, key).merge(getattr(its, key))
            for counts, more in zip(mine.counts, its.counts, strict=True):
                counts.merge(more)
        if self.collector is not None and other.collector is not None:
            self.collector.merge(other.collector)
        n, m = self.loss[2], other.loss[2]
        if m:
            delta = other.loss[3] - self.loss[3]
            self.loss[3] += delta * m / (n + m)
            self.loss[4] += other.loss[4] + delta * delta * n * m / (n + m)
            self.loss[:3] += other.loss[:3]
        self.covered |= other.covered
        self.absorbed += [*other.absorbed, other]
        self.done += other.done

    def _add_losses(self, losses: NDArray[np.float64]) -> None:
        known = ~np.isnan(losses)
        for row, mask in zip(losses, known, strict=True):
            if not mask.any():
                continue
            mean = float(row[mask].mean())
            self.loss[0] += mask.sum()
            self.loss[1] += float(row[mask].sum())
            self.loss[2] += 1
            delta = mean - self.loss[3]
            self.loss[3] += delta / self.loss[2]
            self.loss[4] += delta * (mean - self.loss[3])

    @property
    def quality(self) -> dict[str, Any]:
        """Loss in nats per token and perplexity on the scanned text, with the loss's standard error over windows."""
        loss = float(self.loss[1] / self.loss[0])
        windows = int(self.loss[2])
        error = math.sqrt(self.loss[4] / (windows - 1) / windows) if windows > 1 else None
        return {
            "loss": loss,
            "loss_se": error,
            "perplexity": math.exp(loss),
            "tokens": int(self.loss[0]),
            "windows": windows,
            "context": self.model.config.context,
        }

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> dict[str, Any]:
        """What a saved state must agree with to be taken up: weights, text, and how the text is cut."""
        return {
            "state": STATE,
            "checkpoint": self.checkpoint_hash,
            "corpus": asdict(self.corpus) | {"name": None},
            "config": self.model.config.to_json(),
            "batch": self.batch,
            "min_count": MIN_COUNT,
            "max_listable": MAX_LISTABLE,
            "shard": list(self.shard),
            "contexts": self.collector is not None,
        }

    def save(self) -> None:
        """Write the state; a process killed at any moment leaves this state or the one before, whole.

        Raises `Unavailable` when the disk does not take it.
        """
        if self.state is None:
            raise ValueError("this scan has no folder for its state")
        arrays: dict[str, NDArray[Any]] = {"loss": self.loss, "progress": np.array([self.next, self.done], np.int64)}
        for index, layer in enumerate(self.layers):
            for key in ("operands", "channels", "units"):
                arrays |= getattr(layer, key).arrays(f"{index}.{key}")
            for half, counts in enumerate(layer.counts):
                arrays |= counts.arrays(f"{index}.counts{half}")
        if self.collector is not None:
            arrays |= self.collector.arrays()
        draft = f"scan-{secrets.token_hex(6)}.safetensors"
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, self.state / draft)
            sync(self.state / draft)
            text = json.dumps({"identity": self.identity, "arrays": draft, "done": self.done})
            pointer = self.state / f"scan.json.{secrets.token_hex(6)}"
            pointer.write_text(text, encoding="utf-8")
            sync(pointer)
            os.replace(pointer, self.state / "scan.json")
            sync(self.state)
        except WRITE_ERRORS as error:
            with contextlib.suppress(OSError):
                (self.state / draft).unlink(missing_ok=True)
            reason = write_reason(error)
            raise Unavailable(f"The scan's state cannot be saved: {reason}.") from None
        for old in [*self.state.glob("scan-*.safetensors"), *self.state.glob("scan.json.*")]:
            if old.name != draft:
                old.unlink(missing_ok=True)
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Remove the saved state, and those of the merged shards, once the names are written."""
        for shard in self.absorbed:
            shard.discard()
        if self.state is not None and self.state.is_dir():
            for file in [*self.state.glob("scan.json*"), *self.state.glob("scan-*.safetensors")]:
                file.unlink(missing_ok=True)
            if not any(self.state.iterdir()):
                self.state.rmdir()

    def _resume(self, state: Path) -> None:
        """Take up a saved state that belongs to this very scan; any other, or a damaged one, is left alone."""
        try:
            saved = json.loads((state / "scan.json").read_text(encoding="utf-8"))
            if saved["identity"] != self.identity or Path(saved["arrays"]).name != saved["arrays"]:
                return
            arrays = load_file(state / saved["arrays"])
            layers = [self._restored(layer, arrays, index) for index, layer in enumerate(self.layers)]
            loss = np.array(arrays["loss"], np.float64)
            following, done = (int(x) for x in arrays["progress"])
            collector = Collector(self.model.config) if self.collector is not None else None
            if collector is not None:
                collector.restore(arrays)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return
        self.layers, self.loss, self.next, self.done = layers, loss, following, done
        self.collector = collector

    @staticmethod
    def _restored(layer: LayerState, arrays: dict[str, NDArray[Any]], index: int) -> LayerState:
        moments = [Moments.from_arrays(arrays, f"{index}.{key}") for key in ("operands", "channels", "units")]
        for old, new in zip((layer.operands, layer.channels, layer.units), moments, strict=True):
            if old.width != new.width:
                raise ValueError("these statistics are of different channels")
        counts = [table.restored(arrays, f"{index}.counts{half}") for half, table in enumerate(layer.counts)]
        return LayerState(moments[0], moments[1], moments[2], (counts[0], counts[1]))
