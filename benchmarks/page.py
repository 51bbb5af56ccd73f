"""A stored reading's page: requests per second, bytes, first paint.

The real server (no worker) and a bare FastAPI route that returns the same bytes run side by side, each a process of its
own; one client asks both, in turns, over a connection that stays open.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from app.database import Database
from app.settings import Settings
from app.store import Store
from benchmarks.measure import THREADS, Row, against
from legible_core.pipeline import Engine
from legible_core.registry import Checkpoint, open_checkpoint

SLUG = "novel-legible"
PROMPT_TOKENS = 256
REQUESTS, ROUNDS = 50, 15
PAINTS = 7
TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it "
    "was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing. "
)


def run() -> Iterator[Row]:
    """The rows of this file."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        data = Path(folder)
        address = store_a_reading(data)
        served = stack.enter_context(server(["app.cli", "serve", "--workers", "0", "--data-dir", str(data)], address))
        body = fetch(http.client.HTTPConnection("127.0.0.1", served), address)
        (data / "body.html").write_bytes(body)
        bare = stack.enter_context(server(["benchmarks.bare", str(data / "body.html")], "/"))
        yield from requests(served, bare, address, body)
        size = len(body) / 1000
        what = f"HTML of a reading of {PROMPT_TOKENS} tokens / 150 KB"
        yield Row("page-bytes", what, size, 150.0, "KB", 1.0, "at most", size / 150.0)
        yield from paints(served, address)


def store_a_reading(data: Path) -> str:
    """Read a prompt of the full context with the shipped checkpoint and store it; the page's path and query."""
    checkpoint = shipped()
    engine = Engine.open(checkpoint)
    assert engine.tokenizer is not None
    text = _of_length(engine, PROMPT_TOKENS)
    request = engine.request(text)
    reading = engine.read(request)
    settings = Settings(data_dir=data)
    database = Database.open(settings, migrate=True)
    try:
        Store(database).put_reading(request, reading, slug=checkpoint.slug, text=text)
    finally:
        database.close()
    query = f"position={reading.position}&target={reading.target.id}&relative_to=nothing"
    return f"/models/{checkpoint.slug}/readings/{reading.digest}?{query}"


def shipped() -> Checkpoint:
    return open_checkpoint(Path(__file__).parents[1] / "models" / SLUG)


def _of_length(engine: Engine, length: int) -> str:
    """A text that has exactly this many tokens."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    text = ""
    for word in (TEXT * 8).split(" "):
        longer = f"{text} {word}" if text else word
        if len(tokenizer.encode(longer)) > length:
            break
        text = longer
    # The next word may be several tokens and overshoot: line ends fill what is left, one by one.
    while len(tokenizer.encode(text)) < length:
        text += "\n"
    return text


@contextlib.contextmanager
def server(module: list[str], path: str) -> Iterator[int]:
    """`python -m MODULE --port PORT` as a process; yields its port once `path` answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", *module, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                fetch(http.client.HTTPConnection("127.0.0.1", port), path)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    reason = process.communicate()[1].decode()[-500:]
                    raise RuntimeError(f"the server did not start: {reason}") from None
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)


def fetch(connection: http.client.HTTPConnection, path: str) -> bytes:
    """The body of a page; anything but 200 is an error."""
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {answer.getheader('location') or body[:200]!r}")
    return body


def requests(served: int, bare: int, address: str, body: bytes) -> Iterator[Row]:
    """Requests per second of the page against the bare route."""
    page, plain = (http.client.HTTPConnection("127.0.0.1", port) for port in (served, bare))
    if fetch(plain, "/") != body:
        raise AssertionError("the bare route returns other bytes")

    def many(connection: http.client.HTTPConnection, path: str) -> None:
        for _ in range(REQUESTS):
            fetch(connection, path)

    timing = against(lambda _: many(page, address), lambda _: many(plain, "/"), iter(range(1000)), ROUNDS)
    what = "requests per second of a stored reading's page / a bare route's with the same bytes"
    yield timing.row("page-requests", what, 0.5, per=REQUESTS, unit="req/s", direction="at least")


def paints(served: int, address: str) -> Iterator[Row]:
    """First contentful paint in Chromium, against the same page with its drawings removed."""
    from playwright.sync_api import Error, Route, sync_playwright

    def without_figures(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r"<svg\b.*?</svg>", "", answer.text(), flags=re.S))

    def unchanged(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text())

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        except Error as error:
            print(f"page-first-paint: not measured, no Chromium ({str(error).splitlines()[0]})", file=sys.stderr)
            return
        times: dict[Any, list[float]] = {unchanged: [], without_figures: []}
        url = f"http://127.0.0.1:{served}{address}"
        for index in range(PAINTS + 1):
            for change, found in times.items():
                page = browser.new_context().new_page()
                page.route(re.compile(r"/readings/"), change)
                page.goto(url, wait_until="load")
                paint = page.evaluate(
                    "() => new Promise(r => { const f = () => { const p = performance.getEntriesByName("
                    "'first-contentful-paint')[0]; p ? r(p.startTime - performance.timing.responseEnd"
                    " + performance.timeOrigin) : setTimeout(f, 5) }; f() })"
                )
                if index:
                    found.append(float(paint))
                page.context.close()
        browser.close()
    ours, baseline = (statistics.median(found) for found in times.values())
    what = "first paint in Chromium, from the page's last byte / the same page without its figures"
    yield Row("page-first-paint", what, ours, baseline, "ms", 2.0, "at most", ours / baseline)
