"""One micro-batch in bfloat16, compiled, and out of batches made ahead: the same as plainly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from training_samples import RECIPE, losses, recipe_of, write_text, write_tokenizer

from legible_core.model import Observed, Transformer
from legible_core.training.batches import Batches
from legible_core.training.loop import Run
from legible_core.training.step import Objective


def model_and_rows() -> tuple[Transformer, Tensor]:
    model = Transformer(RECIPE.model.config(300))
    model.initialise(torch.Generator().manual_seed(0))
    return model, torch.randint(0, 300, (4, 17), generator=torch.Generator().manual_seed(1))


def graded(objective: Objective, rows: Tensor) -> tuple[list[float], dict[str, Tensor]]:
    for parameter in objective.model.parameters():
        parameter.grad = None
    total, loss, pressure = objective(rows, 0)
    total.backward()
    assert not loss.requires_grad
    assert not pressure.requires_grad
    assert total.item() == pytest.approx((loss + pressure).item(), rel=1e-6)
    grads = {name: value.grad for name, value in objective.model.named_parameters() if value.grad is not None}
    return [total.item(), loss.item(), pressure.item()], grads


def test_bfloat16_is_near_float32_and_keeps_float32_where_it_must() -> None:
    model, rows = model_and_rows()
    plain, grads = graded(Objective(model, RECIPE), rows)
    mixed, rounded = graded(Objective(model, RECIPE, "bfloat16"), rows)
    assert mixed == pytest.approx(plain, rel=5e-3)
    assert mixed != plain
    assert grads.keys() == rounded.keys() == dict(model.named_parameters()).keys()
    for name, gradient in grads.items():
        assert rounded[name].dtype == torch.float32
        assert (rounded[name] - gradient).norm() < 0.1 * gradient.norm(), name
    observed = Observed()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.residual(rows[:, :-1], observed=observed).dtype == torch.float32
    assert observed.feed_forward_operands[0][0].dtype == torch.bfloat16


COMPILED = """
import functools, torch
from test_objective import graded, model_and_rows
from training_samples import RECIPE
from legible_core.training.step import Objective

torch.set_num_threads(1)
model, rows = model_and_rows()
plain, grads = graded(Objective(model, RECIPE), rows)
# Through the tracer alone; what a compiler makes of the graph is its own matter.
torch.compile = functools.partial(torch.compile, backend="eager")
traced, others = graded(Objective(model, RECIPE, compiled=True), rows)
assert max(abs(one - other) for one, other in zip(plain, traced)) < 1e-5, (plain, traced)
for name, gradient in grads.items():
    assert torch.allclose(others[name], gradient, atol=1e-6), name
assert torch._dynamo.utils.counters["frames"]["ok"] > 0
"""


def test_compiled_layers_have_the_same_gradients() -> None:
    """In a process of its own: the checks of shapes that the tests put into every call cannot be traced."""
    here = Path(__file__).resolve().parent
    paths = os.pathsep.join([str(here.parents[1]), str(here)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_a_bfloat16_run_resumes_bit_for_bit_and_says_how_it_was_made(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt")
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    for name, stops in (("a", (99,)), ("b", (4, 99))):
        for stop in stops:
            run = Run(recipe_of(), tmp_path / name, text, tokenizer=tokenizer, precision="bfloat16")
            run.train(lambda step, stop=stop: step.number < stop)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    sittings = [json.loads(line) for line in (tmp_path / "b" / "sittings.jsonl").read_text().splitlines()]
    assert [(each["number"], each["precision"], each["processes"]) for each in sittings] == [
        (0, "bfloat16", 1),
        (4, "bfloat16", 1),
    ]


def test_batches_come_as_asked_whatever_was_made_ahead() -> None:
    made: list[int] = []

    def make(step: int) -> Tensor:
        if step == 9:
            raise ValueError("no such step")
        made.append(step)
        return torch.full((2,), step)

    with Batches(make, torch.device("cpu")) as batches:
        for step in (0, 1, 2, 7, 3):
            assert batches.take(step).tolist() == [step, step]
        batches.take(8)
        with pytest.raises(ValueError, match="no such step"):
            batches.take(9)
    assert set(made) >= {0, 1, 2, 3, 7, 8}
