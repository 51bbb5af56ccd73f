from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pages"))
from page_samples import make_checkpoint

from app.handlers import handlers
from app.main import create_app
from app.services import Services
from app.settings import Settings
from app.worker import Worker
from legible_core.registry import Checkpoint

TOKEN = "a-token-for-tests"


@dataclass
class Live:
    """A workbench that really listens, under a root path and behind a token, with a worker in this process."""

    address: str
    token: str
    checkpoint: Checkpoint
    services: Services


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("checkpoints"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings.load(
        data_dir=tmp_path_factory.mktemp("data"), workers=0, threads=1, device="cpu", port=port, token=TOKEN,
        root_path="/some/where",
    )  # fmt: skip
    app = create_app(settings)
    services: Services = app.state.services
    services.store.add_checkpoint(checkpoint.slug, checkpoint.hash, str(checkpoint.path))
    services.catalogue.refresh()
    worker = Worker(settings, services.store.database, handlers(settings), "test")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none"))
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            if not worker.work_once():
                ended.wait(0.02)

    threads = [threading.Thread(target=server.run), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    while not server.started and threads[0].is_alive():
        time.sleep(0.01)
    yield Live(f"http://127.0.0.1:{port}/some/where", TOKEN, checkpoint, services)
    ended.set()
    threads[1].join()
    server.should_exit = True
    threads[0].join()
