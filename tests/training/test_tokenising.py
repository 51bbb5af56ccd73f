"""Text becomes a file of ids in bounded memory, whole after a kill, and not believed once it was altered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from training_samples import RECIPE, write_text, write_tokenizer

from legible_core.errors import Conflict, LegibleError
from legible_core.training.data import tokenise, train_tokenizer
from legible_core.training.loop import Run
from legible_core.training.sources import Hub, find_source

ROOT = Path(__file__).resolve().parents[2]


def script(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=300, env=environment
    )


def begun(place: Path) -> tuple[Path, Path, Path, Path]:
    """A run of two steps: its text, its tokenizer, its folder, and the file of its token ids."""
    text = write_text(place / "t.txt")
    tokenizer = write_tokenizer(text, place / "tokenizer.json")
    folder = place / "run"
    Run(RECIPE, folder, text, tokenizer=tokenizer).train(lambda step: step.number < 2)
    (ids,) = (folder / "tokens").glob("*.ids")
    return text, tokenizer, folder, ids


# ---- what was altered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["text", "tokens"])
def test_a_change_that_keeps_the_length_is_refused(tmp_path: Path, what: str) -> None:
    text, tokenizer, folder, ids = begun(tmp_path)
    altered = text if what == "text" else ids
    content, before = altered.read_bytes(), altered.stat()
    other = content.replace(b"cat", b"dog") if what == "text" else content[:200] + content[202:] + content[200:202]
    assert other != content
    while altered.stat().st_ctime_ns == before.st_ctime_ns:  # a clock may stand still for some milliseconds
        altered.write_bytes(other)
    if what == "tokens":
        os.utime(altered, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert altered.stat().st_size == before.st_size
    with pytest.raises(Conflict, match="The text has changed since this run began") as caught:
        Run(RECIPE, folder, text, tokenizer=tokenizer)
    assert caught.value.code == "corpus_changed"
    assert f"remove {folder / 'tokens'}, and they are made anew" in str(caught.value.hint)
    if what == "text":
        altered.write_bytes(content)
    else:
        shutil.rmtree(folder / "tokens")
    Run(RECIPE, folder, text, tokenizer=tokenizer).train(lambda step: step.number < 4)


@pytest.mark.parametrize("cut", ["a byte", "all"])
def test_tokens_that_were_cut_are_refused(tmp_path: Path, cut: str) -> None:
    """No whole number of ids, or none: numpy can map neither."""
    text, tokenizer, folder, ids = begun(tmp_path)
    os.truncate(ids, ids.stat().st_size - 1 if cut == "a byte" else 0)
    with pytest.raises(Conflict, match="were altered") as caught:
        Run(RECIPE, folder, text, tokenizer=tokenizer)
    assert caught.value.code == "corpus_changed"
    assert f"remove {folder / 'tokens'}, and they are made anew" in caught.value.message
    shutil.rmtree(folder / "tokens")
    Run(RECIPE, folder, text, tokenizer=tokenizer).train(lambda step: step.number < 4)


def test_tokens_copied_to_another_run_are_taken(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt")
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    first = Run(RECIPE, tmp_path / "run", text, tokenizer=tokenizer)
    first.train(lambda step: step.number < 2)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy, copy_function=shutil.copyfile)  # other times, as any copy may have
    (name,) = (path.name for path in (copy / "tokens").glob("*.ids"))
    (copy / "tokens" / name).touch()
    # Its hash counts again from here on: kept with what the copy's times are.
    for _ in range(2):
        again = Run(
            RECIPE, copy, text, tokenizer=tokenizer, progress=lambda done, total: pytest.fail("tokenised twice")
        )
        assert again.order.ids.tolist() == first.order.ids.tolist()
    kept = json.loads((copy / "tokens" / name).with_suffix(".json").read_text())
    assert kept["mtime_ns"] == (copy / "tokens" / name).stat().st_mtime_ns
    assert kept["sha256"] == json.loads((copy / "corpus.json").read_text())["sha256"]


# ---- what ends in the middle -----------------------------------------------------------------------------------------

HALF = """
import os, signal, sys
from pathlib import Path
from tokenizers import Tokenizer
from legible_core.training import data, sources

os.cpu_count = lambda: 1
data.BATCH = sources.CHUNK = 1 << 13
sources.PIECE = 1 << 12

def die(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

data.tokenise(Path(sys.argv[1]), Tokenizer.from_file(sys.argv[2]), Path(sys.argv[3]), die)
"""


def test_a_tokenising_that_was_killed_half_way_begins_again(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt", 40_000)
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    done = script(HALF, text, tokenizer, tmp_path / "killed")
    assert done.returncode == -signal.SIGKILL, done.stderr
    (partial,) = (tmp_path / "killed").iterdir()
    assert partial.suffix == ".partial"
    read = Tokenizer.from_file(str(tokenizer))
    whole = tokenise(text, read, tmp_path / "whole")
    assert 0 < partial.stat().st_size < whole.ids.nbytes
    again = tokenise(text, read, tmp_path / "killed")
    assert again.sha256 == whole.sha256
    assert again.ids.tolist() == whole.ids.tolist()
    assert sorted(path.suffix for path in (tmp_path / "killed").iterdir()) == [".ids", ".json"]


# ---- what is longer than memory --------------------------------------------------------------------------------------

# The tokenizer splits at spaces and knows no word, so that the time goes into reading. What is held at once grows with
# the cores, so they are two here.
PEAKS = """
import os, re, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from legible_core.training.data import tokenise

os.cpu_count = lambda: 2
tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "?": 1}, unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
line = " ".join(["w" * 99] * 10) + "\\n"

def peak():
    try:  # of this process alone; getrusage also counts what its parent took
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

folder = Path(sys.argv[1])
for megabytes in map(int, sys.argv[2:]):
    path = folder / f"{megabytes}.txt"
    with path.open("w") as file:
        for _ in range(megabytes):
            file.write(line * 1000)
    ids = tokenise(path, tokenizer, folder / "cache").ids
    print(len(ids), int((ids == 0).sum()), path.stat().st_size, peak())
    path.unlink()
"""


def test_a_document_longer_than_memory_is_never_held_whole(tmp_path: Path) -> None:
    """One document of 40 MB takes no more than one of 4: held whole, its text alone would be the difference."""
    done = script(PEAKS, tmp_path, 4, 40)
    assert done.returncode == 0, done.stderr
    (_, _, _, before), (tokens, documents, size, after) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (tokens, documents) == (400_001, 1)
    assert size == 40_000_000
    assert after - before < size // 2


# ---- a dataset that lies on this disk --------------------------------------------------------------------------------


def test_a_folder_in_a_dataset_s_layout_is_read_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def connect(*words: object, **options: object) -> None:
        pytest.fail("a folder on this disk needs no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    bodies = ["the cat\r\nsees", "a dog. ", "not a bird. "]
    lines = [json.dumps({"body": body, "id": number}) + "\n" for number, body in enumerate(bodies)]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "test.jsonl").write_text(lines[1])
    source = find_source(f"hf:{folder}", column="body")
    assert isinstance(source, Hub)
    assert [(piece.text, piece.ends) for piece in source.pieces()] == [
        ("the cat\nsees", True), ("a dog. ", True), ("not a bird. ", True)
    ]  # fmt: skip
    assert [piece.text for piece in find_source(f"hf:{folder}", split="test", column="body").pieces()] == ["a dog. "]
    tokenizer = train_tokenizer(write_text(tmp_path / "t.txt", 50), 260)
    ids = [[*tokenizer.encode(body.replace("\r", "")).ids, 0] for body in bodies]
    assert tokenise(source, tokenizer, tmp_path / "tokens").ids.tolist() == [*ids[0], *ids[1], *ids[2]]
    # Unlike a name of the hub, its files show a change.
    (folder / "train.jsonl").write_text("".join(lines[:2]))
    assert tokenise(source, tokenizer, tmp_path / "tokens").ids.tolist() == ids[0] + ids[1]
    with pytest.raises(LegibleError, match=r"no column 'text' of text; its columns of text: body"):
        list(find_source(f"hf:{folder}").pieces())
