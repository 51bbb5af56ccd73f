"""What a worker keeps loaded: within its bytes, the longest idle goes first, and what a paused job uses stays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from family_samples import save

sys.path.append(str(Path(__file__).parents[1] / "pages"))
from page_samples import Site, make_checkpoint, open_site, sample_text, without_shipped

from app.handlers import Engines
from app.jobs import BACKGROUND
from app.worker import Context, Outcome
from legible_core.ordinary import adding
from legible_core.registry import Checkpoint


class Bench:
    """A workbench with three tiny checkpoints and a budget for two of them; `loads`: what was loaded, in order."""

    def __init__(self, site: Site, checkpoints: dict[str, Checkpoint]) -> None:
        self.site, self.checkpoints = site, checkpoints
        read: Any = site.worker.handlers["read"]
        self.engines: Engines = read.__self__
        self.slugs = {checkpoint.hash: slug for slug, checkpoint in checkpoints.items()}
        self.loads: list[str] = []
        self.prompts = 0
        load = self.engines._load

        def noted(checkpoint: Checkpoint, dtype: str) -> Any:
            self.loads.append(self.slugs[checkpoint.hash])
            return load(checkpoint, dtype)

        self.engines._load = noted  # type: ignore[method-assign]

    def start_over(self, room_for: int) -> None:
        self.engines._open.clear()
        self.loads.clear()
        self.engines.budget = room_for * max(checkpoint.parameters * 4 for checkpoint in self.checkpoints.values())

    def ask(self, slug: str) -> None:
        """A prompt that nobody asked before, so that it is read and not looked up."""
        self.prompts += 1
        answer = self.site.client.post(
            f"/models/{slug}/readings", data={"prompt": "It was" + " the" * self.prompts}, follow_redirects=False
        )
        assert answer.status_code == 303, answer.text

    def read(self, slug: str) -> None:
        self.ask(slug)
        self.site.work()

    @property
    def kept(self) -> list[str]:
        return [self.slugs[engine.checkpoint.hash] for engine in self.engines._open.values()]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("budget")
    made: dict[str, Checkpoint] = {
        slug: make_checkpoint(root / slug, slug, scan=False, seed=seed) for seed, slug in enumerate(("one", "two"))
    }
    made["plain"] = adding.add(save("gpt2", root / "hf"), root / "data" / "ordinary", slug="plain")
    patch = pytest.MonkeyPatch()
    without_shipped(patch)
    site = open_site(root / "data", made["one"])
    for slug, checkpoint in [*made.items(), ("alias", made["plain"])]:
        site.services.store.add_checkpoint(slug, checkpoint.hash, str(checkpoint.path), move=True)
    site.services.catalogue.refresh()
    yield Bench(site, made)
    site.services.close()
    patch.undo()


def test_the_longest_idle_is_dropped_and_the_same_weights_are_loaded_once(bench: Bench) -> None:
    bench.start_over(room_for=2)
    for slug in ("one", "two", "one", "plain"):
        bench.read(slug)
    assert bench.loads == ["one", "two", "plain"]
    assert bench.kept == ["one", "plain"]  # "two" was idle longest
    bench.read("alias")
    assert len(bench.loads) == 3  # the weights of "plain" under another slug
    bench.read("two")
    assert len(bench.loads) == 4
    assert len(bench.kept) == 2
    assert bench.kept[-1] == "two"
    assert sum(engine.n_bytes for engine in bench.engines._open.values()) <= bench.engines.budget


def test_the_latest_stays_however_small_the_budget(bench: Bench) -> None:
    bench.start_over(room_for=0)
    for slug in ("one", "one", "plain", "plain"):
        bench.read(slug)
    assert bench.loads == ["one", "plain"]
    assert len(bench.kept) == 1


def test_what_a_paused_job_uses_is_neither_dropped_nor_loaded_again(bench: Bench) -> None:
    bench.start_over(room_for=1)
    one = bench.checkpoints["one"]

    def long(context: Context) -> Outcome:
        engine = bench.engines.engine(context, one.hash, "float32")
        bench.ask("two")
        bench.ask("plain")
        bench.ask("one")
        context.between_batches(1, 2)  # all three are read here
        assert bench.engines.engine(context, one.hash, "float32") is engine
        return Outcome({"kept": bench.kept})

    worker = bench.site.worker
    worker.handlers["read-long"] = long
    try:
        job = worker.queue.submit("read-long", "long", {}, priority=BACKGROUND)
        assert worker.work_once()
    finally:
        del worker.handlers["read-long"]
    done = worker.queue.get(job.id)
    assert done.state == "done", done.error
    assert bench.loads == ["one", "two", "plain"]
    assert done.result is not None
    assert set(done.result["kept"]) == {"one", "plain"}
    bench.read("two")
    assert bench.kept == ["two"]  # the job is over, and the budget holds again


def test_a_scan_runs_on_the_weights_that_readings_use(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start_over(room_for=1)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("<|endoftext|>".join(sample_text(seed) for seed in range(4)), encoding="utf-8")

    def twice(*_: Any) -> Any:
        raise AssertionError("the scan loads a second copy")

    monkeypatch.setattr("app.scanning.load_on", twice)
    bench.read("one")
    payload = {"slug": "one", "corpus": str(corpus), "tokens": 600}
    job = bench.site.worker.queue.submit("scan", "scan one", payload, priority=BACKGROUND)
    bench.site.work()
    done = bench.site.worker.queue.get(job.id)
    assert done.state == "done", done.error
    assert bench.loads == ["one"]
    assert (bench.checkpoints["one"].path / "names.json").is_file()
