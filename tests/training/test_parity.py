"""N-bit parity: the table, each layer against its formula, matched parameters, and a comparison that learns."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from app.cli import build
from app.commands.parity_plot import plot
from legible_core.errors import LegibleError
from legible_core.training.parity import (
    COSTS,
    ParityRecipe,
    Result,
    compare,
    forward,
    load_parity,
    needed,
    table,
    units,
)

FILE = Path(__file__).parents[2] / "recipes" / "parity.toml"


def test_the_recipe_asks_what_the_paper_claims() -> None:
    recipe = load_parity(FILE)
    assert recipe.bits == (2, 3, 4, 5, 6, 7, 8)
    assert set(recipe.layers) == set(COSTS)
    assert recipe.seeds >= 3


@pytest.mark.parametrize("bits", [2, 5])
def test_the_table_is_every_input_once_with_its_parity(bits: int) -> None:
    x, target = table(bits)
    rows = {tuple(row) for row in x.tolist()}
    assert len(rows) == 2**bits
    for row, parity in zip(x.tolist(), target.tolist(), strict=True):
        assert row[-1] == 1
        assert parity == sum(value > 0 for value in row[:-1]) % 2


@pytest.mark.parametrize("layer", list(COSTS))
def test_a_layer_is_its_formula_and_costs_what_it_says(layer: str) -> None:
    rows, values = COSTS[layer]  # type: ignore[index]
    generator = torch.Generator().manual_seed(0)
    read = torch.randn(2, rows * 3, 5, generator=generator)
    write = torch.randn(2, values * 3, generator=generator)
    x = table(4)[0]
    found = forward(layer, x, read, write)  # type: ignore[arg-type]
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    for run in range(2):
        for number, row in enumerate(x.double()):
            z = [float(row @ r.double()) for r in read[run]]
            a, b = z[:3], z[-3:]
            hidden = {
                "set-operators": [sigmoid(p) * sigmoid(q) for p, q in zip(a, b, strict=True)]
                + [sigmoid(p) * (1 - sigmoid(q)) for p, q in zip(a, b, strict=True)],
                "gelu": [p * 0.5 * (1 + math.erf(p / math.sqrt(2))) for p in a],
                "relu": [max(0.0, p) for p in a],
                "bilinear": [p * q for p, q in zip(a, b, strict=True)],
                "swiglu": [p * sigmoid(p) * q for p, q in zip(a, b, strict=True)],
            }[layer]
            logit = sum(h * float(w) for h, w in zip(hidden, write[run], strict=True))
            assert float(found[run, number]) == pytest.approx(logit, abs=1e-4)
    width = units(layer, 4, 200)  # type: ignore[arg-type]
    assert width * (rows * 5 + values) <= 200 < (width + 1) * (rows * 5 + values)


def test_layers_learn_what_they_can_hold_and_no_more() -> None:
    recipe = ParityRecipe("x", (2, 3), ("set-operators", "bilinear"), (60,), rates=(0.03, 0.1), seeds=4, steps=300)
    found = {(r.bits, r.layer): r for r in compare(recipe)}
    assert found[2, "set-operators"].solved == 1.0
    assert found[3, "set-operators"].accuracy > 0.95
    # Degree two: the parity of three bits is beyond it at any width.
    assert found[2, "bilinear"].solved == 1.0
    assert found[3, "bilinear"].accuracy < 0.8
    results = list(found.values())
    assert needed(results, 2, "set-operators") == found[2, "set-operators"].parameters
    assert needed(results, 3, "bilinear") is None
    assert [r.to_json() for r in compare(recipe)] == [r.to_json() for r in results]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": (1,)}, "from 2 to 12"),
        ({"rates": ()}, "rates is empty"),
        ({"rates": (0.0,)}, "above 0"),
        ({"seeds": 0}, "seeds must be"),
        ({"parameters": (0,)}, "parameters must be"),
    ],
)
def test_impossible_comparisons_are_refused(change: dict[str, object], said: str) -> None:
    fields = {"name": "x", "bits": (2,), "layers": ("gelu",), "parameters": (40,)} | change
    with pytest.raises(LegibleError, match=said):
        ParityRecipe(**fields)  # type: ignore[arg-type]


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'name = "small"\nbits = [2]\nlayers = ["gelu", "relu"]\nparameters = [8, 40]\nseeds = 2\nsteps = 50\n',
        encoding="utf-8",
    )
    out, figure = tmp_path / "out.json", tmp_path / "out.svg"
    done = CliRunner().invoke(build(), ["parity", str(recipe), "--out", str(out), "--figure", str(figure)])
    assert done.exit_code == 0, done.output
    assert "gelu" in done.output
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [row["layer"] for row in document["results"]] == ["gelu", "gelu", "relu", "relu"]
    assert ElementTree.fromstring(figure.read_text(encoding="utf-8")).tag.endswith("svg")


def test_the_figure_has_a_panel_a_number_of_bits_and_a_line_a_layer() -> None:
    rows = [
        Result(bits, layer, 3, parameters, 0.01, accuracy, None, 0.0).to_json()  # type: ignore[arg-type]
        for bits in (2, 3)
        for layer in ("gelu", "<odd>")
        for parameters, accuracy in ((30, 0.5), (60, 1.0))
    ]
    drawn = ElementTree.fromstring(plot(rows))
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}polyline")) == 4
    said = {element.text for element in drawn.iter(f"{space}text")}
    assert {"2 bits", "3 bits", "<odd>", "0.5", "1"} <= said


def test_the_document_is_what_the_stored_results_say() -> None:
    docs = FILE.parents[1] / "docs"
    document = json.loads((docs / "parity.json").read_text(encoding="utf-8"))
    recipe = load_parity(FILE)
    assert document["recipe"] == json.loads(json.dumps(dataclasses.asdict(recipe)))
    results = [Result(**row) for row in document["results"]]
    assert len(results) == len(recipe.settings())
    text = (docs / "parity.md").read_text(encoding="utf-8")
    for bits in recipe.bits:
        found = [needed(results, bits, layer) for layer in recipe.layers]
        assert f"| {bits} | " + " | ".join("–" if n is None else str(n) for n in found) + " |" in text
    assert plot(document["results"]) == (docs / "images" / "parity.svg").read_text(encoding="utf-8")
