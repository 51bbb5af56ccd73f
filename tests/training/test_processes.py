"""Two processes started by torchrun (gloo, CPU) train as one does, stop together, and end together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_samples import losses, recipe_of, write_text, write_tokenizer
from typer.testing import CliRunner

from app.cli import build
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


def same_log(one: Path, other: Path) -> None:
    """The same steps with the same figures, up to the order in which numbers are added."""
    for mine, theirs in zip(lines(one, "log.jsonl"), lines(other, "log.jsonl"), strict=True):
        for name in ("loss", "pressure", "gradient_norm", "perplexity"):
            assert mine[name] == pytest.approx(theirs[name], rel=2e-5), (mine["number"], name)


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
    same_log(tmp_path / "two", tmp_path / "one")
    # Only one of them writes.
    assert len(lines(tmp_path / "two", "sittings.jsonl")) == 2
    assert lines(tmp_path / "two", "revived.jsonl") == lines(tmp_path / "one", "revived.jsonl")


def test_the_command_of_the_docs_trains_as_one_process(tmp_path: Path) -> None:
    """Its own words, but for the numbers of processes, the recipe, and the device."""
    found = re.search(r"^torchrun .*$", (ROOT / "docs" / "training.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    other = {
        "torchrun": str(Path(sys.executable).with_name("torchrun")), "8": "2", "cuda": "cpu",
        "recipes/paper/end-to-end/rho-0.5-all-both.toml": "recipes/tiny.toml",
    }  # fmt: skip
    told = found[0].split()
    assert other.keys() <= set(told)
    command = [other.get(word, word) for word in told]
    command.insert(1, "--standalone")  # a free port: another test may hold the usual one
    steps = ["--steps", "5", "--telemetry-every", "0"]
    done = subprocess.run(
        [*command, *steps, "--out", str(tmp_path / "two")],
        capture_output=True, text=True, timeout=400, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2,560 tokens trained; held-out loss") == 1
    words = ["train", str(ROOT / "recipes" / "tiny.toml"), *steps, "--out", str(tmp_path / "one")]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert [line["processes"] for line in lines(tmp_path / "two", "sittings.jsonl")] == [2]
    same_log(tmp_path / "two", tmp_path / "one")


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
