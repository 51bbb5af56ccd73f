"""Counts of one prediction against their definitions, component by component."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from legible_core.accounting.counts import BAR, DENOMINATORS, PERCENTS, Layout, account, flat, shares
from legible_core.accounting.one import curve, document
from legible_core.accounting.passes import Reader
from legible_core.attribution import Attributor, Question
from legible_core.config import ModelConfig
from legible_core.errors import NotExact
from legible_core.model import Transformer
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Channel, Head, Unit
from tests.tiny_models import designs, random_ids, tiny_config, tiny_model

HASH = "0" * 64


def plainly(terms: np.ndarray, percent: int, denominator: str) -> int | None:
    """One component after another until the bar is reached."""
    ranked = sorted(np.abs(terms) if denominator == "absolute" else terms, reverse=True)
    total = {"net": terms.sum(), "positive": terms[terms > 0].sum(), "absolute": np.abs(terms).sum()}[denominator]
    if total <= 0:
        return None
    so_far = 0.0
    for count, term in enumerate(ranked, 1):
        so_far += term
        if so_far >= percent / 100 * total:
            return count
    raise AssertionError("the bar was never reached")


@pytest.mark.parametrize("seed", range(6))
def test_every_count_is_the_first_that_reaches_its_bar(seed: int) -> None:
    terms = np.random.default_rng(seed).standard_t(3, 400) + 0.1 * (seed - 1)
    found = account(terms)
    for denominator in DENOMINATORS:
        for percent in PERCENTS:
            assert found.n(percent, denominator) == plainly(terms, percent, denominator)
    assert found.net == pytest.approx(terms.sum())
    assert found.positive - found.opposing == pytest.approx(max(found.net, found.positive - found.opposing))
    assert found.opposing == pytest.approx(-terms[terms < 0].sum())
    if found.net > 0:
        assert found.opposing_over_net == pytest.approx(found.opposing / found.net)
        assert terms[found.members].sum() >= 0.9 * found.net > terms[found.members[:-1]].sum()
        assert list(terms[found.members]) == sorted(terms[found.members], reverse=True)


def test_a_net_that_is_not_positive_has_no_count_and_no_set() -> None:
    found = account(np.array([1.0, -3.0, 0.5]))
    assert found.n(BAR, "net") is None
    assert found.opposing_over_net is None
    assert not found.members.size
    assert found.n(BAR, "positive") == 2
    assert found.n(80, "absolute") == 2
    assert found.to_json()["counts"]["net"] == {"n80": None, "n90": None, "n99": None}
    assert account(np.zeros(3)).n(BAR, "absolute") is None


def test_a_collapsed_model_reads_as_one_component() -> None:
    terms = np.zeros(1000)
    terms[417] = 5.0
    found = account(terms)
    assert [found.n(90, name) for name in DENOMINATORS] == [1, 1, 1]
    assert found.members.tolist() == [417]


def test_equal_terms_are_taken_in_order_and_a_nan_is_refused() -> None:
    assert account(np.array([1.0, 2.0, 1.0, 1.0, 1.0])).members.tolist() == [1, 0, 2, 3, 4]
    with pytest.raises(ValueError, match="finite"):
        account(np.array([1.0, np.nan]))


def test_places_and_components_are_inverse_to_each_other() -> None:
    config = tiny_config()
    layout, by_head = Layout.of(config), Layout.of(config, by_head=True)
    assert layout.size == 3 * (24 + 48)
    assert by_head.size == 3 * (4 + 48)
    for each in (layout, by_head):
        for place in range(each.size):
            component = each.component(place)
            assert each.place(component) == place
            assert int(each.layer(np.array([place]))[0]) == component.layer
    assert layout.component(24 + 7) == Channel(1, 1, 1)
    assert layout.component(72) == Unit(0, 0)
    assert by_head.component(5) == Head(1, 1)


def test_shares_of_the_set_add_up_to_one() -> None:
    layout = Layout(2, 2, 2, 3)
    terms = np.array([1.0, 0, 0, 0, 2.0, 0, 0, 0, 0, 0, 0, 7.0, 0, 0])
    found = shares(terms, account(terms).members, layout)
    assert found["attention"] == pytest.approx(2 / 9)
    assert found["feed_forward"] == pytest.approx(7 / 9)
    assert found["attention_members"] == pytest.approx(0.5)
    assert sum(row["attention"] + row["feed_forward"] for row in found["layers"]) == pytest.approx(1.0)
    assert found["layers"][1] == {"layer": 1, "attention": pytest.approx(2 / 9), "feed_forward": pytest.approx(7 / 9)}


def test_the_curve_goes_up_to_the_peak_and_comes_down_to_the_net() -> None:
    terms = np.random.default_rng(0).normal(0.02, 1.0, 3000)
    points = curve(terms)
    counts, sums = zip(*points, strict=True)
    assert points[0] == (0, 0.0)
    assert counts[-1] == 3000
    assert sums[-1] == pytest.approx(terms.sum())
    peak = (terms > 0).sum()
    assert max(sums) == pytest.approx(terms[terms > 0].sum())
    assert counts[int(np.argmax(sums))] == peak
    assert len(points) <= 160
    assert list(counts) == sorted(set(counts))


@pytest.mark.parametrize("config", designs(), ids=str)
def test_terms_of_many_positions_are_those_of_one_at_a_time(config: ModelConfig) -> None:
    model = tiny_model(config)
    reader, attributor = Reader(model), Attributor(model)
    ids = random_ids(12, batch=3)
    passed = reader.run(ids)
    places, targets = torch.tensor([3, 11, 12, 30]), torch.tensor([5, 7, 5, 60])
    found = reader.terms(passed, places, targets)
    for place, target, row in zip(places.tolist(), targets.tolist(), found, strict=True):
        trace = model.trace(ids[place // 12])
        position = place % 12
        one = attributor.attribute(trace, position, Question(target, "mean"), model.logits_at(trace, position))
        one.check()
        np.testing.assert_allclose(row.numpy(), flat(one.channels, one.units), rtol=1e-4, atol=1e-5)
        assert account(row.numpy()).n() == account(flat(one.channels, one.units)).n()


def test_a_random_token_carries_nothing_on_average() -> None:
    model = tiny_model()
    reader = Reader(model)
    passed = reader.run(random_ids(8, batch=1))
    every = torch.arange(61)
    terms = reader.terms(passed, torch.full_like(every, 5), every)
    assert terms.mean(0).abs().max() < 1e-5 * terms.abs().max()


def test_what_components_write_adds_up_to_a_layers_update() -> None:
    model = tiny_model(tiny_config(biased=False))
    reader = Reader(model)
    passed = reader.run(random_ids(9, batch=2))
    layout = reader.layout
    for layer in range(3):
        places = np.flatnonzero(layout.layer(np.arange(layout.size)) == layer)
        written = reader.writes(passed, 13, places).sum(0)
        update = passed.streams[layer + 1][13] - passed.streams[layer][13]
        torch.testing.assert_close(written, update, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_the_document_of_one_prediction(biased: bool) -> None:
    model = tiny_model(tiny_config(biased=biased))
    engine = Engine(model, CheckpointRef(hash=HASH, slug="tiny"))
    request = ReadingRequest(HASH, tuple(random_ids(10).tolist()), position=8, target=4, contrast=9)
    found = document(engine, request, members=5)
    terms = engine.solve(ReadingRequest(HASH, request.ids, position=8, target=4, relative_to="mean")).terms
    values = flat(terms.channels, terms.units)
    one = account(values)
    assert found["channels"]["net"] == pytest.approx(one.net)
    assert found["channels"]["counts"]["positive"]["n90"] == plainly(values, 90, "positive")
    assert found["heads"]["components"] == 3 * (4 + 48)
    assert found["heads"]["counts"]["absolute"]["n99"] == plainly(flat(terms.heads, terms.units), 99, "absolute")
    floor = sum(row["value"] for row in found["floor"])
    assert found["channels"]["net"] + floor == pytest.approx(found["value"], abs=1e-4)
    assert found["curve"][-1][1] == pytest.approx(one.net)
    assert all(row["value"] < 0 for row in found["opposing"])
    if one.net > 0:
        assert len(found["members"]) + found["left_out"] == one.n()
        assert found["members"][0]["value"] == pytest.approx(values.max())
        assert found["members"][-1]["running"] == pytest.approx(sum(row["value"] for row in found["members"]))
    by_head, side = flat(terms.heads, terms.units), found["heads"]
    whole, layout = account(by_head), Layout.of(model.config, by_head=True)
    assert [row["id"] for row in side["members"]] == [str(layout.component(int(i))) for i in whole.members[:5]]
    assert side["left_out"] == max(0, len(whole.members) - 5)
    assert side["against"][0]["value"] == pytest.approx(by_head.min())
    assert side["curve"][-1][1] == pytest.approx(whole.net)


def test_a_model_without_finite_logits_is_refused() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.token_embedding[3] = torch.inf
    reader = Reader(model)
    ids = random_ids(6, batch=1)
    ids[0, 2] = 3
    with pytest.raises(NotExact, match="finite"):
        reader.predict(reader.run(ids), ids.numpy())


def test_predictions_are_the_models_own() -> None:
    model: Transformer = tiny_model(tiny_config(biased=True, tied=False))
    reader = Reader(model)
    ids = random_ids(7, batch=2)
    following = np.concatenate([ids.numpy()[:, 1:], [[-100], [4]]], axis=1)
    found = reader.predict(reader.run(ids), following, chunk=5)
    logs = model(ids).log_softmax(-1).flatten(0, 1)
    assert found.token.tolist() == logs.argmax(-1).tolist()
    torch.testing.assert_close(found.probability, logs.max(-1).values.exp())
    assert np.isnan(found.loss).tolist() == [False] * 6 + [True] + [False] * 7
    assert found.loss[13] == pytest.approx(-float(logs[13, 4].detach()), abs=1e-5)
