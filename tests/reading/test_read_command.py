"""`legible read`: the whole way from words to a reading, for people and as JSON, and one sentence for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from reading_folder import make_folder
from typer.testing import CliRunner

from app.cli import build
from app.errors_text import as_text
from legible_core.errors import LegibleError
from legible_core.pipeline import Engine
from legible_core.reading import Reading
from legible_core.registry import Checkpoint

PROMPT = "It was the best of times, it was the"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return make_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture
def run(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words: str, model: str | None = None, input: str | None = None) -> str:
        result = CliRunner().invoke(build(), ["read", model or str(checkpoint.path), *words], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_the_json_closes_and_is_a_reading(run, checkpoint):
    data = json.loads(run(PROMPT, "--target", " worst", "--json"))
    reading = Reading.from_json(data)
    assert data["checkpoint"] == {"hash": checkpoint.hash, "slug": "tiny-reader"}
    assert "".join(token["text"] for token in data["tokens"]) == PROMPT
    assert data["target"]["text"] == " worst"
    assert data["target"]["display"] == "·worst"
    assert bytes.fromhex(data["target"]["bytes"]) == b" worst"
    assert data["position"] == len(data["tokens"]) - 1
    total = sum(term["value"] for term in data["floor"])
    total += sum(sum(layer["heads"]) for layer in data["layers"]) + sum(map(sum, data["units"]))
    assert total == pytest.approx(data["target"]["logit"], abs=1e-4)
    assert abs(reading.residual) <= reading.tolerance


def test_options_reach_the_reading(run):
    data = json.loads(
        run(PROMPT, "--target", " worst", "--contrast", " age", "--position", "3", "--top", "7", "--json")
    )
    assert data["relative_to"] == "contrast"
    assert data["contrast"]["display"] == "·age"
    assert data["position"] == 3
    assert len(data["top"]) == 7
    assert data["value"] == pytest.approx(data["target"]["logit"] - data["contrast"]["logit"], abs=1e-6)
    data = json.loads(run(PROMPT, "--relative-to", "mean", "--top", "0", "--json"))
    assert data["relative_to"] == "mean"
    assert data["top"] == []
    assert data["target"]["rank"] == 1


def test_a_person_sees_the_sum_and_the_contributors(run, checkpoint):
    text = run(PROMPT, "--target", " worst", "--top", "5")
    engine = Engine.open(checkpoint)
    reading = engine.read(engine.request(PROMPT, target=" worst"), top=5)
    for row in reading.top:
        assert f"{row.glyph} {row.id}" in text
        assert f"{row.value:+.3f}" in text
    assert f"= {reading.sum:.4f}   logit {reading.value:.4f}   residual" in text
    assert "·worst" in text
    assert f"rank {reading.target.rank}" in text
    assert "legible share" in text


@pytest.mark.parametrize("width", [80, 200])
def test_every_operation_stands_with_its_operands_at_every_width(run, checkpoint, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = run(PROMPT, "--target", " worst", "--top", "40")
    said = " ".join(text.split())
    engine = Engine.open(checkpoint)
    reading = engine.read(engine.request(PROMPT, target=" worst"), top=40)
    assert {"head", "intersection"} <= {row.kind for row in reading.top if row.operands}
    for row in reading.top:
        assert f"{row.glyph} {row.id}" in text
        assert row.operation in text
        for operand in row.operands:
            number = f"{operand.term or 0.0:+.2f}" if row.kind == "head" else f"{operand.value:.2f}"
            assert f"{operand.id.rsplit('.', 1)[-1]} {number}" in said
        assert row.promotes[0].display in text
    assert "promotes" in text
    assert all(len(line) <= width for line in text.splitlines())


def test_prompts_are_read_as_typed(run):
    piped = json.loads(run("-", "--json", input="It was\r\nthe"))
    typed = json.loads(run("It was\nthe", "--json"))
    assert piped["digest"] == typed["digest"]
    assert "".join(token["text"] for token in piped["tokens"]) == "It was\nthe"
    assert [token["display"] for token in piped["tokens"] if token["text"] == "\n"] == ["↵"]


@pytest.mark.parametrize(
    "prompt",
    ["\x00", "\x07\x1b[31m", "🙂 né", "שלום עולם", "Привет, 世界", "a\u0301\u200b\ufeff", "<|endoftext|>"],
    ids=["nul", "control", "emoji", "right-to-left", "mixed", "combining", "special"],
)
def test_any_text_can_be_read(run, prompt):
    data = json.loads(run(prompt, "--json"))
    assert b"".join(bytes.fromhex(token["bytes"]) for token in data["tokens"]) == prompt.encode()
    # Nothing of the prompt may drive the reader's terminal.
    assert "\x1b" not in run(prompt)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["empty"]),
        (["the " * 200], ["tokens", "at most 64"]),
        (["x" * 1_000_001], ["1,000,000"]),
        (["a\ud800b"], ["surrogate"]),
        ([PROMPT, "--position", "99"], ["Position 99", "positions 0 to"]),
        ([PROMPT, "--position", "-1"], ["Position -1"]),
        ([PROMPT, "--target", " worst times"], ["2 tokens", "·worst + ·times", "' worst'"]),
        ([PROMPT, "--target", ""], ["target is empty"]),
        ([PROMPT, "--target", " worst", "--contrast", " worst"], ["target itself"]),
        ([PROMPT, "--contrast", " zebra"], ["tokens", "first piece"]),
        ([PROMPT, "--relative-to", "zero"], ["nothing, mean or contrast"]),
        ([PROMPT, "--relative-to", "contrast"], ["contrast token"]),
        ([PROMPT, "--relative-to", "mean", "--contrast", " age"], ["relative to contrast"]),
        ([PROMPT, "--top", "-1"], ["--top is -1", "0 to 1000"]),
        ([PROMPT, "--top", "1001"], ["--top is 1001"]),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_sentence(run, words, expected):
    with pytest.raises(LegibleError) as failure:
        run(*words)
    for part in expected:
        assert part in failure.value.message
    assert "\n" not in as_text(failure.value).removesuffix(f"\n{failure.value.hint}")


def test_unknown_models_name_those_that_exist(run, tmp_path):
    with pytest.raises(LegibleError, match="There is no checkpoint 'nobody'"):
        run(PROMPT, model="nobody")
    with pytest.raises(LegibleError, match="no checkpoint folder"):
        run(PROMPT, model=str(tmp_path / "nobody"))


def test_the_program_ends_with_status_2_and_the_shared_body(checkpoint, tmp_path):
    command = [sys.executable, "-m", "app.cli", "read", str(checkpoint.path), PROMPT, "--position", "99", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    body = json.loads(done.stderr)
    assert body["error"]["code"] == "bad_position"
    assert "Position 99" in body["error"]["message"]


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"caf\xe9", "bad_text"), (b"x" * 1_000_001, "too_large"), (None, "no_input")],
    ids=["not UTF-8", "too long", "closed"],
)
def test_what_is_no_text_on_standard_input_is_one_sentence(checkpoint, tmp_path, data, code):
    words = [sys.executable, "-m", "app.cli", "read", str(checkpoint.path), "-", "--json"]
    if data is None:
        words = ["sh", "-c", 'exec "$@" <&-', "sh", *words]
    done = subprocess.run(words, input=data, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert json.loads(done.stderr)["error"]["code"] == code


def test_standard_input_keeps_its_line_ends(run):
    data = json.loads(run("-", "--json", "--top", "0", input="It\rwas"))
    assert "".join(token["text"] for token in data["tokens"]) == "It\rwas"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_that_cannot_be_written_is_one_sentence(checkpoint, more):
    words = [sys.executable, "-m", "app.cli", "read", str(checkpoint.path), PROMPT, *more]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "The output cannot be written: No space left on device." in done.stderr


def test_glyphs_are_printed_whatever_the_locale(checkpoint):
    words = [sys.executable, "-m", "app.cli", "read", str(checkpoint.path), PROMPT, "--top", "3"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "·was" in done.stdout.decode("utf-8")
