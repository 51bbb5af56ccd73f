"""Two processes started by torchrun (gloo, CPU) train as one does, stop together, and end together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_samples import losses, recipe_of, write_text, write_tokenizer

from legible_core.errors import LegibleError
from legible_core.training import loop
from legible_core.training.distributed import check_device, processes, share
from legible_core.training.loop import Run
from legible_core.training.state import read_state

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_text(tmp_path_factory.mktemp("text") / "text.txt")
    write_tokenizer(path, path.with_name("tokenizer.json"))
    return path


def launch(folder: Path, text: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Two processes over processes_run.py."""
    script = Path(__file__).with_name("processes_run.py")
    given = [str(script), str(folder), str(text), str(text.with_name("tokenizer.json")), json.dumps(options)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(script.parent)]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *given],
        capture_output=True, text=True, timeout=400, env=environment,
    )  # fmt: skip


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_two_processes_train_as_one(tmp_path: Path, text: Path) -> None:
    """Micro-batches, a floor that spares channels of some batches only, a revival, a stop that one alone asks for."""
    options = {"floor": 0.48, "micro": 32, "revive": [256]}
    one = Run(recipe_of(**options), tmp_path / "one", text, tokenizer=text.with_name("tokenizer.json"))
    one.train(lambda step: True)
    (tmp_path / "two").mkdir()
    done = launch(tmp_path / "two", text, recipe=options, sittings=[6, 99])
    assert done.returncode == 0, done.stderr
    first, second = (
        [json.loads((tmp_path / "two" / f"sitting-{stop}-rank-{rank}.json").read_text()) for rank in (0, 1)]
        for stop in (6, 99)
    )
    assert [each["numbers"] for each in first] == [list(range(1, 7))] * 2
    assert [each["numbers"] for each in second] == [list(range(7, 11))] * 2
    assert second[0]["world"] == 2
    # Both hold the same weights to the last bit.
    assert second[0]["weights"] == second[1]["weights"]
    for mine, other in zip(lines(tmp_path / "two", "log.jsonl"), lines(tmp_path / "one", "log.jsonl"), strict=True):
        for name in ("loss", "pressure", "gradient_norm", "perplexity"):
            assert mine[name] == pytest.approx(other[name], rel=2e-5), (mine["number"], name)
    # Only one of them writes.
    assert len(lines(tmp_path / "two", "sittings.jsonl")) == 2
    assert lines(tmp_path / "two", "revived.jsonl") == lines(tmp_path / "one", "revived.jsonl")


def test_a_process_that_dies_ends_the_run_and_leaves_its_state(tmp_path: Path, text: Path) -> None:
    (tmp_path / "two").mkdir()
    done = launch(tmp_path / "two", text, recipe={}, sittings=[99], die_at=5, save_seconds=0.0)
    assert done.returncode != 0
    assert "Another process of this run ended, so process 0 of 2 stops too" in done.stderr
    state = read_state(tmp_path / "two" / "state")
    assert state is not None
    assert state[2]["step"] in (4, 5)
    # One process goes on from there as if it had been one all along.
    for name in ("one", "two"):
        run = Run(recipe_of(), tmp_path / name, text, tokenizer=text.with_name("tokenizer.json"))
        run.train(lambda step: True)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-5)


@pytest.mark.parametrize("micro", [4, 8])
def test_shares_of_a_batch_are_the_batch(monkeypatch: pytest.MonkeyPatch, micro: int) -> None:
    """Over all processes the n-th micro-batch holds the same rows, whatever their number."""
    rows = torch.arange(8)[:, None].expand(8, 3)
    for count in (1, 2, 4):
        monkeypatch.setattr("legible_core.training.distributed.world", lambda count=count: count)
        parts = []
        for number in range(count):
            monkeypatch.setattr("legible_core.training.distributed.rank", lambda number=number: number)
            parts.append(share(rows, micro).split(micro // count))
        whole = [torch.cat(part) for part in zip(*parts, strict=True)]
        assert torch.equal(torch.cat(whole), rows)


def test_what_cannot_be_shared_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path) -> None:
    monkeypatch.setattr(loop, "world", lambda: 3)
    with pytest.raises(LegibleError, match="4 contexts cannot be shared equally by 3 processes"):
        Run(recipe_of(), tmp_path / "a", text)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:97", "The device 'cuda:97' cannot be used"),
        ("nonsense", "There is no device 'nonsense'; use cpu, or cuda"),
    ],
)
def test_a_device_that_is_not_there(device: str, said: str) -> None:
    with pytest.raises(LegibleError, match=said):
        check_device(device)


def test_under_torchrun_a_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("LOCAL_RANK", "97")):
        monkeypatch.setenv(name, value)
    with pytest.raises(LegibleError, match="give --device cuda"), processes("cuda:1"):
        pass
    with pytest.raises(LegibleError, match="'cuda:97' cannot be used"), processes("cuda"):
        pass
