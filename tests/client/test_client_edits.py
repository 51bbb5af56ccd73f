"""Edits through the client: the numbers of the same edits in this process."""

from __future__ import annotations

import pytest
import torch
from conftest import Live

from legible_client import Client, Refused
from legible_core import load, read
from legible_core.interventions import Edit
from legible_core.units import Operand, Unit


def test_an_edited_reading_is_the_librarys(live: Live) -> None:
    torch.set_num_threads(1)
    client, engine = Client(live.address, token=live.token), load(live.checkpoint)
    edits: list[Edit | str] = [Edit(Unit(1, 40), "scale", 2.5), "L0.p2.A:flip@1", Edit(Operand(1, 1, "B"), "zero")]
    for words in ({}, {"target": " it", "position": 2}):
        ours = read(engine, "it was the best", edits=edits, **words)  # type: ignore[arg-type]
        theirs = client.read(live.checkpoint.slug, "it was the best", edits=edits, **words)  # type: ignore[arg-type]
        assert theirs.digest == ours.digest
        assert theirs.edits == ours.edits
        assert theirs.value == pytest.approx(ours.value, abs=1e-5)
        assert theirs.value != pytest.approx(client.read(live.checkpoint.slug, "it was the best", **words).value)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="past the prompt"):
        client.read(live.checkpoint.slug, "it was the best", edits=["L1.u40:zero@50"])
