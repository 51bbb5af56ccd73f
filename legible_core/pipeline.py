"""From request to reading, the whole way, in one place.

    engine = Engine.open(folder)
    reading = engine.read(engine.request("It was the best of times, it was the", target=" worst"))

An engine holds one checkpoint in one compute dtype on one device. Traces of prompts and logits of positions stay in
byte-bounded caches, so another target or position of the same prompt costs no forward. One thread uses it at a time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from legible_core import attribution as sums
from legible_core import details
from legible_core.attribution import Attribution, Attributor, Question
from legible_core.axes import Float
from legible_core.config import ModelConfig
from legible_core.contributors import Describer
from legible_core.errors import Corrupt, LegibleError, NotExact
from legible_core.interventions import Edit, canonical_edits
from legible_core.memory import ByteCache
from legible_core.model import Transformer
from legible_core.prompts import render, with_bos
from legible_core.readable import OrdinaryModel, Readable
from legible_core.reading import (
    SCHEMA,
    CheckpointRef,
    Dtype,
    Groups,
    LayerTotals,
    Prediction,
    Reading,
    ReadingRequest,
    RelativeTo,
    Shares,
    Summary,
    TargetToken,
    Term,
    Token,
)
from legible_core.tokens import Tokenizer, check_text
from legible_core.trace import Trace
from legible_core.tuning import Tuned, Tuner
from legible_core.under_edits import check_effect
from legible_core.units import Component, parse

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from legible_core.adapters.registration import OrdinaryCheckpoint
    from legible_core.naming.names import Names
    from legible_core.registry import Checkpoint

PREDICTIONS = 10
PROMOTED = 10
TRACE_BYTES = 512 << 20
LOGIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Solved:
    """One prediction, decomposed: where it was read, the model's logits there, what was asked, and every term."""

    trace: Trace
    position: int
    logits: Float[Tensor, " v"]
    question: Question
    terms: Attribution


class Engine:
    """Answers reading requests of one checkpoint."""

    def __init__(
        self,
        model: Readable,
        checkpoint: CheckpointRef,
        tokenizer: Tokenizer | None = None,
        names: Names | None = None,
        *,
        dtype: Dtype = "float32",
        cache_bytes: int = TRACE_BYTES,
    ) -> None:
        # Most of what is asked of a model is asked of a legible one: `needs_legible` guards what the other kind lacks.
        self.model = cast(Transformer, model)
        self.config: ModelConfig = model.config
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        self.names = names
        self.dtype: Dtype = dtype
        self.attributor = Attributor(model, dtype)
        self.describer = Describer(model, tokenizer, names)
        # Set where the model is an ordinary one: how its prompts begin, its chat template.
        self.ordinary: OrdinaryCheckpoint | None = None
        self.traces: ByteCache[str, Trace] = ByteCache(cache_bytes)
        self._logits: ByteCache[tuple[str, int], Tensor] = ByteCache(LOGIT_BYTES)
        self.tuner = Tuner(self)

    @classmethod
    def open(
        cls,
        checkpoint: Checkpoint | Path | str,
        *,
        dtype: Dtype = "float32",
        device: str = "cpu",
        cache_bytes: int = TRACE_BYTES,
    ) -> Engine:
        """Load a checkpoint folder with its tokenizer and, where they exist and are its own, its names.

        Raises `NotFound` or `Corrupt` for a folder that is missing or not what its manifest claims.
        """
        from legible_core.adapters.registration import OrdinaryCheckpoint
        from legible_core.checkpoint import load
        from legible_core.opening import open_ordinary, ordinary_folder
        from legible_core.registry import open_checkpoint

        if isinstance(checkpoint, Path | str):
            checkpoint = ordinary_folder(Path(checkpoint), dtype) or open_checkpoint(checkpoint)
        if isinstance(checkpoint, OrdinaryCheckpoint):
            return open_ordinary(checkpoint, device, cache_bytes)
        model = load(checkpoint, dtype=getattr(torch, dtype), device=device)
        ref = CheckpointRef(hash=checkpoint.hash, slug=checkpoint.slug)
        tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
        return cls(model, ref, tokenizer, names_of(checkpoint), dtype=dtype, cache_bytes=cache_bytes)

    def request(
        self,
        prompt: str,
        *,
        position: int | None = None,
        target: str | None = None,
        contrast: str | None = None,
        relative_to: RelativeTo | None = None,
        edits: tuple[Edit, ...] = (),
        bos: bool | None = None,
        chat: bool = False,
    ) -> ReadingRequest:
        """The request that a person's words make; raises `LegibleError` with one sentence for unusable ones.

        bos: whether the begin-of-text token stands before the prompt; None for the tokenizer's own default. chat: the
        prompt is what a user says, in the model's chat template. Both are an ordinary model's.
        """
        if self.tokenizer is None:
            raise LegibleError("This engine has no tokenizer, so it reads token ids only.", code="no_tokenizer")
        made = ReadingRequest(
            checkpoint=self.checkpoint.hash,
            ids=tuple(self.encode(prompt, bos=bos, chat=chat)),
            position=position,
            target=None if target is None else self.tokenizer.target(target),
            contrast=None if contrast is None else self.tokenizer.target(contrast, "contrast"),
            relative_to=relative_to,
            dtype=self.dtype,
            edits=edits,
        )
        made.check(self.config)
        return made

    def encode(self, prompt: str, *, bos: bool | None = None, chat: bool = False) -> list[int]:
        """The exact ids of a prompt, see `request`."""
        assert self.tokenizer is not None
        known = self.ordinary
        if chat:
            check_text(prompt)
            template, special = (None, {}) if known is None else (known.chat_template, known.special)
            prompt = render(template, prompt, special)
        if known is None and bos is None:
            return self.tokenizer.encode(prompt)
        if chat and bos is None:  # a template writes its own beginning, or wants none
            bos = False
        return with_bos(self.tokenizer.encode(prompt), None if known is None else known.bos, bos)

    @property
    def n_bytes(self) -> int:
        """What the weights take in memory; tied ones count once."""
        model: Readable = self.model
        if isinstance(model, OrdinaryModel):
            return model.n_bytes
        return sum(p.numel() * p.element_size() for p in model.parameters())

    # ---- the reading ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def read(self, request: ReadingRequest, top: int = 20, promoted: int = PROMOTED) -> Reading:
        """The exact sum of one prediction with its `top` contributors described.

        promoted: tokens in each promote list; 0 skips the product with the vocabulary.
        Raises `LegibleError` for a request that this checkpoint cannot serve, `NotExact` when the sum does not close.
        """
        solved = self.solve(request)
        terms, logits, question = solved.terms, solved.logits, solved.question
        config = self.config
        cap: float | None = getattr(config, "logit_softcap", None)
        logs = self._logs(logits)
        summary = Summary(
            schema=SCHEMA,
            digest=request.digest,
            checkpoint=self.checkpoint,
            dtype=self.dtype,
            edits=tuple(canonical_edits(request.edits)),
            tokens=tuple(self.token(i) for i in request.ids),
            position=solved.position,
            relative_to=question.relative_to,
            target=self._placed(question.target, logits, logs),
            contrast=None if question.contrast is None else self._placed(question.contrast, logits, logs),
            predictions=self._predictions(logits, logs),
            value=terms.value,
            sum=terms.total,
            residual=terms.residual,
            tolerance=terms.tolerance,
            scale=terms.scale,
            floor=tuple(Term(id=name, value=value) for name, value in terms.floor.items()),
            groups=Groups(**sums.groups(terms, config)),
            shares=Shares.model_validate(sums.shares(terms, config, self.describer.named_masks())),
            layers=self._layers(terms),
            top=self.describer.describe(
                sums.strongest(terms, top), solved.trace, solved.position, terms, question.target, promoted
            ),
            units_shape=(config.n_layers, config.feed_forward.d_ff),
            heads_shape=(config.n_layers, config.n_heads),
            logit_softcap=cap,
        )
        return Reading(summary, terms.heads.astype(np.float32), terms.units.astype(np.float32))

    @torch.no_grad()
    def solve(self, request: ReadingRequest) -> Solved:
        """Everything of a reading but the document: trace, position, target and all terms, checked to close."""
        trace, position, logits = self.run(request)
        question = self.question(request, _leading(logits, 1)[0] if request.target is None else request.target)
        terms = self.attributor.attribute(trace, position, question, logits)
        terms.check()
        return Solved(trace, position, logits, question, terms)

    def needs_legible(self, what: str) -> None:
        """Raise `LegibleError` where `what` is asked of an ordinary model, which has no operands to answer with."""
        if self.config.ordinary:
            raise LegibleError(
                f"{what} needs a checkpoint that is legible by construction; "
                f"{self.checkpoint.slug} is an ordinary model.",
                code="ordinary",
                status=422,
            )

    def forget(self, *, traces: bool = True) -> None:
        """Empty the caches: logits and projections, and with `traces` the traces as well."""
        self._logits.clear()
        self.attributor.forget()
        if traces:
            self.traces.clear()

    def tune(self, request: ReadingRequest, edits: Iterable[Edit | str] = (), **more: int) -> Tuned:
        """The prediction before and after edits, with a short continuation; see `legible_core.tuning.Tuner.tune`."""
        return self.tuner.tune(request, edits, **more)

    def chances(self, logits: Float[Tensor, " v"], target: int) -> tuple[tuple[Prediction, ...], TargetToken]:
        """The leading predictions of some logits, and the target among them all."""
        logs = self._logs(logits)
        return self._predictions(logits, logs), self._placed(target, logits, logs)

    def head_detail(self, request: ReadingRequest, layer: int, head: int) -> dict[str, Any]:
        """One head close up, see `legible_core.details.head_detail`."""
        return details.head_detail(self, request, layer, head)

    def component_detail(self, request: ReadingRequest, component: Component | str) -> dict[str, Any]:
        """One unit, channel or head close up, see `legible_core.details.component_detail`."""
        return details.component_detail(self, request, parse(component) if isinstance(component, str) else component)

    @torch.no_grad()
    def run(self, request: ReadingRequest) -> tuple[Trace, int, Float[Tensor, " v"]]:
        """The request's trace (kept or made), its position made explicit, and the logits there."""
        if request.checkpoint != self.checkpoint.hash:
            raise LegibleError(
                f"The request is for checkpoint {request.checkpoint[:12]}, this engine holds "
                f"{self.checkpoint.hash[:12]}.",
                code="wrong_checkpoint",
            )
        if request.dtype != self.dtype:
            raise LegibleError(
                f"The request is for {request.dtype}, this engine computes in {self.dtype}.", code="bad_dtype"
            )
        request.check(self.config)
        key = request.digest
        trace = self.traces.get_or_make(key, lambda: self._trace(request), lambda made: made.n_bytes)
        position = len(request.ids) - 1 if request.position is None else request.position
        logits = self._logits.get_or_make(
            (key, position),
            lambda: self.model.logits_at(trace, position),
            lambda made: made.numel() * made.element_size(),
        )
        if not bool(torch.isfinite(logits).all()):
            raise NotExact(
                f"The model's logits at position {position} are not all finite numbers, so there is nothing to read.",
                code="not_finite",
            )
        return trace, position, logits

    def _trace(self, request: ReadingRequest) -> Trace:
        """Run the prompt, its edits held to their effect against the unedited prompt."""
        ids = torch.tensor(request.ids, device=self.model.token_embedding.device)
        trace = self.model.trace(ids, request.edits)
        if request.edits:
            plain = dataclasses.replace(request, edits=())
            check_effect(self.model, self.run(plain)[0], trace)
        return trace

    def question(self, request: ReadingRequest, target: int) -> Question:
        """What the request asks once its target is known."""
        if request.contrast == target:
            raise LegibleError(
                "The contrast token is the target itself, so their difference is zero; choose another.",
                code="bad_contrast",
            )
        return Question(target, request.relative_to or "nothing", request.contrast)

    # ---- parts of it ---------------------------------------------------------------------------------------------

    def token(self, index: int) -> Token:
        """A vocabulary entry as the schema writes it; without a tokenizer its number stands for its text."""
        if self.tokenizer is None:
            return Token(id=index, text=str(index), display=str(index), bytes=str(index).encode().hex())
        raw = self.tokenizer.token_bytes(index)
        return Token(id=index, text=self.tokenizer.text(index), display=self.tokenizer.display(index), bytes=raw.hex())

    def _logs(self, logits: Float[Tensor, " v"]) -> Float[Tensor, " v"]:
        """Log-probabilities, float64, behind the soft-cap of an ordinary model that has one."""
        cap: float | None = getattr(self.config, "logit_softcap", None)
        final = logits.double()
        if cap is not None:  # the order of tokens is the same on both sides of it
            final = cap * torch.tanh(final / cap)
        return final - torch.logsumexp(final, 0)

    def _predictions(self, logits: Float[Tensor, " v"], logs: Float[Tensor, " v"]) -> tuple[Prediction, ...]:
        return tuple(Prediction(**self._chance(i, logits, logs)) for i in _leading(logits, PREDICTIONS))

    def _placed(self, index: int, logits: Float[Tensor, " v"], logs: Float[Tensor, " v"]) -> TargetToken:
        rank = int((logits > logits[index]).sum()) + 1
        return TargetToken(**self._chance(index, logits, logs), rank=rank)

    def _chance(self, index: int, logits: Float[Tensor, " v"], logs: Float[Tensor, " v"]) -> dict[str, Any]:
        found = {"logit": float(logits[index]), "probability": math.exp(float(logs[index]))}
        return {**dict(self.token(index)), **found}

    def _layers(self, terms: Attribution) -> tuple[LayerTotals, ...]:
        rows: list[dict[str, Any]] = [dict(row) for row in sums.by_layer(terms, self.config)]
        return tuple(
            LayerTotals(layer=layer, heads=tuple(terms.heads[layer].tolist()), **row) for layer, row in enumerate(rows)
        )


def names_of(checkpoint: Checkpoint) -> Names | None:
    """The names beside a checkpoint, where there are any of these weights and they can be read."""
    from legible_core.naming.names import Names

    try:
        names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    except Corrupt as error:
        # The sum needs no names: a spoilt or outdated names file costs the labels, never the reading.
        log.warning("%s is read without names: %s", checkpoint.slug, error.message)
        return None
    if names is None and (state := checkpoint.names_state) != "none":
        said = "those in its folder are of other weights" if state == "others" else f"only {state} is in its folder"
        log.warning("%s is read without names: %s; `legible scan` makes them", checkpoint.slug, said)
    return names


def _leading(logits: Float[Tensor, " v"], count: int) -> list[int]:
    """The `count` most probable ids; equal logits stand in order of their ids, so that a tie has one answer."""
    count = min(count, logits.numel())
    candidates = (logits >= logits.topk(count).values[-1]).nonzero()[:, 0]
    order = logits[candidates].argsort(descending=True, stable=True)
    return [int(index) for index in candidates[order[:count]]]
