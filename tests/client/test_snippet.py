"""The lines below a page, run as they are shown, whatever the prompt or the address holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from conftest import Live
from test_client import NASTY

from legible_client import Client, ClientError


class Shown(HTMLParser):
    """The snippets of a page, as a reader sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.name: str | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "pre":
            self.name = dict(attrs).get("data-snippet")

    def handle_endtag(self, tag):
        self.name = None if tag == "pre" else self.name

    def handle_data(self, data):
        if self.name:
            self.found[self.name] = self.found.get(self.name, "") + data


def page(live: Live, path: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {live.token}", "accept": "text/html"}
    try:
        with urllib.request.urlopen(urllib.request.Request(live.address + path, headers=headers)) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    assert live.token not in text
    return Shown(text).found


def in_python(live: Live, monkeypatch: pytest.MonkeyPatch, lines: str) -> dict:
    monkeypatch.setenv("LEGIBLE_TOKEN", live.token)
    names: dict = {}
    exec(compile(lines, "shown", "exec"), names)
    return names


def in_shell(live: Live, line: str) -> dict:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    environment = {**os.environ, "LEGIBLE_TOKEN": live.token}
    done = subprocess.run(["sh", "-c", line], capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("prompt", NASTY, ids=range(len(NASTY)))
def test_a_readings_lines_read_it(live, monkeypatch, prompt):
    made = Client(live.address, token=live.token).read(live.checkpoint.slug, prompt, target="id:70", relative_to="mean")
    query = f"position={made.position}&target=70&relative_to=mean"
    lines = page(live, f"/models/{live.checkpoint.slug}/readings/{made.digest}?{query}")
    again = in_python(live, monkeypatch, lines["ask"])["reading"]
    assert (again.digest, again.value, again.target.id) == (made.digest, made.value, 70)
    facts = in_python(live, monkeypatch, lines["python"])["page"]
    assert (facts["digest"], facts["value"], facts["relative_to"]) == (made.digest, made.value, "mean")
    assert in_shell(live, lines["curl"]) == facts
    words = ["legible", "read", "--position", str(made.position), "--target", "id:70", "--relative-to", "mean"]
    shown = [*words, "--json", "--", live.checkpoint.slug, prompt]
    assert ("command" in lines) == ("\x00" not in prompt)
    if "command" in lines:
        said = subprocess.run(
            ["bash", "-c", 'legible() { printf "%s\\0" legible "$@"; }; ' + lines["command"]],
            capture_output=True,
            check=True,
        )
        assert said.stdout.decode().split("\0")[:-1] == shown


@pytest.mark.parametrize("words", [NASTY[0], NASTY[1], *NASTY[3:], "'; touch pwned; '", "$(touch pwned)"], ids=range(7))
def test_a_search_finds_the_same(live, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    for query in {quote(words), quote(words, safe="'[]{};$`()\"\\")} if " " not in words else {quote(words)}:
        lines = page(live, f"/search?q={query}")
        facts = in_python(live, monkeypatch, lines["python"])["page"]
        assert in_shell(live, lines["curl"])["q"] == facts["q"]
        assert facts["q"] == Client(live.address, token=live.token).search(words)["q"]
    assert list(tmp_path.iterdir()) == []


def test_every_page_has_its_lines_or_its_address(live, monkeypatch):
    slug = live.checkpoint.slug
    with_twin = ["/", "/models", "/jobs", "/search", f"/models/{slug}", f"/models/{slug}/layers/1"]
    with_twin += [f"/models/{slug}/units/L0.u0", f"/models/{slug}/heads/L1.h0"]
    for path in with_twin:
        lines = page(live, path)
        assert set(lines) == {"python", "curl"}, path
        assert isinstance(in_shell(live, lines["curl"]), dict)
        assert isinstance(in_python(live, monkeypatch, lines["python"])["page"], dict)
    assert page(live, f"/models/{slug}/values") == {"address": f"{live.address}/models/{slug}/values"}
    made = Client(live.address, token=live.token).read(slug, "It was")
    unfilled = f"/models/{slug}/readings/{made.digest}/causal?view=path"
    assert page(live, unfilled) == {"address": live.address + unfilled}, "its twin would be refused"


def test_shown_lines_are_only_characters_that_are_what_they_look_like(live):
    prompt = "a\u202eb\u200bc\x1b"
    made = Client(live.address, token=live.token).read(live.checkpoint.slug, prompt)
    query = f"position={made.position}&target={made.target.id}"
    lines = page(live, f"/models/{live.checkpoint.slug}/readings/{made.digest}?{query}")
    assert all(text.replace("\n", "").isascii() and text.replace("\n", "").isprintable() for text in lines.values())


def test_an_errors_lines_give_the_error_and_a_form_has_none(live, monkeypatch):
    slug = live.checkpoint.slug
    for path, twin in (("/nowhere", False), ("/models/nobody", True), (f"/models/{slug}/layers/99", True)):
        lines = page(live, path)
        assert set(lines) == ({"python", "curl"} if twin else {"curl"}), path
        body = in_shell(live, lines["curl"])
        assert body["error"]["message"]
        if twin:
            with pytest.raises(ClientError) as failure:
                in_python(live, monkeypatch, lines["python"])
            assert failure.value.message == body["error"]["message"]
    address = f"{live.address}/models/{slug}/readings"
    headers = {"authorization": f"Bearer {live.token}", "accept": "text/html"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address, data=b"prompt=", headers=headers))
    with refused.value as answer:
        text = answer.read().decode()
    assert Shown(text).found == {}
    assert "This page answers a form" in text
