"""The layer-native token table against a plain loop, and files that are none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import full_disk
from tiny_models import VOCAB, designs, random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.editing.native import NativeTable, entering, measure_native
from legible_core.errors import Corrupt, LegibleError, NotFound, Unavailable


def stream(length: int = 300) -> np.ndarray:
    """Tokens of which some are frequent: squares crowd at the low ids."""
    return (random_ids(length, seed=3).numpy() ** 2 // VOCAB).astype(np.int64)


@pytest.mark.parametrize("config", [designs()[0], designs()[1], designs()[9]])
def test_it_is_the_mean_entering_state_less_the_candidates_mean(config: ModelConfig) -> None:
    model, ids = tiny_model(config), stream()
    table = measure_native(model, ids, candidates=7, min_count=4, batch=3, end_of_document=1, checkpoint_hash="abc")
    counts = np.bincount(ids, minlength=VOCAB)
    assert table.tokens.tolist() == [t for t in np.argsort(-counts, kind="stable") if t != 1][:7]
    assert table.counts.tolist() == counts[table.tokens].tolist()
    assert table.meta["checkpoint"] == "abc"
    windows = [ids[start : start + config.context] for start in range(0, len(ids), config.context)]
    for layer in range(config.n_layers):
        states = torch.cat(
            [
                model.layers[layer].feed_forward_norm(
                    model.trace(torch.from_numpy(window)).layers[layer].feed_forward_in
                )
                for window in windows
            ]
        )
        means = np.stack([states[torch.from_numpy(ids == token)].mean(0).detach().numpy() for token in table.tokens])
        assert np.allclose(table.table[layer], means - means.mean(0), atol=2e-6)
        assert np.allclose(table.centre[layer], means.mean(0), atol=2e-6)
        assert np.allclose(table.mean[layer], states.mean(0).detach().numpy(), atol=2e-6)
        assert np.abs(table.table[layer].mean(0)).max() < 1e-6
    assert np.array_equal(table.row(2, int(table.tokens[3])), table.table[2, 3])


def test_no_hook_stays_behind_even_after_an_error() -> None:
    model = tiny_model()
    with pytest.raises(LegibleError), entering(model):
        model.residual(torch.zeros(1, 99, dtype=torch.long))
    assert not any(layer.feed_forward_norm._forward_hooks for layer in model.layers)


def test_a_table_is_stored_and_other_files_are_refused(tmp_path: Path) -> None:
    table = measure_native(tiny_model(), stream(), candidates=5, checkpoint_hash="abc", corpus="text.txt")
    path = tmp_path / "native.safetensors"
    table.save(path)
    again = NativeTable.load(path, "abc")
    assert np.array_equal(again.table, table.table)
    assert again.meta == table.meta
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(LegibleError, match="was measured on the weights abc"):
        NativeTable.load(path, "def")
    with pytest.raises(NotFound, match="legible native"):
        NativeTable.load(tmp_path / "none.safetensors")
    with pytest.raises(NotFound, match="none of the 5 candidates"):
        table.row(0, 60)
    (tmp_path / "bad").write_bytes(b"no safetensors at all")
    with pytest.raises(Corrupt):
        NativeTable.load(tmp_path / "bad")
    dataclasses.replace(table, mean=table.mean[:, :-1]).save(path)
    with pytest.raises(Corrupt, match="do not fit"):
        NativeTable.load(path)


def test_a_full_disk_leaves_the_old_table(tmp_path: Path) -> None:
    table = measure_native(tiny_model(), stream(), candidates=5, checkpoint_hash="abc")
    path = tmp_path / "native.safetensors"
    table.save(path)
    with full_disk(), pytest.raises(Unavailable, match=r"native\.safetensors cannot be written: File too large\."):
        table.save(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert np.array_equal(NativeTable.load(path, "abc").table, table.table)


def test_texts_that_cannot_be_used_are_refused() -> None:
    model = tiny_model(tiny_config())
    with pytest.raises(LegibleError, match="fewer than two tokens"):
        measure_native(model, np.arange(40) % VOCAB, min_count=3)
    with pytest.raises(LegibleError, match="holds token 99"):
        measure_native(model, np.full(40, 99))
    with torch.no_grad():
        model.token_embedding[:] = float("nan")
    with pytest.raises(LegibleError, match="not finite"):
        measure_native(model, stream())
