"""Two-operand structure and carried memory, against fits made plainly and models made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from reading_folder import make_folder
from typer.testing import CliRunner

from app.cli import build
from legible_core.checkpoint import load
from legible_core.errors import LegibleError
from legible_core.model.quantifiers import half_life
from legible_core.model.transformer import Observed, Transformer
from legible_core.structure import MemorySums, PairMoments, measure
from tests.tiny_models import designs, random_ids, tiny_config, tiny_model


def r2(y: np.ndarray, x: np.ndarray) -> float:
    """R² of the straight line through (x, y), by least squares."""
    fit = np.polynomial.polynomial.polyfit(x, y, 1)
    return float(1 - ((y - np.polynomial.polynomial.polyval(x, fit)) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_what_neither_operand_explains_is_that_of_two_straight_lines() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = torch.rand(400, 5, generator=generator), torch.rand(400, 5, generator=generator).square()
    b[:, 1] = 0.25  # an operand that does not vary explains nothing, and the other everything
    a[:, 2] = (a[:, 2] > 0.5).float()
    moments = PairMoments(5)
    moments.update(a[:150], b[:150])
    moments.update(a[150:], b[150:])
    left, variance = moments.unexplained()
    for row, y in enumerate([a * b, a * (1 - b)]):
        for pair in range(5):
            values = y[:, pair].double().numpy()
            operands = [x[:, pair].double().numpy() for x in (a, b)]
            best = max(r2(values, x) if x.std() > 0 else 0.0 for x in operands)
            assert left[row, pair].item() == pytest.approx(1 - best, abs=1e-6)
            assert variance[row, pair].item() == pytest.approx(values.var(), abs=1e-7)
    assert left[:, 1].abs().max() < 1e-6
    assert left[:, 0].min() > 0.05


def test_a_lift_compares_the_memory_before_a_word_with_all_memory_where_the_membership_is_off() -> None:
    sums = MemorySums(np.array([4, 7]), 10, 1)
    m = torch.tensor([[0.0], [0.0], [0.95], [0.05], [0.0]])
    y = torch.tensor([[0.6], [0.2], [0.9], [0.4], [0.1]])
    sums.update(m[:2], y[:2], np.array([4, 7]))
    sums.update(m[2:], y[2:], np.array([4, 3, -100]))
    lifts, places = sums.lifts()
    mean = (0.6 + 0.2 + 0.4) / 3
    assert lifts[:, 0].tolist() == pytest.approx([0.6 / mean, 0.2 / mean], rel=1e-6)
    assert places[:, 0].tolist() == [1.0, 1.0]


def test_a_pass_equals_the_operands_of_every_window_put_together() -> None:
    for config in [tiny_config(biased=True), tiny_config("membership", rho=0.25, quantifiers=0.5)]:
        model, ids = tiny_model(config), random_ids(5 * 32 + 9).numpy()
        *_, (done, found) = measure(model, ids, batch=2)
        assert found is not None
        assert done == len(ids) == found.tokens
        expected = [PairMoments(config.feed_forward.n_pairs) for _ in range(3)]
        for start in range(0, len(ids), 32):
            seen = Observed()
            with torch.no_grad():
                model.residual(torch.from_numpy(ids[start : start + 32])[None], observed=seen)
            for layer, atoms in enumerate(seen.feed_forward_operands):
                expected[layer].update(atoms[0][0], atoms[1][0])
        for row, moments in zip(found.pairs, expected, strict=True):
            left, variance = moments.unexplained()
            varies = variance >= 0.003
            assert row.units == 2 * config.feed_forward.n_pairs
            assert row.constant == pytest.approx(float((~varies).double().mean()))
            assert row.strength == pytest.approx(float(left[varies].mean()), abs=1e-5)


def planted() -> tuple[torch.Tensor, Transformer]:
    """A text in which token 5 is followed by token 9 two places on, and a model with one existential that says so."""
    model = tiny_model(tiny_config(rho=0.5, quantifiers=1.0, context=64))
    layout = model.config.feed_forward
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, 28, (6000,), generator=generator)
    ids[::6], ids[2::6] = torch.where(torch.rand(1000, generator=generator) < 0.5, 5, 6), 8
    ids[2::6] = torch.where(ids[::6] == 5, 9, ids[2::6])
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.output.zero_()
            layer.feed_forward.down.zero_()
        first = model.layers[0].feed_forward
        model.position_embedding.zero_()
        used = sorted({5, 6, 8, 9, *range(10, 28)})
        x = model.layers[0].feed_forward_norm.forward(model.token_embedding[used])
        # The row that tells token 5 from the other ones of the text, by least squares.
        wanted = torch.full((len(used), 1), -8.0)
        wanted[0] = 8.0
        assert isinstance(first.quantifier, torch.Tensor)
        assert first.theta is not None
        first.quantifier[:1] = torch.linalg.lstsq(x, wanted).solution.T
        first.theta[0] = 1.0
        first.down[:, 2 * layout.n_pairs] = model.token_embedding[9] / model.final_norm.gain
    return ids, model


def test_a_planted_memory_is_found_before_its_word() -> None:
    ids, model = planted()
    *_, (_, found) = measure(model, ids.numpy())
    assert found is not None
    memory = next(m for m in found.memories if m.id == "L0.u0")
    assert memory.token == 9
    assert memory.rank == 1
    assert memory.lift > 2
    assert found.first is not None


def test_every_design_is_measured_or_refused() -> None:
    for config in designs():
        model, ids = tiny_model(config), random_ids(70).numpy()
        if not config.feed_forward.n_named:
            with pytest.raises(LegibleError, match="no set operators"):
                list(measure(model, ids))
            continue
        *_, (_, found) = measure(model, ids)
        assert found is not None
        assert len(found.pairs) == (3 if config.feed_forward.n_pairs else 0)
        assert len(found.memories) + found.unmeasured == 3 * config.feed_forward.n_quantifiers
        json.dumps(found.to_json(), allow_nan=False)


def test_the_command_prints_figures_and_refuses_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(tmp_path / "data"))
    folder, text = make_folder(tmp_path / "models"), tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times.\n" * 60, encoding="utf-8")
    words = ["structure", str(folder.path), "--corpus", str(text), "--tokens", "1024"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert "need both operands" in result.stdout
    lives = [half_life(x) for layer in range(folder.config.n_layers) for x in load(folder).decay(layer).tolist()]
    said = f"{len(lives)} quantifiers, by their weights: median half-life {median(lives):.2f} tokens, latches "
    assert said in result.stdout
    assert "median half-life" not in result.stdout.partition(said)[2], "none over the measured ones alone"
    (document,) = json.loads(CliRunner().invoke(build(), [*words, "--json"]).stdout)
    assert document["hash"] == folder.hash
    assert len(document["pairs"]) == folder.config.n_layers
    assert document["half_lives"]["quantifiers"] == len(lives)
    missing = CliRunner().invoke(build(), ["structure", str(folder.path), "--corpus", str(tmp_path / "none")])
    assert isinstance(missing.exception, LegibleError)
    assert "There is no text at" in missing.exception.message
