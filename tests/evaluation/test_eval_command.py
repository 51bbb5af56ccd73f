"""`legible eval` as a person runs it: results beside the weights, the twin beside them, Ctrl-C and on again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from evaluation_samples import make_checkpoint, make_model
from typer.testing import CliRunner

from app.cli import build
from legible_core.checkpoint import save
from legible_core.errors import LegibleError
from legible_core.evaluation.records import FILE, Evaluation
from legible_core.registry import Checkpoint, open_checkpoint

ROOT = Path(__file__).parents[2]
# One row a batch, and slowly, so that an interrupt finds it at work.
SLOWLY = """
import sys, time
from legible_core.evaluation import scoring
score = scoring.Scorer.score
def slow(self, batch, groups):
    time.sleep(0.2)
    return score(self, batch, groups)
scoring.Scorer.score = slow
from app.cli import main
sys.argv = ["legible", *sys.argv[1:]]
main()
"""


def run(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(build(), ["eval", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, LegibleError | SystemExit):
        raise result.exception
    return result


def refused(*arguments: str | Path) -> LegibleError:
    error = run(*arguments).exception
    assert isinstance(error, LegibleError)
    return error


def scores(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "evaluations").rglob("*.jsonl"))


def test_results_are_stored_with_the_checkpoint(checkpoint, data, data_dir):
    result = run(checkpoint.path, "--data", data)
    assert result.exit_code == 0
    stored = Evaluation.load(checkpoint.path, checkpoint.hash)
    assert sorted(stored.tasks) == ["arc_easy", "blimp", "lambada", "wikitext2", "winogrande"]
    estimate = stored.tasks["blimp"].estimate("acc")
    assert f"{estimate.value:.4f} ± {estimate.se:.4f}" in result.stdout
    assert "BLiMP: 6 items in 2 paradigms; local files; float32 on cpu" in result.stdout
    assert "npi licensing" in result.stdout
    assert "plural dogs" not in result.stdout
    assert "2 paradigms are pooled here; --paradigms shows each of them." in result.stdout
    assert "0.5000" in result.stdout
    assert "the k paradigms" in result.stdout
    assert open_checkpoint(checkpoint.path).hash == checkpoint.hash
    lines = [json.loads(line) for path in scores(data_dir) for line in path.read_text().splitlines()]
    assert len([line for line in lines if "item" in line]) == 6 + 4 + 3 + 2 + 2


def test_another_task_joins_the_stored_ones_and_asking_again_changes_nothing(checkpoint, data, monkeypatch):
    run(checkpoint.path, "--data", data, "--tasks", "blimp")
    run(checkpoint.path, "--data", data, "--tasks", "lambada")
    first = Evaluation.load(checkpoint.path, checkpoint.hash)
    assert sorted(first.tasks) == ["blimp", "lambada"]
    again = run(checkpoint.path, "--data", data, "--tasks", "blimp", "--paradigms")
    assert "plural dogs" in again.stdout
    assert "6 items are there already" in again.stderr
    second = Evaluation.load(checkpoint.path, checkpoint.hash)
    assert second.tasks["blimp"].estimate("acc") == first.tasks["blimp"].estimate("acc")
    monkeypatch.setattr("app.paths.models_dir", lambda: checkpoint.path.parent)  # as if it shipped
    written = (checkpoint.path / FILE).read_bytes()
    kept = run(checkpoint.path, "--data", data, "--tasks", "blimp")
    assert kept.exit_code == 0
    assert "not stored: sample ships with evaluation.json" in kept.stdout
    assert (checkpoint.path / FILE).read_bytes() == written
    fresh = run(checkpoint.path, "--data", data, "--tasks", "blimp", "--restart", "--replace")
    assert "there already" not in fresh.stderr
    assert f"written to {checkpoint.path / FILE}" in fresh.stdout


@pytest.fixture
def shipped(tmp_path: Path, data: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A checkpoint and its twin in the program's own folder, judged on BLiMP, and `../shared/eval` beside."""
    models = tmp_path / "clone" / "models"
    twin = make_checkpoint(models / "twin", tokenizer_path, seed=1)
    ours = make_checkpoint(models / "ours", tokenizer_path, {"twin": "twin"})
    for each in (ours, twin):
        run(each.path, "--tasks", "blimp", "--data", data, "--twin", "none")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "eval").symlink_to(data)
    monkeypatch.setattr("app.paths.models_dir", lambda: models)
    monkeypatch.chdir(models.parent)
    return ours


def test_a_shipped_checkpoint_is_measured_beside_its_twin_and_what_ships_stays(shipped: Checkpoint, data_dir) -> None:
    files = {path: path.read_bytes() for path in shipped.path.parent.rglob("*") if path.is_file()}
    for path in scores(data_dir):
        path.unlink()
    result = run("ours", "--tasks", "blimp", "--data", "../shared/eval")
    assert result.exit_code == 0
    stored = Evaluation.load(shipped.path, shipped.hash).tasks["blimp"].estimate("acc")
    assert f"{stored.value:.4f} ± {stored.se:.4f}" in result.stdout
    assert "difference" in result.stdout
    assert "measuring it too" not in result.stderr
    assert len(scores(data_dir)) == 1  # measured, not told from the file
    assert "not stored: ours ships with evaluation.json, which stays; --out FILE writes elsewhere" in result.stdout
    assert "measured now, but" not in result.stdout
    as_json = run("ours", "--tasks", "blimp", "--data", "../shared/eval", "--json")
    figure = json.loads(as_json.stdout)["tasks"]["blimp"]["figures"]["acc"]
    assert figure["value"] == pytest.approx(stored.value)
    assert "twin" in figure
    assert "not stored: ours ships" in as_json.stderr
    assert {path: path.read_bytes() for path in shipped.path.parent.rglob("*") if path.is_file()} == files


def test_another_figure_than_the_shipped_one_is_said(shipped: Checkpoint) -> None:
    stored = Evaluation.load(shipped.path, shipped.hash)
    part = stored.tasks["blimp"].parts[0]
    part.values["acc"][0] ^= True
    stored.write(shipped.path / FILE)
    was, now = stored.tasks["blimp"].estimate("acc"), part.estimate("acc")
    assert was.value != now.value
    result = run("ours", "--tasks", "blimp", "--data", "../shared/eval", "--twin", "none")
    assert f"measured now, but {was.value:.4f} in the evaluation.json that ships, on the same items" in result.stdout


def test_other_questions_leave_the_shipped_twin_alone_too(shipped: Checkpoint, data, tmp_path) -> None:
    other = tmp_path / "other" / "blimp"
    other.mkdir(parents=True)
    source = next((data / "blimp").glob("*.jsonl"))
    (other / source.name).write_text("".join(source.read_text().splitlines(keepends=True)[:2]))
    written = [(shipped.path.parent / name / FILE).read_bytes() for name in ("ours", "twin")]
    result = run("ours", "--tasks", "blimp", "--data", other.parent)
    assert result.exit_code == 0
    assert "measuring it too (not stored: it ships with evaluation.json, which --replace replaces)" in result.stderr
    assert "measured now, but" not in result.stdout  # other items
    assert [(shipped.path.parent / name / FILE).read_bytes() for name in ("ours", "twin")] == written


def test_other_weights_drop_the_results_and_the_same_keep_them(checkpoint, data, tokenizer_path):
    run(checkpoint.path, "--data", data, "--tasks", "blimp")
    same = save(checkpoint.path, make_model(checkpoint.config.vocab_size), tokenizer_path, {"title": "x"}, "float32")
    assert Evaluation.load(same.path, same.hash) is not None
    (same.path / f".{FILE}.saving-0123").write_text("left by a kill")
    other = save(same.path, make_model(checkpoint.config.vocab_size, seed=5), tokenizer_path, {}, "float32")
    assert not (other.path / FILE).exists()


def test_the_twin_of_the_card_stands_beside(tmp_path, data, tokenizer_path):
    twin = make_checkpoint(tmp_path / "twin", tokenizer_path, seed=1)
    ours = make_checkpoint(tmp_path / "ours", tokenizer_path, {"twin": str(twin.path)})
    result = run(ours.path, "--data", data, "--tasks", "blimp,lambada", "--json")
    assert "twin has no stored results on blimp, lambada; measuring it too" in result.stderr
    document = json.loads(result.stdout)
    figure = document["tasks"]["blimp"]["figures"]["acc"]
    assert figure["twin"]["value"] == Evaluation.load(twin.path, twin.hash).tasks["blimp"].estimate("acc").value
    assert figure["difference"]["value"] == pytest.approx(figure["value"] - figure["twin"]["value"])
    assert figure["difference"]["se"] is not None
    assert set(document["tasks"]["blimp"]["terms"]) == {"agreement", "npi_licensing"}
    assert set(document["tasks"]["blimp"]["parts"]) == {"plural_dogs", "no_ever"}
    again = run(ours.path, "--data", data, "--tasks", "blimp,lambada")
    assert "measuring it too" not in again.stderr
    assert "difference" in again.stdout
    assert "nats" in again.stdout
    alone = run(ours.path, "--data", data, "--tasks", "blimp", "--twin", "none")
    assert "difference" not in alone.stdout


def test_a_limit_is_not_stored_unless_a_file_is_named(checkpoint, data, tmp_path):
    result = run(checkpoint.path, "--data", data, "--tasks", "blimp", "--limit", "2")
    assert "4 items in 2 paradigms, the first 2 of each" in result.stdout
    assert "not stored" in result.stdout
    assert not (checkpoint.path / FILE).exists()
    run(checkpoint.path, "--data", data, "--tasks", "blimp", "--limit", "2", "--out", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["tasks"]["blimp"]["limit"] == 2


def test_what_cannot_be_done_is_said_at_once(checkpoint, data, tmp_path, monkeypatch):
    assert "tasks are blimp, lambada" in refused(checkpoint.path, "--data", data, "--tasks", "glue").message
    assert "no data folder" in refused(checkpoint.path, "--data", tmp_path / "no", "--tasks", "blimp").message
    assert "no data folder" in refused(checkpoint.path, "--data", tmp_path / "no").message
    assert "no folder of a task" in refused(checkpoint.path, "--data", checkpoint.path).message
    assert "cannot be used" in refused(checkpoint.path, "--data", data, "--device", "cuda:9").message
    assert "no checkpoint" in refused(tmp_path / "nothing", "--data", data).message
    idle = refused(checkpoint.path, "--data", data, "--limit", "2", "--replace")
    assert "--replace has nothing to do with --limit" in idle.message
    assert idle.code == "usage"
    target = tmp_path / "missing" / "out.json"
    assert f"cannot be written to {target}" in refused(checkpoint.path, "--data", data, "--out", target).message


def test_a_folder_that_is_not_writable_points_to_out(checkpoint, data, monkeypatch, tmp_path):
    def deny(*_: object, dir: Path, **__: object) -> None:
        if Path(dir) == checkpoint.path.resolve():
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("app.commands.evaluate.tempfile.TemporaryFile", deny)
    error = refused(checkpoint.path, "--data", data, "--tasks", "blimp")
    assert "Permission denied; name a file with --out FILE" in error.message


def test_an_item_that_the_tokenizer_cannot_represent_names_its_line(checkpoint, tmp_path, data):
    bad = tmp_path / "bad" / "lambada"
    bad.mkdir(parents=True)
    (bad / "a.jsonl").write_text('{"text": "the dog ran"}\n{"text": "the dog \\ud800"}\n')
    message = refused(checkpoint.path, "--data", bad.parent).message
    assert message.startswith("lambada/a.jsonl, line 2: ")
    assert message.endswith("so it cannot be scored.")


def test_an_interrupt_keeps_every_item_and_the_same_command_goes_on(checkpoint, data, data_dir):
    arguments = ["eval", str(checkpoint.path), "--data", str(data), "--batch-tokens", "1"]
    environment = os.environ | {"LEGIBLE_DATA_DIR": str(data_dir), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *arguments], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not any(len(path.read_text().splitlines()) > 2 for path in scores(data_dir)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Run the same command" in said
    kept = sum(len(path.read_text().splitlines()) - 1 for path in scores(data_dir))
    assert 2 <= kept < 17
    result = run(*arguments[1:])
    assert result.exit_code == 0
    assert "there already" in result.stderr
    resumed = Evaluation.load(checkpoint.path, checkpoint.hash)
    assert run(*arguments[1:], "--restart").exit_code == 0
    straight = Evaluation.load(checkpoint.path, checkpoint.hash)
    for name, task in straight.tasks.items():
        assert resumed.tasks[name].estimate(task.figures[0]) == task.estimate(task.figures[0])
    every = [json.loads(line) for path in scores(data_dir) for line in path.read_text().splitlines()]
    keys = [(line["part"], line["item"]) for line in every if "item" in line]
    assert len(keys) == len(set(keys)) == 17


def test_the_card_gets_the_figures(checkpoint: Checkpoint, data: Path, monkeypatch) -> None:
    from legible_core.evaluation.records import card_fields

    run(checkpoint.path, "--data", data, "--tasks", "arc_easy")
    lines = card_fields(Evaluation.load(checkpoint.path, checkpoint.hash).tasks)
    assert set(lines) == {"arc_easy", "arc_easy_se", "arc_easy_acc_norm", "arc_easy_acc_norm_se"}
