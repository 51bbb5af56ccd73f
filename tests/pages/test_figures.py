"""The figure's own rules: sign and strength by class and in text, every unit drawn once, sizes bounded."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.figures import (
    MARKS,
    attention_levels,
    decay_curve,
    half_life_figure,
    heads_grid,
    histogram,
    level,
    signed,
    telling,
    unit_strips,
)
from app.pages.view import chance, environment

SVG = "{http://www.w3.org/2000/svg}"


def href(name: str) -> str:
    return f"?a=1&component={name}"


@given(st.floats(-50, 50), st.floats(0.01, 50))
def test_level_follows_sign_and_strength(value: float, scale: float) -> None:
    tone = level(value, scale)
    if abs(value) < 0.02 * scale:
        assert tone == "z0"
    else:
        assert tone[0] == ("p" if value > 0 else "n")
        assert int(tone[1]) == min(4, 1 + int(abs(value) / scale * 4))
    if tone != "z0":
        assert level(-value, scale)[1] == tone[1]


def test_signed() -> None:
    assert signed(2.138) == "+2.14"
    assert signed(-0.5, 1) == "−0.5"
    assert signed(-0.001) == "0.00"


def test_a_difference_and_a_flagged_sign_have_the_digits_that_they_need() -> None:
    given = (-0.26, 12.3, 0.0034, -0.00276, 3e-6, -4.2e-9, 0.0)
    assert [telling(value) for value in given] == [
        "−0.26", "+12.30", "+0.0034", "−0.0028", "+0.0000030", "−4e-9", "0.00",
    ]  # fmt: skip
    macros = environment().get_template("macros.html").module
    assert ">−0.0028<" in macros.value(-0.00276, telling=True)  # type: ignore[attr-defined]
    delta = environment().get_template("compare_macros.html").module.delta  # type: ignore[attr-defined]
    assert ">+0.0034<" in delta(0.0034)
    assert ">−0.000012<" in delta(-1.2e-5, 3)


def test_small_probabilities_have_three_figures() -> None:
    given = (0.999, 0.63, 0.0632, 0.0527, 0.0412, 0.0409, 0.005, 4e-4, 0.0)
    assert [chance(value) for value in given] == [
        "1.00", "0.63", "0.0632", "0.0527", "0.0412", "0.0409", "0.00500", "4e-04", "0",
    ]  # fmt: skip


def test_heads_grid_is_well_formed_and_complete() -> None:
    heads = np.array([[0.5, -1.0], [0.0, 0.25]])
    root = ET.fromstring(str(heads_grid(heads, href, "L0.h1")))
    cells = root.findall(f"{SVG}a")
    assert [cell.get("aria-label") for cell in cells] == ["L0.h0 +0.50", "L0.h1 −1.00", "L1.h0 0.00", "L1.h1 +0.25"]
    assert [cell.find(f"{SVG}rect").get("class") for cell in cells] == ["p3", "n4", "z0", "p2"]  # type: ignore[union-attr]
    assert [cell.get("aria-current") for cell in cells] == [None, "true", None, None]
    assert cells[1].get("href") == "?a=1&component=L0.h1"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 200))
def test_every_unit_is_a_mark_or_in_the_density(seed: int, layers: int, width: int) -> None:
    units = np.random.default_rng(seed).normal(size=(layers, width))
    always = [f"L0.u{width - 1}"]
    root = ET.fromstring(str(unit_strips(units, href, lambda u: "∩", f"L{layers - 1}.u0", always)))
    marks = [mark.get("href", "").partition("component=")[2] for mark in root.findall(f"{SVG}a")]
    assert len(marks) == len(set(marks))
    assert {f"L0.u{width - 1}", f"L{layers - 1}.u0"} <= set(marks)
    for layer in range(layers):
        strongest = np.argsort(-np.abs(units[layer]))[: min(MARKS, width)]
        assert {f"L{layer}.u{unit}" for unit in strongest} <= set(marks)
    assert not re.search(r"nan|inf", str(root.attrib))


def test_strips_of_zeros_draw_no_mark() -> None:
    root = ET.fromstring(str(unit_strips(np.zeros((1, 10)), href, lambda u: "g")))
    assert not root.findall(f"{SVG}a")
    assert root.findall(f"{SVG}path")


def test_a_large_model_stays_small() -> None:
    generator = np.random.default_rng(0)
    grid = heads_grid(generator.normal(size=(12, 12)), href)
    strips = unit_strips(generator.normal(size=(12, 3072)), href, lambda u: "∖")
    assert len(grid) + len(strips) < 65_000


def test_glyphs_and_addresses_are_escaped() -> None:
    svg = str(unit_strips(np.ones((1, 1)), lambda name: '"><script>', lambda u: "<b>"))
    assert "<script>" not in svg
    assert "<b>" not in svg


def test_histogram_marks_the_rails() -> None:
    root = ET.fromstring(str(histogram([4, 0, 0, 0, 0, 0, 0, 0, 0, 2], "values")))
    bars = root.findall(f"{SVG}rect")
    assert [bar.get("class") for bar in bars] == ["bar1", *["bar2"] * 8, "bar1"]
    assert float(bars[0].get("height", "0")) == pytest.approx(2 * float(bars[-1].get("height", "0")))


def test_decay_curve_crosses_half_at_the_half_life() -> None:
    root = ET.fromstring(str(decay_curve(0.5 ** (1 / 32))))
    curve = next(path for path in root.findall(f"{SVG}path") if path.get("class") == "curve")
    points = [tuple(map(float, pair.split())) for pair in curve.get("d", "")[1:].split("L")]
    height = points[-1][1] / (1 - 0.5**4)
    assert points[32][1] == pytest.approx(height / 2, abs=0.1)


@given(st.lists(st.floats(0, 1), max_size=40))
def test_attention_levels(row: list[float]) -> None:
    levels = attention_levels(row)
    assert all(0 <= shade <= 4 for shade in levels)
    if row and max(row) > 0:
        assert levels[row.index(max(row))] == max(levels)
    ordered = [shade for _, shade in sorted(zip(row, levels, strict=True))]
    assert ordered == sorted(ordered)


def test_half_lives_are_all_counted() -> None:
    figure = half_life_figure([0.0, 0.5, 34.0, float("inf")], [1e9, 2.0], "t")
    assert [sum(trace["y"]) for trace in figure["data"]] == [4, 2]
