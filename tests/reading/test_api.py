"""`from legible_core import load, read`: the numbers of the command, and what a notebook shows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from reading_folder import TEXT, make_folder, name_folder
from typer.testing import CliRunner

import legible_core
from app.cli import build
from app.commands.read import MAX_TOP
from app.paths import models_dir
from legible_core import api, load, read
from legible_core.errors import LegibleError, NotFound
from legible_core.pipeline import Engine
from legible_core.reading import Reading
from legible_core.registry import Checkpoint

PROMPT = TEXT[:36]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return name_folder(make_folder(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def engine(checkpoint) -> Engine:
    return load(checkpoint.path)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ({}, []),
        ({"target": " worst", "top": 5}, ["--target", " worst", "--top", "5"]),
        ({"target": " worst", "contrast": " age", "position": 3}, ["--target", " worst", "--contrast", " age",
                                                                  "--position", "3"]),
        ({"relative_to": "mean"}, ["--relative-to", "mean"]),
    ],
    ids=["default", "target", "contrast", "mean"],
)  # fmt: skip
def test_the_numbers_are_those_of_the_command(checkpoint, engine, words, flags):
    done = CliRunner().invoke(build(), ["read", str(checkpoint.path), PROMPT, *flags, "--json"])
    assert done.exit_code == 0, done.output
    told, made = json.loads(done.stdout), read(engine, PROMPT, **words).to_json()
    assert made.keys() == told.keys()
    assert _numbers(made) == pytest.approx(_numbers(told), abs=1e-6)
    assert len(_numbers(made)) > 100
    assert made["digest"] == told["digest"]


def _numbers(data: object) -> list[float]:
    """Every number of a document, in its order."""
    if isinstance(data, bool) or data is None or isinstance(data, str):
        return []
    if isinstance(data, int | float):
        return [float(data)]
    return [n for part in (data.values() if isinstance(data, dict) else data) for n in _numbers(part)]


def test_a_model_is_named_by_folder_checkpoint_engine_or_slug(checkpoint, engine):
    for model in (checkpoint, checkpoint.path, str(checkpoint.path), engine):
        assert read(model, PROMPT, top=0).checkpoint.hash == checkpoint.hash
    shipped = sorted(path.parent.name for path in models_dir().glob("*/config.json"))
    with pytest.raises(NotFound, match="There is no checkpoint 'nobody'") as failure:
        load("nobody")
    assert all(slug in failure.value.message for slug in shipped)
    assert models_dir() == api._SHIPPED
    with pytest.raises(NotFound):
        load(checkpoint.path / "nobody")


def test_bad_words_are_one_sentence(engine):
    assert api.MAX_TOP == MAX_TOP
    for words, said in (
        ({"top": -1}, "top is -1; it must be from 0 to 1000"),
        ({"top": 1001}, "top is 1001"),
        ({"position": 99}, "Position 99"),
        ({"target": " worst times"}, "2 tokens"),
    ):
        with pytest.raises(LegibleError, match=re.escape(said)):
            read(engine, PROMPT, **words)
    with pytest.raises(AttributeError, match="no attribute 'red'"):
        _ = legible_core.red


class _Shown(HTMLParser):
    """The elements and attributes of a piece of HTML, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_the_figure_the_terms_and_the_sum(engine):
    made = read(engine, PROMPT, target=" worst", top=6)
    page = _Shown(made._repr_html_())
    assert page.open == []
    layers, heads = made.heads.shape
    assert page.names.count("rect") == layers * heads
    assert page.names.count("circle") == layers * 8
    assert page.names.count("tr") == 1 + 6
    for row in made.top:
        assert row.id in page.text
        assert f"{row.value:+.3f}" in page.text
    assert f"= {made.sum:.4f}; the model's logit is {made.value:.4f}" in page.text
    assert "·worst" in page.text
    assert "logit difference" in read(engine, PROMPT, target=" worst", contrast=" age")._repr_html_()
    assert "<table" not in read(engine, PROMPT, top=0)._repr_html_()


def test_nothing_of_a_model_can_run_in_a_notebook(engine):
    data = read(engine, PROMPT, target=" worst", top=4).to_json()
    evil = "<img src=x onerror=alert(1)>\"'&</svg><script>alert(1)</script>"

    def spoil(part: object) -> object:
        if isinstance(part, dict):
            fixed = ("relative_to", "dtype", "bytes")
            return {key: evil if isinstance(value, str) and key not in fixed else spoil(value)
                    for key, value in part.items() if key != "why_undefined"}  # fmt: skip
        return [spoil(value) for value in part] if isinstance(part, list) else part

    page = _Shown(Reading.from_json(spoil(data))._repr_html_())
    assert not {"img", "script", "style", "a", "iframe"} & set(page.names)
    assert not {name for name in page.attributes if name.startswith("on") or name in ("style", "href", "src")}
    assert evil in page.text
