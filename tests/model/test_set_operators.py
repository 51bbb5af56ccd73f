"""What is fused for training against the same written operation by operation: values and gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model
from torch import Tensor

from legible_core.config import FeedForward, ModelConfig
from legible_core.model import Observed, Transformer, set_operators
from legible_core.model.attention import combine
from legible_core.model.linear import Pairs, factoring, joint_linears, linear, linears, sum_linear
from legible_core.model.quantifiers import QuantifierState
from legible_core.model.set_operators import Operands, boolean_values, named_units
from legible_core.training.pressures import Pressing, Pressure, pressure_loss

LAYOUTS = [
    FeedForward(24, 0.5, 0.5),
    FeedForward(24, 0.5, 0.0),
    FeedForward(24, 0.5, 1.0),
    FeedForward(24, 0.0, 0.25),
    FeedForward(24, 0.0, 0.0),
]


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_named_units_have_the_gradient_of_finite_differences(layout: FeedForward, carried: bool) -> None:
    """Of the units and of the memberships, which the pressures look at, alone and together."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    read = draw(2, 3, 2 * layout.n_pairs + layout.n_quantifiers)
    decay = torch.rand(layout.n_quantifiers, generator=generator, dtype=torch.float64).requires_grad_()
    state = None
    if carried and layout.n_quantifiers:
        half = torch.rand(2, layout.n_existential, dtype=torch.float64)
        state = QuantifierState(half, half + 1, half[:1].expand(2, -1) + 2)

    def run(decay: Tensor, read: Tensor) -> tuple[Tensor, ...]:
        # What it is given is spent, so it is given a copy.
        named, operands, after = named_units(layout, decay, state, read.clone())
        widths = [layout.n_pairs] * 2 if layout.n_pairs else []
        widths += [layout.n_quantifiers] if layout.n_quantifiers else []
        assert [operand.shape[-1] for operand in operands] == widths
        assert (after is None) == (not layout.n_quantifiers)
        return named, operands.joint

    assert torch.autograd.gradcheck(run, (decay, read))
    assert torch.autograd.gradcheck(lambda *given: run(*given)[0], (decay, read))
    # λ has no part in the memberships.
    assert torch.autograd.gradcheck(lambda read: run(decay, read)[1], (read,))


@pytest.mark.parametrize("pick", [slice(0, 2), slice(0, 1), slice(1, 2)])
def test_boolean_values_have_the_gradient_of_finite_differences(pick: slice) -> None:
    rows = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)

    def run(rows: Tensor) -> Any:
        values, operands = boolean_values(rows)
        return (values, operands.joint)[pick]

    assert torch.autograd.gradcheck(run, (rows,))
    values, operands = boolean_values(rows)
    assert torch.equal(values, combine(torch.sigmoid(rows).chunk(2, -1)))
    assert [operand.shape for operand in operands] == [(2, 3, 2, 2)] * 2


def gradients(
    model: Transformer, dtype: torch.dtype = torch.float32, unseen: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and every parameter's gradient under a loss that reaches every output and every operand."""
    model.to_compute(dtype)
    model.zero_grad()
    observed = Observed()
    observed.outputs = not unseen
    logits = model(random_ids(12, batch=2), observed=observed)
    loss = logits.square().mean()
    for operands in (*observed.attention_operands, *observed.feed_forward_operands):
        for operand in [operands.joint] if isinstance(operands, Operands) else operands:
            loss = loss + 0.02 * (operand.float() * (1.3 - operand.float())).sum()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return logits.detach(), {name: grad.float() for name, grad in found.items() if grad is not None}


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("config", designs())
def test_the_fused_model_is_the_plain_model(config: ModelConfig, unseen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what heads and units put out, and where nobody sees that, so that set operators are factored."""
    model = tiny_model(config)
    fused, by_fused = gradients(model, unseen=unseen)
    # What a compiler is given is the plain formulation.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    plain, by_plain = gradients(model)
    assert torch.allclose(fused, plain, atol=1e-5)
    assert by_fused.keys() == by_plain.keys() == dict(model.named_parameters()).keys()
    for name, grad in by_plain.items():
        assert torch.allclose(by_fused[name], grad, rtol=1e-4, atol=2e-6), name


@pytest.mark.parametrize("piece", [1 << 17, 40])
@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("task", [False, True])
def test_a_pressure_that_leaves_its_gradient_to_the_operators_is_the_plain_one(
    piece: int, floor: float, task: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces and whole, alone and beside the task; twice, since what was left once must not count again."""
    monkeypatch.setattr(set_operators, "PIECE", piece)
    pressures = (Pressure("both", 0.3, 0.7, floor=floor), Pressure("both", 0.5, 0.4, floor=floor))
    ids = random_ids(12, batch=2)
    for config in (tiny_config(biased=True), tiny_config("boolean", rho=0.0, quantifiers=0.5)):
        model, found = tiny_model(config), []
        for plainly in (False, False, True):
            model.zero_grad()
            with monkeypatch.context() as patch:
                patch.setattr(torch.compiler, "is_compiling", lambda plainly=plainly: plainly)
                observed = Observed() if plainly else Pressing(*pressures, 0)
                logits = model(ids, observed=observed)
            penalty = observed.penalty if isinstance(observed, Pressing) else pressure_loss(observed, *pressures, 0)
            assert penalty is not None
            (penalty + logits.square().mean() if task else penalty).backward()
            grads = {name: parameter.grad for name, parameter in model.named_parameters()}
            found.append({name: grad.clone() for name, grad in grads.items() if grad is not None})
        first, second, plain = found
        assert any(name.endswith("pair_a") and bool(grad.any()) for name, grad in plain.items())
        for name, grad in plain.items():
            for fused in (first, second):
                ours = fused.get(name, torch.zeros(()))
                assert torch.allclose(ours.expand_as(grad), grad, rtol=1e-4, atol=2e-6), name


@pytest.mark.parametrize("unseen", [False, True])
def test_the_fused_model_is_as_good_as_the_plain_one_in_bfloat16(unseen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each against float32: a fused step rounds less often than the plain one, not more."""
    config = tiny_config(biased=True)
    exact, by_exact = gradients(tiny_model(config))
    fused, by_fused = gradients(tiny_model(config), torch.bfloat16, unseen)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    plain, by_plain = gradients(tiny_model(config), torch.bfloat16)
    assert (fused - exact).norm() < 1.2 * (plain - exact).norm()
    assert (fused - exact).norm() < 0.03 * exact.norm()
    for name, grad in by_exact.items():
        allowed = max(1.5 * (by_plain[name] - grad).norm(), 0.02 * grad.norm())
        assert (by_fused[name] - grad).norm() < allowed, name


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.n_pairs])
def test_factored_units_have_a_in_the_place_of_the_differences(layout: FeedForward) -> None:
    read = torch.randn(2, 3, 2 * layout.n_pairs + layout.n_quantifiers, dtype=torch.float64, requires_grad=True)
    decay = torch.rand(layout.n_quantifiers, dtype=torch.float64, requires_grad=True)

    def run(decay: Tensor, read: Tensor) -> tuple[Tensor, ...]:
        named, operands, _ = named_units(layout, decay, None, read.clone(), factored=True)
        return named, operands.joint

    assert torch.autograd.gradcheck(run, (decay, read))
    factored, memberships = run(decay, read)
    plain = named_units(layout, decay, None, read.clone())[0]
    assert torch.equal(factored[..., layout.differences], memberships[..., : layout.n_pairs])
    assert torch.equal(factored[..., layout.intersections], plain[..., layout.intersections])
    assert torch.equal(factored[..., layout.quantifiers], plain[..., layout.quantifiers])


def test_factored_values_have_a_in_the_place_of_the_differences() -> None:
    rows = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: boolean_values(rows, factored=True)[0], (rows,))
    values, (a, b) = boolean_values(rows, factored=True)
    assert torch.equal(values, torch.cat([a * b, a], -1))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("pairs", [Pairs(1, 8), Pairs(3, 4), Pairs(1, 24)])
def test_factored_set_operators_are_written_as_the_plain_ones(pairs: Pairs, biased: bool) -> None:
    layer = tiny_model(tiny_config(biased=biased)).layers[0].feed_forward
    a, b = (torch.rand(2, 5, pairs.groups, pairs.half, requires_grad=True) for _ in range(2))
    rest = torch.randn(2, 5, 48 - 2 * pairs.groups * pairs.half, requires_grad=True)
    found = []
    for second, factored in ((a * (1.0 - b), None), (a, pairs)):
        operators = torch.cat([a * b, second], -1).flatten(-2)
        parts = (operators, rest) if rest.shape[-1] else (operators,)
        out = sum_linear(layer, "down", parts, factored) if factored else linear(layer, "down", torch.cat(parts, -1))
        weights = [a, b, *parts[1:], layer.down, *([layer.down_bias] if biased else [])]
        found.append([out, *torch.autograd.grad(out.sin().sum(), weights)])
    for theirs, mine in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_nothing_is_factored_in_bfloat16_nor_without_a_gradient() -> None:
    x = torch.randn(3, requires_grad=True)
    assert factoring(x)
    assert not factoring(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not factoring(x)
    with torch.no_grad():
        assert not factoring(x)


@pytest.mark.parametrize("biased", [False, True])
def test_linears_are_linear_one_by_one(biased: bool) -> None:
    layer = tiny_model(tiny_config(biased=biased, special=(2, 2, 2))).layers[0].attention
    names = ["query", "bounded_values", "linear_values"]
    x = torch.randn(2, 5, 24, requires_grad=True)

    def jointly(module: Any, names: list[str], x: Tensor) -> tuple[Tensor, ...]:
        first, rest = joint_linears(module, [names[:1], names[1:]], x)
        return first, *rest.chunk(2, -1)

    def one_by_one(module: Any, names: list[str], x: Tensor) -> list[Tensor]:
        return [linear(module, name, x) for name in names]

    # An output that nothing uses gives no gradient and hinders none.
    for used, autocast in itertools.product([(0, 1, 2), (0, 2), (1,)], [False, True]):
        found = []
        for read in (one_by_one, linears, jointly):
            layer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                outputs = read(layer, names, x)
            total = sum(outputs[index].float().sin().sum() for index in used)
            assert isinstance(total, Tensor)
            weights = [getattr(layer, names[index]) for index in used]
            biases = [getattr(layer, f"{names[index]}_bias") for index in used] if biased else []
            found.append([*outputs, *torch.autograd.grad(total, [x, *weights, *biases])])
        for theirs, *ours in zip(*found, strict=True):
            for mine in ours:
                assert mine.dtype == theirs.dtype
                assert torch.allclose(mine, theirs, rtol=0.05 if autocast else 1e-5, atol=0.05 if autocast else 1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_sum_of_linears_is_the_linear_of_the_whole(biased: bool, autocast: bool) -> None:
    layer = tiny_model(tiny_config(biased=biased)).layers[0].feed_forward
    x = torch.randn(2, 5, 48, requires_grad=True)
    found = []
    for whole in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            parts = x.split([20, 4, 24], -1)
            out = linear(layer, "down", x) if whole else sum_linear(layer, "down", parts)
        weights = [x, layer.down, *([layer.down_bias] if biased else [])]
        found.append([out, *torch.autograd.grad(out.float().sin().sum(), weights)])
    for theirs, mine in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.allclose(mine, theirs, rtol=0.05 if autocast else 1e-5, atol=0.1 if autocast else 1e-5)


def test_autocast_trains_the_whole_model() -> None:
    model = tiny_model(tiny_config(biased=True))
    exact, by_exact = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        cast, by_cast = gradients(model)
    assert (cast - exact).norm() < 0.05 * exact.norm()
    for name, grad in by_exact.items():
        assert (by_cast[name] - grad).norm() < 0.1 * grad.norm() + 2e-3, name
