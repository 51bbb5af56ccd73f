"""Freed memory is kept: in a process of its own, for which alone it may be set."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from legible_core.training.memory import keep_memory

size = 48 << 20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        b"x" * size
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
assert keep_memory()
faults()
print(given_back, faults())
"""


def test_what_was_freed_is_there_without_a_fault() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    given_back, kept = map(int, found.stdout.split())
    assert given_back > 4000
    assert kept < given_back / 20
