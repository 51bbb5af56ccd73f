"""Alignment of prompts by token and by text, and what two readings may be asked to subtract."""

from __future__ import annotations

import itertools
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np
import pytest
from tiny_models import random_ids, tiny_config, tiny_model

from legible_core.compare import Comparison, align, compare
from legible_core.interventions_text import parse_edit
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, Reading, ReadingRequest, Token

A, B = "a" * 64, "b" * 64


def read(checkpoint: str = A, seed: int = 0, ids: int = 0, **asked: object) -> Reading:
    engine = Engine(tiny_model(tiny_config(biased=seed == 1), seed), CheckpointRef(hash=checkpoint, slug="t"))
    tokens = tuple(int(i) for i in random_ids(9, ids))
    return engine.read(ReadingRequest(checkpoint, tokens, **asked))  # type: ignore[arg-type]


def spelled(reading: Reading, pieces: list[str]) -> Reading:
    tokens = tuple(Token(id=i, text=p, display=p, bytes=p.encode().hex()) for i, p in enumerate(pieces))
    return replace(reading, summary=reading.summary.model_copy(update={"tokens": tokens}))


def test_align_is_a_longest_common_subsequence() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        left = "".join(generator.choice(list("abc"), generator.integers(0, 9)))
        right = "".join(generator.choice(list("abc"), generator.integers(0, 9)))
        runs = align(left, right)
        assert [i for run in runs for i in range(*run.left)] == list(range(len(left)))
        assert [i for run in runs for i in range(*run.right)] == list(range(len(right)))
        assert all(left[slice(*run.left)] == right[slice(*run.right)] for run in runs if run.same)
        common = sum(run.left[1] - run.left[0] for run in runs if run.same)
        longest = next(
            n for n in range(min(len(left), len(right)), -1, -1)
            if set(itertools.combinations(left, n)) & set(itertools.combinations(right, n))
        )  # fmt: skip
        assert common == longest
        matched = sum(block.size for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks())
        assert common >= matched


def test_align_names_what_was_put_in_left_out_and_replaced() -> None:
    runs = align(["the", "cat", "sat", "on", "it"], ["the", "big", "cat", "lay", "on"])
    assert [(run.same, run.left, run.right) for run in runs] == [
        (True, (0, 1), (0, 1)), (False, (1, 1), (1, 2)), (True, (1, 2), (2, 3)), (False, (2, 3), (3, 4)),
        (True, (3, 4), (4, 5)), (False, (4, 5), (5, 5)),
    ]  # fmt: skip


def test_other_tokenizers_are_aligned_by_text() -> None:
    left = spelled(read(), ["The", " cat", "alo", "gue", " sat"])
    right = spelled(read(B, 1), ["Th", "e", " catalogue", " of", " sat"])
    found = compare(left, right, same_tokenizer=False)
    assert found.alignment == "text"
    runs = [(run.same, run.left, run.right) for run in found.tokens]
    assert runs == [(True, (0, 4), (0, 3)), (False, (4, 4), (3, 4)), (True, (4, 5), (4, 5))]
    assert any("aligned by text" in note for note in found.notes)


def test_tokenizers_are_judged_by_the_tokens_where_nothing_else_is_known() -> None:
    left = read()
    assert compare(left, read(B, 1)).alignment == "token"
    assert compare(left, spelled(read(B, 1), ["x", "y"])).alignment == "text"
    assert compare(left, spelled(read(), ["x", "y"])).alignment == "token", "one checkpoint has one tokenizer"


@pytest.mark.parametrize("asked", [{"target": 5}, {"target": 5, "contrast": 7}, {"target": 5, "relative_to": "mean"}])
def test_differences_close_and_swap_their_sign(asked: dict[str, object]) -> None:
    left, right = read(**asked), read(ids=3, **asked)
    found, swapped = compare(left, right), compare(right, left)
    assert found.residual is not None
    assert abs(found.residual) < found.tolerance
    assert found.value.difference == -(swapped.value.difference or 0)
    ours = {row.id: row.difference for row in found.components}
    assert ours == {row.id: -(row.difference or 0) for row in swapped.components}
    total = sum(row.difference or 0 for row in found.groups)
    assert total == pytest.approx(found.value.difference, abs=found.tolerance)
    layers = sum(row.difference or 0 for row in found.layers) + sum(row.difference or 0 for row in found.floor)
    assert layers == pytest.approx(found.value.difference, abs=2 * found.tolerance)


def test_other_weights_share_groups_and_floor_and_no_component() -> None:
    left, right = read(target=5), read(B, 1, target=5)
    found: Comparison = compare(left, right)
    assert found.components == ()
    assert found.residual is None
    total = sum(row.difference or 0 for row in found.groups)
    assert total == pytest.approx(found.value.difference, abs=found.tolerance)
    biases = [row for row in found.floor if row.id not in ("embed.token", "embed.position")]
    assert biases
    assert all(row.left == 0.0 for row in biases)


def test_layers_of_unequal_depth_are_not_subtracted() -> None:
    left, right = read(target=5), read(B, 1, target=5)
    shape = right.summary.model_copy(update={"heads_shape": (2, 4), "layers": right.summary.layers[:2]})
    found = compare(left, replace(right, summary=shape, units=right.units[:2], heads=right.heads[:2]))
    assert len(found.layers) == 2 * (3 + 2)
    assert all(row.difference is None for row in found.layers)
    assert any("3 and 2 layers" in note for note in found.notes)


def test_notes_say_what_differs() -> None:
    plain, other = read(target=5), read(target=6, contrast=7)
    notes = " ".join(compare(plain, other).notes)
    assert "a logit on the left, a logit difference on the right" in notes
    assert "read different tokens: 5 and 6" in notes
    edited = replace(plain, summary=plain.summary.model_copy(update={"edits": (parse_edit("L0.u1:zero").canonical(),)}))
    assert "different edits: none on the left, L0.u1:zero on the right." in " ".join(compare(plain, edited).notes)
    contrasts = compare(read(target=5, contrast=7), read(target=5, contrast=8)).notes
    assert contrasts == ("The contrasts differ: 7 and 8.",)
