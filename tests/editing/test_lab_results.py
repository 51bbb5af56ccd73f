"""edit-lab.json: what is stored comes back, and what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from legible_core.editing.results import FILE, Experiment, Results, shown, table, text
from legible_core.errors import Corrupt


def experiment(name: str = "gains") -> Experiment:
    rows = [["units", np.float32(2.5), np.int64(3), float("nan"), True, 0.97]]
    made = table("t", "A table", ["edited", "α", "n", "gone", "good", "up"], rows, "A note.", ("up",))
    return Experiment(name, "What was done.", "legible edit-lab gains tiny", {"seed": 1}, {"largest": {}}, (made,))


def test_experiments_are_stored_and_replaced(tmp_path: Path) -> None:
    assert Results.load(tmp_path, "abc").experiments == {}
    first = Results("abc").put(experiment("survival")).put(experiment())
    first.save(tmp_path)
    again = Results.load(tmp_path, "abc")
    assert [one.name for one in again.ordered()] == ["gains", "survival"]
    assert again.experiments["gains"] == experiment()
    assert again.experiments["gains"].tables[0].rows == (("units", 2.5, 3, None, "yes", 0.97),)
    assert Results.load(tmp_path, "other weights").experiments == {}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    said = text(experiment())
    assert "units" in said
    assert "97 %" in said
    assert "A note." in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "not of format"),
        ({"experiments": [{"name": "gains"}]}, "damaged"),
        ({"experiments": [{**experiment().to_json(), "name": "none"}]}, "damaged"),
        ({"experiments": [{**experiment().to_json(), "tables": [{"columns": ["a"], "rows": [[1, 2]], "shares": []}]}]},
         "damaged"),
        ({"experiments": 3}, "damaged"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    (tmp_path / FILE).write_text(json.dumps({**Results("abc").to_json(), **change}))
    with pytest.raises(Corrupt, match=said):
        Results.load(tmp_path, "abc")


def test_cells_are_shown_with_the_digits_that_they_have() -> None:
    cells = [None, "L5", 1234, -3, 0.0123, 0.00012, 1.234, 12.34, 1234.5, -0.5, 0.0, 8.0]
    assert [shown(cell) for cell in cells] == [
        "–", "L5", "1,234", "−3", "0.012", "0.00012", "1.23", "12.3", "1,234", "−0.500", "0", "8",
    ]  # fmt: skip
    assert shown(0.966, share=True) == "97 %"
