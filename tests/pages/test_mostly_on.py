"""Operands that are ON at most tokens have names like any other; pages say beside them that they detect nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from page_samples import SLUG, Site, parsed

from app.pages.reading_view import with_shares
from legible_core.legibility import Legibility
from legible_core.naming.columns import columns
from legible_core.naming.names import Names
from legible_core.naming.records import mostly_on
from legible_core.reading import Contributor
from legible_core.units import Unit, parse

SHIPPED = Path(__file__).resolve().parents[2] / "models" / "novel-legible-12m"


@pytest.mark.parametrize(
    ("on", "said"),
    [(0.5, None), (0.617, "mostly ON, 62 %"), (0.931, "nearly always ON, 93 %"), (0.9999, "nearly always ON, 99 %")],
)
def test_what_is_said_of_a_share(on: float, said: str | None) -> None:
    assert mostly_on(on) == said
    assert mostly_on(on, constant=True) is None
    assert mostly_on(None) is None


def test_a_shipped_operand_that_is_nearly_always_on() -> None:
    names = Names.load(SHIPPED)
    assert names is not None
    first = names.operand(parse(names.component(Unit(2, 194)).operands[0]))
    assert (first.mostly_on, first.agreement) == ("nearly always ON, 93 %", pytest.approx(0.69, abs=0.01))
    assert first.to_json()["mostly_on"] == first.mostly_on
    assert first.detect, "its list stays"


def test_pages_say_it_beside_the_name(site: Site) -> None:
    names = Names.load(site.checkpoint.path)
    assert names is not None
    of = columns(names, 0)
    chosen = next(
        (place, side, operand)
        for place in range(of.components.first_unit, len(of.components.ids))
        for side, operand in enumerate((int(of.components.a[place]), int(of.components.b[place])))
        if operand >= 0 and of.operands.on[operand] > 0.5 and of.operands.cls[operand] != Legibility.CONSTANT
    )
    unit = of.components.ids[chosen[0]]
    said = mostly_on(float(of.operands.on[chosen[2]]))
    assert said is not None
    page = "".join(parsed(site.client.get(f"/models/{SLUG}/units/{unit}").text).text)
    assert f"({said})" in page
    operands = site.client.get(f"/models/{SLUG}/units/{unit}.json").json()["operands"]
    assert operands[chosen[1]]["mostly_on"] == said
    assert f"({said})" in site.client.get(f"/models/{SLUG}/layers/0").text

    address = site.read("it was the best of times")
    html = site.client.get(address).text
    path, _, query = address.partition("?")
    reading = site.client.get(f"{path}.json?{query}").json()
    shares = {o["id"]: o["on"] for c in reading["top"] for o in c["operands"] if o["on"] is not None}
    assert shares
    assert all(np.isclose(names.operand(parse(id), 0).on, on) for id, on in shares.items())
    expected = {names.operand(parse(id), 0).mostly_on for id in shares} - {None}
    assert expected, "the sample has operands that are mostly ON"
    assert all(f"({each})" in html for each in expected)

    # A reading that was stored without the shares gets them from the names that lie there now.
    for found in map(Contributor.model_validate, reading["top"]):
        bare = found.model_copy(update={"operands": tuple(o.model_copy(update={"on": None}) for o in found.operands)})
        assert with_shares(bare, None) is bare
        assert with_shares(bare, names) == found
