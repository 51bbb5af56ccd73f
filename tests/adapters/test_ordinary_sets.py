"""Sufficient sets of ordinary models: kept rows against forwards with all else zeroed; a set that emits its token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from family_samples import VOCAB, hf_model

from legible_core.adapters.config import from_hugging_face
from legible_core.adapters.model import OrdinaryModel
from legible_core.causal import kept
from legible_core.causal.sufficiency import sufficiency
from legible_core.interventions import Edit
from legible_core.ordinary.loading import bridged
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Channel, Unit

IDS = torch.randint(0, VOCAB, (8,), generator=torch.Generator().manual_seed(3))


def model_of(name: str) -> OrdinaryModel:
    hf = hf_model(name)
    return bridged(hf, from_hugging_face(hf.config))


def every(model: OrdinaryModel) -> list[Any]:
    """All channels, then all units."""
    config = model.config
    shapes = (config.n_layers, config.n_heads, config.d_head), (config.n_layers, config.feed_forward.d_ff)
    return [Channel(*at) for at in np.ndindex(*shapes[0])] + [Unit(*at) for at in np.ndindex(*shapes[1])]


# Learned positions; sublayers beside each other; norms after the sublayers and soft-caps.
@pytest.mark.parametrize("name", ["gpt2", "gptj", "gemma2"])
def test_kept_rows_are_forwards_with_all_else_zeroed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "BATCH_TOKENS", 16)  # two rows at a time
    model = model_of(name)
    config, components = model.config, every(model)
    own = (
        Edit(Unit(0, 3), "set", 2.0),
        Edit(Unit(1, 2), "scale", -1.0, (5,)),
        Edit(Channel(1, 1, 0), "set", 1.0, (2,)),
    )
    trace = model.trace(IDS, own)
    stays = torch.rand((3, len(components)), generator=torch.Generator().manual_seed(1)) < torch.tensor(
        [[0.0], [0.4], [1]]
    )
    n_channels = config.n_layers * config.n_heads * config.d_head
    channels = stays[:, :n_channels].view(3, config.n_layers, config.n_heads, config.d_head)
    units = stays[:, n_channels:].view(3, config.n_layers, -1)
    found = kept.kept_rows(model, trace, 5, channels, units)
    for row, mask in enumerate(stays.tolist()):
        gone = [Edit(c, "zero", None, (5,)) for c, one in zip(components, mask, strict=True) if not one]
        expected = model.residual(IDS[None], (*own, *gone))[0, 5]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)


def test_a_sufficient_set_of_an_ordinary_model_emits_its_token() -> None:
    model = model_of("gpt2")
    engine = Engine(model, CheckpointRef(hash="c" * 64, slug="small"))
    document = sufficiency(engine, ReadingRequest("c" * 64, tuple(IDS.tolist())), seeds=2)
    assert document["size"] == len(document["members"]) < document["components"]
    members = {m["id"] for m in document["members"]}

    def leading(without: str | None = None) -> int:
        gone = [Edit(c, "zero", None, (7,)) for c in every(model) if str(c) not in members - {without}]
        return int(model.logits(model.residual(IDS[None], gone)[0, 7]).argmax())

    assert leading() == document["target"]["id"]
    assert not document["minimal"] or all(leading(one) != document["target"]["id"] for one in members)
