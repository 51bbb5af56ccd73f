"""One pass over a text, batch by batch, that can be interrupted, killed, done in shards and merged again.

    class Scan(Resumable):                       # what is looked at in a batch, and what is gathered on each layer
        def _gathering(self, listable): ...
        def _look(self, half, first, piece): ...

The stream of ids is cut in a naming half and a held-out half, and each half in windows. The state is safetensors and
JSON; a pass that was interrupted, even killed, goes on from its last save and ends with the same bits as one that was
not, because batches are the same and every sum is taken in the same order. A shard is a run of whole batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from legible_core.errors import Conflict, LegibleError, Unavailable
from legible_core.locks import lock_folder
from legible_core.naming.collect import Collector
from legible_core.naming.detect import MIN_COUNT
from legible_core.naming.observe import Batch, Ints, batches, halves
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


class Gathered(Protocol):
    """What a pass gathers on one layer."""

    def merge(self, other: Any) -> None:
        """Add another shard's to this."""

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays."""

    def restored(self, arrays: Any, prefix: str) -> Self:
        """The same of the state that `arrays` gave; raises KeyError, TypeError or ValueError for another's."""


class Resumable:
    """A resumable pass of one model over one token stream; what it looks at is its subclasses' affair."""

    layers: Sequence[Gathered]

    def __init__(
        self,
        model: Any,
        ids: Ints,
        name: str,
        *,
        checkpoint_hash: str = "",
        end_of_document: int | None = None,
        batch: int = BATCH,
        state: Path | None = None,
        restart: bool = False,
        shard: tuple[int, int] = (0, 1),
        contexts: bool = False,
        sampled: int | None = None,
    ) -> None:
        """ids: the corpus as one stream, documents ended by `end_of_document`. state: a folder to save progress in,
        held until `close` or `discard`; restart: forget what is saved there.

        shard: (i, n) scans the i-th of n runs of batches only. contexts: collect contexts too. sampled: the seed, when
        the checkpoint itself wrote the text.

        Raises `LegibleError` when the corpus is too short to be divided, or holds ids outside the vocabulary;
        `Conflict` when another process holds the folder, `Unavailable` when the disk does not take it.
        """
        vocabulary = model.config.vocab_size
        if len(ids) < MIN_TOKENS:
            raise LegibleError(
                f"The corpus has {len(ids)} tokens; a scan needs at least {MIN_TOKENS}, thousands to name anything.",
                code="corpus_too_short",
            )
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise LegibleError(
                f"The corpus holds token {int(ids.max())}; the checkpoint has the tokens 0 to {vocabulary - 1}.",
                code="wrong_tokenizer",
            )
        self.model, self.checkpoint_hash, self.batch, self.state = model, checkpoint_hash, batch, state
        self.shard, self.end_of_document = shard, end_of_document
        self.covered = {shard[0]}
        self.absorbed: list[Self] = []
        self.parts = halves(ids.astype(np.int64), end_of_document)
        digest = hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").tobytes()).hexdigest()
        self.corpus = Corpus(name, digest, len(ids), len(self.parts[0]), len(self.parts[1]), sampled)
        self.seen = np.bincount(self.parts[0], minlength=vocabulary).astype(np.int64)
        listable = np.flatnonzero(self.seen >= MIN_COUNT)
        if len(listable) > MAX_LISTABLE:
            most = np.argsort(-self.seen, kind="stable")[:MAX_LISTABLE]
            listable = np.sort(most)
        self.layers = self._gathering(listable)
        self.collector = self._collecting() if contexts else None
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
            self._let_go = weakref.finalize(self, self._hold(state))
            if restart:
                self._forget(state)
            else:
                self._resume(state)

    # ---- what subclasses say ----------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Tokens of the text in one window."""
        return int(self.model.config.context)

    def _gathering(self, listable: Ints) -> Sequence[Gathered]:
        """One empty state a layer; `listable`: the tokens that the naming half holds often enough to be listed."""
        raise NotImplementedError

    def _collecting(self) -> Collector:
        return Collector(self.model.config)

    def _look(self, half: int, first: int, piece: Batch) -> NDArray[np.float64]:
        """Take in a batch whose first token is at place `first` of the text; the loss of each target, NaN for none.

        Raises ValueError where values are no finite numbers.
        """
        raise NotImplementedError

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
            try:
                losses = self._look(half, first, piece)
            except ValueError as error:
                raise LegibleError(
                    f"The checkpoint's values are no numbers on this text ({error}), so nothing can be measured.",
                    code="not_finite",
                    status=422,
                ) from None
            self._add_losses(losses)
            self.next, self.done = number + 1, self.done + piece.ids.size
            if self.state is not None and (self.finished or time.monotonic() - self._saved > SAVE_SECONDS):
                self.save()
            loss = float(self.loss[1] / self.loss[0]) if self.loss[0] else math.nan
            yield Progress(self.done, total, time.monotonic() - started, loss)

    def _batches(self, ours: bool = False) -> Iterator[tuple[int, int, int, Batch]]:
        """(number, half, place of the first token in the text, batch): all of them, or those of this shard."""
        number, first = 0, 0
        for half, part in enumerate(self.parts):
            for piece in batches(part, self.window, self.batch):
                if not ours or number in self._mine:
                    yield number, half, first, piece
                number, first = number + 1, first + piece.ids.size

    def merge(self, other: Self) -> None:
        """Add another shard of the same scan to this one; raises `LegibleError` where it is none, or counted already.

        Moments by Chan, Golub and LeVeque's rule; counts and contexts exactly.
        """
        ours, theirs = ({**scan.identity, "shard": scan.shard[1]} for scan in (self, other))
        if ours != theirs or self.covered & other.covered or not (self.finished and other.finished):
            reason = "is of another scan" if ours != theirs else "is not finished or was added already"
            raise LegibleError(f"Shard {other.shard[0] + 1} of {other.shard[1]} {reason}.", code="bad_shard")
        for mine, its in zip(self.layers, other.layers, strict=True):
            mine.merge(its)
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
            "context": self.window,
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
            arrays |= layer.arrays(str(index))
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
                with contextlib.suppress(OSError):
                    old.unlink(missing_ok=True)
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Remove the saved state, and those of the merged shards, once the names are written.

        Raises `Unavailable` when the disk does not let go of them.
        """
        for shard in self.absorbed:
            shard.discard()
        if self.state is not None:
            self._forget(self.state)
        self.close()

    def close(self) -> None:
        """Let another process have the folder of the state; what is saved stays."""
        if self.state is not None:
            self._let_go()

    @staticmethod
    def _hold(state: Path) -> Callable[[], None]:
        try:
            let_go = lock_folder(state)
        except OSError as error:
            raise Unavailable(f"The scan's state cannot be saved: {write_reason(error)}.") from None
        if let_go is None:
            raise Conflict(
                f"The same scan is already running, with its state in {state}; wait for it or stop it.",
                code="scan_running",
            )
        return let_go

    @staticmethod
    def _forget(state: Path) -> None:
        """Remove what `save` wrote, and nothing else."""
        try:
            for file in [*state.glob("scan.json*"), *state.glob("scan-*.safetensors")]:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"The saved state in {state} cannot be removed: {write_reason(error)}.") from None

    def _resume(self, state: Path) -> None:
        """Take up a saved state that belongs to this very scan; any other, or a damaged one, is left alone."""
        try:
            saved = json.loads((state / "scan.json").read_text(encoding="utf-8"))
            if saved["identity"] != self.identity or Path(saved["arrays"]).name != saved["arrays"]:
                return
            arrays = load_file(state / saved["arrays"])
            layers = [layer.restored(arrays, str(index)) for index, layer in enumerate(self.layers)]
            loss = np.array(arrays["loss"], np.float64)
            following, done = (int(x) for x in arrays["progress"])
            collector = self._collecting() if self.collector is not None else None
            if collector is not None:
                collector.restore(arrays)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return
        self.layers, self.loss, self.next, self.done = layers, loss, following, done
        self.collector = collector
