"""The parallel scan against the recurrences as DESIGN.md writes them, one step at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legible_core.model.quantifiers import QuantifierState, half_life, quantify


def by_steps(m: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """e_t = 1-(1-m)(1-λe), p_t = s_t/n_t, in float64."""
    m, decay = m.double(), decay.double()
    half = m.shape[-1] // 2
    e = torch.zeros_like(m[:, 0, :half])
    s, n = torch.zeros_like(m[:, 0, half:]), torch.zeros_like(m[:, 0, half:])
    out = []
    for t in range(m.shape[1]):
        e = 1 - (1 - m[:, t, :half]) * (1 - decay[:half] * e)
        s = decay[half:] * s + m[:, t, half:]
        n = decay[half:] * n + 1
        out.append(torch.cat([e, s / n], -1))
    return torch.stack(out, 1)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 255, 2048])
def test_scan_equals_recurrence_with_gradients(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    m = torch.rand(2, length, 6, generator=generator)
    m[0, :, 0] = 0.0
    m[1, :, 1] = 1.0
    # The trained parameter is θ, with λ = σ(θ).
    theta = torch.tensor([0.02, 0.5, 0.98, 0.3, 0.98, 0.9999]).logit()
    weight = torch.randn(2, length, 6, generator=generator) / math.sqrt(length)

    fast_m, fast_theta = m.clone().requires_grad_(), theta.clone().requires_grad_()
    fast, _ = quantify(fast_m, fast_theta.sigmoid())
    (fast * weight).sum().backward()
    slow_m, slow_theta = m.double().requires_grad_(), theta.double().requires_grad_()
    slow = by_steps(slow_m, slow_theta.sigmoid())
    (slow * weight.double()).sum().backward()

    assert (fast.double() - slow).abs().max() < 1e-5
    assert fast_m.grad is not None
    assert slow_m.grad is not None
    assert (fast_m.grad.double() - slow_m.grad).abs().max() < 1e-5
    assert fast_theta.grad is not None
    assert slow_theta.grad is not None
    assert (fast_theta.grad.double() - slow_theta.grad).abs().max() < 1e-5


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_state_carries_a_text_over_any_split(pieces: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    m = torch.rand(1, sum(pieces), 4, generator=generator)
    decay = torch.rand(4, generator=generator)
    whole, last = quantify(m, decay)
    state: QuantifierState | None = QuantifierState.empty(1, 2, 2, m.device)
    parts = []
    for piece in m.split(pieces, dim=1):
        part, state = quantify(piece, decay, state)
        parts.append(part)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert state is not None
    assert torch.allclose(state.total, last.total, atol=1e-5)


def test_memory_is_linear_in_time() -> None:
    """No (T×T) tensor: at T = 2048 the largest tensor saved or made holds b·t·q numbers."""
    length, largest = 2048, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    m = torch.rand(2, length, 4, requires_grad=True)
    decay = torch.rand(4, requires_grad=True)
    with Watch():
        quantify(m, decay)[0].sum().backward()
    assert largest == 2 * length * 4


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("carried", [False, True])
def test_gradient_is_that_of_finite_differences(length: int, carried: bool) -> None:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    m, decay = draw(2, length, 6).requires_grad_(), draw(6).requires_grad_()
    state = QuantifierState(draw(2, 3), draw(2, 3), draw(1, 3).expand(2, 3)) if carried else None
    assert torch.autograd.gradcheck(lambda m, decay: quantify(m, decay, state)[0], (m, decay))


def test_stays_in_the_unit_interval() -> None:
    m = torch.rand(3, 100, 8, generator=torch.Generator().manual_seed(1)).round()
    out, _ = quantify(m, torch.full((8,), 0.999))
    assert out.min() >= 0
    assert out.max() <= 1 + 1e-6


def test_half_life() -> None:
    assert half_life(0.98) == pytest.approx(34.3, abs=0.1)
    assert half_life(0.5) == 1.0
    assert half_life(0.0) == 0.0
    assert half_life(1.0) == math.inf
