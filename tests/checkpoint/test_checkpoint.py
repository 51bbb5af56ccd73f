"""Round trips; saves that are whole or did not happen."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import SMALL, small_model, tokenizer_spec
from full_disk import full_disk
from safetensors.torch import load_file

from legible_core import checkpoint as module
from legible_core import replace
from legible_core.checkpoint import load, save, write_card
from legible_core.errors import Conflict, Corrupt, LegibleError, Unavailable
from legible_core.folder import WEIGHTS, Card
from legible_core.registry import open_checkpoint
from legible_core.tokens import Tokenizer

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def test_float32_comes_back_bit_for_bit(pristine: Path) -> None:
    model = load(pristine)
    for (name, loaded), (_, saved) in zip(model.state_dict().items(), small_model().state_dict().items(), strict=True):
        assert torch.equal(loaded, saved), name
    assert torch.equal(model(IDS), small_model()(IDS))
    assert not model.training


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_storage_rounds_matrices_once_and_no_vectors(
    tmp_path: Path, tokenizer_path: Path, dtype: Any, error: float
) -> None:
    original = small_model()
    with torch.no_grad():
        original.layers[0].feed_forward.theta += 0.001234567
    save(tmp_path / "half", original, tokenizer_path, dtype=dtype)
    model = load(tmp_path / "half")
    for name, tensor in original.state_dict().items():
        loaded = model.state_dict()[name]
        assert loaded.dtype == torch.float32
        if tensor.ndim == 1:
            assert torch.equal(loaded, tensor), name
        else:
            assert torch.equal(loaded, tensor.to(getattr(torch, dtype)).float()), name
            assert (loaded - tensor).abs().max() <= error * tensor.abs().max() + 1e-7
    assert {t.dtype for t in load_file(tmp_path / "half" / WEIGHTS).values()} == {getattr(torch, dtype), torch.float32}


def test_a_loaded_model_can_be_saved_again(pristine: Path, tmp_path: Path, tokenizer_path: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_path)
    again = save(tmp_path / "again", load(pristine, tokenizer=tokenizer), tokenizer_path, dtype="float32")
    assert again.hash == open_checkpoint(pristine).hash


def test_compute_dtype(pristine: Path) -> None:
    model = load(pristine, dtype=torch.bfloat16)
    assert model.layers[0].attention.query.dtype == torch.bfloat16
    assert model.token_embedding.dtype == model.layers[0].feed_forward.theta.dtype == torch.float32
    assert model(IDS).dtype == torch.float32
    with pytest.raises(LegibleError, match="not supported"):
        load(pristine, dtype=torch.float64)


def test_the_same_model_saves_to_the_same_bytes(tmp_path: Path, tokenizer_path: Path) -> None:
    first = save(tmp_path / "one", small_model(), tokenizer_path)
    second = save(tmp_path / "two", small_model(), tokenizer_path)
    assert first.hash == second.hash
    assert first.hash != save(tmp_path / "three", small_model(seed=1), tokenizer_path).hash


def test_a_card_can_be_rewritten(folder: Path) -> None:
    before = open_checkpoint(folder)
    after = write_card(folder, Card({"title": "New", "hash": "wrong", "loss": "3.0"}, "Prose."))
    assert after.hash == before.hash == after.card.fields["hash"]
    assert after.card == Card({"hash": before.hash, "title": "New", "loss": "3.0"}, "Prose.\n")
    with pytest.raises(LegibleError, match="is not usable"):
        write_card(folder, Card({"a": "b\nc"}))
    assert open_checkpoint(folder).title == "New"


def test_saving_again_replaces_and_drops_names_of_another_hash(folder: Path, tokenizer_path: Path) -> None:
    for name in ("names.json", "names.safetensors"):
        (folder / name).write_text(json.dumps({"checkpoint": open_checkpoint(folder).hash}))
    (folder / ".README.md.saving-12ab").write_text("of a card that was never finished")
    same = save(folder, small_model(), tokenizer_path, dtype="float32")
    assert same.has_names
    other = save(folder, small_model(seed=1), tokenizer_path, dtype="float32")
    assert other.names_state == "none"
    for hash_, state in ((same.hash, "others"), (other.hash, "own")):
        (folder / "names.json").write_text(json.dumps({"checkpoint": hash_}))
        assert other.names_state == ("names.json" if hash_ == same.hash else state)
        (folder / "names.safetensors").write_text("")
        assert (other.names_state, other.has_names) == (state, state == "own")
    assert os.listdir(folder.parent) == [folder.name]


def test_a_folder_with_anything_else_in_it_is_never_replaced(folder: Path, tokenizer_path: Path) -> None:
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(Conflict, match=r"holds 'thesis\.tex'"):
        save(folder, small_model(seed=1), tokenizer_path)
    assert (folder / "thesis.tex").read_text() == "years of work"
    (folder.parent / "file").write_text("")
    with pytest.raises(Conflict, match="no folder of its own"):
        save(folder.parent / "file", small_model(), tokenizer_path)


@pytest.mark.parametrize(("value", "dtype", "said"), [
    (float("nan"), "float32", "holds values that are not finite"),
    (float("inf"), "bfloat16", "holds values that are not finite"),
    (1e6, "float16", "overflows in float16"),
])  # fmt: skip
def test_weights_that_cannot_be_stored_leave_the_old_ones(
    folder: Path, tokenizer_path: Path, value: float, dtype: Any, said: str
) -> None:
    before = open_checkpoint(folder).hash
    model = small_model(seed=1)
    with torch.no_grad():
        model.layers[1].feed_forward.down[0, 0] = value
    with pytest.raises(LegibleError, match=rf"layers\.1\.feed_forward\.down {said}"):
        save(folder, model, tokenizer_path, dtype=dtype)
    assert open_checkpoint(folder).hash == before
    assert os.listdir(folder.parent) == [folder.name]


def test_a_tokenizer_of_another_size_is_not_saved(tmp_path: Path) -> None:
    spec = tokenizer_spec()
    spec["model"]["vocab"]["more"] = 265
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(Corrupt, match="has 266 tokens"):
        save(tmp_path / "new", small_model(), path)
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    with pytest.raises(LegibleError, match="cannot be stored as 'int4'"):
        save(tmp_path / "new", small_model(), path, dtype="int4")  # type: ignore[arg-type]


def test_a_full_disk_leaves_the_old_one(folder: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_checkpoint(folder).hash

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for place, name in ((module, "save_file"), (module, "sync"), (module, "replace_folder")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(Unavailable, match=r"No space left on device; what was there before is untouched\."):
                save(folder, small_model(seed=1), tokenizer_path)
        assert open_checkpoint(folder).hash == before
        assert os.listdir(folder.parent) == [folder.name]
    # safetensors has an error of its own for the same.
    with full_disk(), pytest.raises(Unavailable, match=r"written: File too large; what was there before is untouched"):
        save(folder, small_model(seed=1), tokenizer_path)
    assert open_checkpoint(folder).hash == before
    assert os.listdir(folder.parent) == [folder.name]


def test_without_an_atomic_exchange_the_old_one_comes_back(
    folder: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace, "exchange", lambda *_: False)
    after = save(folder, small_model(seed=1), tokenizer_path)
    assert open_checkpoint(folder).hash == after.hash
    real = os.rename

    def broken(source: Path, target: Path) -> None:
        if ".saving-" in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(Unavailable, match="Input/output error"):
        save(folder, small_model(seed=2), tokenizer_path)
    assert open_checkpoint(folder).hash == after.hash
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_of_a_save_the_folder_is_the_old_one_or_the_new(
    folder: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    """A child is killed at its n-th system call that matters, for every n until it gets through."""
    program = tmp_path / "saver.py"
    program.write_text(
        """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from checkpoint_samples import small_model
from legible_core.checkpoint import save
from legible_core.registry import open_checkpoint
from legible_core.tokens import Tokenizer

folder, tokenizer = sys.argv[1], sys.argv[2]
old, model, seen = open_checkpoint(folder).hash, small_model(seed=7), set()
for moment in range(100):
    pid = os.fork()
    if pid == 0:
        left = [moment]
        def deadly(call):
            def run(*a, **k):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*a, **k)
            return run
        os.fsync, os.rename = deadly(os.fsync), deadly(os.rename)
        os.unlink, os.rmdir = deadly(os.unlink), deadly(os.rmdir)
        save(folder, model, tokenizer, dtype="float32")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    seen.add("old" if open_checkpoint(folder).hash == old else "new")
    if os.WIFEXITED(status):
        break
print(moment, sorted(seen), os.WEXITSTATUS(status))
"""
    )
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1]), "TOKENIZERS_PARALLELISM": "false"}
    arguments = [sys.executable, str(program), str(folder), str(tokenizer_path), str(here)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments, rest = done.stdout.split(" ", 1)
    assert int(moments) > 10
    assert rest == "['new', 'old'] 0\n"
    assert torch.isfinite(load(folder)(IDS)).all()
    assert load(folder).config == SMALL


def test_what_a_killed_save_left_behind_goes_with_a_later_one(folder: Path, tokenizer_path: Path) -> None:
    stale, fresh = (folder.parent / f".small.saving-{n}" for n in ("aaaa", "bbbb"))
    for path in (stale, fresh):
        path.mkdir()
    os.utime(stale, (1, 1))
    save(folder, small_model(), tokenizer_path)
    assert not stale.exists()
    assert fresh.exists()


def test_every_file_has_the_same_mode(tmp_path: Path, tokenizer_path: Path) -> None:
    folder = tmp_path / "ckpt"
    save(folder, small_model(), tokenizer_path)
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
