"""The engine: requests to readings, what it keeps, and what it says of each contributor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reading_samples import HASH, make_engine, make_model, request, sample_config

from legible_core.errors import LegibleError, NotExact, NotFound
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.pipeline import Engine, _leading
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Unit


@pytest.fixture
def forwards(monkeypatch) -> list[int]:
    """Lengths of the prompts that were run."""
    ran: list[int] = []
    plain = Transformer.trace

    def counted(self, ids, edits=()):
        ran.append(len(ids))
        return plain(self, ids, edits)

    monkeypatch.setattr(Transformer, "trace", counted)
    return ran


# ---- predictions and defaults ----------------------------------------------------------------------------------------


def test_defaults_are_the_last_position_and_the_most_probable_token(engine):
    reading = engine.read(request(engine, 12))
    logits = engine.model(torch.tensor([request(engine, 12).ids]))[0, -1]
    probabilities = torch.softmax(logits.double(), -1)
    assert reading.position == 11
    assert reading.target.id == int(logits.argmax())
    assert reading.target.rank == 1
    assert reading.relative_to == "nothing"
    assert [p.id for p in reading.predictions] == logits.topk(10).indices.tolist()
    for token in reading.predictions:
        assert token.probability == pytest.approx(float(probabilities[token.id]), abs=1e-6)
        assert token.logit == pytest.approx(float(logits[token.id]), abs=1e-5)


def test_equal_logits_have_one_order():
    """On an exact tie the default target is the first prediction, whatever order a sort would leave them in."""
    logits = torch.zeros(61)
    logits[[40, 7, 52]] = 3.0
    assert _leading(logits, 1) == [7]
    assert _leading(logits, 5) == [7, 40, 52, 0, 1]
    engine = make_engine(sample_config("boolean", (4, 2, 0)))
    with torch.no_grad():
        engine.model.unembedding_matrix.zero_()
    reading = engine.read(request(engine, 12))
    assert reading.target.id == 0
    assert [token.id for token in reading.predictions] == list(range(10))


def test_any_token_may_be_the_target_and_has_its_rank(engine):
    logits = engine.model(torch.tensor([request(engine, 12).ids]))[0, 5]
    order = logits.argsort(descending=True).tolist()
    for rank in (1, 2, 30, 61):
        reading = engine.read(request(engine, 12, position=5, target=order[rank - 1]), top=1)
        assert reading.target.rank == rank


def test_a_default_target_that_is_the_contrast_is_refused(engine):
    likeliest = engine.read(request(engine)).target.id
    with pytest.raises(LegibleError, match="target itself"):
        engine.read(request(engine, contrast=likeliest))


def test_a_prompt_of_one_token_and_of_the_whole_context(engine):
    for length in (1, engine.config.context):
        assert engine.read(request(engine, length)).position == length - 1


def test_other_checkpoints_and_types_are_refused(engine):
    with pytest.raises(LegibleError, match="this engine holds"):
        engine.read(ReadingRequest("f" * 64, (1, 2)))
    with pytest.raises(LegibleError, match="bfloat16"):
        engine.read(ReadingRequest(HASH, (1, 2), dtype="bfloat16"))


def test_logits_that_are_no_numbers_are_an_error():
    engine = make_engine(sample_config())
    with torch.no_grad():
        engine.model.final_norm.gain[3] = math.nan
    with pytest.raises(NotExact) as failure:
        engine.read(request(engine))
    assert failure.value.code == "not_finite"


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_another_target_or_position_costs_no_forward(engine, forwards):
    fresh = Engine(engine.model, engine.checkpoint)
    for fields in ({}, {"target": 3}, {"position": 2}, {"position": 2, "target": 3, "relative_to": "mean"}):
        fresh.read(request(fresh, **fields))
        fresh.component_detail(request(fresh, **fields), "L1.u3")
    assert forwards == [12]
    fresh.read(request(fresh, edits=(Edit(Unit(0, 0), "set", 1.0),)))
    fresh.read(request(fresh, 11))
    assert forwards == [12, 12, 11]


def test_the_cache_of_traces_is_bounded_in_bytes(engine, forwards):
    size = engine.model.trace(torch.tensor(request(engine, 12).ids)).n_bytes
    forwards.clear()
    small = Engine(engine.model, engine.checkpoint, cache_bytes=2 * size)
    for seed in (1, 2, 3, 3, 2, 1):
        small.read(request(small, 12, seed))
    assert len(forwards) == 4
    assert small.traces.used <= 2 * size
    none = Engine(engine.model, engine.checkpoint, cache_bytes=0)
    none.read(request(none))
    assert len(none.traces) == 0


def test_a_reading_from_the_cache_is_the_same_reading(engine):
    fresh = Engine(engine.model, engine.checkpoint)
    first = fresh.read(request(fresh, position=3, target=5))
    fresh.read(request(fresh, position=8))
    again = fresh.read(request(fresh, position=3, target=5))
    assert again.summary == first.summary
    assert again.pack() == first.pack()


# ---- contributors ----------------------------------------------------------------------------------------------------


def test_contributors_carry_their_terms_in_order(engine):
    reading = engine.read(request(engine), top=40)
    sizes = [abs(row.value) for row in reading.top]
    assert sizes == sorted(sizes, reverse=True)
    assert len(reading.top) == 40
    for row in reading.top:
        layer, index = (int(part[1:]) for part in row.id.split("."))
        terms = reading.heads if row.kind == "head" else reading.units
        assert terms[layer, index] == pytest.approx(row.value, abs=1e-6)


@pytest.mark.parametrize("value", ["boolean", "membership"])
def test_an_activation_is_its_operation_over_its_operands(value):
    engine = make_engine(sample_config(value, (4, 4), biased=True))
    reading = engine.read(request(engine, position=9), top=10_000)
    kinds = set()
    for row in reading.top:
        kinds.add(row.kind)
        operands = [operand.value for operand in row.operands]
        match row.kind:
            case "intersection":
                assert row.activation == pytest.approx(operands[0] * operands[1], abs=1e-6)
            case "difference":
                assert row.activation == pytest.approx(operands[0] * (1 - operands[1]), abs=1e-6)
            case "existential":
                assert row.activation >= operands[0] - 1e-6
            case "gelu":
                assert operands == []
            case "head":
                assert sum(abs(operand.term) for operand in row.operands) > 0
        if row.kind in ("existential", "proportion"):
            layer, unit = (int(part[1:]) for part in row.id.split("."))
            start = engine.config.feed_forward.quantifiers.start
            assert row.decay == pytest.approx(float(engine.model.decay(layer)[unit - start]))
            assert row.half_life == pytest.approx(math.log(0.5) / math.log(row.decay))
            assert row.operands[0].id == f"{row.id}.m"
        else:
            assert row.decay is row.half_life is None
    assert kinds == {"head", "intersection", "difference", "existential", "proportion", "gelu"}


def test_pairs_share_their_operands(engine):
    rows = {row.id: row for row in engine.read(request(engine), top=10_000).top}
    pairs = engine.config.feed_forward.n_pairs
    assert rows["L1.u2"].operands == rows[f"L1.u{2 + pairs}"].operands
    assert [operand.id for operand in rows["L1.u2"].operands] == ["L1.p2.A", "L1.p2.B"]


def test_promotes_and_rank_are_the_write_column_through_gain_and_unembedding(engine):
    model = engine.model
    for row in engine.read(request(engine, target=17), top=10_000).top:
        if row.kind == "head":
            continue
        layer, unit = (int(part[1:]) for part in row.id.split("."))
        column = model.layers[layer].feed_forward.down[:, unit].double()
        weights = model.unembedding_matrix.double() @ ((column - column.mean()) * model.final_norm.gain.double())
        weights = weights - weights.mean()
        order = weights.argsort(descending=True).tolist()
        assert [token.id for token in row.promotes] == order[:10]
        assert row.promotes[0].weight == pytest.approx(float(weights.max()), abs=1e-5)
        assert row.target_rank == order.index(17) + 1


def test_without_promotes_the_vocabulary_is_left_alone(engine):
    rows = engine.read(request(engine), promoted=0).top
    assert all(row.promotes == () and row.target_rank is None for row in rows)


# ---- close-ups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["linear", "membership", "boolean"])
def test_a_heads_term_is_divided_over_the_tokens_it_looks_at(value):
    special = (0, 0) if value == "linear" else (4, 2)
    engine = make_engine(sample_config(value, special, biased=True))
    wish = request(engine, 12, position=8, target=3)
    reading = engine.read(wish)
    for layer in range(2):
        for head in range(4):
            detail = engine.head_detail(wish, layer, head)
            assert len(detail["pattern"]) == len(detail["terms"]) == 9
            assert sum(detail["pattern"]) == pytest.approx(1.0, abs=1e-5)
            assert sum(detail["terms"]) == pytest.approx(detail["value"], abs=1e-5)
            assert sum(channel["value"] for channel in detail["channels"]) == pytest.approx(detail["value"], abs=1e-9)
            assert detail["value"] == pytest.approx(float(reading.heads[layer, head]), abs=1e-6)
            assert detail["bounded"] == (head < special[layer])


def test_what_a_boolean_head_gathered_follows_from_its_operands(engine):
    detail = engine.head_detail(request(engine, position=8), 0, 1)
    shown = [channel for channel in detail["channels"] if "gathered" in channel]
    assert len(shown) == 8
    for channel in shown:
        a, b = (np.array(operand["values"]) for operand in channel["gathered"])
        expected = a * b if channel["operation"] == "A∩B" else a * (1 - b)
        np.testing.assert_allclose(channel["values"], expected, atol=1e-6)
        assert channel["activation"] == pytest.approx(float(np.dot(detail["pattern"], expected)), abs=1e-5)
        index = int(channel["id"].rsplit(".c", 1)[1])
        assert [o["id"] for o in channel["gathered"]] == [f"L0.h1.p{index % 4}.{side}" for side in "AB"]


def test_a_unit_close_up_runs_over_the_prompt(engine):
    wish = request(engine, 12, position=8, target=3)
    rows = {row.id: row for row in engine.read(wish, top=10_000).top}
    for id in ("L1.u0", "L1.u12", "L0.u20", "L2.u23", "L0.u40"):
        detail = engine.component_detail(wish, id)
        row = rows[id]
        assert detail["value"] == row.value
        assert len(detail["activations"]) == 12
        assert detail["activation"] == detail["activations"][8] == pytest.approx(row.activation)
        assert [operand["value"] for operand in detail["operands"]] == pytest.approx([o.value for o in row.operands])
        assert all(len(operand["values"]) == 12 for operand in detail["operands"])
        assert detail["target_rank"] == row.target_rank
        assert len(detail["promotes"]) == 20


def test_a_quantifiers_close_up_follows_its_recurrence(engine):
    unit = engine.config.feed_forward.existentials.start
    detail = engine.component_detail(request(engine), f"L1.u{unit}")
    seen = 0.0
    for m, activation in zip(detail["operands"][0]["values"], detail["activations"], strict=True):
        seen = 1 - (1 - m) * (1 - detail["decay"] * seen)
        assert activation == pytest.approx(seen, abs=1e-5)


@pytest.mark.parametrize("id", ["L3.u0", "L0.u48", "L0.h4", "L0.h0.c8", "L9.h0.c0"])
def test_parts_that_do_not_exist(engine, id):
    with pytest.raises(NotFound, match=r"has (layer|unit|head|channel)s 0 to"):
        engine.component_detail(request(engine), id)


@pytest.mark.parametrize("id", ["L0.p0.A", "embed.token", "nonsense"])
def test_parts_without_a_term(engine, id):
    with pytest.raises(LegibleError):
        engine.component_detail(request(engine), id)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_names_says_so(engine):
    reading = engine.read(request(engine))
    assert reading.shares.named_net is reading.shares.named_mass is None
    assert all(row.label is None and row.formula is None for row in reading.top)


def test_text_needs_a_tokenizer(engine):
    with pytest.raises(LegibleError, match="no tokenizer"):
        engine.request("It was")


def test_bf16_operands_match_their_activation():
    engine = make_engine(sample_config("boolean", (4, 4)), dtype="bfloat16")
    for row in engine.read(request(engine), top=10_000).top:
        if row.kind == "intersection":
            assert row.activation == pytest.approx(row.operands[0].value * row.operands[1].value, rel=0.02, abs=0.01)


def test_two_engines_of_one_model_agree():
    config = sample_config("membership", (4, 4))
    readings = []
    for seed in (0, 0, 1):
        engine = Engine(make_model(config, seed), CheckpointRef(hash=HASH, slug="x"))
        readings.append(engine.read(request(engine)).pack())
    assert readings[0] == readings[1] != readings[2]
