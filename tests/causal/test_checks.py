"""Checks, necessity, sufficiency and paths on tiny random models, against plain edited forwards and by definition."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from app.commands.check_said import show_checks
from legible_core import attribution as sums
from legible_core.causal import bands, records
from legible_core.causal.bands import measure
from legible_core.causal.checks import Variant, check, effects_of, variants_of
from legible_core.causal.paths import mediation
from legible_core.causal.records import Band, Checks
from legible_core.causal.rerun import Rerun
from legible_core.causal.sets import Components, held_out, necessity, removals
from legible_core.causal.sources import sort_of, sources
from legible_core.causal.sufficiency import sufficiency
from legible_core.errors import Corrupt, LegibleError, NotFound
from legible_core.interventions import Edit
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Channel, Head, Unit, parse
from tests.tiny_models import random_ids, tiny_config, tiny_model

HASH = "c" * 64


def make_engine(**fields: Any) -> Engine:
    return Engine(tiny_model(tiny_config(**fields)), CheckpointRef(hash=HASH, slug="tiny"))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(biased=True)


def asked(length: int = 9, **fields: Any) -> ReadingRequest:
    return ReadingRequest(HASH, tuple(random_ids(length, seed=5).tolist()), **fields)


def value(engine: Engine, request: ReadingRequest, edits: list[Edit]) -> float:
    """The value asked after a plain edited forward."""
    solved = engine.solve(request)
    logits = engine.model.logits_at(engine.model.trace(torch.tensor(request.ids), edits), solved.position)
    return sums.value_of(solved.question, logits)


def gone(*components: Any, position: int) -> list[Edit]:
    return [Edit(component, "set", 0.0, (position,)) for component in components]


def record(engine: Engine, **fields: Any) -> Checks:
    means = bands.mean_activations(engine, [asked().ids])
    return Checks(HASH, {"corpus": "made up"}, means, fields.get("bands", {}))


@pytest.mark.parametrize("asks", [{"position": 5, "contrast": 7}, {"target": 3, "relative_to": "mean"}])
def test_checks_are_what_the_plain_forwards_say(engine: Engine, asks: dict[str, Any]) -> None:
    request = asked(**asks)
    solved = engine.solve(request)
    document = check(engine, request, top=14, measured=record(engine))
    json.dumps(document, allow_nan=False)
    assert [row["id"] for row in document["checks"]] == [c.id for c in engine.read(request, top=14).top]
    base = value(engine, request, [])
    means = record(engine).means
    assert means is not None
    for row in document["checks"]:
        component: Any = parse(row["id"])
        zero = row["removals"][0]
        assert zero["direct"] == pytest.approx(-row["term"], abs=1e-4)
        edits = gone(component, position=solved.position)
        assert zero["total"] == pytest.approx(value(engine, request, edits) - base, abs=2e-3)
        mean = row["removals"][1]
        if isinstance(component, Unit):
            edits = [Edit(component, "set", float(means.units[component.layer, component.unit]), (solved.position,))]
        else:
            z = means.channels[component.layer, component.head]
            edits = [
                Edit(Channel(component.layer, component.head, c), "set", float(v), (solved.position,))
                for c, v in enumerate(z)
            ]
        assert mean["total"] == pytest.approx(value(engine, request, edits) - base, abs=2e-3)
    together = [parse(row["id"]) for row in document["checks"]]
    whole = value(engine, request, gone(*together, position=solved.position)) - base
    assert document["halves"][0]["together"] == pytest.approx(whole, abs=5e-3)
    assert sum(half["n"] for half in document["halves"][1:]) == 14


def test_set_operators_are_also_flipped_per_atom_and_per_unit(engine: Engine) -> None:
    config, means = engine.config, record(engine).means
    layout = config.feed_forward
    flips = [(method, side) for side in "AB" for method in ("flip_atom", "flip_unit")]
    wanted = {
        layout.intersections.start: flips,
        layout.differences.start: flips,
        layout.existentials.start: [("flip_atom", "A")],
        layout.plain.start: [],
    }
    for unit, expected in wanted.items():
        found = [(v.method, v.side) for v in variants_of(config, "unit", 1, unit, means)]
        assert found == [("zero", None), ("mean", None), *expected]
    assert [v.method for v in variants_of(config, "head", 1, 0, None)] == ["zero"]
    # A flipped atom moves the pair's two terms, a flipped unit its own alone; directly so, for the scale is held.
    request = asked()
    solved = engine.solve(request)
    pair, a, b = 2, *(float(engine.model.operands(1, solved.trace, 8)[name][2]) for name in ("pair_a", "pair_b"))
    variants = [Variant("unit", 1, pair, method, "A") for method in ("flip_atom", "flip_unit")]
    effects, _ = effects_of(engine, solved, Rerun(engine.model, solved.trace, 8), variants, None)
    seen = engine.attributor.projections(solved.question).units[1]
    inside, outside = ((1 - 2 * a) * w * float(seen[pair + o]) for w, o in ((b, 0), (1 - b, layout.n_pairs)))
    assert effects[0].direct * solved.terms.scale == pytest.approx(inside + outside, abs=1e-4)
    assert effects[1].direct * solved.terms.scale == pytest.approx(inside, abs=1e-4)


def test_an_edited_reading_is_checked_on_top_of_its_edits(engine: Engine) -> None:
    before = (Edit(Unit(0, 3), "set", 0.9), Edit(Head(1, 0), "scale", 2.0, (2,)))
    request = asked(edits=before)
    document = check(engine, request, top=6)
    base = value(engine, request, list(before))
    for row in document["checks"]:
        assert row["direct"] == pytest.approx(-row["term"], abs=1e-4)
        after = value(engine, request, [*before, *gone(parse(row["id"]), position=8)])
        assert row["total"] == pytest.approx(after - base, abs=2e-3)
    assert necessity(engine, request, sizes=(2,), seeds=1)["rows"][0]["top"]["n"] == 1


def printed(document: dict[str, Any], columns: int) -> str:
    out = io.StringIO()
    show_checks(document, Console(file=out, width=columns, highlight=False))
    return out.getvalue()


def test_flags_say_sign_and_band(engine: Engine) -> None:
    request = asked()
    narrow = Band(100, 0.999, 1.0, 1.001, 0.0, 1.0, 1.0)
    wide = Band(100, -1e9, 1.0, 1e9, 0.0, 1.0, 1.0)
    for band, flagged in ((narrow, True), (wide, False)):
        measured = record(engine, bands={"zero": {"earlier": band, "later": band}})
        document = check(engine, request, top=20, measured=measured)
        rows = document["checks"]
        rows[0]["after"]["prediction"]["display"] = "·counterrevolutionary"
        for columns in (80, 120):
            said = printed(document, columns)
            assert max(map(len, said.splitlines())) <= columns
            cells = [f"{row[key]:+.3f}" for row in rows for key in ("term", "total", "direct")]
            cells += [f"{each['total']:+.2f}" for row in rows for each in row["removals"] if each["operand"]]
            assert all(cell in said.split() or f"{cell}," in said.split() for cell in cells), said
            assert "…" not in said
        assert any("band" in row["flags"] for row in rows) is flagged
        for row in rows:
            opposed = row["total"] * row["direct"] < 0 and min(abs(row["total"]), abs(row["direct"])) > 2e-3
            assert not opposed or "sign" in row["flags"]
            assert row["agrees"] is (not row["flags"])


def test_the_last_layers_units_act_through_the_norm_alone(engine: Engine) -> None:
    request = asked()
    rows = check(engine, request, top=200)["checks"]
    last = [row for row in rows if row["id"].startswith("L2.u")]
    assert len(last) > 5
    for row in last:
        assert row["total"] == pytest.approx(row["removals"][0]["direct_rescaled"], abs=1e-4)


def test_what_cannot_be_checked_is_refused(engine: Engine) -> None:
    for call in (
        lambda: check(engine, asked(), top=0),
        lambda: necessity(engine, asked(), sizes=(1000,)),
        lambda: necessity(engine, asked(), seeds=0),
        lambda: mediation(engine, asked(), Unit(2, 0), Head(2, 0)),
        lambda: mediation(engine, asked(), parse("L0.p1.A"), Head(2, 0)),
        lambda: sources(engine, asked(), parse("L1.u0")),
        lambda: sufficiency(engine, asked(target=_unlikely(engine))),
    ):
        with pytest.raises(LegibleError):
            call()
    with pytest.raises(NotFound):
        mediation(engine, asked(), Unit(0, 0), Head(2, 9))


def _unlikely(engine: Engine) -> int:
    return int(engine.solve(asked()).logits.argmin())


def test_necessity_removes_what_it_names(engine: Engine) -> None:
    request = asked()
    solved = engine.solve(request)
    document = necessity(engine, request, sizes=(1, 4, 16), seeds=3)
    json.dumps(document, allow_nan=False)
    base = value(engine, request, [])
    for row in document["rows"]:
        members = [parse(m["id"]) for m in document["members"][: row["k"]]]
        assert row["top"]["linear"] == pytest.approx(sum(m["term"] for m in document["members"][: row["k"]]))
        lost = base - value(engine, request, gone(*members, position=solved.position))
        assert row["top"]["lost"] == pytest.approx(lost, abs=5e-3)
        assert row["top"]["linear"] > row["random"]["linear"]
        assert row["random"]["n"] == 3
    terms = [m["term"] for m in document["members"]]
    assert terms == sorted(terms, reverse=True)
    again = necessity(engine, request, sizes=(1, 4, 16), seeds=3)
    assert again["rows"] == document["rows"]
    many = held_out([removals(engine, asked(n), sizes=(1, 4), seeds=2, seed=0)[1:] for n in (6, 9)], (1, 4))
    assert [row["top"]["n"] for row in many] == [2, 2]
    assert [row["random"]["n"] for row in many] == [4, 4]


def test_random_sets_have_the_kinds_of_what_they_stand_beside(engine: Engine) -> None:
    components = Components(engine.config, engine.solve(asked()).terms)
    members = components.ranked[:40]
    drawn = components.random_like(members, np.random.default_rng(0))
    assert sorted(components.kinds[drawn]) == sorted(components.kinds[members])
    assert len(set(drawn.tolist())) == 40
    assert not set(drawn.tolist()) & set(members.tolist())
    for flat in (0, components.n_channels - 1, components.n_channels, len(components.terms) - 1):
        component = components.component(flat)
        array = engine.solve(asked()).terms
        found = (
            array.units[component.layer, component.unit]
            if isinstance(component, Unit)
            else array.channels[component.layer, component.head, component.channel]
        )
        assert found == components.terms[flat]


def test_a_sufficient_set_emits_its_token_and_none_of_it_can_be_missed(engine: Engine) -> None:
    request = asked()
    solved = engine.solve(request)
    document = sufficiency(engine, request, seeds=4)
    json.dumps(document, allow_nan=False)
    kept = {str(parse(m["id"])) for m in document["members"]}
    assert len(kept) == document["size"] <= document["prefix"]
    every: list[Any] = [Channel(*c) for c in np.ndindex(3, 4, 6)] + [Unit(*u) for u in np.ndindex(3, 48)]

    def leading(without: set[str]) -> int:
        edits = gone(*[c for c in every if str(c) not in kept - without], position=solved.position)
        return int(engine.model.logits_at(engine.model.trace(torch.tensor(request.ids), edits), 8).argmax())

    target = solved.question.target
    assert leading(set()) == target
    if document["minimal"]:
        assert all(leading({one}) != target for one in kept)
    assert document["random_sizes"][-1] == {"size": len(every), "n": 4, "emit": 1.0}


def test_mediation_is_four_plain_forwards(engine: Engine) -> None:
    request = asked()
    first, second = Head(0, 1), Unit(1, 10)
    document = mediation(engine, request, first, second)
    r0, r = value(engine, request, []), value(engine, request, gone(first, position=8))
    r0_abl = value(engine, request, gone(second, position=8))
    r_abl = value(engine, request, gone(first, second, position=8))
    assert document["m"] == pytest.approx(1 - (r0_abl - r_abl) / (r0 - r), abs=1e-2)
    assert document["effect"] == pytest.approx(r - r0, abs=2e-3)
    assert document["direct"] + document["through"] + document["other"] == pytest.approx(document["effect"])
    # Nothing that a component did goes through a unit whose write is nothing.
    quiet = make_engine()
    with torch.no_grad():
        quiet.model.layers[1].feed_forward.down[:, 10] = 0
        # So loud a head that m, a share of its effect, is told from the rounding of two logits.
        quiet.model.layers[0].attention.output[:, 6:12] *= 10
    assert mediation(quiet, asked(), first, second)["m"] == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        quiet.model.layers[0].attention.output.zero_()
    quiet.forget()
    nothing = mediation(quiet, asked(), first, second)
    assert nothing["m"] is None
    assert "L0.h1" in nothing["why_undefined"]


def test_sources_are_removed_where_the_operand_reads(engine: Engine) -> None:
    request = asked(position=7)
    for operand, sublayer in (("L1.p2.A", "feed_forward"), ("L2.h1.p1.B", "attention")):
        document = sources(engine, request, parse(operand), seeds=4)
        json.dumps(document, allow_nan=False)
        layer = parse(operand).layer
        part: Any = engine.model.layers[layer]
        name, row = ("pair_a", 2) if sublayer == "feed_forward" else ("bounded_values", 6 + 1 + 3)

        def pre(edits: list[Edit], part: Any = part, layer: int = layer, name: str = name, row: int = row) -> float:
            side = "feed_forward" if name == "pair_a" else "attention"
            x = getattr(engine.model.trace(torch.tensor(request.ids), edits).layers[layer], f"{side}_in")[7]
            inner, norm = getattr(part, side), getattr(part, f"{side}_norm")
            return float((norm(x) @ getattr(inner, name)[row] + getattr(inner, f"{name}_bias")[row]).detach())

        base = pre([])
        assert document["pre_activation"] == pytest.approx(base, abs=1e-3)
        assert document["activation"] == pytest.approx(1 / (1 + np.exp(-base)), abs=1e-3)
        for source in document["sources"][:4]:
            found = pre(gone(parse(source["id"]), position=7)) - base
            assert source["total"] == pytest.approx(found, abs=2e-3)
        members = [parse(one) for one in document["credited"]["members"]]
        if len(members) == document["credited"]["n"]:
            whole = pre(gone(*members, position=7)) - base
            assert document["credited"]["total"] == pytest.approx(whole, abs=5e-3)


def test_sorts_of_sources() -> None:
    assert sort_of(-1.0, -1.1, None, 0.1) == "direct"
    assert sort_of(-0.2, -1.1, 0.9, 0.1) == "mediated"
    assert sort_of(1.0, -1.1, None, 0.1) == "mediated"
    assert sort_of(1.0, 0.0, None, 0.1) == "answered"
    assert sort_of(0.0, 0.0, 0.5, 0.1) == "sibling"
    assert sort_of(0.0, 0.0, 0.1, 0.1) == "none"


def test_measured_bands_are_kept_beside_the_weights(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands, "LEAST", 5)
    ids = random_ids(200, seed=9).numpy()
    measured = measure(engine, ids, sample=6, top=5, seed=1, said={"corpus": "made up"})
    assert measured.sample["predictions"] == 6
    for rows in measured.bands.values():
        for band in rows.values():
            assert band.low <= band.median <= band.high
    zero = measured.bands["zero"]
    assert zero["all"].n == zero["earlier"].n + zero["later"].n
    assert measured.agreement["all"]["n"] == 6 * 10
    assert sum(row["n"] for row in measured.agreement["by_share"]) == 6 * 10
    measured.write(tmp_path / records.FILE)
    again = Checks.load(tmp_path, HASH, engine.config)
    assert again is not None
    assert again.to_json() == measured.to_json()
    assert Checks.load(tmp_path, "d" * 64, engine.config) is None
    document = check(engine, asked(), top=3, measured=again)
    assert document["bands"]["sample"]["corpus"] == "made up"
    for spoil in (
        {"version": 9},
        {"bands": {"zero": {"all": {}}}},
        {"means": {"tokens": 1, "units": "", "channels": ""}},
    ):
        text = json.dumps({**measured.to_json(), **spoil})
        (tmp_path / records.FILE).write_text(text)
        with pytest.raises(Corrupt):
            Checks.load(tmp_path, HASH, engine.config)
    with pytest.raises(LegibleError, match="enough for"):
        measure(engine, ids[:40], sample=50)
