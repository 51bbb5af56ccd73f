"""Who may talk to the workbench: Host, Origin, token, headers; and the one error body."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
import uvicorn
from conftest import make_settings
from fastapi import FastAPI, Form, Request
from fastapi.testclient import TestClient
from pydantic import SecretStr
from starlette.responses import PlainTextResponse

from app.main import create_app
from app.security import MAX_BODY, TOO_LARGE, host_name
from app.settings import Settings
from app.urls import urls_for
from legible_core.errors import NotFound

TOKEN = "a-very-secret-token"


def build(settings: Settings) -> FastAPI:
    """The real application with a few routes of the test's own."""
    app = create_app(settings)

    @app.get("/test/home")
    def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse(urls_for(request).home())

    @app.post("/test/change")
    def change(text: Annotated[str, Form()] = "") -> PlainTextResponse:
        return PlainTextResponse(f"changed {len(text)}")

    @app.get("/test/missing")
    def missing() -> None:
        raise NotFound("There is no <b>such</b> thing.", hint="Look elsewhere.")

    @app.get("/test/number/{number}")
    def number(number: int) -> int:
        return number

    @app.get("/test/broken")
    def broken() -> None:
        raise ValueError("a secret detail")

    return app


def client_of(settings: Settings, host: str = "127.0.0.1:8321") -> TestClient:
    return TestClient(build(settings), base_url=f"http://{host}", raise_server_exceptions=False, follow_redirects=False)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with client_of(make_settings(tmp_path)) as client:
        yield client


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TestClient]:
    """Listening on the network, with a token."""
    with client_of(make_settings(tmp_path, host="0.0.0.0", token=SecretStr(TOKEN)), "192.0.2.7:8321") as client:
        yield client


def test_only_its_own_names_are_answered(client: TestClient) -> None:
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321", "localhost:9000", "LOCALHOST"):
        assert client.get("/test/home", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8321", "192.0.2.7:8321", "", "::"):
        refused = client.get("/test/home", headers={"host": host, "accept": "application/json"})
        assert refused.status_code == 421, host
        assert refused.json()["error"]["code"] == "bad_host"


def test_names_that_are_allowed_are_answered(tmp_path: Path) -> None:
    with client_of(make_settings(tmp_path, allowed_hosts=("lab.example",))) as client:
        assert client.get("/test/home", headers={"host": "lab.example"}).status_code == 200
        assert client.get("/test/home", headers={"host": "lab.example.evil"}).status_code == 421
        own = {"host": "127.0.0.1:8321", "origin": "https://lab.example"}
        assert client.post("/test/change", headers=own).status_code == 200


def test_changes_come_from_its_own_pages_only(client: TestClient) -> None:
    def post(**headers: str) -> int:
        return client.post(
            "/test/change", headers={name.replace("_", "-"): value for name, value in headers.items()}
        ).status_code

    assert post() == 200  # no browser
    assert post(origin="http://127.0.0.1:8321") == 200
    assert post(sec_fetch_site="same-origin") == 200
    foreign = ("http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8321", "http://[::1", "no", "")
    for origin in foreign:
        assert post(origin=origin) == 403, origin
    assert post(sec_fetch_site="cross-site") == 403
    assert post(sec_fetch_site="same-site") == 403
    # Reading is not changing.
    assert client.get("/test/home", headers={"origin": "http://evil.example"}).status_code == 200


def test_beyond_loopback_a_token_is_asked_for(guarded: TestClient) -> None:
    for path in ("/test/home", "/", "/static/app.js", "/openapi.json", "/nowhere"):
        refused = guarded.get(path, headers={"accept": "application/json"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "no_token"), path
    for wrong in ("", "x", TOKEN + "x", "é"):
        assert guarded.get("/test/home", params={"token": wrong}).status_code == 401
    assert guarded.get("/test/home", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/test/home", headers={"authorization": "Bearer no"}).status_code == 401
    assert guarded.get("/test/home", headers={"cookie": f"legible_8321={TOKEN}"}).status_code == 401
    assert guarded.get("/test/home", headers={"cookie": "\x7f=;;,legible_8321"}).status_code == 401


def test_the_token_leaves_the_address_for_a_cookie(guarded: TestClient) -> None:
    moved = guarded.get(f"/test/home?a=1&token={TOKEN}&b=%26")
    assert (moved.status_code, moved.headers["location"]) == (303, "/test/home?a=1&b=%26")
    cookie = moved.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/test/home").status_code == 200
    assert guarded.post("/test/change", headers={"origin": "http://evil.example"}).status_code == 403


def test_the_redirect_never_leaves_the_site(guarded: TestClient) -> None:
    moved = guarded.get(f"http://192.0.2.7:8321//evil.example/?token={TOKEN}")
    assert moved.headers["location"].startswith("/evil.example")


def test_a_foreign_name_is_refused_on_the_network_too(guarded: TestClient) -> None:
    headers = {"host": "evil.example:8321", "authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/test/home", headers=headers).status_code == 421


@pytest.mark.parametrize("path", ["/test/home", "/", "/nowhere", "/static/app.js", "/test/broken", "/test/missing"])
def test_every_answer_is_locked_down(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_refusals_are_locked_down_too(client: TestClient) -> None:
    refused = client.get("/test/home", headers={"host": "evil.example"})
    assert "default-src 'none'" in refused.headers["content-security-policy"]


@pytest.mark.parametrize("prefix_arrives", [True, False])
def test_it_works_under_a_root_path(tmp_path: Path, prefix_arrives: bool) -> None:
    """Proxies differ in whether they strip the prefix; both ways must work."""
    prefix = "/lab/legible" if prefix_arrives else ""
    with client_of(make_settings(tmp_path, root_path="/lab/legible/", token=SecretStr(TOKEN))) as client:
        moved = client.get(f"{prefix}/test/home?token={TOKEN}")
        assert moved.headers["location"] == "/lab/legible/test/home"
        assert "Path=/lab/legible" in moved.headers["set-cookie"]
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.get(f"{prefix}/test/home", headers=bearer).text == "/lab/legible/"
        page = client.get(f"{prefix}/", headers=bearer)
        assert page.status_code == 200
        assert 'href="/lab/legible/static/' in page.text
        assert 'href="/static/' not in page.text
        assert client.get(f"{prefix}/static/app.js", headers=bearer).status_code == 200


def test_large_bodies_are_refused_whatever_they_claim(client: TestClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    assert client.post("/test/change", headers={**form, "content-length": str(MAX_BODY + 1)}).status_code == 413
    assert client.post("/test/change", headers={**form, "content-length": "many"}).status_code == 413

    def chunks() -> Iterator[bytes]:
        yield b"text="
        for _ in range(6):
            yield b"x" * (1 << 20)

    refused = client.post("/test/change", headers=form, content=chunks())
    assert refused.status_code == 413
    assert "4,194,304 bytes" in refused.json()["error"]["message"]


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The application behind a real socket; its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_whoever_sends_everything_before_reading_gets_the_answer_and_no_reset(tmp_path: Path) -> None:
    def refused(path: str, size: int, **headers: str) -> tuple[int, str]:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json", **headers}
        request = urllib.request.Request(address + path, b"x" * size, headers)
        with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request, timeout=30):
            pass
        with caught.value as answer:
            return answer.code, json.loads(answer.read())["error"]["message"]

    with served(build(make_settings(tmp_path))) as address:
        assert refused("/test/change", 9 << 20) == (413, TOO_LARGE)
        assert refused("/nowhere", 9 << 20) == (413, TOO_LARGE)
        assert refused("/nowhere", 3 << 20) == (404, "There is no page at /nowhere.")
        status, said = refused("/test/change", 3 << 20, origin="http://elsewhere.example")
        assert (status, "another site" in said) == (403, True)
        with socket.create_connection(address.removeprefix("http://").split(":"), timeout=30) as asking:
            # Such a client waits for leave to send; it is refused at once.
            asking.sendall(
                f"POST /test/change HTTP/1.1\r\nHost: {address[7:]}\r\nContent-Length: {9 << 20}\r\n"
                "Expect: 100-continue\r\n\r\n".encode()
            )
            assert asking.recv(100).startswith(b"HTTP/1.1 413")


def test_one_error_body_as_json_and_as_page(client: TestClient) -> None:
    body = {"error": {"code": "not_found", "message": "There is no <b>such</b> thing.", "hint": "Look elsewhere."}}
    as_json = client.get("/test/missing", headers={"accept": "application/json"})
    assert (as_json.status_code, as_json.json()) == (404, body)
    page = client.get("/test/missing", headers={"accept": "text/html,*/*"})
    assert page.status_code == 404
    assert "There is no &lt;b&gt;such&lt;/b&gt; thing." in page.text
    assert "Look elsewhere." in page.text


def test_failures_of_every_sort_have_the_body(client: TestClient) -> None:
    accept = {"accept": "application/json"}
    cases = {
        ("GET", "/nowhere.json"): (404, "not_found"),
        ("PUT", "/test/home"): (405, "method_not_allowed"),
        ("GET", "/test/number/twelve"): (422, "invalid"),
        ("GET", "/test/broken"): (500, "internal"),
    }
    for (method, path), (status, code) in cases.items():
        answer = client.request(method, path, headers=accept)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
        assert "secret" not in answer.text
    assert "number" in client.get("/test/number/twelve", headers=accept).json()["error"]["message"]
    assert client.put("/test/home", headers=accept).headers["allow"] == "GET"


def test_versioned_static_files_are_kept_and_others_asked_for_again(client: TestClient) -> None:
    assert "immutable" in client.get("/static/app.js?v=1").headers["cache-control"]
    assert client.get("/static/app.js").headers["cache-control"] == "no-cache"
    assert client.get("/static/../app/main.py").status_code == 404


@pytest.mark.parametrize(
    ("host", "name"),
    [("Lab.Example:80", "lab.example"), ("[::1]:8321", "::1"), ("::1", "::1"), ("a", "a"), ("", ""), ("[", "")],
)
def test_host_names(host: str, name: str) -> None:
    assert host_name(host) == name


def test_a_client_that_leaves_in_mid_request_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
        "headers": [*headers, (b"content-length", b"100")], "scheme": "http", "http_version": "1.1",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8321),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": b"prompt=it", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: object) -> None:
        sent.append(message)

    app = build(make_settings(tmp_path))
    asyncio.run(app(scope, receive, send))
    app.state.services.close()
    assert sent == []
    assert "failed" not in caplog.text


@pytest.mark.parametrize("path", ["/", "/models", "/nowhere", "/static/app.js", "/models.json"])
def test_head_is_answered_as_get_without_the_body(client: TestClient, path: str) -> None:
    shown, head = client.get(path), client.head(path)
    assert head.status_code == shown.status_code
    assert head.content == b""
    for name in ("content-type", "content-length", "content-security-policy"):
        assert head.headers[name] == shown.headers[name]
