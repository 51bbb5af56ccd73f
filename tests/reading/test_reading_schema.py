"""Request, digest and schema 1: stable names, complete documents, and a page of documentation that stays true."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel
from reading_samples import HASH, request, sample_config

from legible_core import reading as schema
from legible_core.errors import Corrupt, LegibleError, TooLarge
from legible_core.interventions import Edit
from legible_core.reading import Reading, ReadingRequest, digest
from legible_core.units import Head, Unit

GOLDEN = Path(__file__).parent / "golden"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-schema.md"


# ---- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_never_changes():
    """Permalinks depend on these: a change of either line breaks every address ever shared."""
    plain = ReadingRequest(HASH, (1, 2, 3))
    assert plain.digest == "f26ae1e0fddf9817faa0776ba2b1852aa6c48aa2943d31d6afb43c75b30757a0"
    edits = (Edit(Unit(1, 2), "set", 0.1), Edit(Head(0, 1), "scale", -0.0, (2, 1, 1)))
    assert (
        replace(plain, edits=edits, dtype="bfloat16").digest
        == "6ff399e50f37a494d027dc97a22fa7e518fe0bca6b7cbb7fca82bfcdf0435e26"
    )


def test_the_digest_names_the_forward_and_nothing_else():
    plain = ReadingRequest(HASH, (1, 2, 3))
    same = ReadingRequest(HASH, (1, 2, 3), position=1, target=4, contrast=5)
    assert same.digest == plain.digest
    others = [
        ReadingRequest("f" * 64, (1, 2, 3)),
        ReadingRequest(HASH, (1, 2)),
        ReadingRequest(HASH, (12, 3)),
        replace(plain, dtype="bfloat16"),
        replace(plain, edits=(Edit(Unit(0, 1), "set", 0.1),)),
        replace(plain, edits=(Edit(Unit(0, 1), "set", np.nextafter(0.1, 1)),)),
        replace(plain, edits=(Edit(Unit(0, 1), "scale", 0.1),)),
        replace(plain, edits=(Edit(Unit(0, 1), "set", 0.1, (0,)),)),
    ]
    assert len({plain.digest, *(other.digest for other in others)}) == len(others) + 1


def test_edits_count_as_float64_whatever_their_spelling():
    spelled = [
        Edit.from_json({"component": "L0.u1", "operation": "set", "value": v}) for v in (0.5, "0x1.0p-1", "0x.8p0")
    ]
    assert len({digest(HASH, (1,), (edit,)) for edit in spelled}) == 1
    once, repeated = Edit(Unit(0, 1), "set", 0.5, (1, 3)), Edit(Unit(0, 1), "set", 0.5, (3, 1, 3))
    assert digest(HASH, (1,), (once,)) == digest(HASH, (1,), (repeated,))
    first, second = Edit(Unit(0, 1), "set", 0.5), Edit(Unit(0, 1), "scale", 2.0)
    assert digest(HASH, (1,), (first, second)) != digest(HASH, (1,), (second, first))


def test_a_request_survives_json():
    edits = (Edit(Unit(1, 2), "set", 0.1), Edit(Head(0, 1), "scale", -1.5, (0, 2)))
    wish = ReadingRequest(HASH, (1, 2, 3), position=0, target=4, contrast=5, dtype="bfloat16", edits=edits)
    assert ReadingRequest.from_json(json.loads(json.dumps(wish.to_json()))) == wish


# ---- what cannot be asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ids": ()}, ["empty"]),
        ({"ids": (0,) * 25}, ["25 tokens", "24"]),
        ({"ids": (3, 61)}, ["61", "60"]),
        ({"ids": (3, -1)}, ["-1"]),
        ({"position": 3}, ["Position 3", "0 to 2"]),
        ({"position": -1}, ["Position -1", "0 to 2"]),
        ({"target": 61}, ["61", "60"]),
        ({"contrast": 99}, ["99", "60"]),
        ({"target": 5, "contrast": 5}, ["target itself"]),
    ],
)
def test_unusable_requests_say_what_is_allowed(fields, words):
    wish = ReadingRequest(**{"checkpoint": HASH, "ids": (1, 2, 3), **fields})
    with pytest.raises(LegibleError) as failure:
        wish.check(sample_config())
    for word in words:
        assert word in failure.value.message
    assert failure.value.message.count(". ") == 0


def test_too_many_tokens_is_the_413_error():
    with pytest.raises(TooLarge):
        ReadingRequest(HASH, (0,) * 25).check(sample_config())


@pytest.mark.parametrize(
    "fields",
    [{"relative_to": "contrast"}, {"relative_to": "mean", "contrast": 3}, {"relative_to": "x"}, {"dtype": "f16"}],
)
def test_contradictions_are_refused_at_once(fields):
    with pytest.raises(LegibleError):
        ReadingRequest(HASH, (1, 2), **fields)


# ---- a stored reading ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reading(engine):
    return engine.read(request(engine, position=7, target=5, contrast=9), top=12)


def test_summary_and_array_give_the_reading_back(reading):
    packed = reading.pack()
    again = Reading.unpack(reading.summary_json(), packed)
    assert again.summary == reading.summary
    np.testing.assert_array_equal(again.heads, reading.heads)
    np.testing.assert_array_equal(again.units, reading.units)
    assert again.pack() == packed


def test_the_document_is_enough_to_redraw(reading):
    data = json.loads(json.dumps(reading.to_json(), allow_nan=False))
    again = Reading.from_json(data)
    assert again.summary == reading.summary
    np.testing.assert_array_equal(again.units, reading.units)
    np.testing.assert_array_equal(again.heads, reading.heads)
    total = sum(term["value"] for term in data["floor"])
    total += sum(sum(layer["heads"]) for layer in data["layers"]) + sum(map(sum, data["units"]))
    assert total == pytest.approx(data["value"], abs=1e-4)
    assert data["sum"] + data["residual"] == pytest.approx(data["value"], abs=1e-12)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda array: array[:-4],
        lambda array: b"",
        lambda array: b"\x00" * len(array),
        lambda array: zlib.compress(b"\x00" * 40),
        lambda array: zlib.compress(b"\x00" * 10_000_000),
    ],
    ids=["truncated", "empty", "noise", "short", "bomb"],
)
def test_a_spoilt_array_is_refused(reading, spoil):
    with pytest.raises(Corrupt) as failure:
        Reading.unpack(reading.summary_json(), spoil(reading.pack()))
    assert failure.value.code == "corrupt_reading"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 2}', "null", "3"])
def test_a_spoilt_summary_is_refused(reading, text):
    with pytest.raises(Corrupt):
        Reading.unpack(text, reading.pack())


def test_a_newer_schema_says_so(reading):
    data = json.loads(reading.summary_json())
    with pytest.raises(Corrupt, match=r"schema 2.*reads schema 1") as failure:
        Reading.unpack(json.dumps({**data, "schema": 2}), reading.pack())
    assert failure.value.code == "unknown_schema"


def test_fields_of_a_newer_writer_are_ignored(reading):
    data = json.loads(reading.summary_json())
    data["later"] = 1
    data["top"][0]["later"] = {"x": 1}
    assert Reading.unpack(json.dumps(data), reading.pack()).summary == reading.summary


# ---- the golden fixture ----------------------------------------------------------------------------------------------


def test_schema_1_opens_for_ever():
    """Written by the first release; never regenerate it. A field may be added beside these, none renamed or removed."""
    stored = (GOLDEN / "reading-1.json").read_text(encoding="utf-8")
    golden = Reading.unpack(stored, (GOLDEN / "reading-1.bin").read_bytes())
    summary = json.loads(stored)
    written = json.loads(golden.summary_json())
    assert _extends(written, summary)
    assert golden.summary.target.display == "5"
    total = float(golden.heads.sum(dtype=np.float64) + golden.units.sum(dtype=np.float64))
    total += sum(term.value for term in golden.summary.floor)
    assert total == pytest.approx(golden.summary.value, abs=golden.summary.tolerance)


def test_today_still_computes_the_golden_reading(engine):
    golden = Reading.unpack(
        (GOLDEN / "reading-1.json").read_text(encoding="utf-8"), (GOLDEN / "reading-1.bin").read_bytes()
    )
    today = engine.read(request(engine, position=7, target=5, contrast=9), top=12)
    assert today.summary.digest == golden.summary.digest
    np.testing.assert_allclose(today.units, golden.units, rtol=0, atol=1e-5)
    np.testing.assert_allclose(today.heads, golden.heads, rtol=0, atol=1e-5)
    assert [row.id for row in today.summary.top] == [row.id for row in golden.summary.top]


def _extends(new: object, old: object) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _extends(new[key], value) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_extends, new, old))
    return new == old


# ---- the documentation -----------------------------------------------------------------------------------------------


def documented() -> dict[str, list[str]]:
    """Section title -> the field names in its table, as the page has them."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            title = line.strip("# ").strip()
        elif row := re.match(r"\| `([a-z_]+)` \|", line):
            found.setdefault(title, []).append(row[1])
    return found


MODELS: dict[str, type[BaseModel]] = {
    "The document": schema.Summary,
    "A token": schema.Token,
    "A prediction": schema.Prediction,
    "The target and the contrast": schema.TargetToken,
    "A term of the floor": schema.Term,
    "Groups": schema.Groups,
    "Shares": schema.Shares,
    "A layer": schema.LayerTotals,
    "A contributor": schema.Contributor,
    "An operand": schema.OperandValue,
    "A label": schema.LabelInfo,
    "A detected token": schema.DetectToken,
    "A promoted token": schema.Promoted,
}


@pytest.mark.parametrize("title", MODELS)
def test_the_page_lists_exactly_the_fields(title):
    model = MODELS[title]
    fields = [field.alias or name for name, field in model.model_fields.items()]
    inherited = {
        field.alias or name
        for base in model.__mro__[1:]
        if isinstance(base, type) and issubclass(base, BaseModel)
        for name, field in base.model_fields.items()
    }
    own = [field for field in fields if field not in inherited]
    assert documented()[title] == own


def test_the_page_names_the_version():
    assert f"Schema version: **{schema.SCHEMA}**" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("sort", ["head", "unit", "channel"])
def test_the_page_lists_the_fields_of_the_closeups(engine, sort):
    wish = request(engine, position=7, target=5)
    component = {"head": "L0.h1", "unit": "L1.u20", "channel": "L0.h1.c3"}[sort]
    detail = engine.component_detail(wish, component)
    assert sorted(documented()[f"A {sort} close up"]) == sorted(detail)
