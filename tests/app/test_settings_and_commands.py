"""Settings from variables and flags, addresses, and the command line's manners."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app import cli, paths
from app.database import Database
from app.handlers import Engines
from app.jobs import Queue
from app.main import create_app
from app.settings import Settings, is_loopback
from app.urls import Urls
from legible_core.errors import Conflict, LegibleError, NotFound
from legible_core.sampling import MAX_SEED

URLS = Urls("/lab")


def test_flags_win_over_variables_and_variables_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.load().port == 8321
    monkeypatch.setenv("LEGIBLE_PORT", "9000")
    monkeypatch.setenv("LEGIBLE_ALLOWED_HOSTS", "a.example, b.example")
    assert Settings.load().port == 9000
    assert Settings.load(port=None).allowed_hosts == ("a.example", "b.example")
    assert Settings.load(port=9001).port == 9001


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "many"), ("port", 70000), ("root_path", "lab"), ("dtype", "int8"), ("lease_seconds", 0),
        ("workers", -1), ("device", "tpu"), ("device", "cuda:x"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_one_sentence(name: str, value: object) -> None:
    with pytest.raises(LegibleError, match=f"The setting {name} .LEGIBLE_{name.upper()}. cannot be") as caught:
        Settings.load(**{name: value})
    assert caught.value.code == "invalid_setting"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("blank", ["", " "])
def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: str) -> None:
    monkeypatch.setenv("LEGIBLE_TOKEN", blank)
    settings = Settings.load(host="0.0.0.0", data_dir=tmp_path)
    assert settings.token is None
    with pytest.raises(LegibleError, match=r"Listening on 0\.0\.0\.0 needs an access token"):
        create_app(settings)


def test_a_device_that_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    engines = Engines(Settings.load(device="cuda:99", data_dir=tmp_path))
    with pytest.raises(LegibleError, match="The worker's device 'cuda:99' cannot be used") as caught:
        engines._load(None, "float32")  # type: ignore[arg-type]
    assert caught.value.code == "bad_device"


def test_a_worker_process_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Settings.load(data_dir=tmp_path, allowed_hosts=("a", "b"), token="secret", threads=3, root_path="/lab/")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == made
    assert "secret" not in repr(made)


def test_database_addresses() -> None:
    for given in ("postgres://h/d", "postgresql://h/d", "postgresql+psycopg://h/d"):
        assert Settings.load(database_url=given).url == "postgresql+psycopg://h/d"
    assert Settings.load(data_dir="/x").url == "sqlite:////x/legible.sqlite"


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.org", "", "127.0.0.1.example.org")))


def test_addresses_leave_defaults_out_and_quote_what_they_carry() -> None:
    digest = "d" * 64
    assert URLS.home() == "/lab/"
    assert URLS.reading("m", digest) == f"/lab/models/m/readings/{digest}"
    full = URLS.reading("m", digest, position=0, target=7, contrast=8, relative_to="contrast", component="L5.u2")
    assert full.endswith("?position=0&target=7&contrast=8&relative_to=contrast&component=L5.u2")
    assert URLS.model("a/b ?") == "/lab/models/a%2Fb%20%3F"
    assert URLS.unit("m", "L1.u2") == "/lab/models/m/units/L1.u2"
    assert URLS.job(3) == "/lab/jobs/3"


def test_every_page_has_a_json_twin() -> None:
    assert URLS.json(URLS.home()) == "/lab/index.json"
    assert URLS.json(URLS.reading("m", "d", position=1)) == "/lab/models/m/readings/d.json?position=1"
    assert Urls().json(Urls().home()) == "/index.json"


def test_static_addresses_carry_the_content_hash() -> None:
    name = next(path.name for path in paths.static_dir().iterdir() if path.suffix == ".css")
    assert len(Urls().static(name).partition("?v=")[2]) == 12
    assert Urls().static("not/there.css") == "/static/not/there.css"


def test_shipped_files_are_found_in_a_checkout_and_in_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (paths.migrations_dir() / "env.py").is_file()
    package = tmp_path / "site-packages" / "app"
    (package / "_bundled" / "templates").mkdir(parents=True)
    (tmp_path / "site-packages" / "templates").mkdir()  # somebody else's
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.templates_dir() == package / "_bundled" / "templates"
    with pytest.raises(NotFound, match="lacks its 'static'"):
        paths.static_dir()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `legible ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["legible", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_a_users_error_is_a_sentence_on_stderr_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "jobs", "cancel", "7", "--data-dir", str(tmp_path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "There is no job 7; finished jobs are forgotten after a while.\n"


def test_with_json_it_is_the_shared_body(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("")
    assert run(monkeypatch, "jobs", "list", "--json", "--data-dir", str(tmp_path / "data")) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "read_only"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("read", "m", "hi", "--json", "--position", "1.5"), "Invalid value for '--position'"),
        (("read", "m", "--json"), "Give a prompt, or a file of them with --prompts."),
        (("read", "m", "hi", "--json", "--bogus"), "No such option: --bogus"),
        (("nonsense", "--json"), "No such command 'nonsense'."),
    ],
)
def test_with_json_a_wrong_call_is_the_shared_body_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "usage"
    assert error["message"].startswith(message)
    assert error["message"].endswith(".")


def test_jobs_from_the_terminal(tmp_path: Path) -> None:
    program, where = cli.build(), ["--data-dir", str(tmp_path)]

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(program, ["jobs", *arguments, *where], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert invoke("list") == "There are no jobs.\n"
    database = Database.open(Settings.load(data_dir=tmp_path), migrate=True)
    job = Queue(database).submit("read", "k", {"text": "x"})
    assert "read       waiting" in invoke("list")
    assert invoke("cancel", str(job.id)) == f"Job {job.id} is cancelled.\n"
    assert invoke("retry", str(job.id)) == f"Job {job.id + 1} is waiting.\n"
    with pytest.raises(Conflict):
        invoke("retry", str(job.id + 1))
    assert [row["state"] for row in json.loads(invoke("list", "--json"))] == ["waiting", "cancelled"]
    database.close()


def test_serve_lists_every_setting() -> None:
    """Each with its flag and its variable; the list cannot grow stale, for both are made from the settings."""
    listed = CliRunner().invoke(cli.build(), ["serve", "--help"], env={"COLUMNS": "400"}).output
    for name in Settings.model_fields:
        assert f"LEGIBLE_{name.upper()}" in listed
        assert "--" + ("allowed-host" if name == "allowed_hosts" else name.replace("_", "-")) in listed


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    documented = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        flag = "--allowed-host" if name == "allowed_hosts" else "--" + name.replace("_", "-")
        shown = "" if field.default_factory or field.default in (None, "", ()) else f"`{field.default}`"
        row = f"| `{flag}` | `LEGIBLE_{name.upper()}` | {shown} | {(field.description or '').rstrip('.')} |"
        assert row in documented, row


def test_every_seed_has_bounds() -> None:
    """What draws cannot take a number of any size, and would end in a traceback."""

    def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from commands(each, f"{words} {name}")

    bounds = {
        words: (parameter.min, parameter.max)
        for words, command in commands(typer.main.get_command(cli.build()), "legible")
        for parameter in command.params
        if parameter.name == "seed"
    }
    assert len(bounds) > 8
    assert set(bounds.values()) == {(0, MAX_SEED)}, bounds
