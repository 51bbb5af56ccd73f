"""kill -9 at every moment of a save, a disk that fills in the middle of one, Ctrl-C, and the commands of the docs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from training_samples import losses, recipe_of, write_text, write_tokenizer
from typer.testing import CliRunner

from app.cli import build
from app.commands.train import card_fields
from legible_core.errors import Corrupt, LegibleError, Unavailable
from legible_core.registry import open_checkpoint
from legible_core.training import state as module
from legible_core.training.folder import alone
from legible_core.training.history import History
from legible_core.training.loop import Run
from legible_core.training.state import append, cut_log, read_meta, read_state, write_state, writing

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "recipes" / "tiny.toml"
# What a save does to the disk, one moment after another.
MOMENTS = (
    *(("legible_core.training.state", name) for name in ("save_file", "sync")),
    *(("pathlib.Path", name) for name in ("mkdir", "write_text", "rename")),
    ("shutil", "rmtree"),
)

KILLED = """
import importlib, itertools, os, signal, sys
from pathlib import Path
import torch
from legible_core.training.state import read_state, write_state

torch.set_num_threads(1)
folder = Path(sys.argv[1]) / "state"
moments = [tuple(word.split(":")) for word in sys.argv[2:]]

def state(step):
    weights = {"w": torch.full((50,), float(step))}
    return weights, {"adam.w": torch.full((50,), -float(step))}, {"step": step}

def die_at(count):
    calls = itertools.count()
    for owner, name in moments:
        parts = owner.split(".")
        holder = importlib.import_module(owner) if parts[-1][0].islower() else getattr(
            importlib.import_module(".".join(parts[:-1])), parts[-1])
        plain = getattr(holder, name)
        def wrapped(*words, plain=plain, **options):
            before, after = next(calls), None
            if before == count // 2 and count % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = plain(*words, **options)
            if before == count // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(holder, name, wrapped)

write_state(folder, *state(0))
expected, seen, count = 0, [], 0
while True:
    child = os.fork()
    if child == 0:
        die_at(count)
        write_state(folder, *state(expected + 1))
        os._exit(7)
    status = os.waitpid(child, 0)[1]
    found = read_state(folder)
    assert found is not None, f"no state after a kill at moment {count}"
    weights, buffers, meta = found
    assert meta["step"] in (expected, expected + 1), (count, meta)
    assert weights["w"].eq(meta["step"]).all() and buffers["adam.w"].eq(-meta["step"]).all(), count
    expected = meta["step"]
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 7, status
        break
    seen.append(meta["step"])
    count += 1
print(count, len(set(seen)))
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_a_kill_at_any_moment_of_a_save_leaves_one_whole_state(tmp_path: Path) -> None:
    """Before and after every call that touches the disk, each time on top of what the kills before left behind."""
    words = [sys.executable, "-c", KILLED, str(tmp_path), *(":".join(moment) for moment in MOMENTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stderr
    kills, saved = map(int, done.stdout.split())
    assert kills > 20
    assert saved > 2  # some of the killed saves had come far enough to count


def train(folder: Path, *words: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "app.cli", "train", str(TINY), "--out", str(folder), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), **options
    )  # type: ignore[call-overload, no-any-return]


def wait_for(path: Path, lines: int) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {lines} lines")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 steps of recipes/tiny.toml without a break."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:  # before any test has a data folder of its own
        patch.setenv("LEGIBLE_DATA_DIR", str(folder.parent / "data"))
        result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(folder), "--steps", "100"])
    assert result.exit_code == 0, result.output
    assert "51,200 tokens trained; held-out loss" in result.output
    measured = History(folder)
    measured.refresh()
    assert measured.held_out is not None
    said = f"{measured.held_out.loss:.4f} ± {measured.held_out.se:.4f} nats over {measured.held_out.tokens:,} tokens"
    assert said in result.output
    return folder


def same_run(one: Path, other: Path) -> None:
    assert losses(one) == losses(other)
    for name in ("model", "optimiser"):
        file = Path("state") / f"{name}.safetensors"
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_fifty_steps_and_fifty_more_are_a_hundred(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for steps, tokens in ((50, "25,600"), (100, "51,200")):
        result = CliRunner().invoke(build(), ["train", str(TINY), "--steps", str(steps), "--out", str(folder)])
        assert result.exit_code == 0, result.output
        assert f"{tokens} tokens trained" in result.output
    same_run(folder, straight)
    assert losses(folder)[-1] < 0.6 * losses(folder)[0]


def test_killed_and_interrupted_runs_go_on_exactly(straight: Path, tmp_path: Path) -> None:
    """kill -9 between two saves, then Ctrl-C, then to the end."""
    folder = tmp_path / "run"
    running = train(folder, "--save-seconds", "1")
    wait_for(folder / "log.jsonl", 7)
    running.kill()
    running.communicate()
    running = train(folder)
    wait_for(folder / "log.jsonl", 40)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=240)[0]
    assert running.returncode == 130
    meta = read_meta(folder / "state")
    assert meta is not None
    assert f"Stopped; the state of step {meta['step']:,} is saved in {folder}." in said
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(folder)])
    assert result.exit_code == 0, result.output
    same_run(folder, straight)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.argv = ["legible", *sys.argv[2:]]
from app.cli import main
main()
"""


def test_a_disk_that_fills_leaves_the_last_good_state(straight: Path, tmp_path: Path) -> None:
    """A real limit: no file may grow past what the weights and the optimiser take."""
    folder = tmp_path / "run"
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(folder), "--steps", "10"])
    assert result.exit_code == 0, result.output
    before = {path.name: path.read_bytes() for path in (folder / "state").iterdir()}
    sizes = {path.name: len(content) for path, content in ((Path(n), c) for n, c in before.items())}
    limit = (sizes["model.safetensors"] + sizes["optimiser.safetensors"]) // 2  # the first fits, the second does not
    words = ["train", str(TINY), "--out", str(folder), "--steps", "20"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *words],
        capture_output=True, text=True, timeout=240, env=environment(),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"The run cannot be written to {folder}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in (folder / "state").iterdir()} == before
    assert not (folder / "state.new").exists()  # half a state would only hold the room
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(folder), "--steps", "100"])
    assert result.exit_code == 0, result.output
    same_run(folder, straight)


def test_a_stop_before_the_first_step_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the text is read Ctrl-C is no wish yet: it comes as what it is anywhere."""

    def stopped(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("legible_core.training.loop.Run", stopped)
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(tmp_path / "run")])
    assert result.exit_code == 130
    assert "Stopped; nothing was saved yet. The same command starts it anew." in result.output


def test_a_first_save_that_fails_does_not_speak_of_an_earlier_one(tmp_path: Path) -> None:
    def hint() -> str:
        with pytest.raises(Unavailable) as caught, writing(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return str(caught.value.hint)

    assert hint().startswith("Nothing was saved yet; make room")
    write_state(tmp_path / "state", {"w": torch.ones(3)}, {"w": torch.ones(3)}, {"step": 1})
    assert hint().startswith("What was saved before is whole; make room")


@pytest.mark.parametrize("kind", ["save_file", "sync"])
def test_what_a_full_disk_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    tensors = {"w": torch.ones(3)}
    write_state(tmp_path / "state", tensors, tensors, {"step": 1})

    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, kind, full)
    with pytest.raises(Unavailable, match=r"cannot be written to .*: No space left on device"), writing(tmp_path):
        write_state(tmp_path / "state", {"w": torch.zeros(3)}, tensors, {"step": 2})
    monkeypatch.undo()
    found = read_state(tmp_path / "state")
    assert found is not None
    assert found[2] == {"step": 1}
    assert torch.equal(found[0]["w"], torch.ones(3))


def test_a_log_is_cut_to_its_state(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for number in range(1, 6):
        append(log, {"number": number})
    whole = log.read_text()
    with log.open("a") as file:
        file.write('{"number": 6')  # a kill within a line
    cut_log(log, 9)
    assert log.read_text() == whole
    cut_log(log, 3)
    assert [json.loads(line)["number"] for line in log.read_text().splitlines()] == [1, 2, 3]
    cut_log(tmp_path / "none.jsonl", 3)


def test_a_line_that_is_no_step_costs_no_others(tmp_path: Path) -> None:
    """As the pages pass over it: only what was logged after the state goes."""
    log = tmp_path / "log.jsonl"
    odd = ["nonsense", "[" * 5000, "[1]", '{"number": "4"}', '{"number": 1e999}', "\x00\x00", ""]
    kept = [json.dumps({"number": 1}), *odd, json.dumps({"number": 2}), *odd, json.dumps({"number": 3})]
    log.write_text("\n".join([*kept, *odd, json.dumps({"number": 4}), '{"number": 5']))
    cut_log(log, 3)
    assert log.read_text().split("\n") == [*kept, ""]
    # The last line of the state's step may lack its end, as an editor leaves it.
    log.write_text("\n".join(kept))
    cut_log(log, 3)
    append(log, {"number": 4})
    assert log.read_text().split("\n") == [*kept, '{"number": 4}', ""]


def test_a_resumed_run_keeps_what_stands_around_an_odd_line(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    log = folder / "log.jsonl"
    before = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*before[:20], "garbage\n", *before[20:]]))
    last = len(before) + 1
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(folder), "--steps", str(last)])
    assert result.exit_code == 0, result.output
    after = log.read_text().splitlines(keepends=True)
    assert after[:-1] == [*before[:20], "garbage\n", *before[20:]]
    assert json.loads(after[-1])["number"] == last


@pytest.mark.parametrize("broken", ["[]", "{}", '{"step": "3"}', '{"step": -1}', '{"step": 3}', "[" * 5000, "step"])
def test_a_state_that_no_run_writes_is_refused(straight: Path, tmp_path: Path, broken: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    (folder / "state" / "state.json").write_text(broken)
    commands = [["train", str(TINY), "--out", str(folder), "--steps", "120"]]
    if broken != '{"step": 3}':  # what the guard knew is the training's alone
        commands.append(["diagnose", str(folder), "--tokens", "8"])
        assert read_meta(folder / "state") is None
    for words in commands:
        result = CliRunner().invoke(build(), words)
        assert isinstance(result.exception, Corrupt), result.exception
        assert "The training state in" in result.exception.message
        assert "remove the folder to start anew" in result.exception.message


def test_snapshots_are_checkpoints_of_their_own(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt")
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    recipe = recipe_of(snapshot_tokens=(0, 100, 320))
    run = Run(recipe, tmp_path / "run", text, tokenizer=tokenizer)
    weights = {}

    def keep(step: object) -> bool:
        weights[step.tokens] = run.model.token_embedding.detach().clone()  # type: ignore[attr-defined]
        return True

    run.train(keep, snapshot_every=256)
    found = sorted((tmp_path / "run" / "snapshots").iterdir())
    assert [int(path.name) for path in found] == [0, 128, 256, 320, 512]
    from legible_core.checkpoint import load

    for path in found[1:]:
        checkpoint = open_checkpoint(path)
        assert checkpoint.card.fields["tokens"] == str(int(path.name))
        saved = load(checkpoint).token_embedding
        assert torch.equal(saved, weights[int(path.name)].bfloat16().float())
    # When they are kept may change between two sittings.
    Run(recipe_of(), tmp_path / "run", text)
    with pytest.raises(LegibleError, match="more than the 100 that a run keeps"):
        run.train(lambda step: True, snapshot_every=1)


DECAY = ("--decay", "--decay-tokens")


def test_a_decayed_checkpoint_says_what_it_is(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path / "run")
    words = ["train", str(TINY), "--out", str(tmp_path / "run"), "--decay", "--decay-tokens", "1024"]
    result = CliRunner().invoke(build(), [*words, "--ship", str(tmp_path / "shipped")])
    assert result.exit_code == 0, result.output
    first = open_checkpoint(tmp_path / "shipped")
    fields = first.card.fields
    assert (fields["tokens"], fields["decay_tokens"], fields["recipe"]) == ("52224", "1024", "tiny")
    assert "begun_from" not in fields
    # The branch keeps its length.
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(tmp_path / "run"), *DECAY, "2048"])
    assert "decay over 1,024 tokens, and this one would take 2,048" in str(result.exception)
    # A run that begins from it says so on its own card.
    words = ["train", str(TINY), "--out", str(tmp_path / "next"), "--tokenizer", str(first.tokenizer_path)]
    words += ["--from", str(tmp_path / "shipped"), "--from-tokens", "52224", "--steps", "104"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    words = ["train", str(TINY), "--out", str(tmp_path / "next"), "--decay", "--decay-tokens", "1024"]
    result = CliRunner().invoke(build(), [*words, "--ship", str(tmp_path / "again")])
    assert result.exit_code == 0, result.output
    fields = open_checkpoint(tmp_path / "again").card.fields
    assert (fields["begun_from"], fields["begun_at_tokens"]) == (first.hash, "52224")
    assert (fields["tokens"], fields["decay_tokens"]) == ("54272", "1024")


def test_card_of_a_run_that_has_not_decayed() -> None:
    fields = card_fields(recipe_of(), {"tokens": 640, "step": 10, "decay_from": None})
    assert fields["decay_tokens"] == "0"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("recipes/other.toml", "a checkpoint of the recipe recipes/other.toml, and this run is of tiny"),
        (None, "no folder"),
    ],
)
def test_ship_refuses_before_any_step_what_it_may_not_replace(tmp_path: Path, recipe: str | None, reason: str) -> None:
    place = tmp_path / "there"
    if recipe is None:
        place.touch()
    else:
        place.mkdir()
        (place / "README.md").write_text(f"---\nrecipe: {recipe}\n---\n", encoding="utf-8")
    words = ["train", str(TINY), "--out", str(tmp_path / "run"), *DECAY, "1024", "--ship", str(place)]
    result = CliRunner().invoke(build(), words)
    assert isinstance(result.exception, LegibleError)
    assert reason in result.exception.message
    assert not (tmp_path / "run").exists()


def test_a_folder_takes_one_training_at_a_time(tmp_path: Path) -> None:
    with alone(tmp_path / "run"):
        words = ["train", str(TINY), "--out", str(tmp_path / "run"), "--steps", "1"]
        result = CliRunner().invoke(build(), words)
        assert isinstance(result.exception, LegibleError)
        assert "Another training is at work in" in result.exception.message
    assert not (tmp_path / "run").exists()


def test_a_run_that_never_began_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    words = ["train", str(TINY), "--out", str(tmp_path / "run"), "--text", str(tmp_path / "missing.txt")]
    result = CliRunner().invoke(build(), words)
    assert isinstance(result.exception, LegibleError)
    assert "There is no text at" in result.exception.message
    assert list((tmp_path / "data" / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--device", "cuda:9"], "cannot be used"),
        (["--precision", "int8"], "must be auto, float32 or bfloat16"),
        (["--decay", "--steps", "3"], "belong to the constant part"),
        (["--ship", "x"], "needs --decay"),
        (["--from", "no-such-slug", "--from-tokens", "512"], "There is no checkpoint 'no-such-slug'; there are: "),
        # The slug of one that ships, as for any other command.
        (["--from", "novel-gelu", "--from-tokens", "512"], "has another shape than the recipe's [model]"),
    ],
)
def test_what_the_command_refuses(tmp_path: Path, words: list[str], reason: str) -> None:
    result = CliRunner().invoke(build(), ["train", str(TINY), "--out", str(tmp_path / "run"), *words])
    assert isinstance(result.exception, LegibleError)
    assert reason in result.exception.message
