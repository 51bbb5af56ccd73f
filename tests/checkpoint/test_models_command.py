"""`legible models`, `add`, `forget`: the listing, the refusals, the JSON twins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkpoint_samples import sign
from typer.testing import CliRunner, Result

from app import paths
from app.cli import build
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound
from legible_core.registry import open_checkpoint


@pytest.fixture
def shipped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One shipped checkpoint, and a data folder of its own."""
    root = tmp_path / "models"
    shutil.copytree(folder, root / "shipped")
    real = paths.resource
    monkeypatch.setattr(paths, "resource", lambda name: root if name == "models" else real(name))
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    return root


def legible(*words: str) -> Result:
    result = CliRunner().invoke(build(), list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_models_lists_what_is_known_and_makes_no_database(shipped: Path, tmp_path: Path) -> None:
    lines = legible("models").stdout.splitlines()
    identity = open_checkpoint(shipped / "shipped").hash
    assert lines[0].split()[:2] == ["slug", "kind"]
    kind = "Boolean values on 75 % of the heads, half of the units named"
    for part in ("shipped", kind, "50.50", "75% crisp", identity[:12]):
        assert part in lines[1]
    assert str(shipped / "shipped") in lines[1]
    (found,) = json.loads(legible("models", "--json").stdout)
    assert (found["slug"], found["hash"], found["perplexity"]) == ("shipped", identity, 50.5)
    assert found["legibility"] == {"crisp": 0.75}
    assert not (tmp_path / "data").exists()


def test_add_registers_and_models_says_why_a_broken_one_is_refused(shipped: Path, folder: Path) -> None:
    assert "Added mine: Boolean values" in legible("add", str(folder), "--slug", "mine").stdout
    legible("add", str(folder), "--slug", "mine")
    assert json.loads(legible("add", str(folder), "--json").stdout)["slug"] == "small"
    listed = {entry["slug"]: entry for entry in json.loads(legible("models", "--json").stdout)}
    assert set(listed) == {"shipped", "mine", "small"}
    assert listed["mine"]["origin"] == "added"

    (folder / "model.safetensors").write_bytes(b"torn")
    said = legible("models").stdout
    assert "refused: The checkpoint mine is refused: model.safetensors is truncated" in said
    broken = {entry["slug"]: entry for entry in json.loads(legible("models", "--json").stdout)}["mine"]
    assert broken["error"]["code"] == "corrupt_checkpoint"

    assert "Forgot mine" in legible("forget", "mine").stdout
    assert folder.is_dir()
    with pytest.raises(NotFound, match="No checkpoint was added as 'mine'"):
        legible("forget", "mine")


def test_add_refuses_what_load_would(shipped: Path, folder: Path) -> None:
    with pytest.raises(NotFound, match="is neither a folder here nor a hub name; give a folder"):
        legible("add", str(folder / "none"))
    with pytest.raises(LegibleError, match=r"The slug '\.\./x' is not usable"):
        legible("add", str(folder), "--slug", "../x")
    with pytest.raises(Conflict, match="ships with Legible"):
        legible("add", str(folder), "--slug", "shipped")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-4:] = b"\xff\xff\xff\xff"
    (folder / "model.safetensors").write_bytes(weights)
    sign(folder)
    with pytest.raises(Corrupt, match="holds NaN or infinite values"):
        legible("add", str(folder), "--slug", "mine")
    assert "mine" not in legible("models").stdout


def test_a_slug_moves_to_other_weights_only_when_told(shipped: Path, folder: Path, tmp_path: Path) -> None:
    legible("add", str(folder), "--slug", "mine")
    other = Path(shutil.copytree(folder, tmp_path / "Other Model"))
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    sign(other)
    with pytest.raises(Conflict, match="'mine' already names another checkpoint"):
        legible("add", str(other), "--slug", "mine")
    legible("add", str(other), "--slug", "mine", "--move")
    (mine,) = [entry for entry in json.loads(legible("models", "--json").stdout) if entry["slug"] == "mine"]
    assert mine["path"] == str(other)
    assert "Added other-model" in legible("add", str(other)).stdout
