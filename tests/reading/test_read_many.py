"""`legible read --prompts`: every line one row, in order, whatever the line holds and whenever the process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reading_folder import make_folder
from typer.testing import CliRunner

from app.cli import build
from app.commands import read_many as many
from app.commands.read_many import Batch, partial, read_many
from legible_core import load, read
from legible_core.errors import Conflict, LegibleError, NotFound
from legible_core.pipeline import Engine
from legible_core.registry import Checkpoint

PROMPTS = ["It was the", "", "it was the age\r", " né 🙂 שלום", "\x00\x1b[31m", "the " * 100, "of times"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return make_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(checkpoint) -> Engine:
    return load(checkpoint)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def write(path: Path, lines: list[str | bytes]) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def test_every_line_is_one_row_in_its_order(engine, tmp_path):
    file = write(tmp_path / "prompts.txt", PROMPTS)
    seen = []
    batch = Batch(file, tmp_path / "out.jsonl", {"target": " worst"}, top=3, size=2)
    outcome = read_many(engine, batch, lambda done, lines, row: seen.append((done, lines)))
    made = rows(batch.out)
    assert [row["line"] for row in made] == list(range(1, 8))
    assert seen == [(number, 7) for number in range(1, 8)]
    assert (outcome.lines, outcome.resumed, outcome.failed) == (7, 0, [2, 6])
    assert [row["error"]["code"] for row in made if row["error"]] == ["empty_prompt", "prompt_too_long"]
    assert [row["prompt"] for row in made] == [*PROMPTS[:2], "it was the age", *PROMPTS[3:]]
    for row in made:
        assert (row["reading"] is None) == (row["error"] is not None)
        if row["reading"] is not None:
            one = read(engine, row["prompt"], target=" worst", top=3)
            assert row["reading"]["value"] == pytest.approx(one.value, abs=1e-6)
            assert row["reading"]["digest"] == one.digest
            assert len(row["reading"]["top"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompts.txt"]


BAD = {
    b"caf\xe9": "bad_text",
    b"{": "bad_json",
    b"[1]": "bad_row",
    b'{"prompt": 3}': "bad_row",
    b'{"prompt": "a", "traget": "b"}': "bad_row",
    b'{"prompt": "a", "position": true}': "bad_row",
    b'{"prompt": "a", "target": 3}': "bad_row",
    b'{"prompt": "a\\ud800"}': "bad_text",
    b'{"\\ud800": "a"}': "bad_text",
    b'{"prompt": "a", "position": 99}': "bad_position",
    b'{"prompt": "a", "target": " worst times"}': "bad_target",
    b"": "bad_json",
    b"[" * 100_000: "bad_json",
    b"x" * (9 << 20): "too_large",
}


def test_jsonl_gives_each_line_its_words_and_bad_lines_stop_no_other(engine, tmp_path):
    good = [
        {"prompt": "It was\nthe", "target": " worst", "id": "a"},
        {"prompt": "It was the", "contrast": " age", "target": " worst", "position": 1, "id": 7},
        {"prompt": "It was the", "relative_to": "mean"},
    ]
    lines = [json.dumps(good[0]), *BAD, json.dumps(good[1]), json.dumps(good[2])]
    batch = Batch(write(tmp_path / "p.jsonl", lines), tmp_path / "out.jsonl", {}, top=0)
    outcome = read_many(engine, batch)
    made = rows(batch.out)
    assert outcome.failed == list(range(2, 2 + len(BAD)))
    assert [row["error"]["code"] for row in made[1:-2]] == list(BAD.values())
    first, second, third = made[0], made[-2], made[-1]
    assert (first["id"], second["id"], third["id"]) == ("a", "7", None)
    assert first["reading"]["target"]["text"] == " worst"
    assert (second["reading"]["position"], second["reading"]["relative_to"]) == (1, "contrast")
    assert third["reading"]["relative_to"] == "mean"


@pytest.mark.parametrize("cut", [0, 10, -1, -40])
def test_what_an_ended_process_left_is_gone_on_with(engine, tmp_path, cut):
    file = write(tmp_path / "prompts.txt", PROMPTS)
    batch = Batch(file, tmp_path / "out.jsonl", {}, top=1, size=2)

    def stop(done: int, lines: int, row: dict) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_many(engine, batch, stop)
    assert not batch.out.exists()
    left = partial(batch.out)
    assert [row["line"] for row in rows(left)[1:]] == [1, 2, 3, 4, 5]
    if cut:  # as after a power cut: the first bytes only, or all but the last
        left.write_bytes(left.read_bytes()[:cut])
    outcome = read_many(engine, batch)
    assert outcome.resumed == {0: 5, 10: 0, -1: 4, -40: 4}[cut]
    assert outcome.failed == [2, 6]
    whole = Batch(file, tmp_path / "whole.jsonl", {}, top=1)
    read_many(engine, whole)
    assert batch.out.read_bytes() == whole.out.read_bytes()


def test_a_killed_process_goes_on_and_every_prompt_is_there_once(checkpoint, tmp_path):
    file = write(tmp_path / "prompts.txt", [f"It was the {number}" for number in range(400)])
    out = tmp_path / "out.jsonl"
    words = [sys.executable, "-m", "app.cli", "read", str(checkpoint.path), "--prompts", str(file), "--out", str(out)]
    words += ["--top", "0", "--batch", "1", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 120
        while not (partial(out).exists() and partial(out).read_bytes().count(b"\n") > 3):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(Conflict, match="Another process"):
            read_many(load(checkpoint), Batch(file, out, {}, 0))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert not out.exists()
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["lines"], told["failed"]) == (400, [])
    assert 0 < told["resumed"] < 400
    assert [(row["line"], row["prompt"]) for row in rows(out)] == [
        (number + 1, f"It was the {number}") for number in range(400)
    ]


def test_parquet_holds_the_same_rows(engine, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow (of the parquet extra) is not installed")
    monkeypatch.setattr(many, "GROUP", 3)
    file = write(tmp_path / "prompts.txt", PROMPTS)
    read_many(engine, Batch(file, tmp_path / "out.jsonl", {"target": " worst"}, 2))
    read_many(engine, Batch(file, tmp_path / "out.parquet", {"target": " worst"}, 2))
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for flat, row in zip(table, rows(tmp_path / "out.jsonl"), strict=True):
        assert (flat["line"], flat["prompt"]) == (row["line"], row["prompt"])
        assert flat["error_code"] == (row["error"] or {}).get("code")
        assert (json.loads(flat["reading"]) if flat["reading"] else None) == row["reading"]
        if row["reading"]:
            assert (flat["value"], flat["target"]) == (row["reading"]["value"], " worst")
            assert flat["rank"] == row["reading"]["target"]["rank"]


def test_without_pyarrow_parquet_is_refused_before_anything_is_read(engine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    file = write(tmp_path / "prompts.txt", PROMPTS)
    with pytest.raises(LegibleError, match=r"not installed; in the clone run pip install -e '\.\[parquet\]'"):
        read_many(engine, Batch(file, tmp_path / "out.parquet", {}))
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"]


def test_what_belongs_to_something_else_is_refused(engine, tmp_path):
    file = write(tmp_path / "prompts.txt", ["It was", "the"])
    batch = Batch(file, tmp_path / "out.jsonl", {}, 0)
    partial(batch.out).write_text('{"legible_prompts": 0}\n')
    with pytest.raises(Conflict, match="other prompts, options or weights"):
        read_many(engine, batch)
    partial(batch.out).unlink()
    read_many(engine, batch)
    with pytest.raises(Conflict, match="exists already"):
        read_many(engine, batch)
    for wrong, error in (
        (Batch(file, tmp_path / "out.csv", {}), LegibleError),
        (Batch(file, tmp_path / "no" / "out.jsonl", {}), NotFound),
        (Batch(tmp_path / "none.txt", tmp_path / "o.jsonl", {}), NotFound),
        (Batch(file, tmp_path / "o.jsonl", {}, size=0), LegibleError),
        (Batch(write(tmp_path / "empty.txt", []), tmp_path / "o.jsonl", {}), LegibleError),
        (Batch(file, tmp_path / "o.jsonl", {"target": " worst times"}), LegibleError),
    ):
        with pytest.raises(error):
            read_many(engine, wrong)
    assert not partial(tmp_path / "o.jsonl").exists()


def test_the_command_tells_the_refused_lines_and_the_file(checkpoint, tmp_path):
    file = write(tmp_path / "prompts.txt", PROMPTS)
    words = ["read", str(checkpoint.path), "--prompts", str(file), "--top", "0"]
    done = CliRunner().invoke(build(), [*words, "--out", str(tmp_path / "out.jsonl")])
    assert done.exit_code == 0, done.output
    assert "line 2: The prompt is empty" in done.stderr
    assert "line 6: The prompt has" in done.stderr
    assert "7 rows, 2 of them with an error" in done.stdout
    for wrong in (words, [*words[:2]], [*words[:2], "a", "--out", "x.jsonl"], [*words, "a", "--out", "x.jsonl"]):
        failed = CliRunner().invoke(build(), wrong)
        assert isinstance(failed.exception, LegibleError)
