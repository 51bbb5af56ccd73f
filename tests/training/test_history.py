"""A run's files as they grow: only what was added is read, a cut is seen, and no line can do harm."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from legible_core.errors import NotFound, TooLarge
from legible_core.training import history as module
from legible_core.training.history import Follower, HeldOut, History, read_recipe
from legible_core.training.state import cut_log


def step(number: int, loss: float = 4.0) -> str:
    line = {"number": number, "last": 100, "tokens": number * 64, "loss": loss, "perplexity": 50.0, "seconds": 0.5}
    return json.dumps(line) + "\n"


def layer(bounded: int) -> dict[str, Any]:
    return {
        "attention": {"channels": 4, "saturated": 0.5, "crisp": 0.6, "on": 0.1, "constant": 0.25}, "feed_forward": None,
        "bounded_heads": bounded, "write": [1.0, 3.0, 8.0], "write_ratio": 4.0, "columns": [1.0, 1.0, None],
        "columns_ratio": None, "half_life": {"median": 9.0, "min": 1.0, "max": 90.0, "latches": 0.5},
    }  # fmt: skip


def test_a_log_is_followed_and_a_half_line_waits(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.refresh()
    assert len(history.log) == 0
    assert history.changed_at is None
    log = tmp_path / "log.jsonl"
    log.write_text(step(1) + step(2, 3.5) + step(3)[:20])
    history.refresh()
    assert list(history.log["loss"]) == [4.0, 3.5]
    assert history.log.last == 100
    before = history.marks
    history.refresh()
    assert history.marks == before
    with log.open("a") as file:
        file.write(step(3)[20:] + step(4))
    history.refresh()
    assert list(history.log["number"]) == [1, 2, 3, 4]
    assert list(history.log["tokens"]) == [64, 128, 192, 256]
    assert all(math.isnan(value) for value in history.log["gradient_norm"])
    assert history.marks != before


def test_a_log_that_was_cut_and_written_on_is_read_anew(tmp_path: Path) -> None:
    """As after a kill: shorter, and by the time of the next look as long as before or longer."""
    history, log = History(tmp_path), tmp_path / "log.jsonl"
    log.write_text("".join(step(number) for number in range(1, 9)))
    history.refresh()
    cut_log(log, 5)
    history.refresh()
    assert list(history.log["number"]) == [1, 2, 3, 4, 5]
    with log.open("a") as file:
        file.write("".join(step(number) for number in range(6, 9)))
    history.refresh()
    cut_log(log, 4)
    with log.open("a") as file:
        file.write("".join(step(number, 2.0) for number in range(5, 12)))
    history.refresh()
    assert list(history.log["number"]) == list(range(1, 12))
    assert history.log["loss"][4] == 2.0
    log.unlink()
    history.refresh()
    assert len(history.log) == 0


def test_readings_by_layer(tmp_path: Path) -> None:
    history = History(tmp_path)
    lines = [
        {"number": 25, "tokens": 64, "residual_rms": 1.5, "gain_norm": None, "layers": [layer(2), layer(0)]},
        {"number": 50, "layers": [layer(2)]},  # another number of layers: not this run's
        {"number": 75, "tokens": 64, "residual_rms": 1.6, "gain_norm": 4, "layers": [layer(2), layer(3)]},
    ]
    (tmp_path / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history.refresh()
    readings = history.readings
    assert list(readings.number) == [25, 75]
    assert readings.model["gain_norm"][1] == 4
    first = readings.layers[0]
    assert list(first["attention.saturated"]) == [0.5, 0.5]
    assert math.isnan(first["feed_forward.on"][0])
    assert list(first["write.bounded"]) == [2.0, 2.0]
    assert list(first["write.conventional"]) == [8.0, 8.0]
    assert math.isnan(readings.layers[1]["write.bounded"][0])
    assert readings.layers[1]["write.bounded"][1] == 4.0
    assert readings.has("half_life.median")
    assert not readings.has("columns_ratio")


def test_events_in_the_order_of_their_steps(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"number": 9, "event": "spike", "text": "high"}\n{"number": 12, "event": "diverged", "text": "up"}\n'
        '{"number": 3, "event": "rm -rf", "text": "no"}\n{"number": 4, "event": "spike"}\n'
    )
    (tmp_path / "revived.jsonl").write_text('{"number": 10, "revived": {"attention": 2, "feed_forward": 7}}\n')
    (tmp_path / "sittings.jsonl").write_text('{"number": 0, "device": "cpu", "precision": "float32"}\n')
    history = History(tmp_path)
    history.refresh()
    assert [(event.number, event.event) for event in history.events] == [
        (0, "sitting"), (9, "spike"), (10, "revived"), (12, "diverged"),
    ]  # fmt: skip
    assert history.events[2].text == "new start for operands: 2 of the attention, 7 of the feed-forward"
    assert history.events[0].text == "taken up on cpu, float32"


@pytest.mark.parametrize(
    "line",
    [
        "", "nonsense", "[1, 2]", "null", "[" * 5000, '{"number": "1", "loss": 2}', '{"number": 1}',
        '{"number": 1, "loss": "x"}', '{"number": 1, "loss": {}}', '{"number": 1, "loss": NaN, "tokens": []}',
        '{"number": 1, "loss": 1' + "0" * 400 + "}", '{"number": 1, "layers": []}', '{"number": true, "loss": 2}',
        '{"number": 1' + "0" * 400 + ', "loss": 2, "layers": [{}], "event": "spike", "text": "", "revived": {"a": 1}}',
    ],
)  # fmt: skip
def test_a_line_that_no_run_writes(tmp_path: Path, line: str) -> None:
    for name in ("log", "telemetry", "events", "revived", "sittings"):
        (tmp_path / f"{name}.jsonl").write_text(line + "\n" + (step(2) if name == "log" else ""))
    history = History(tmp_path)
    history.refresh()
    assert history.log["number"][-1] == 2
    assert {len(column) for column in history.log.columns.values()} == {len(history.log)}
    assert len(history.readings) == 0
    assert all(abs(event.number) < 1 << 53 for event in history.events)
    with (tmp_path / "telemetry.jsonl").open("a") as file:
        file.write(json.dumps({"number": 3, "layers": [layer(1)]}) + "\n")
    history.refresh()
    assert [len(column) for column in history.readings.layers[0].values()] == [1] * len(history.readings.layers[0])
    assert len(history.readings) == 1


@pytest.mark.parametrize("odd", ["Infinity", "-1e999", "NaN", "1e308", "1" + "0" * 400, '"4"', "null"])
def test_a_number_that_no_run_has_is_none(tmp_path: Path, odd: str) -> None:
    """In every column, and no line is lost for it."""
    line = step(1).replace("0.5", odd).replace("50.0", odd)
    (tmp_path / "log.jsonl").write_text(line + step(2).replace('"tokens": 128', f'"tokens": {odd}'))
    reading = json.dumps({"number": 1, "tokens": "TAKEN", "residual_rms": "TAKEN", "layers": [layer(1)]})
    reading = reading.replace('"TAKEN"', odd).replace("8.0", odd).replace("90.0", odd)
    (tmp_path / "telemetry.jsonl").write_text(reading + "\n")
    whole = {"number": 2, "loss": 2.5, "se": 0.1, "tokens": 64}
    broken = [json.dumps({**whole, name: "TAKEN"}).replace('"TAKEN"', odd) for name in whole]
    (tmp_path / "held_out.jsonl").write_text("\n".join([json.dumps(whole), *broken]) + "\n")
    history = History(tmp_path)
    history.refresh()
    log, readings = history.log, history.readings
    assert list(log["number"]) == [1, 2]
    assert math.isnan(log["seconds"][0])
    assert math.isnan(log["perplexity"][0])
    assert math.isnan(log["tokens"][1])
    assert all(math.isnan(readings.model[name][0]) for name in ("tokens", "residual_rms"))
    assert all(math.isnan(readings.layers[0][name][0]) for name in ("write.h2", "write.largest", "half_life.max"))
    assert readings.layers[0]["write.h1"][0] == 3.0
    assert history.held_out == HeldOut(**whole)


def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    half = "a\ud800b"
    (tmp_path / "events.jsonl").write_text(json.dumps({"number": 1, "event": "spike", "text": half}) + "\n")
    (tmp_path / "revived.jsonl").write_text(json.dumps({"number": 2, "revived": {half: 3, "b": 10**400}}) + "\n")
    (tmp_path / "sittings.jsonl").write_text(json.dumps({"number": 3, "device": half}) + "\n")
    history = History(tmp_path)
    history.refresh()
    assert [event.text for event in history.events] == [
        "a\ufffdb", "new start for operands: 3 of the a\ufffdb", "taken up on a\ufffdb",
    ]  # fmt: skip
    recipe = {"model": {half: [half]}, "schedule": {}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert read_recipe(tmp_path) == {"model": {"a\ufffdb": ["a\ufffdb"]}, "schedule": {}}


def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    """Reading one would wait for ever."""
    (tmp_path / "recipe.json").symlink_to("/dev/zero")
    (tmp_path / "log.jsonl").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "events.jsonl")
    history = History(tmp_path)
    history.refresh()
    assert (len(history.log), history.events) == (0, [])
    with pytest.raises(NotFound, match="There is no run"):
        read_recipe(tmp_path)


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 200)
    taken: list[dict[str, Any]] = []
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": "' + "x" * 500 + '"}\n{"b": 1}\n')
    Follower(path, taken.append, taken.clear).refresh()
    assert taken == [{"b": 1}]
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(TooLarge, match="at most 100"):
        Follower(path, taken.append, taken.clear).refresh()


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", '{"model": 1, "schedule": {}}', "[" * 5000,
     '{"model": {}, "schedule": {}, "x": ' + "[" * 500 + "]" * 500 + "}"],
)  # fmt: skip
def test_a_folder_without_a_run(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(NotFound, match="There is no run"):
        read_recipe(tmp_path)
