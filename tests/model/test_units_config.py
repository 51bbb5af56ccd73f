"""Ids parse and format inversely; a config says what it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import designs, tiny_config

from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import LegibleError
from legible_core.units import (
    Channel,
    Component,
    Floor,
    Head,
    HeadOperand,
    Operand,
    QuantifierOperand,
    Unit,
    parse,
    sort_key,
)

numbers = st.integers(0, 999_999)
sides = st.sampled_from(["A", "B"])
components = st.one_of(
    st.builds(Head, numbers, numbers),
    st.builds(Channel, numbers, numbers, numbers),
    st.builds(Unit, numbers, numbers),
    st.builds(Operand, numbers, numbers, sides),
    st.builds(HeadOperand, numbers, numbers, numbers, sides),
    st.builds(QuantifierOperand, numbers, numbers),
    st.sampled_from([Floor("embed.token"), Floor("embed.position"), Floor("L3.attention.bias"), Floor("norm.bias")]),
)


@given(components)
def test_parse_is_the_inverse_of_str(component: Component) -> None:
    assert parse(str(component)) == component


@given(components, components)
def test_order_is_total(one: Component, other: Component) -> None:
    assert (sort_key(one) == sort_key(other)) == (one == other)


@pytest.mark.parametrize(
    "text", ["", "L1", "L01.h2", "L1.h2.c", "L1.u2.A", "L1.p2", "l1.h2", "L1.h2 ", "L1.h²", "x" * 999]
)
def test_other_text_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(LegibleError, match="is no component id"):
        parse(text)


@pytest.mark.parametrize("config", designs())
def test_config_survives_json(config: ModelConfig) -> None:
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_layout_divides_the_hidden_vector() -> None:
    layout = FeedForward(1024, 0.5, 0.125)
    assert (layout.n_pairs, layout.n_existential, layout.n_proportion, layout.n_plain) == (224, 32, 32, 512)
    kinds = [layout.kind(unit) for unit in range(1024)]
    for kind, part in (
        ("intersection", layout.intersections),
        ("difference", layout.differences),
        ("existential", layout.existentials),
        ("proportion", layout.proportions),
        ("gelu", layout.plain),
    ):
        assert set(kinds[part]) == {kind}
    assert layout.pair(223) == layout.pair(447) == 223
    with pytest.raises(LegibleError, match="units 0 to 1023"):
        layout.kind(1024)
    with pytest.raises(LegibleError, match="no set operator"):
        layout.pair(448)


def test_operands_in_canonical_order() -> None:
    boolean = [str(component) for component in tiny_config().operands(1)]
    assert boolean[:7] == [f"L1.h0.p{i}.A" for i in range(3)] + [f"L1.h0.p{i}.B" for i in range(3)] + ["L1.h1.p0.A"]
    assert boolean[-1] == "L1.u23.m"
    assert len(boolean) == 2 * 6 + 2 * 9 + 6
    membership = [str(component) for component in tiny_config("membership").operands(0)]
    assert membership[0] == "L0.h0.c0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_layers": 0}, "n_layers is 0"),
        ({"d_model": 1 << 30}, "d_model is 1073741824"),
        ({"n_heads": 5}, "no multiple of n_heads 5"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"attention": Attention("boolean", (4, 2))}, "n_special has 2 entries"),
        ({"attention": Attention("boolean", (4, 2, 5))}, "n_special holds 5"),
        ({"attention": Attention("linear", (1, 0, 0))}, "must be 0 in every layer"),
        ({"feed_forward": FeedForward(48, 1.5)}, "gelu_fraction is 1.5"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"tied": 1}, "tied must be true or false"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(LegibleError, match=reason):
        replace(tiny_config(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data.pop("n_heads"), "n_heads is missing"),
        (lambda data: data.update(extra=1), "extra is unknown"),
        (lambda data: data["attention"].pop("value"), "attention.value is missing"),
        (lambda data: data.update(version=2), "reads version 1"),
        (lambda data: data.update(format="gpt"), "no legible checkpoint"),
        (lambda data: data["attention"].update(n_special=3), "must be a list"),
        (lambda data: data.update(feed_forward=[]), "must be an object"),
    ],
)
def test_bad_config_files_name_the_field(spoil: object, reason: str) -> None:
    data = tiny_config().to_json()
    spoil(data)  # type: ignore[operator]
    with pytest.raises(LegibleError, match=reason):
        ModelConfig.from_json(data)
