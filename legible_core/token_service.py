"""A tokenizer in a process of its own, so that a hostile `tokenizer.json` or text cannot block or kill its caller.

    service = TokenizerService()
    ids = await service.encode(path, text)          # in a web handler
    ids = service.call("encode", path, text)        # anywhere else

Each call has a time limit; a child that passes it, dies, or answers nonsense is killed and replaced, and only that
call fails, with one sentence. A file that killed a child while it was being loaded is not tried again for some
minutes, unless it changes. Children import no torch, hold at most `MEMORY_BYTES` of address space, and end with
their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from legible_core.errors import Corrupt, LegibleError, Unavailable

CALL_SECONDS = 5.0
LOAD_SECONDS = 20.0
REFUSED_SECONDS = 300.0
START_SECONDS = 60.0
MEMORY_BYTES = 3 << 30
MAX_REPLY_BYTES = 256 << 20
MAX_WAITING = 256
LONG_BYTES = 32_768
_CACHED = 8
_ROOT = str(Path(__file__).resolve().parents[1])


class TokenizerService:
    """Calls to `Tokenizer` in child processes; safe to use from any thread and any event loop.

    At most `workers` calls run side by side, each with a child that starts when it is first needed; the rest wait in
    line, and over `MAX_WAITING` of them raise `Unavailable`. Texts over `LONG_BYTES` have a line and one child of
    their own: they may take seconds, and wait for each other, never others for them.
    """

    def __init__(self, timeout: float = CALL_SECONDS, workers: int = 2) -> None:
        self.timeout = timeout
        self._lane, self._long = _Lane(workers), _Lane(1)
        self._waiting = 0
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, int, int], tuple[float, str]] = {}

    async def encode(self, path: Path | str, text: str) -> list[int]:
        """`Tokenizer.encode` of the `tokenizer.json` at `path`."""
        return list(await self._later("encode", path, text))

    async def decode(self, path: Path | str, ids: list[int]) -> str:
        """`Tokenizer.decode`."""
        return str(await self._later("decode", path, ids))

    async def describe(self, path: Path | str, ids: list[int]) -> list[dict[str, Any]]:
        """`{"id", "text", "display"}` for each id."""
        return list(await self._later("describe", path, ids))

    async def tokenise(self, path: Path | str, text: str) -> list[dict[str, Any]]:
        """`{"id", "text", "display"}` for each token of a text."""
        return list(await self._later("tokenise", path, text))

    async def target(self, path: Path | str, text: str) -> int:
        """`Tokenizer.target`: the one token that a text names."""
        return int(await self._later("target", path, text))

    def call(self, method: str, path: Path | str, *arguments: Any) -> Any:
        """The same, blocking: one of `encode`, `decode`, `describe`, `tokenise`, `target`, `facts`, and `render` for a
        chat template, which is a program as well.

        Raises what the tokenizer raises, `Corrupt` for one that cannot be used, and `Unavailable` when too many wait.
        """
        return self._submit(method, path, arguments).result()

    def start(self) -> None:
        """Start a child now, so that the first call does not wait for it."""
        self._lane.threads.submit(self._warm).result()

    def close(self) -> None:
        """End the children; calls after this raise `Unavailable`."""
        self._lane.close()
        self._long.close()

    def __enter__(self) -> TokenizerService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _later(self, method: str, path: Path | str, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._submit(method, path, arguments))

    def _submit(self, method: str, path: Path | str, arguments: tuple[Any, ...]) -> Future[Any]:
        from legible_core.tokens import check_text

        # Checked here as well: text with no UTF-8 form cannot travel to the child, and text too long should not.
        arguments = tuple(check_text(a, "The text") if isinstance(a, str) else a for a in arguments)
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise Unavailable("Too many texts are waiting to be tokenised; try again in a moment.")
            self._waiting += 1
        try:
            long = any(isinstance(a, str) and len(a.encode("utf-8")) > LONG_BYTES for a in arguments)
            lane = self._long if long else self._lane
            future = lane.threads.submit(self._run, lane, method, Path(path), arguments)
        except RuntimeError:
            self._done()
            raise Unavailable("The tokenizer has been shut down.") from None
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object = None) -> None:
        with self._lock:
            self._waiting -= 1

    def _warm(self) -> None:
        child = self._lane.idle.get()
        try:
            child = child or _Child()
        finally:
            self._lane.idle.put(child)

    def _run(self, lane: _Lane, method: str, path: Path, arguments: tuple[Any, ...]) -> Any:
        key = _key(path)
        refused = self._refused.get(key)
        if refused and time.monotonic() < refused[0]:
            raise Corrupt(refused[1])
        child = lane.idle.get()
        loading = False
        try:
            if child is not None and not child.alive:
                child.kill()
                child = None
            child = child or _Child()
            # A step of its own, so that a file which cannot be loaded is told from a text that is too much for it.
            loading = key not in child.loaded
            if loading:
                reply = child.ask(
                    {"method": "facts", "path": str(path), "arguments": ()}, max(LOAD_SECONDS, self.timeout)
                )
                if "error" in reply:
                    raise LegibleError(**reply["error"])
                child.loaded.add(key)
                loading = False
            reply = child.ask({"method": method, "path": str(path), "arguments": arguments}, self.timeout)
        except _Lost as lost:
            child = None
            if not loading:
                raise LegibleError(
                    f"The tokenizer {lost} on this text and was stopped; try a shorter or simpler text.",
                    code="tokenizer_failed",
                    status=422,
                ) from None
            text = f"The tokenizer.json cannot be used: loading it {lost}."
            self._refused[key] = (time.monotonic() + REFUSED_SECONDS, text)
            while len(self._refused) > 64:
                self._refused.pop(next(iter(self._refused)))
            raise Corrupt(text) from None
        finally:
            lane.idle.put(child)
        if "error" in reply:
            raise LegibleError(**reply["error"])
        return reply["ok"]


class _Lane:
    """A line of calls: its threads, and the children that they take and put back, None where none is started yet."""

    def __init__(self, workers: int) -> None:
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        self.idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(workers):
            self.idle.put(None)

    def close(self) -> None:
        """Wait for the running calls and end the children."""
        self.threads.shutdown(wait=True, cancel_futures=True)
        while True:
            try:
                child = self.idle.get_nowait()
            except queue.Empty:
                return
            if child is not None:
                child.kill()


class _Lost(Exception):
    """A child that did not answer; the text says how, as the predicate of a sentence."""


class _Child:
    """One child process and its two pipes; used by one thread at a time."""

    def __init__(self) -> None:
        program = f"import sys; sys.path.insert(0, {_ROOT!r}); from legible_core.token_service import serve; serve()"
        self._process = subprocess.Popen(
            # -P: a folder that the server happens to run in is no source of modules.
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in a terminal is for the server, which ends its children itself.
            start_new_session=True,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("LEGIBLE_")},
                "TOKENIZERS_PARALLELISM": "false",
                "RAYON_NUM_THREADS": "1",
            },
        )
        self.loaded: set[tuple[str, int, int]] = set()
        try:
            self.ask({"method": "ready", "path": "", "arguments": ()}, START_SECONDS)
        except _Lost as lost:
            raise Unavailable(f"The tokenizer process {lost} while it was starting; try again in a moment.") from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its reply; kills the child and raises `_Lost` when none comes in time."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            _write(self._process.stdin, {**request, "seconds": seconds})
            return _read(self._process.stdout)
        except (OSError, ValueError, EOFError):
            self.kill()
            if late.is_set():
                raise _Lost(f"took longer than {seconds:g} s") from None
            raise _Lost("ended unexpectedly (out of memory, or a crash)") from None
        finally:
            timer.cancel()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def serve() -> None:
    """The child's loop: answer requests on standard input until it closes."""
    _limit_memory()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    cache: OrderedDict[tuple[str, int, int], Any] = OrderedDict()
    while True:
        try:
            request = _read(requests)
        except EOFError:
            return
        # Should the parent be gone when this call hangs, the system ends the process: no handler, no interpreter.
        if hasattr(signal, "alarm"):
            signal.alarm(int(request["seconds"]) + 2)
        try:
            reply = {"ok": _answer(cache, request["method"], request["path"], request["arguments"])}
        except LegibleError as error:
            fields = {"message": error.message, "code": error.code, "hint": error.hint, "status": error.status}
            reply = {"error": fields}
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        _write(replies, reply)


def _answer(cache: OrderedDict[tuple[str, int, int], Any], method: str, path: str, arguments: list[Any]) -> Any:
    from legible_core.tokens import Tokenizer

    if method == "ready":
        return True
    key = _key(Path(path))
    if key not in cache:
        cache[key] = Tokenizer.load(path)
    cache.move_to_end(key)
    tokenizer = cache[key]
    while len(cache) > _CACHED:
        cache.popitem(last=False)
    match method:
        case "encode" | "decode" | "target":
            return getattr(tokenizer, method)(*arguments)
        case "describe":
            return [tokenizer.token(index) for index in arguments[0]]
        case "tokenise":
            return [tokenizer.token(index) for index in tokenizer.encode(arguments[0])]
        case "joined":
            return ["".join(tokenizer.pieces(ids)) for ids in arguments[0]]
        case "render":
            from legible_core.prompts import render

            return render(*arguments)
        case "facts":
            return {"vocab_size": tokenizer.vocab_size}
    raise LegibleError(f"The tokenizer has no method {method}.")


def _key(path: Path) -> tuple[str, int, int]:
    """What identifies a file's content well enough for a cache; (path, 0, 0) when there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return (str(path), 0, 0)
    return (str(path), status.st_mtime_ns, status.st_size)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; the time limit stands there too
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(pipe: IO[bytes], message: dict[str, Any]) -> None:
    data = json.dumps(message).encode("ascii")
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> dict[str, Any]:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", head)
    if size > MAX_REPLY_BYTES:
        raise ValueError("a message over the limit")
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message
