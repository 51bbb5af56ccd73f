"""Run benchmarks by name and print one row per claim; the status is 1 when a claim does not hold."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks.measure import THREADS, Row

# name -> the function that yields its rows, and what it measures
GROUPS = {
    "reading": ("reading:complete", "a complete reading at GPT-2-small shape against a Hugging Face forward"),
    "again": ("reading:again", "another target or position of a known prompt"),
    "beyond": ("reading:beyond", "what a reading costs beyond its forward, against TransformerLens"),
    "upstream": ("upstream:run", "why an operand was on, against the forward of its prompt"),
    "causal": ("causal:run", "ablations of one prediction in a batch, against one forward each"),
    "accounting": ("accounting:run", "the accounting of a prediction, and naming by writes, against plain forwards"),
    "training": ("training:run", "a training step of the legible model against its GELU twin"),
    "evaluation": ("evaluation:run", "evaluating minimal pairs against plain batched forwards of the same tokens"),
    "scan": ("scan:run", "a scan against plain forwards over the same tokens"),
    "tokenising": ("tokenising:run", "a text to a file of ids, against the tokenizers library alone"),
    "loading": ("loading:run", "peak memory of loading a model, against its weights"),
    "tuning": ("tuning:run", "a redraw while a slider moves, against a plain forward of the prompt"),
    "monitor": ("monitor:run", "generation under monitors against plain generation"),
    "page": ("page:run", "a stored reading's page: requests per second, bytes, first paint"),
    "names": ("names:run", "pages and searches over 36,864 named units: requests per second, bytes, growth"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(f"{name} ({what})" for name, (_, what) in GROUPS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {names}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in GROUPS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    # Set before torch loads: a spinning thread pool would slow whichever side shares the cores.
    os.environ.update(OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS), OMP_WAIT_POLICY="PASSIVE")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rows: list[Row] = []
    for name in options.names or GROUPS:
        module, function = GROUPS[name][0].split(":")
        for row in getattr(importlib.import_module(f"benchmarks.{module}"), function)():
            rows.append(row)
            print(line(row), flush=True)
    if options.json:
        machine = {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count()}
        document = {**machine, "threads": THREADS, "rows": [row.to_json() for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in rows) else 0


def line(row: Row) -> str:
    """A row for people."""
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "for comparison"}[row.holds]
    bound = "" if row.bound is None else f" ({row.direction} {row.bound:g})"
    spread = "" if row.spread is None else f" [{row.spread[0]:.2f}, {row.spread[1]:.2f}]"
    note = f"  {row.note}" if row.note else ""
    return (
        f"{row.name:<28} {row.what}: ours {row.ours:.4g} {row.unit}, baseline {row.baseline:.4g} {row.unit}, "
        f"ratio {row.ratio:.3f}{spread}{bound}: {verdict}{note}"
    )


if __name__ == "__main__":
    sys.exit(main())
