"""A unit's history: measured from snapshots by the command, stored beside the weights, shown on the unit's page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from page_samples import Site, make_checkpoint, open_site, parsed, sample_text
from safetensors.numpy import load_file, save_file

from app.commands.history import history
from app.history_figures import HEIGHT, TOP
from app.pages.unit_history import _above, history_rows
from legible_core.checkpoint import load, save
from legible_core.errors import Corrupt, LegibleError
from legible_core.folder import Card
from legible_core.model import Transformer
from legible_core.naming.promote import promotion
from legible_core.registry import Checkpoint, open_checkpoint
from legible_core.training.unit_history import FILE, UnitHistory
from legible_core.units import Unit

INTERSECTION, EXISTENTIAL, PLAIN = Unit(1, 2), Unit(0, 18), Unit(1, 40)


def keep(root: Path, model: Transformer, of: Checkpoint, tokens: int, **card: str) -> Checkpoint:
    fields = Card({"tokens": str(tokens), **card})
    return save(root / f"{tokens:012d}", model, of.tokenizer_path, fields, dtype="float32")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint of 300 tokens whose history says what it was at 100 (all random) and at 200 (one column turned)."""
    root = tmp_path_factory.mktemp("history")
    first = make_checkpoint(root / "other", scan=False, seed=1)
    last = make_checkpoint(root / "last", scan=False)
    final = keep(root, load(last), last, 300, decay_tokens="60")
    inside = root / "run" / "snapshots"
    inside.mkdir(parents=True)
    (root / "run" / "recipe.json").write_text("{}")
    keep(inside, load(first), last, 100)
    turned = load(last)
    with torch.no_grad():
        turned.layers[1].feed_forward.down[:, INTERSECTION.unit] *= -2.0
        turned.layers[1].feed_forward.pair_b[INTERSECTION.unit] *= 3.0
    keep(inside, turned, last, 200, decay_tokens="0")
    corpus = root / "corpus.txt"
    corpus.write_text(sample_text(1, 400), encoding="utf-8")
    history(str(final.path), [root / "run"], corpus=corpus, tokens=256)
    return open_checkpoint(final.path)


@pytest.fixture(scope="module")
def site(ended: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = open_site(tmp_path_factory.mktemp("data"), ended)
    yield made
    made.services.close()


def stored(ended: Checkpoint) -> UnitHistory:
    found = UnitHistory.load(ended.path, ended.hash, ended.config)
    assert found is not None
    return found


def test_each_snapshot_is_compared_with_the_end(ended: Checkpoint) -> None:
    found = stored(ended)
    assert [snapshot.tokens for snapshot in found.snapshots] == [100, 200, 300]
    assert [snapshot.decay_tokens for snapshot in found.snapshots] == [None, 0, 60]
    assert found.snapshots[-1].hash == ended.hash
    assert found.measured == ("corpus.txt", 256)
    assert (ended.path / FILE).stat().st_mode == (ended.path / "config.json").stat().st_mode
    random, turned, end = found.of(INTERSECTION)
    assert (end.write_cosine, end.read_cosine) == pytest.approx((1.0, 1.0), abs=1e-3)
    assert turned.write_cosine == pytest.approx(-1.0, abs=1e-3)
    assert turned.write_norm == pytest.approx(2 * end.write_norm, rel=1e-2)
    assert [operand.id for operand in turned.operands] == ["L1.p2.A", "L1.p2.B"]
    assert [operand.cosine for operand in turned.operands] == pytest.approx([1.0, 1.0], abs=1e-3)
    # A row three times as long pushes its operand to the rails; the other one of the pair is untouched.
    assert turned.operands[1].crisp > end.operands[1].crisp
    assert turned.operands[0] == end.operands[0]
    assert abs(random.write_cosine) < 0.8
    assert random.snapshot.loss != end.snapshot.loss


@pytest.mark.parametrize(
    ("share", "end"), [(0.0, 0.01), (0.004, 0.01), (0.0384, 0.05), (0.096, 0.11), (0.2, 0.21), (0.97, 1.0), (1.0, 1.0)]
)
def test_the_axis_of_a_share_ends_at_a_whole_per_cent_above_it(share: float, end: float) -> None:
    assert _above(share) == end


def test_the_label_at_the_top_of_the_axis_is_exact(site: Site, ended: Checkpoint) -> None:
    html = site.client.get(f"/models/{ended.slug}/units/{INTERSECTION}").text
    figure = re.findall(r'aria-label="ON over the training".*?</svg>', html, re.DOTALL)[0]
    end = int(re.findall(r'y="10.0" text-anchor="end">(\d+) %<', figure)[0]) / 100
    most = max(operand.on for moment in stored(ended).of(INTERSECTION) for operand in moment.operands)
    lines = re.findall(r'class="curve[\w ]*" d="M([^"]+)"', figure)
    highest = min(float(point.split()[1]) for line in lines for point in line.split("L"))
    assert highest == pytest.approx(TOP + (1 - most / end) * HEIGHT, abs=0.06)
    assert highest > TOP


def test_the_figures_are_those_of_a_plain_pass(ended: Checkpoint) -> None:
    model = load(ended)
    end = stored(ended).of(EXISTENTIAL)[-1]
    weights = promotion(model, model.layers[0].feed_forward.down[:, [EXISTENTIAL.unit]])[0]
    assert list(end.promotes) == weights.topk(5).indices.tolist()
    assert end.half_life == pytest.approx(np.log(0.5) / np.log(float(model.decay(0)[0])), rel=1e-4)
    assert [operand.id for operand in end.operands] == ["L0.u18.m"]
    assert end.on is not None
    plain = stored(ended).of(PLAIN)[0]
    assert (plain.operands, plain.on, plain.half_life) == ((), None, None)
    assert -1.0 <= plain.read_cosine < 1.0


@pytest.mark.parametrize("unit", [INTERSECTION, EXISTENTIAL, PLAIN])
def test_the_page_and_its_json_say_it(site: Site, ended: Checkpoint, unit: Unit) -> None:
    address = f"/models/{site.checkpoint.slug}/units/{unit}"
    page = site.client.get(address)
    assert page.status_code == 200, page.text
    text = " ".join("".join(parsed(page.text).text).split())
    assert "Over its training" in text
    assert "the same 256 tokens of corpus.txt" in text
    assert page.text.count('class="curve') >= 2
    # A path that turns would be filled.
    assert not re.search(r'class="line" d="[^"]*(V[^M"]*H|H[^M"]*V)', page.text)
    assert site.client.get(f"{address}.json").json()["history"] == [m.to_json() for m in stored(ended).of(unit)]
    rows = history_rows(site.checkpoint, unit)
    assert [row["tokens"] for row in rows] == [100, 200, 300]
    assert all(row.keys() == rows[0].keys() and row["text"] == "corpus.txt" for row in rows)
    assert ("A.on" in rows[0], "m.crisp" in rows[0]) == (unit == INTERSECTION, unit == EXISTENTIAL)


def test_each_point_says_whether_its_weights_are_decayed(site: Site) -> None:
    address = f"/models/{site.checkpoint.slug}/units/{PLAIN}"
    page = site.client.get(address).text
    section = page[page.index("Over its training") :]
    cells = re.findall(r'<td class="nowrap">([^<]*)</td>', section)
    assert cells == ["not recorded", "constant", "decayed"]
    # Two lines, each with a point of either sort and none where nothing is known.
    assert (section.count('class="point"'), section.count('class="point open"')) == (2, 2)
    assert "200 tokens, weights at a constant rate: its write column" in section
    assert (
        "● decayed weights, ○ weights at a constant rate, without a mark: which of the two is not recorded." in section
    )
    assert "the decay is part of what changed" in section
    assert "a beginning and an end" not in section
    assert [row["decay_tokens"] for row in history_rows(site.checkpoint, PLAIN)] == [None, 0, 60]


def test_a_file_of_before_and_two_moments(ended: Checkpoint, tmp_path: Path) -> None:
    """A file that does not say it stays readable: the checkpoint's own card tells of the last point."""
    from safetensors import safe_open

    shutil.copytree(ended.path, tmp_path / "before")
    with safe_open(ended.path / FILE, "np") as file:
        meta = file.metadata()
    kept = [{k: v for k, v in each.items() if k != "decay_tokens"} for each in json.loads(meta["snapshots"])][1:]
    arrays = {name: array[1:] for name, array in load_file(ended.path / FILE).items()}
    save_file(arrays, tmp_path / "before" / FILE, metadata={**meta, "snapshots": json.dumps(kept)})
    made = open_site(tmp_path / "data", open_checkpoint(tmp_path / "before"))
    page = made.client.get(f"/models/before/units/{PLAIN}").text
    rows = history_rows(made.checkpoint, PLAIN)
    made.services.close()
    assert [row["decay_tokens"] for row in rows] == [None, 60]
    assert "This is a beginning and an end, not a course" in page
    assert "○" not in page
    odd: list[tuple[str, object]] = [
        *(("decay_tokens", wrong) for wrong in ("60", -1, 1.5, 10**400)),
        *(("tokens", wrong) for wrong in ("60", -1, 10**400)),
        *(("loss", wrong) for wrong in ("2", 1e999, 1e308, 10**400)),
        *(("hash", wrong) for wrong in (7, "\ud800", "x" * 5000)),
    ]
    for name, wrong in odd:
        spoilt = json.dumps([kept[0], {**kept[1], name: wrong}])
        save_file(arrays, tmp_path / FILE, metadata={**meta, "snapshots": spoilt})
        with pytest.raises(Corrupt, match="damaged"):
            UnitHistory.load(tmp_path, ended.hash, ended.config)
    for wrong in ({"text": "x" * 5000}, {"tokens": "9" * 400}, {"tokens": "-1"}):
        save_file(arrays, tmp_path / FILE, metadata={**meta, "snapshots": json.dumps(kept), **wrong})
        with pytest.raises(Corrupt, match="damaged"):
            UnitHistory.load(tmp_path, ended.hash, ended.config)


def test_what_is_damaged_or_of_other_weights_is_not_shown(ended: Checkpoint, tmp_path: Path) -> None:
    assert UnitHistory.load(ended.path, "0" * 64, ended.config) is None
    whole = (ended.path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-100])
    with pytest.raises(Corrupt, match="damaged or truncated"):
        UnitHistory.load(tmp_path, ended.hash, ended.config)
    from safetensors import safe_open

    with safe_open(ended.path / FILE, "np") as file:
        meta = file.metadata()
    for name, value, said in (("promotes", 10**6, "names tokens"), ("unit_on", np.nan, "no number")):
        arrays = load_file(ended.path / FILE)
        arrays[name].flat[0] = value
        save_file(arrays, tmp_path / FILE, metadata=meta)
        with pytest.raises(Corrupt, match=said):
            UnitHistory.load(tmp_path, ended.hash, ended.config)
    shutil.copytree(ended.path, tmp_path / "broken")
    (tmp_path / "broken" / FILE).write_bytes(b"")
    made = open_site(tmp_path / "data", open_checkpoint(tmp_path / "broken"))
    page = made.client.get(f"/models/broken/units/{PLAIN}")
    made.services.close()
    assert page.status_code == 200
    assert "The stored history cannot be used" in page.text


def test_what_is_no_snapshot_is_refused_in_one_sentence(ended: Checkpoint, tmp_path: Path) -> None:
    model = load(ended)

    def refused(*places: Path) -> str:
        with pytest.raises(LegibleError) as caught:
            history(str(ended.path), list(places))
        return caught.value.message

    assert "no folder" in refused(tmp_path / "nothing")
    assert "no snapshot in" in refused(tmp_path)
    assert "at least one" in refused(ended.path)
    later = keep(tmp_path / "a", model_of(model, 0), ended, 400)
    assert "later than" in refused(later.path)
    first, second = (keep(tmp_path / name, model_of(model, number), ended, 50) for number, name in ((1, "b"), (2, "c")))
    assert "leave one out" in refused(first.path, second.path)
    untold = save(tmp_path / "untold", model_of(model, 3), ended.tokenizer_path)
    assert "does not say its tokens" in refused(untold.path)
    wide = make_checkpoint(tmp_path / "wide", scan=False, seed=3)
    other = type(model)(ended.config.from_json({**ended.config.to_json(), "context": 32}))
    assert "another architecture" in refused(keep(tmp_path / "d", other, wide, 20).path)


def model_of(model: Transformer, number: int) -> Transformer:
    """The same with one weight of its own, so that its hash is its own."""
    with torch.no_grad():
        model.position_embedding[0, 0] = float(number)
    return model
