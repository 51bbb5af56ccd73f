"""A real server in a process of its own, with its own worker, and a real Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from app.database import Database
from app.settings import Settings
from app.store import Store
from legible_core.checkpoint import save
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer

ROOT = Path(__file__).resolve().parents[2]
SLUG = "small"
PROMPT = "It was the best of times, it was the"
WORDS = "It was the best of times, it was the worst of times, it was the age of wisdom and of foolishness. " * 40


def chromium() -> str:
    """The browser's path, or a skip with the reason."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium is installed; `apt-get install chromium` brings one")


def make_checkpoint(root: Path) -> Path:
    """3 layers, d = 48, 4 heads, 64 units: random weights, every kind of unit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    root.mkdir(parents=True)
    tokenizer.save(str(root / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    model = Transformer(ModelConfig(3, 48, 4, 128, size, Attention("boolean", (4, 4, 2)), FeedForward(64, 0.5, 0.25)))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if name.endswith("gain") else noise * 0.4)
    return save(root / SLUG, model.eval(), root / "tokenizer.json", {"title": "Small"}, dtype="float32").path


def register(data_dir: Path, folder: Path) -> None:
    """Add the checkpoint to the workbench's database, as `legible add` does."""
    from legible_core.registry import open_checkpoint

    checkpoint = open_checkpoint(folder)
    database = Database.open(Settings.load(data_dir=data_dir), migrate=True)
    Store(database).add_checkpoint(SLUG, checkpoint.hash, str(checkpoint.path))
    database.close()


class Server:
    """`legible serve` as a person starts it, on a free port."""

    def __init__(self, data_dir: Path, port: int = 0) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEGIBLE_")}
        environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--data-dir", str(data_dir),
             "--threads", "1", "--device", "cpu"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"the server said {line!r}"
        self.address = found[0].rstrip("/")
        self.port = int(self.address.rpartition(":")[2])

    def json(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def serving(data_dir: Path, port: int = 0) -> Iterator[Server]:
    server = Server(data_dir, port)
    try:
        yield server
    finally:
        server.stop()


def eventually(condition: Callable[[], Any], seconds: float = 60.0, pause: float = 0.1) -> Any:
    """The first truthy value of `condition()`; fails when there is none in time."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(pause)
