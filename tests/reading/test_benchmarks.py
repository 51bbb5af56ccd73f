"""The benchmarks' own arithmetic: ratios the right way round, verdicts, and the command's table and file."""

from __future__ import annotations

import json
import sys
import types

import pytest

from benchmarks import __main__ as program
from benchmarks.measure import Row, Timing, against


def test_a_ratio_of_times_is_ours_over_baseline():
    row = Timing([1.0, 2.0, 3.0], [2.0, 4.0, 2.0]).row("x", "x", 0.6)
    assert row.ratio == 0.5
    assert row.spread == (0.5, 1.5)
    assert (row.ours, row.baseline, row.unit) == (2000.0, 2000.0, "ms")
    assert row.holds


def test_a_ratio_of_rates_turns_round():
    row = Timing([2.0], [1.0]).row("x", "x", 0.9, per=100, unit="tok/s", direction="at least")
    assert (row.ours, row.baseline, row.ratio) == (50.0, 100.0, 0.5)
    assert row.holds is False


@pytest.mark.parametrize(
    ("direction", "expected"), [("at most", [True, True, False]), ("at least", [False, True, True])]
)
def test_the_bound_itself_holds(direction, expected):
    rows = [Row("x", "x", 1, 1, "ms", 1.0, direction, ratio) for ratio in (0.9, 1.0, 1.1)]
    assert [row.holds for row in rows] == expected
    assert Row("x", "x", 1, 1, "ms").holds is None


def test_both_sides_get_every_input_in_turns():
    calls: list[tuple[str, int]] = []
    timing = against(
        lambda given: calls.append(("ours", given)), lambda given: calls.append(("baseline", given)), iter(range(9)), 3
    )
    assert len(timing.ours) == len(timing.baseline) == 3
    assert [given for _, given in calls] == [0, 0, 1, 1, 2, 2, 3, 3]
    first = [side for side, _ in calls[::2]]
    assert first == ["baseline", "ours", "baseline", "ours"]


def test_the_command_prints_and_writes_its_rows(monkeypatch, tmp_path, capsys):
    module = types.ModuleType("benchmarks.made_up")
    module.run = lambda: iter(
        [Row("fast", "it is fast", 1, 2, "ms", 1.0, "at most", 0.5), Row("by", "by the way", 1, 1, "ms")]
    )
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", module)
    monkeypatch.setattr(program, "GROUPS", {"made-up": ("made_up:run", "nothing")})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "made-up", "--json", str(tmp_path / "rows.json")])
    monkeypatch.setattr("os.environ", dict(program.os.environ))
    assert program.main() == 0
    document = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["name"], row["holds"]) for row in document["rows"]] == [("fast", True), ("by", None)]
    assert "ratio 0.500 (at most 1): holds" in capsys.readouterr().out
    module.run = lambda: iter([Row("slow", "it is slow", 2, 1, "ms", 1.0, "at most", 2.0)])
    assert program.main() == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_unknown_names_list_the_known_ones(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nothing"])
    with pytest.raises(SystemExit):
        program.main()
    assert f"there are {', '.join(program.GROUPS)}" in capsys.readouterr().err
