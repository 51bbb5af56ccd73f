"""docs/workbench.ipynb is run cell by cell, as Jupyter runs it, against the shipped checkpoint and a live workbench.

Cells are plain Python, so they need no kernel: each is compiled, its last expression is shown, by `_repr_html_` where
that is there.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Live

from legible_client import Client

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "workbench.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> str:
    """What the cell prints, then how its last expression shows itself."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    shown = "" if value is None else value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
    return out.getvalue() + shown


def indexed(client: Client) -> None:
    """Wait until the names of the shipped checkpoints can be searched."""
    until = time.monotonic() + 120
    while (pending := client.search("it")["pending"]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not pending


def test_the_notebook_runs_and_shows_what_it_says(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGIBLE_SERVER", live.address)
    monkeypatch.setenv("LEGIBLE_TOKEN", live.token)
    torch.set_num_threads(1)  # as the worker's: sums over other numbers of threads round otherwise
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    cells = document["cells"]
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    indexed(Client(live.address, token=live.token))
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            assert set(cell) == {"cell_type", "id", "metadata", "source"}
            continue
        assert cell["outputs"] == []  # they would go stale with the checkpoint
        assert cell["execution_count"] is None
        shown.append(run_cell(source, names))
    first, closing, strongest, both, there, found, layer = shown
    for reading in (first, there):
        assert "<svg" in reading
        assert "<table" in reading
        assert "<script" not in reading
    assert names["reading"].target.text == " worst"
    assert f"logit {names['reading'].value:.4f}" in closing
    assert [row.id for row in names["reading"].top[:8]] == [line.split()[2] for line in strongest.splitlines()]
    assert both.count("→") >= 5
    assert names["there"].value == pytest.approx(names["reading"].value, abs=1e-6)
    assert "novel-legible L" in found
    assert "L5" in layer or "layer 5" in layer.lower()
