"""Monitors over a text as it is read or generated: the components watched, read off the cached forward itself.

    watch = Watch(model, monitors)
    for seen in watch.read(ids): ...                                    # more and more of one text, of any length
    for step in watched(model, ids, Sampling(64), watch): ...           # tokens as they are written

A pass with a `Probe` computes nothing but the forward, and keeps only the watched columns of what the forward made. A
text longer than the context is read in windows: a new one begins with the last half context, read again but not flagged
again, as `values.part_values` reads. There attention forgets what lies before the window, and a quantifier starts from
nothing, as in training; of what it would have carried, at most λ^k could still reach a token k after the window's start
(`lost`). How long a condition has held goes on across windows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from legible_core.errors import NotExact
from legible_core.generate import Written, choose
from legible_core.interventions import Edit
from legible_core.model.transformer import Cache, LayerCache, Transformer
from legible_core.monitor import Monitor
from legible_core.probe import Probe
from legible_core.sampling import Sampling
from legible_core.units import Unit

# Tokens of a long text in one pass: long enough to fill the machine, short enough that hits are told soon.
CHUNK = 64
# Tokens that are generated before they are flagged together, where no gate waits for each: that is what keeps it cheap.
LAG = 32
LAG_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Seen:
    """Tokens `start` to `start + n` of a text: their ids, the watched values, and which monitors each is a hit of.

    values: (n, components) float32, in the order of `Watch.components`. hits: (n, monitors).
    """

    start: int
    ids: tuple[int, ...]
    values: NDArray[np.float32]
    hits: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Step:
    """A token of a text that goes on: what was written, None at the end, and what was flagged since the last step.

    Without gates tokens are flagged some at a time, so that `seen` is empty in most steps; with gates, each at once.
    edited: the monitors whose gates edited the pass at this token. stopped: the monitor whose gate stopped here.
    """

    seen: Seen
    written: Written | None
    edited: tuple[int, ...] = ()
    stopped: int | None = None


class Watch:
    """The state of one text under monitors: the window's cache, and for how long each condition has held.

    Raises what `Monitor.check` raises. `read` may be called any number of times; `state` and `restore` carry a text
    over to another process, which reads the window again.
    """

    def __init__(self, model: Transformer, monitors: Sequence[Monitor]) -> None:
        for monitor in monitors:
            monitor.check(model.config)
        self.model = model
        self.monitors = tuple(monitors)
        self.components = tuple(dict.fromkeys(c for monitor in monitors for c in monitor.components))
        self.probe = Probe(model, self.components)
        place = {component: index for index, component in enumerate(self.components)}
        rows = [(index, c) for index, monitor in enumerate(monitors) for c in monitor.required]
        self._owner = np.array([index for index, _ in rows])
        self._column = np.array([place[c.component] for _, c in rows])
        self._above = np.array([-np.inf if c.above is None else c.above for _, c in rows])
        self._below = np.array([np.inf if c.below is None else c.below for _, c in rows])
        self._run = np.array([c.run for _, c in rows])
        self._held = np.zeros(len(rows), np.int64)
        self._ids: list[int] = []  # of the window
        self._cache = model.new_cache()
        self._stops = [index for index, m in enumerate(monitors) if m.gate is not None and m.gate.stop]
        self._waiting: list[int] = []  # read, not flagged yet
        self._none = Seen(0, (), np.zeros((0, len(self.components)), np.float32), np.zeros((0, len(monitors)), bool))
        self.count = 0
        self.stopped: int | None = None

    @torch.no_grad()
    def read(self, ids: Sequence[int]) -> Iterator[Seen]:
        """The next tokens of the text, at most `CHUNK` at a time, up to a hit of a monitor whose gate stops.

        After such a hit `stopped` is that monitor's number, and nothing more is read.
        Raises `NotExact` where a watched value is no finite number, naming the component and the token.
        """
        context = self.model.config.context
        start = 0
        while start < len(ids) and self.stopped is None:
            if len(self._ids) == context:  # the window after it begins half a context later
                self._open(self._ids[max(1, context // 2) :])
            part = list(ids[start : start + min(CHUNK, context - len(self._ids))])
            self._pass(part)
            yield self._until_stopped(self._see())
            start += len(part)

    def rest(self) -> Seen:
        """What `watched` has read and not flagged yet, for who leaves it before its end."""
        return self._see() if self._waiting else self._none

    def lost(self) -> dict[str, float]:
        """For each watched quantifier, λ^k: the most that its memory from before a window can change its value there.

        k - 1 = half a context, rounded up, are the tokens that a later window reads before the first that it flags; the
        bound holds for an existential as for a proportion, given the same memberships (docs/monitors.md).
        """
        context, layout = self.model.config.context, self.model.config.feed_forward
        found = {}
        for component in self.components:
            where = layout.quantifiers
            if isinstance(component, Unit) and where.start <= component.unit < where.stop:
                decay = float(self.model.decay(component.layer)[component.unit - where.start])
                found[str(component)] = decay ** (context - max(1, context // 2) + 1)
        return found

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, as JSON."""
        return {"ids": list(self._ids), "held": self._held.tolist(), "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another watch of the same monitors left off."""
        self._held, self.count = np.array(state["held"], np.int64), int(state["count"])
        self._open([int(index) for index in state["ids"]])

    # ---- one pass --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _open(self, ids: list[int], edits: Sequence[Edit] = ()) -> None:
        """A window that begins with these tokens, which have been flagged before."""
        self._cache, self._ids = self.model.new_cache(), ids
        if ids:
            self.model.residual(self._tensor(ids), edits, cache=self._cache)

    def _pass(self, ids: list[int], edits: Sequence[Edit] = ()) -> Float[Tensor, "t d"]:
        """One forward over the next tokens; the probe holds what it saw until `_see`."""
        with self.probe.attached():
            residual = self.model.residual(self._tensor(ids), edits, cache=self._cache, observed=self.probe)[0]
        self._ids += ids
        self._waiting += ids
        return residual

    def _see(self) -> Seen:
        """What was passed since the last call, flagged."""
        values = self.probe.values(self._cache)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise NotExact(
                f"{self.components[column]} is no finite number at token {self.count + int(row):,}, so it cannot be "
                "watched.",
                code="not_finite",
            )
        seen = Seen(self.count, tuple(self._waiting), values, self._flag(values))
        self.count += len(self._waiting)
        self._waiting = []
        return seen

    def _until_stopped(self, seen: Seen) -> Seen:
        """The tokens up to the first hit of a monitor whose gate stops; what was read after it is not told."""
        found = np.argwhere(seen.hits[:, self._stops])
        if not len(found):
            return seen
        last, which = found[0].tolist()
        self.stopped, self.count = self._stops[which], seen.start + last + 1
        return Seen(seen.start, seen.ids[: last + 1], seen.values[: last + 1], seen.hits[: last + 1])

    def _flag(self, values: NDArray[np.float32]) -> Bool[np.ndarray, "n m"]:
        """Which tokens are hits of which monitors; remembers for how long each condition has held."""
        chosen = values[:, self._column]
        true = (chosen > self._above) & (chosen < self._below)
        place = np.arange(1, len(values) + 1)[:, None]
        # The last place, from 1, where a condition did not hold; before the first token it had held for _held tokens.
        broken = np.maximum.accumulate(np.where(true, -self._held, place), axis=0)
        lasted = place - broken
        self._held = np.minimum(lasted[-1], 1 << 40)
        enough = lasted >= self._run
        return np.stack([enough[:, self._owner == index].all(axis=1) for index in range(len(self.monitors))], axis=1)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([ids], device=self.model.token_embedding.device)


@torch.no_grad()
def watched(
    watch: Watch, ids: Sequence[int], sampling: Sampling, *, done: Sequence[int] = (),
    edited: Sequence[Sequence[int]] = (), stop: Container[int] = (),
) -> Iterator[Step]:  # fmt: skip
    """`generate.continuation` under monitors: the prompt's tokens first (`written` on the last), then token by token.

    Without gates the tokens are those of `continuation`. Gates act from the prompt's last token on: one that stops ends
    the text there; one that edits has the token read again with its edits at that position. The last token written is
    read too, so that every token is flagged once.

    done, edited: what an earlier call wrote and, for each monitor, at which positions its gate edited; the watch is
    then one that was restored (without its window), and flagging goes on after what it has seen.
    """
    model, given = watch.model, [*ids, *done]
    gates = [monitor.gate for monitor in watch.monitors]
    changed = [set(places) for places in edited] or [set() for _ in gates]
    if watch.count < len(given):
        begun = watch.count
        watch._open(given[:begun], _placed(watch, changed, begun))
        # With a gate the last token goes alone, because it may be read twice.
        tail = [given[begun:-1], given[-1:]] if any(gates) and len(given) - begun > 1 else [given[begun:]]
    else:
        return
    place = len(done)
    for part in tail[:-1]:
        watch._pass(list(part))
        yield Step(watch._see(), None)
    part, flagged = list(tail[-1]), time.monotonic()
    while True:
        before = _copy(watch._cache) if any(gates) else None
        residual = watch._pass(part)
        over = place == sampling.tokens or (place > 0 and part[-1] in stop)
        seen, hit = watch._none, []
        if over or before is not None or len(watch._waiting) >= LAG or time.monotonic() - flagged > LAG_SECONDS:
            seen, flagged = watch._see(), time.monotonic()
            hit = np.flatnonzero(seen.hits[-1]).tolist()
        stopped = next((index for index in hit if index in watch._stops), None)
        if over or stopped is not None:
            watch.stopped = stopped
            yield Step(seen, None, (), stopped)
            return
        acting = tuple(index for index in hit if (gate := gates[index]) is not None and gate.edits)
        if acting and before is not None:
            at = watch.count - 1
            for index in acting:
                changed[index].add(at)
            watch._cache = before
            del watch._ids[-len(part) :]
            residual = model.residual(watch._tensor(part), _placed(watch, changed, at + 1, at), cache=watch._cache)[0]
            watch._ids += part
        written = choose(model.logits(residual[-1]), sampling, place)
        yield Step(seen, written, acting)
        place += 1
        part = [written.id]


def _placed(watch: Watch, changed: Sequence[set[int]], stop: int, start: int = 0) -> tuple[Edit, ...]:
    """The gates' edits at the positions of their hits from `start` up to `stop`."""
    found = []
    for monitor, places in zip(watch.monitors, changed, strict=True):
        here = tuple(sorted(place for place in places if start <= place < stop))
        if here and monitor.gate is not None:
            found += [dataclasses.replace(edit, positions=here) for edit in monitor.gate.edits]
    return tuple(found)


def _copy(cache: Cache) -> Cache:
    """A cache that stays as it is when the other goes on: a pass replaces tensors, it never changes them."""
    layers = [LayerCache(dataclasses.replace(layer.attention), layer.quantifiers) for layer in cache.layers]
    return Cache(layers, cache.length)
