"""Layers that wait on the CPU: the same numbers, one layer on the device at a time, and none after an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_samples import VOCAB, hf_model, save

from legible_core.adapters.config import from_hugging_face
from legible_core.adapters.model import OrdinaryModel
from legible_core.adapters.registration import open_registered
from legible_core.attribution import Attributor, Question
from legible_core.ordinary import adding, loading
from legible_core.pipeline import Engine
from legible_core.reading import Dtype

CPU = torch.device("cpu")
IDS = torch.randint(0, VOCAB, (12,), generator=torch.Generator().manual_seed(3))


def pair(name: str, dtype: Dtype) -> tuple[OrdinaryModel, OrdinaryModel]:
    """The same random model twice: at hand, and offloaded."""
    made = []
    for _ in range(2):
        hf = hf_model(name).to(getattr(torch, dtype))
        made.append(loading.bridged(hf, from_hugging_face(hf.config)))
    made[1].offload(CPU)
    return made[0], made[1]


def on_device(model: OrdinaryModel) -> list[bool]:
    """For each layer whether any of its weights is on the device now."""
    return [any(not p.is_meta for p in block.parameters()) for block in model.bridge.blocks]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gpt2", "float32"), ("gpt_neox", "float32"), ("llama-biased", "bfloat16"), ("gemma2", "float32")],
)
def test_numbers_are_the_same_with_one_layer_on_the_device(name: str, dtype: Dtype) -> None:
    plain, offloaded = pair(name, dtype)
    seen: list[list[bool]] = []
    for block in offloaded.bridge.blocks:
        block.mlp.register_forward_pre_hook(lambda *_: seen.append(on_device(offloaded)))
    one, two = plain.trace(IDS), offloaded.trace(IDS)
    assert torch.equal(one.residual, two.residual)
    assert seen == [[True, False], [False, True]]
    assert on_device(offloaded) == [False, False]
    assert offloaded.n_bytes == plain.n_bytes
    for question in (Question(5), Question(7, "mean")):
        ours, theirs = (
            Attributor(model, dtype).attribute(trace, 9, question, model.logits_at(trace, 9))
            for model, trace in ((plain, one), (offloaded, two))
        )
        theirs.check()
        np.testing.assert_array_equal(ours.units, theirs.units)
        np.testing.assert_array_equal(ours.channels, theirs.channels)
        assert ours.floor == theirs.floor
    assert torch.equal(plain.attention_row(1, 2, one, 9), offloaded.attention_row(1, 2, two, 9))
    assert torch.equal(plain.head_values(0, one), offloaded.head_values(0, two))


def test_an_error_inside_a_layer_leaves_none_on_the_device() -> None:
    _, model = pair("llama", "float32")

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = model.bridge.blocks[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model.trace(IDS)
    assert on_device(model) == [False, False]
    hook.remove()
    assert bool(torch.isfinite(model.trace(IDS).residual).all())


def test_a_model_is_certified_registered_and_read_offloaded(tmp_path: Path) -> None:
    folder = save("qwen2", tmp_path / "model")
    checkpoint = adding.add(folder, tmp_path / "ordinary", slug="large", offload=True)
    assert checkpoint.certificate is not None
    assert checkpoint.certificate["top_agrees"] == checkpoint.certificate["positions"]
    again = open_registered(checkpoint.path, "large")
    assert again.to_json()["offload"] is True
    model, _ = loading.load(again.source, again.config, offload=True)
    assert on_device(model) == [False, False]
    plain: Any = Engine.open(again).model  # the CPU computes, and so nothing has to wait
    assert on_device(plain) == [True, True]
    assert torch.equal(model.trace(IDS).residual, plain.trace(IDS).residual)
