"""The numbers behind the figures of a unit's page: those of its names, as CSV and as JSON."""

from __future__ import annotations

import csv
import io

import pytest
from page_samples import SLUG, Site, links, parsed

from app.pages.parts import file_name
from legible_core.naming.names import Names
from legible_core.units import Unit, parse

PAIR, QUANTIFIER = "L0.u3", "L0.u18"


def test_every_figure_of_a_unit_leads_to_its_numbers(shared: Site) -> None:
    names = Names.load(shared.checkpoint.path)
    assert names is not None
    found = {}
    for unit in (PAIR, QUANTIFIER):
        page = shared.client.get(f"/models/{SLUG}/units/{unit}").text
        addresses = sorted(link for link in links(page) if "/figures/" in link)
        assert len(addresses) % 2 == 0
        for table, twin in zip(addresses[::2], addresses[1::2], strict=True):
            data = shared.client.get(twin).json()
            assert data["checkpoint"] == shared.checkpoint.hash
            assert data["quality"]["perplexity"] == names.quality["perplexity"]
            answer = shared.client.get(table)
            assert answer.headers["content-type"].startswith("text/csv")
            assert f'filename="{SLUG}-{unit}-{data["figure"]}.csv"' in answer.headers["content-disposition"]
            rows = list(csv.DictReader(io.StringIO(answer.text)))
            assert [*rows[0]] == [*data["rows"][0], "perplexity", "checkpoint"]
            assert len(rows) == len(data["rows"])
            for row, of in zip(rows, data["rows"], strict=True):
                for name, value in of.items():
                    assert isinstance(value, str) or float(row[name]) == pytest.approx(value)
            found[unit, data["figure"]] = data["rows"]
        drawn = {attrs["data-export"] for tag, attrs in parsed(page).tags if attrs.get("data-export")}
        assert drawn == {f"{SLUG}-units-{unit}-{name}" for name in _drawn(unit)}
    operand = names.operand(parse("L0.p3.B"))
    assert [row["share"] for row in found[PAIR, "histogram-B"]] == pytest.approx(operand.histogram)
    assert found[PAIR, "histogram-B"][-1]["to"] == 1.0
    promotes = names.component(Unit(0, 3)).promotes
    assert [row["token"] for row in found[PAIR, "promotes"]] == [token.display for token in promotes]
    decay = names.component(Unit(0, 18)).decay
    assert decay is not None
    assert found[QUANTIFIER, "decay"][2] == {"tokens": 2, "left": pytest.approx(decay**2)}
    assert found[QUANTIFIER, "reach"][0]["at_most"] > 0
    assert not any(figure in ("decay", "reach") for unit, figure in found if unit == PAIR)


def _drawn(unit: str) -> set[str]:
    return {"histogram-A", "histogram-B"} if unit == PAIR else {"histogram-m", "decay"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{PAIR}/figures/decay.json", "L0.u3 has no figure 'decay'; it has histogram-A, histogram-B, promotes."),
        ("L0.h0/figures/decay.json", "L0.h0 is no unit; a unit is written like L0.u0."),
        ("L9.u0/figures/promotes.csv", "There is no layer 9"),
    ],
)
def test_what_is_not_there_is_named(shared: Site, path: str, said: str) -> None:
    answer = shared.client.get(f"/models/{SLUG}/units/{path}", headers={"accept": "application/json"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith(said)


def test_a_saved_picture_says_what_it_is() -> None:
    digest = "ab" * 32
    assert file_name(f"/legible/models/m/readings/{digest}/account?position=3", "mountain") == (
        "legible-m-abababababab-account-mountain"
    )
