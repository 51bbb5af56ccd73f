"""The scan against a slow oracle; interrupted, killed and damaged states; shards; the halves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from naming_samples import sample_config, sample_model
from torch.nn import functional as F

from legible_core.errors import Conflict, LegibleError, Unavailable
from legible_core.locks import LOCK
from legible_core.model.transformer import Transformer
from legible_core.naming import resumable
from legible_core.naming import scan as scanning
from legible_core.naming.assemble import assemble
from legible_core.naming.observe import batches, halves, observe, spread
from legible_core.naming.scan import Scan
from legible_core.tokens import Tokenizer


def _finished(model: Transformer, ids: np.ndarray, **options: object) -> Scan:
    scan = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, **options)  # type: ignore[arg-type]
    for _ in scan.run():
        pass
    return scan


def _same(first: Scan, second: Scan, tokenizer: Tokenizer) -> None:
    meta, arrays = assemble(first, tokenizer)
    other_meta, other_arrays = assemble(second, tokenizer)
    assert json.dumps(meta) == json.dumps(other_meta)
    assert arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        assert array.tobytes() == other_arrays[name].tobytes(), name


@pytest.mark.parametrize("value", ["boolean", "membership", "linear"])
def test_statistics_equal_the_models_own_trace(tokenizer: Tokenizer, ids: np.ndarray, value: str) -> None:
    special = (0, 0) if value == "linear" else (2, 1)
    model = sample_model(sample_config(tokenizer.vocab_size, value, special))  # type: ignore[arg-type]
    part = ids[:200]
    scan = _finished(model, part, contexts=True)
    collected: list[list[np.ndarray]] = [[], []]
    losses = []
    for half in halves(part, 0):
        for start in range(0, len(half), 32):
            window = torch.from_numpy(half[start : start + 32])
            trace = model.trace(window)
            for layer in range(2):
                found = model.operands(layer, trace, slice(None))
                names = ["membership"] if value == "membership" else ["head_a", "head_b"]
                heads = [found[name] for name in names if name in found]
                columns = [torch.cat(heads, dim=-1).flatten(1)] if heads else []
                columns += [found[name] for name in ("pair_a", "pair_b", "quantifier")]
                collected[layer].append(torch.cat(columns, dim=1).numpy())
            known = torch.from_numpy(half[start + 1 : start + 33])
            logits = model.logits(trace.residual)[: len(known)]
            losses.append(F.cross_entropy(logits, known, reduction="none").detach().numpy())
    for layer in range(2):
        values = np.concatenate(collected[layer]).astype(np.float64)
        moments = scan.layers[layer].operands
        assert moments.count == len(part)
        assert values.shape[1] == moments.width == len(list(model.config.operands(layer)))
        np.testing.assert_allclose(moments.mean, values.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(moments.variance, values.var(axis=0), atol=1e-6)
        np.testing.assert_allclose(moments.on_share, (values > 0.9).mean(axis=0), atol=1.5 / len(part))
    assert scan.quality["loss"] == pytest.approx(np.concatenate(losses).mean(), abs=1e-5)
    assert scan.quality["tokens"] == len(part) - 2
    if value == "linear":
        assert scan.layers[0].channels.width == 0


@pytest.mark.parametrize("stop", [1, 4, 17, 30])
def test_interrupted_and_resumed_gives_the_same_bits(
    model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tmp_path: Path, stop: int
) -> None:
    whole = _finished(model, ids)
    first = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path / "state")
    for number, _ in enumerate(first.run(), start=1):
        if number == stop:
            break
    first.save()
    # While one holds the state no other touches it, not even to start anew.
    for restart in (False, True):
        with pytest.raises(Conflict, match="The same scan is already running"):
            Scan(
                model, ids, "x", checkpoint_hash="h", end_of_document=0, state=tmp_path / "state", restart=restart
            )  # fmt: skip
    first.close()
    second = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path / "state")
    assert second.next == stop
    assert 0 < second.done < len(ids)
    for _ in second.run():
        pass
    _same(whole, second, tokenizer)
    second.discard()
    assert not (tmp_path / "state").exists()


def test_a_killed_scan_goes_on_from_its_last_save(
    model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0.0)
    first = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path)
    for number, _ in enumerate(first.run()):
        if number == 9:
            break  # nothing more is called, as after a kill
    first.close()
    # A write that the kill cut short lies beside the last whole one, and the lock's file that nobody holds any more.
    (tmp_path / "scan-cut.safetensors").write_bytes(b"\x10\x00")
    (tmp_path / LOCK).touch()
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 1e9)
    second = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path)
    assert second.next == 10
    for _ in second.run():
        pass
    _same(_finished(model, ids), second, tokenizer)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    second.close()
    # Started anew, what others put there stays; what cannot be removed is one sentence.
    (tmp_path / "notes").mkdir()
    again = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path, restart=True)
    assert again.next == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["notes", LOCK]
    again.close()
    (tmp_path / "scan-x.safetensors").mkdir()
    with pytest.raises(Unavailable, match="cannot be removed"):
        Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path, restart=True)


@pytest.mark.parametrize("damage", ["truncate", "json", "pointer", "missing", "shape"])
def test_a_damaged_state_is_started_anew(model: Transformer, ids: np.ndarray, tmp_path: Path, damage: str) -> None:
    scan = Scan(model, ids, "sample.txt", end_of_document=0, state=tmp_path)
    next(scan.run())
    scan.save()
    scan.close()
    pointer = tmp_path / "scan.json"
    saved = json.loads(pointer.read_text())
    arrays = tmp_path / saved["arrays"]
    if damage == "truncate":
        arrays.write_bytes(arrays.read_bytes()[:1000])
    elif damage == "json":
        pointer.write_text("{")
    elif damage == "pointer":
        pointer.write_text(json.dumps(saved | {"arrays": "../" + saved["arrays"]}))
    elif damage == "missing":
        arrays.unlink()
    else:
        from safetensors.numpy import load_file, save_file

        found = load_file(arrays)
        found["1.counts1.on"] = found["1.counts1.on"][:, :-1].copy()
        save_file(found, arrays)
    again = Scan(model, ids, "sample.txt", end_of_document=0, state=tmp_path)
    assert (again.next, again.done) == (0, 0)
    assert all(layer.operands.count == 0 and not layer.counts[0].seen.any() for layer in again.layers)


@pytest.mark.parametrize("change", ["weights", "text", "batch"])
def test_another_scans_state_is_not_taken_up(model: Transformer, ids: np.ndarray, tmp_path: Path, change: str) -> None:
    scan = Scan(model, ids, "sample.txt", checkpoint_hash="h", end_of_document=0, state=tmp_path)
    next(scan.run())
    scan.save()
    scan.close()
    again = Scan(
        model,
        ids[:-1] if change == "text" else ids,
        "other name.txt",
        checkpoint_hash="g" if change == "weights" else "h",
        end_of_document=0,
        batch=4 if change == "batch" else scanning.BATCH,
        state=tmp_path,
    )
    assert again.next == 0


def test_no_document_is_in_both_halves() -> None:
    stream = np.array([5] * 30 + [0] + [6] * 15 + [0] + [7] * 40 + [0])
    first, second = halves(stream, 0)
    assert set(first) & set(second) == {0}
    assert first[-1] == 0
    assert len(first) + len(second) == len(stream)
    # With one document, or one that is nearly all of the text, the middle is the cut.
    first, second = halves(np.array([0] + [5] * 99 + [0]), 0)
    assert abs(len(first) - len(second)) <= 1
    first, second = halves(np.arange(10), None)
    assert (len(first), len(second)) == (5, 5)


def test_windows_cover_the_text_once_and_predict_what_follows() -> None:
    stream = np.arange(1, 108)
    read, target = [], []
    for batch in batches(stream, 10, 4):
        read.append(batch.ids.reshape(-1))
        target.append(batch.targets.reshape(-1))
    assert np.concatenate(read).tolist() == stream.tolist()
    assert np.concatenate(target).tolist() == [*stream[1:].tolist(), -100]


def test_spread_takes_whole_windows_from_everywhere() -> None:
    taken = spread(np.arange(1000), 10, 100)
    assert len(taken) == 100
    assert taken[0] == 0
    assert taken[-1] == 999
    assert spread(np.arange(50), 10, 1000).tolist() == list(range(50))


def test_unusable_text_is_refused(model: Transformer, ids: np.ndarray) -> None:
    with pytest.raises(LegibleError, match="at least 64"):
        Scan(model, ids[:10], "short.txt")
    with pytest.raises(LegibleError, match="holds token"):
        Scan(model, np.full(100, 10**6), "foreign.txt")
    with pytest.raises(LegibleError, match="not finished"):
        assemble(Scan(model, ids, "x.txt"), None)  # type: ignore[arg-type]


def test_a_model_that_gives_no_numbers_is_refused(tokenizer: Tokenizer, ids: np.ndarray) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size))
    with torch.no_grad():
        model.token_embedding.fill_(float("nan"))
    with pytest.raises(LegibleError, match="no numbers"):
        _finished(model, ids[:200])


def test_a_disk_that_takes_nothing_is_one_sentence(model: Transformer, ids: np.ndarray, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be saved"):
        Scan(model, ids, "sample.txt", end_of_document=0, state=blocked)
    scan = Scan(model, ids, "sample.txt", end_of_document=0, state=tmp_path / "state")
    scan.close()  # which takes the empty folder away
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be saved"):
        scan.save()


def test_observing_changes_nothing(model: Transformer, ids: np.ndarray) -> None:
    batch = next(batches(ids, 32, 2))
    before = model(torch.from_numpy(batch.ids)).detach().clone()
    first, losses = observe(model, batch)
    second, again = observe(model, batch)
    assert torch.equal(before, model(torch.from_numpy(batch.ids)).detach())
    np.testing.assert_array_equal(losses, again)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.operands, other.operands)


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_merged_equal_the_scan_of_the_whole(
    model: Transformer, ids: np.ndarray, tokenizer: Tokenizer, shards: int
) -> None:
    whole = _finished(model, ids, contexts=True)
    parts = [_finished(model, ids, contexts=True, shard=(i, shards)) for i in reversed(range(shards))]
    merged = parts[0]
    assert not merged.complete
    for part in parts[1:]:
        merged.merge(part)
    assert merged.complete
    assert merged.done == whole.done == len(ids)
    for mine, its in zip(merged.layers, whole.layers, strict=True):
        for key in ("operands", "channels", "units"):
            one, other = getattr(mine, key), getattr(its, key)
            assert one.count == other.count
            np.testing.assert_array_equal(one.on, other.on)
            np.testing.assert_array_equal(one.off, other.off)
            np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
            np.testing.assert_allclose(one.squares, other.squares, rtol=1e-10)
        assert mine.operands.bins is not None
        np.testing.assert_array_equal(mine.operands.bins, its.operands.bins)
        for half in range(2):
            np.testing.assert_array_equal(mine.counts[half].on, its.counts[half].on)
            np.testing.assert_array_equal(mine.counts[half].seen, its.counts[half].seen)
    np.testing.assert_allclose(merged.loss, whole.loss, rtol=1e-12)
    assert merged.collector is not None
    assert whole.collector is not None
    for name, array in merged.collector.arrays().items():
        np.testing.assert_array_equal(array, whole.collector.arrays()[name], err_msg=name)
    # What is made of them says the same: every list, label and class.
    (_, arrays), (_, expected) = assemble(merged, tokenizer), assemble(whole, tokenizer)
    for name in ("detect.tokens", "detect.on", "operand.agreement", "operand.histogram", "operand.label.class"):
        np.testing.assert_array_equal(arrays[name], expected[name], err_msg=name)


def test_what_is_no_other_shard_is_not_merged(model: Transformer, ids: np.ndarray) -> None:
    first = _finished(model, ids, shard=(0, 2))
    with pytest.raises(LegibleError, match="added already"):
        first.merge(_finished(model, ids, shard=(0, 2)))
    with pytest.raises(LegibleError, match="another scan"):
        first.merge(_finished(model, ids[:-1], shard=(1, 2)))
    with pytest.raises(LegibleError, match="another scan"):
        first.merge(_finished(model, ids, shard=(1, 3)))
    with pytest.raises(LegibleError, match="not finished"):
        first.merge(Scan(model, ids, "x", checkpoint_hash="h", end_of_document=0, shard=(1, 2)))
    with pytest.raises(LegibleError, match="not finished"):
        assemble(first, None)  # type: ignore[arg-type]
    with pytest.raises(LegibleError, match="There is no shard 1000 of 1000"):
        Scan(model, ids, "x", shard=(999, 1000))


def test_a_shard_resumes_with_its_contexts(model: Transformer, ids: np.ndarray, tmp_path: Path) -> None:
    options = {"contexts": True, "shard": (1, 2), "checkpoint_hash": "h", "end_of_document": 0, "state": tmp_path}
    first = Scan(model, ids, "x", **options)  # type: ignore[arg-type]
    for number, _ in enumerate(first.run()):
        if number == 5:
            break
    first.save()
    first.close()
    second = Scan(model, ids, "x", **options)  # type: ignore[arg-type]
    assert second.next == first.next
    for _ in second.run():
        pass
    whole = _finished(model, ids, contexts=True, shard=(1, 2))
    assert second.collector is not None
    assert whole.collector is not None
    for name, array in second.collector.arrays().items():
        assert array.tobytes() == whole.collector.arrays()[name].tobytes(), name
