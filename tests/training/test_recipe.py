"""Recipes: bases, what is refused and how it is said, the warnings, and what older runs wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from legible_core.errors import LegibleError, NotFound, TooLarge
from legible_core.model import Transformer
from legible_core.training import fit, loop, warnings
from legible_core.training.recipe import Recipe, load_recipe, resolve

SMALL = """
name = "{name}"
[model]
n_layers = 2
d_model = 16
n_heads = 4
context = 8
{model}
[data]
train = "text.txt"
vocab_size = 32
[schedule]
tokens = 64
batch_tokens = 16
{more}
"""


def write(folder: Path, name: str = "a", model: str = "", more: str = "") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(SMALL.format(name=name, model=model, more=more), encoding="utf-8")
    return path


def recipe(folder: Path, model: str = "", more: str = "") -> Recipe:
    return load_recipe(write(folder, model=model, more=more))


def test_a_recipe_says_only_what_differs_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write(tmp_path / "base", "small", 'value = "boolean"\ngelu_fraction = 0.5')
    middle = tmp_path / "base" / "middle.toml"
    middle.write_text('base = "small.toml"\n[data]\ntokenizer = "own/tokenizer.json"\n', encoding="utf-8")
    path = tmp_path / "arm.toml"
    path.write_text('base = "base/middle.toml"\nname = "arm"\n[model]\ngelu_fraction = 0.25\n', encoding="utf-8")
    loaded = load_recipe(path)
    assert (loaded.name, loaded.model.gelu_fraction, loaded.model.value) == ("arm", 0.25, "boolean")
    # Paths stay those of the recipe that says them.
    assert resolve(loaded.data.train, path.parent) == tmp_path / "base" / "text.txt"
    assert loaded.data.tokenizer is not None
    assert resolve(loaded.data.tokenizer, path.parent) == tmp_path / "base" / "own" / "tokenizer.json"
    # The own folder's paths are left as they stand.
    path.write_text('base = "base/middle.toml"\nname = "arm"\n[data]\ntrain = "mine.txt"\n', encoding="utf-8")
    assert load_recipe(path).data.train == "mine.txt"
    path.write_text('base = "base/middle.toml"\nname = "arm"\n[data]\ntrain = "hf:some/set"\n', encoding="utf-8")
    assert load_recipe(path).data.train == "hf:some/set"


def test_bases_that_go_round_or_are_missing_are_one_sentence(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{one}.toml").write_text(f'base = "{other}.toml"\n', encoding="utf-8")
    with pytest.raises(LegibleError, match=r"the bases go round: a\.toml → b\.toml → c\.toml → a\.toml"):
        load_recipe(tmp_path / "a.toml")
    (tmp_path / "self.toml").write_text('base = "./self.toml"\n', encoding="utf-8")
    with pytest.raises(LegibleError, match="go round"):
        load_recipe(tmp_path / "self.toml")
    (tmp_path / "lost.toml").write_text('base = "nowhere.toml"\n', encoding="utf-8")
    with pytest.raises(NotFound, match=r"nowhere\.toml, which .*lost\.toml names as its base"):
        load_recipe(tmp_path / "lost.toml")
    (tmp_path / "odd.toml").write_text("base = 3\n", encoding="utf-8")
    with pytest.raises(LegibleError, match="it must be the path of a recipe"):
        load_recipe(tmp_path / "odd.toml")
    for number in range(12):
        (tmp_path / f"deep{number}.toml").write_text(f'base = "deep{number + 1}.toml"\n', encoding="utf-8")
    with pytest.raises(LegibleError, match="more than 8 bases"):
        load_recipe(tmp_path / "deep0.toml")


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("n_layer = 3", "", r"model\.n_layer is unknown; did you mean model\.n_layers\? The entries are"),
        ("Gelu_Fraction = 3", "", r"did you mean model\.gelu_fraction\?"),
        ("xyzzy = 3", "", r"model\.xyzzy is unknown; the entries are n_layers"),
        ("", "[attention_presure]\nregime = 'none'", r"did you mean attention_pressure\?"),
        ("activation = 'tanh'", "", r"model\.activation is 'tanh'; it must be one of gelu, sigmoid, softplus, relu"),
        ("d_ff = '64'", "", r"model\.d_ff is '64'; it must be a whole number"),
        ("gelu_fraction = 'all'", "", r"model\.gelu_fraction is 'all'; it must be a number"),
        ("", "[optimiser]\nbetas = 0.9", r"optimiser\.betas is 0\.9; it must be a list such as \[…, …\]"),
        ("", "[attention_pressure]\nsparsity = 'x'", r"sparsity is 'x'; it must be a number or a list such as \[…\]"),
    ],
)
def test_an_unknown_entry_names_the_nearest(tmp_path: Path, model: str, more: str, said: str) -> None:
    with pytest.raises(LegibleError, match=said):
        recipe(tmp_path, model, more)


FF = '[feed_forward_pressure]\nregime = "crispness"\ncrispness = 0.1'
ATTENTION = '[attention_pressure]\nregime = "crispness"\ncrispness = 0.1'


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("", FF, "presses memberships, and this feed-forward layer has none"),
        ('activation = "softplus"', FF, "model.activation is softplus, which has no rails"),
        ("", ATTENTION, "needs a bounded value"),
        ("quantifier_fraction = 0.5", "", "gelu_fraction 1 leaves none"),
        ("special_fraction = 0.5", "", "model.value is linear"),
        ('value = "boolean"\nspecial_fraction = 0.1', "", "special_fraction 0.1 of 4 heads is none"),
        ('value = "boolean"\nspecial_fraction = 1.5', "", "above 0 and at most 1"),
        ('gelu_fraction = 0.0\nactivation = "relu"', "", "activation is relu, but no unit is plain"),
        ("", "[angle]\nweight = -1.0", "angle.weight is -1.0"),
        ("", "[angle]\nweight = nan", "angle.weight is nan"),
        ("", "[optimiser]\nlr = nan", "optimiser.lr is nan; it must be a finite number of at least 0"),
        ("", '[feed_forward_pressure]\nregime = "crispness"\ncrispness = inf', "must be a finite number of at least 0"),
        ("", "[optimiser]\nclip = 0.0", "optimiser.clip is 0.0; it must be a number above 0"),
        ("", "[optimiser]\nbetas = [0.9, 1.0]", r"optimiser.betas is \(0.9, 1.0\); it must be at least 0 and below 1"),
    ],
)
def test_a_combination_that_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, model: str, more: str, said: str
) -> None:
    with pytest.raises(LegibleError, match=said):
        recipe(tmp_path, model, more)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("context = 8", "context = 0", "model.context is 0; it must be a whole number from 1"),
        ("n_layers = 2", "n_layers = 10_000_000_000", "model.n_layers is 10000000000"),
        ("batch_tokens = 16", "batch_tokens = 0", "schedule.batch_tokens is 0; it must be at least 1"),
        ("batch_tokens = 16", "batch_tokens = 16\nwarmup_tokens = -1", "schedule.warmup_tokens is -1"),
        ("vocab_size = 32", "vocab_size = 32\nheld_out_tokens = 8", r"held_out_tokens is 8; it must be more than one"),
        ("tokens = 64", "tokens = " + "9" * 5000, "cannot be read: Exceeds the limit"),
        ("[model]", "[model]\nx = " + "[" * 5000, "cannot be read: maximum recursion depth"),
        ("[model]", "#" + "x" * (1 << 20) + "\n[model]", "has more than 1,048,576 bytes"),
        ("[model]", 'base = "a\\u0000"\n[model]', "cannot be read: embedded null byte"),
    ],
)
def test_what_no_run_can_be_made_of_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LegibleError, match=said):
        load_recipe(path)


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_recipe(path).name == "a"


@pytest.mark.parametrize("name", ["../x", "..", ".", "/x", "a/b", "a/", "a\\b", "", "x" * 201, "a\x00b"])
def test_a_name_is_one_folder_s(tmp_path: Path, name: str) -> None:
    """Without --out the run is written to runs/<name>, and nowhere else."""
    plan = load_recipe(write(tmp_path))
    with pytest.raises(LegibleError, match=r"name is .*one folder's name"):
        dataclasses.replace(plan, name=name)
    assert dataclasses.replace(plan, name="Ærlig 1.5").name == "Ærlig 1.5"


@pytest.mark.parametrize("seed", [-1, 1 << 53, 10**30])
def test_seeds_are_bounded(tmp_path: Path, seed: int) -> None:
    """Generators take no others."""
    plan = load_recipe(write(tmp_path))
    with pytest.raises(LegibleError, match="seed must be a whole number from 0 to"):
        dataclasses.replace(plan, seed=seed)
    with pytest.raises(LegibleError, match=r"data\.order_seed must be"):
        dataclasses.replace(plan, data=dataclasses.replace(plan.data, order_seed=seed))


def test_the_angle_needs_a_layer_below_the_last(tmp_path: Path) -> None:
    path = write(tmp_path, more="[angle]\nweight = 0.1")
    path.write_text(path.read_text(encoding="utf-8").replace("n_layers = 2", "n_layers = 1"), encoding="utf-8")
    with pytest.raises(LegibleError, match="at least two layers"):
        load_recipe(path)


def test_sigmoid_units_may_be_pressed(tmp_path: Path) -> None:
    assert recipe(tmp_path, 'activation = "sigmoid"', FF).feed_forward_pressure.regime == "crispness"


BOTH = '[feed_forward_pressure]\nregime = "both"\nsparsity = 0.01\ncrispness = 0.03'
ANGLE = "\n[angle]\nweight = 0.1"


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("", "", []),
        ("gelu_fraction = 0.5", BOTH, []),
        ("gelu_fraction = 0.25", "", ["75% of its feed-forward units"]),
        ("gelu_fraction = 0.25", ANGLE, []),
        ("gelu_fraction = 0.0", FF + ANGLE, []),
        ("gelu_fraction = 0.0", BOTH, ["will probably diverge", "100% of its feed-forward units"]),
        ("gelu_fraction = 0.0", BOTH + ANGLE, ["will probably diverge"]),
        ('value = "membership"\nspecial_fraction = 0.75', "", ["1 of 4 heads are unbounded"]),
        ('value = "membership"\nspecial_fraction = 0.5', "", []),
        ('value = "membership"', "", []),
        # The papers' Boolean heads train at the same split.
        ('value = "boolean"\nspecial_fraction = 0.75', "", []),
    ],
)
def test_what_the_papers_saw_diverge_is_said_before(tmp_path: Path, model: str, more: str, said: list[str]) -> None:
    found = warnings.of(recipe(tmp_path, model, more))
    assert len(found) == len(said)
    for warning, part in zip(found, said, strict=True):
        assert part in warning


def test_a_run_written_before_an_entry_existed_reads_with_its_default(tmp_path: Path) -> None:
    now = recipe(tmp_path, 'value = "boolean"', ATTENTION)
    data = now.to_json()
    del data["angle"], data["model"]["activation"]
    assert Recipe.from_json(data) == now
    with pytest.raises(LegibleError, match="name is missing"):
        Recipe.from_json({})


def test_a_model_that_no_memory_holds_is_refused_with_its_numbers(tmp_path: Path, monkeypatch) -> None:
    made = recipe(tmp_path)
    config = made.model.config(made.data.vocab_size)
    found = fit.need(config, 16)
    assert found.parameters == sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert found.total == 12 * found.parameters + 2 * 16 * (4 * 16 + 64) * 4
    cpu = torch.device("cpu")
    fit.check_fits(made, cpu)
    monkeypatch.setattr(fit, "_memory", lambda device: found.total)
    fit.check_fits(made, cpu)
    monkeypatch.setattr(fit, "_memory", lambda device: found.total - 1)
    with pytest.raises(TooLarge, match=f"{found.parameters:,} parameters in 2 layers"):
        fit.check_fits(made, cpu)
    fit.check_fits(made, cpu, "bfloat16")  # half the bytes for what the backward pass needs
    deep = recipe(tmp_path, model="").model
    huge = dataclasses.replace(made, model=dataclasses.replace(deep, n_layers=100_000, d_model=1024, d_ff=4096))
    monkeypatch.undo()
    with pytest.raises(TooLarge, match=r"100,000 layers and needs at least [\d,.]+ GB"):
        loop.Run(huge, tmp_path / "run", tmp_path / "text.txt")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(fit, "_memory", lambda device: None)
    fit.check_fits(huge, cpu)
