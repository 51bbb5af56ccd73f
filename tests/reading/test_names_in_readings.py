"""A scanned checkpoint's names in its readings: labels, detect lists, ranked tokens, and the named share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reading_folder import make_folder, name_folder

from legible_core.naming.names import Names
from legible_core.pipeline import Engine
from legible_core.units import parse

PROMPT = "It was the best of times, it was the"


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    return Engine.open(name_folder(make_folder(tmp_path_factory.mktemp("named"))))


@pytest.fixture(scope="module")
def names(engine) -> Names:
    assert engine.names is not None
    return engine.names


@pytest.fixture(scope="module")
def rows(engine):
    return {row.id: row for row in engine.read(engine.request(PROMPT, target=" worst"), top=10_000).top}


def test_a_units_names_are_its_checkpoints(rows, names):
    for id, row in rows.items():
        if row.kind == "head":
            assert row.label is None
            continue
        name = names.component(parse(id))
        assert row.formula == name.formula
        assert row.cls == (None if name.cls is None else name.cls.value)
        assert (row.label is None) == (name.label is None)
        if row.label is not None:
            assert (row.label.text, row.label.kind, row.label.n) == (name.label.text, name.label.kind, name.label.n)


def test_operands_carry_what_they_detect_with_its_evidence(rows, names):
    detected = 0
    for row in rows.values():
        if row.kind == "head":
            continue
        for operand in row.operands:
            name = names.operand(parse(operand.id))
            assert [token.id for token in operand.detect] == [token.id for token in name.detect[:8]]
            detected += len(operand.detect)
            if operand.label is not None:
                assert operand.label.agreement == name.agreement
    assert detected > 0


def test_promote_lists_and_ranks_are_among_the_tokens_seen_often(engine, rows, names):
    often = names.often
    assert 0 < often.sum() < often.size
    target = engine.tokenizer.target(" worst")
    for id, row in rows.items():
        if row.kind == "head":
            continue
        assert all(often[token.id] for token in row.promotes)
        stored = names.component(parse(id)).promotes[: len(row.promotes)]
        assert [token.id for token in row.promotes] == [token.id for token in stored]
        # Names store weights as float16.
        assert [t.weight for t in row.promotes] == pytest.approx([t.weight for t in stored], rel=1e-3)
        layer, unit = (int(part[1:]) for part in id.split("."))
        weights = _promotion(engine, engine.model.layers[layer].feed_forward.down[:, unit])
        assert row.target_rank == 1 + int((weights[torch.from_numpy(often)] > weights[target]).sum())


def test_a_rare_target_has_its_rank_beside_the_frequent_tokens(engine, names):
    rare = int(np.flatnonzero(~names.often)[0])
    reading = engine.read(engine.request(PROMPT), top=0)
    column = engine.model.layers[0].feed_forward.down[:, :1].T
    [(promotes, rank)] = engine.describer.promotes(column, rare, 5)
    weights = _promotion(engine, column[0])
    assert rank == 1 + int((weights[torch.from_numpy(names.often)] > weights[rare]).sum())
    assert rare not in [token.id for token in promotes]
    assert reading.shares.named_mass is not None


def test_the_named_share_counts_selective_and_labelled_components(engine, names):
    masks = engine.describer.named_masks()
    assert masks is not None
    channels, units = masks
    config = engine.config
    for layer in range(config.n_layers):
        expected = [name.cls == "SELECTIVE" and name.label is not None and name.label.kind == "class"
                    for name in names.units(layer)]  # fmt: skip
        np.testing.assert_array_equal(units[layer], expected)
        assert not channels[layer, config.attention.n_special[layer] :].any()
    solved = engine.solve(engine.request(PROMPT, target=" worst"))
    mass = np.abs(solved.terms.heads).sum() + np.abs(solved.terms.units).sum()
    shares = engine.read(engine.request(PROMPT, target=" worst")).shares
    assert shares.named_mass >= np.abs(solved.terms.units[units]).sum() / mass - 1e-12
    assert shares.named_mass <= shares.mass


def test_close_ups_carry_names(engine, names):
    wish = engine.request(PROMPT)
    detail = engine.component_detail(wish, "L0.u3")
    assert detail["formula"] == names.component(parse("L0.u3")).formula
    assert [token["id"] for token in detail["operands"][0]["detect"]] == [
        token.id for token in names.operand(parse("L0.p3.A")).detect[:8]
    ]
    bounded, linear = engine.head_detail(wish, 1, 0), engine.head_detail(wish, 1, 3)
    assert all(channel["formula"] is not None for channel in bounded["channels"])
    assert all(channel["formula"] is None for channel in linear["channels"])


def test_names_of_other_weights_are_not_used(tmp_path, caplog):
    checkpoint = make_folder(tmp_path / "a")
    named = name_folder(checkpoint)
    other = make_folder(tmp_path / "b", seed=1)
    for name in ("names.json", "names.safetensors"):
        (other.path / name).write_bytes((named.path / name).read_bytes())
    assert Engine.open(other.path).names is None
    assert "of other weights" in caplog.text
    assert Engine.open(named.path).names is not None


def _promotion(engine: Engine, column: torch.Tensor) -> torch.Tensor:
    model = engine.model
    return model.unembedding_matrix @ ((column - column.mean()) * model.final_norm.gain)


def test_spoilt_names_cost_the_labels_and_not_the_reading(tmp_path, caplog):
    """The sum needs no names; what the file lacks is said in the log and on the model's page."""
    checkpoint = name_folder(make_folder(tmp_path))
    (checkpoint.path / "names.safetensors").write_bytes(b"spoilt")
    engine = Engine.open(checkpoint)
    assert engine.names is None
    reading = engine.read(engine.request("It was the best of times"))
    assert all(row.label is None for row in reading.summary.top)
    assert abs(reading.residual) <= reading.tolerance
    assert "read without names" in caplog.text
