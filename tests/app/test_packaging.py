"""The wheel is complete: it serves from any folder, with nothing of the checkout beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from pathlib import Path
from fastapi.testclient import TestClient
import app.main
from app.settings import Settings
print(Path(app.main.__file__).parent)
made = app.main.create_app(Settings.load(data_dir=Path("data"), workers=0))
with TestClient(made, base_url="http://localhost") as client:
    print(client.get("/").status_code, client.get("/static/legible.css").status_code)
    print(*sorted(c.slug for c in client.app.state.services.catalogue.checkpoints()))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as pip would lay it out."""
    pytest.importorskip("hatchling", reason="hatchling (of the dev extra) is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_everything_shipped_is_in_the_wheel(installed: Path) -> None:
    bundled = installed / "app" / "_bundled"
    for name in ("templates", "static", "migrations", "models"):
        shipped = [path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if path.is_file()]
        missing = [str(path) for path in shipped if path.suffix != ".pyc" and not (bundled / path).is_file()]
        assert missing == []
    for package in ("app", "legible_core", "legible_client"):
        modules = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert [str(path) for path in modules if not (installed / path).is_file()] == []
    [entry] = installed.glob("*.dist-info/entry_points.txt")
    assert "legible = app.cli:main" in entry.read_text()
    assert [path.name for path in installed.iterdir() if path.name in ("tests", "migrations", "static")] == []


def test_the_wheel_serves_from_any_folder(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    where, statuses, slugs = done.stdout.splitlines()
    assert where == str(installed / "app")
    assert statuses == "200 200"
    assert slugs.split() == sorted(path.parent.name for path in (ROOT / "models").glob("*/config.json"))
