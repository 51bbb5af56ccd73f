"""Rows to log-likelihoods: what a batch gives is what each row gives alone, on every design, prefixes shared or not."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import VOCAB, designs, tiny_config, tiny_model

from legible_core.errors import LegibleError
from legible_core.evaluation import scoring
from legible_core.evaluation.encode import Row
from legible_core.evaluation.scoring import Score, Scorer, shared
from legible_core.model import Transformer


def make_groups(count: int = 60, seed: int = 0) -> list[list[Row]]:
    """Single rows, pairs and fours; common beginnings of 1 to 12 tokens; some count only their last token."""
    rng = random.Random(seed)
    groups = []
    for _ in range(count):
        opening = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 13))]
        rows = []
        for _ in range(rng.choice([1, 2, 2, 4])):
            tokens = opening + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 16))]
            rows.append(Row(tuple(tokens), rng.choice([1, len(tokens) - 1, rng.randrange(1, len(tokens))])))
        groups.append(rows)
    return groups


def alone(model: Transformer, row: Row) -> Score:
    """A row by the plain forward, one at a time."""
    ids = torch.tensor([row.tokens])
    with torch.no_grad():
        logs = model(ids[:, :-1]).double().log_softmax(-1)[0]
    targets = ids[0, 1:]
    found = logs.gather(1, targets[:, None])[-row.scored :, 0]
    return Score(float(found.sum()), bool((logs.argmax(-1) == targets)[-row.scored :].all()))


def collect(scorer: Scorer, groups: list[list[Row]]) -> dict[int, list[Score]]:
    found: dict[int, list[Score]] = {}
    for finished in scorer.run(groups):
        for index, scores in finished:
            assert index not in found
            found[index] = scores
    return found


@pytest.mark.parametrize("config", designs(), ids=lambda c: f"{c.attention.value}-{c.feed_forward.gelu_fraction}")
def test_a_ragged_batch_equals_its_singles(config):
    model = tiny_model(config)
    with torch.no_grad():  # probabilities like a trained model's, so that 1e-5 is meant per row
        model.final_norm.gain.mul_(0.2)
    groups = make_groups()
    scorer = Scorer(model, batch_tokens=120)
    plan = scorer.plan(groups)
    assert any(batch.prefix for batch in plan)
    assert any(not batch.prefix and len(batch.groups) > 1 for batch in plan)
    found = collect(scorer, groups)
    assert sorted(found) == list(range(len(groups)))
    for index, rows in enumerate(groups):
        for row, score in zip(rows, found[index], strict=True):
            expected = alone(model, row)
            assert abs(score.loglik - expected.loglik) < 1e-5
            assert score.greedy == expected.greedy


def test_greedy_is_told_from_not_greedy():
    model = tiny_model()
    start = [3, 1, 4]
    with torch.no_grad():
        best = int(model(torch.tensor([start]))[0, -1].argmax())
    rows = [Row((*start, best), 1), Row((*start, (best + 1) % VOCAB), 1)]
    assert [score.greedy for score in collect(Scorer(model), [rows])[0]] == [True, False]


def test_rows_that_differ_in_their_last_token_only_share_all_their_inputs(monkeypatch):
    monkeypatch.setattr(scoring, "WORTH", 0)
    model = tiny_model()
    groups = [[Row((5, 6, 7, last), 3) for last in (1, 2, 3)]]
    scorer = Scorer(model)
    assert [(batch.prefix, batch.tokens) for batch in scorer.plan(groups)] == [(3, 3)]
    for row, score in zip(groups[0], collect(scorer, groups)[0], strict=True):
        assert abs(score.loglik - alone(model, row).loglik) < 1e-4


def test_rows_of_a_group_may_count_from_different_tokens_on(monkeypatch):
    monkeypatch.setattr(scoring, "WORTH", 0)
    model = tiny_model()
    groups = [[Row((5, 6, 7, 8, 9), 4), Row((5, 6, 7, 8, 2, 3), 1), Row((5, 6, 7, 1), 2)]]
    assert shared(groups[0]) == 3
    for row, score in zip(groups[0], collect(Scorer(model), groups)[0], strict=True):
        assert abs(score.loglik - alone(model, row).loglik) < 1e-4


def test_a_prefix_is_shared_only_where_it_saves_more_than_a_forward_costs():
    pair = [Row((1, 2, 3, 4), 3), Row((1, 2, 5, 6), 3)]
    scorer = Scorer(tiny_model())
    assert [batch.prefix for batch in scorer.plan([pair])] == [0]
    assert [batch.prefix for batch in scorer.plan([pair] * 40)] == [2]


def test_batches_are_bounded_and_go_from_long_to_short():
    groups = make_groups(200, seed=1)
    scorer = Scorer(tiny_model(), batch_tokens=64)
    plan = scorer.plan(groups)
    assert sorted(index for batch in plan for index in batch.groups) == list(range(200))
    for batch in plan:
        rows = [row for index in batch.groups for row in groups[index]]
        width = max(len(row.tokens) for row in rows) - 1 - batch.prefix
        assert len(batch.groups) == 1 or max(len(rows) * width, batch.prefix * len(batch.groups)) <= 64
    longest = [max(len(row.tokens) for row in groups[batch.groups[0]]) for batch in plan]
    assert longest == sorted(longest, reverse=True)


def test_logits_exist_only_in_pieces(monkeypatch):
    monkeypatch.setattr(scoring, "LOGITS", 7 * VOCAB)
    model = tiny_model()
    seen = []
    make = model.logits
    monkeypatch.setattr(model, "logits", lambda x: seen.append(len(x)) or make(x))
    groups = make_groups(20)
    found = collect(Scorer(model), groups)
    assert max(seen) == 7
    assert len(found) == 20


def test_weights_that_give_no_numbers_are_refused():
    model = tiny_model()
    with torch.no_grad():
        model.final_norm.gain.fill_(float("inf"))
    with pytest.raises(LegibleError, match="no finite probabilities"):
        collect(Scorer(model), [[Row((1, 2, 3), 2)]])


def test_a_row_longer_than_the_context_is_a_mistake_of_the_caller():
    scorer = Scorer(tiny_model(tiny_config(context=8)))
    assert scorer.plan([[Row(tuple(range(9)), 1)]])
    with pytest.raises(ValueError, match="does not fit"):
        scorer.plan([[Row(tuple(range(10)), 1)]])
