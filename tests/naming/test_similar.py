"""Units that are alike: both measures against their definitions, and a planted twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from legible_core.model.transformer import Transformer
from legible_core.naming.assemble import write_names
from legible_core.naming.names import Names
from legible_core.naming.scan import Scan
from legible_core.naming.similar import detect_overlaps, similar_units, write_cosines
from legible_core.tokens import Tokenizer
from legible_core.units import Unit, parse


@pytest.fixture(scope="module")
def names(model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Names:
    scan = Scan(model, ids[:6000], "sample.txt", checkpoint_hash="h" * 64, end_of_document=0)
    for _ in scan.run():
        pass
    folder: Path = tmp_path_factory.mktemp("names")
    write_names(folder, scan, tokenizer)
    found = Names.load(folder)
    assert found is not None
    return found


def test_cosines_are_of_the_centred_columns(model: Transformer) -> None:
    found = write_cosines(model, Unit(1, 5))
    columns = torch.cat([layer.feed_forward.down for layer in model.layers], dim=1).double()
    columns = columns - columns.mean(0)
    expected = torch.nn.functional.cosine_similarity(columns.T, columns[:, 32 + 5][None], dim=1)
    torch.testing.assert_close(found.flatten().double(), expected, atol=1e-6, rtol=1e-5)
    assert float(found[1, 5]) == pytest.approx(1.0)


def test_a_planted_twin_comes_first(model: Transformer, names: Names) -> None:
    down = model.layers[0].feed_forward.down
    with torch.no_grad():
        before = down[:, 9].clone()
        # A shift of all coordinates and a positive factor change nothing that the next norm lets through.
        down[:, 9] = 3.0 * model.layers[1].feed_forward.down[:, 5] + 0.7
    try:
        found = similar_units(model, names, Unit(1, 5))
    finally:
        with torch.no_grad():
            down[:, 9] = before
    assert found["writes"][0]["id"] == "L0.u9"
    assert found["writes"][0]["cosine"] == pytest.approx(1.0, abs=1e-5)
    assert "L1.u5" not in {row["id"] for row in found["writes"] + found["detects"]}


def test_overlaps_are_the_jaccard_indices_of_the_lists(model: Transformer, names: Names) -> None:
    config, layout = names.config, names.config.feed_forward

    def tokens(operand: str) -> set[int]:
        return {token.id for token in names.operand(parse(operand), shown=10_000).detect}

    def jaccard(first: str, second: str) -> float:
        one, other = tokens(first), tokens(second)
        return len(one & other) / len(one | other) if one | other else 0.0

    found = detect_overlaps(config, names, Unit(0, 1))
    assert found is not None
    for layer in range(2):
        for pair in range(layout.n_pairs):
            straight = (jaccard("L0.p1.A", f"L{layer}.p{pair}.A") + jaccard("L0.p1.B", f"L{layer}.p{pair}.B")) / 2
            crossed = (jaccard("L0.p1.A", f"L{layer}.p{pair}.B") + jaccard("L0.p1.B", f"L{layer}.p{pair}.A")) / 2
            assert found[layer, pair] == pytest.approx(max(straight, crossed)), "two intersections: the better pairing"
            assert found[layer, layout.n_pairs + pair] == pytest.approx(straight), "a difference keeps the order"
    assert np.isnan(found[:, layout.quantifiers]).all(), "one operand is not compared with two"
    assert np.isnan(found[:, layout.n_named :]).all()
    quantifier = layout.quantifiers.start
    memories = detect_overlaps(config, names, Unit(1, quantifier))
    assert memories is not None
    other = layout.quantifiers.stop - 1
    assert memories[0, other] == pytest.approx(jaccard(f"L1.u{quantifier}.m", f"L0.u{other}.m"))
    assert np.isnan(memories[:, 0]).all()


def test_the_twin_of_a_pair_detects_the_same(model: Transformer, names: Names) -> None:
    layout = names.config.feed_forward
    pair = next(p for p in range(layout.n_pairs) if all(names.operand(parse(f"L0.p{p}.{s}")).detect for s in "AB"))
    found = similar_units(model, names, Unit(0, pair), shown=3)
    assert found["detects"][0] == {
        "id": f"L0.u{layout.n_pairs + pair}",
        "cosine": pytest.approx(float(write_cosines(model, Unit(0, pair))[0, layout.n_pairs + pair])),
        "overlap": 1.0,
    }
    assert len(found["writes"]) == 3


def test_without_operands_or_names_only_the_write_side_is_compared(model: Transformer, names: Names) -> None:
    for named, unit in ((names, Unit(0, 31)), (None, Unit(0, 1))):
        found = similar_units(model, named, unit)
        assert found["detects"] == []
        assert len(found["writes"]) == 8
        assert all(row["overlap"] is None for row in found["writes"])


def test_the_place_of_a_unit_among_those_that_promote_a_token(names: Names) -> None:
    every = [*names.units(0), *names.units(1), *(c for la in range(2) for h in range(4) for c in names.channels(la, h))]
    for unit in ("L0.u1", "L1.u30"):
        name = names.component(parse(unit))
        for token, (place, count) in zip(name.promotes, names.promote_places(parse(unit)), strict=True):
            weights = [p.weight for c in every for p in c.promotes if p.id == token.id]
            assert count == len(weights)
            assert place == 1 + sum(weight > token.weight for weight in weights)
