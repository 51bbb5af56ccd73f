"""Naming by writes: the members of many predictions' one-hop sets collect the tokens that they helped.

    naming = Naming(reader, text, state=file)           # takes up an interrupted pass
    for progress in naming.run():                       # one item a batch; stop iterating to pause
        ...
    record, written = naming.result()
    naming.discard()                                    # or close(), to go on another time

"Through the Looking Glass" section 3.1. Every position of a text is a prediction of the model's most probable token;
the members of its one-hop set (90 % of the net) each helped that token, by their share κ / N. A component is covered
when it helped once, characterised when it helped 20 times or more, and coherent when the tokens that it helped lie
closer together than tokens of the same frequencies do (`coherence`).

The sums are kept by pair of component and token: times, Σ share, Σ share². Memory grows with the number of different
pairs, not with the text. Batches are the same whenever a pass is interrupted, and so are the sums.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from legible_core.accounting.drawing import BEFORE, Drawing, Text
from legible_core.accounting.passes import Ints, Reader, Window
from legible_core.accounting.records import Writes
from legible_core.accounting.summary import summarise
from legible_core.accounting.written import Written
from legible_core.errors import Conflict, LegibleError, NotExact, Unavailable
from legible_core.locks import lock_file
from legible_core.replace import WRITE_ERRORS, save_arrays, write_reason

STATE = "1"
CHUNK, TOP = 256, 256
SAVE_SECONDS = 30.0


@dataclass(frozen=True)
class Progress:
    """After a batch: positions done of all, in how many seconds of this sitting."""

    done: int
    total: int
    seconds: float


class Pairs:
    """Sums by pair: key = component · vocabulary + token, sorted; times, Σ share, Σ share²."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.keys = np.zeros(0, np.int64)
        self.sums = np.zeros((0, 3))
        self._pending: list[tuple[Ints, NDArray[np.float64]]] = []
        self._waiting = 0

    def add(self, components: Ints, tokens: Ints, shares: NDArray[np.float64]) -> None:
        """Memberships of a batch, in any order."""
        keys, where = np.unique(components * self.vocabulary + tokens, return_inverse=True)
        weights = (None, shares, shares * shares)
        sums = np.stack([np.bincount(where, weight, len(keys)) for weight in weights], 1).astype(np.float64)
        self._pending.append((keys, sums))
        self._waiting += len(keys)
        if self._waiting > max(200_000, len(self.keys) // 2):
            self.settle()

    def settle(self) -> None:
        """Merge what is pending; the order of the additions is that of the batches."""
        if not self._pending:
            return
        parts = [(self.keys, self.sums), *self._pending]
        keys, where = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        sums = np.zeros((len(keys), 3))
        start = 0
        for part, values in parts:
            sums[where[start : start + len(part)]] += values
            start += len(part)
        self.keys, self.sums, self._pending, self._waiting = keys, sums, [], 0


class Naming:
    """A resumable pass of one model over one text."""

    def __init__(
        self,
        reader: Reader,
        text: Text,
        *,
        checkpoint_hash: str = "",
        batch: int | None = None,
        state: Path | None = None,
        restart: bool = False,
    ) -> None:
        """state: a file to save progress in, and to go on from when it is of the same pass; it is held until `close` or
        `discard`. restart: forget what is saved there.

        Raises `LegibleError` for an unusable text or state, `Conflict` when another process holds the state,
        `Unavailable` when the disk does not take it.
        """
        self.reader, self.text, self.state = reader, text, state
        self._drawing = Drawing(reader, text, floor=0.0, predictions=1)  # checks the text, and sets the windows' length
        self.length = self._drawing.length
        self.batch = batch or reader.batch(self.length)
        self.before = min(BEFORE, self.length // 2)
        self.identity = {
            "checkpoint": checkpoint_hash, "sha256": text.sha256, "length": str(self.length), "batch": str(self.batch),
        }  # fmt: skip
        self.pairs = Pairs(reader.model.config.vocab_size)
        self.n90 = np.zeros(reader.layout.size + 1, np.int64)
        # Windows done, predictions without a positive net, Σ loss, how many losses.
        self.totals = np.zeros(4)
        self.next = 0
        self._buffer: Tensor | None = None
        self._saved = time.monotonic()
        if state is not None:
            self._let_go = weakref.finalize(self, self._hold(state))
            try:
                if restart:
                    self._forget(state)
                elif state.is_file():
                    self._resume(state)
            except LegibleError:
                self.close()
                raise

    @property
    def batches(self) -> int:
        return -(-self.reader.count(len(self.text.ids), self.length) // self.batch)

    @property
    def total(self) -> int:
        """Positions of the whole pass."""
        return self.reader.count(len(self.text.ids), self.length) * (self.length - self.before)

    @property
    def finished(self) -> bool:
        return self.next == self.batches

    def run(self) -> Iterator[Progress]:
        """Go through what is left, yielding after every batch; the state is saved now and then, and at the end."""
        started = time.monotonic()
        for number, piece in enumerate(self.reader.windows(self.text.ids, self.length, self.batch)):
            if number < self.next:
                continue
            self._take(piece)
            self.next = number + 1
            if self.state is not None and (self.finished or time.monotonic() - self._saved > SAVE_SECONDS):
                self.save()
            done = int(self.totals[0]) * (self.length - self.before)
            yield Progress(done, self.total, time.monotonic() - started)

    def result(self) -> tuple[Writes, Written]:
        """The figures, and what each component helped.

        Raises `LegibleError` before any prediction was named.
        """
        self.pairs.settle()
        predictions, not_positive = int(self.n90.sum()), int(self.totals[1])
        if not predictions:
            raise LegibleError("No prediction of this text has a positive net, so nothing is named.", code="no_net")
        drawing = self._drawing
        drawing.windows, drawing.drawn = int(self.totals[0]), predictions + not_positive
        drawing.looked_at = drawing.over = predictions + not_positive
        drawing.losses(float(self.totals[2]), int(self.totals[3]))
        return summarise(
            self.reader.layout, self.pairs.keys, self.pairs.sums, self.n90, self.text.ids,
            self.pairs.vocabulary, drawing.population(not_positive), self.identity["checkpoint"],
        )  # fmt: skip

    @torch.no_grad()
    def _take(self, piece: Window) -> None:
        reader = self.reader
        passed = reader.run(piece.ids)
        predicted = reader.predict(passed, piece.following)
        mask = np.zeros(piece.ids.shape, bool)
        mask[:, self.before :] = True
        places = torch.as_tensor(np.flatnonzero(mask), device=passed.residual.device)
        if self._buffer is None:
            self._buffer = torch.empty(CHUNK, reader.layout.size, device=places.device)
        for some in places.split(CHUNK):
            tokens = predicted.token[some]
            terms = reader.terms(passed, some, tokens, self._buffer)
            row, component, share, counts = members_of(terms)
            self.pairs.add(component, tokens.cpu().numpy()[row], share)
            positive = counts[counts > 0]
            self.n90 += np.bincount(positive, minlength=len(self.n90))
            self.totals[1] += len(counts) - len(positive)
        known = predicted.loss[np.isfinite(predicted.loss)]
        self.totals += (len(piece.ids), 0, float(known.sum()), known.size)

    # ---- state -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the state, whole or not at all; raises `Unavailable` when the disk does not take it."""
        assert self.state is not None
        self.pairs.settle()
        arrays = {"keys": self.pairs.keys, "sums": self.pairs.sums, "n90": self.n90, "totals": self.totals}
        meta = {"format": "legible-writes-state", "version": STATE, "next": str(self.next), **self.identity}
        try:
            self.state.parent.mkdir(parents=True, exist_ok=True)
            save_arrays(self.state, arrays, meta)
        except WRITE_ERRORS as error:
            message = f"The state cannot be written to {self.state}: {write_reason(error)}."
            raise Unavailable(message, code="cannot_write") from None
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Remove the saved state, once what was named is written; raises `Unavailable` when the disk keeps it."""
        if self.state is not None:
            self._forget(self.state)
        self.close()

    def close(self) -> None:
        """Let another process have the state; what is saved stays."""
        if self.state is not None:
            self._let_go()

    @staticmethod
    def _hold(state: Path) -> Callable[[], None]:
        try:
            let_go = lock_file(state)
        except OSError as error:
            message = f"The state cannot be written to {state}: {write_reason(error)}."
            raise Unavailable(message, code="cannot_write") from None
        if let_go is None:
            raise Conflict(
                f"A naming by writes of this checkpoint is already running, with its state in {state}; wait for it or "
                "stop it.",
                code="account_running",
            )
        return let_go

    @staticmethod
    def _forget(state: Path) -> None:
        try:
            state.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"The saved state {state} cannot be removed: {write_reason(error)}.") from None

    def _resume(self, path: Path) -> None:
        """Take up a state of this very pass; raises `LegibleError` for one of another."""
        try:
            with safe_open(path, "np") as file:
                meta = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in ("keys", "sums", "n90", "totals")}
        except (SafetensorError, OSError, ValueError):
            raise LegibleError(f"The state {path} is damaged; --restart begins anew.", code="bad_state") from None
        expected = {"format": "legible-writes-state", "version": STATE, **self.identity}
        if {key: meta.get(key) for key in expected} != expected or arrays["n90"].shape != self.n90.shape:
            raise LegibleError(
                f"The state {path} is of another pass ({json.dumps(meta)[:120]}); --restart begins anew.",
                code="bad_state",
            )
        self.pairs.keys, self.pairs.sums = arrays["keys"], arrays["sums"]
        self.n90, self.totals, self.next = arrays["n90"], arrays["totals"], int(meta["next"])


def members_of(terms: Tensor, top: int = TOP) -> tuple[Ints, Ints, NDArray[np.float64], Ints]:
    """The one-hop sets of many predictions: (row, component, share of the net) of each member, and n_90 by row.

    terms: (m, size). n_90 is 0 where the net is not positive. The largest `top` terms are looked at first, and all of
    them only where these do not reach 90 %. Raises `NotExact` when a term is not finite.
    """
    net = terms.sum(1).double()
    if not bool(torch.isfinite(net).all()):
        raise NotExact("A component's term is not a finite number on this text.", code="not_finite")
    bar = 0.9 * net
    best = terms.topk(min(top, terms.shape[1]), dim=1)
    counts = _reaching(best.values, bar)
    rows, components, shares = _taken(best.values, best.indices, counts, net, torch.arange(len(terms)))
    left = (counts < 0).nonzero()[:, 0]
    if len(left):
        whole = terms[left].sort(dim=1, descending=True)
        counts[left] = _reaching(whole.values, bar[left]).abs()
        more = _taken(whole.values, whole.indices, counts[left], net[left], left)
        rows, components, shares = (
            torch.cat(pair) for pair in zip((rows, components, shares), more, strict=True)
        )  # fmt: skip
    numbers = counts.cpu().numpy()
    return rows.cpu().numpy(), components.cpu().numpy(), shares.double().cpu().numpy(), numbers


def _reaching(falling: Tensor, bar: Tensor) -> Tensor:
    """How many of each row's leading terms reach the bar: 0 for a bar that is not positive, minus all if they do
    not."""
    rising = falling.double().cumsum(1)
    counts = (rising < bar[:, None]).sum(1) + 1
    counts[rising.amax(1) < bar] = -falling.shape[1]
    counts[bar <= 0] = 0
    return counts


def _taken(values: Tensor, indices: Tensor, counts: Tensor, net: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.arange(values.shape[1], device=values.device)[None] < counts[:, None]
    share = values.double() / net[:, None]
    return rows.to(values.device)[:, None].expand_as(mask)[mask], indices[mask], share[mask]
