"""Rewards: from the score of a response to a reward at every token. Pure functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfdsl.rl.fields import Count, check_argument
from hfdsl.rl.kl import kl_estimate
from hfdsl.rl.masked import lengths, masked

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.kl import Estimator


def token_rewards(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The score of a response as the reward of its last token, f32[B] and bool[B, R] -> f32[B, R].

    A response without tokens has none to reward (Ouyang et al., 2022, InstructGPT, section 3.4: a bandit's reward).

    >>> import torch
    >>> token_rewards(torch.tensor([2.0, 5.0]), torch.tensor([[True, True, False], [False, False, False]])).tolist()
    [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """
    tokens = mask.bool()
    later = tokens.long().flip(-1).cumsum(-1).flip(-1)  # tokens from here to the end
    return masked(scores[:, None].expand(tokens.shape), tokens & (later == 1))


def kl_penalized(
    rewards: torch.Tensor,
    log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    mask: torch.Tensor,
    coefficient: float,
    kind: Estimator = "k1",
) -> torch.Tensor:
    """Token rewards less ``coefficient`` times the KL estimate of every token, all f32[B, R].

    R(x, y) = r(x, y) - beta * log(policy / reference) (Ziegler et al., 2019, section 2.2, equation 2; token by token as
    in Ouyang et al., 2022).

    >>> import torch
    >>> zero, mask = torch.zeros(1, 2), torch.tensor([[True, False]])
    >>> kl_penalized(zero, zero, zero - 1.0, mask, coefficient=0.5).tolist()
    [[-0.5, 0.0]]
    """
    return masked(rewards - coefficient * kl_estimate(log_probs, reference_log_probs, kind), mask)


def overlong_penalty(mask: torch.Tensor, longest: int, buffer: int) -> torch.Tensor:
    """The penalty for a response's length, bool[B, R] -> f32[B], from 0 down to -1.

    0 up to ``longest - buffer`` tokens, then linearly down to -1 at ``longest`` and beyond (DAPO: Yu et al., 2025,
    section 3.4, equation 13, soft overlong punishment).

    Raises:
        ConfigError: HF940 for a buffer of less than a token.

    >>> import torch
    >>> overlong_penalty(torch.arange(5) < torch.tensor([[2], [3], [4], [5]]), longest=4, buffer=2).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    check_argument("overlong_penalty", "buffer", Count, buffer)
    remaining = longest - buffer - lengths(mask)
    return (remaining.float() / buffer).clamp(-1.0, 0.0)


def distillation_reward(log_probs: torch.Tensor, teacher_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The teacher's log-prob of each token that the student sampled less the student's, all f32[B, R], in nats.

    teacher - student: on average the negated reverse KL of the token (Gu et al., 2024, MiniLLM, equation 1; as the
    reward of every token, Agarwal et al., 2024, On-Policy Distillation of Language Models, section 3).

    >>> import torch
    >>> distillation_reward(torch.tensor([[-2.0]]), torch.tensor([[-0.5]]), torch.tensor([[True]])).item()
    1.5
    """
    return masked(-kl_estimate(log_probs, teacher_log_probs, "k1"), mask)
