"""Contexts against a slow oracle over the model's own trace; the file, its bounds, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model
from safetensors.numpy import load_file, save_file

from legible_core.errors import Corrupt, NotFound, Unavailable
from legible_core.model.transformer import Transformer
from legible_core.naming import contexts as store
from legible_core.naming.best import AFTER, BEFORE, Best, Candidates
from legible_core.naming.collect import POOL, RANDOM, STRONGEST, write_contexts
from legible_core.naming.contexts import Context, Contexts, Source
from legible_core.naming.observe import halves
from legible_core.naming.scan import Scan
from legible_core.tokens import Tokenizer
from legible_core.trace import Trace
from legible_core.units import Channel, Component, Head, HeadOperand, Operand, QuantifierOperand, Unit, parse

TEXT = Source("corpus", "sample.txt", 9000)


def _collected(model: Transformer, ids: np.ndarray, folder: Path, tokenizer: Tokenizer) -> Contexts:
    scan = Scan(model, ids, "sample.txt", checkpoint_hash="h" * 64, end_of_document=0, contexts=True)
    for _ in scan.run():
        pass
    assert scan.collector is not None
    stream = np.concatenate(scan.parts)
    return write_contexts(folder, scan.collector, stream, TEXT, tokenizer, checkpoint_hash="h" * 64, end_of_document=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contexts")


@pytest.fixture(scope="module")
def contexts(model: Transformer, ids: np.ndarray, folder: Path, tokenizer: Tokenizer) -> Contexts:
    return _collected(model, ids, folder, tokenizer)


@pytest.fixture(scope="module")
def traced(model: Transformer, ids: np.ndarray) -> list[tuple[slice, Trace]]:
    return _traced(model, ids)


def _traced(model: Transformer, ids: np.ndarray) -> list[tuple[slice, Trace]]:
    """The windows that the scan reads, each with the model's own trace."""
    found, start = [], 0
    for half in halves(ids, 0):
        for begin in range(0, len(half), 32):
            part = half[begin : begin + 32]
            found.append((slice(start, start + len(part)), model.trace(torch.from_numpy(part))))
            start += len(part)
    return found


def _every_value(model: Transformer, traced: list[tuple[slice, Trace]], component: Component) -> np.ndarray:
    """The component's value at every place of the text."""
    values = []
    layer = component.layer  # type: ignore[union-attr]
    for _, trace in traced:
        found = model.operands(layer, trace, slice(None))
        match component:
            case Operand(_, pair, side):
                values.append(found["pair_a" if side == "A" else "pair_b"][:, pair])
            case HeadOperand(_, head, pair, side):
                values.append(found["head_a" if side == "A" else "head_b"][:, head, pair])
            case QuantifierOperand(_, unit):
                start_q = model.config.feed_forward.quantifiers.start
                values.append(found["quantifier"][:, unit - start_q])
            case Channel(_, head, channel):
                values.append(model.head_values(layer, trace)[:, head, channel])
            case Unit(_, unit):
                values.append(trace.layers[layer].hidden[:, unit])
    return torch.cat(values).numpy()


@pytest.mark.parametrize("name", ["L0.p3.A", "L1.h0.p1.B", "L0.h1.c6", "L1.u0", "L0.u15.m", "L1.u14", "L0.u30"])
def test_contexts_are_the_models_own_values(
    model: Transformer, ids: np.ndarray, traced: list[tuple[slice, Trace]], contexts: Contexts, tokenizer: Tokenizer,
    name: str,
) -> None:  # fmt: skip
    component = parse(name)
    values, windows = _every_value(model, traced, component), [window for window, _ in traced]
    found = contexts.contexts_of(component)
    strongest = [context for context in found if context.chosen == "strongest"]
    assert len(strongest) == STRONGEST
    # Of the best windows' own peaks; different documents first, so a later window's may stand before an equal one.
    peaks = sorted((float(values[window].max()) for window in windows), reverse=True)[:POOL]
    assert strongest[0].peak == pytest.approx(peaks[0], abs=1e-3)
    assert all(peaks[-1] - 1e-3 <= context.peak <= peaks[0] + 1e-3 for context in strongest)
    assert [context.peak for context in strongest] == sorted((c.peak for c in strongest), reverse=True)
    for context in found:
        place = _place(ids, context, values)
        assert context.ids == tuple(ids[place : place + len(context.ids)])
        assert context.tokens == tuple(tokenizer.display(token) for token in context.ids)
        assert 0 not in context.ids[: context.at]
        assert 0 not in context.ids[context.at : -1]
        assert context.at <= BEFORE
        assert len(context.ids) - 1 - context.at <= AFTER
        assert context.source == "sample.txt"
        scale = max(1.0, max(abs(value) for value in context.values))
        expected = values[place : place + len(context.ids)]
        np.testing.assert_allclose(context.values, expected, atol=scale / 200)
        if context.chosen == "random":
            assert context.peak > 0.9
            assert values[place + context.at] > 0.9


def _place(ids: np.ndarray, context: Context, values: np.ndarray) -> int:
    """Where in the text a context stands; where it stands several times, the place with these values."""
    size = len(context.ids)
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    places = np.flatnonzero((windows == np.array(context.ids)).all(axis=1))
    assert places.size
    off = [np.abs(values[place : place + size] - np.array(context.values)).max() for place in places]
    return int(places[int(np.argmin(off))])


def test_the_file_reads_back(contexts: Contexts, folder: Path) -> None:
    again = Contexts.load(folder, checkpoint_hash="h" * 64)
    assert again is not None
    assert again.source == TEXT
    for layer in range(2):
        for component in [*contexts.config.operands(layer), Unit(layer, 0), Unit(layer, 31), Channel(layer, 0, 3)]:
            assert again.contexts_of(component) == contexts.contexts_of(component)
    assert Contexts.load(folder, checkpoint_hash="g" * 64) is None
    assert Contexts.load(folder.parent) is None
    assert [path.name for path in folder.iterdir()] == [store.FILE]


def test_what_has_no_contexts(contexts: Contexts) -> None:
    for component in (Head(0, 0), Channel(0, 3, 0), Unit(0, 32), Operand(5, 0, "A"), parse("embed.token")):
        with pytest.raises(NotFound):
            contexts.contexts_of(component)


def test_plain_units_have_no_random_contexts(contexts: Contexts) -> None:
    assert {context.chosen for context in contexts.contexts_of(Unit(0, 31))} == {"strongest"}


def test_an_operand_that_is_never_on_has_no_random_contexts(
    tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path
) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size))
    with torch.no_grad():
        model.layers[0].feed_forward.pair_a.zero_()
    found = _collected(model, ids[:1000], tmp_path, tokenizer).contexts_of(parse("L0.p0.A"))
    assert [context.chosen for context in found] == ["strongest"] * STRONGEST
    assert all(context.peak == pytest.approx(0.5) for context in found)


def test_a_membership_channel_is_its_own_operand(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size, "membership"))
    found = _collected(model, ids[:1000], tmp_path, tokenizer).contexts_of(Channel(0, 1, 2))
    values = _every_value(model, _traced(model, ids[:1000]), Channel(0, 1, 2))
    assert found[0].peak == pytest.approx(values.max(), abs=1e-3)


def test_random_contexts_are_spread_over_the_positions_that_are_on() -> None:
    # Scores of a uniform draw: each of 200 positions is kept about equally often, whatever the order of arrival.
    counts = np.zeros(200)
    for seed in range(400):
        generator = np.random.default_rng(seed)
        best = Best(1, RANDOM)
        for part in np.array_split(np.arange(200), 10):
            n = len(part)
            best.offer(
                Candidates(
                    np.zeros(n, np.int64), generator.random(n).astype(np.float32), part.astype(np.int64),
                    np.zeros(n, np.uint8), np.zeros(n, np.uint8), np.zeros((n, BEFORE + 1 + AFTER), np.float16),
                )
            )  # fmt: skip
        counts[best.position[0]] += 1
    assert counts.sum() == 400 * RANDOM
    assert counts.max() <= 16
    assert counts[:100].sum() == pytest.approx(400, abs=70)


def test_ties_go_to_the_earlier_position_in_any_order() -> None:
    def best(order: list[int]) -> list[int]:
        found = Best(1, 3)
        for position in order:
            found.offer(
                Candidates(
                    np.zeros(1, np.int64), np.ones(1, np.float32), np.array([position]), np.zeros(1, np.uint8),
                    np.zeros(1, np.uint8), np.zeros((1, BEFORE + 1 + AFTER), np.float16),
                )
            )  # fmt: skip
        return found.position[0].tolist()

    assert best([9, 2, 5, 7]) == best([7, 5, 2, 9]) == [2, 5, 7]


@pytest.mark.parametrize("damage", ["truncate", "text", "schema", "hash", "pool", "start", "shape", "number", "source"])
def test_a_file_that_is_not_what_it_claims(folder: Path, contexts: Contexts, tmp_path: Path, damage: str) -> None:
    path = tmp_path / store.FILE
    arrays, meta = load_file(folder / store.FILE), json.loads(json.dumps(contexts.meta))
    if damage == "schema":
        meta["schema"] = 99
    elif damage == "hash":
        meta["checkpoint"] = "other"
    elif damage == "source":
        meta["source"] = {"kind": "heaven"}
    elif damage == "pool":
        arrays["pool"] = arrays["pool"] + np.uint16(60_000)
    elif damage == "start":
        arrays["operand.start"] = arrays["operand.start"] + np.uint32(10**6)
    elif damage == "shape":
        arrays["component.values"] = arrays["component.values"][:-1].copy()
    elif damage == "number":
        arrays["operand.peak"] = np.full_like(arrays["operand.peak"], np.nan)
    save_file(arrays, path, metadata=store.metadata(meta))
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "text":
        path.write_text("no such file")
    if damage == "hash":
        assert Contexts.load(tmp_path, checkpoint_hash="h" * 64) is None
        return
    with pytest.raises(Corrupt, match=r"contexts\.safetensors"):
        Contexts.load(tmp_path)


def test_a_folder_that_takes_nothing_is_one_sentence(
    model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be written"):
        _collected(model, ids[:500], blocked, tokenizer)
