"""`legible scan` as a person runs it: the whole way, Ctrl-C and on again, and unusable files."""

from __future__ import annotations

import itertools
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from naming_samples import sample_config, sample_model, text
from typer.testing import CliRunner

from app.cli import build
from app.scanning import handle
from app.scanning_report import report
from app.worker import Cancelled
from legible_core.checkpoint import save
from legible_core.errors import Conflict, LegibleError
from legible_core.locks import lock_folder
from legible_core.naming.contexts import Contexts
from legible_core.naming.corpus import pieces, token_stream
from legible_core.naming.names import Names
from legible_core.registry import open_checkpoint
from legible_core.tokens import Tokenizer


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer_path: Path, tokenizer: Tokenizer) -> Path:
    folder = tmp_path / "sample"
    save(folder, sample_model(sample_config(tokenizer.vocab_size)), tokenizer_path, {"title": "Sample"}, "float32")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt.xz"
    joined = "\n<|endoftext|>\n".join(text(seed, 1500) for seed in range(4))
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write(joined + "\n<|endoftext|>\n")
    return path


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def _run(*arguments: str) -> tuple[int, str, LegibleError | None]:
    result = CliRunner().invoke(build(), ["scan", *arguments])
    if result.exception is not None and not isinstance(result.exception, LegibleError | SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.exception if isinstance(result.exception, LegibleError) else None


def test_a_scan_writes_names_beside_the_checkpoint(checkpoint: Path, corpus: Path, data_dir: Path) -> None:
    before = open_checkpoint(checkpoint).hash
    code, printed, _ = _run(str(checkpoint), "--corpus", str(corpus), "--json")
    assert code == 0
    figures = json.loads(printed)
    names = Names.load(checkpoint, checkpoint_hash=before)
    assert names is not None
    assert figures["quality"] == names.quality
    assert figures["corpus"]["name"] == "text.txt.xz"
    assert open_checkpoint(checkpoint).hash == before
    assert not list((data_dir / "scans").glob("*"))
    shown = report(names)
    assert f"perplexity {names.quality['perplexity']:.2f}" in shown
    assert "undefined" not in shown


def test_names_can_go_elsewhere_and_stop_early(checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    code, printed, _ = _run(str(checkpoint), "--corpus", str(corpus), "--out", str(out), "--tokens", "2000")
    assert code == 0
    assert "2,000 tokens" in printed
    assert Names.load(checkpoint) is None
    assert Names.load(out) is not None


def test_an_interrupt_saves_and_the_same_command_goes_on(checkpoint: Path, corpus: Path, data_dir: Path) -> None:
    arguments = ["scan", str(checkpoint), "--corpus", str(corpus), "--batch", "4"]
    root = Path(__file__).parents[2]
    environment = os.environ | {"LEGIBLE_DATA_DIR": str(data_dir), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *arguments], cwd=root, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list((data_dir / "scans").glob("*/scan.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Run the same command" in said
    assert Names.load(checkpoint) is None
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0
    assert "going on from" in result.stderr
    resumed = [(checkpoint / name).read_bytes() for name in ("names.json", "names.safetensors")]
    assert _run(*arguments[1:])[0] == 0
    assert resumed == [(checkpoint / name).read_bytes() for name in ("names.json", "names.safetensors")]


# The same program, saving after every batch and slow enough to be interrupted.
SLOWLY = """
import sys, time
from legible_core.naming import resumable, scan
resumable.SAVE_SECONDS = 0.0
observe = scan.observe_each
def slowly(*arguments, **named):
    time.sleep(0.1)
    return observe(*arguments, **named)
scan.observe_each = slowly
from app.cli import main
sys.argv = ["legible", *sys.argv[1:]]
main()
"""


class _Context:
    """What a worker gives a handler; `stop` is the number of the call between batches that ends the attempt."""

    def __init__(self, payload: dict[str, object], data_dir: Path, stop: int | None = None) -> None:
        self.payload, self.store, self.stages = payload, None, list[object]()
        self.settings = SimpleNamespace(data_dir=data_dir, device="cpu")
        self.calls, self.stop, self.progress = 0, stop, []

    def computes_on(self, device: str) -> None:
        assert device == "cpu"

    def stage(self, name: str, done: float | None = None, total: float | None = None) -> None:
        self.stages.append(name if total is None else (name, done, total))

    def between_batches(self, done: float | None = None, total: float | None = None) -> None:
        self.calls += done is not None
        if done is not None:
            self.progress.append((done, total))
        if self.calls == self.stop:
            raise Cancelled


def test_the_workers_scan_goes_on_where_an_attempt_ended(
    checkpoint: Path, corpus: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_checkpoint(checkpoint)
    monkeypatch.setattr("app.catalogue.Catalogue", lambda store: SimpleNamespace(get=lambda slug: found))
    payload = {"slug": "sample", "corpus": str(corpus)}
    first = _Context(payload, data_dir, stop=5)
    with pytest.raises(Cancelled):
        handle(first)  # type: ignore[arg-type]
    assert Names.load(checkpoint) is None
    # While a terminal has the same scan in hand, the worker's fails with the reason; what is saved stays.
    (state,) = (data_dir / "scans").iterdir()
    let_go = lock_folder(state)
    assert let_go is not None
    with pytest.raises(Conflict, match="The same scan is already running"):
        handle(_Context(payload, data_dir))  # type: ignore[arg-type]
    let_go()
    second = _Context(payload, data_dir)
    outcome = handle(second)  # type: ignore[arg-type]
    assert second.stages == ["load", ("run", first.progress[-1][0], second.progress[0][1]), "store"]
    assert second.progress[0][0] > first.progress[-1][0]
    assert second.progress[-1][0] == second.progress[-1][1]
    names = Names.load(checkpoint, checkpoint_hash=found.hash)
    assert names is not None
    assert outcome.result["quality"] == names.quality
    json.dumps(outcome.result, allow_nan=False)
    assert not list((data_dir / "scans").glob("*"))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("absent.txt", None, "no text at"),
        ("empty.txt", b"", "holds no text"),
        ("only.txt", b"\n<|endoftext|>\n\n<|endoftext|>\n", "holds no text"),
        ("latin.txt", "caf\xe9".encode("latin-1"), "not UTF-8"),
        ("fake.txt.xz", b"this is no xz file", "cannot be read"),
        ("cut.txt.xz", lzma.compress(b"the man saw the house. " * 5000)[:60], "cannot be read"),
        ("short.txt", b"the man", "at least 64"),
    ],
)
def test_unusable_text_is_one_sentence(
    checkpoint: Path, tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, error = _run(str(checkpoint), "--corpus", str(tmp_path / name))
    assert code != 0
    assert error is not None
    assert sentence in error.message
    assert "\n" not in error.message
    assert Names.load(checkpoint) is None


def test_unusable_places_are_one_sentence(checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (("nowhere/at-all", "--corpus", str(corpus)), "no checkpoint folder"),
        ((str(checkpoint), "--corpus", str(tmp_path)), "no text at"),
        ((str(checkpoint), "--corpus", str(corpus), "--out", str(tmp_path / "absent")), "no folder"),
        ((str(checkpoint), "--corpus", str(corpus), "--device", "cuda:7"), "cannot be used"),
        ((str(checkpoint), "--corpus", str(corpus), "--device", "abacus"), "cannot be used"),
    ):
        code, _, error = _run(*arguments)
        assert code != 0
        assert error is not None, arguments
        assert sentence in error.message


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_scan(
    checkpoint: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("app.scanning.tempfile.TemporaryFile", no_file)
    code, _, error = _run(str(checkpoint), "--corpus", str(corpus), "--out", str(tmp_path))
    assert code != 0
    assert error is not None
    assert error.message.endswith("which cannot be written to (Permission denied).")
    assert Names.load(tmp_path) is None


def test_pieces_join_to_the_text_and_cut_where_the_tokenizer_does(tokenizer: Tokenizer) -> None:
    document = text(3, 4000)
    cut = list(pieces(document, 500))
    assert "".join(cut) == document
    assert max(map(len, cut)) <= 500
    blank = [part for part, following in itertools.pairwise(cut) if following.startswith("\n")]
    assert len(blank) > len(cut) // 2
    whole = tokenizer.encode(document)
    # Where a piece ends inside a paragraph the tokens may differ by one at the cut, elsewhere not at all.
    joined = [token for part in cut for token in tokenizer.encode(part)]
    assert abs(len(joined) - len(whole)) <= len(cut) - len(blank)
    assert list(pieces("x" * 1200, 500)) == ["x" * 500, "x" * 500, "x" * 200]
    assert list(pieces("", 500)) == []


def test_the_stream_closes_every_document(tokenizer: Tokenizer) -> None:
    ids, end = token_stream(["the man", "a dog"], tokenizer)
    assert end == 0
    assert ids.tolist() == [*tokenizer.encode("the man"), 0, *tokenizer.encode("a dog"), 0]
    assert len(token_stream(["the man saw the house"] * 50, tokenizer, limit=70)[0]) == 70


def test_a_checkpoint_writes_its_own_text(checkpoint: Path, data_dir: Path) -> None:
    code, printed, _ = _run(str(checkpoint), "--sample", "500", "--json")
    assert code == 0
    figures = json.loads(printed)
    assert figures["contexts"] == {"kind": "sampled", "name": "sampled by this checkpoint", "tokens": 512, "seed": 0}
    assert figures["corpus"]["sampled"] == 0
    names, contexts = Names.load(checkpoint), Contexts.load(checkpoint)
    assert names is not None
    assert contexts is not None
    assert "no measure of its quality" in report(names)
    first = [contexts.contexts_of(operand) for operand in contexts.config.operands(0)]
    assert all(context.source == "sampled by this checkpoint" for found in first for context in found)
    assert _run(str(checkpoint), "--sample", "500", "--json")[1] == printed, "the same seed writes the same text"
    again = Contexts.load(checkpoint)
    assert again is not None
    assert [again.contexts_of(operand) for operand in again.config.operands(0)] == first
    other = json.loads(_run(str(checkpoint), "--sample", "500", "--seed", "1", "--json")[1])
    assert other["corpus"]["sha256"] != figures["corpus"]["sha256"]


def test_statistics_of_a_corpus_with_contexts_of_the_checkpoints_own_text(checkpoint: Path, corpus: Path) -> None:
    assert _run(str(checkpoint), "--corpus", str(corpus), "--tokens", "1000")[0] == 0
    plain, contexts = Names.load(checkpoint), Contexts.load(checkpoint)
    assert contexts is not None
    assert contexts.source.said == "text.txt.xz"
    code, printed, _ = _run(str(checkpoint), "--corpus", str(corpus), "--tokens", "1000", "--sample", "100")
    assert code == 0
    assert "sampled by this checkpoint" in printed
    names, contexts = Names.load(checkpoint), Contexts.load(checkpoint)
    assert names is not None
    assert plain is not None
    assert contexts is not None
    assert names.meta == plain.meta
    assert contexts.source.kind == "sampled"
    before = (checkpoint / "names.json").read_bytes()
    assert _run(str(checkpoint), "--sample", "64", "--contexts-only")[0] == 0
    assert (checkpoint / "names.json").read_bytes() == before


def test_shards_and_their_merge(checkpoint: Path, corpus: Path, data_dir: Path) -> None:
    arguments = [str(checkpoint), "--corpus", str(corpus), "--tokens", "2000"]
    assert _run(*arguments)[0] == 0
    whole = Names.load(checkpoint)
    code, printed, _ = _run(*arguments, "--shard", "2/2")
    assert code == 0
    assert "--merge 2" in printed
    _, _, error = _run(*arguments, "--merge", "2")
    assert error is not None
    assert "shards 1/2 are not finished" in error.message
    assert _run(*arguments, "--shard", "1/2")[0] == 0
    assert _run(*arguments, "--merge", "2")[0] == 0
    merged = Names.load(checkpoint)
    assert whole is not None
    assert merged is not None
    assert merged.quality == pytest.approx(whole.quality)
    assert merged.legibility["layers"] == whole.legibility["layers"]
    assert not list((data_dir / "scans").glob("*")), "the shards' states are gone"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Give --corpus FILE, or --sample TOKENS"),
        (("--sample", "10", "--shard", "3/2"), "write I/N"),
        (("--sample", "10", "--shard", "x"), "write I/N"),
        (("--sample", "10", "--shard", "1/2", "--merge", "2"), "not both"),
        (("--contexts-only",), "Give --corpus FILE"),
        (("--sample", "100000000"), "ask for 1 to 16,777,216"),
    ],
)
def test_options_that_do_not_fit(checkpoint: Path, options: tuple[str, ...], said: str) -> None:
    _, _, error = _run(str(checkpoint), *options)
    assert error is not None
    assert said in error.message


def test_the_worker_samples_where_there_is_no_corpus(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = open_checkpoint(checkpoint)
    monkeypatch.setattr("app.catalogue.Catalogue", lambda _store: SimpleNamespace(get=lambda _slug: found))
    context = _Context({"slug": "sample", "sample": 200}, tmp_path)
    outcome = handle(context)  # type: ignore[arg-type]
    assert context.stages == ["load", ("sample", 0, 200), ("run", 0, 256), "store"]
    assert context.progress[:2] == [(0, 200), (200, 200)]
    assert outcome.result["corpus"]["name"] == "sampled by this checkpoint"
    assert Contexts.load(checkpoint, checkpoint_hash=found.hash) is not None
