"""How figures are written, in one place, so that cards, pages and the terminal show the same digits; imports no torch.

loss_text(4.4357513)          "4.4358"     four decimals: nats, and their standard error
perplexity_text(84.41552)     "84.42"      two decimals
short_count(6890496)          "6.9M"
share_text(0.8449751)         "0.8450"     four decimals, as on a card; pages show it as 84.5 %
same("84.42", 84.43, "84.43")  True         what was written agrees with what is measured now, to the last digit
"""

from __future__ import annotations

import math

# A perplexity of float32 sums is as certain as the mean log-likelihood that it is the exponential of: to 1e-5 nats.
PERPLEXITY_ROUNDING = 1e-5
# What `legible card` writes into a card's text stands between these.
BEGIN, END = "<!-- figures: legible card writes these -->", "<!-- end of figures -->"


def loss_text(value: float) -> str:
    """A loss in nats per token, or its standard error."""
    return f"{value:.4f}"


def perplexity_text(value: float) -> str:
    """A perplexity, exp of the loss."""
    return f"{value:.2f}" if value < 1e6 else f"{value:.3g}"


def share_text(value: float) -> str:
    """A share from 0 to 1 as it stands on a card."""
    return f"{value:.4f}"


def percent_text(value: float | None) -> str:
    """A share from 0 to 1 for people, with one decimal; an en dash where it is undefined."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def short_count(number: int) -> str:
    """1234567 as 1.2M: parameters, tokens."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def same(written: str, value: float, written_now: str, relative: float = 0.0) -> bool:
    """Whether a figure as it was written agrees with the one measured now: to within one of the last written digit.

    Another machine or library may add in another order and round the other way. A whole number is a count, which adds
    nothing up, and must be the same. relative: a share of the value that it may be off as well, for a large figure
    whose digits are more than the sums behind it hold; with it a whole number is a rounded one.
    """
    if written == written_now:
        return True
    try:
        was = float(written)
    except ValueError:
        return False
    if not math.isfinite(value) or ("." not in written_now and not relative):
        return was == value
    decimals = len(written_now.partition(".")[2])
    return abs(was - value) <= max(1.5 * 10.0**-decimals, relative * abs(value))


def without_tables(text: str) -> str:
    """A card's text without the tables that `legible card` wrote, for a page that shows them itself."""
    before, begin, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2] if begin else text
