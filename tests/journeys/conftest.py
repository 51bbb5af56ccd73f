from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from journey_samples import Server, chromium, make_checkpoint, register, serving
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.database import Database
from app.handlers import handlers
from app.indexing import look_soon
from app.jobs import Queue
from app.runs import announced
from app.settings import Settings
from app.worker import Worker

sys.path.append(str(Path(__file__).resolve().parents[1] / "pages"))
from run_samples import make_run

# Milliseconds. The libraries' own 5 and 30 s are short on a machine that does more beside the tests.
PATIENCE = 90_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("journey") / "checkpoints")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path) -> Path:
    """A data folder that knows the checkpoint, and the shipped names indexed, as every server would begin with."""
    data_dir = tmp_path_factory.mktemp("prepared") / "data"
    register(data_dir, checkpoint_folder)
    settings = Settings.load(data_dir=data_dir)
    database = Database.open(settings, migrate=False)
    look_soon(Queue(database)).join()
    worker = Worker(settings, database, {"index": handlers(settings)["index"]}, "prepares")
    while worker.work_once():
        pass
    database.forget_log()
    database.close()
    return data_dir


@pytest.fixture
def data_dir(tmp_path: Path, prepared: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "data"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Iterator[Server]:
    """One workbench, which knows a training that ended, for journeys that neither stop it nor count what is in it."""
    data_dir = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("shared") / "data"))
    with announced(data_dir, make_run(data_dir.parent / "seen")):
        pass
    with serving(data_dir) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one file: while Playwright runs, no other test of the process can have an event loop."""
    path = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which every complaint of the browser fails the test."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_navigation_timeout(PATIENCE)
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request",
        lambda request: complaints.append(f"asked {request.url}") if "127.0.0.1" not in request.url else None,
    )
    yield opened
    context.close()
    assert complaints == []
