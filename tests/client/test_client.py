"""The client against a workbench that listens, and against servers that fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from conftest import Live

from legible_client import (
    Client,
    ClientError,
    Job,
    JobFailed,
    Refused,
    ServerFailed,
    TimedOut,
    Unknown,
    Unreachable,
)
from legible_core import load, read
from legible_core.pipeline import Engine

NASTY = [
    "\x00",
    "line\nline\ttab",
    'it\'s "quoted" `$HOME` $(id) \\',
    "🙂 né שלום \u202e عالم",
    "<script>&amp;+%20",
    "-n",
]


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live.address + "/", token=live.token)


@pytest.fixture(scope="module")
def engine(live: Live) -> Engine:
    torch.set_num_threads(1)  # as the worker's: sums over other numbers of threads round otherwise
    return load(live.checkpoint)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"target": " worst"},
        {"target": " worst", "contrast": " times", "position": 2},
        {"target": " worst", "relative_to": "mean"},
    ],
    ids=["default", "target", "contrast", "mean"],
)
def test_the_numbers_are_those_of_this_process(client, engine, live, words):
    told: list[Job] = []
    there = client.read(live.checkpoint.slug, "it was the best of times", progress=told.append, **words)
    here = read(engine, "it was the best of times", **words)
    assert there.digest == here.digest
    assert there.target.id == here.target.id
    for name in ("value", "sum", "position", "relative_to"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), abs=1e-6)
    assert there.units == pytest.approx(here.units, abs=1e-6)
    assert there.heads == pytest.approx(here.heads, abs=1e-6)
    assert all(job.state in ("waiting", "running", "done") for job in told)
    assert "<svg" in there._repr_html_()


def test_any_prompt_arrives_as_it_is(client, live):
    found = list(client.read_many(live.checkpoint.slug, [*NASTY, "", "a\ud800"]))
    for prompt, made in zip(NASTY, found[:-2], strict=True):
        assert b"".join(bytes.fromhex(token.bytes) for token in made.tokens) == prompt.encode()
    empty, broken = found[-2:]
    assert isinstance(empty, Refused)
    assert empty.code == "empty_prompt"
    assert isinstance(broken, Refused)


def test_pages_are_their_json(client, live):
    slug = live.checkpoint.slug
    assert slug in json.dumps(client.models())
    assert client.model(slug) == client.page(f"{live.address}/models/{slug}") == client.page(f"/models/{slug}.json")
    assert client.search("times")["q"] == "times"
    assert client.page("/") == client.page(live.address)
    client.read(slug, "it was the best")
    newest = client.page("/jobs")["jobs"][0]
    assert client.wait(newest["id"]).id == newest["id"]
    assert client.job(newest["id"]).state == "done"


def test_errors_are_types_with_the_servers_sentence(client, live):
    slug = live.checkpoint.slug
    for ask, kind, said in (
        (lambda: client.model("nobody"), Unknown, "nobody"),
        (lambda: client.page("/nowhere"), Unknown, "no page"),
        (lambda: client.read(slug, "it was", target=" worst times"), Refused, "2 tokens"),
        (lambda: client.read(slug, "it was", position=99), Refused, "Position 99"),
        (lambda: client.read(slug, "the " * 100), Refused, "at most 64"),
        (lambda: Client(live.address, token="wrong").models(), Refused, "access token"),
    ):
        with pytest.raises(kind, match=said) as failure:
            ask()
        assert isinstance(failure.value, ClientError)
        assert failure.value.status >= 400
    for wrong in ("ftp://here", "here", "http://here?x=1"):
        with pytest.raises(ValueError, match="no server's address"):
            Client(wrong)
    for wrong in ("http://elsewhere/models", live.address + "more/models"):
        with pytest.raises(ValueError, match="is no page of"):
            client.page(wrong)


# ---- servers that fail ----


class Fake(HTTPServer):
    """Answers with what is laid down, in turn; the last for ever. None closes the connection."""

    answers: list[tuple[int, object] | None]
    seen: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            return
        body = answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        if 300 <= answer[0] < 400:
            self.send_header("location", "http://127.0.0.1:9/elsewhere")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake(("127.0.0.1", 0), _Handler)
    server.answers, server.seen = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def made(fake: Fake, **settings: object) -> tuple[Client, list[float]]:
    slept: list[float] = []
    client = Client(f"http://127.0.0.1:{fake.server_port}", token="", sleep=slept.append, **settings)
    return client, slept


BROKEN = (503, {"error": {"code": "unavailable", "message": "The disk is full.", "hint": None}})


def test_a_get_is_tried_again_with_growing_pauses(fake):
    client, slept = made(fake)
    fake.answers = [BROKEN, None, (502, b"<html>"), (200, {"fine": True})]
    assert client.page("/models") == {"fine": True}
    assert fake.seen == ["GET /models.json"] * 4
    assert slept == [0.2, 0.4, 0.8]
    fake.answers = [BROKEN]
    with pytest.raises(ServerFailed, match="disk is full"):
        client.page("/models")
    assert len(fake.seen) == 4 + 5


def test_neither_a_post_nor_a_refusal_is_tried_again(fake):
    client, slept = made(fake)
    fake.answers = [BROKEN]
    with pytest.raises(ServerFailed, match="disk is full"):
        client.read("tiny", "it")
    fake.answers = [None]
    with pytest.raises(Unreachable):
        client.read("tiny", "it")
    fake.answers = [(404, b"not JSON")]
    with pytest.raises(Unknown, match="answered 404"):
        client.page("/models")
    fake.answers = [(302, b"")]
    with pytest.raises(Refused, match="sends elsewhere"):
        client.page("/models")
    fake.answers = [(200, b"not JSON")]
    with pytest.raises(ServerFailed, match="not its JSON"):
        client.page("/models")
    assert slept == []
    assert len(fake.seen) == 5


def test_nothing_listens(fake):
    client, _ = made(fake, retries=1)
    fake.answers = [(200, {})]
    closed = Client("http://127.0.0.1:9", retries=1, sleep=lambda _: None)
    with pytest.raises(Unreachable, match="does not answer"):
        closed.models()
    assert client.models() == {}


def test_a_job_is_waited_for(fake):
    client, _ = made(fake)
    waiting = {"job": {"id": 3, "state": "waiting", "stage": None, "place": 2, "error": None}}
    running = {"job": {**waiting["job"], "state": "running", "place": None}}
    failed = {"job": {**running["job"], "state": "failed", "error": {"code": "lost", "message": "It was lost."}}}
    told: list[Job] = []
    fake.answers = [(202, waiting), (202, waiting), (202, running), (200, {"here": 1})]
    assert client.page("/models/x/readings/y", progress=told.append) == {"here": 1}
    assert [(job.state, job.place) for job in told] == [("waiting", 2), ("running", None)]
    fake.answers = [(202, running), (422, {**failed, "error": failed["job"]["error"]})]
    with pytest.raises(JobFailed, match="It was lost"):
        client.page("/models/x/readings/y")
    fake.answers = [(422, {"error": failed["job"]["error"]})]
    with pytest.raises(Refused, match="It was lost"):
        client.page("/models/x/readings/y")
    fake.answers = [(202, waiting)]
    with pytest.raises(TimedOut, match="Job 3 is still waiting"):
        client.page("/models/x/readings/y", timeout=0.0)
    fake.answers = [(202, {"done": 0, "parts": 1}), (200, {"done": 1})]
    assert client.page("/models/x/values/y") == {"done": 1}
    facts = {**waiting["job"], "reason": None, "hint": None}
    told.clear()
    fake.answers = [(200, {"job": facts}), (200, {"job": {**facts, "state": "done", "place": None}})]
    assert client.wait(3, progress=told.append).state == "done"
    assert [job.state for job in told] == ["waiting", "done"]
    fake.answers = [(200, {"job": {**facts, "state": "cancelled"}})]
    with pytest.raises(JobFailed, match="Job 3 was cancelled"):
        client.wait(3)
    fake.answers = [(200, {"job": facts})]
    with pytest.raises(TimedOut):
        client.wait(3, timeout=0.0)
