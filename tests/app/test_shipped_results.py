"""What a shipped checkpoint came with is not replaced by figures of somebody's short text unless that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import build
from app.paths import models_dir
from legible_core.errors import Conflict

SLUG = "novel-gelu"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["scan", SLUG, "--corpus", "TEXT"], "names.json"),
        (["scan", SLUG, "--sample", "64", "--contexts-only"], "contexts.safetensors"),
        (["account", SLUG, "--corpus", "TEXT"], "accounting.json"),
        (["check", SLUG, "--bands", "--corpus", "TEXT"], "checks.json"),
    ],
)
def test_what_shipped_stays_unless_told_otherwise(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times.")
    words = [str(text) if word == "TEXT" else word for word in words]
    there = models_dir() / SLUG / name
    before = there.read_bytes()
    said = CliRunner().invoke(build(), words).exception
    assert isinstance(said, Conflict)
    assert name in said.message
    assert "--out" in str(said.hint)
    assert there.read_bytes() == before
    # With another folder the same command gets further: to the text, which is too short for it.
    elsewhere = tmp_path / "out" if words[0] != "check" else tmp_path / "checks.json"
    (tmp_path / "out").mkdir()
    if "--contexts-only" not in words:
        further = CliRunner().invoke(build(), [*words, "--out", str(elsewhere)])
        assert further.exit_code != 0
        assert not isinstance(further.exception, Conflict)
        assert "too short" in str(further.exception) or "tokens" in str(further.exception), further.exception
