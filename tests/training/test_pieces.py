"""Loss, optimiser, pressures, guard and data order, each against its plain definition."""

from __future__ import annotations

import lzma
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import designs, random_ids, tiny_model
from tokenizers import Tokenizer

from legible_core.errors import LegibleError, NotFound
from legible_core.model import Observed
from legible_core.training.data import Order, documents, tokenise, train_tokenizer
from legible_core.training.guard import Guard
from legible_core.training.loss import CHUNK, next_token_loss
from legible_core.training.optimiser import Muon, Optimiser
from legible_core.training.pressures import Pressing, Pressure, Stage, pressure_loss
from legible_core.training.recipe import OptimiserRecipe


@pytest.mark.parametrize("rows", [1, CHUNK, CHUNK + 3])
def test_chunked_loss_is_cross_entropy_with_gradients(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 8, generator=generator)
    w = 3 * torch.randn(31, 8, generator=generator)
    targets = torch.randint(0, 31, (rows,), generator=generator)
    ours = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    plain = [x.double().requires_grad_(), w.double().requires_grad_()]
    loss = next_token_loss(ours[0], ours[1], targets)
    expected = torch.nn.functional.cross_entropy(plain[0] @ plain[1].T, targets)
    (2.5 * loss).backward()
    (2.5 * expected).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(mine.grad.double(), theirs.grad, atol=1e-6)
    with torch.no_grad():
        assert next_token_loss(x, w, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_loss_of_a_sure_mistake_is_exact() -> None:
    """A probability of the wanted token that float32 rounds to 0 is still a finite loss, with its gradient."""
    x = torch.tensor([[300.0, 0.0], [0.0, 300.0]], requires_grad=True)
    loss = next_token_loss(x, torch.eye(2), torch.tensor([1, 1]))
    assert loss.item() == 150.0
    loss.backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.tensor([[0.5, -0.5], [0.0, 0.0]]))


def test_autocast_leaves_the_loss_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CHUNK + 5, 8, generator=generator)
    w = torch.randn(31, 8, generator=generator)
    targets = torch.randint(0, 31, (len(x),), generator=generator)
    inputs = [x.requires_grad_(), w.requires_grad_()]
    exact = next_token_loss(*inputs, targets)  # type: ignore[call-arg]
    by_exact = torch.autograd.grad(exact, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        cast = next_token_loss(*inputs, targets)  # type: ignore[call-arg]
    assert cast.dtype == torch.float32
    assert cast.item() == pytest.approx(exact.item(), rel=1e-3)
    for mine, theirs in zip(torch.autograd.grad(cast, inputs), by_exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("shape", [(16, 16), (40, 16), (16, 40)])
def test_muon_steps_as_torch_s(shape: tuple[int, int]) -> None:
    """Same momentum, scale and decay as torch.optim.Muon, whose bfloat16 iteration gives the only difference."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours = Muon([mine], lr=0.02, momentum=0.95, decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(5):
        grad = torch.randn(shape, generator=generator)
        mine.grad, theirs.grad = grad.clone(), grad.clone()
        ours.step()
        reference.step()
    moved = (theirs - start).norm().item()
    assert (mine - theirs).norm().item() < 0.03 * moved
    # A wrong sign, scale or momentum would be far outside: the move itself is large.
    assert moved > 0.1


def test_optimiser_gives_every_parameter_to_one_group() -> None:
    model = tiny_model()
    optimiser = Optimiser(model, OptimiserRecipe())
    names = optimiser.adam_names + optimiser.muon_names
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {name.rsplit(".", 1)[-1] for name in optimiser.muon_names} == {
        *("query", "key", "bounded_values", "linear_values", "output"),
        *("pair_a", "pair_b", "quantifier", "gelu", "down"),
    }
    all_adam = Optimiser(model, OptimiserRecipe(kind="adamw"))
    assert all_adam.muon is None
    assert len(all_adam.adam_names) == len(list(model.named_parameters()))


@pytest.mark.parametrize("target", ["operands", "outputs"])
@pytest.mark.parametrize("config", designs())
def test_pressures_are_means_over_each_surface(config: object, target: str) -> None:
    model = tiny_model(config)  # type: ignore[arg-type]
    observed = Observed()
    model(random_ids(12, batch=2), observed=observed)
    attention = Pressure("both", 0.3, (0.1, 0.2, 0.4), target=target)  # type: ignore[arg-type]
    feed_forward = Pressure("crispness", 0.0, 0.7, target=target)  # type: ignore[arg-type]
    loss = pressure_loss(observed, attention, feed_forward, 0)
    expected = 0.0
    for layer in range(3):
        out = observed.attention_outputs[layer]
        values = observed.attention_operands[layer] if target == "operands" else (() if out is None else (out,))
        if values:
            v = torch.cat([value.flatten() for value in values]).double()
            expected += 0.3 * v.mean().item() + (0.1, 0.2, 0.4)[layer] * (v * (1 - v)).mean().item()
        values = (
            observed.feed_forward_operands[layer] if target == "operands" else (observed.feed_forward_outputs[layer],)
        )
        v = torch.cat([value.flatten() for value in values]).double() if values else torch.zeros(0)
        if len(v):
            expected += 0.7 * (v * (1 - v)).mean().item()
    if expected == 0.0:
        assert loss is None or loss.item() == 0.0
    else:
        assert loss is not None
        assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("target", ["operands", "outputs"])
@pytest.mark.parametrize("config", designs())
def test_pressing_on_the_way_is_pressing_afterwards(config: object, target: str) -> None:
    model, ids = tiny_model(config), random_ids(12, batch=2)  # type: ignore[arg-type]
    # Sparsity that ramps, strengths by layer, and a floor, which leaves channels out.
    attention = Pressure("both", 0.3, (0.1, 0.2, 0.4), target=target, ramp_tokens=100)  # type: ignore[arg-type]
    feed_forward = Pressure("crispness", 0.0, 0.7, target=target, floor=0.1)  # type: ignore[arg-type]
    plain = model.config.feed_forward.n_bounded == 0
    found = []
    for on_the_way in (False, True):
        model.zero_grad()
        observed = Pressing(attention, feed_forward, 50) if on_the_way else Observed()
        loss = model(ids, observed=observed).square().mean()
        penalty = pressure_loss(observed, attention, feed_forward, 50)
        if isinstance(observed, Pressing):
            # What nobody presses is not collected.
            assert [seen is None for seen in observed.feed_forward_outputs] == [target == "operands"] * 3
            assert len(observed.heads) == (3 if target == "outputs" else 0)
            penalty = observed.penalty
        if penalty is not None:
            assert penalty.item() > 0
            loss = loss + penalty
        else:
            assert plain
        loss.backward()
        found.append([penalty, *(parameter.grad for parameter in model.parameters())])
    for after, way in zip(*found, strict=True):
        assert (after is None) == (way is None)
        # On the way the set operators are factored, which rounds otherwise.
        assert after is None or torch.allclose(after, way, rtol=1e-4, atol=2e-6)


def test_pressure_gradient() -> None:
    v = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mine, plain = v.clone().requires_grad_(), v.clone().requires_grad_()
    observed = Observed([(mine,)], [None], [()], [torch.zeros(3, 5, 0)])
    loss = pressure_loss(observed, Pressure("both", 0.3, 0.2), Pressure(), 0)
    assert loss is not None
    loss.backward()
    (0.3 * plain + 0.2 * plain * (1 - plain)).mean().backward()
    assert mine.grad is not None
    assert plain.grad is not None
    assert torch.allclose(mine.grad, plain.grad, atol=1e-7)


def test_channels_at_a_rail_are_not_pressed_below_the_floor() -> None:
    v = torch.rand(2, 8, 3, generator=torch.Generator().manual_seed(0))
    v[..., 0] *= 0.02
    v[..., 2] = 1 - 0.02 * v[..., 2]
    mine, plain = v.clone().requires_grad_(), v[..., 1].clone().requires_grad_()
    observed = Observed([(mine,)], [None], [()], [torch.zeros(2, 8, 0)])
    later = (Stage(10, 0.3, 0.2, floor=0.02),)
    pressure = Pressure("both", 0.3, 0.2, later=later)
    assert [pressure.floor_at(t) for t in (0, 9, 10)] == [0.0, 0.0, 0.02]
    loss = pressure_loss(observed, pressure, Pressure(), 10)
    assert loss is not None
    loss.backward()
    expected = (0.3 * plain + 0.2 * plain * (1 - plain)).sum() / v.numel()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert mine.grad is not None
    assert plain.grad is not None
    assert torch.allclose(mine.grad[..., 1], plain.grad, atol=1e-7)
    assert not mine.grad[..., [0, 2]].any()


def test_sparsity_may_start_late_and_rise() -> None:
    pressure = Pressure("both", 0.02, 0.1, start_tokens=1000, ramp_tokens=500)
    assert [pressure.strength("sparsity", 0, t) for t in (0, 999, 1000, 1250, 1500, 9999)] == [
        0,
        0,
        0,
        0.01,
        0.02,
        0.02,
    ]
    assert pressure.strength("crispness", 0, 0) == 0.1


def test_stages_change_both_strengths_by_layer() -> None:
    later = (Stage(500, 0.005, (0.1, 0.05)), Stage(900, (0.0, 0.01), 0.02))
    pressure = Pressure("both", 0.02, (0.1, 0.2), later=later)
    assert [pressure.strength("sparsity", 1, t) for t in (0, 499, 500, 899, 900)] == [0.02, 0.02, 0.005, 0.005, 0.01]
    assert [pressure.strength("crispness", 1, t) for t in (0, 500, 10_000)] == [0.2, 0.05, 0.02]
    assert pressure.strength("sparsity", 0, 900) == 0.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"regime": "sparsity", "sparsity": 0.1, "later": (Stage(9, 0.1, 0.1),)}, "has no crispness"),
        ({"regime": "sparsity", "sparsity": 0.1, "later": (Stage(9, 0.1), Stage(9, 0.2))}, "in order"),
        ({"regime": "crisp"}, "does not exist"),
        ({"regime": "sparsity", "crispness": 0.1, "sparsity": 0.1}, "contradict"),
        ({"regime": "both", "sparsity": 0.1}, "contradict"),
        ({"regime": "sparsity", "sparsity": -1.0}, "at least 0"),
        ({"floor": 0.5}, "below 0.5"),
        ({"target": "logits"}, "operands or outputs"),
    ],
)
def test_contradictory_pressures_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(LegibleError, match=reason):
        Pressure(**fields)  # type: ignore[arg-type]


def descend(step: int, end: float = math.log(31.7)) -> float:
    return end + 5.5 * math.exp(-step / 150)


def test_guard_ignores_an_isolated_spike() -> None:
    """The paper's false alarm: one window at 705 while the running value is flat at 31.7 (appendix A.3)."""
    guard = Guard()
    for step in range(4000):
        loss = math.log(705) if step in (1500, 2900) else descend(step)
        if step == 3500:
            loss = math.log(6000)
        assert guard.observe(loss) is None
    assert guard.perplexity == pytest.approx(31.7, rel=0.02)
    assert guard.healthy


def test_guard_stops_a_sustained_rise() -> None:
    """85 to 230 in cumulative perplexity, with the instantaneous one in the hundreds (appendix A.3)."""
    guard, reason, step = Guard(), None, 0
    for step in range(4000):
        loss = descend(step, math.log(85)) if step < 2000 else math.log(85) + (step - 2000) / 400
        reason = guard.observe(loss)
        if reason:
            break
    assert reason is not None
    assert "diverges" in reason
    assert 2000 < step < 2400
    assert not guard.healthy


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_guard_stops_at_once_on_a_loss_that_is_no_number(loss: float) -> None:
    guard = Guard()
    guard.observe(5.0)
    reason = guard.observe(loss)
    assert reason is not None
    assert "not a finite number" in reason


@given(st.integers(1, 60), st.integers(0, 5), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_order_shows_every_context_once_a_pass(blocks: int, seed: int, size: int) -> None:
    ids = np.arange(blocks * 8 + 1 + 20, dtype=np.uint16)
    order = Order(ids, context=8, seed=seed, held_out=20)
    rows = torch.cat([order.batch(first, min(size, blocks - first)) for first in range(0, blocks, size)])
    assert sorted(rows[:, 0].tolist()) == [8 * block for block in range(blocks)]
    assert (rows[:, 1:] - rows[:, :-1] == 1).all()
    assert rows.max() < len(ids) - 20
    again = torch.cat([order.batch(first, 1) for first in range(blocks)])
    assert torch.equal(rows, again)
    if blocks > 12:
        assert not torch.equal(order.batch(blocks, blocks), rows)
    held = torch.cat(list(order.held_out_batches(2)))
    assert held.min() == len(ids) - 20


def test_text_to_ids(tmp_path: Path) -> None:
    text = "One line.\r\n\r\nAnother — line.\n<|endoftext|>\n\nSecond document\n"
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.xz"
    plain.write_bytes(text.encode())
    packed.write_bytes(lzma.compress(text.encode()))
    assert list(documents(plain)) == list(documents(packed)) == ["One line.\n\nAnother — line.", "Second document"]
    tokenizer = train_tokenizer(plain, 270)
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    ids = tokenise(plain, tokenizer, tmp_path / "cache").ids
    assert tokenizer.decode(ids[: list(ids).index(0)].tolist()) == "One line.\n\nAnother — line."
    assert list(ids).count(0) == 2
    assert ids[-1] == 0
    assert list(ids) == list(tokenise(plain, Tokenizer.from_str(tokenizer.to_str()), tmp_path / "cache").ids)


def test_bad_text_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no text"):
        list(documents(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LegibleError, match="not UTF-8"):
        list(documents(tmp_path / "bad.txt"))
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"text " * 5000)[:40])
    with pytest.raises(LegibleError, match="cannot be read"):
        list(documents(tmp_path / "cut.xz"))
    with pytest.raises(LegibleError, match="needs more than the held-out"):
        Order(np.zeros(10, dtype=np.uint16), context=8, seed=0, held_out=5)


def test_a_run_that_settles_may_rise_and_is_judged_from_there() -> None:
    guard = Guard(settle=300)
    decayed_then_warm = [4.4] * 20 + [4.62] * 600
    assert all(guard.observe(loss) is None and guard.healthy for loss in decayed_then_warm)
    plain = Guard()
    assert any(plain.observe(loss) for loss in decayed_then_warm)
    again = Guard()
    again.load(guard.to_json())
    assert any(again.observe(4.9) for _ in range(400))  # it still stops what rises afterwards
