"""Every recipe of recipes/: it loads, costs what its baseline costs, stands in the table, and its design trains."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from app.commands.train import card_fields
from legible_core.model import Transformer
from legible_core.registry import open_checkpoint
from legible_core.training import warnings
from legible_core.training.optimiser import Optimiser
from legible_core.training.pressures import Pressure
from legible_core.training.recipe import Recipe, load_recipe
from legible_core.training.step import train_step
from legible_core.units import Activation

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes"
SHIPPED = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))
PATHS = sorted(path for path in FOLDER.rglob("*.toml") if "base" not in path.relative_to(FOLDER).parts[:-1])
PATHS = [path for path in PATHS if path.name != "parity.toml"]
RECIPES = {path.relative_to(FOLDER).with_suffix("").as_posix(): load_recipe(path) for path in PATHS}


def count(recipe: Recipe, **changes: Any) -> int:
    """Parameters but the decays', on the meta device: nothing is allocated."""
    model = dataclasses.replace(recipe.model, **changes)
    with torch.device("meta"):
        built = Transformer(model.config(recipe.data.vocab_size))
    return sum(p.numel() for name, p in built.named_parameters() if not name.endswith("theta"))


def test_every_design_costs_what_its_gelu_baseline_costs() -> None:
    seen: dict[str, int] = {}
    for name, recipe in RECIPES.items():
        key = json.dumps(dataclasses.asdict(recipe.model))
        if key in seen:
            continue
        seen[key] = count(recipe)
        baseline = count(
            recipe, value="linear", special_fraction=1.0, gelu_fraction=1.0, quantifier_fraction=0.0, activation="gelu"
        )
        assert seen[key] == baseline, name
    assert count(RECIPES["paper/attention/gelu"]) == pytest.approx(125e6, rel=0.01)


def test_names_are_unique_and_every_recipe_stands_in_the_table() -> None:
    assert len({recipe.name for recipe in RECIPES.values()}) == len(RECIPES)
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in RECIPES:
        if not name.startswith(("small/", "paper/")):
            assert f"`{name}`" in table, name
            continue
        # One row for both sizes, and for the four regimes.
        assert name.partition("/")[2] in _expanded(table), name


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_checkpoint_s_recipe_makes_what_its_card_says(folder: Path) -> None:
    """Constant part, decay, batch, optimiser, shape; a card names the recipe's file, or its name as `--ship` does."""
    checkpoint = open_checkpoint(folder)
    card = checkpoint.card.fields
    named = card["recipe"]
    recipe = load_recipe(ROOT / named if "/" in named else FOLDER / f"{named}.toml")
    batch = recipe.schedule.batch_tokens
    last = recipe.steps + recipe.schedule.decay_tokens // batch
    made = card_fields(recipe, {"step": last, "tokens": last * batch, "decay_from": recipe.steps})
    told = {name: card[name] for name in made if name in card and name not in ("recipe", "title")}
    assert {"tokens", "decay_tokens", "optimiser"} <= told.keys()
    assert told == {name: made[name] for name in told}
    assert recipe.model.config(recipe.data.vocab_size) == checkpoint.config


def _expanded(table: str) -> set[str]:
    """What the table's patterns name: `attention/boolean-{50,75}-{none,both}` is four recipes."""
    found = set()
    for pattern in re.findall(r"`([a-z-]+/[^`]+)`", table):
        stems = [""]
        for piece in re.split(r"(\{[^}]*\})", pattern):
            options = piece[1:-1].split(",") if piece.startswith("{") else [piece]
            stems = [stem + option for stem in stems for option in options]
        found |= set(stems)
    return found


def test_both_sizes_have_the_same_designs() -> None:
    stems = {
        size: {name.removeprefix(f"{size}/") for name in RECIPES if name.startswith(f"{size}/")}
        for size in ("small", "paper")
    }
    assert stems["paper"] - stems["small"] == {"activations/gelu-2048"}
    assert stems["small"] <= stems["paper"]
    for name in stems["small"]:
        small, paper = RECIPES[f"small/{name}"], RECIPES[f"paper/{name}"]
        assert _axes(small) == _axes(paper), name
        assert (small.optimiser.kind, paper.optimiser.kind) == ("muon", "adamw")
        assert paper.model.context == (2048 if name.startswith("activations") else 1024)


def test_every_design_of_the_papers_is_there() -> None:
    small = [recipe for name, recipe in RECIPES.items() if name.startswith("small/")]
    axes = {_axes(recipe) for recipe in small}
    for value in ("membership", "boolean"):
        for fraction in (0.5, 0.75, 1.0):
            for regime in ("none", "sparsity", "crispness", "both"):
                assert ((value, fraction, 1.0, 0.0, "gelu"), (regime, "operands"), ("none", "operands"), False) in axes
    for rho in (0.75, 0.5, 0.25, 0.0):
        for quantifiers in (0.0, 0.125):
            model = ("linear", 1.0, rho, quantifiers, "gelu")
            assert (model, ("none", "operands"), ("none", "operands"), False) in axes
    for target in ("operands", "outputs"):
        for regime in ("sparsity", "crispness", "both"):
            assert any(a[2] == (regime, target) and a[0][2] == 0.5 for a in axes)
            assert any(a[1] == (regime, target) for a in axes)
    # Pressure on one surface alone, in files of its own: beside the attention's rows those of the feed-forward layer.
    for regime in ("sparsity", "crispness", "both"):
        one, none = (regime, "operands"), ("none", "operands")
        for rho in (0.75, 0.5):
            for surface, pressures in (("attention", (one, none)), ("feed-forward", (none, one))):
                axes_there = _axes(RECIPES[f"small/end-to-end/rho-{rho}-{surface}-{regime}"])
                assert axes_there == (("boolean", 1.0, rho, 0.125, "gelu"), *pressures, False)
        assert _axes(RECIPES[f"small/feed-forward/rho-0-{regime}"]) == (
            ("linear", 1.0, 0.0, 0.0, "gelu"), none, one, False,
        )  # fmt: skip
    activations: dict[Activation, set[str]] = {}
    for recipe in small:
        if recipe.model.value == "membership" and recipe.attention_pressure.regime == "none":
            activations.setdefault(recipe.model.activation, set()).add(recipe.feed_forward_pressure.regime)
    assert activations == {"gelu": {"none"}, "sigmoid": {"none", "crispness"}, "softplus": {"none"}, "relu": {"none"}}
    assert (("boolean", 1.0, 0.0, 0.0, "gelu"), ("none", "operands"), ("none", "operands"), True) in axes


def test_warnings_come_where_the_papers_saw_divergence_and_nowhere_else() -> None:
    warned = {name for name, recipe in RECIPES.items() if warnings.of(recipe)}
    assert all(re.search(r"membership-75-|rho-0(\.25)?(-|$)", name) for name in warned), warned
    grave = [name for name, recipe in RECIPES.items() if "probably" in " ".join(warnings.of(recipe))]
    assert grave == ["paper/feed-forward/rho-0-both", "small/feed-forward/rho-0-both"]


def _axes(recipe: Recipe) -> tuple[Any, ...]:
    model, pressures = recipe.model, (recipe.attention_pressure, recipe.feed_forward_pressure)
    shape = (model.value, model.special_fraction, model.gelu_fraction, model.quantifier_fraction, model.activation)
    return (shape, *((pressure.regime, pressure.target) for pressure in pressures), recipe.angle.weight > 0)


def shrunk(recipe: Recipe) -> Recipe:
    """The same design with 2 layers of width 16; strengths by layer keep their first two."""

    def cut(pressure: Pressure) -> Pressure:
        def few(value: Any) -> Any:
            return value[:2] if isinstance(value, tuple) else value

        return dataclasses.replace(
            pressure, sparsity=few(pressure.sparsity), crispness=few(pressure.crispness), later=(), floor=0.0
        )

    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, n_layers=2, d_model=16, n_heads=4, context=8, d_ff=None),
        data=dataclasses.replace(recipe.data, vocab_size=37),
        schedule=dataclasses.replace(
            recipe.schedule, tokens=64, warmup_tokens=16, decay_tokens=16, batch_tokens=16, micro_batch_tokens=None,
            revive_tokens=(),
        ),
        attention_pressure=cut(recipe.attention_pressure),
        feed_forward_pressure=cut(recipe.feed_forward_pressure),
    )  # fmt: skip


DESIGNS = {(_axes(recipe), recipe.optimiser.kind): recipe for recipe in RECIPES.values()}


def test_two_steps_of_every_design() -> None:
    for recipe in DESIGNS.values():
        tiny = shrunk(recipe)
        model = Transformer(tiny.model.config(37))
        model.initialise(torch.Generator().manual_seed(0))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimiser = Optimiser(model, tiny.optimiser)
        ids = torch.randint(37, (2, 9), generator=torch.Generator().manual_seed(1))
        for step in range(2):
            loss, pressure, norm = train_step(model, optimiser, tiny, ids, 16 * step, 1.0)
            assert all(torch.isfinite(torch.tensor([loss, pressure, norm]))), recipe.name
        pressed = "none" not in (tiny.attention_pressure.regime, tiny.feed_forward_pressure.regime)
        if pressed or tiny.angle.weight:
            assert pressure > 0, recipe.name
        still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
        assert not [name for name in still if "position" not in name], recipe.name
