"""`legible serve` as a person runs it: a real server, its real worker and a tiny real checkpoint, over HTTP."""

from __future__ import annotations

import http.cookiejar
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_samples import eventually

from app.database import Database
from app.jobs import BACKGROUND, Queue
from app.monitors import Monitors
from app.settings import Settings
from app.store import Store
from legible_core.hits import BLOCK, KEPT
from legible_core.text_stream import StreamToken, TextStream
from legible_core.tokens import Tokenizer

TESTS = Path(__file__).resolve().parents[1]
PROMPT = "the worst"
MANY = 100_000


class Server:
    """A server process on a data folder of its own; `get` and `post` speak to it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.settings = Settings.load(data_dir=folder)
        self.queue = Queue(Database.open(self.settings, migrate=True))
        self.store = Store(self.queue.database)
        command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--data-dir", str(folder), *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, env=environment, cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Legible is at "), line
        self.address = line.split()[-1]
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        """(status, final address, body)"""
        return self._send(urllib.request.Request(urllib.parse.urljoin(self.address, path), headers=headers))

    def post(self, path: str, **fields: str) -> tuple[int, str, str]:
        data = urllib.parse.urlencode(fields).encode()
        return self._send(urllib.request.Request(urllib.parse.urljoin(self.address, path), data=data))

    def _send(self, request: urllib.request.Request) -> tuple[int, str, str]:
        try:
            with self.opener.open(request, timeout=30) as answer:
                return answer.status, answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.url, error.read().decode()

    def workers(self) -> list[int]:
        return [worker.pid for worker in self.queue.workers() if worker.alive]

    def kill_worker(self) -> None:
        [pid] = self.workers()
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.queue.database.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.append(str(TESTS / "checkpoint"))
    from checkpoint_samples import small_model, tokenizer_spec

    from legible_core.checkpoint import save

    folder = tmp_path_factory.mktemp("serving")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_spec()))
    save(folder / "small", small_model(), folder / "tokenizer.json", {"title": "Small"}, "float32")
    return folder / "small"


@pytest.fixture
def server(tmp_path: Path, checkpoint: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    add(server, checkpoint)
    yield server
    server.stop()


def add(server: Server, checkpoint: Path) -> None:
    from legible_core.registry import open_checkpoint

    server.store.add_checkpoint("small", open_checkpoint(checkpoint).hash, str(checkpoint))


def ask(server: Server) -> str:
    """Ask for the reading of PROMPT; its path, without the query."""
    status, address, _ = server.post("/models/small/readings", prompt=PROMPT)
    assert status in (200, 202), status
    return urllib.parse.urlsplit(address).path


def answered(server: Server, path: str) -> bool:
    return server.get(f"{path}.json")[0] == 200


def test_a_reading_is_made_stored_found_after_a_restart_and_deleted(
    server: Server, checkpoint: Path, tmp_path: Path
) -> None:
    path = ask(server)
    assert ask(server) == path
    eventually(lambda: answered(server, path), 60)
    reading = json.loads(server.get(f"{path}.json")[2])
    assert abs(reading["residual"]) <= reading["tolerance"]
    kinds = [job.kind for job in server.queue.list()]
    assert [kind for kind in kinds if kind != "index"] == ["read"]  # the shipped checkpoint's names are indexed
    assert len(server.store.readings()) == 1
    status, page_address, page = server.get(path)
    assert status == 200
    assert "position=" in page_address
    assert "target=" in page_address
    server.stop()
    assert server.process.returncode == 0

    # No worker at all: what is stored opens all the same, at the same address, with the same numbers.
    again = Server(tmp_path / "data", "--workers", "0")
    try:
        assert json.loads(again.get(f"{path}.json")[2]) == reading
        # Each server shows its own address in the page's Python and curl lines.
        shown = again.get(path)[2].replace(again.address.rstrip("/"), "SERVER")
        assert shown == page.replace(server.address.rstrip("/"), "SERVER")
        digest = path.rsplit("/", 1)[-1]
        assert again.post(f"{path}/delete")[0] == 200
        assert again.store.prompt(digest) is None
        assert again.get(path, accept="application/json")[0] == 404
        assert again.post(f"{path}/delete")[0] == 404
    finally:
        again.stop()


def test_killing_the_worker_during_a_scan(server: Server, tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.txt", tmp_path / "names"
    corpus.write_text("the worst of the rest, the west and the test\n<|endoftext|>\n" * 1200)
    out.mkdir()
    payload = {"slug": "small", "corpus": str(corpus), "out": str(out)}
    job = server.queue.submit("scan", "scan:small", payload, priority=BACKGROUND)
    eventually(lambda: (server.queue.get(job.id).share or 0) > 0, 60)
    server.kill_worker()
    eventually(lambda: not server.queue.get(job.id).active, 120)
    done = server.queue.get(job.id)
    assert done.state == "done", done.error
    assert done.attempt == 2
    assert [event.event for event in server.queue.events(job.id)].count("done") == 1
    assert (out / "names.json").is_file()


def test_killing_the_whole_server_during_a_stream_and_a_causal_job(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGIBLE_LEASE_SECONDS", "5")  # what the killed worker leaves is free again after that
    data = ("the worst of the rest, été, the west and the test\n" * 300).encode()
    cut = data.index("é".encode(), 1000) + 1  # within a character
    server = Server(tmp_path / "data")
    add(server, checkpoint)
    monitors = Monitors(server.queue.database)
    try:
        _, address, _ = server.post("/monitors", model="small", name="all", conditions="L0.h0 above 0")
        _, address, _ = server.post(f"{urllib.parse.urlsplit(address).path}/streams", open="1")
        stream = urllib.parse.urlsplit(address).path
        path = ask(server)
        eventually(lambda: answered(server, path), 60)
        for piece in (data[:cut], data[cut:]):
            assert piece_sent(server, stream, piece) == 202
        number = int(stream.rsplit("/", 1)[-1])
        eventually(lambda: monitors.stream(number).hits > 0, 120)
        assert server.get(f"{path}/causal.json?view=sufficiency")[0] == 202
        server.kill_worker()
        server.process.kill()  # and so no supervisor puts anything back
        server.process.wait()
        before = monitors.stream(number)
        [job] = server.queue.about(path.rsplit("/", 1)[-1], "sufficiency")
        assert job.active
        assert before.received == len(data)
        assert not before.ended
    finally:
        server.stop()

    again = Server(tmp_path / "data")
    try:
        assert piece_sent(again, f"{stream}/text?last=1", b" and", whole=True) == 202
        eventually(lambda: Monitors(again.queue.database).stream(number).ended, 240)
        eventually(lambda: not again.queue.get(job.id).active, 60)
        assert again.queue.get(job.id).state == "done"
        assert json.loads(again.get(f"{path}/causal.json?view=sufficiency")[2])["kind"] == "sufficiency"
        monitors = Monitors(again.queue.database)
        after, hits = monitors.stream(number), monitors.hits(number, limit=MANY)
    finally:
        again.stop()
    tokens = tokens_of(checkpoint, data + b" and")
    # A head's write has a norm, so every token is a hit: each is counted once, and the kept ones are at their places.
    assert (after.tokens, after.hits) == (len(tokens), len(tokens))
    kept = [index for index in range(len(tokens)) if index % BLOCK < KEPT]
    assert [(hit.token, hit.offset, hit.id) for hit in hits] == [(i, tokens[i].offset, tokens[i].id) for i in kept]
    assert after.kept == len(kept)


def piece_sent(server: Server, path: str, data: bytes, whole: bool = False) -> int:
    """The status of a piece of a stream."""
    address = urllib.parse.urljoin(server.address, path if whole else f"{path}/text")
    headers = {"content-type": "application/octet-stream"}
    return server._send(urllib.request.Request(address, data=data, headers=headers))[0]


def tokens_of(checkpoint: Path, data: bytes) -> list[StreamToken]:
    """The tokens of the whole text."""
    stream = TextStream(Tokenizer.load(checkpoint / "tokenizer.json"))
    return [*stream.feed(data), *stream.end()]


def test_beyond_loopback_the_printed_address_carries_the_token(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--host", "0.0.0.0", "--workers", "0", "--allowed-host", "lab.example")
    try:
        printed = urllib.parse.urlsplit(server.address)
        assert printed.query.startswith("token=")
        server.address = f"http://127.0.0.1:{printed.port}/"
        assert server.get("/jobs")[0] == 401
        assert server.get("/jobs", host="evil.example")[0] == 421
        status, address, _ = server.get(f"/jobs?{printed.query}")
        assert (status, address) == (200, f"http://127.0.0.1:{printed.port}/jobs")
        assert server.get("/jobs", host="lab.example")[0] == 200
    finally:
        server.stop()


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--data-dir", str(tmp_path / "data")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"The server cannot listen on 127.0.0.1 port {port}: ")
    assert "Traceback" not in done.stderr
