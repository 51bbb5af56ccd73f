"""What a monitor may say, and which conditions are found to contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.errors import LegibleError
from legible_core.monitor import Condition, Monitor, parse_monitors

# 12 pairs, 3 existentials (24-26), 3 proportions (27-29), 18 GELU units (30-47).
CONFIG = ModelConfig(2, 24, 4, 32, 61, Attention("boolean", (2, 2)), FeedForward(48, 0.375, 0.2))


def monitor(*lines: str, **more: Any) -> Monitor:
    return Monitor("one", tuple(Condition.parse_line(line) for line in lines), **more)


def test_a_monitor_is_read_back_from_its_json_and_its_lines() -> None:
    data = {
        "name": "negation",
        "conditions": [
            {"component": "L1.p3.A", "above": 0.9, "for": 2},
            {"component": "L0.h1", "above": 0.25, "below": 7.5},
            {"component": "L1.u3"},
        ],
        "gate": {"edits": ["L1.p3.A:flip", {"component": "L1.u3", "operation": "scale", "value": 0.5}]},
    }
    found = Monitor.from_json(data)
    assert Monitor.from_json(found.to_json()) == found
    assert found.to_json()["gate"] == {"edits": ["L1.p3.A:flip", "L1.u3:scale=0.5"]}
    assert [str(c) for c in found.conditions] == ["L1.p3.A above 0.9 for 2", "L0.h1 above 0.25 below 7.5", "L1.u3"]
    assert tuple(Condition.parse_line(str(c)) for c in found.conditions) == found.conditions
    assert Condition.parse_line(" L1.p3.A  > .5  <  1e0 for 3 tokens ") == Condition.from_json(
        {"component": "L1.p3.A", "above": 0.5, "below": 1.0, "for": 3}
    )
    assert [str(c) for c in found.components] == ["L1.p3.A", "L0.h1", "L1.u3"]
    found.check(CONFIG)
    assert Monitor.from_json({**data, "gate": {"stop": True}}).to_json()["gate"] == {"stop": True}


LAYOUT = CONFIG.feed_forward


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["L0.p1.A above 0.9", "L1.p1.A above 0.1", "L0.p1.A below 0.2 for 4"], ["above 0.9`", "below 0.2 for 4`"]),
        (["L0.p1.A above 1"], ["L0.p1.A above 1.0"]),
        (["L0.p1.A below -0.5"], ["L0.p1.A below -0.5"]),
        (["L0.h3 below 0"], ["L0.h3 below 0"]),
        (["L0.h1.c2 above 1.5"], ["L0.h1.c2"]),
        (["L0.u47 below -0.2"], ["L0.u47"]),
        # A⊙B is no more than A, and no more than B.
        (["L0.u2 above 0.5", "L0.p2.A below 0.5"], ["L0.u2", "L0.p2.A"]),
        (["L0.u2 above 0.5", "L0.p2.B below 0.4", "L0.p2.A above 0.1"], ["L0.u2", "L0.p2.B"]),
        # A⊙B + A⊙(1-B) = A, which is no more than 1.
        (["L0.u2 above 0.5", f"L0.u{LAYOUT.n_pairs + 2} above 0.5"], ["L0.u2", f"L0.u{LAYOUT.n_pairs + 2}"]),
        (["L0.p2.A above 0.8", "L0.p2.B above 0.8", "L0.u2 below 0.64"], ["L0.p2.A", "L0.p2.B", "L0.u2"]),
        (["L1.h0.p1.A below 0.3", "L1.h0.c1 above 0.3"], ["L1.h0.p1.A", "L1.h0.c1"]),
        # An existential is at least its membership of the token itself.
        ([f"L0.u{LAYOUT.existentials.start} below 0.5", f"L0.u{LAYOUT.existentials.start}.m above 0.5"], [".m above"]),
    ],
)
def test_conditions_that_never_hold_together_are_refused_and_named(lines: list[str], named: list[str]) -> None:
    found = monitor(*lines)
    with pytest.raises(LegibleError) as error:
        found.check(CONFIG)
    assert error.value.code == "contradiction"
    for name in named:
        assert name in error.value.message
    if len(named) > 1:
        assert error.value.message.count("`") == 2 * len(named), "no more conditions than it takes"


@given(
    a=st.floats(0.0, 1.0),
    b=st.floats(0.0, 1.0),
    m=st.floats(0.0, 1.0),
    before=st.floats(0.0, 1.0),
    width=st.floats(1e-6, 0.3),
)
@settings(max_examples=200, deadline=None)
def test_conditions_that_some_values_satisfy_are_never_refused(
    a: float, b: float, m: float, before: float, width: float
) -> None:
    unit, pairs = LAYOUT.existentials.start, LAYOUT.n_pairs
    values = {
        "L0.p2.A": a, "L0.p2.B": b, "L0.u2": a * b, f"L0.u{pairs + 2}": a * (1 - b), "L0.h1.p1.A": a, "L0.h1.p1.B": b,
        "L0.h1.c1": a * b, f"L0.h1.c{1 + CONFIG.d_head // 2}": a * (1 - b), f"L0.u{unit}.m": m,
        f"L0.u{unit}": 1 - (1 - m) * (1 - 0.9 * before),
    }  # fmt: skip
    monitor(*(f"{id} above {v - width:.17f} below {v + width:.17f}" for id, v in values.items())).check(CONFIG)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"name": "x"}, '"conditions"'),
        ({"name": "", "conditions": [{"component": "L0.u1", "above": 0}]}, "name must be"),
        ({"name": "a\ud800", "conditions": [{"component": "L0.u1", "above": 0}]}, "surrogate"),
        ({"name": "x", "conditions": [{"component": "L0.u1"}]}, "every token would be a hit"),
        ({"name": "x", "conditions": [{"component": "nobody", "above": 0.1}]}, "no component id"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": "0.1"}]}, "must be a number"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": float("nan")}]}, "no finite number"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 10**400}]}, "too large"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 0.1, "for": 0}]}, "1 to 10,000"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 0.1, "for": 1.5}]}, "whole number"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "over": 0.1}]}, "'over'"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 0.4, "below": 0.4}]}, "never hit"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 0}], "gate": {}}, "either stop"),
        ({"name": "x", "conditions": [{"component": "L0.u1", "above": 0}], "gate": {"edits": [1]}}, "edit"),
        (
            {"name": "x", "conditions": [{"component": "L0.u1", "above": 0}], "gate": {"edits": ["L0.u1:zero@3"]}},
            "names positions",
        ),
        ({"name": "x", "conditions": [{"component": "L9.u1", "above": 0}]}, "no layer 9"),
        (
            {
                "name": "x",
                "conditions": [{"component": "L0.u1", "above": 0}],
                "gate": {"edits": [{"component": "L0.u999", "operation": "scale", "value": 0.5}]},
            },
            "999",
        ),
        ([], "an object"),
    ],
)
def test_what_is_no_monitor_is_refused_in_one_sentence(data: Any, said: str) -> None:
    with pytest.raises(LegibleError) as error:
        Monitor.from_json(data).check(CONFIG)
    assert said in error.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "no JSON"), ("[" * 100_000, "no JSON"), ("[]", "holds 0 monitors"), ("x" * ((1 << 20) + 1), "limit")],
)
def test_what_is_no_file_of_monitors_is_refused(text: str, said: str) -> None:
    with pytest.raises(LegibleError, match=said):
        parse_monitors(text)


def test_two_monitors_of_a_file_need_two_names() -> None:
    one = '{"name": "a", "conditions": [{"component": "L0.u1", "above": 0.5}]}'
    other = one.replace('"a"', '"b"')
    assert [found.name for found in parse_monitors(f"[{one}, {other}]")] == ["a", "b"]
    with pytest.raises(LegibleError, match="two monitors are called 'a'"):
        parse_monitors(f"[{one}, {one}]")
