"""The scan of an ordinary model against one that reads window by window and counts token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_samples import VOCAB, hf_model, words
from torch.nn import functional as F

from legible_core.adapters.config import from_hugging_face
from legible_core.adapters.model import OrdinaryModel
from legible_core.errors import Corrupt, LegibleError, NotFound
from legible_core.naming.bins import BINS, edges, quantiles
from legible_core.naming.collect import write_contexts
from legible_core.naming.contexts import Source
from legible_core.naming.names import Names
from legible_core.naming.similar import detect_overlaps
from legible_core.ordinary.loading import bridged
from legible_core.ordinary.names import assemble, write_ordinary_names
from legible_core.ordinary.observing import sample, window_of
from legible_core.ordinary.scan import OrdinaryScan, state_bytes, strongest_of
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.tokens import Tokenizer
from legible_core.units import Channel, Unit

HASH = "a" * 64
# Biases, LayerNorm and plain units without a beginning; gates, RMSNorm and a token before every text.
FAMILIES = (("gpt2", None), ("llama", 0))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(words())


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    """1,500 tokens in documents that token 0 ends, the frequent ones as frequent as in a text."""
    weights = 1.0 / (3 + np.arange(VOCAB))
    return np.random.default_rng(4).choice(VOCAB, size=1500, p=weights / weights.sum())


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda found: found[0])
def family(request: pytest.FixtureRequest) -> tuple[OrdinaryModel, int | None]:
    name, begin = request.param
    hf = hf_model(name)
    return bridged(hf, from_hugging_face(hf.config)), begin


def scanned(family: tuple[OrdinaryModel, int | None], ids: np.ndarray, **options: Any) -> OrdinaryScan:
    model, begin = family
    options = {"batch": 3, "contexts": True, "checkpoint_hash": HASH, **options}
    scan = OrdinaryScan(model, ids, "text.txt", begin=begin, end_of_document=0, **options)
    for _ in scan.run():
        pass
    return scan


@pytest.fixture(scope="module")
def whole(family: tuple[OrdinaryModel, int | None], ids: np.ndarray) -> OrdinaryScan:
    return scanned(family, ids)


def test_it_equals_the_traces_of_single_windows_token_by_token(whole: OrdinaryScan, ids: np.ndarray) -> None:
    model, begin = whole.model, whole.begin
    found: list[list[np.ndarray]] = [[], []]
    losses = []
    for half in whole.parts:
        for start in range(0, len(half), whole.window):
            window = half[start : start + whole.window]
            given = window if begin is None else np.concatenate([[begin], window])
            trace = model.trace(torch.from_numpy(given))
            for layer in range(2):
                found[layer].append(trace.layers[layer].hidden[len(given) - len(window) :].numpy())
            known = torch.from_numpy(half[start + 1 : start + whole.window + 1])
            logits = model.logits(trace.residual)[len(given) - len(window) :][: len(known)]
            losses.append(F.cross_entropy(logits, known, reduction="none").numpy())
    assert whole.quality["loss"] == pytest.approx(np.concatenate(losses).mean(), abs=1e-5)
    cut = len(whole.parts[0])
    for layer, state in enumerate(whole.layers):
        values = np.concatenate(found[layer])
        moments = state.values.moments
        assert moments.count == len(values) == len(ids)
        np.testing.assert_allclose(moments.mean, values.mean(0, np.float64), atol=1e-6)
        np.testing.assert_allclose(moments.variance, values.var(0, np.float64), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state.values.most, values.max(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.values.least, values.min(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(moments.on, (values > 0).sum(0))
        # An edge belongs to the bin farther from zero.
        place = np.where(values < 0, BINS - 1 - _bin(-values), _bin(values))
        for unit in range(0, values.shape[1], 5):
            np.testing.assert_array_equal(state.values.bins[unit], np.bincount(place[:, unit], minlength=BINS))
            for half, part in enumerate((values[:cut, unit], values[cut:, unit])):
                order = np.lexsort((np.arange(len(part)), -part))[: strongest_of(len(part))]
                best = order[part[order] > 0]
                there = state.strongest[half].positions[unit]
                np.testing.assert_array_equal(there[there >= 0], best + half * cut)
    assert all((state.values.bins.sum(axis=1) == len(ids)).all() for state in whole.layers)


def _bin(sizes: np.ndarray) -> np.ndarray:
    return np.searchsorted(edges(), sizes.astype(np.float64), side="right") - 1


def test_shards_and_an_interrupted_scan_give_the_same_bits(
    family: tuple[OrdinaryModel, int | None], whole: OrdinaryScan, ids: np.ndarray, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model, begin = family
    options: dict[str, Any] = {"batch": 3, "contexts": True, "checkpoint_hash": HASH, "state": tmp_path / "state"}
    first = OrdinaryScan(model, ids, "text.txt", begin=begin, end_of_document=0, **options)
    for number, _ in enumerate(first.run(), 1):
        if number == 4:
            break
    first.save()
    first.close()
    again = scanned(family, ids, state=tmp_path / "state")
    shards = [scanned(family, ids, shard=(index, 3)) for index in (0, 1, 2)]
    for shard in shards[1:]:
        shards[0].merge(shard)
    meta, arrays = assemble(whole, tokenizer)
    for other, exactly in ((again, True), (shards[0], False)):
        made, others = assemble(other, tokenizer)
        assert made["values"] == meta["values"]
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            if exactly or name not in ("unit.mean", "unit.variance"):
                assert array.tobytes() == others[name].tobytes(), name
            else:
                np.testing.assert_allclose(array, others[name], rtol=1e-6, atol=1e-7)
        for key, best in whole.collector.best.items():  # type: ignore[union-attr]
            for name, array in best.arrays("").items():
                assert array.tobytes() == other.collector.best[key].arrays("")[name].tobytes(), (key, name)  # type: ignore[union-attr]
    again.close()
    changed = OrdinaryScan(model, ids, "t", begin=3, end_of_document=0, **options)
    assert changed.next == 0


def test_a_stored_extreme_is_what_a_reading_of_its_context_gives(
    whole: OrdinaryScan, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    names = write_ordinary_names(tmp_path, whole, tokenizer)
    text = np.concatenate(whole.parts)
    contexts = write_contexts(
        tmp_path, whole.collector, text, Source("corpus", "text.txt", len(text)), tokenizer,
        checkpoint_hash=HASH, end_of_document=0, window_of=whole.windows_of,
    )  # fmt: skip
    engine = Engine(whole.model, CheckpointRef(hash=HASH, slug="tiny"), tokenizer)
    assert names.plain is not None
    looked = 0
    for layer in range(2):
        for unit in range(0, names.config.feed_forward.d_ff, 7):
            values = names.plain.unit(Unit(layer, unit))
            for chosen, stored in (("strongest", values.most), ("lowest", values.least)):
                found = [context for context in contexts.contexts_of(Unit(layer, unit)) if context.chosen == chosen]
                if (stored > 0) != (chosen == "strongest"):
                    assert not found
                    continue
                assert found[0].peak == stored
                given = found[0].read if whole.begin is None else (whole.begin, *found[0].read)
                detail = engine.component_detail(ReadingRequest(HASH, given), str(Unit(layer, unit)))
                assert detail["activations"][-1] == pytest.approx(stored, rel=1e-5, abs=1e-6)
                shown = detail["activations"][len(given) - found[0].at - 1 :]
                step = max(abs(value) for value in found[0].values) / 127
                np.testing.assert_allclose(found[0].values[: found[0].at + 1], shown, atol=step)
                looked += 1
    assert looked > 15


def test_detect_lists_say_what_was_counted(whole: OrdinaryScan, tokenizer: Tokenizer) -> None:
    names = Names(*assemble(whole, tokenizer))
    assert names.plain is not None
    text, listed = np.concatenate(whole.parts), 0
    for unit in range(names.config.feed_forward.d_ff):
        found = names.plain.unit(Unit(1, unit))
        assert sum(part.count for part in found.histogram) == len(text)
        assert [value for _, value in found.quantiles] == sorted(value for _, value in found.quantiles)
        positions = whole.layers[1].strongest[0].positions[unit]
        positions, there = positions[positions >= 0], whole.layers[1].strongest[0].values[unit]
        assert found.strongest == len(positions)
        for token in found.detect:
            on = text[positions] == token.id
            assert (token.count, token.seen) == (on.sum(), (whole.parts[0] == token.id).sum())
            assert token.mean == pytest.approx(there[: len(on)][on].mean(), rel=1e-5)
            assert token.lift == pytest.approx(token.share / (len(positions) / len(whole.parts[0])))
            listed += 1
        if found.detect and listed < 5:  # lists are compared as those of operands are
            overlaps = detect_overlaps(names.config, names, Unit(1, unit))
            assert overlaps is not None
            assert overlaps[1, unit] == overlaps.max() == 1.0
    assert listed > 5
    name = names.component(Unit(1, 0))
    assert name.formula.startswith("≈ ")
    assert name.cls is name.on is name.mean is None
    with pytest.raises(NotFound):
        names.plain.unit(Channel(0, 0, 0))


@pytest.mark.parametrize(("name", "begin"), [*FAMILIES, ("gemma2", None)])
def test_what_it_samples_is_drawn_as_without_a_cache(name: str, begin: int | None) -> None:
    plain = hf_model(name)
    config = from_hugging_face(plain.config)
    length = window_of(config, begin)
    (windows,) = sample(plain, config, 2 * length, begin=begin, seed=5, end=0, rows=2)
    assert windows.shape == (2, length)
    generator = np.random.default_rng(5)
    start = 0 if begin is None else begin
    again = np.full((2, length + (begin is not None)), start)
    for position in range(1, again.shape[1]):
        with torch.no_grad():
            logits = plain(torch.from_numpy(again[:, :position]), use_cache=False).logits[:, -1]
        chances = torch.softmax(logits, -1).double().cumsum(-1)
        draws = torch.from_numpy(generator.random((2, 1))) * chances[:, -1:]
        again[:, position] = torch.searchsorted(chances, draws, right=True)[:, 0]
    np.testing.assert_array_equal(windows, again[:, -length:])


def test_quantiles_are_read_off_the_bins() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[[_bin(np.array([0.6]))[0], _bin(np.array([1.2]))[0]]] = (1, 3)
    assert quantiles(counts, (0.0, 0.25, 0.625, 1.0), 0.55, 1.25) == pytest.approx((0.55, 0.75, 1.125, 1.25))


def test_what_cannot_be_scanned_or_loaded_is_refused(
    family: tuple[OrdinaryModel, int | None], whole: OrdinaryScan, tokenizer: Tokenizer
) -> None:
    with pytest.raises(LegibleError, match="needs at least 64"):
        scanned(family, np.arange(20))
    with pytest.raises(LegibleError, match="holds token 999"):
        scanned(family, np.full(100, 999))
    meta, arrays = assemble(whole, tokenizer)
    for name, change in (
        ("unit.histogram", lambda array: array + 1),
        ("unit.most", lambda array: np.full_like(array, np.nan)),
        ("active.tokens", lambda array: array[:-1]),
        ("suppress.tokens", lambda array: array + 9999),
    ):
        with pytest.raises(Corrupt, match=name.partition(".")[0]):
            Names(meta, {**arrays, name: change(arrays[name])})
    assert state_bytes(12, 3072) < 150 << 20
