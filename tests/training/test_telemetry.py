"""The reads against their plain definitions, for every design; and a run's files: once per step, losses untouched."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.model import Observed
from legible_core.training import guard, loop
from legible_core.training.data import train_tokenizer
from legible_core.training.loop import Diverged, Run, Step
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe
from legible_core.training.telemetry import Telemetry, forward_read, read, static_read

RECIPE = Recipe(
    name="tiny",
    model=ModelRecipe(2, 16, 2, 16, "membership", 0.5, None, 0.5, 0.25),
    data=DataRecipe("unused", vocab_size=300, held_out_tokens=200),
    schedule=ScheduleRecipe(tokens=640, warmup_tokens=128, decay_tokens=192, batch_tokens=64),
    attention_pressure=Pressure("both", 0.01, 0.1),
)


@pytest.mark.parametrize("config", designs(), ids=lambda config: f"{config.attention.value}-{config.feed_forward}")
def test_reads_are_their_definitions(config: ModelConfig) -> None:
    """On a batch at once, from what the pressures see, head by head through W_O."""
    model = tiny_model(config)
    ids = random_ids(20, seed=3, batch=5)
    found = json.loads(json.dumps(read(model, ids), allow_nan=False))
    observed = Observed()
    with torch.no_grad():
        final = model.residual(ids, observed=observed)
    assert found["tokens"] == 100
    assert found["residual_rms"] == pytest.approx(final.square().mean().sqrt().item(), rel=1e-4)
    assert found["gain_norm"] == pytest.approx(model.final_norm.gain.norm().item(), rel=1e-4)
    for index, layer in enumerate(found["layers"]):
        surfaces = (observed.attention_operands[index], observed.feed_forward_operands[index])
        for name, banks in zip(("attention", "feed_forward"), surfaces, strict=True):
            check_surface(layer[name], [bank.flatten(2).flatten(0, 1) for bank in banks])
        check_heads(model.config, index, layer, ids, model)
        theta = model.layers[index].feed_forward.theta
        if theta is None:
            assert layer["half_life"] is None
            continue
        lives = math.log(0.5) / torch.sigmoid(theta.double()).log()
        assert layer["half_life"]["median"] == pytest.approx(lives.quantile(0.5).item(), rel=1e-3)
        assert layer["half_life"]["min"] == pytest.approx(lives.min().item(), rel=1e-3)
        assert layer["half_life"]["max"] == pytest.approx(lives.max().item(), rel=1e-3)
        assert layer["half_life"]["latches"] == pytest.approx((lives >= 32).double().mean().item(), rel=1e-4)


def check_surface(found: dict[str, Any] | None, banks: list[torch.Tensor]) -> None:
    if not banks:
        assert found is None
        return
    assert found is not None
    v = torch.cat(banks, dim=1)
    assert found["channels"] == v.shape[1]
    distance = torch.minimum(v, 1 - v)
    # A value that falls on a threshold may count on either side.
    assert found["saturated"] == pytest.approx((distance < 0.02).double().mean().item(), abs=2 / v.numel())
    assert found["crisp"] == pytest.approx((distance < 0.1).double().mean().item(), abs=2 / v.numel())
    assert found["on"] == pytest.approx((v > 0.9).double().mean().item(), abs=2 / v.numel())
    assert found["constant"] == pytest.approx(
        (v.double().var(0, unbiased=False) < 0.003).double().mean().item(), rel=1e-4
    )


def check_heads(config: ModelConfig, index: int, found: dict[str, Any], ids: torch.Tensor, model: Any) -> None:
    output, width = model.layers[index].attention.output.detach(), config.d_head
    writes, columns = [], []
    for head in range(config.n_heads):
        block = output[:, head * width : (head + 1) * width]
        z = torch.cat([model.trace(row).layers[index].z[:, head] for row in ids])
        writes.append((z @ block.T).norm(dim=1).mean().item())
        columns.append(block.norm(dim=0).mean().item())
    assert found["write"] == pytest.approx(writes, rel=1e-3)
    assert found["columns"] == pytest.approx(columns, rel=1e-3)
    bounded = config.attention.n_special[index]
    for key, values in (("write_ratio", writes), ("columns_ratio", columns)):
        if not 0 < bounded < config.n_heads:
            assert found[key] is None
            continue
        expected = sum(values[bounded:]) / (config.n_heads - bounded) / (sum(values[:bounded]) / bounded)
        assert found[key] == pytest.approx(expected, rel=1e-3)


def test_the_signature_of_a_runaway_minority() -> None:
    """Bounded heads pinned to the rails, the one conventional head writing a hundredfold: A.2's picture, in layer 1."""
    model = tiny_model(tiny_config("membership", (3, 3, 3)))
    with torch.no_grad():
        model.layers[1].attention.bounded_values *= 200
        model.layers[1].attention.linear_values *= 300
    layers = forward_read(model, random_ids(24, batch=4))["layers"]
    assert layers[1]["attention"]["saturated"] > 0.9 > layers[0]["attention"]["saturated"]
    assert layers[1]["write_ratio"] > 100 > layers[0]["write_ratio"]
    assert static_read(model)["layers"][1]["columns_ratio"] < 2


def test_what_is_not_finite_is_null() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.final_norm.gain[0] = math.inf
        model.layers[2].feed_forward.down[0, 0] = math.nan
    found = json.loads(json.dumps(read(model, random_ids(8, batch=1)), allow_nan=False))
    assert found["gain_norm"] is None
    assert found["residual_rms"] is None
    assert found["layers"][0]["attention"]["saturated"] >= 0


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["the ", "cat ", "dog ", "sees ", "a ", "not ", "bird. ", "runs ", "and ", "or "]
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(rng.choice(words) for _ in range(4000)))
    tokenizer = train_tokenizer(path, 300)
    tokenizer.add_tokens([f"<fill{i}>" for i in range(300 - tokenizer.get_vocab_size())])
    tokenizer.save(str(path.parent / "tokenizer.json"))
    return path


def start(folder: Path, text: Path, every: int, recipe: Recipe = RECIPE) -> Run:
    tokenizer = text.parent / "tokenizer.json"
    return Run(recipe, folder, text, cache=text.parent / "cache", tokenizer=tokenizer, telemetry_every=every)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def untimed(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key != "seconds"} for line in lines(folder, "telemetry.jsonl")
    ]


def test_losses_and_weights_are_the_same_with_and_without(tmp_path: Path, text: Path) -> None:
    runs = {every: start(tmp_path / str(every), text, every) for every in (0, 1)}
    for run in runs.values():
        assert run.train(lambda step: True)
    one, other = (lines(run.folder, "log.jsonl") for run in runs.values())
    assert [line["loss"] for line in one] == [line["loss"] for line in other]
    for name, value in runs[0].model.state_dict().items():
        assert torch.equal(value, runs[1].model.state_dict()[name]), name
    assert lines(tmp_path / "0", "telemetry.jsonl") == []
    assert [line["number"] for line in lines(tmp_path / "1", "telemetry.jsonl")] == list(range(1, 11))


def test_every_so_many_steps_and_at_the_end(tmp_path: Path, text: Path) -> None:
    start(tmp_path / "a", text, 4).train(lambda step: True)
    found = untimed(tmp_path / "a")
    assert [line["number"] for line in found] == [4, 8, 10]
    # The last line is what the stored weights read on the last step's batch.
    run = start(tmp_path / "a", text, 4)
    run.load(tmp_path / "a")
    assert found[-1] == {"number": 10, **read(run.model, run.order.batch(9 * 4, 4)[:, :-1])}


def test_each_number_once_across_kills_and_resumes(tmp_path: Path, text: Path) -> None:
    start(tmp_path / "whole", text, 2).train(lambda step: True)

    def die(step: Step) -> bool:
        if step.number == 7:
            raise SystemExit
        return step.number < 5

    start(tmp_path / "parts", text, 2).train(die)  # saved at 5
    with pytest.raises(SystemExit):
        start(tmp_path / "parts", text, 2).train(lambda step: die(step) or True, save_seconds=1e9)
    with (tmp_path / "parts" / "telemetry.jsonl").open("a") as file:
        file.write('{"number": 8, "half a li')  # and a line that a kill cut short
    start(tmp_path / "parts", text, 2).train(lambda step: True)
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


def test_a_decay_branch_has_readings_of_its_own(tmp_path: Path, text: Path) -> None:
    run = start(tmp_path / "a", text, 2)
    run.train(lambda step: step.number < 6)
    branch = run.decay(lambda step: True)
    assert [line["number"] for line in lines(branch, "telemetry.jsonl")] == [8, 9]
    assert [line["number"] for line in lines(tmp_path / "a", "telemetry.jsonl")] == [2, 4, 6]


def test_a_spike_is_a_line_and_the_run_goes_on(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SPIKE_AFTER", 3)
    plain = loop.train_step

    def jump(*arguments: Any) -> tuple[float, float, float]:
        loss, *rest = plain(*arguments)
        return (loss + 30 if arguments[4] == 7 * 64 else loss, *rest)  # type: ignore[return-value]

    monkeypatch.setattr(loop, "train_step", jump)
    for stop in (8, 99):  # resumed after it, it stands there once
        start(tmp_path / "a", text, 0).train(lambda step, stop=stop: step.number < stop)
    (event,) = lines(tmp_path / "a", "events.jsonl")
    assert (event["number"], event["event"]) == (8, "spike")
    assert "in one step" in event["text"]
    assert len(lines(tmp_path / "a", "log.jsonl")) == 10


def test_a_divergence_is_a_line_until_the_run_goes_on(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "a", text, 0).train(lambda step: step.number < 4)
    plain = loop.train_step
    monkeypatch.setattr(loop, "train_step", lambda *arguments: (math.inf, *plain(*arguments)[1:]))
    with pytest.raises(Diverged):
        start(tmp_path / "a", text, 0).train(lambda step: True)
    (event,) = lines(tmp_path / "a", "events.jsonl")
    assert (event["number"], event["event"]) == (5, "diverged")
    assert "not a finite number" in event["text"]
    monkeypatch.undo()
    start(tmp_path / "a", text, 0).train(lambda step: True)
    assert lines(tmp_path / "a", "events.jsonl") == []


def test_a_reading_takes_no_more_than_its_share_of_the_batch(tmp_path: Path) -> None:
    """2,048 tokens at most, at least one context: the cost stays bounded whatever the batch."""
    asked: list[int] = []

    def contexts(count: int) -> torch.Tensor:
        asked.append(count)
        return random_ids(9, batch=min(count, 2))

    for context in (8, 1024, 4096):
        model = tiny_model(replace(tiny_config(), context=context))
        Telemetry(tmp_path, model, 1).after(1, 9, guard.Guard(), contexts)
    assert asked == [256, 2, 1]
