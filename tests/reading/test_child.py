"""Edits in weights: a child's plain forward is its parent's edited one, or the edit is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reading_folder import make_folder
from tiny_models import designs, random_ids, tiny_config, tiny_model
from typer.testing import CliRunner

from app.cli import build
from app.commands.read import find
from legible_core.checkpoint import load, write_card
from legible_core.child import bake, save_child
from legible_core.config import ModelConfig
from legible_core.errors import Conflict, Corrupt, LegibleError
from legible_core.folder import Card
from legible_core.interventions import Edit, Vector
from legible_core.interventions_text import edit_text, parse_edit
from legible_core.lineage import lineage
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.units import Down, Residual, parse

# Units of tiny_config(): pairs 0-8 (∩ 0-8, ∖ 9-17), ∃ 18-20, % 21-23, GELU 24-47.
ANYWHERE = [
    "L1.u3:scale=2.5", "L1.u3:zero", "L1.u12:scale=-1", "L2.u30:scale=0", "L0.u20:zero",
    "L1.h1:scale=0.5", "L1.h0.c2:scale=3", "L2.h3:zero",
    "L1.p3.A:scale=0.25", "L1.p3.A:zero", "L1.p3.A:flip", "L1.p3.A:set=0.5",
    "L1.p3.B:scale=0.25", "L1.p3.B:zero", "L1.p3.B:flip", "L1.p3.B:set=0.7", "L1.p3.B:mean=0.125",
    "L0.h1.p2.A:flip", "L0.h1.p2.A:scale=0.5", "L0.h1.p2.B:flip", "L0.h1.p2.B:set=0.25", "L0.h1.p2.B:zero",
    "L1.u3:flip_b", "L1.u12:flip_b",
    "L1.u19.m:flip", "L1.u19.m:zero", "L1.u22.m:scale=0.5", "L1.u22.m:flip", "L1.u22.m:set=0.5",
    "L1.u19:decay=0.5", "L1.u22:decay=0.9", "L1.u19:decay=0", "L1.u22:decay=1",
]  # fmt: skip
BIASED = [
    "L1.u3:set=0.4", "L1.u30:set=-2", "L1.u22:mean=0.25", "L1.h1:set=0.5", "L1.h0.c2:mean=0.3",
    "L1.p3.A:set=0.9", "L1.p3.A:set=1", "L0.h1.p2.A:mean=0.2", "L1.u19.m:set=0.3", "L1.u22.m:set=1",
]  # fmt: skip
TOGETHER = [
    ["L1.p3.A:flip", "L1.p3.B:set=0.3", "L1.u3:scale=2", "L1.u12:scale=-1"],
    ["L1.p3.B:scale=0.5", "L1.p3.B:flip", "L1.u3:flip_b", "L1.p3.A:scale=0.5", "L1.p3.A:scale=2"],
    ["L0.h1:scale=2", "L0.h1.c1:zero", "L0.h1.p1.B:flip", "L2.u40:scale=0.5", "L1.u21:decay=0.7", "L1.u21.m:flip"],
]


def parse_edits(texts: list[str]) -> tuple[Edit, ...]:
    return tuple(parse_edit(text) for text in texts)


IDS = random_ids(10, seed=3, batch=1)


def close(model: torch.nn.Module, edits: tuple[Edit, ...], plain: torch.Tensor | None = None) -> None:
    """The child's logits are the edited ones; `plain`: those without edits, which must differ."""
    with torch.no_grad():
        wanted = model(IDS, edits)
        found = bake(model, edits)(IDS)
        assert torch.allclose(found, wanted, atol=2e-4, rtol=1e-4), float((found - wanted).abs().max())
        plain = model(IDS) if plain is None else plain
        assert not torch.allclose(wanted, plain, atol=1e-3), f"{edits} do something"


def test_a_childs_forward_is_the_edited_forward_of_its_parent():
    plain, biased = tiny_model(), tiny_model(tiny_config(biased=True, tied=False), seed=1)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    with torch.no_grad():
        logits, biased_logits = plain(IDS), biased(IDS)
    for texts in [*([text] for text in ANYWHERE), *TOGETHER]:
        close(plain, parse_edits(texts), logits)
    for texts in [*([text] for text in BIASED), *TOGETHER]:
        close(biased, parse_edits(texts), biased_logits)
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())


def vector(count: int, seed: int) -> Vector:
    return Vector.of(np.random.default_rng(seed).normal(size=count) * 0.5)


def test_rows_columns_and_directions_are_written_as_they_are():
    for biased in (False, True):
        model = tiny_model(tiny_config(biased=biased))
        d, f = 24, 48
        edits = [
            Edit(parse("L1.p3.A"), "row", vector=vector(d, 0)),
            Edit(parse("L0.h1.p2.B"), "row", vector=vector(d, 1)),
            Edit(parse("L1.u19.m"), "row", vector=vector(d, 2)),
            Edit(parse("L1.u30"), "row", vector=vector(d, 3)),
            Edit(parse("L1.u3"), "column", vector=vector(d, 4)),
            Edit(parse("L1.h1.c2"), "column", vector=vector(d, 5)),
            Edit(Down(2), "rank_one", 0.5, vector=vector(d + f, 6)),
            Edit(Residual(0), "add", 2.0, vector=vector(d, 7)),
            Edit(Residual(0), "add", 2.0, (3, 5), vector=vector(d, 8)),
        ]
        if biased:
            edits += [
                Edit(parse("L1.p3.B"), "row", 0.3, vector=vector(d, 9)),
                Edit(Residual(2), "add", 1.5, vector=vector(d, 10)),
                Edit(Residual(3), "add", 1.0, vector=vector(d, 11)),
                Edit(parse("L1.h2"), "set", vector=vector(6, 12)),
            ]
        for edit in edits:
            close(model, (edit,))
        # On top of a new column, its unit's scale; on top of a new row, a flip.
        close(model, (*edits, *parse_edits(["L1.u3:scale=2", "L1.p3.A:flip", "L1.u19.m:flip"])))


@pytest.mark.parametrize("config", designs(), ids=range(len(designs())))
def test_every_design_has_children(config: ModelConfig):
    layout = config.feed_forward
    texts = ["L1.h2:scale=0.5", f"L2.u{layout.d_ff - 1}:scale=-0.5", "L0.u0:scale=2"]
    texts += ["L0.p1.A:flip", "L0.p1.B:set=0.2"] if layout.n_pairs else []
    texts += [f"L1.u{layout.quantifiers.start}:decay=0.3"] if layout.n_quantifiers else []
    if layout.activation == "sigmoid" and config.linear_bias:
        texts += [f"L1.u{layout.d_ff - 1}:flip"]
    if config.attention.value == "membership" and config.linear_bias:
        texts += ["L1.h0.c1:flip"]
    close(tiny_model(config), parse_edits(texts))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("L1.u3:clamp=0,0.2", "no weights clamp a value"),
        ("L1.u3:zero@3", "at some positions"),
        ("L1.u3:set=0.4", "no biases"),
        ("L1.h1:set=0.4", "no biases"),
        ("L1.p3.A:set=0.9", "no biases"),
        ("L1.p3.A:scale=2", "raises above 1"),
        ("L1.p3.B:scale=1.5", "raises above 1"),
        ("L1.p3.A:clamp=0,0.5", "no weights clamp"),
        ("L1.u3:flip_a", "needs B without A"),
        ("L1.u19.m:scale=0.5", "not linear in its m"),
        ("L1.u19:state=0.5", "a state is what the text left"),
        ("L1.u19:state=0.5@4", "at some positions"),
    ],
)
def test_what_weights_cannot_say_is_refused_with_the_reason(text: str, said: str):
    with pytest.raises(LegibleError, match=said) as caught:
        bake(tiny_model(), parse_edits([text]))
    assert caught.value.code == "not_in_weights"
    assert "--edit" in str(caught.value.hint)


def test_mixed_operands_and_directions_without_biases_are_refused():
    model = tiny_model()
    with pytest.raises(LegibleError, match="neither a membership of a row nor a constant"):
        bake(tiny_model(tiny_config(biased=True)), parse_edits(["L1.p3.A:scale=0.5", "L1.p3.A:flip"]))
    with pytest.raises(LegibleError, match="no biases"):
        bake(model, (Edit(Residual(1), "add", 1.0, vector=vector(24, 0)),))
    with pytest.raises(LegibleError, match="does not exist"):
        bake(model, parse_edits(["L1.u48:zero"]))
    with pytest.raises(LegibleError, match="float32"):
        bake(tiny_model().to_compute(torch.bfloat16), parse_edits(["L1.u3:zero"]))


# ---- the folder ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_folder(tmp_path_factory.mktemp("models"))


def test_a_saved_child_reads_as_the_edited_parent(parent: Checkpoint, tmp_path: Path):
    edits = parse_edits(["L1.u3:scale=0.3", "L0.p2.B:flip", "L1.u21:decay=0.25", "L1.h0:zero"])
    child = save_child(parent, edits, tmp_path / "quiet")
    ids = torch.randint(0, 300, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = load(parent)(ids, edits), load(child)(ids)
    assert torch.allclose(found, wanted, atol=1e-4)
    assert child.hash != parent.hash
    assert child.dtype == "F32"
    origin = lineage(child)
    assert origin is not None
    assert (origin.parent, origin.slug, origin.edits) == (parent.hash, "tiny-reader", edits)
    assert lineage(parent) is None
    assert save_child(parent, edits, tmp_path / "again").hash == child.hash, "the same edits are the same child"
    assert not (child.path / "names.json").exists()
    assert all(edit_text(edit) in child.card.body for edit in edits)
    # A child of a child names the child.
    grandchild = save_child(child, parse_edits(["L1.u3:zero"]), tmp_path / "quieter")
    assert lineage(grandchild).parent == child.hash


def test_bfloat16_stays_where_it_is_exact(parent: Checkpoint, tmp_path: Path):
    half = save_child(parent, parse_edits(["L1.u1:zero"]), tmp_path / "half", dtype="bfloat16")
    assert half.dtype == "BF16"
    exact = parse_edits(["L1.u3:zero", "L0.u30:scale=0.5", "L0.p2.B:flip", "L1.p2.A:flip"])
    assert save_child(half, exact, tmp_path / "exact").dtype == "BF16"
    assert save_child(half, parse_edits(["L1.u3:scale=0.3"]), tmp_path / "wide").dtype == "F32"


def test_a_child_of_nothing_is_refused(parent: Checkpoint, tmp_path: Path):
    with pytest.raises(LegibleError, match="at least one edit"):
        save_child(parent, (), tmp_path / "x")
    with pytest.raises(LegibleError, match="leave every weight as it was"):
        save_child(parent, parse_edits(["L1.u3:scale=1"]), tmp_path / "x")
    long = tuple(Edit(parse(f"L1.u{i % 48}"), "column", vector=vector(32, i)) for i in range(1600))
    with pytest.raises(LegibleError, match="several steps"):
        save_child(parent, long, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    child = save_child(parent, parse_edits(["L1.u3:zero"]), tmp_path / "torn")
    torn = write_card(child.path, Card({**child.card.fields, "edits": '["L1.u3:nonsense"]'}))
    with pytest.raises(Corrupt, match="its edits cannot be read"):
        lineage(torn)


@pytest.mark.parametrize("text", ["L1.u30:scale=1e38", "L0.h0:scale=1e25"])
def test_a_child_that_overflows_is_refused(parent: Checkpoint, tmp_path: Path, text: str):
    with pytest.raises(LegibleError, match=r"overflow float32 on a trial text.*give smaller values"):
        save_child(parent, parse_edits([text]), tmp_path / "huge")
    assert not (tmp_path / "huge").exists()
    save_child(parent, parse_edits([text.split("=")[0] + "=1e4"]), tmp_path / "large")


def test_the_command_saves_adds_and_reads_it(parent: Checkpoint, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))

    def run(*words: str) -> str:
        result = CliRunner().invoke(build(), list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    said = run("edit", str(parent.path), "--edit", "L1.u3:zero", "--edit", "L1.p2.B:flip", "--slug", "quiet")
    assert "a child of tiny-reader under 2 edits" in said
    child = open_checkpoint(tmp_path / "data" / "children" / "quiet")
    assert find("quiet").hash == child.hash
    assert find("quiet").origin == "added"
    (tmp_path / "edits.json").write_text('["L1.u5:zero", {"component": "L1.u6", "operation": "scale", "value": 0.5}]')
    made = json.loads(run("edit", "quiet", "--edits", str(tmp_path / "edits.json"), "--slug", "quieter", "--json"))
    assert made["slug"] == "quieter"
    for words, error, reason in (
        (["--edit", "L1.u3:zero", "--slug", "quiet"], Conflict, "is taken"),
        (["--slug", "other"], LegibleError, "at least one --edit"),
        (["--edit", "L1.u3:zero"], LegibleError, "give --slug"),
        (["--edit", "L1.u3:zero", "--slug", "../../other"], LegibleError, "slug"),
        (["--edits", str(tmp_path / "none.json"), "--slug", "other"], LegibleError, "cannot be read"),
    ):
        with pytest.raises(error, match=reason):
            run("edit", str(parent.path), *words)
    assert sorted(path.name for path in (tmp_path / "data" / "children").iterdir()) == ["quiet", "quieter"]
