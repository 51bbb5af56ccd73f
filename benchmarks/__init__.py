"""Claims of speed and memory, measured: `python -m benchmarks [NAME...] [--json FILE]`.

Each claim is one row: ours, baseline, their ratio, the bound, and whether it holds. Both sides of a ratio run in one
process on two threads, alternately, so that whatever else the machine does falls on both.
"""
