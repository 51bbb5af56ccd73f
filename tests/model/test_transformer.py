"""The whole model against its definition, its cache, its trace, its parameter count and its edits."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import VOCAB, designs, random_ids, tiny_config, tiny_model

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError, TooLarge
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.units import Channel, Head, Unit


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def plain_forward(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """DESIGN.md's formulas written out with explicit loops, one prompt, float64."""
    config = model.config
    w = {name: value.double() for name, value in model.state_dict().items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt()
        return scaled * w[f"{name}.gain"] + w.get(f"{name}.bias", torch.zeros(1).double())

    def apply(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[name].T + w.get(f"{name}_bias", torch.zeros(1).double())

    x = w["token_embedding"][ids] + w["position_embedding"][: len(ids)]
    length, dh = len(ids), config.d_head
    for layer in range(config.n_layers):
        here = f"layers.{layer}.attention"
        y = norm(x, f"layers.{layer}.attention_norm")
        q, k = apply(y, f"{here}.query"), apply(y, f"{here}.key")
        special = config.attention.n_special[layer]
        out = []
        for head in range(config.n_heads):
            columns = slice(head * dh, (head + 1) * dh)
            scores = q[:, columns] @ k[:, columns].T / math.sqrt(dh)
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
            if head < special:
                v = torch.sigmoid(apply(y, f"{here}.bounded_values")[:, columns])
                if config.attention.value == "boolean":
                    a, b = v[:, : dh // 2], v[:, dh // 2 :]
                    v = torch.cat([a * b, a * (1 - b)], -1)
            else:
                v = apply(y, f"{here}.linear_values")[:, (head - special) * dh : (head - special + 1) * dh]
            out.append(torch.softmax(scores, -1) @ v)
        x = x + apply(torch.cat(out, -1), f"{here}.output")
        here = f"layers.{layer}.feed_forward"
        y = norm(x, f"layers.{layer}.feed_forward_norm")
        hidden = []
        if f"{here}.pair_a" in w:
            a, b = torch.sigmoid(apply(y, f"{here}.pair_a")), torch.sigmoid(apply(y, f"{here}.pair_b"))
            hidden += [a * b, a * (1 - b)]
        if f"{here}.quantifier" in w:
            m, decay = torch.sigmoid(apply(y, f"{here}.quantifier")), torch.sigmoid(w[f"{here}.theta"])
            half = m.shape[1] // 2
            e, s, n = torch.zeros(half).double(), torch.zeros(half).double(), torch.zeros(half).double()
            rows = []
            for t in range(length):
                e = 1 - (1 - m[t, :half]) * (1 - decay[:half] * e)
                s, n = decay[half:] * s + m[t, half:], decay[half:] * n + 1
                rows.append(torch.cat([e, s / n]))
            hidden.append(torch.stack(rows))
        plain = config.feed_forward.activation
        if f"{here}.{plain}" in w:
            z = apply(y, f"{here}.{plain}")
            z = {
                "gelu": gelu(z),
                "sigmoid": 1 / (1 + (-z).exp()),
                "softplus": (1 + z.exp()).log(),
                "relu": z.clamp(min=0),
            }[plain]
            hidden.append(z)
        x = x + apply(torch.cat(hidden, -1), f"{here}.down")
    unembedding = w.get("unembedding", w["token_embedding"])
    return norm(x, "final_norm") @ unembedding.T + w.get("unembedding_bias", torch.zeros(1).double())


@pytest.mark.parametrize("config", designs())
def test_forward_is_the_definition(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(20)
    with torch.no_grad():
        # Rounding in float32; processors add in other orders, and one was seen at 2.02e-5.
        assert (model(ids[None])[0].double() - plain_forward(model, ids)).abs().max() < 3e-5


@pytest.mark.parametrize("config", designs())
def test_trace_equals_forward_at_every_position(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(17)
    trace = model.trace(ids)
    with torch.no_grad():
        logits = model(ids[None])[0]
    for position in range(17):
        assert torch.allclose(model.logits_at(trace, position), logits[position], atol=1e-5)
    assert trace.n_bytes > 0


@pytest.mark.parametrize("config", designs())
@pytest.mark.parametrize("pieces", [[1] * 24, [10, 1, 1, 12], [5, 7, 12]])
def test_cached_generation_gives_the_same_logits(config: ModelConfig, pieces: list[int]) -> None:
    model, ids = tiny_model(config), random_ids(24, batch=2)
    cache, parts = model.new_cache(), []
    with torch.no_grad():
        for piece in ids.split(pieces, dim=1):
            parts.append(model(piece, cache=cache))
        assert (torch.cat(parts, 1) - model(ids)).abs().max() < 1e-4
    assert cache.length == 24


@pytest.mark.parametrize("config", designs())
def test_recomputed_operands_and_rows_rebuild_what_the_forward_made(config: ModelConfig) -> None:
    model, ids = tiny_model(config), random_ids(9)
    trace = model.trace(ids)
    layout = config.feed_forward
    for layer in range(config.n_layers):
        recorded = trace.layers[layer]
        operands = model.operands(layer, trace, slice(None))
        if layout.n_pairs:
            a, b = operands["pair_a"], operands["pair_b"]
            assert torch.allclose(a * b, recorded.hidden[:, layout.intersections], atol=1e-6)
            assert torch.allclose(a * (1 - b), recorded.hidden[:, layout.differences], atol=1e-6)
            assert torch.allclose(model.operands(layer, trace, 4)["pair_a"], a[4], atol=1e-6)
        values = model.head_values(layer, trace)
        for head in range(config.n_heads):
            row = model.attention_row(layer, head, trace, 8)
            assert row.sum() == pytest.approx(1.0, abs=1e-5)
            assert torch.allclose(row @ values[:, head], recorded.z[8, head], atol=1e-5)


@pytest.mark.parametrize("config", designs()[:-2])
def test_parameter_count_is_the_gelu_baseline_s(config: ModelConfig) -> None:
    baseline = ModelConfig(
        **{
            **{name: getattr(config, name) for name in ModelConfig.__dataclass_fields__},
            "attention": tiny_config("linear").attention,
            "feed_forward": tiny_config(rho=1.0).feed_forward,
        }
    )
    count = sum(p.numel() for name, p in Transformer(config).named_parameters() if not name.endswith("theta"))
    assert count == sum(p.numel() for p in Transformer(baseline).parameters())


def test_future_tokens_change_nothing() -> None:
    model, ids = tiny_model(), random_ids(16)
    changed = ids.clone()
    changed[10:] = (changed[10:] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(ids[None])[0], model(changed[None])[0]
    assert torch.allclose(before[:10], after[:10], atol=1e-6)
    assert (before[10] - after[10]).abs().max() > 1e-2


def test_bfloat16_keeps_residual_norms_and_logits_in_float32() -> None:
    config = tiny_config()
    model, ids = tiny_model(config), random_ids(12)
    with torch.no_grad():
        exact = model(ids[None])
        rounded = model.to_compute(torch.bfloat16)(ids[None])
    trace = model.trace(ids)
    assert rounded.dtype == trace.residual.dtype == trace.layers[0].attention_in.dtype == torch.float32
    assert trace.layers[0].hidden.dtype == trace.layers[0].z.dtype == torch.bfloat16
    assert 0 < (rounded - exact).abs().max() < 0.25 * exact.std()


def test_edits_act_inside_the_pass_and_leave_nothing() -> None:
    model, ids = tiny_model(), random_ids(10)
    trace = model.trace(ids)
    edits = (
        Edit(Unit(1, 3), "scale", 0.0, (4,)),
        Edit(Head(0, 1), "set", 0.25),
        Edit(Channel(2, 0, 1), "set", 1.0, (9,)),
    )
    with torch.no_grad():
        edited = model(ids[None], edits)[0]
        assert torch.equal(model(ids[None])[0], model.logits(trace.residual))
    changed = model.trace(ids, edits)
    assert torch.allclose(model.logits(changed.residual), edited, atol=1e-5)
    assert changed.layers[1].hidden[4, 3] == 0
    assert changed.layers[1].hidden[5, 3] != 0
    assert (changed.layers[0].z[:, 1] == 0.25).all()
    assert changed.layers[2].z[9, 0, 1] == 1.0
    # The first difference is at position 0: head 0.1 was set everywhere.
    assert (edited[0] - model.logits(trace.residual)[0]).abs().max() > 1e-4
    # A cached pass applies edits at absolute positions too.
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(piece, edits, cache=cache) for piece in ids[None].split([3, 3, 4], 1)]
    assert torch.allclose(torch.cat(parts, 1)[0], edited, atol=1e-4)


def test_scaling_by_one_is_the_identity() -> None:
    model, ids = tiny_model(), random_ids(10)
    with torch.no_grad():
        assert torch.equal(model(ids[None], (Edit(Unit(0, 0), "scale", 1.0),)), model(ids[None]))


def test_limits_are_stated() -> None:
    model = tiny_model()
    with pytest.raises(TooLarge, match=r"33 tokens.*at most 32"):
        model(random_ids(33)[None])
    with pytest.raises(LegibleError, match="empty"):
        model(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(LegibleError, match=r"unit 48 of edit L0\.u48 does not exist; use 0 to 47"):
        model(random_ids(4)[None], (Edit(Unit(0, 48), "scale", 0.0),))
    with pytest.raises(LegibleError, match="finite"):
        Edit(Unit(0, 0), "set", math.nan)
    with pytest.raises(LegibleError, match="float32 or bfloat16"):
        model.to_compute(torch.float16)
