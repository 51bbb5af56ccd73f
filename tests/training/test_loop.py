"""A run on a small text: exact resume, accumulation, decay, divergence, and what a killed run leaves."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app.cli import build
from legible_core.checkpoint import save
from legible_core.errors import Conflict, Corrupt, LegibleError, Unavailable
from legible_core.folder import Card
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.training import loop
from legible_core.training import step as step_module
from legible_core.training.loop import Diverged, Run, Step
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import (
    DataRecipe,
    ModelRecipe,
    OptimiserRecipe,
    Recipe,
    ScheduleRecipe,
    load_recipe,
)
from legible_core.training.state import read_meta, read_state

RECIPE = Recipe(
    name="tiny",
    model=ModelRecipe(2, 16, 2, 16, "boolean", 1.0, None, 0.5, 0.25),
    data=DataRecipe("unused", vocab_size=300, held_out_tokens=200),
    schedule=ScheduleRecipe(tokens=640, warmup_tokens=128, decay_tokens=192, batch_tokens=64),
    attention_pressure=Pressure("both", 0.01, 0.1),
    feed_forward_pressure=Pressure("crispness", crispness=0.1),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["the ", "cat ", "dog ", "sees ", "a ", "not ", "bird. ", "runs ", "and ", "or "]
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(rng.choice(words) for _ in range(4000)))
    return path


def start(recipe: Recipe, folder: Path, text: Path, begin: tuple[Checkpoint, int] | None = None) -> Run:
    return Run(recipe, folder, text, cache=text.parent / "cache", tokenizer=_tokenizer(text), begin=begin)


def _tokenizer(text: Path) -> Path:
    path = text.parent / "tokenizer.json"
    if not path.exists():
        from legible_core.training.data import train_tokenizer

        tokenizer = train_tokenizer(text, 300)
        # The tiny text supports fewer merges than 300 entries; the rest are filled so that sizes agree.
        tokenizer.add_tokens([f"<fill{i}>" for i in range(300 - tokenizer.get_vocab_size())])
        tokenizer.save(str(path))
    return path


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, text: Path, kind: str) -> None:
    recipe = replace(RECIPE, optimiser=OptimiserRecipe(kind=kind))  # type: ignore[arg-type]
    whole = start(recipe, tmp_path / "whole", text)
    assert whole.train(lambda step: True)
    parts = tmp_path / "parts"
    for stop in (3, 4, 99):
        start(recipe, parts, text).train(lambda step, stop=stop: step.number < stop)
    assert losses(parts) == losses(tmp_path / "whole")
    again = start(recipe, parts, text)
    assert again.load(parts)["step"] == 10
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    assert losses(parts)[-1] < losses(parts)[0]


@pytest.mark.parametrize("rows", ["random", "data"])
def test_a_revival_happens_once_and_resumes_alike(
    tmp_path: Path, text: Path, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, kinds = loop.revive, []

    def revive(*given: object) -> dict[str, int]:
        kinds.append(given[-1])
        return plain(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "revive", revive)
    name = "revive_tokens" if rows == "random" else "revive_data_tokens"
    recipe = replace(RECIPE, schedule=replace(RECIPE.schedule, **{name: (256,)}))
    start(recipe, tmp_path / "whole", text).train(lambda step: True)
    for stop in (4, 99):
        start(recipe, tmp_path / "parts", text).train(lambda step, stop=stop: step.number < stop)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    for name in ("parts", "whole"):
        (line,) = (tmp_path / name / "revived.jsonl").read_text().splitlines()
        assert json.loads(line)["number"] == 4
        assert json.loads(line)["rows"] == rows
    assert kinds == [rows] * 2


def test_a_killed_run_repeats_the_steps_after_its_state(tmp_path: Path, text: Path) -> None:
    """A kill between two states: the log's later lines are dropped and the same losses come again."""
    start(RECIPE, tmp_path / "a", text).train(lambda step: True)

    def die(step: Step) -> bool:
        if step.number == 7:
            raise SystemExit
        return True

    with pytest.raises(SystemExit):
        start(RECIPE, tmp_path / "b", text).train(die, save_seconds=1e9)
    start(RECIPE, tmp_path / "b", text).train(lambda step: True)
    assert losses(tmp_path / "b") == losses(tmp_path / "a")


def test_accumulation_is_the_whole_batch(tmp_path: Path, text: Path) -> None:
    start(RECIPE, tmp_path / "a", text).train(lambda step: True)
    split = replace(RECIPE, schedule=replace(RECIPE.schedule, micro_batch_tokens=16))
    start(split, tmp_path / "b", text).train(lambda step: True)
    for one, other in zip(losses(tmp_path / "a"), losses(tmp_path / "b"), strict=True):
        assert one == pytest.approx(other, abs=2e-4)


def test_runs_that_share_a_seed_share_the_data(tmp_path: Path, text: Path) -> None:
    other = replace(
        RECIPE,
        model=replace(RECIPE.model, value="linear", gelu_fraction=1.0, quantifier_fraction=0.0),
        attention_pressure=Pressure(),
        feed_forward_pressure=Pressure(),
        seed=7,
    )
    one, two = start(RECIPE, tmp_path / "a", text), start(other, tmp_path / "b", text)
    for first in (0, 4, 400):
        assert torch.equal(one.order.batch(first, 4), two.order.batch(first, 4))


def test_decay_branches_and_leaves_the_run_as_it_was(tmp_path: Path, text: Path) -> None:
    run = start(RECIPE, tmp_path / "a", text)
    run.train(lambda step: step.number < 6)
    before = (tmp_path / "a" / "state" / "model.safetensors").read_bytes()
    factors: list[float] = []

    def record(step: Step) -> bool:
        factors.append(step.factor)
        return True

    branch = run.decay(record)
    assert factors == pytest.approx([1.0, 2 / 3, 1 / 3])
    assert branch.name == "decay-384"
    assert run.load(branch)["step"] == 9
    assert (tmp_path / "a" / "state" / "model.safetensors").read_bytes() == before
    assert run.held_out_loss().mean() < math.log(300)
    # The run itself goes on as if nothing had happened.
    start(RECIPE, tmp_path / "a", text).train(lambda step: True)
    start(RECIPE, tmp_path / "b", text).train(lambda step: True)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_an_interrupted_decay_goes_on_bit_for_bit(tmp_path: Path, text: Path) -> None:
    for name, stops in (("a", (99,)), ("b", (7, 8, 99))):
        run = start(RECIPE, tmp_path / name, text)
        run.train(lambda step: step.number < 6)
        for stop in stops:
            try:
                branch = start(RECIPE, tmp_path / name, text).decay(lambda step, stop=stop: step.number < stop)
            except KeyboardInterrupt:
                continue
        assert losses(branch) == losses(tmp_path / "a" / "decay-384")


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(RECIPE, tmp_path / "a", text)
    run.train(lambda step: step.number < 4)
    good = (tmp_path / "a" / "state" / "model.safetensors").read_bytes()
    plain = step_module.next_token_loss
    monkeypatch.setattr(step_module, "next_token_loss", lambda *arguments: plain(*arguments) * math.nan)
    with pytest.raises(Diverged, match=r"not a finite number.*last good state is kept"):
        start(RECIPE, tmp_path / "a", text).train(lambda step: True)
    assert (tmp_path / "a" / "state" / "model.safetensors").read_bytes() == good
    monkeypatch.undo()
    start(RECIPE, tmp_path / "a", text).train(lambda step: True)
    start(RECIPE, tmp_path / "b", text).train(lambda step: True)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


class Rising:
    """The next-token loss, `by` nats higher from the call number `after` + 1 on; gradients stay what they are."""

    def __init__(self, after: int, by: float) -> None:
        self.plain, self.after, self.by, self.calls = step_module.next_token_loss, after, by, 0

    def __call__(self, *words: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.plain(*words) + (self.by if self.calls > self.after else 0.0)


LONGER = replace(RECIPE, schedule=replace(RECIPE.schedule, tokens=1280))


def test_a_run_that_ends_on_a_rise_is_not_finished(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "next_token_loss", Rising(12, 5.0))
    said = (
        r"The training is not finished: by its last step, 20, .* the last steps stand as high\. Nothing was saved yet\."
    )
    with pytest.raises(Diverged, match=said):
        start(LONGER, tmp_path / "a", text).train(lambda step: True)
    event = json.loads((tmp_path / "a" / "events.jsonl").read_text().splitlines()[-1])
    assert (event["number"], event["event"]) == (21, "diverged")
    monkeypatch.undo()
    assert start(LONGER, tmp_path / "a", text).train(lambda step: True)
    assert (tmp_path / "a" / "events.jsonl").read_text() == ""


def test_a_decay_that_ends_on_a_rise_ships_nothing(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").write_text(TOML.replace("vocab_size = 300", "vocab_size = 300\nheld_out_tokens = 200"))
    out, shipped = tmp_path / "a", tmp_path / "shipped"
    words = ["train", str(tmp_path / "recipe.toml"), "--out", str(out), "--text", str(text)]
    begun = CliRunner().invoke(build(), [*words, "--tokenizer", str(_tokenizer(text)), "--steps", "12"])
    assert begun.exit_code == 0, begun.output
    words += ["--decay", "--decay-tokens", "640", "--ship", str(shipped)]
    monkeypatch.setattr(step_module, "next_token_loss", Rising(0, 5.0))
    result = CliRunner().invoke(build(), words)
    assert isinstance(result.exception, Diverged)
    assert f"The last good state is kept in {out / 'decay-768' / 'state'}." in result.exception.message
    assert not shipped.exists()
    monkeypatch.undo()
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert open_checkpoint(shipped).card.fields["tokens"] == "1408"


def test_a_spike_at_the_end_is_saved(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "next_token_loss", Rising(19, 20.0))
    assert start(LONGER, tmp_path / "a", text).train(lambda step: True)
    meta = read_meta(tmp_path / "a" / "state")
    assert meta is not None
    assert meta["step"] == 20
    assert meta["guard"]["above"] == 1, "the mean shows it, so that no earlier step would have been saved"


def test_no_pickle_and_no_half_state(tmp_path: Path, text: Path) -> None:
    run = start(RECIPE, tmp_path / "a", text)
    run.train(lambda step: step.number < 3)
    names = {path.name for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert names == {
        *("recipe.json", "tokenizer.json", "corpus.json", "log.jsonl", "sittings.jsonl"),
        *("model.safetensors", "optimiser.safetensors", "state.json"),
    }
    # A crash between the two renames leaves the old state, which is found.
    state = tmp_path / "a" / "state"
    state.rename(tmp_path / "a" / "state.old")
    assert start(RECIPE, tmp_path / "a", text).train(lambda step: True)
    (state / "optimiser.safetensors").write_bytes(b"spoilt")
    with pytest.raises(Corrupt, match="cannot be read"):
        start(RECIPE, tmp_path / "a", text).train(lambda step: True)


def test_the_only_state_is_never_removed_before_its_successor_has_its_name(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(RECIPE, tmp_path / "a", text)
    run.train(lambda step: step.number < 3)
    state = tmp_path / "a" / "state"
    state.rename(tmp_path / "a" / "state.old")  # a first crash

    def crash(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", crash)  # and a second one, at the next save
    with pytest.raises(KeyboardInterrupt):
        start(RECIPE, tmp_path / "a", text).train(lambda step: step.number < 5)
    loaded = read_state(state)
    assert loaded is not None
    assert loaded[2]["step"] == 3


@pytest.mark.parametrize("content", ["", "[]", '{"schedule": 1}'])
def test_a_spoilt_folder_is_refused_in_one_sentence(tmp_path: Path, text: Path, content: str) -> None:
    start(RECIPE, tmp_path / "a", text)
    (tmp_path / "a" / "recipe.json").write_text(content)
    with pytest.raises(Conflict, match="is not what a run writes"):
        start(RECIPE, tmp_path / "a", text)


def test_a_tokenizer_that_is_none(tmp_path: Path, text: Path) -> None:
    for given in (tmp_path / "none.json", text):
        with pytest.raises(LegibleError, match="cannot be used"):
            Run(RECIPE, tmp_path / "a", text, tokenizer=given)
    start(RECIPE, tmp_path / "a", text)


def test_a_run_that_cannot_be_written_is_one_sentence(tmp_path: Path, text: Path) -> None:
    (tmp_path / "recipe.toml").write_text(TOML)
    (tmp_path / "taken").write_text("")
    words = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "taken"), "--text", str(text)]
    result = CliRunner().invoke(build(), words)
    assert isinstance(result.exception, Unavailable)
    assert result.exception.message == f"The run cannot be written to {tmp_path / 'taken'}: File exists."


def test_a_folder_belongs_to_one_recipe(tmp_path: Path, text: Path) -> None:
    start(RECIPE, tmp_path / "a", text)
    with pytest.raises(Conflict, match="another recipe"):
        start(replace(RECIPE, seed=1), tmp_path / "a", text)
    longer = replace(RECIPE, schedule=replace(RECIPE.schedule, tokens=6400))
    start(longer, tmp_path / "a", text)
    with pytest.raises(Conflict, match="make them equal"):
        start(replace(RECIPE, data=replace(RECIPE.data, vocab_size=301)), tmp_path / "b", text)
    # What was refused before a first step leaves nothing behind that refuses the mended recipe.
    start(RECIPE, tmp_path / "b", text)
    with pytest.raises(LegibleError, match="one context of"):
        start(replace(RECIPE, data=replace(RECIPE.data, held_out_tokens=10**9)), tmp_path / "c", text)
    start(RECIPE, tmp_path / "c", text)


TOML = """
name = "x"
[model]
n_layers = 2
d_model = 16
n_heads = 2
context = 16
value = "boolean"
gelu_fraction = 0.5
[data]
train = "text.txt"
vocab_size = 300
[schedule]
tokens = 640
batch_tokens = 64
[attention_pressure]
regime = "both"
sparsity = 0.01
crispness = [0.1, 0.2]
"""


def test_a_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(TOML)
    recipe = load_recipe(path)
    assert recipe.attention_pressure.crispness == (0.1, 0.2)
    assert recipe.steps == 10
    assert recipe.model.config(300).attention.n_special == (2, 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("n_layers = 2", 'n_layers = "2"', "model.n_layers is '2'"),
        ("n_layers = 2", "", "model.n_layers is missing"),
        ("n_heads = 2", "n_heads = 3", "no multiple of n_heads 3"),
        ("n_heads = 2", "n_heads = 2\nn_legs = 2", "model.n_legs is unknown"),
        ("batch_tokens = 64", "batch_tokens = 60", "no multiple of the context"),
        ("batch_tokens = 64", "batch_tokens = 64\nmicro_batch_tokens = 48", "divide batch_tokens"),
        ("tokens = 640", "tokens = 10", "at least one batch"),
        ("tokens = 640", "tokens = 640\nrevive_tokens = [70]", "multiples of batch_tokens"),
        ('value = "boolean"', 'value = "linear"', "attention_pressure needs a bounded value"),
        ('value = "boolean"', 'value = "fuzzy"', "must be one of linear, membership, boolean"),
        ("crispness = [0.1, 0.2]", "crispness = [0.1]", "one for each layer"),
        ("[schedule]", "[schedule", "not valid TOML"),
    ],
)
def test_a_bad_recipe_names_its_fault(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(TOML.replace(old, new, 1))
    with pytest.raises(LegibleError, match=reason):
        load_recipe(path)


def test_a_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(LegibleError, match="There is no recipe"):
        load_recipe(tmp_path / "none.toml")


def test_a_run_begins_from_shipped_weights(tmp_path: Path, text: Path) -> None:
    first = start(RECIPE, tmp_path / "first", text)
    first.train(lambda step: True)
    shipped = save(tmp_path / "shipped", first.model, first.folder / "tokenizer.json", Card({}), dtype="float32")
    longer = replace(RECIPE, schedule=replace(RECIPE.schedule, tokens=1280))
    second = start(longer, tmp_path / "second", text, (shipped, 640))
    seen: list[Step] = []

    def watch(step: Step) -> bool:
        seen.append(step)
        return step.number < 13

    second.train(watch)
    # A run that has a state goes on from that instead.
    resumed = start(longer, tmp_path / "second", text, (shipped, 640))
    resumed.train(lambda step: seen.append(step) or True)  # type: ignore[func-returns-value]
    assert [step.number for step in seen] == list(range(11, 21))
    # The rate warms up anew from where it begins, and an interruption does not warm it up again.
    assert [step.factor for step in seen] == pytest.approx([1 / 3, 2 / 3, *[1.0] * 8])
    schedule = replace(longer.schedule, warmup_tokens=64)
    start(replace(longer, schedule=schedule), tmp_path / "third", text, (shipped, 640))
    state = read_state(tmp_path / "third" / "state")
    assert state is not None
    for name, value in first.model.named_parameters():
        assert torch.equal(state[0][name], value), name


def test_a_run_refuses_weights_of_another_tokenizer(tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(_tokenizer(text).read_text().replace("<fill0>", "<full0>"))  # as large, but not the same
    first = start(RECIPE, tmp_path / "first", text)
    shipped = save(tmp_path / "shipped", first.model, other, Card({}), dtype="float32")
    with pytest.raises(Conflict, match="has another tokenizer than the run; give its own with --tokenizer") as caught:
        start(RECIPE, tmp_path / "second", text, (shipped, 640))
    assert str(shipped.tokenizer_path) in caught.value.message
    assert not (tmp_path / "second" / "recipe.json").exists(), "a folder that was refused is no run's"
    # What the sentence says to do is enough.
    Run(RECIPE, tmp_path / "second", text, tokenizer=shipped.tokenizer_path, begin=(shipped, 640))
    assert read_state(tmp_path / "second" / "state") is not None


def test_a_run_refuses_weights_of_another_shape(tmp_path: Path, text: Path) -> None:
    first = start(RECIPE, tmp_path / "first", text)
    shipped = save(tmp_path / "shipped", first.model, first.folder / "tokenizer.json", Card({}), dtype="float32")
    other = replace(RECIPE, model=replace(RECIPE.model, d_model=32))
    with pytest.raises(Conflict, match="another shape"):
        start(other, tmp_path / "second", text, (shipped, 640))
    with pytest.raises(LegibleError, match="--from-tokens"):
        start(RECIPE, tmp_path / "second", text, (shipped, 0))
    assert not (tmp_path / "second" / "recipe.json").exists(), "a folder that was refused is no run's"
    start(RECIPE, tmp_path / "second", text, (shipped, 640))
