"""Accounting over a text: drawing, counts, depth, carriage and read rows, each against a plain reckoning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from legible_core.accounting.carriage import Maps, carry, fit, score, substitute
from legible_core.accounting.corpus import Counter, count_predictions
from legible_core.accounting.counts import account, flat
from legible_core.accounting.depth import follow
from legible_core.accounting.drawing import Drawing, Text
from legible_core.accounting.drives import Agreements, ranks, read_rows
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Quartiles
from legible_core.accounting.rows import rows_of
from legible_core.attribution import Attributor, Question
from legible_core.editing.native import entering
from legible_core.errors import LegibleError
from tests.tiny_models import VOCAB, random_ids, tiny_config, tiny_model

TEXT = Text(random_ids(32 * 40, seed=3).numpy(), "random")


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(tiny_model(tiny_config(biased=True)))


def test_drawing_keeps_to_the_floor_and_says_its_population(reader: Reader) -> None:
    drawing = Drawing(reader, TEXT, floor=0.3, predictions=30, per_window=2, others=True, seed=1)
    total = 0
    for drawn in drawing:
        probability = drawn.predicted.probability.numpy()
        assert (probability[drawn.places] >= 0.3).all()
        assert (probability[drawn.others] < 0.3).all()
        assert (np.concatenate([drawn.places, drawn.others]) % drawing.length >= 16).all()
        assert np.bincount(drawn.places // drawing.length).max(initial=0) <= 2
        total += len(drawn.places)
    found = drawing.population(not_positive=1)
    assert total == 30
    assert (found.predictions, found.not_positive, found.floor, found.corpus) == (29, 1, 0.3, "random")
    assert found.perplexity == pytest.approx(np.exp(found.loss))
    again = Drawing(reader, TEXT, floor=0.3, predictions=30, per_window=2, others=True, seed=1)
    assert [d.places.tolist() for d in again] == [d.places.tolist() for d in again]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (TEXT, {"floor": 1.0}, "floor"),
        (TEXT, {"predictions": 0}, "sample"),
        (Text(np.arange(40) % 7, "short"), {}, "tokens"),
        (Text(np.full(2000, VOCAB), "foreign"), {}, "holds token 61"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(reader: Reader, text: Text, options: dict, said: str) -> None:
    with pytest.raises(LegibleError, match=said):
        Drawing(reader, text, **options)


def test_a_model_that_is_nowhere_sure_is_said_so(reader: Reader) -> None:
    with pytest.raises(LegibleError, match="nowhere"):
        list(Drawing(Reader(tiny_model(tiny_config(), seed=1)), TEXT, floor=0.999999))


def test_counts_are_those_of_each_prediction_by_itself(reader: Reader) -> None:
    drawing = Drawing(reader, TEXT, floor=0.2, predictions=12, others=True)
    counter, attributor, plain, ratios = Counter(reader), Attributor(reader.model), [], []
    for drawn in drawing:
        counter.take(drawn)
        for place in drawn.places.tolist():
            start = place // drawing.length * drawing.length
            trace = reader.model.trace(drawn.passed.ids[start : start + drawing.length])
            logits = reader.model.logits_at(trace, place - start)
            one = attributor.attribute(trace, place - start, Question(int(logits.argmax()), "mean"), logits)
            found = account(flat(one.channels, one.units))
            if found.net <= 0:
                continue
            plain.append((found, account(flat(one.heads, one.units))))
            second = int(logits.topk(2).indices[1])
            rival = attributor.attribute(trace, place - start, Question(second, "mean"), logits)
            ratios.append(account(flat(rival.channels, rival.units)).net / found.net)
    found = counter.result(drawing.population(counter.not_positive))
    assert found.population.predictions == len(plain) > 3
    assert counter.not_positive == 12 - len(plain)
    for name in ("net", "positive", "absolute"):
        assert found.channels.counts[name]["n90"].median == np.median([one.n(90, name) for one, _ in plain])
        assert found.heads.counts[name]["n99"].median == np.median([one.n(99, name) for _, one in plain])
    opposing = np.median([one.opposing_over_net for one, _ in plain])
    assert found.opposing_over_net.median == pytest.approx(opposing, rel=1e-4)
    assert found.push["runner_up"].net.median == pytest.approx(np.median(ratios), rel=1e-3)
    assert found.push["random"].net.n == len(plain)
    assert sum(row.attention + row.feed_forward for row in found.layers) == pytest.approx(1.0, abs=1e-6)
    assert sum(bin.n90.n for bin in found.confidence) > len(plain)
    assert len(found.points) == sum(bin.n90.n for bin in found.confidence)
    for tenth in found.confidence:
        here = [point for point in found.points if tenth.low <= point.probability < tenth.high]
        for name, figure in (("channels", tenth.n90), ("heads", tenth.heads), ("net", tenth.net)):
            assert figure == Quartiles.of(float(getattr(point, name)) for point in here)
    over = [point for point in found.points if point.probability >= 0.2]
    assert sorted(point.channels for point in over) == sorted(one.n() for one, _ in plain)
    assert sorted(point.heads for point in over) == sorted(whole.n() for _, whole in plain)


def test_a_collapsed_model_reads_as_one_component_beside_its_perplexity() -> None:
    model = tiny_model(tiny_config(biased=False))
    with torch.no_grad():
        for layer in model.layers:  # nothing writes but one unit, which pushes one token everywhere
            layer.attention.output.zero_()
            layer.feed_forward.down.zero_()
        model.layers[2].feed_forward.down[:, 40] = 1e3 * (
            model.unembedding_matrix[7] - model.unembedding_matrix.mean(0)
        )
    reader = Reader(model)
    drawing = Drawing(reader, TEXT, floor=0.5, predictions=20)
    found = count_predictions(reader, drawing)
    n90 = found.channels.counts["net"]["n90"]
    assert (n90.q1, n90.median, n90.q3) == (1.0, 1.0, 1.0)
    assert found.population.perplexity > VOCAB


def test_ranks_member_by_member_are_those_of_every_logit(reader: Reader) -> None:
    """Each member and each running sum, read through the whole vocabulary by itself."""
    predictions = 5
    alone, leads, by_depth = {layer: [] for layer in range(3)}, [], []
    for drawn in Drawing(reader, TEXT, floor=0.2, predictions=predictions):
        for place in drawn.places.tolist():
            token = int(drawn.predicted.token[place])
            terms = reader.terms(drawn.passed, torch.tensor([place]), torch.tensor([token]))[0].numpy()
            members = account(terms).members
            if not members.size:
                continue
            every = reader.directions(torch.arange(VOCAB)).double()
            writes = reader.writes(drawn.passed, place, members).double()

            def rank(vector: torch.Tensor, token: int = token, every: torch.Tensor = every) -> int:
                scores = every @ vector
                return 1 + int((scores > scores[token] + 1e-9).sum())

            for member, write in zip(members.tolist(), writes, strict=True):
                alone[int(reader.layout.layer(np.array([member]))[0])].append((rank(write), terms[member]))
            leads.append(next((k for k in range(1, len(writes) + 1) if rank(writes[:k].sum(0)) == 1), None))
            logits = [reader.model.logits(stream[place]) for stream in drawn.passed.streams]
            by_depth.append([1 + int((each > each[token]).sum()) for each in logits])
    found = follow(reader, Drawing(reader, TEXT, floor=0.2, predictions=predictions))
    for row in found.layers:
        ranks_here = [rank for rank, _ in alone[row.layer]]
        assert row.members == len(ranks_here)
        assert row.rank == Quartiles.of(ranks_here)
    assert found.sum_leads == Quartiles.of(leads)
    assert found.sum_never == leads.count(None)
    assert found.ranks == [Quartiles.of(ranks) for ranks in zip(*by_depth, strict=True)]
    assert found.leading == pytest.approx([np.mean([r == 1 for r in ranks]) for ranks in zip(*by_depth, strict=True)])
    many = reader.promoted_rank(torch.eye(24), torch.arange(VOCAB), chunk=7)
    assert (many.sort(1).values == torch.arange(1, VOCAB + 1)).all(), "each token has a rank of its own"


def test_the_running_sum_ends_where_the_set_is(reader: Reader) -> None:
    found = follow(reader, Drawing(reader, TEXT, floor=0.2, predictions=8))
    assert found.running[0][1] == found.strongest
    for figure in (found.members, found.together, found.predicted[0], found.current[-1]):
        assert -1.0 <= figure.q1 <= figure.median <= figure.q3 <= 1.0
    assert found.together.median > found.members.median
    assert len(found.predicted) == len(found.current) == 4
    assert 0 <= found.first.q1 <= found.stays.q3 <= 3


def test_the_maps_are_the_least_squares_and_the_nearest_rotation(reader: Reader) -> None:
    maps = fit(reader, TEXT.ids, 32, 640, ridge=1e-9)
    # From the 16th position of each window on, as predictions are drawn.
    streams = [x.reshape(40, 32, 24)[:, 16:].reshape(-1, 24) for x in reader.run(TEXT.ids.reshape(40, 32)).streams]
    assert maps.fitted == 640
    for layer in range(3):
        x, after = streams[layer].double().numpy(), streams[layer + 1].double().numpy()
        best = np.linalg.lstsq(x, after - x, rcond=None)[0]
        np.testing.assert_allclose(maps.linear[layer].numpy(), best, atol=1e-3)
        q = maps.rotation[layer].double().numpy()
        np.testing.assert_allclose(q.T @ q, np.eye(24), atol=1e-5)
        generator = np.random.default_rng(layer)
        for _ in range(5):
            turn = np.linalg.qr(np.eye(24) + 0.05 * generator.normal(size=(24, 24)))[0]
            turn *= np.sign(np.diag(turn))
            assert np.linalg.norm(x @ q - after) < np.linalg.norm(x @ (q @ turn) - after)


def test_scores_position_by_position(reader: Reader) -> None:
    maps = fit(reader, TEXT.ids[:640], 32, 640)
    rows, scored = score(reader, maps, TEXT.ids[640:], 32, 64)
    passed = reader.run(TEXT.ids[640:].reshape(-1, 32)[[0, 6, 12, 19]])
    streams = [x.reshape(4, 32, 24)[:, 16:].reshape(-1, 24) for x in passed.streams]
    assert scored == 64
    for layer, row in enumerate(rows):
        x, update = streams[layer], streams[layer + 1] - streams[layer]
        said = x @ maps.linear[layer]
        cosines = torch.cosine_similarity(update, said)
        assert row["share"] == pytest.approx(float(cosines.abs().mean()), abs=1e-5)
        error, around = (update - said).square().sum(), (update - update.mean(0)).square().sum()
        assert row["r2"] == pytest.approx(float(1 - error / around), abs=1e-4)


def test_a_map_that_is_the_layer_changes_no_token_and_the_last_layers_is_read_directly(reader: Reader) -> None:
    maps = fit(reader, TEXT.ids[:640], 32, 640)
    drawing = Drawing(reader, TEXT, floor=0.2, predictions=6)
    rates, tested, left_out = substitute(reader, maps, drawing)
    assert tested + left_out == 6
    expected, members = [], []
    for drawn in Drawing(reader, TEXT, floor=0.2, predictions=6):
        for place in drawn.places.tolist():
            where = torch.tensor([place])
            terms = reader.terms(drawn.passed, where, drawn.predicted.token[where])[0].numpy()
            found = account(terms).members
            if not found.size:
                continue
            x = drawn.passed.streams[2][place]
            inside = found[reader.layout.layer(found) == 2]
            for into, stream in (
                (expected, x + x @ maps.linear[2]),
                (members, x + x @ maps.linear[2] + reader.writes(drawn.passed, place, inside).sum(0)),
            ):
                into.append(int(reader.model.logits(stream).argmax()) == int(drawn.predicted.token[place]))
    assert rates[2] == (pytest.approx(np.mean(expected)), pytest.approx(np.mean(members)))
    nothing = Maps([torch.zeros(24, 24)] * 3, [torch.eye(24)] * 3, 1)
    assert substitute(reader, nothing, Drawing(reader, TEXT, floor=0.2, predictions=6))[0] != rates


def test_carriage_is_scored_on_text_it_was_not_fitted_on(reader: Reader) -> None:
    found = carry(reader, TEXT, floor=0.2, predictions=4, positions=320)
    assert found.fitted == 320
    assert found.scored == 160
    assert found.substituted + found.population.not_positive == 4
    for row in found.layers:
        assert row.shear == pytest.approx(row.share - row.rotation)
        assert 0 <= row.rotation <= 1


def test_substituted_states_are_those_of_whole_texts(reader: Reader) -> None:
    contexts, candidates = TEXT.ids[:20].reshape(2, 10), np.array([5, 9, 60])
    states = rows_of(reader.model).substituted(contexts, candidates)
    for c in range(2):
        for v, token in enumerate(candidates):
            whole = torch.tensor([[*contexts[c], token]])
            with torch.no_grad(), entering(reader.model) as plain:
                reader.model.residual(whole)
            for layer in range(3):
                torch.testing.assert_close(states[layer][c, v], plain[layer][0, -1], atol=1e-4, rtol=1e-4)


def test_agreement_is_chance_corrected() -> None:
    ours = torch.arange(32)[:, None]
    agreements = Agreements(32)
    assert agreements.ks == [8, 16]
    agreements.add(ours, ours)
    agreements.add(ours, ours.flip(0))
    first, second = agreements.result()
    assert (first.overlap, first.chance) == (0.5, 0.25)
    assert first.corrected == pytest.approx(1 / 3)
    assert second.corrected == pytest.approx(0.0)
    assert ranks(torch.tensor([3.0, 5.0, 3.0])).tolist() == [1, 0, 2]


def test_read_rows_against_a_plain_reckoning_of_one_row() -> None:
    model = tiny_model(tiny_config(biased=True))
    reader = Reader(model)
    found = read_rows(reader, TEXT, candidates=20, contexts=3, table_tokens=640)
    assert [kind.kind for kind in found.kinds] == ["plain", "A", "B", "m"]
    assert [kind.rows for kind in found.kinds] == [3 * 24, 3 * 9, 3 * 9, 3 * 6]
    assert found.candidates == 20
    groups = {group.kind: group for group in rows_of(model).groups(1)}
    assert torch.equal(groups["A"].rows, model.layers[1].feed_forward.pair_a)
    same = {row.activation: row.agreement[0].overlap for row in found.ordering}
    assert same["identity"] == 1.0
    assert same["gelu"] < 1.0
    for kind in found.kinds:
        for averaging in ("mean", "rank"):
            for row in (*kind.native[averaging], *kind.vocabulary[averaging]):
                assert row.corrected == pytest.approx((row.overlap - row.chance) / (1 - row.chance))
        assert len(kind.layers) == 3
    assert 0 < found.decreasing < 1
