"""The style sheet: dark is the same whoever asked for it, and text on every ground has contrast enough."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

CSS = (Path(__file__).resolve().parents[2] / "static" / "legible.css").read_text(encoding="utf-8")
COLOUR = re.compile(r"(--[a-z0-9-]+): (#[0-9a-f]{3,6});")


def colours(opening: str) -> dict[str, str]:
    """The colours that a rule sets."""
    start = CSS.index(opening) + len(opening)
    return dict(COLOUR.findall(CSS[start : CSS.index("}", start)]))


LIGHT = colours("\n:root {")
DARK = colours(':root[data-theme="dark"] {')


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2.2): 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_dark_is_the_same_by_the_system_and_by_choice() -> None:
    assert colours(':root:not([data-theme="light"]) {') == DARK
    assert set(DARK) == set(LIGHT)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast_on_every_ground(theme: dict[str, str]) -> None:
    for ground in ("--paper", "--raised"):
        for text in ("--ink", "--soft", "--accent", "--up", "--down"):
            assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
    for shade in ("--a1", "--a2", "--a3"):
        assert contrast(theme["--ink"], theme[shade]) >= 4.5, shade
    assert contrast(theme["--on-a4"], theme["--a4"]) >= 4.5
    for step in ("p1", "p2", "p3", "n1", "n2", "n3"):
        assert contrast(theme["--ink"], theme[f"--{step}"]) >= 4.5, step
    for step in ("p4", "n4"):
        assert contrast(theme[f"--on-{step}"], theme[f"--{step}"]) >= 4.5, step


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_shades_keep_their_order_in_greyscale(theme: dict[str, str]) -> None:
    """More of something is further from the paper, also without colour; a push up is told from one as strong down."""
    paper = theme["--paper"]
    for family in ("a", "p", "n"):
        steps = [contrast(theme[f"--{family}{i}"], paper) for i in range(1, 5)]
        assert steps == sorted(steps), (family, steps)
        assert all(b / a > 1.1 for a, b in pairwise(steps)), (family, steps)
    assert contrast(theme["--p4"], paper) > 1.3 * contrast(theme["--n4"], paper)
