"""Tuning: what a prediction, and the text after it, become under edits; before and after beside each other.

    tuned = engine.tune(request, edits=[Edit(Unit(5, 263), "scale", 2.0)])
    tuned.before.target.probability, tuned.after.target.probability
    [token.display for token in tuned.after.continuation]

Made to be asked again and again with other numbers: the unedited prompt's trace is kept together with its own greedy
continuation. An edited redraw runs from the first edited layer up, over prompt and that continuation at once; as many
of its tokens as the edited model would write too need no pass of their own, and each further token costs one cached
step. Nothing is stored: a reading of the same edits is `engine.read` ("Legible-by-Construction" section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legible_core.axes import Float
from legible_core.errors import NotExact
from legible_core.interventions import Edit
from legible_core.interventions_text import as_edits, edit_text
from legible_core.memory import ByteCache
from legible_core.model.resume import cache_of, resume
from legible_core.reading import Prediction, ReadingRequest, TargetToken
from legible_core.trace import Trace
from legible_core.under_edits import check_effect

if TYPE_CHECKING:
    from legible_core.pipeline import Engine

SCHEMA = 1
# Tokens of the continuation, and how many of them may cost a step of their own while a slider moves.
TOKENS, STEPS = 8, 1
BASE_BYTES = 128 << 20


@dataclass(frozen=True)
class Token:
    """A token of a continuation, with its probability where it was chosen."""

    id: int
    display: str
    probability: float


@dataclass(frozen=True)
class State:
    """One side: the leading predictions, the target among them all, and what the text goes on with, greedily.

    `complete`: the continuation is as long as was asked; else further steps would lengthen it.
    """

    predictions: tuple[Prediction, ...]
    target: TargetToken
    continuation: tuple[Token, ...]
    complete: bool


@dataclass(frozen=True)
class Tuned:
    """A prediction without edits and with them; `digest` names the edited reading, `plain` the unedited one."""

    digest: str
    plain: str
    position: int
    edits: tuple[Edit, ...]
    before: State
    after: State

    def to_json(self) -> dict[str, Any]:
        """The document of docs/edits.md."""
        sides = {}
        for name, state in (("before", self.before), ("after", self.after)):
            sides[name] = {
                "predictions": [row.model_dump() for row in state.predictions],
                "target": state.target.model_dump(),
                "continuation": [asdict(token) for token in state.continuation],
                "complete": state.complete,
            }
        return {
            "schema": SCHEMA,
            "kind": "tuned",
            "digest": self.digest,
            "plain": self.plain,
            "position": self.position,
            "edits": [edit_text(edit) for edit in self.edits],
            **sides,
        }


@dataclass(frozen=True)
class _Base:
    """The unedited prompt up to its read position, with its own continuation behind it."""

    trace: Trace
    length: int
    written: tuple[tuple[int, float], ...]
    logits: Tensor


class Tuner:
    """The tuning of one engine's prompts."""

    def __init__(self, engine: Engine, limit: int = BASE_BYTES) -> None:
        self.engine = engine
        self._bases: ByteCache[tuple[str, int, int], _Base] = ByteCache(limit)

    @torch.no_grad()
    def tune(
        self, request: ReadingRequest, edits: Iterable[Edit | str] = (), *, tokens: int = TOKENS, steps: int = STEPS
    ) -> Tuned:
        """The request's prediction without edits and under its own and `edits`; at most 1 + `steps` passes.

        Raises what `Engine.read` raises for the request, and the errors of the edits.
        """
        engine = self.engine
        wanted = replace(request, edits=(*request.edits, *as_edits(edits)))
        wanted.check(engine.config)
        plain = replace(wanted, edits=())
        position = len(plain.ids) - 1 if plain.position is None else plain.position
        base = self._base(plain, position, tokens)
        target = int(base.logits.argmax()) if plain.target is None else plain.target
        before = self._state(base.logits, target, base.written, tokens)
        here = _before(wanted.edits, base.length)
        after = self._edited(base, here, target, tokens, steps) if here else before
        return Tuned(wanted.digest, plain.digest, position, wanted.edits, before, after)

    def _edited(self, base: _Base, edits: tuple[Edit, ...], target: int, tokens: int, steps: int) -> State:
        engine, model = self.engine, self.engine.model
        ordinary = engine.config.ordinary
        edited = model.trace(base.trace.ids, edits) if ordinary else resume(model, base.trace, edits)
        check_effect(model, base.trace, edited)
        logits = model.logits(edited.residual[base.length - 1 :])
        written = [_choose(logits[0])]
        while len(written) < len(logits) and written[-1][0] == base.written[len(written) - 1][0]:
            written.append(_choose(logits[len(written)]))
        more = min(steps, self._room(base.length, tokens) - len(written))
        if more > 0:
            ids = [*base.trace.ids[: base.length].tolist(), *(index for index, _ in written)]
            written += self._go_on(edited, ids, edits, more)
        return self._state(logits[0], target, written, self._room(base.length, tokens))

    def _go_on(self, edited: Trace, ids: list[int], edits: tuple[Edit, ...], steps: int) -> list[tuple[int, float]]:
        """The next tokens after `ids`, all but the last of which the trace has run."""
        model = self.engine.model
        device = edited.ids.device
        made: list[tuple[int, float]] = []
        cache = None if self.engine.config.ordinary else cache_of(model, edited, len(ids) - 1)
        for _ in range(steps):
            if cache is None:
                residual = model.trace(torch.tensor(ids, device=device), edits).residual[-1]
            else:
                residual = model.residual(torch.tensor([ids[-1:]], device=device), edits, cache=cache)[0, -1]
            made.append(_choose(model.logits(residual)))
            ids = [*ids, made[-1][0]]
        return made

    def _base(self, plain: ReadingRequest, position: int, tokens: int) -> _Base:
        key = (plain.digest, position, tokens)
        return self._bases.get_or_make(
            key, lambda: self._make(plain, position, tokens), lambda made: made.trace.n_bytes + 4 * made.logits.numel()
        )

    def _make(self, plain: ReadingRequest, position: int, tokens: int) -> _Base:
        trace, _, logits = self.engine.run(replace(plain, position=position))
        ids = list(plain.ids[: position + 1])
        written = [_choose(logits)]
        room = self._room(len(ids), tokens)
        if room > 1:
            written += self._go_on(trace, [*ids, written[0][0]], (), room - 1)
        # The last token is not run: nothing follows it.
        draft = [*ids, *(index for index, _ in written[:-1])]
        whole = self.engine.model.trace(torch.tensor(draft, device=trace.ids.device))
        return _Base(whole, len(ids), tuple(written), logits)

    def _room(self, length: int, tokens: int) -> int:
        """How long the continuation can be: the context holds the prompt and all of it but the last token."""
        return max(1, min(tokens, self.engine.config.context - length + 1))

    def _state(
        self, logits: Float[Tensor, " v"], target: int, written: Sequence[tuple[int, float]], tokens: int
    ) -> State:
        engine = self.engine
        if not bool(torch.isfinite(logits).all()):
            raise NotExact("Under these edits the model's logits are not all finite numbers.", code="not_finite")
        predictions, placed = engine.chances(logits, target)
        continuation = tuple(Token(index, engine.token(index).display, chance) for index, chance in written)
        return State(predictions, placed, continuation, len(written) >= tokens)


def _before(edits: Iterable[Edit], length: int) -> tuple[Edit, ...]:
    """The edits as they act on the first `length` tokens: what follows the read position is no part of the prompt."""
    kept = []
    for edit in edits:
        if edit.positions is None:
            kept.append(edit)
        elif any(position < length for position in edit.positions):
            kept.append(replace(edit, positions=tuple(p for p in edit.positions if p < length)))
    return tuple(kept)


def _choose(logits: Float[Tensor, " v"]) -> tuple[int, float]:
    """The most probable token (of a tie the lowest id) and its probability."""
    values = logits.double()
    index = int((values == values.max()).nonzero()[0]) if bool(torch.isfinite(values).all()) else 0
    return index, float(torch.softmax(values, dim=0)[index].nan_to_num(0.0))
