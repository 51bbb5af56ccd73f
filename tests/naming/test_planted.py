"""A detector built into the weights is named by the scan; a model of noise is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from naming_samples import sample_config, sample_model

from legible_core.legibility import Legibility
from legible_core.naming.assemble import write_names
from legible_core.naming.quick import measure, table
from legible_core.naming.scan import Scan
from legible_core.tokens import Tokenizer
from legible_core.units import Operand, Unit

MODALS = [" will", " would", " could", " should", " must", " may", " might"]
PRONOUNS = [" he", " she", " they", " we", " I", " it"]


def _planted(tokenizer: Tokenizer) -> tuple[torch.nn.Module, list[int], list[int]]:
    """L0.p0.A is ON at modals, L0.p0.B at pronouns; unit L0.u0 writes towards the modals."""
    model = sample_model(sample_config(tokenizer.vocab_size))
    modals = [tokenizer.target(word) for word in MODALS]
    pronouns = [tokenizer.target(word) for word in PRONOUNS]
    with torch.no_grad():
        model.token_embedding[:, :2] = -1.0
        model.token_embedding[modals, 0] = 1.0
        model.token_embedding[pronouns, 1] = 1.0
        model.position_embedding.zero_()
        model.layers[0].attention.output.zero_()  # type: ignore[union-attr]
        feed_forward = model.layers[0].feed_forward
        for row, axis in ((feed_forward.pair_a, 0), (feed_forward.pair_b, 1)):  # type: ignore[union-attr]
            row[0] = 0.0
            row[0, axis] = 8.0
        feed_forward.down[:, 0] = 0.0  # type: ignore[union-attr]
        feed_forward.down[0, 0] = 1.0  # type: ignore[union-attr]
    return model, modals, pronouns


def test_a_planted_detector_gets_its_name(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model, modals, pronouns = _planted(tokenizer)
    scan = Scan(model, ids, "sample", end_of_document=0)  # type: ignore[arg-type]
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    for side, tokens, text in (("A", modals, {"modal"}), ("B", pronouns, {"pronoun", "subject pronoun"})):
        name = names.operand(Operand(0, 0, side))  # type: ignore[arg-type]
        assert {token.id for token in name.detect} == set(tokens)
        assert name.cls is Legibility.SELECTIVE
        assert name.agreement == 1.0
        assert name.label is not None
        assert name.label.kind == "class"
        assert name.label.text in text
        assert name.label.q is not None
        assert name.label.q < 0.01
    unit = names.component(Unit(0, 0))
    assert {token.id for token in unit.promotes[: len(modals)]} == set(modals)
    assert unit.formula.startswith("modal ∩ ")


def test_noise_gets_no_class_labels(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    # Operands that read a coin per position instead of the token: decisive, alive, and about nothing.
    model = sample_model(sample_config(tokenizer.vocab_size))
    with torch.no_grad():
        model.token_embedding.zero_()
        model.position_embedding.normal_(generator=torch.Generator().manual_seed(1))
    scan = Scan(model, ids, "sample", end_of_document=0)
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    alive = 0
    for layer in range(2):
        for component in model.config.operands(layer):
            name = names.operand(component)
            alive += name.cls is not Legibility.CONSTANT
            assert name.label is None or name.label.kind != "class"
            assert name.agreement is None or name.agreement < 0.65
    assert alive > 50


def test_quick_agrees_with_the_scan(tokenizer: Tokenizer, ids: np.ndarray, tmp_path: Path) -> None:
    model, _, _ = _planted(tokenizer)
    scan = Scan(model, ids, "sample", end_of_document=0)  # type: ignore[arg-type]
    for _ in scan.run():
        pass
    names = write_names(tmp_path, scan, tokenizer)
    texts = ["" if tokenizer.is_special(t) else tokenizer.text(t) for t in range(tokenizer.vocab_size)]
    quick = measure(model, ids, texts=texts, tokens=10**9, end_of_document=0)  # type: ignore[arg-type]
    whole = names.legibility["all"]
    assert quick["tokens"] == len(ids)
    for surface, key in (("attention", "head_operands"), ("feed_forward", "operands")):
        for mine, theirs in (("crisp", "crisp"), ("on", "on"), ("selective", "selective"), ("constant", "constant")):
            np.testing.assert_allclose(quick[surface][mine], whole[key][theirs], rtol=1e-9)
    for key in ("alive", "in_range", "nameable"):
        np.testing.assert_allclose(quick["all"][key], whole["names"][key], rtol=1e-9)
    np.testing.assert_allclose(quick["attention"]["value_selective"], whole["value"]["selective"], atol=0.2)
    text = table(quick)
    assert "NAMEABLE" in text
    assert "loss" in text
