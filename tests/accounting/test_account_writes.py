"""Naming by writes: the batched sets against one prediction at a time, resuming, coherence, and the stored files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from legible_core.accounting import records, written
from legible_core.accounting.counts import account
from legible_core.accounting.drawing import Text
from legible_core.accounting.measure import Plan, Stopped, measure
from legible_core.accounting.passes import Reader
from legible_core.accounting.records import Accounting, Quartiles
from legible_core.accounting.summary import space
from legible_core.accounting.writes import Naming, members_of
from legible_core.accounting.written import Written
from legible_core.errors import Conflict, Corrupt, LegibleError, NotExact
from legible_core.units import Channel, Unit
from tests.tiny_models import VOCAB, random_ids, tiny_config, tiny_model

TEXT = Text(random_ids(32 * 20, seed=5).numpy(), "random")
HASH = "a" * 64


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(tiny_model(tiny_config(biased=True)))


@pytest.mark.parametrize("top", [4, 256])
def test_the_sets_of_many_are_the_sets_of_each(top: int) -> None:
    terms = torch.from_numpy(np.random.default_rng(0).standard_t(3, (40, 300)) + 0.02).float()
    rows, components, shares, counts = members_of(terms, top)
    left_out = 0
    for row in range(40):
        one = account(terms[row].numpy())
        mine = rows == row
        assert counts[row] == (one.n() or 0)
        assert sorted(components[mine]) == sorted(one.members.tolist())
        if one.net > 0:
            ours = terms[row].double().numpy()[one.members].sum() / one.net
            assert shares[mine].sum() == pytest.approx(ours, rel=1e-4)
        else:
            left_out += 1
    assert 0 < left_out < 40, "both sorts of net are tried"
    with pytest.raises(NotExact, match="finite"):
        members_of(torch.full((1, 5), torch.nan))


def plainly(reader: Reader) -> dict[tuple[int, int], list[float]]:
    """Shares by (component, token), one prediction after another."""
    found: dict[tuple[int, int], list[float]] = {}
    for start in range(0, len(TEXT.ids), 32):
        passed = reader.run(TEXT.ids[start : start + 32][None])
        tokens = reader.model.logits(passed.residual).argmax(-1)
        for place in range(16, 32):
            where = torch.tensor([place])
            terms = reader.terms(passed, where, tokens[where])[0].detach().numpy()
            one = account(terms)
            for member in one.members.tolist():
                found.setdefault((member, int(tokens[place])), []).append(terms[member] / one.net)
    return found


def test_the_pass_collects_what_each_prediction_gives_and_goes_on_where_it_stopped(
    reader: Reader, tmp_path: Path
) -> None:
    whole = Naming(reader, TEXT, checkpoint_hash=HASH, batch=3)
    progress = list(whole.run())
    assert progress[-1].done == progress[-1].total == 20 * 16
    state = tmp_path / "states" / "state.safetensors"
    first = Naming(reader, TEXT, checkpoint_hash=HASH, batch=3, state=state)
    for step in first.run():
        if step.done > 100:
            first.save()
            break
    with pytest.raises(Conflict, match="already running"):
        Naming(reader, TEXT, checkpoint_hash=HASH, batch=3, state=state, restart=True)
    first.close()
    second = Naming(reader, TEXT, checkpoint_hash=HASH, batch=3, state=state)
    assert 0 < second.next < second.batches
    assert sum(1 for _ in second.run()) == second.batches - first.next
    expected = plainly(reader)
    for naming in (whole, second):
        naming.pairs.settle()
        assert naming.pairs.keys.tolist() == sorted(c * VOCAB + t for c, t in expected)
        for key, sums in zip(naming.pairs.keys.tolist(), naming.pairs.sums, strict=True):
            shares = np.array(expected[divmod(key, VOCAB)])
            np.testing.assert_allclose(sums, [len(shares), shares.sum(), (shares**2).sum()], rtol=1e-4)
    second.close()
    assert whole.totals.tolist() == pytest.approx(second.totals.tolist())
    with pytest.raises(LegibleError, match="another pass"):
        Naming(reader, Text(TEXT.ids[:-32], "other"), checkpoint_hash=HASH, batch=3, state=state)
    state.write_bytes(b"nothing")
    with pytest.raises(LegibleError, match="damaged"):
        Naming(reader, TEXT, checkpoint_hash=HASH, batch=3, state=state)


def test_what_was_named_is_summed_up_and_opens_again(reader: Reader, tmp_path: Path) -> None:
    naming = Naming(reader, TEXT, checkpoint_hash=HASH)
    list(naming.run())
    record, table = naming.result()
    expected = plainly(reader)
    times = np.zeros(reader.layout.size)
    for (component, _), shares in expected.items():
        times[component] += len(shares)
    assert record.every.covered == pytest.approx((times > 0).mean())
    assert record.every.characterised == pytest.approx((times >= 20).mean())
    units = times[reader.layout.first_unit :]
    assert record.feed_forward.covered == pytest.approx((units > 0).mean())
    often = [np.array(v) for v in expected.values() if len(v) >= 5]
    spread = np.median([v.std(ddof=1) / v.mean() for v in often])
    assert record.variation.median == pytest.approx(spread, rel=1e-3)
    assert record.members.n == record.population.predictions
    layer = record.layers[1].feed_forward
    spreads = [
        v.std(ddof=1) / v.mean()
        for (component, _), shares in expected.items()
        if component >= reader.layout.first_unit and int(reader.layout.layer(np.array([component]))[0]) == 1
        and len(v := np.array(shares)) >= 5
    ]  # fmt: skip
    assert layer.variation.median == pytest.approx(np.median(spreads), rel=1e-3)
    assert layer.tokens_to_half.n == round(layer.characterised * layer.components)
    assert record.every.judged + record.every.single == round(record.every.characterised * record.every.components)
    table.save(tmp_path / written.FILE)
    opened = Written.load(tmp_path, HASH, reader.model.config)
    assert opened is not None
    for component in (Unit(2, 7), Channel(1, 2, 3)):
        helped, place = opened.of(component), reader.layout.place(component)
        assert helped.times == times[place]
        assert helped.characterised == (times[place] >= 20)
        for token in helped.tokens:
            shares = expected[place, token.token]
            assert token.times == len(shares)
            assert token.share == pytest.approx(np.mean(shares), rel=1e-4)
    assert Written.load(tmp_path, "b" * 64, reader.model.config) is None
    with pytest.raises(Corrupt, match="account again"):
        Written.load(tmp_path, HASH, replace(tiny_config(biased=True), vocab_size=3))
    (tmp_path / written.FILE).write_bytes(b"\x00" * 20)
    with pytest.raises(Corrupt, match="damaged"):
        Written.load(tmp_path, HASH, reader.model.config)


def test_tokens_of_one_use_lie_together_in_the_space() -> None:
    generator = np.random.default_rng(0)
    # Articles (0-3), then nouns (4-11), then verbs (12-19): who stands beside whom is all that is known.
    ids = np.stack([generator.integers(a, b, 4000) for a, b in ((0, 4), (4, 12), (12, 20))], 1).reshape(-1)
    vectors = space(ids, np.bincount(ids, minlength=25))
    near = (vectors[4:12] @ vectors[4:12].T).mean()
    far = (vectors[4:12] @ vectors[12:20].T).mean()
    assert near > 0.8 > 0.3 > far
    assert not vectors[20:].any()


def test_every_part_is_stored_as_it_comes_and_nothing_of_other_weights_is_read(reader: Reader, tmp_path: Path) -> None:
    said: list[str] = []
    plan = Plan(Plan.check_parts("writes,counts"), 6, 0.2, 0, tmp_path / "state.safetensors")
    found = measure(reader.model, TEXT.ids, "random", None, HASH, tmp_path, plan, lambda part, *_: said.append(part))
    assert list(dict.fromkeys(said)) == ["counts", "writes"]
    assert found.depth is None
    stored = Accounting.load(tmp_path, HASH)
    assert stored is not None
    assert stored.counts is not None
    assert stored.counts.channels.counts["net"]["n90"].n == stored.counts.population.predictions
    assert stored.writes is not None
    assert not (tmp_path / "state.safetensors").exists()
    assert Accounting.load(tmp_path, "b" * 64) is None

    def stop(part: str, done: int, total: int) -> None:
        if part == "writes" and done:
            raise Stopped

    with pytest.raises(Stopped):
        measure(reader.model, TEXT.ids, "random", None, HASH, tmp_path, plan, stop)
    assert (tmp_path / "state.safetensors").is_file()
    document = json.loads((tmp_path / records.FILE).read_text())
    document["counts"]["channels"]["components"] = "many"
    (tmp_path / records.FILE).write_text(json.dumps(document))
    with pytest.raises(Corrupt, match=r"counts\.channels\.components"):
        Accounting.load(tmp_path, HASH)
    (tmp_path / records.FILE).write_text('{"format": "other"}')
    with pytest.raises(Corrupt, match="format"):
        Accounting.load(tmp_path, HASH)


def test_quartiles_leave_out_what_is_no_number() -> None:
    assert Quartiles.of([1.0, None, 3.0, float("nan"), 2.0]) == Quartiles(q1=1.5, median=2.0, q3=2.5, n=3)
    assert Quartiles.of([]) == Quartiles(q1=None, median=None, q3=None, n=0)


def test_unknown_parts_are_named() -> None:
    with pytest.raises(LegibleError, match="'wishes'"):
        Plan.check_parts("counts,wishes")
