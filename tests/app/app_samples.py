"""A small reading made without a model, and other things that several tests of the application need."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from legible_core.reading import Reading, ReadingRequest, Summary

HASH = "c" * 64
TEXT = "a quite unmistakable prompt"


def request(**changes: object) -> ReadingRequest:
    return ReadingRequest(**{"checkpoint": HASH, "ids": (5, 6, 7), "position": 2, "target": 3, **changes})  # type: ignore[arg-type]


def reading(asked: ReadingRequest, *, predicted: int = 3) -> Reading:
    """A reading of 2 layers, 2 heads, 4 units that answers `asked`; its target defaults to the predicted token."""
    target = predicted if asked.target is None else asked.target
    position = len(asked.ids) - 1 if asked.position is None else asked.position
    heads, units = np.arange(4, dtype=np.float32).reshape(2, 2), np.arange(8, dtype=np.float32).reshape(2, 4)
    layers = [
        {"layer": i, "heads": heads[i].tolist(), "attention": 0, "intersection": 1, "difference": 0, "existential": 0,
         "proportion": 0, "gelu": 0}
        for i in range(2)
    ]  # fmt: skip
    summary = {
        "schema": 1, "digest": asked.digest, "checkpoint": {"hash": asked.checkpoint, "slug": "tiny"},
        "dtype": asked.dtype, "edits": [], "tokens": [token(i) for i in asked.ids], "position": position,
        "relative_to": asked.relative_to, "target": {**token(target), "rank": 1},
        "contrast": None if asked.contrast is None else {**token(asked.contrast), "rank": 2},
        "predictions": [token(predicted)], "value": 34.0, "sum": 34.0, "residual": 0.0, "tolerance": 1e-4, "scale": 1.0,
        "floor": [], "groups": dict.fromkeys(
            ["attention", "linear_attention", "set_operators", "quantifiers", "gelu", "floor"], 0.0),
        "shares": {"net": 1.0, "mass": 1.0}, "layers": layers, "top": [], "units_shape": [2, 4], "heads_shape": [2, 2],
    }  # fmt: skip
    return Reading(Summary.model_validate(summary), heads, units)


def token(number: int) -> dict[str, object]:
    text = f" w{number}"
    return {
        "id": number, "text": text, "display": f"·w{number}", "bytes": text.encode().hex(), "logit": 1.0,
        "probability": 0.5,
    }  # fmt: skip


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition()` holds; fail when it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
