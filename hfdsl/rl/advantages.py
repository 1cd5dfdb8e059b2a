"""Advantages: from rewards to what a policy gradient is weighted with. Pure functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfdsl.errors import SizeError

if TYPE_CHECKING:
    import torch


def group_normalised(rewards: torch.Tensor, group: int, epsilon: float = 1e-4) -> torch.Tensor:
    """The advantage of each response within its group of ``group`` consecutive rows, f32[B] -> f32[B].

    (reward - mean of the group) / (standard deviation of the group + epsilon): outcome supervision of GRPO
    (Shao et al., 2024, DeepSeekMath, section 4.1.2).

    Raises:
        SizeError: HF314 for groups of less than two rows, HF313 for rows that do not make whole groups.

    >>> import torch
    >>> [round(a, 2) for a in group_normalised(torch.tensor([1.0, 0.0, 3.0, 3.0]), 2).tolist()]
    [0.71, -0.71, 0.0, 0.0]
    """
    if group < 2:
        raise SizeError("HF314", f"a group of {group} has no standard deviation; sample at least 2 responses a prompt")
    if rewards.shape[0] % group:
        raise SizeError("HF313", f"rewards have {rewards.shape[0]} rows, which do not make whole groups of {group}")
    groups = rewards.view(-1, group)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + epsilon)).flatten()
