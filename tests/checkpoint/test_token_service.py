"""A hostile tokenizer.json or text costs its own call one sentence, and nobody else anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import tokenizer_spec

from legible_core import token_service
from legible_core.errors import Corrupt, LegibleError, NotFound, TooLarge, Unavailable
from legible_core.token_service import TokenizerService


@pytest.fixture(scope="module")
def service() -> Iterator[TokenizerService]:
    with TokenizerService(timeout=2.0) as service:
        service.start()
        yield service


def write(path: Path, spec: dict[str, Any]) -> Path:
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def slow(folder: Path) -> Path:
    """A Split pattern that backtracks at every character, each time just under the engine's own limit."""
    pattern = {"Regex": r"(x{1,12}){1,6}y"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return write(folder / "slow.json", tokenizer_spec() | {"pre_tokenizer": split})


def test_answers_as_the_tokenizer_does(service: TokenizerService, tokenizer_path: Path) -> None:
    async def ask() -> tuple[Any, ...]:
        ids = await service.encode(tokenizer_path, "the worst\r\n")
        return (
            ids,
            await service.decode(tokenizer_path, ids),
            await service.tokenise(tokenizer_path, " worst"),
            await service.describe(tokenizer_path, ids[-1:]),
            await service.target(tokenizer_path, " worst"),
        )

    ids, text, pieces, last, target = asyncio.run(ask())
    assert text == "the worst\n"
    assert pieces == [{"id": target, "text": " worst", "display": "·worst"}]
    assert last == [{"id": ids[-1], "text": "\n", "display": "↵"}]
    assert service.call("facts", tokenizer_path) == {"vocab_size": 265}


def test_errors_arrive_whole(service: TokenizerService, tokenizer_path: Path, tmp_path: Path) -> None:
    with pytest.raises(LegibleError) as caught:
        service.call("target", tokenizer_path, "worst")
    assert (caught.value.code, caught.value.hint) == (
        "bad_target",
        "With a leading space it is one token: ' worst'.",
    )
    with pytest.raises(LegibleError, match="surrogate"):
        service.call("encode", tokenizer_path, "\udc00")
    with pytest.raises(TooLarge, match="limit is 1,000,000 bytes"):
        service.call("encode", tokenizer_path, "x" * 1_000_001)
    with pytest.raises(LegibleError, match="cannot be read") as caught:
        service.call("encode", tmp_path / "none.json", "x")
    assert caught.value.status == NotFound.status


def test_a_slow_pattern_ends_at_the_limit_and_the_next_call_is_served(
    service: TokenizerService, tokenizer_path: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(LegibleError, match="took longer than 2 s on this text and was stopped") as caught:
        service.call("encode", slow(tmp_path), "x" * 20_000)
    assert caught.value.code == "tokenizer_failed"
    assert time.monotonic() - started < 10
    assert len(service.call("encode", tokenizer_path, " worst")) == 1


def test_the_event_loop_goes_on_while_a_call_hangs(service: TokenizerService, tmp_path: Path) -> None:
    async def both() -> int:
        hanging = asyncio.ensure_future(service.encode(slow(tmp_path), "x" * 20_000))
        ticks = 0
        while not hanging.done():
            await asyncio.sleep(0.05)
            ticks += 1
        with pytest.raises(LegibleError):
            hanging.result()
        return ticks

    assert asyncio.run(both()) >= 5


def test_a_panic_and_bad_files_are_sentences(service: TokenizerService, tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    panics = write(tmp_path / "panics.json", tokenizer_spec() | {"pre_tokenizer": split})
    with pytest.raises(LegibleError) as caught:
        service.call("encode", panics, "x" * 40)
    assert caught.value.code in ("corrupt_checkpoint", "tokenizer_failed")
    deep = tmp_path / "deep.json"
    deep.write_bytes(b'{"model": ' + b"[" * 500_000)
    with pytest.raises(LegibleError, match="nested too deeply"):
        service.call("encode", deep, "x")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(40 << 20)
    with pytest.raises(LegibleError, match="over the limit of 33,554,432 bytes") as caught:
        service.call("encode", huge, "x")
    assert caught.value.code == "too_large"


def test_a_file_that_hangs_while_loading_is_not_loaded_again(
    tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_service, "LOAD_SECONDS", 2.0)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with TokenizerService(timeout=2.0) as service:
        with pytest.raises(Corrupt, match="loading it took longer than 2 s"):
            service.call("encode", pipe, "x")
        with monkeypatch.context() as patch:
            # No child is even started for it.
            patch.setattr(token_service, "_Child", None)
            with pytest.raises(Corrupt, match="loading it took longer than 2 s"):
                service.call("encode", pipe, "x")
        assert service.call("encode", tokenizer_path, "x")


def test_a_killed_child_is_replaced(tokenizer_path: Path) -> None:
    with TokenizerService() as service:
        service.call("encode", tokenizer_path, "x")
        child = service._lane.idle.get()
        assert child is not None
        os.kill(child._process.pid, signal.SIGKILL)
        child._process.wait()
        service._lane.idle.put(child)
        assert service.call("encode", tokenizer_path, "x")


def test_too_many_waiting_and_after_closing(tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = TokenizerService()
    monkeypatch.setattr(token_service, "MAX_WAITING", 0)
    with pytest.raises(Unavailable, match="Too many texts are waiting"):
        service.call("encode", tokenizer_path, "x")
    monkeypatch.undo()
    assert service.call("encode", tokenizer_path, "x")
    service.close()
    with pytest.raises(Unavailable, match="shut down"):
        service.call("encode", tokenizer_path, "x")


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="needs POSIX signals")
@pytest.mark.parametrize("busy", [False, True])
def test_children_end_with_their_parent_even_while_they_hang(busy: bool, tmp_path: Path) -> None:
    """The parent is killed without a word; an idle child sees its pipe close, a busy one is ended by its alarm."""
    program = (
        "import sys, threading, time\n"
        "from legible_core.token_service import TokenizerService\n"
        "service = TokenizerService(timeout=1.0)\n"
        "service.start()\n"
        "child = service._lane.idle.get(); print(child._process.pid, flush=True); service._lane.idle.put(child)\n"
        "if len(sys.argv) > 1:\n"
        "    threading.Thread(target=service.call, args=('encode', sys.argv[1], 'x' * 20000)).start()\n"
        "    time.sleep(0.3)\n"
        "print('now', flush=True)\n"
        "time.sleep(60)\n"
    )
    arguments = [str(slow(tmp_path))] if busy else []
    environment = {**os.environ, "PYTHONPATH": str(Path(token_service.__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == b"now\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def test_the_service_imports_no_torch() -> None:
    program = "import sys, legible_core.tokens, legible_core.registry; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(token_service.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for is over too.
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes() if Path("/proc").exists() else True


def test_long_texts_hold_up_only_each_other(
    service: TokenizerService, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two texts that take their time have one child between them, so a short one is answered before either ends."""
    monkeypatch.setattr(token_service, "LONG_BYTES", 100)
    service.call("encode", tokenizer_path, "x" * 101)  # its child is up, and has the file
    [child] = [service._long.idle.get()]
    waiting = [service._submit("encode", tokenizer_path, ("x" * 101,)) for _ in range(2)]
    try:
        assert service.call("encode", tokenizer_path, " worst")
        assert not any(future.done() for future in waiting)
    finally:
        service._long.idle.put(child)
    assert len({tuple(future.result()) for future in waiting}) == 1
