"""A small scanned checkpoint whose vocabulary and card are hostile, and a workbench over it without workers."""

from __future__ import annotations

import atexit
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from app.handlers import handlers
from app.main import create_app
from app.scanning import finish, prepare
from app.services import Services
from app.settings import Settings
from app.worker import Worker
from legible_core.checkpoint import save
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import NotFound
from legible_core.folder import Card
from legible_core.model import Transformer
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.token_service import TokenizerService

SLUG = "tiny"
HOSTILE = "<script>alert(1)</script>\"'&"
TOKENS = ["<img src=x onerror=alert(2)>", '"><svg onload=alert(3)>']
WORDS: list[str] = str.split(
    "it was the best of times worst age wisdom he she her his a no not never more most than could have been"
)


def sample_text(seed: int, words: int = 1500) -> str:
    generator = np.random.default_rng(seed)
    weights = 1.0 / (3 + np.arange(len(WORDS)))
    chosen = generator.choice(WORDS, size=words, p=weights / weights.sum())
    return " ".join(chosen) + TOKENS[seed % 2] + ".\n"


def make_tokenizer(path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([sample_text(7, 4000)], trainer)
    tokenizer.add_tokens(TOKENS)
    tokenizer.save(str(path))
    return path


def make_checkpoint(
    root: Path, slug: str = SLUG, *, scan: bool = True, seed: int = 0, units: FeedForward | None = None
) -> Checkpoint:
    """2 layers, d = 32, 4 heads of 8 (the last two of layer 1 linear), 48 units of every kind, context 64."""
    root.mkdir(parents=True, exist_ok=True)
    path = make_tokenizer(root / f"{slug}.tokenizer.json")
    vocabulary = Tokenizer.from_file(str(path)).get_vocab_size()
    config = ModelConfig(2, 32, 4, 64, vocabulary, Attention("boolean", (4, 2)), units or FeedForward(48, 0.5, 0.25))
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if name.endswith("gain") else noise * (0.5 if parameter.ndim > 1 else 1.5))
    card = Card({"title": f"Tiny {HOSTILE}", "loss": "5.5"}, f"A card.\n{HOSTILE}")
    checkpoint = save(root / slug, model.eval(), path, card, dtype="float32")
    if scan:
        corpus = root / "corpus.txt"
        corpus.write_text("<|endoftext|>".join(sample_text(i) for i in range(4)), encoding="utf-8")
        found = prepare(checkpoint, corpus, root / "scans", device="cpu")
        for _ in found.run():
            pass
        finish(found, checkpoint, None)
    return open_checkpoint(checkpoint.path)


@dataclass
class Site:
    """The workbench as a browser sees it, and a worker that works when told to."""

    client: TestClient
    services: Services
    checkpoint: Checkpoint
    worker: Worker

    def work(self) -> None:
        """Run every job that waits."""
        while self.worker.work_once():
            pass

    def forget_pages(self) -> None:
        """As after a restart: nothing is kept in memory."""
        self.client.app.state.reading_pages.clear()  # type: ignore[attr-defined]

    def read(self, prompt: str, **query: object) -> str:
        """Read a prompt and return the explicit address of its page."""
        answer = self.client.post(f"/models/{SLUG}/readings", data={"prompt": prompt})
        assert answer.status_code == 303, answer.text
        self.work()
        address = answer.headers["location"]
        if query:
            address = address.partition("?")[0] + "?" + "&".join(f"{k}={v}" for k, v in query.items())
            self.client.get(address)
            self.work()
        answer = self.client.get(address)
        return answer.headers["location"] if answer.status_code == 303 else address


class Kept(TokenizerService):
    """Tokenizer processes that outlive a workbench: most workbenches of tests ask one of them once."""

    def close(self) -> None:
        """Only `end` does."""

    def end(self) -> None:
        super().close()


TOKENIZERS = Kept()
atexit.register(TOKENIZERS.end)


def open_site(folder: Path, checkpoint: Checkpoint, **settings: object) -> Site:
    made = Settings.load(**{"data_dir": folder, "workers": 0, "threads": 1, "device": "cpu", **settings})
    app = create_app(made)
    services: Services = replace(app.state.services, tokenizers=TOKENIZERS)
    app.state.services = services
    services.store.add_checkpoint(checkpoint.slug, checkpoint.hash, str(checkpoint.path))
    services.catalogue.refresh()
    client = TestClient(app, base_url="http://127.0.0.1:8321", follow_redirects=False)
    return Site(client, services, checkpoint, Worker(made, services.store.database, handlers(made), "test"))


def without_shipped(patch: pytest.MonkeyPatch) -> None:
    """No shipped checkpoints, neither for pages nor for jobs: after a scan or a search all their names are indexed."""

    def none() -> Path:
        raise NotFound("Nothing is shipped.")

    patch.setattr("app.catalogue.models_dir", none)


class _Reader(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader


def links(html: str) -> set[str]:
    """Every address that a page points to or posts to."""
    names = ("href", "action", "src", "hx-get", "data-contrast")
    return {attrs[n] for _, attrs in parsed(html).tags for n in names if attrs.get(n)}


def title(html: str) -> str:
    found = re.search(r"<title>(.*?)</title>", html, re.DOTALL)
    assert found is not None
    return found[1]
