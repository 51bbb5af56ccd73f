"""The names store: what is written is what is read, formulas, ids, and files that are not what they claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from naming_samples import sample_config, sample_model
from safetensors.numpy import load_file, save_file

from legible_core.errors import Corrupt, LegibleError, NotFound, Unavailable
from legible_core.legibility import Legibility
from legible_core.model.transformer import Transformer
from legible_core.naming.assemble import nameability, write_names
from legible_core.naming.detect import agreement, detect
from legible_core.naming.names import Label, Names
from legible_core.naming.promote import promotion
from legible_core.naming.records import tokens_text
from legible_core.naming.scan import Scan
from legible_core.tokens import Tokenizer
from legible_core.units import Activation, Channel, Head, HeadOperand, Operand, QuantifierOperand, Unit, parse


@pytest.fixture(scope="module")
def scan(model: Transformer, ids: np.ndarray) -> Scan:
    scan = Scan(model, ids, "sample.txt", checkpoint_hash="h" * 64, end_of_document=0)
    for _ in scan.run():
        pass
    return scan


@pytest.fixture(scope="module")
def folder(scan: Scan, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    write_names(folder, scan, tokenizer)
    return folder


@pytest.fixture(scope="module")
def names(folder: Path) -> Names:
    names = Names.load(folder)
    assert names is not None
    return names


def test_operands_say_what_the_scan_measured(scan: Scan, names: Names, tokenizer: Tokenizer) -> None:
    for layer in range(2):
        state = scan.layers[layer]
        lists = detect(state.counts[0])
        agreed = agreement(lists, state.counts[1])
        for index, component in enumerate(scan.model.config.operands(layer)):
            name = names.operand(component, shown=1000)
            part = lists.of(index)
            assert name.id == str(component)
            assert [token.id for token in name.detect] == lists.tokens[part].tolist()
            assert [token.count for token in name.detect] == lists.on[part].tolist()
            assert [token.display for token in name.detect] == [tokenizer.display(t) for t in lists.tokens[part]]
            np.testing.assert_allclose([token.share for token in name.detect], lists.share[part], rtol=1e-6)
            np.testing.assert_allclose([token.lift for token in name.detect], lists.lift[part], rtol=1e-5)
            assert name.length == len(lists.tokens[part])
            assert name.mean == pytest.approx(state.operands.mean[index], rel=1e-6)
            assert name.on == pytest.approx(state.operands.on_share[index], rel=1e-6)
            assert sum(name.histogram) == pytest.approx(1.0, abs=0.02)
            if np.isnan(agreed[index]):
                assert name.agreement is None
            else:
                assert name.agreement == pytest.approx(agreed[index], rel=1e-6)


def test_units_promote_what_their_write_column_says(scan: Scan, names: Names) -> None:
    often = (scan.seen + np.bincount(scan.parts[1], minlength=len(scan.seen))) >= 10
    for layer in range(2):
        columns = scan.model.layers[layer].feed_forward.down.detach()  # type: ignore[union-attr]
        weights = promotion(scan.model, columns).numpy()
        weights[:, ~often] = -np.inf
        for unit in range(scan.model.config.feed_forward.d_ff):
            promoted = names.component(Unit(layer, unit)).promotes
            best = np.sort(weights[unit])[::-1][: len(promoted)]
            np.testing.assert_allclose([token.weight for token in promoted], best, rtol=2e-3)
            np.testing.assert_allclose([weights[unit, token.id] for token in promoted], best, rtol=1e-5)


def test_every_component_and_no_other_has_a_name(scan: Scan, names: Names) -> None:
    config = scan.model.config
    for layer in range(2):
        assert [name.id for name in names.units(layer)] == [f"L{layer}.u{unit}" for unit in range(32)]
        for head in range(4):
            expected = config.d_head if head < config.attention.n_special[layer] else 0
            assert len(list(names.channels(layer, head))) == expected
    for text in ("L2.u0", "L0.u32", "L0.h2.c0", "L0.h0.c8", "L1.h1.c0", "L0.h0"):
        with pytest.raises(NotFound, match="no name"):
            names.component(parse(text))
    for text in ("L0.p12.A", "L0.u0.m", "L0.u16.m", "L0.h2.p0.A", "L0.h0.p4.B", "L0.h0.c0", "L5.p0.A"):
        with pytest.raises(NotFound, match="no operand"):
            names.operand(parse(text))
    with pytest.raises(NotFound):
        names.operand(Head(0, 0))


def test_formulas_read_operation_over_operands(names: Names) -> None:
    intersection, difference = names.component(Unit(0, 3)), names.component(Unit(0, 9))
    assert intersection.kind == "intersection"
    assert difference.kind == "difference"
    assert intersection.operands == ("L0.p3.A", "L0.p3.B") == difference.operands
    label_a, label_b = intersection.operand_labels
    texts = ["?" if label is None else label.text for label in (label_a, label_b)]
    after = "?" if intersection.label is None else intersection.label.text
    assert intersection.formula == f"{texts[0]} ∩ {texts[1]} → {after}"
    assert difference.formula.startswith(f"{texts[0]} ∖ {texts[1]} → ")
    existential = names.component(Unit(1, 12))
    assert existential.kind == "existential"
    assert existential.operands == ("L1.u12.m",)
    assert existential.decay == pytest.approx(0.98, abs=1e-6)
    assert existential.half_life == pytest.approx(34.3, abs=0.1)
    assert existential.formula.startswith("∃ ")
    assert "(34 tok) → " in existential.formula
    assert names.component(Unit(1, 14)).formula.startswith("% ")
    channel = names.component(Channel(0, 1, 6))
    assert channel.kind == "difference"
    assert channel.operands == ("L0.h1.p2.A", "L0.h1.p2.B")


def test_gelu_units_are_undefined_never_zero(names: Names) -> None:
    name = names.component(Unit(0, 16))
    assert name.kind == "gelu"
    assert (name.cls, name.mean, name.variance, name.crisp, name.on) == (None,) * 5
    assert name.operands == ()
    assert name.promotes
    assert names.legibility["layers"][0]["heads"][2:] == [None, None]
    json.dumps(name.to_json(), allow_nan=False)


def test_a_units_class_follows_its_operands(names: Names) -> None:
    seen = set()
    for layer in range(2):
        for unit in range(16):
            name = names.component(Unit(layer, unit))
            classes = {names.operand(parse(operand)).cls for operand in name.operands}
            assert name.cls == (classes.pop() if len(classes) == 1 else Legibility.FUZZY)
            seen.add(name.cls)
    assert Legibility.SELECTIVE in seen


def test_masks_say_what_the_components_say(scan: Scan, names: Names) -> None:
    for layer in range(2):
        channels, units = names.named(layer)
        expected = [
            name.cls is Legibility.SELECTIVE and name.label is not None and name.label.kind == "class"
            for name in names.units(layer)
        ]
        assert units.tolist() == expected
        assert channels.shape == (scan.model.config.attention.n_special[layer], scan.model.config.d_head)
        for head, row in enumerate(channels):
            for mask, name in zip(row, names.channels(layer, head), strict=True):
                selective = name.cls is Legibility.SELECTIVE
                assert mask == (selective and name.label is not None and name.label.kind == "class")
    total = scan.seen + np.bincount(scan.parts[1], minlength=len(scan.seen))
    np.testing.assert_array_equal(names.often, total >= 10)


def test_quality_travels_with_every_figure(scan: Scan, names: Names) -> None:
    assert names.quality == scan.quality
    assert names.quality["loss"] > 0
    assert names.quality["loss_se"] > 0
    assert names.meta["corpus"]["tokens"] == len(scan.parts[0]) + len(scan.parts[1])
    assert names.meta["checkpoint"] == "h" * 64


def test_a_dead_operand_is_constant_and_says_so(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    import torch

    config = sample_config(tokenizer.vocab_size)
    model = sample_model(config)
    with torch.no_grad():
        # Its read row sees nothing, so it stands at one half on every token.
        model.layers[0].feed_forward.pair_a[0] = 0.0  # type: ignore[union-attr]
    scan = Scan(model, ids, "x", end_of_document=0)
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    name = names.operand(Operand(0, 0, "A"))
    assert name.cls is Legibility.CONSTANT
    assert name.label == Label("constant 0.50", "state")
    assert name.detect == ()
    assert names.component(Unit(0, 0)).formula.startswith("constant 0.50 ∩ ")


def test_all_ordinary_is_undefined_everywhere(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    from dataclasses import replace

    from legible_core.config import FeedForward

    config = replace(sample_config(tokenizer.vocab_size, "linear", (0, 0)), feed_forward=FeedForward(32))
    scan = Scan(sample_model(config), ids[:2000], "x", end_of_document=0)
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    for row in [*names.legibility["layers"], names.legibility["all"]]:
        assert (row["value"], row["head_operands"], row["operands"], row["names"]) == (None,) * 4
    assert names.component(Unit(1, 5)).promotes
    again = Names.load(tmp_path)
    assert again is not None
    assert again.component(Unit(1, 5)) == names.component(Unit(1, 5))


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_both_files_have_the_users_ordinary_mode(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    mode = (tmp_path / "ordinary").stat().st_mode
    assert [(folder / name).stat().st_mode for name in ("names.json", "names.safetensors")] == [mode, mode]


def test_names_of_other_weights_or_none_are_no_names(folder: Path, tmp_path: Path) -> None:
    assert Names.load(tmp_path) is None
    assert Names.load(folder, checkpoint_hash="g" * 64) is None
    assert Names.load(folder, checkpoint_hash="h" * 64) is not None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("operand.mean", lambda a: a[:-1].copy()),
        ("operand.variance", lambda a: a * np.float32("nan")),
        ("promote.tokens", lambda a: np.full_like(a, 60_000)),
        ("detect.offsets", lambda a: a[::-1].copy()),
        ("component.label.class", lambda a: np.full_like(a, 999)),
        ("seen", None),
    ],
)
def test_arrays_that_do_not_fit_are_refused(folder: Path, tmp_path: Path, name: str, change: object) -> None:
    arrays = load_file(folder / "names.safetensors")
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])  # type: ignore[operator]
    save_file(arrays, tmp_path / "names.safetensors")
    (tmp_path / "names.json").write_bytes((folder / "names.json").read_bytes())
    with pytest.raises(Corrupt, match=name.replace(".", r"\.")):
        Names.load(tmp_path)


@pytest.mark.parametrize(
    ("json_text", "arrays"),
    [("{", None), ("[]", None), ('{"schema": 99}', None), (None, b""), (None, b"\x08\0\0\0\0\0\0\0{}garbage")],
)
def test_files_that_are_none_are_refused(
    folder: Path, tmp_path: Path, json_text: str | None, arrays: bytes | None
) -> None:
    text = (folder / "names.json").read_text(encoding="utf-8") if json_text is None else json_text
    data = (folder / "names.safetensors").read_bytes() if arrays is None else arrays
    (tmp_path / "names.json").write_text(text, encoding="utf-8")
    (tmp_path / "names.safetensors").write_bytes(data)
    with pytest.raises(LegibleError):
        Names.load(tmp_path)


def test_a_folder_that_takes_nothing_is_one_sentence(scan: Scan, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="--out"):
        write_names(tmp_path / "absent", scan, tokenizer)


def test_half_lives_for_people() -> None:
    assert tokens_text(1.49) == "1.5 tok"
    assert tokens_text(34.3) == "34 tok"
    assert tokens_text(float("inf")) == "∞ tok"


def test_nameability_counts_what_it_says(scan: Scan) -> None:
    layer = scan.layers[0]
    agreed = np.full(layer.operands.width, 0.9)
    agreed[0] = np.nan
    labelled = np.ones(layer.operands.width, bool)
    found = nameability(layer.operands, agreed, labelled)
    assert found is not None
    on, alive = layer.operands.on_share, layer.operands.classes() != 0
    expected = alive & (on >= 0.005) & (on <= 0.2)
    assert found["in_range"] == pytest.approx(expected.mean())
    expected[0] = False
    assert found["nameable"] == found["labelled"] == pytest.approx(expected.mean())


def test_operand_ids_of_membership_heads(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size, "membership"))
    scan = Scan(model, ids[:2000], "x", end_of_document=0)
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    channel = Channel(0, 1, 5)
    assert names.operand(channel).mean == pytest.approx(float(scan.layers[0].operands.mean[8 + 5]), rel=1e-6)
    assert names.component(channel).operands == ("L0.h1.c5",)
    assert names.component(channel).cls == names.operand(channel).cls
    with pytest.raises(NotFound):
        names.operand(HeadOperand(0, 1, 0, "A"))
    assert names.operand(QuantifierOperand(1, 12)).id == "L1.u12.m"


def test_sigmoid_units_are_named_as_their_own_operands(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size, activation="sigmoid"))
    layout = model.config.feed_forward
    scan = Scan(model, ids[:3000], "x", end_of_document=0)
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    unit = Unit(1, layout.n_named + 2)
    name, operand = names.component(unit), names.operand(unit)
    assert (name.kind, name.operands, name.cls) == ("sigmoid", (str(unit),), operand.cls)
    assert name.formula.startswith("σ ")
    # As an operand and as a component it is one value, measured once each way.
    assert (name.mean, name.crisp, name.on) == pytest.approx((operand.mean, operand.crisp, operand.on), rel=1e-6)
    state = scan.layers[1]
    assert operand.mean == pytest.approx(float(state.operands.mean[-layout.n_plain + 2]), rel=1e-6)
    row = names.legibility["layers"][1]["operands"]
    assert row["channels"] == layout.n_operands == 2 * layout.n_pairs + layout.n_quantifiers + layout.n_plain
    every = [c for layer in range(2) for c in model.config.operands(layer)]
    assert [names.operand(c).id for c in every] == [str(c) for c in every]
    with pytest.raises(NotFound):
        names.operand(Unit(1, 0))


@pytest.mark.parametrize("activation", ["softplus", "relu"])
def test_units_without_rails_stay_undefined(
    tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path, activation: Activation
) -> None:
    model = sample_model(sample_config(tokenizer.vocab_size, activation=activation))
    scan = Scan(model, ids[:2000], "x", end_of_document=0)
    for _ in scan.run():
        pass
    name = write_names(tmp_path, scan, tokenizer).component(Unit(0, model.config.feed_forward.n_named))
    assert (name.kind, name.cls, name.mean, name.operands) == (activation, None, None, ())
    assert name.promotes


def test_the_store_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from legible_core.naming.names import Names; "
        f"names = Names.load({str(folder)!r}); list(names.units(0)); "
        "import legible_core.naming.lexicon, legible_core.naming.label, legible_core.naming.detect; "
        "import legible_core.legibility; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
