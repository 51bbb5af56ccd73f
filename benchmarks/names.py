"""Pages over the names of a 12-layer, d = 768 model (36,864 units), against a bare route and a tenth of the units.

The real server on one database that holds both made-up checkpoints, their names indexed; its worker answers what a page
asks it for, and then rests; a bare FastAPI route returns the same bytes. "Made anew": every request is for an address
that was not asked for before, so that no page is kept.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from app.database import Database
from app.names_index import NamesIndex, source_of
from app.settings import Settings
from app.store import Store
from benchmarks import synthetic
from benchmarks.measure import Row, against
from benchmarks.page import fetch, server
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint

REQUESTS, ROUNDS = 30, 11
KILOBYTES = 200.0
SETTLE_SECONDS = 300.0
# name -> the address of one checkpoint's page; {n} makes an address that was not asked for before.
PAGES = {
    "layer": "/models/{slug}/layers/4?sort=on{n}",
    "unit": "/models/{slug}/units/L4.u7",
    "head": "/models/{slug}/heads/L4.h1",
    "model": "/models/{slug}",
    "search-token": "/search?q=" + quote('promotes:" worst" model:') + "{slug}",
    "search-formula": "/search?q=" + quote("* → superlative model:") + "{slug}",
}
ANEW = {
    "layer": "/models/{slug}/layers/4?sort=on&token={n}",
    "search-token": "/search?q=" + quote("promotes:w") + "{n}" + quote(" model:") + "{slug}",
    "search-formula": "/search?q=" + quote("∃ * half-life:<") + "{n}" + quote(" model:") + "{slug}",
}


def run() -> Iterator[Row]:
    """The rows of this file."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        fill(root)
        served = stack.enter_context(server(["app.cli", "serve", "--device", "cpu", "--data-dir", str(root)], "/jobs"))
        for slug, pattern in itertools.product(("large", "small"), PAGES.values()):
            settle(served, pattern.format(slug=slug, n=""))
        for name, pattern in PAGES.items():
            address = pattern.format(slug="large", n="")
            body = fetch(http.client.HTTPConnection("127.0.0.1", served), address)
            (root / "body.html").write_bytes(body)
            with server(["benchmarks.bare", str(root / "body.html")], "/") as bare:
                yield _against_bare(name, served, bare, address)
            size = len(gzip.compress(before_figures(body))) / 1000
            what = f"compressed bytes of the {name} page before figures / {KILOBYTES:g} KB"
            yield Row(f"names-{name}-bytes", what, size, KILOBYTES, "KB", 1.0, "at most", size / KILOBYTES)
            yield _against_small(f"names-{name}", f"the {name} page", served, pattern, 1.5)
        for name, pattern in ANEW.items():
            yield _against_small(f"names-{name}-anew", f"the {name} page made anew", served, pattern, 1.5)


def fill(root: Path) -> None:
    """Both checkpoints, added to a database in `root` and indexed."""
    database = Database.open(Settings(data_dir=root), migrate=True)
    try:
        for slug, config in (("large", synthetic.LARGE), ("small", synthetic.SMALL)):
            checkpoint = synthetic.make_checkpoint(root / "checkpoints", slug, config)
            Store(database).add_checkpoint(slug, checkpoint.hash, str(checkpoint.path))
            index(database, checkpoint)
    finally:
        database.close()


def settle(port: int, address: str) -> None:
    """Wait until a page has all that it asks the worker for, and until the worker has nothing else to do."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until:
        jobs = json.loads(fetch(http.client.HTTPConnection("127.0.0.1", port), "/jobs.json"))["jobs"]
        idle = not any(job["state"] in ("running", "waiting") for job in jobs)
        polls = b'hx-trigger="every' in fetch(http.client.HTTPConnection("127.0.0.1", port), address)
        if idle and not polls:
            return
        time.sleep(0.5)
    raise RuntimeError(f"{address} still waits for its worker")


def index(database: Database, checkpoint: Checkpoint) -> int:
    """Make the names of a made-up checkpoint searchable."""
    names, source = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash), source_of(checkpoint.path)
    assert names is not None
    assert source is not None
    tokens = range(checkpoint.config.vocab_size)
    texts = {token: (synthetic.token_text(token), names.display(token)) for token in tokens}
    return NamesIndex(database).build(checkpoint.hash, names, source, texts)


def before_figures(body: bytes) -> bytes:
    """The page without its drawings and their data."""
    body = re.sub(rb"<svg\b.*?</svg>", b"", body, flags=re.DOTALL)
    return re.sub(rb'<script type="application/json".*?</script>', b"", body, flags=re.DOTALL)


def _many(port: int, next_address: Callable[[], str]) -> Callable[[object], None]:
    def many(_: object) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(REQUESTS):
            fetch(connection, next_address())

    return many


def _against_bare(name: str, served: int, bare: int, address: str) -> Row:
    timing = against(_many(served, lambda: address), _many(bare, lambda: "/"), iter(range(1000)), ROUNDS)
    what = f"requests per second of the {name} page at 36,864 units / a bare route's with the same bytes"
    return timing.row(f"names-{name}-requests", what, 0.3, per=REQUESTS, unit="req/s", direction="at least")


def _against_small(row: str, said: str, served: int, pattern: str, bound: float) -> Row:
    numbers = itertools.count(20)

    def address(slug: str) -> Callable[[], str]:
        anew = "{n}" in pattern and pattern in ANEW.values()
        return lambda: pattern.format(slug=slug, n=next(numbers) if anew else "")

    timing = against(_many(served, address("large")), _many(served, address("small")), iter(range(1000)), ROUNDS)
    return timing.row(f"{row}-growth", f"{said} at 36,864 units / at 4,032", bound)
