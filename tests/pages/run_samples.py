"""Run folders as `legible train` leaves them, written without training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def make_run(
    folder: Path, steps: int = 60, *, of: int = 100, layers: int = 3, every: int = 20, quantifiers: bool = True
) -> Path:
    """`steps` of `of` steps of 64 tokens with telemetry, a spike, a revival and one stage of pressure."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {
        "name": folder.name,
        "model": {"n_layers": layers, "d_model": 24, "n_heads": 4, "context": 32, "value": "membership",
                  "special_fraction": 0.75, "gelu_fraction": 0.5, "quantifier_fraction": 0.25},
        "schedule": {"tokens": of * 64, "batch_tokens": 64, "warmup_tokens": 640},
        "attention_pressure": {"regime": "both", "later": [{"tokens": 1280}]},
    }  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(recipe))
    write_steps(folder, 1, steps, of)
    readings = [reading(number, layers, quantifiers) for number in range(every, steps + 1, every)]
    write(folder / "telemetry.jsonl", readings)
    write(folder / "events.jsonl", [{"number": 30, "event": "spike", "text": "perplexity 705.0 in one step"}])
    write(folder / "revived.jsonl", [{"number": 40, "revived": {"attention": 3, "feed_forward": 5}}])
    return folder


def write_steps(folder: Path, first: int, last: int, of: int) -> None:
    lines = []
    for number in range(first, last + 1):
        loss = 4 + 3 * math.exp(-number / 20) + (3 if number == 30 else 0)
        lines.append(
            {"number": number, "last": of, "tokens": number * 64, "loss": loss, "pressure": 0.01, "gradient_norm": 0.5,
             "factor": 1.0, "perplexity": math.exp(4 + 3 * math.exp(-number / 20)), "seconds": 0.5}
        )  # fmt: skip
    write(folder / "log.jsonl", lines)


def reading(number: int, layers: int, quantifiers: bool = True) -> dict[str, Any]:
    surface = {"channels": 8, "saturated": 0.37, "crisp": 0.6, "on": 0.12, "constant": 0.25}
    lives = {"median": 34.0, "min": 2.0, "max": 90.0, "latches": 0.5}
    layer = {
        "attention": surface, "feed_forward": {**surface, "saturated": 0.11}, "bounded_heads": 3,
        "write": [1.0, 1.5, 2.0, 9.0], "write_ratio": 6.0, "columns": [1.0, 1.0, 1.0, 1.34], "columns_ratio": 1.34,
        "half_life": lives if quantifiers else None,
    }  # fmt: skip
    return {
        "number": number, "tokens": 64, "residual_rms": 1.7, "gain_norm": 57.0 - number / 10,
        "layers": [layer] * layers, "seconds": 0.01,
    }  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
