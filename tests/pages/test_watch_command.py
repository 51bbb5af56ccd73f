"""`legible watch`: hits as JSON lines, a summary, and one sentence for what cannot be watched."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import sample_text
from typer.testing import CliRunner, Result

from app.cli import build
from app.commands.watch import Run, _pieces
from legible_core.checkpoint import load
from legible_core.errors import LegibleError
from legible_core.generate import continuation
from legible_core.monitor import parse_monitors
from legible_core.pipeline import Engine
from legible_core.registry import Checkpoint
from legible_core.sampling import Sampling
from legible_core.tokens import Tokenizer
from legible_core.watching import Watch

TEXT = sample_text(5, 120)
TWO = (
    '[{"name": "a", "conditions": [{"component": "L1.p2.A", "above": 0.35}, {"component": "L0.u3"}]},'
    ' {"name": "b", "conditions": [{"component": "L1.h1", "above": 0}]}]'
)


def run(checkpoint: Checkpoint, folder: Path, monitors: str, text: str | bytes, *words: str) -> Result:
    file = folder / "monitors.json"
    file.write_text(monitors, encoding="utf-8")
    given = ["watch", str(checkpoint.path), "--monitor", str(file), *words]
    return CliRunner().invoke(build(), given, input=text)


def test_every_hit_is_a_line_and_the_summary_comes_last(scanned: Checkpoint, tmp_path: Path) -> None:
    result = run(scanned, tmp_path, TWO, TEXT)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["Loading tiny.", "Reading standard input."]
    *lines, last = [json.loads(line) for line in result.stdout.splitlines()]
    tokenizer = Tokenizer.load(scanned.tokenizer_path)
    ids = tokenizer.encode(TEXT)
    watch = Watch(load(scanned), parse_monitors(TWO))
    flags = np.concatenate([seen.hits for seen in watch.read(ids)])
    assert last["summary"]["hits"] == {"a": int(flags[:, 0].sum()), "b": len(ids)}
    assert last["summary"]["tokens"] == len(ids)
    assert last["summary"]["complete"] is True
    for index, name in enumerate("ab"):
        rows = [line for line in lines if line["monitor"] == name]
        assert [row["token"] for row in rows] == np.flatnonzero(flags[:, index]).tolist()
        for row in rows:
            before = tokenizer.decode(ids[: row["token"]])
            assert row["offset"] == len(before.encode())
            assert row["id"] == ids[row["token"]]
            assert (before + row["text"]).endswith(row["context"])
            assert set(row["values"]) == ({"L1.p2.A", "L0.u3"} if name == "a" else {"L1.h1"})


def test_a_generated_text_is_the_plain_one_and_flagged_whole(scanned: Checkpoint, tmp_path: Path) -> None:
    result = run(scanned, tmp_path, TWO, "it was the best", "--generate", "6", "--temperature", "0.7", "--seed", "4")
    *lines, last = [json.loads(line) for line in result.stdout.splitlines()]
    tokenizer = Tokenizer.load(scanned.tokenizer_path)
    ids = tokenizer.encode("it was the best")
    special = {index for index in range(tokenizer.vocab_size) if tokenizer.is_special(index)}
    plain = [token.id for token in continuation(load(scanned), ids, Sampling(6, 0.7, 4), stop=special)]
    assert last["summary"]["text"] == tokenizer.decode(plain)
    rows = [line for line in lines if line["monitor"] == "b"]
    assert [row["id"] for row in rows] == [*ids, *plain]
    assert [row["generated"] for row in rows] == [False] * len(ids) + [True] * len(plain)


def test_a_stop_gate_and_the_ends_of_streams(scanned: Checkpoint, tmp_path: Path) -> None:
    stops = '{"name": "s", "conditions": [{"component": "L1.h1", "above": 0, "for": 5}], "gate": {"stop": true}}'
    *lines, last = [json.loads(line) for line in run(scanned, tmp_path, stops, TEXT).stdout.splitlines()]
    assert ([line["token"] for line in lines], last["summary"]["stopped_by"]) == ([4], "s")
    assert (last["summary"]["tokens"], last["summary"]["complete"]) == (5, False)
    cut = run(scanned, tmp_path, TWO, "it was é".encode()[:-1])
    assert cut.exit_code == 0
    assert json.loads(cut.stdout.splitlines()[-1])["summary"]["unfinished"] == "c3"
    bad = run(scanned, tmp_path, TWO, b"it was \xff the best")
    assert isinstance(bad.exception, LegibleError)
    assert "byte 7 (ff)" in str(bad.exception)
    summary = json.loads(bad.stdout.splitlines()[-1])["summary"]
    assert (summary["complete"], summary["hits"]["b"], summary["bytes"]) == (False, summary["tokens"], 7)


def test_ctrl_c_ends_a_quiet_stream_with_its_summary(scanned: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    pressed: list[bool] = []
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb") as sink:
        sink.write(b"it was the best of times ")
        sink.flush()
        timer = threading.Timer(0.5, lambda: pressed.append(True))
        timer.start()
        Run(Engine.open(scanned), parse_monitors(TWO), lambda: bool(pressed)).over(source, None)
        timer.join()
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert summary["complete"] is False
    assert 0 < summary["tokens"] == summary["hits"]["b"]
    assert list(_pieces(io.BytesIO(b"abc"), lambda: False)) == [b"abc"]


@pytest.mark.parametrize(
    ("monitors", "words", "said"),
    [
        ("{", (), "no JSON"),
        (TWO.replace("L1.h1", "L9.h1"), (), "no layer 9"),
        (TWO.replace('"above": 0}', '"below": 0}'), (), "never hit"),
        (TWO, ("--monitor", "nowhere.json"), "no file of monitors"),
        (TWO, ("--generate", "0"), "ask for 1 to 256"),
        (TWO.replace('"b"', '"a"'), (), "two monitors are called 'a'"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_a_model_is_loaded(
    scanned: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitors: str, words: Any, said: str
) -> None:
    monkeypatch.setattr("app.commands.watch._engine", lambda *_: pytest.fail("a model was loaded"))
    result = run(scanned, tmp_path, monitors, TEXT, *words)
    assert isinstance(result.exception, LegibleError), result.output
    assert said in result.exception.message
