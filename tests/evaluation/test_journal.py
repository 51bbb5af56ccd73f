"""The per-item file: each item once, whatever kills the process, and nothing of other weights or questions."""

from __future__ import annotations

import json
import os

import pytest

from legible_core.errors import Conflict, Unavailable
from legible_core.evaluation.journal import Journal

ONE = (("a", 0), [(-1.25, True)])
TWO = (("a", 1), [(-0.1, False), (-2.0, False)])


def test_what_was_added_is_there_again(tmp_path):
    with Journal(tmp_path / "deep" / "j.jsonl", {"task": "x"}) as journal:
        journal.add([ONE])
        journal.add([TWO])
    with Journal(tmp_path / "deep" / "j.jsonl", {"task": "x"}) as journal:
        assert journal.done == dict([ONE, TWO])
        with pytest.raises(ValueError, match="already there"):
            journal.add([ONE])
    lines = (tmp_path / "deep" / "j.jsonl").read_text().splitlines()
    assert [json.loads(line).get("item") for line in lines] == [None, 0, 1]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"part": "a", "it', b'{"part": "a", "item": 1, "scores": [[1, true]]}', b"\0\0\n", b"[" * 100_000 + b"\n",
        b'{"part": "a", "item": 1e999, "scores": [[1, true]]}\n',
    ],
)  # fmt: skip
def test_a_line_that_was_cut_off_is_asked_again(tmp_path, torn):
    path = tmp_path / "j.jsonl"
    with Journal(path, {}) as journal:
        journal.add([ONE])
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with Journal(path, {}) as journal:
        assert journal.done == dict([ONE])
        assert path.read_bytes() == whole
        journal.add([TWO])
    with Journal(path, {}) as journal:
        assert journal.done == dict([ONE, TWO])


def test_other_weights_begin_anew(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path, {"checkpoint": "a"}) as journal:
        journal.add([ONE])
    with Journal(path, {"checkpoint": "b"}) as journal:
        assert journal.done == {}
    path.write_bytes(b"\xff\xfe no journal")
    with Journal(path, {"checkpoint": "b"}) as journal:
        assert journal.done == {}


def test_two_processes_do_not_write_one_file(tmp_path):
    with Journal(tmp_path / "j.jsonl", {}), pytest.raises(Conflict, match="Another process evaluates"):
        Journal(tmp_path / "j.jsonl", {})


def test_a_full_disk_keeps_what_was_written(tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, {})
    journal.add([ONE])
    before = path.read_bytes()

    class Full:
        """Takes three bytes, then nothing more."""

        def __init__(self, file):
            self.file, self.room = file, 3

        def write(self, data):
            if not self.room:
                raise OSError(28, "No space left on device")
            count = self.file.write(bytes(data[: self.room]))
            self.room -= count
            return count

        def __getattr__(self, name):
            return getattr(self.file, name)

    journal._file = Full(journal._file)
    with pytest.raises(Unavailable, match="No space left on device"):
        journal.add([TWO])
    journal._file.close()
    assert path.read_bytes() == before
    with Journal(path, {}) as again:
        assert again.done == dict([ONE])


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        Journal(tmp_path / "file" / "j.jsonl", {})
    assert os.listdir(tmp_path) == ["file"]
