"""The angle objective against its plain definition, and that it moves the layers and nothing else."""

from __future__ import annotations

import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.model import Observed
from legible_core.training.angle import Angle, angle_loss, targets


@pytest.mark.parametrize(
    ("layers", "wanted"), [(1, []), (2, [0]), (3, [0, 1]), (6, [0, 0, 0, 1, 1]), (12, [0] * 6 + [1] * 5)]
)
def test_the_first_half_is_orthogonal_and_the_second_aligned(layers: int, wanted: list[int]) -> None:
    assert targets(layers) == wanted


@pytest.mark.parametrize("config", [designs()[0], designs()[1]])
def test_it_is_the_cosine_of_centred_logits(config: ModelConfig) -> None:
    model, seen = tiny_model(config), Observed()
    with torch.no_grad():
        model(random_ids(7, batch=2), observed=seen)
        loss = angle_loss(model, seen, Angle(0.3))
        expected = 0.0
        logits = []
        for x in seen.residuals:
            # The decode itself, without a norm bias: it is the same for every layer and prediction.
            y = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], model.final_norm.gain.double())
            z = y @ model.unembedding_matrix.double().T
            logits.append(z - z.mean(-1, keepdim=True))
        for z, target in zip(logits, targets(3), strict=False):
            cosine = torch.nn.functional.cosine_similarity(z, logits[-1], dim=-1)
            expected += 0.3 * (cosine - target).square().mean().item() / 2
    assert loss is not None
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_nothing_is_computed_without_a_weight() -> None:
    assert angle_loss(tiny_model(), Observed(), Angle()) is None


def test_it_moves_the_layers_below_and_neither_prediction_nor_ruler() -> None:
    model, seen = tiny_model(tiny_config()), Observed()
    model(random_ids(7, batch=2), observed=seen)
    loss = angle_loss(model, seen, Angle(1.0))
    assert loss is not None
    loss.backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any(name.startswith("layers.2.") or name.startswith("final_norm") for name in moved)
    assert {name.split(".")[1] for name in moved if name.startswith("layers.")} == {"0", "1"}


def test_gradient_steps_turn_the_layers_as_prescribed() -> None:
    model, ids = tiny_model(tiny_config("boolean", rho=0.0, quantifiers=0.0)), random_ids(12, batch=4)
    adam = torch.optim.Adam([p for name, p in model.named_parameters() if name.startswith("layers.")], lr=0.01)
    values = []
    for _ in range(40):
        seen = Observed()
        model.residual(ids, observed=seen)
        loss = angle_loss(model, seen, Angle(1.0))
        assert loss is not None
        adam.zero_grad()
        loss.backward()
        adam.step()
        values.append(loss.item())
    assert values[-1] < 0.5 * values[0]
