"""Which runs the workbench knows, what they are called, and the state each is in."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.cli import build
from app.main import create_app
from app.runs import Record, Runs, State, _began, announced
from app.settings import Settings
from legible_core.errors import LegibleError, NotFound

TINY = Path(__file__).resolve().parents[2] / "recipes" / "tiny.toml"
RECIPE = {"model": {"n_layers": 1}, "schedule": {"tokens": 640, "batch_tokens": 64}}


def make(folder: Path, steps: int = 4, last: int = 10, seconds: float = 0.1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    log(folder, steps, last, seconds)
    return folder


def log(folder: Path, steps: int, last: int = 10, seconds: float = 0.1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"number": n, "last": last, "tokens": n * 64, "loss": 4, "perplexity": 54.6, "seconds": seconds})
        for n in range(1, steps + 1)
    ]
    if lines:
        (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder / "log.jsonl", (then, then))


def state(runs: Runs, name: str) -> State:
    with runs.open(name) as run:
        return run.main.state


def test_a_run_is_known_while_and_after_it_is_trained(tmp_path: Path) -> None:
    folder = make(tmp_path / "elsewhere" / "first", steps=0)
    with announced(tmp_path / "data", folder):
        runs = Runs(tmp_path / "data")
        assert list(runs.names()) == ["first"]
        assert state(runs, "first") == "preparing"
        log(folder, 4)
        assert state(runs, "first") == "training"
        with runs.open("first") as run:
            assert run.main.number == 4
            assert run.main.steps == 10
            assert run.main.mean_loss == pytest.approx(4.0, abs=1e-3)
    assert state(Runs(tmp_path / "data"), "first") == "stopped"
    log(folder, 10)
    assert state(Runs(tmp_path / "data"), "first") == "finished"
    with announced(tmp_path / "other", folder, really=False):
        assert not Runs(tmp_path / "other").any()


def test_a_run_that_was_killed_is_stopped_at_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "killed")
    program = f"""
import os
from pathlib import Path
from app.runs import announced
with announced(Path({str(tmp_path / "data")!r}), Path({str(folder)!r})):
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).resolve().parents[2], timeout=60)
    runs = Runs(tmp_path / "data")
    assert not runs.names()["killed"].ended
    assert state(runs, "killed") == "stopped"


def test_a_log_that_stays_silent_is_stopped(tmp_path: Path) -> None:
    """Where no process is known: a folder that was only named."""
    fast, slow = make(tmp_path / "a" / "fast"), make(tmp_path / "a" / "slow", seconds=30.0)
    runs = Runs(tmp_path / "data", (str(tmp_path / "a"),))
    for folder in (fast, slow):
        age(folder, 120)
    assert state(runs, "fast") == "stopped"
    assert state(runs, "slow") == "training", "two minutes are four of its steps"
    age(slow, 700)
    assert state(runs, "slow") == "stopped"


def test_a_process_that_lives_is_training_however_long_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine a step takes minutes, and so does the first of a decay branch."""
    monkeypatch.setattr("app.runs.SILENT_SECONDS", 0.0)
    monkeypatch.setattr("app.runs.SILENT_STEPS", 0)
    folder = make(tmp_path / "a", steps=6)
    age(folder, 100)
    with announced(tmp_path / "data", folder):
        runs = Runs(tmp_path / "data")
        assert state(runs, "a") == "preparing", "it has written nothing yet"
        (folder / "decay-384").mkdir()
        (folder / "decay-384" / "sittings.jsonl").write_text('{"number": 6}\n')
        with runs.open("a") as run:
            assert (run.main.state, run.branches[0].state) == ("stopped", "preparing")
        log(folder / "decay-384", 7, last=9)
        time.sleep(0.05)
        with runs.open("a") as run:
            assert (run.main.state, run.branches[0].state) == ("stopped", "training")
    with Runs(tmp_path / "data").open("a") as run:
        assert run.branches[0].state == "stopped"


def test_another_process_that_got_the_number_of_a_killed_one_is_not_it(tmp_path: Path) -> None:
    began = _began(os.getpid())
    if began is None:
        pytest.skip("this system does not tell when a process began")
    assert 0 <= time.time() - began < 3600
    host = socket.gethostname()
    assert Record(tmp_path, time.time(), os.getpid(), host).alive
    assert Record(tmp_path, began - 120, os.getpid(), host).alive is False
    assert Record(tmp_path, time.time(), os.getpid(), f"{host}-other").alive is None


def test_a_divergence_shows_until_the_run_goes_on(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    (folder / "events.jsonl").write_text('{"number": 5, "event": "diverged", "text": "it rose"}\n')
    runs = Runs(tmp_path / "data", (str(folder),))
    with runs.open("a") as run:
        assert run.main.state == "diverged"
        assert run.main.diverged == "it rose"
    (folder / "events.jsonl").write_text("")
    log(folder, 6)
    assert state(runs, "a") == "training"


def test_decay_branches_have_states_of_their_own(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", steps=10)
    log(folder / "decay-128", 4, last=4)
    log(folder / "decay-640", 12, last=14)
    (folder / "decay-nonsense").mkdir()
    runs = Runs(tmp_path / "data", (str(folder),))
    with runs.open("a") as run:
        assert [(branch.name, branch.state) for branch in run.branches] == [
            ("decay-128", "finished"), ("decay-640", "training"),
        ]  # fmt: skip
        assert run.main.state == "finished"
        assert run.active


def test_while_a_branch_is_trained_the_run_is_not(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", steps=6)
    age(folder, 5)
    log(folder / "decay-384", 7, last=9)
    runs = Runs(tmp_path / "data", (str(folder),))
    with runs.open("a") as run:
        assert run.main.state == "stopped"
        assert run.branches[0].state == "training"


def test_names_are_safe_and_do_not_move(tmp_path: Path) -> None:
    folders = [tmp_path / "x" / "same", tmp_path / "y" / "same", tmp_path / "z" / "a b/…<i>".replace("/", "-")]
    for at, folder in enumerate(folders):
        make(folder)
        with announced(tmp_path / "data", folder):
            pass
        time.sleep(0.01 * at)
    names = Runs(tmp_path / "data").names()
    assert {record.folder: name for name, record in names.items()}[folders[0]] == "same"
    assert len(names) == 3
    assert all(name.replace("-", "").replace(".", "").isalnum() and name.isascii() for name in names)
    # The same folder again, or named besides, is the same run.
    with announced(tmp_path / "data", folders[0]):
        pass
    assert len(Runs(tmp_path / "data", (str(tmp_path / "x"),)).names()) == 3


def test_no_name_ends_as_the_json_of_another_does(tmp_path: Path) -> None:
    for name in ("a", "a.json", "a-json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "recipe.json").write_text("{}")
    names = Runs(tmp_path / "data", (str(tmp_path),)).names()
    assert len(names) == 3
    assert {record.folder.name for record in names.values()} == {"a", "a.json", "a-json"}
    assert not [name for name in names if name.endswith(".json")]


def test_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "gone")
    with announced(tmp_path / "data", folder):
        pass
    shutil.rmtree(folder)
    runs = Runs(tmp_path / "data")
    assert "gone" in runs.names()
    with pytest.raises(NotFound, match="or is gone"), runs.open("gone"):
        pass
    with pytest.raises(NotFound, match=r"no run called '\.\./\.\./etc'"), runs.open("../../etc"):
        pass


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"folder": "relative", "started": 1, "pid": 1, "host": "h", "ended": true}', "[" * 5000,
     '{"folder": 3, "started": 1, "pid": 1, "host": "h", "ended": true}', "x" * (1 << 17)],
)  # fmt: skip
def test_a_record_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").write_text(text)
    assert Runs(tmp_path).names() == {}


def test_training_goes_on_where_the_record_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("a file")
    ran = False
    with announced(tmp_path / "data", tmp_path / "run"):
        ran = True
    assert ran
    assert "will not list this run" in capsys.readouterr().err


def test_folders_are_named_by_a_flag_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.load(data_dir=tmp_path).runs == ()
    monkeypatch.setenv("LEGIBLE_RUNS", "/a, /b")
    assert Settings.load(data_dir=tmp_path).runs == ("/a", "/b")
    assert Settings.load(data_dir=tmp_path, runs=["/c"]).runs == ("/c",)
    assert Settings.load(data_dir=tmp_path, runs=["/c"]).environment()["LEGIBLE_RUNS"] == "/c"


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    """Neither the record nor a page could name it."""
    folder = make(tmp_path / os.fsdecode(b"r\xff"))
    with pytest.raises(LegibleError, match="is not UTF-8 text; give --out another one"), announced(tmp_path, folder):
        pytest.fail("it began")
    make(tmp_path / "good")
    assert list(Runs(tmp_path / "data", (str(tmp_path),)).names()) == ["good"]
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(tmp_path / os.fsdecode(b"s\xff"))])
    assert isinstance(result.exception, LegibleError)
    assert "is not UTF-8 text" in result.exception.message


ODD = {
    "log.jsonl": [*({"number": n, "last": 100, "loss": 4.0, "seconds": 1e308} for n in range(1, 61))],
    "telemetry.jsonl": [{"number": 25, "tokens": math.inf, "layers": [{"write": [1e308, 1e308], "bounded_heads": 1}]}],
    "events.jsonl": [{"number": 5, "event": "spike", "text": "\ud800"}],
    "held_out.jsonl": [{"number": 60, "loss": 1e308, "se": 1.0, "tokens": 10**400}],
}


@pytest.mark.parametrize("file", [*ODD, "recipe.json", "depth"])
def test_pages_of_a_run_with_an_odd_file(tmp_path: Path, file: str) -> None:
    folder = make(tmp_path / "a", last=100)
    if file in ODD:
        (folder / file).write_text("".join(json.dumps(line) + "\n" for line in ODD[file]))
    else:
        deep = json.loads("[" * 500 + "]" * 500)
        (folder / "recipe.json").write_text(json.dumps({**RECIPE, "note": deep if file == "depth" else "\ud800"}))
    made = create_app(Settings.load(data_dir=tmp_path / "data", workers=0, runs=(str(folder),)))
    web = TestClient(made, base_url="http://127.0.0.1:8321", raise_server_exceptions=False)
    for part in ("", ".json", "/now", "/layers", "/csv", "/csv?of=telemetry"):
        answer = web.get(f"/runs/a{part}")
        assert answer.status_code == (404 if file == "depth" else 200), part
        assert not re.search(r"\d{40}", re.sub(r"<script.*?</script>", "", answer.text)), part
    for path in ("/runs", "/runs.json"):
        assert web.get(path).status_code == 200
    made.state.services.close()
