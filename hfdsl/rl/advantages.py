"""Advantages: from rewards to the weights of a policy gradient. Pure functions of tensors.

Sums are taken in float64 and returned in the dtype of the rewards. If a mask has gaps, such as the outputs of tools,
its tokens are the steps of the response, and the gaps are skipped.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hfdsl.errors import SizeError
from hfdsl.rl.fields import GroupSize, Share, check_argument
from hfdsl.rl.masked import masked, no_reduce, whitened

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.masked import Reduce


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: Share = 1.0, lam: Share = 0.95
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalized advantage estimates, and the returns that a critic learns, all f32[B, R].

    A_t = sum over l of (gamma * lam)**l * delta_(t+l), delta_t = r_t + gamma * V_(t+1) - V_t, with a value of 0 after
    the last token; returns are A + V (Schulman et al., 2016, High-Dimensional Continuous Control Using Generalized
    Advantage Estimation, equations 11, 12 and 16).

    Raises:
        ConfigError: HF940 for a gamma or lambda outside of 0 to 1.

    >>> import torch
    >>> advantages, returns = gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), torch.ones(1, 2), lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([[0.5, 0.5]], [[1.0, 1.0]])
    """
    import torch

    check_argument("gae", "gamma", Share, gamma)
    check_argument("gae", "lam", Share, lam)
    r, v, tokens = masked(rewards, mask).double(), masked(values, mask).double(), mask.bool()
    advantages = torch.zeros_like(r)
    following = running = torch.zeros_like(r[:, 0])
    for t in reversed(range(r.shape[1])):
        # Both carry over outside of the mask: a gap is not a step, and after the last token both are still 0.
        estimate = r[:, t] + gamma * following - v[:, t] + gamma * lam * running
        running = torch.where(tokens[:, t], estimate, running)
        following = torch.where(tokens[:, t], v[:, t], following)
        advantages[:, t] = running
    return masked(advantages, mask).to(values.dtype), masked(advantages + v, mask).to(values.dtype)


def discounted_returns(rewards: torch.Tensor, mask: torch.Tensor, gamma: Share = 1.0) -> torch.Tensor:
    """The discounted rewards from every token on, f32[B, R] -> f32[B, R].

    G_t = r_t + gamma * G_(t+1) (Sutton and Barto, 2018, Reinforcement Learning, equation 3.9).

    >>> import torch
    >>> discounted_returns(torch.tensor([[1.0, 2.0, 4.0]]), torch.ones(1, 3), gamma=0.5).tolist()
    [[3.0, 4.0, 4.0]]
    """
    import torch

    return gae(rewards, torch.zeros_like(rewards), mask, gamma, lam=1.0)[0]


def group_normalized(rewards: torch.Tensor, group: GroupSize, epsilon: float = 1e-4) -> torch.Tensor:
    """The advantage of each response within its group of ``group`` consecutive rows, f32[B] -> f32[B].

    (reward - mean of the group) / (standard deviation of the group + epsilon): outcome supervision of GRPO
    (Shao et al., 2024, DeepSeekMath, section 4.1.2).

    Raises:
        SizeError: HF314 for groups of less than two rows, HF313 for rows that do not make whole groups.

    >>> import torch
    >>> [round(a, 2) for a in group_normalized(torch.tensor([1.0, 0.0, 3.0, 3.0]), 2).tolist()]
    [0.71, -0.71, 0.0, 0.0]
    """
    groups = in_groups(rewards, group, "standard deviation")
    deviations = groups - _sum(groups) / group
    spread = (_sum(deviations * deviations) / (group - 1)).sqrt()
    return (deviations / (spread + epsilon)).flatten().to(rewards.dtype)


def group_centered(rewards: torch.Tensor, group: GroupSize) -> torch.Tensor:
    """The reward of each response above the mean of its ``group`` consecutive rows, f32[B] -> f32[B].

    Dr. GRPO: no division by the standard deviation, which would weigh easy and hard questions more (Liu et al., 2025,
    Understanding R1-Zero-Like Training, section 3.2); use a loss with ``sequence-mean-token-sum``.

    Raises:
        SizeError: HF314 for groups of less than two rows, HF313 for rows that do not make whole groups.

    >>> import torch
    >>> group_centered(torch.tensor([1.0, 0.0, 3.0, 3.0]), 2).tolist()
    [0.5, -0.5, 0.0, 0.0]
    """
    groups = in_groups(rewards, group, "spread")
    return (groups - _sum(groups) / group).flatten().to(rewards.dtype)


def leave_one_out(rewards: torch.Tensor, group: GroupSize) -> torch.Tensor:
    """The reward of each response above the mean of the others of its ``group`` consecutive rows, f32[B] -> f32[B].

    RLOO: an unbiased baseline (Kool et al., 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free; Ahmadian et al.,
    2024, Back to Basics, section 3).

    Raises:
        SizeError: HF314 for groups of less than two rows, HF313 for rows that do not make whole groups.

    >>> import torch
    >>> leave_one_out(torch.tensor([1.0, 0.0, 2.0]), 3).tolist()
    [0.0, -1.5, 1.5]
    """
    groups = in_groups(rewards, group, "others to be compared with")
    others = (_sum(groups) - groups) / (group - 1)
    return (groups - others).flatten().to(rewards.dtype)


def leave_one_out_normalized(rewards: torch.Tensor, group: GroupSize, epsilon: float = 1e-6) -> torch.Tensor:
    """The advantage of each response over the others of its ``group`` consecutive rows, f32[B] -> f32[B].

    (reward - mean of the others) / (standard deviation of the others + epsilon), so that no reward is in its own
    baseline or scale. If all others have the same reward, the difference is not divided.

    Raises:
        SizeError: HF314 for groups of less than two rows, HF313 for rows that do not make whole groups.

    >>> import torch
    >>> [round(a, 2) for a in leave_one_out_normalized(torch.tensor([1.0, 0.0, 3.0, 3.0]), 4).tolist()]
    [-0.58, -2.02, 1.09, 1.09]
    """
    import torch

    groups = in_groups(rewards, group, "others to be compared with")
    apart = torch.tensor([[j for j in range(group) if j != i] for i in range(group)], device=rewards.device)
    others = groups[:, apart].unbind(-1)
    mean = functools.reduce(torch.add, others) / (group - 1)
    squares = functools.reduce(torch.add, [(reward - mean) ** 2 for reward in others])
    alike = functools.reduce(torch.logical_and, [reward == others[0] for reward in others])
    spread = (squares / max(1, group - 2)).sqrt() + epsilon
    return ((groups - mean) / torch.where(alike, torch.ones_like(spread), spread)).flatten().to(rewards.dtype)


def globally_normalized(
    rewards: torch.Tensor, mask: torch.Tensor, gamma: Share = 1.0, reduce: Reduce = no_reduce
) -> torch.Tensor:
    """The rewards from every token on, whitened over all tokens of the batch, f32[B, R] -> f32[B, R].

    REINFORCE++: no critic and no groups; the KL penalty is in the rewards (Hu et al., 2025, REINFORCE++, equations
    8 to 10). ``reduce`` sums over the ranks that hold the other rows, as in :func:`hfdsl.rl.masked.whitened`.

    >>> import torch
    >>> globally_normalized(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)).tolist()
    [[0.866..., 0.866...], [-0.866..., -0.866...]]
    """
    return whitened(discounted_returns(rewards, mask, gamma), mask, reduce)


def above_baseline(rewards: torch.Tensor, baseline: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rewards from every token on, above the score of the greedy response, f32[B, R] and f32[B] -> f32[B, R].

    ReMax: r(x, y) - r(x, greedy y) (Li et al., 2024, ReMax, section 4), plus a KL penalty where the rewards
    have one.

    >>> import torch
    >>> above_baseline(torch.tensor([[0.0, 1.0]]), torch.tensor([0.75]), torch.ones(1, 2)).tolist()
    [[0.25, 0.25]]
    """
    return masked(discounted_returns(rewards, mask) - baseline[:, None], mask)


def spread_over_tokens(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The advantage of a response at each of its tokens, f32[B] and bool[B, R] -> f32[B, R].

    >>> import torch
    >>> spread_over_tokens(torch.tensor([2.0]), torch.tensor([[True, False]])).tolist()
    [[2.0, 0.0]]
    """
    return masked(advantages[:, None].expand(mask.shape), mask)


def in_groups(rewards: torch.Tensor, group: int, statistic: str) -> torch.Tensor:
    """The rewards with one group per row, f64[B / group, group].

    Raises:
        SizeError: HF314 for groups of one, which have no such ``statistic``, HF313 for rows that make no whole groups.

    >>> import torch
    >>> in_groups(torch.tensor([1.0, 0.0, 2.0, 2.0]), 2, "mean").tolist()
    [[1.0, 0.0], [2.0, 2.0]]
    """
    if group < 2:
        raise SizeError("HF314", f"a group of {group} has no {statistic}; sample at least 2 responses a prompt")
    if rewards.shape[0] % group:
        raise SizeError("HF313", f"rewards have {rewards.shape[0]} rows, which do not make whole groups of {group}")
    return rewards.double().view(-1, group)


def _sum(groups: torch.Tensor) -> torch.Tensor:
    """The sum of every group, f64[groups, 1].

    Added column by column: ``sum(1)`` may add in another order for another number of groups, and then a rank with some
    of the groups would get other bits than one with all of them.
    """
    import torch

    return functools.reduce(torch.add, groups.unbind(1))[:, None]
