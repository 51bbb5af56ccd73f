"""Rows to log-likelihoods: sorted by length, batched, with shared prefixes run once.

    scorer = Scorer(model)
    for finished in scorer.run(groups):              # groups[i]: the rows of one question, such as both of a pair
        for index, scores in finished: ...           # after every batch: the groups that it completed

Padding stands on the right, where a causal model cannot see it, so a batch gives what its rows would give alone (to
float32 rounding). The rows of a group often begin alike (a pair's sentences, four answers to one question): what they
share is run once into the key-value cache, quantifier states included, and each row goes on from there. Groups whose
shared prefixes are equally long run together, because a cache holds texts of one length. Logits are made only for
tokens that count, in pieces, so no (tokens × vocabulary) tensor exists and memory is bounded by `batch_tokens`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from legible_core.errors import LegibleError
from legible_core.evaluation.encode import Row
from legible_core.interventions import Edit
from legible_core.model import Transformer

BATCH_TOKENS = 2048
# Another forward costs about as much as this many tokens; a prefix is shared where it saves more.
WORTH = 64
# Going on from a cache is slower by the token than a plain forward; a prefix is shared where it saves an eighth.
SHARE = 8
# Empty places that a batch may have before the next shorter rows get one of their own.
PADDING = 4 * WORTH
# Entries of the logits that exist at once.
LOGITS = 1 << 21


class Score(NamedTuple):
    """Natural log-likelihood of the scored tokens, and whether each was the model's most probable one."""

    loglik: float
    greedy: bool


@dataclass(frozen=True)
class Batch:
    """Groups that run together; all their rows share, within a group, the first `prefix` tokens."""

    prefix: int
    groups: tuple[int, ...]
    tokens: int


class Scorer:
    """Scores rows with one model, on the model's device; `edits` apply at every position of every text."""

    def __init__(self, model: Transformer, batch_tokens: int = BATCH_TOKENS, edits: Sequence[Edit] = ()) -> None:
        self.model = model
        self.edits = tuple(edits)
        self.batch_tokens = batch_tokens
        self.device = model.token_embedding.device

    def plan(self, groups: Sequence[Sequence[Row]]) -> list[Batch]:
        """The batches of `run`, longest rows first, so that memory and time are at their highest at the start."""
        buckets: dict[int, list[int]] = defaultdict(list)
        for index, rows in enumerate(groups):
            for row in rows:
                self._check(row)
            if rows:
                prefix = shared(rows)
                saved, total = prefix * (len(rows) - 1), sum(len(row.tokens) - 1 for row in rows)
                buckets[prefix if SHARE * saved >= total else 0].append(index)
        for prefix in [p for p in buckets if p]:
            if prefix * sum(len(groups[index]) - 1 for index in buckets[prefix]) < WORTH:
                buckets[0] += buckets.pop(prefix)
        batches: list[Batch] = []
        for prefix, members in buckets.items():
            members.sort(key=lambda index: (-max(len(row.tokens) for row in groups[index]), index))
            chosen: list[int] = []
            count = width = padding = 0
            for index in members:
                widths = [len(row.tokens) - 1 - prefix for row in groups[index]]
                more, empty = count + len(widths), padding + sum(width - own for own in widths)
                if chosen and (self._load(prefix, len(chosen) + 1, more, width) > self.batch_tokens or empty > PADDING):
                    batches.append(Batch(prefix, tuple(chosen), prefix * len(chosen) + width * count))
                    chosen, count, padding, width = [], 0, 0, 0
                if not chosen:
                    width = max(widths)
                chosen.append(index)
                count, padding = count + len(widths), padding + sum(width - own for own in widths)
            batches.append(Batch(prefix, tuple(chosen), prefix * len(chosen) + width * count))
        return sorted(batches, key=lambda batch: -max(len(row.tokens) for row in groups[batch.groups[0]]))

    def run(self, groups: Sequence[Sequence[Row]]) -> Iterator[list[tuple[int, list[Score]]]]:
        """After each batch, the groups that it completed with a score for each row; every group comes once."""
        for batch in self.plan(groups):
            yield self.score(batch, groups)

    @torch.inference_mode()
    def score(self, batch: Batch, groups: Sequence[Sequence[Row]]) -> list[tuple[int, list[Score]]]:
        """One batch; raises `LegibleError` when the model gives no finite number."""
        rows = [row for index in batch.groups for row in groups[index]]
        owner = torch.tensor([n for n, index in enumerate(batch.groups) for _ in groups[index]], device=self.device)
        tokens, length = _padded(rows, self.device)
        start = length - torch.tensor([row.scored for row in rows], device=self.device)
        logs = torch.zeros(len(rows), dtype=torch.float64, device=self.device)
        greedy = torch.ones(len(rows), dtype=torch.bool, device=self.device)
        prefix = batch.prefix
        if not prefix:
            residual = self.model.residual(tokens[:, :-1], self.edits)
            first = 1
        else:
            heads = torch.tensor(np.unique(owner.cpu().numpy(), return_index=True)[1], device=self.device)
            opening = tokens[heads, :prefix]
            cache = self.model.new_cache()
            before = self.model.residual(opening, self.edits, cache=cache)
            if prefix > 1:
                # A group's rows may count from different tokens on; what any of them counts is computed once.
                earliest = torch.full((len(heads),), prefix, device=self.device).scatter_reduce(0, owner, start, "amin")
                at = torch.arange(1, prefix, device=self.device)
                found = self._log_probabilities(before[:, :-1], opening[:, 1:], at >= earliest[:, None])
                counted = at >= start[:, None]
                logs += torch.where(counted, found[0][owner], 0.0).sum(1)
                greedy &= (found[1][owner] | ~counted).all(1)
            residual = before[owner, -1:]
            if tokens.shape[1] - 1 > prefix:
                rest = self.model.residual(tokens[:, prefix:-1], self.edits, cache=_take(cache, owner))
                residual = torch.cat([residual, rest], dim=1)
            first = prefix
        at = torch.arange(first, tokens.shape[1], device=self.device)
        counted = (at >= start[:, None]) & (at < length[:, None])
        found = self._log_probabilities(residual, tokens[:, first:], counted)
        logs += found[0].sum(1)
        greedy &= found[1].all(1)
        return self._by_group(batch, groups, logs, greedy)

    def _log_probabilities(
        self, residual: Float[Tensor, "r t d"], targets: Int[Tensor, "r t"], counted: Tensor
    ) -> tuple[Float[Tensor, "r t"], Tensor]:
        """ln p of each counted target (0 elsewhere) and whether it is the argmax (true elsewhere)."""
        logs = torch.zeros(targets.shape, dtype=torch.float64, device=self.device)
        greedy = torch.ones_like(counted)
        x, wanted = residual[counted], targets[counted]
        step = max(1, LOGITS // self.model.config.vocab_size)
        parts, hits = [], []
        for begin in range(0, len(wanted), step):
            chosen = wanted[begin : begin + step]
            logits = self.model.logits(x[begin : begin + step])
            highest, best = logits.max(dim=-1)
            target = logits.gather(1, chosen[:, None])[:, 0]
            total = logits.sub_(highest[:, None]).exp_().sum(dim=-1)
            parts.append(((target - highest) - total.log()).double())
            hits.append(best == chosen)
        if parts:
            logs[counted], greedy[counted] = torch.cat(parts), torch.cat(hits)
        return logs, greedy

    def _by_group(
        self, batch: Batch, groups: Sequence[Sequence[Row]], logs: Tensor, greedy: Tensor
    ) -> list[tuple[int, list[Score]]]:
        if not torch.isfinite(logs).all():
            raise LegibleError(
                "The checkpoint gives no finite probabilities on this text, so it cannot be scored.",
                code="not_finite",
                status=422,
            )
        scores = iter([Score(float(log), bool(hit)) for log, hit in zip(logs.tolist(), greedy.tolist(), strict=True)])
        return [(index, [next(scores) for _ in groups[index]]) for index in batch.groups]

    @staticmethod
    def _load(prefix: int, groups: int, rows: int, width: int) -> int:
        """Tokens that a batch holds at once: of either forward, or a share of what the spread cache keeps."""
        return max(prefix * groups, rows * max(width, 1), rows * (prefix + width) // 4)

    def _check(self, row: Row) -> None:
        if len(row.tokens) - 1 > self.model.config.context or not 0 < row.scored < len(row.tokens):
            raise ValueError(f"a row of {len(row.tokens)} tokens, {row.scored} scored, does not fit the context")


def shared(rows: Sequence[Row]) -> int:
    """How many first tokens all rows share, leaving each at least its last token; 0 for a single row."""
    if len(rows) < 2:
        return 0
    limit = min(len(row.tokens) for row in rows) - 1
    first, *others = (row.tokens for row in rows)
    for index in range(limit):
        if any(other[index] != first[index] for other in others):
            return index
    return limit


def _padded(rows: Sequence[Row], device: torch.device) -> tuple[Int[Tensor, "r t"], Int[Tensor, " r"]]:
    """The rows' tokens with zeros on the right, and their lengths."""
    length = np.array([len(row.tokens) for row in rows])
    tokens = np.zeros((len(rows), int(length.max())), np.int64)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row.tokens)] = row.tokens
    return torch.from_numpy(tokens).to(device), torch.from_numpy(length).to(device)


def _take(value: Any, rows: Tensor) -> Any:
    """A cache with these rows of its batch dimension, whatever tensors it is made of."""
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, list):
        return [_take(entry, rows) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _take(getattr(value, field.name), rows) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
