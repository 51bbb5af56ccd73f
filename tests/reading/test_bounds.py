"""Every bound of docs/bounds.md against what a forward computes, on random inputs and on ones made to break it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_folder import make_folder
from reading_samples import make_engine, request, sample_config
from typer.testing import CliRunner

from app.cli import build
from legible_core.attribution import Question
from legible_core.bounds import anywhere, propagate, ranges_document, unit_bounds, write_ranges
from legible_core.errors import LegibleError, NotFound
from legible_core.intervals import Interval, directions, reach, reach_here, state_error, tokens_until
from legible_core.model.quantifiers import quantify
from legible_core.model.set_operators import named_units
from legible_core.pipeline import Engine
from legible_core.units import BOUNDED, Unit

seeds = st.integers(0, 10_000)
KINDS = ["intersection", "difference", "existential", "proportion"]
quickly = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module", params=["biased", "sigmoid", "saturated", "bfloat16"])
def any_engine(request: pytest.FixtureRequest) -> Engine:
    """Designs with every kind of unit; `saturated` has operands on both rails, so the ends are reached."""
    if request.param == "sigmoid":
        return make_engine(sample_config("membership", (4, 2, 0), activation="sigmoid"))
    if request.param == "bfloat16":
        return make_engine(sample_config(biased=True), dtype="bfloat16")
    engine = make_engine(sample_config("boolean", (4, 2, 0), biased=request.param == "biased"))
    if request.param == "saturated":
        with torch.no_grad():
            for layer in engine.model.layers:
                for name in ("pair_a", "pair_b", "quantifier"):
                    getattr(layer.feed_forward, name).mul_(40.0)
    return engine


def units_of(engine: Engine) -> dict[str, Unit]:
    """One unit of each kind with rails, in the last layer."""
    layout = engine.config.feed_forward
    return {layout.kind(index): Unit(2, index) for index in range(layout.n_bounded)}


# ---- what a unit writes ----------------------------------------------------------------------------------------------


def test_no_term_pair_or_total_leaves_its_range(any_engine):
    layout = any_engine.config.feed_forward
    reached = 0.0
    for seed in range(6):
        asked = request(any_engine, 12, seed, position=seed + 3, target=seed, relative_to=("nothing", "mean")[seed % 2])
        solved = any_engine.solve(asked)
        found = write_ranges(any_engine, solved.question, solved.terms.scale)
        terms = solved.terms.units[:, : layout.n_bounded]
        low, high = found.low[:, : layout.n_bounded], found.high[:, : layout.n_bounded]
        assert ((low <= terms) & (terms <= high)).all()
        pairs = terms[:, layout.intersections] + terms[:, layout.differences]
        assert ((found.pair_low <= pairs) & (pairs <= found.pair_high)).all()
        assert found.total[0] <= terms.sum() <= found.total[1]
        # A range is from 0 to the slope, so its width is what the full activation writes.
        reached = max(reached, float((np.abs(terms) / (high - low)).max()))
        assert np.isnan(found.low[:, layout.n_bounded :]).all()
    assert reached > 0.99 or any_engine.dtype == "bfloat16"


def test_the_listed_tokens_have_the_ranges_of_their_own_question(engine):
    asked = request(engine, target=5)
    unit = units_of(engine)["difference"]
    found = unit_bounds(engine, asked, unit, tokens=61)
    scale = engine.solve(asked).terms.scale
    assert len(found["raises"]) + len(found["lowers"]) == 61
    for row in found["raises"][:3] + found["lowers"][:3]:
        own = write_ranges(engine, Question(row["id"]), scale)
        assert row["low"] == pytest.approx(own.low[unit.layer, unit.unit], abs=1e-6)
        assert row["high"] == pytest.approx(own.high[unit.layer, unit.unit], abs=1e-6)
    highs = [row["high"] for row in found["raises"]]
    assert highs == sorted(highs, reverse=True)


# ---- order -----------------------------------------------------------------------------------------------------------


def hidden_of(engine: Engine, rows: torch.Tensor) -> torch.Tensor:
    """The named units of row·x, by the operations of the forward itself; float32 (t, o)."""
    part = engine.model.layers[2].feed_forward
    return named_units(engine.config.feed_forward, part.decay, None, rows[None].clone())[0][0]


@quickly
@given(seeds, st.floats(0.1, 30.0))
def test_units_rise_and_fall_in_their_operands_as_said(engine, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    layout = engine.config.feed_forward
    rows = torch.randn(9, layout.n_named, generator=generator) * spread
    at, column = int(torch.randint(9, (), generator=generator)), seed % layout.n_named
    higher = rows.clone()
    higher[at, column] += float(torch.rand((), generator=generator)) * spread
    change = hidden_of(engine, higher) - hidden_of(engine, rows)
    seen = 0
    for unit in range(layout.n_named):
        for operand, way in directions(engine.config, Unit(2, unit)):
            place = {"A": getattr(operand, "pair", 0), "B": getattr(operand, "pair", 0) + layout.n_pairs}
            if (place[operand.side] if hasattr(operand, "side") else unit) == column:
                # Products keep their order exactly; a scan may lose it by what it rounds.
                slack = 0.0 if unit < 2 * layout.n_pairs else 2 * state_error(9)
                assert bool((way * change[:, unit] >= -slack).all())
                seen += 1
                change[:, unit] = 0.0
    assert seen == (2 if column < 2 * layout.n_pairs else 1)
    assert bool((change.abs() <= 2 * state_error(9)).all()), "an operand moved a unit that does not read it"


# ---- memory ----------------------------------------------------------------------------------------------------------

memberships = st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0)), min_size=1, max_size=40)


@quickly
@given(memberships, st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 39), st.sampled_from([0, 1]))
def test_no_change_of_a_membership_reaches_further(m, decay, other, back, half):
    kind = ("existential", "proportion")[half]
    back = min(back, len(m) - 1)
    kept = float(torch.tensor(decay))
    at = len(m) - 1 - back

    def value(series: list[float]) -> float:
        both = torch.tensor(series)[None, :, None].expand(1, -1, 2)
        return float(quantify(both, torch.full((2,), decay))[0][0, -1, half])

    most = reach(kind, kept, back, len(m))
    assert abs(value([*m[:at], other, *m[at + 1 :]]) - value(m)) <= most + 2 * state_error(len(m))
    assert most <= reach(kind, kept, back) * (1 + 1e-12)
    # From one rail to the other it is exactly what is said of this text, and that is no more than the bound.
    rails = value([*m[:at], 1.0, *m[at + 1 :]]) - value([*m[:at], 0.0, *m[at + 1 :]])
    here = reach_here(kind, [float(torch.tensor(v)) for v in m], kept)[back]
    assert rails == pytest.approx(here, abs=2 * state_error(len(m)))
    assert here <= most * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["existential", "proportion"])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.98, 0.9999, 1.0])
def test_the_reach_is_attained_and_ends_where_it_says(kind, decay):
    alone = torch.zeros(1, 6, 2)
    alone[0, 2] = 1.0
    value = float(quantify(alone, torch.full((2,), decay))[0][0, -1, int(kind == "proportion")])
    assert value == pytest.approx(reach(kind, decay, 3, 6), abs=1e-6)
    assert reach(kind, decay, 6, 6) == 0.0
    end = tokens_until(kind, decay)
    if end is None:
        assert (kind, decay) == ("existential", 1.0)
    else:
        assert reach(kind, decay, end) <= 0.01
        assert reach(kind, decay, end - 1) > 0.01


# ---- boxes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from([0.0, 1e-3, 0.1, 2.0]), st.sampled_from(KINDS))
def test_no_input_of_a_box_leaves_the_propagated_ranges(engine, seed, radius, kind):
    solved = engine.solve(request(engine, 8, seed, position=5, target=3))
    unit = units_of(engine)[kind]
    layer = engine.model.layers[2]
    x = layer.feed_forward_norm(solved.trace.layers[2].feed_forward_in[:6])
    box = Interval.around(x[5].double().numpy(), radius)
    operands, activation = propagate(engine, solved, unit, box)
    generator = torch.Generator().manual_seed(seed)
    inside = [torch.rand(len(x[5]), generator=generator) * 2 - 1, torch.zeros_like(x[5])]
    rows = {"intersection": "pair_a", "difference": "pair_b"}.get(kind, "quantifier")
    index = unit.unit % getattr(layer.feed_forward, rows).shape[0]
    inside += [way * getattr(layer.feed_forward, rows)[index].sign() for way in (-1, 1)]  # the corners of one row
    for direction in inside:
        moved = x.clone()
        moved[5] = torch.clamp(
            x[5] + radius * direction, torch.from_numpy(box.low).float(), torch.from_numpy(box.high).float()
        )
        if not box.contains(moved[5].double().numpy()):
            continue  # the end itself has no float32 inside
        hidden, atoms, _ = layer.feed_forward(moved[None])
        assert activation.contains(float(hidden[0, 5, unit.unit]))
        named = dict(zip(("pair_a", "pair_b", "quantifier"), atoms, strict=False))
        for operand, interval in operands:
            side = getattr(operand, "side", None)
            values = named["quantifier" if side is None else f"pair_{side.lower()}"][0, 5]
            assert interval.contains(float(values[unit.unit % len(values)] if side is None else values[operand.pair]))


def test_a_box_of_no_size_is_the_reading_and_a_larger_one_contains_it(engine):
    asked = request(engine, target=3)
    for kind, unit in units_of(engine).items():
        widths = []
        for radius in (0.0, 0.05, 0.5):
            found = unit_bounds(engine, asked, unit, radius)
            assert found["box"]["activation"]["low"] <= found["activation"] <= found["box"]["activation"]["high"], kind
            assert found["box"]["write"]["low"] <= found["value"] <= found["box"]["write"]["high"]
            widths.append(found["box"]["activation"]["high"] - found["box"]["activation"]["low"])
        assert widths[0] < 1e-4
        assert widths == sorted(widths)


@pytest.mark.parametrize("biased", [False, True])
def test_no_residual_stream_drives_an_operand_out_of_its_range(biased):
    engine = make_engine(sample_config(biased=biased))
    part = engine.model.layers[1]
    with torch.no_grad():
        part.feed_forward.pair_a.mul_(0.1)  # ends apart from the rails, so that the bound says something
    operand, _ = directions(engine.config, Unit(1, 0))[0]
    interval = anywhere(engine, operand)
    row = part.feed_forward.pair_a[0] * part.feed_forward_norm.gain
    worst = row - row.mean()
    values = []
    for stream in (worst, -worst, 1e4 * worst, -1e4 * worst, *torch.randn(40, len(row)).unbind()):
        y = part.feed_forward_norm(stream[None])
        values.append(float(part.feed_forward.operands(y)[0][0, 0]))
    assert interval.contains(values)
    assert 0.01 < interval.low[0] < interval.high[0] < 0.99
    assert max(values) == pytest.approx(interval.high[0], abs=1e-3), "the bound is attained"
    assert min(values) == pytest.approx(interval.low[0], abs=1e-3)


# ---- what cannot be asked --------------------------------------------------------------------------------------------


def test_what_has_no_bound_is_refused_with_the_reason(engine):
    asked = request(engine, target=3)
    layout = engine.config.feed_forward
    with pytest.raises(LegibleError, match="is a gelu unit and has no rails"):
        unit_bounds(engine, asked, Unit(0, layout.n_named))
    with pytest.raises(NotFound, match="layers 0 to 2"):
        unit_bounds(engine, asked, Unit(7, 0))
    for radius in (-0.1, float("nan"), float("inf")):
        with pytest.raises(LegibleError, match="finite number, 0 or larger"):
            unit_bounds(engine, asked, Unit(0, 0), radius)
    with pytest.raises(LegibleError, match="two finite ends"):
        Interval.of([1.0], [0.0])
    with pytest.raises(LegibleError, match="remembers nothing"):
        reach("intersection", 0.5, 1)
    with pytest.raises(LegibleError, match="decay from 0 to 1"):
        reach("existential", 1.5, 1)
    bare = make_engine(sample_config("linear", (0, 0), gelu=1.0))
    with pytest.raises(LegibleError, match="nothing bounds"):
        ranges_document(bare, request(bare, target=3))
    half = make_engine(sample_config(), dtype="bfloat16")
    with pytest.raises(LegibleError, match="float32 alone"):
        unit_bounds(half, request(half, target=3), Unit(0, 0), 0.1)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_ranges_and_one_units_bounds(tmp_path, monkeypatch):
    folder = str(make_folder(tmp_path / "models").path)
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str) -> str:
        result = CliRunner().invoke(build(), ["bounds", folder, "It was the best", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    data = json.loads(run("--target", " worst", "--top", "4", "--json"))
    assert len(data["units"]) == 4
    assert data["units"][0]["kind"] in BOUNDED
    shown = run("--target", " worst", "--top", "4")
    assert data["units"][0]["id"] in shown
    assert "all units with rails together" in shown
    quantifier = next(f"L1.u{n}" for n in range(48) if make_engine_kind(n) == "existential")
    document = json.loads(run("--component", quantifier, "--radius", "0.1", "--json"))
    assert document["memory"]["reach"][0]["back"] == 0
    assert document["box"]["radius"] == 0.1
    said = run("--component", quantifier, "--radius", "0.1")
    assert "λ = " in said
    assert "rises with" in said
    with pytest.raises(LegibleError, match="--radius goes with --component"):
        run("--radius", "0.1")
    with pytest.raises(LegibleError, match="is no unit"):
        run("--component", "L0.h1")


def make_engine_kind(unit: int) -> str:
    """The kind of a unit of `make_folder`'s layout."""
    from legible_core.config import FeedForward

    return FeedForward(48, 0.5, 0.25).kind(unit)
