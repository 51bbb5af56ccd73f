"""Why an operand was on: its pre-activation against an oracle that forms every write, over all designs and dtypes."""

from __future__ import annotations

import pytest
import torch
from reading_samples import make_engine, request, sample_config

from legible_core.details import head_detail
from legible_core.errors import LegibleError, NotExact
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.pipeline import Engine
from legible_core.reads import Read, opens, read_of, recall, unpack_terms
from legible_core.trace import Trace
from legible_core.units import Component, Head, Unit, parse
from legible_core.upstream import attribute_read, quantifier_series, read_series, upstream_detail

POSITION = 7


def oracle(model: Transformer, trace: Trace, read: Read, position: int) -> dict[str, torch.Tensor]:
    """Every term in float64 by the definition: form each write, centre it, divide by std(x), times gain, dot row."""
    config = model.config
    layer = model.layers[read.layer]
    part, norm = getattr(layer, read.sublayer), getattr(layer, f"{read.sublayer}_norm")
    x = getattr(trace.layers[read.layer], f"{read.sublayer}_in")[position].double()
    std = ((x - x.mean()).square().mean() + config.norm_eps).sqrt()
    row = getattr(part, read.matrix)[read.row].double()

    def term(writes: torch.Tensor) -> torch.Tensor:
        return ((writes - writes.mean(-1, keepdim=True)) / std * norm.gain.double()) @ row

    found = {
        "embed.token": term(trace.embed_token[position].double()),
        "embed.position": term(trace.embed_position[position].double()),
    }
    heads = torch.zeros(config.n_layers, config.n_heads, dtype=torch.float64)
    units = torch.zeros(config.n_layers, config.feed_forward.d_ff, dtype=torch.float64)
    last = read.layer + (read.sublayer == "feed_forward")
    for index in range(last):
        below = model.layers[index]
        z = trace.layers[index].z[position].double()
        columns = below.attention.output.double().view(config.d_model, config.n_heads, config.d_head)
        heads[index] = term(torch.einsum("hc,dhc->hd", z, columns))
        if config.linear_bias:
            found[f"L{index}.attention.bias"] = term(below.attention.output_bias.double())
        if index < read.layer:
            hidden = trace.layers[index].hidden[position].double()
            units[index] = term(hidden[:, None] * below.feed_forward.down.double().T)
            if config.linear_bias:
                found[f"L{index}.feed_forward.bias"] = term(below.feed_forward.down_bias.double())
    if config.norm_bias:
        found["norm.bias"] = norm.bias.double() @ row
    if config.linear_bias:
        found["read.bias"] = getattr(part, f"{read.matrix}_bias")[read.row].double()
    return {"heads": heads, "units": units, **found}


def operands(engine: Engine) -> list[Component]:
    """One read of every sort that the checkpoint has, in the first and the last layer."""
    config, layout = engine.config, engine.config.feed_forward
    last = config.n_layers - 1
    found: list[str] = []
    for layer in (0, last):
        if layout.n_pairs:
            found += [f"L{layer}.p0.A", f"L{layer}.p{layout.n_pairs - 1}.B"]
        if layout.n_quantifiers:
            found += [f"L{layer}.u{layout.quantifiers.start}.m", f"L{layer}.u{layout.quantifiers.stop - 1}.m"]
        if layout.n_named < layout.d_ff:
            found.append(f"L{layer}.u{layout.d_ff - 1}")
        for head in (0, config.n_heads - 1):
            if config.is_bounded(layer, head) and config.attention.value == "boolean":
                found += [f"L{layer}.h{head}.p1.A", f"L{layer}.h{head}.p{config.d_head // 2 - 1}.B"]
            else:
                found.append(f"L{layer}.h{head}.c{config.d_head - 1}")
    return [parse(text) for text in found]


DESIGNS = [
    ("boolean", (4, 2, 3), False, 0.5),
    ("boolean", (4, 0, 4), True, 0.25),
    ("membership", (4, 4, 2), True, 0.5),
    ("linear", (0, 0, 0), False, 1.0),
]


@pytest.mark.parametrize(("value", "special", "biased", "gelu"), DESIGNS)
def test_every_term_is_the_definitions(value, special, biased, gelu):
    engine = make_engine(sample_config(value, special, biased=biased, gelu=gelu), seed=3)
    trace, position, _ = engine.run(request(engine, position=POSITION))
    asked = operands(engine)
    assert len(asked) >= 6
    for component in asked:
        read = read_of(engine.config, component)
        terms = attribute_read(engine.model, trace, read, position)
        expected = oracle(engine.model, trace, read, position)
        torch.testing.assert_close(torch.from_numpy(terms.heads), expected.pop("heads"), atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(torch.from_numpy(terms.units), expected.pop("units"), atol=2e-5, rtol=2e-5)
        assert set(terms.floor) == set(expected), component
        for name, amount in expected.items():
            assert terms.floor[name] == pytest.approx(float(amount), abs=1e-6), name
        assert abs(terms.residual) <= terms.tolerance
        assert terms.tolerance == max(1e-4, 1e-6 * terms.mass)


@pytest.mark.parametrize(("value", "special", "biased", "gelu"), DESIGNS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_value_is_what_the_model_computes(value, special, biased, gelu, dtype):
    """σ of the sum is the operand that the forward pass used; of a plain unit, its activation."""
    engine = make_engine(sample_config(value, special, biased=biased, gelu=gelu), seed=5, dtype=dtype)
    trace, position, _ = engine.run(request(engine, position=POSITION))
    slack = 1e-5 if dtype == "float32" else 2e-2
    for component in operands(engine):
        read = read_of(engine.config, component)
        terms = attribute_read(engine.model, trace, read, position, dtype)
        assert abs(terms.residual) <= terms.tolerance, component
        if dtype == "bfloat16":
            assert terms.tolerance == pytest.approx(1e-3 * terms.mass)
            assert abs(terms.floor["rounding"]) < 0.02 * terms.mass
        score = torch.tensor(terms.total)
        if read.function == "gelu":
            made, used = torch.nn.functional.gelu(score), trace.layers[read.layer].hidden[position, component.unit]
        elif read.function == "linear":
            made, used = score, engine.model.head_values(read.layer, trace)[position, component.head, component.channel]
        else:
            found = engine.model.operands(read.layer, trace, position)
            if read.sublayer == "attention":
                whole = [found["membership"]] if "membership" in found else [found["head_a"], found["head_b"]]
                made, used = torch.sigmoid(score), torch.cat(whole, dim=1).flatten()[read.row]
            else:
                made, used = torch.sigmoid(score), found[read.matrix][read.row]
        assert float(made) == pytest.approx(float(used), abs=slack, rel=slack), component
        assert float(read_series(engine.model, trace, read)[position]) == pytest.approx(float(used), abs=slack / 10)


def test_a_feed_forward_row_sees_its_own_layers_heads_and_an_attention_row_does_not(engine):
    trace, position, _ = engine.run(request(engine, position=POSITION))
    row = attribute_read(engine.model, trace, read_of(engine.config, parse("L1.p0.A")), position)
    value = attribute_read(engine.model, trace, read_of(engine.config, parse("L1.h0.p0.A")), position)
    assert row.heads[1].any()
    assert not row.units[1].any()
    assert not value.heads[1].any()
    assert value.units[0].any()
    assert not row.heads[2].any()


def test_edits_are_in_the_sum_of_what_they_change():
    engine = make_engine(sample_config("boolean", (4, 4), biased=True))
    edits = (Edit(Unit(0, 5), "set", 3.0), Edit(Head(0, 2), "scale", 0.0))
    result = upstream_detail(engine, request(engine, position=POSITION, edits=edits), parse("L1.p3.A"))
    heads, units = unpack_terms(result["terms"], result["heads_shape"], result["units_shape"])
    assert heads[0, 2] == 0.0
    plain = upstream_detail(engine, request(engine, position=POSITION), parse("L1.p3.A"))
    assert units[0, 5] != unpack_terms(plain["terms"], plain["heads_shape"], plain["units_shape"])[1][0, 5]
    assert result["value"] != plain["value"]


def test_the_document_adds_up_and_names_what_lies_further_upstream(engine):
    result = upstream_detail(engine, request(engine, position=POSITION), parse("L2.p1.B"))
    heads, units = unpack_terms(result["terms"], result["heads_shape"], result["units_shape"])
    assert heads.shape == (3, 4)
    assert units.shape == (2, 48)
    floor = sum(term["value"] for term in result["floor"])
    assert heads.sum() + units.sum() + floor == pytest.approx(result["sum"], abs=1e-3)
    assert sum(result["groups"].values()) == pytest.approx(result["sum"], abs=1e-9)
    assert result["residual"] == result["value"] - result["sum"]
    assert len(result["series"]) == len(result["tokens"]) == 12
    assert result["activation"] == pytest.approx(float(torch.sigmoid(torch.tensor(result["value"]))), abs=1e-5)
    sizes = [abs(row["value"]) for row in result["top"]]
    assert sizes == sorted(sizes, reverse=True)
    kinds = {row["kind"] for row in result["top"]}
    assert {"head", "intersection"} <= kinds or {"head", "difference"} <= kinds
    for row in result["top"]:
        component = parse(row["id"])
        if isinstance(component, Head):
            assert row["opens"] == []
            continue
        below = [str(part) for part in opens(engine.config, component) or (component,)]
        assert {part["id"] for part in row["opens"]} == set(below)
        assert all(0 <= part["position"] <= POSITION for part in row["opens"])
        # Every one of them can be asked in turn: one click further upstream.
        for part in row["opens"]:
            upstream_detail(engine, request(engine, position=part["position"]), parse(part["id"]))


def test_layer_0_reads_the_embeddings_alone(engine):
    result = upstream_detail(engine, request(engine, position=POSITION), parse("L0.h1.p0.A"))
    assert result["top"] == []
    assert result["heads_shape"] == [0, 4]
    assert {term["id"] for term in result["floor"]} == {"embed.token", "embed.position", "norm.bias", "read.bias"}
    assert abs(result["residual"]) <= result["tolerance"]


def test_a_head_opens_into_its_attended_tokens_and_their_operands(engine):
    wish = request(engine, position=POSITION)
    result = upstream_detail(engine, wish, parse("L2.p1.B"), through=parse("L1.h1"))
    seen = result["through"]
    heads, _ = unpack_terms(result["terms"], result["heads_shape"], result["units_shape"])
    assert seen["value"] == pytest.approx(float(heads[1, 1]), rel=1e-5)
    assert sum(seen["terms"]) == pytest.approx(seen["value"], abs=1e-5)
    assert sum(channel["value"] for channel in seen["channels"]) == pytest.approx(seen["value"], abs=1e-9)
    assert seen["pattern"] == head_detail(engine, wish, 1, 1)["pattern"]
    found = engine.model.operands(1, engine.run(wish)[0], slice(0, POSITION + 1))
    for channel in seen["channels"][:8]:
        number = int(channel["id"].rpartition(".c")[2])
        a, b = (torch.tensor(operand["values"]) for operand in channel["gathered"])
        torch.testing.assert_close(a, found["head_a"][:, 1, number % 4])
        both = a * b if number < 4 else a * (1 - b)
        torch.testing.assert_close(torch.tensor(channel["values"]), both, atol=1e-6, rtol=1e-5)


def test_a_unit_looked_at_closer_has_its_operands_whether_or_not_it_is_strong(engine):
    wish = request(engine, position=POSITION)
    weak = upstream_detail(engine, wish, parse("L2.p1.B"), top=0, through=parse("L0.u3"))
    assert weak["top"] == []
    assert [operand["id"] for operand in weak["through"]["operands"]] == ["L0.p3.A", "L0.p3.B"]


def test_a_quantifiers_memory_divides_exactly(engine):
    trace, position, _ = engine.run(request(engine, position=11))
    layout = engine.config.feed_forward
    for unit in (layout.quantifiers.start, layout.quantifiers.stop - 1):
        m = quantifier_series(engine.model, trace, Unit(1, unit)).tolist()
        kind, decay = layout.kind(unit), engine.describer.decay(1, unit)
        for at in (0, 5, position):
            left = recall(kind, m[: at + 1], decay)
            assert min(left) >= 0
            assert sum(left) == pytest.approx(float(trace.layers[1].hidden[at, unit]), abs=1e-5)


def test_a_sum_that_does_not_close_is_an_error_with_both_numbers(engine):
    wish = request(engine, position=POSITION)
    engine.run(wish)
    layer = engine.model.layers[1].feed_forward
    with torch.no_grad():
        column = layer.down[:, 7].clone()
        layer.down[:, 7] += 5.0 * torch.randn(32)
    try:
        with pytest.raises(NotExact) as caught:
            upstream_detail(engine, wish, parse("L2.p1.B"))
    finally:
        with torch.no_grad():
            layer.down[:, 7] = column
    assert "tolerance" in caught.value.message
    upstream_detail(engine, wish, parse("L2.p1.B"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L3.p0.A", ["no layer 3", "layers 0 to 2"]),
        ("L0.p99.A", ["pairs 0 to 8"]),
        ("L0.u99", ["units 0 to 47"]),
        ("L0.u3", ["intersection", "L0.p3.A or L0.p3.B"]),
        ("L0.u18", ["existential", "L0.u18.m"]),
        ("L0.u3.m", ["quantifiers of a layer are units 18 to 23"]),
        ("L0.h1", ["Boolean", "L0.h1.p0.A to L0.h1.p3.B"]),
        ("L2.h1", ["linear", "L2.h1.c0 to L2.h1.c7"]),
        ("L0.h1.c5", ["L0.h1.p1.A or L0.h1.p1.B"]),
        ("L0.h9.p0.A", ["heads 0 to 3"]),
        ("L0.h1.p9.A", ["pairs 0 to 3"]),
        ("L2.h1.p0.A", ["linear", "L2.h1.c0 to c7"]),
        ("L2.h1.c8", ["channels 0 to 7"]),
        ("embed.token", ["part of the floor"]),
    ],
)
def test_what_cannot_be_asked_says_what_can(engine, text, words):
    with pytest.raises(LegibleError) as caught:
        upstream_detail(engine, request(engine, position=POSITION), parse(text))
    assert caught.value.status == 404
    for word in words:
        assert word in caught.value.message, caught.value.message


def test_only_what_is_upstream_can_be_looked_at_closer(engine):
    wish = request(engine, position=POSITION)
    for text in ("L2.u0", "L1.h1.c0", "L1.p0.A"):
        with pytest.raises(LegibleError, match=r"not upstream of L2\.p1\.B"):
            upstream_detail(engine, wish, parse("L2.p1.B"), through=parse(text))
    with pytest.raises(LegibleError, match="not upstream"):
        upstream_detail(engine, wish, parse("L1.h0.p0.A"), through=parse("L1.h0"))
    with pytest.raises(LegibleError, match="units 0 to 47"):
        upstream_detail(engine, wish, parse("L2.p1.B"), through=parse("L0.u77"))


def test_spoilt_terms_are_told():
    from legible_core.errors import Corrupt

    for text in ("", "AAAA", "€"):
        with pytest.raises(Corrupt):
            unpack_terms(text, (1, 2), (1, 3))
