"""Legible models: the architecture, its exact readings, and the names of its parts.

Modules load lazily, so that a process without torch can import the torch-free ones.
"""

__version__ = "0.1.0"
