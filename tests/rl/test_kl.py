"""KL estimators against the KL, and the controls of its coefficient."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.kl import AdaptiveKL, Estimator, FixedKL, kl_estimate
from hfdsl.rl.losses import entropy
from tests.rl import oracle

KINDS: tuple[Estimator, ...] = get_args(Estimator)
numbers = st.floats(-5, 5)
vocabularies = st.integers(2, 6).flatmap(
    lambda n: st.tuples(st.lists(numbers, min_size=n, max_size=n), st.lists(numbers, min_size=n, max_size=n))
)


def distributions(logits: tuple[list[float], list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    policy, reference = (torch.tensor(x, dtype=torch.float64) for x in logits)
    return policy.log_softmax(-1), reference.log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
@given(policy=st.floats(-8, 0), reference=st.floats(-8, 0))
def test_estimates(kind: Estimator, policy: float, reference: float) -> None:
    log_prob, reference_log_prob = torch.tensor([policy, reference], dtype=torch.float64)
    estimate = kl_estimate(log_prob, reference_log_prob, kind)
    assert estimate.item() == pytest.approx(oracle.kl(kind, policy, reference), abs=1e-9)


@given(vocabularies)
def test_k1_and_k3_are_unbiased(logits: tuple[list[float], list[float]]) -> None:
    policy, reference = distributions(logits)
    exact = sum(p.exp() * (p - q) for p, q in zip(policy, reference, strict=True))
    for kind in ("k1", "k3"):
        expectation = (policy.exp() * kl_estimate(policy, reference, kind)).sum()
        assert expectation.item() == pytest.approx(float(exact), abs=1e-9)


@given(vocabularies)
def test_k2_has_the_gradient_of_the_kl(logits: tuple[list[float], list[float]]) -> None:
    policy = torch.tensor(logits[0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(logits[1], dtype=torch.float64).log_softmax(-1)
    log_policy = policy.log_softmax(-1)
    [exact] = torch.autograd.grad((log_policy.exp() * (log_policy - reference)).sum(), policy)
    chances = policy.detach().softmax(-1)  # the chance of every sample, which has no gradient
    [k2] = torch.autograd.grad((chances * kl_estimate(policy.log_softmax(-1), reference, "k2")).sum(), policy)
    [k1] = torch.autograd.grad((chances * kl_estimate(policy.log_softmax(-1), reference, "k1")).sum(), policy)
    torch.testing.assert_close(k2, exact)
    torch.testing.assert_close(k1, torch.zeros_like(k1))


@given(vocabularies)
def test_a_policy_is_not_far_from_itself(logits: tuple[list[float], list[float]]) -> None:
    policy, reference = distributions(logits)
    for kind in KINDS:
        assert kl_estimate(policy, policy, kind).abs().max() == 0
        if kind != "k1":
            assert (kl_estimate(policy, reference, kind) >= 0).all()


def test_k3_is_not_clamped() -> None:
    policy = torch.tensor(-5.0, dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(policy, torch.tensor(0.0, dtype=torch.float64), "k3")
    estimate.backward()
    assert estimate.item() == pytest.approx(math.exp(5) - 6)
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(1 - math.exp(5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_far_apart_is_finite_and_has_a_finite_gradient(kind: Estimator, gap: float) -> None:
    policy = torch.tensor(-1e4 - gap / 2, requires_grad=True)
    estimate = kl_estimate(policy, torch.tensor(-1e4 + gap / 2), kind)
    estimate.backward()
    assert estimate.isfinite()
    assert policy.grad is not None
    assert policy.grad.isfinite()


def test_tokens_that_are_ruled_out_count_for_nothing() -> None:
    never = float("-inf")
    policy = torch.tensor([[0.0, 1.0, never]], requires_grad=True)
    bits = entropy(policy)
    bits.sum().backward()
    assert bits.isfinite().all()
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


@given(st.lists(numbers, min_size=1, max_size=6))
def test_entropy(logits: list[float]) -> None:
    chances = torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist()
    nats = entropy(torch.tensor(logits, dtype=torch.float64)).item()
    assert nats == pytest.approx(-sum(p * math.log(p) for p in chances))
    uniform = entropy(torch.zeros(len(logits), dtype=torch.float64)).item()
    assert nats <= uniform + 1e-12
    assert uniform == pytest.approx(math.log(len(logits)))


def test_gradients() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(entropy, (logits,))


# -- controls


def test_a_fixed_coefficient_stays() -> None:
    assert FixedKL(0.1).after(100.0) == FixedKL(0.1)


@given(st.floats(0, 1e6))
def test_an_adaptive_coefficient_moves_towards_its_target(observed: float) -> None:
    before = AdaptiveKL(0.1, target=6.0, gain=0.1)
    after = before.after(observed)
    change = after.coefficient / before.coefficient
    assert 0.98 - 1e-12 <= change <= 1.02 + 1e-12
    assert (change > 1, change < 1) == (observed > 6.0, observed < 6.0) or observed == pytest.approx(6.0)


def test_an_adaptive_coefficient_holds_the_kl_at_its_target() -> None:
    control = AdaptiveKL(1.0, target=6.0)
    for _ in range(2000):
        control = control.after(observed=1 / control.coefficient)  # the stronger the penalty, the nearer
    assert 1 / control.coefficient == pytest.approx(6.0, rel=1e-3)
