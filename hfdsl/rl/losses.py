"""Losses of policy optimisation, a term a token: the caller masks and normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def clipped_surrogate(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, clip: float = 0.2
) -> torch.Tensor:
    """The negated clipped surrogate of PPO, all f32[B, R] (advantages may be f32[B, 1]).

    min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A), ratio = exp(log_probs - old_log_probs)
    (Schulman et al., 2017, Proximal Policy Optimization Algorithms, equation 7).

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> clipped_surrogate(one.log() + 0.5, one.log(), one).item()  # the ratio e**0.5 is held at 1.2
    -1.2000000476837158
    """
    import torch

    ratio = (log_probs - old_log_probs).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def kl_estimate(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) from the policy's own samples, f32[B, R]; never negative, unbiased.

    exp(r) - r - 1 with r = reference - policy (Schulman, 2020, Approximating KL Divergence).

    >>> import torch
    >>> kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1)).item()
    0.0
    """
    gap = reference_log_probs - log_probs
    return gap.exp() - gap - 1
