"""Whatever is typed at the commands of edits, checks, bounds and monitors: an answer, or one sentence; no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_folder import make_folder
from typer.testing import CliRunner

from app.cli import build
from legible_core.errors import LegibleError
from legible_core.interventions_text import edits_from_json, edits_of_field, parse_edit
from legible_core.monitor import Condition, Monitor, parse_monitors
from legible_core.registry import Checkpoint
from legible_core.units import parse, parse_place

# Pieces of what is right, and of what people, other programs and foreign keyboards make of it.
IDS = ("L1.u3", "L0.p2.A", "L1.h1", "L1.h0.c2", "L0.h0.p1.B", "L1.u40.m", "L1.residual", "L9.u0", "L1.u99999", "L-1.u0")
NUMBERS = ("0", "1", "0.5", "-2", "nan", "inf", "1e999", "1e-320", "٣", "0x10", "1_000", "9" * 400, "", " 1 ", "½")
WORDS = ("zero", "scale", "set", "clamp", "flip", "flip_a", "mean", "add", "row", "decay", "state", "column", "boil")
BITS = (
    ":",
    "=",
    "@",
    "~",
    ",",
    ".",
    " above ",
    " below ",
    " for ",
    ">",
    "<",
    "\x00",
    "\n",
    "é",
    "🙂",
    "\ud800",
    "AAAA",
)
typed = st.lists(st.sampled_from(IDS + NUMBERS + WORDS + BITS), max_size=8).map("".join) | st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | typed
names = st.sampled_from(
    (
        "name",
        "conditions",
        "gate",
        "component",
        "above",
        "below",
        "for",
        "stop",
        "edits",
        "operation",
        "value",
        "vector",
    )
)
data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5), max_leaves=8
)


def one_sentence(error: LegibleError) -> None:
    assert error.message.strip()
    assert "\n" not in error.message
    assert len(error.message) < 1000
    assert "Traceback" not in error.message
    json.dumps(error.body())


def refused_or_done(call: Callable[[], Any]) -> None:
    try:
        call()
    except LegibleError as error:
        one_sentence(error)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_folder(tmp_path_factory.mktemp("models"))


@settings(max_examples=50)
@given(text=typed)
def test_short_texts(checkpoint: Checkpoint, text: str) -> None:
    config = checkpoint.config
    for read in (parse, parse_place, edits_of_field, edits_from_json, parse_monitors):
        refused_or_done(lambda read=read: read(text))
    refused_or_done(lambda: parse_edit(text).check(config, 8))
    refused_or_done(lambda: Monitor("m", (Condition.parse_line(text),)).check(config))


@settings(max_examples=50)
@given(found=data)
def test_documents(checkpoint: Checkpoint, found: Any) -> None:
    text = json.dumps(found)
    for wrapped in (text, f"[{text}]", f'{{"name": "m", "conditions": [{text}]}}'):
        refused_or_done(lambda wrapped=wrapped: [m.check(checkpoint.config) for m in parse_monitors(wrapped)])
        refused_or_done(lambda wrapped=wrapped: [e.check(checkpoint.config, 8) for e in edits_from_json(wrapped)])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(["check", "necessity", "sufficiency", "path", "bounds", "watch"]),
    words=st.lists(st.tuples(st.sampled_from(range(9)), typed | st.sampled_from(IDS + NUMBERS)), max_size=3),
)
def test_commands(checkpoint: Checkpoint, tmp_path: Path, command: str, words: list[tuple[int, str]]) -> None:
    options = {
        "check": ["--edit", "--target", "--contrast", "--position", "--relative-to", "--top"],
        "necessity": ["--edit", "--target", "--position", "--seeds", "--seed"],
        "sufficiency": ["--edit", "--contrast", "--position", "--seeds"],
        "path": ["--first", "--second", "--operand", "--position", "--edit"],
        "bounds": ["--component", "--radius", "--top", "--position", "--relative-to"],
        "watch": ["--generate", "--temperature", "--seed"],
    }[command]
    given = [command, str(checkpoint.path)]
    if command == "watch":
        file = tmp_path / "monitors.json"
        condition = next((word for _, word in words), "L1.h1 above 0")
        file.write_text(json.dumps({"name": "m", "conditions": [{"component": condition, "above": 0.1}]}))
        given += ["--monitor", str(file)]
    else:
        given += ["it was the"]
    for number, word in words:
        given += [options[number % len(options)], word]
    result = CliRunner().invoke(build(), given, input="it was")
    if isinstance(result.exception, LegibleError):
        one_sentence(result.exception)
    else:
        assert result.exception is None or isinstance(result.exception, SystemExit), (given, result.exception)
        assert result.exit_code in (0, 2), (given, result.output)
