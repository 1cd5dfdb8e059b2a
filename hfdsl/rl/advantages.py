"""Advantages: from rewards to what a policy gradient is weighted with. Pure functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def group_normalised(rewards: torch.Tensor, group: int, epsilon: float = 1e-4) -> torch.Tensor:
    """The advantage of each response within its group of ``group`` consecutive rows, f32[B] -> f32[B].

    (reward - mean of the group) / (standard deviation of the group + epsilon): outcome supervision of GRPO
    (Shao et al., 2024, DeepSeekMath, section 4.1.2).

    >>> import torch
    >>> [round(a, 2) for a in group_normalised(torch.tensor([1.0, 0.0, 3.0, 3.0]), 2).tolist()]
    [0.71, -0.71, 0.0, 0.0]
    """
    groups = rewards.view(-1, group)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + epsilon)).flatten()
